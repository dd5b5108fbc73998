"""Mistakes of a user: one line that says what, where and what to do, a status that is not 0, nothing half-written."""

from __future__ import annotations

import re

import pytest
import torch

from gpbench import config, places
from gpbench.cli.main import main
from gpbench.data.prepare import prepare
from gpbench.places import write_if_changed
from gpbench.study.fitting import checkpoint
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from gpbench.study.storage.store import Store

CELL = ("fit", "method=constant", "dataset=wine")


def overrides(text: str) -> tuple[str, ...]:
    return "plan", "--overrides", text


WORDS = {
    "unknown method": (("fit", "method=svpg", "dataset=wine"), ["unknown method 'svpg'", "did you mean 'svgp'?"]),
    "unknown data set": (("fit", "method=svgp", "dataset=bostn"), ["unknown dataset 'bostn'", "'boston'"]),
    "unknown protocol": ((*CELL, "protocol=comon"), ["unknown protocol 'comon'", "did you mean 'common'?"]),
    "unknown budget": ((*CELL, "budget=quik"), ["unknown budget 'quik'", "did you mean 'quick'?"]),
    "unknown trainer": ((*CELL, "trainer=tpu"), ["unknown trainer 'tpu'", "did you mean 'gpu'?"]),
    "unknown study": (("plan", "defualt"), ["unknown study 'defualt'", "did you mean 'default'?"]),
    "unknown setting": ((*CELL, "datset=wine"), ["unknown setting 'datset' in gpbench fit", "'dataset'"]),
    "unknown hyperparameter": (
        ("fit", "method=svgp", "dataset=wine", "method.num_inducin=5"),
        ["unknown key 'num_inducin'", "conf/method/svgp.yaml", "did you mean 'num_inducing'?"],
    ),
    "unknown trainer key": (overrides("trainer.thread=2"), ["unknown key 'thread'", "cpu.yaml", "'threads'"]),
    "unknown study key": (overrides("budgt=smoke"), ["unknown override 'budgt'", "did you mean 'budget'?"]),
    "method that is not in the study": (
        overrides("methods=[constant] svgp.num_inducing=5"),
        ["unknown method or group 'svgp'", "override 'svgp.num_inducing'", "constant"],
    ),
    "key that no method has": (overrides("*.num_inducin=5"), ["unknown key 'num_inducin'", "'num_inducing'"]),
    "wrong type": (
        overrides("svgp.num_inducing=many"),
        ["svgp.yaml", "num_inducing: Input should be a valid integer", "given: 'many'"],
    ),
    "out of range": (overrides("svgp.learning_rate=-1"), ["svgp.yaml", "learning_rate", "greater than 0", "given: -1"]),
    "no such choice": (overrides("dtype=float16"), ["dtype", "'float64' or 'float32'", "'float16'"]),
    **{
        f"{word} of fit": ((*CELL, word), [f"gpbench: gpbench fit: {said}"])
        for word, said in {
            "dtype=float16": "dtype: Input should be 'float64' or 'float32' (given: 'float16')",
            "tune=-1": "tune: Input should be greater than or equal to 0 (given: -1)",
            "tune=1.5": "tune: Input should be a valid integer",
            "noise_block=0": "noise_block: Input should be greater than or equal to 1 (given: 0)",
            "budget=[a]": "budget: Input should be a valid string (given: ['a'])",
        }.items()
    },
    "a quote in a text": (
        ("fit", "method=svgp", "dataset=wine", "budget=smoke", "method.kernel=it's"),
        ["conf/method/svgp.yaml) with [\"kernel=it's\"]: text with ' goes into quotes, a quote within it behind a \\"],
    ),
    "not key=value": ((*CELL, "split"), ["'split' is not of the form key=value"]),
    "no value": (overrides("svgp.num_inducing="), ["'svgp.num_inducing=' is not of the form key=value"]),
    "unbalanced quotes": (overrides("svgp.label='Sparse"), ["overrides", "No closing quotation"]),
    "unbalanced brackets": (overrides("methods=[svgp"), ["methods=[svgp", "default.yaml"]),
    "two settings in one word": (
        ("plan", "--set", "methods=[svgp] splits=1"),
        ["repeat --set, give several to --overri"],
    ),
    "a setting and a choice in one word": ((*CELL, "budget=smoke splits=2"), ["one word is one setting"]),
    "split that is not there": ((*CELL, "split=20"), ["split 20 of 'wine' is asked for", "'common' has 0 to 19"]),
    "negative split": ((*CELL, "split=-1"), ["split must be a non-negative integer or all, got -1"]),
    "split in words": ((*CELL, "split=first"), ["split must be a non-negative integer or all, got first"]),
    "too many splits": (overrides("splits=21"), ["splits 0 to 20", "'common' has 0 to 19"]),
    "negative first split": (overrides("first_split=-1"), ["first_split", "greater than or equal to 0", "-1"]),
    "no methods": (overrides("methods=[]"), ["study 'default' is empty", "it needs methods and datasets"]),
    "no data sets": (overrides("datasets=[]"), ["study 'default' is empty"]),
    "data set twice": (
        overrides("datasets=[wine,boston,wine]"),
        ["study 'default' has 'wine' twice", "name it once"],
    ),
    "method twice": (overrides("methods=[svgp,svgp]"), ["method 'svgp' twice", "name it once"]),
    "splits of an unknown data set": (overrides("splits_of={wien:3}"), ["'wien'", "splits_of", "'wine'"]),
    "preset of an unknown method": (overrides("presets={wine:{svpg:dsvi}}"), ["'svpg'", "presets", "'svgp'"]),
    "nothing to tune": ((*CELL, "tune=5"), ["tune: nothing to tune in constant", "names no ranges; leave tune out"]),
    "letters that overrides do not know": (
        overrides("methods=[größe]"),
        ["['methods=[größe]']: text with ö goes into quotes"],
    ),
    "impossible cell": (("fit", "method=exact_gp", "dataset=wine"), ["exact_gp on wine: regression only"]),
    "no data set named": (("fit", "method=svgp"), ["gpbench fit needs dataset=NAME", "choose one of: abalone, "]),
    "identity of no fit": (("why", "abc"), ["no fit begins with 'abc' in ", "`gpbench plan`"]),
    "study that was not planned": (("collect", "default"), ["plans/default.json is missing", "`snakemake --cores 2"]),
    "run that was not planned": (
        ("crate", "default", "--set", "splits=2"),
        [".json is missing; `snakemake --cores 2 --config study=default overrides=splits=2` plans and runs the study"],
    ),
    "study that is none": (("collect", "defalt"), ["unknown study 'defalt'; did you mean 'default'"]),
    "given twice": (overrides("splits=2 splits=3"), ["splits is given twice, as 2 and 3"]),
    "given twice, once by the name of its group": (
        overrides("splits=2 study.splits=3"),
        ["splits is given twice, as 2"],
    ),
    "given twice to fit": ((*CELL, "split=0", "split=1"), ["split is given twice, as 0 and 1"]),
    "underscores": (overrides("splits=1_0"), ["write the number 1_0 without _"]),
    "infinity": (overrides("svgp.learning_rate=inf"), ["svgp.yaml", "learning_rate must be a finite number, got inf"]),
    "truth for a number": (overrides("splits=true"), ["splits must be a number, got true"]),
    "typo of a method in a budget": (
        overrides("budget.hyper={svpg:{batch_size:5}}"),
        ["unknown method or family 'svpg' in hyper of budget 'quick'", "did you mean 'svgp'?"],
    ),
    "updates of a closed form": (overrides("linear.steps=5"), ["linear.steps is of no use: 'linear' has no updates"]),
    "a seed too large": (overrides("protocol.splits.seed=4294967296"), ["seed: Input should be less than 2147483648"]),
    "unknown figure": (overrides("figures=[foo]"), ["unknown figure 'foo' in figures of study 'default'"]),
    "too many fits": (overrides("replicas=100000"), ["more than 100,000; take fewer, or cut it"]),
    "name of a file": (overrides("trainer.name=x"), ["'name' cannot be overridden"]),
    "no identity": (("retry", ""), ["'' is not the identity of a fit"]),
    "unknown data set to fetch": (("data", "fetch", "bostn"), ["unknown dataset 'bostn'", "did you mean 'boston'?"]),
}


@pytest.mark.parametrize(("words", "said"), WORDS.values(), ids=WORDS)
def test_invalid_arguments(refused, words, said):
    refused(words, said)


FILES = {
    "invalid YAML": ("conf/method/svgp.yaml", "name: [", ["method/svgp.yaml is not valid YAML", "line 1"]),
    "YAML that is not a mapping": ("conf/budget/quick.yaml", "- 1\n", ["budget/quick.yaml must be a mapping of keys"]),
    "bytes": ("conf/dataset/wine.yaml", b"\xff\xfe", ["dataset/wine.yaml is not valid YAML"]),
    "no module": ("conf/method/svgp.yaml", "name: svgp\n", ["svgp.yaml: key 'module' is missing", "Python module"]),
    "module that is not there": (
        "conf/method/svgp.yaml",
        "name: svgp\nmodule: gpbench.methods.svpg\n",
        ["module 'gpbench.methods.svpg' cannot be found", "installed?"],
    ),
    "package that is not there": (
        "conf/method/svgp.yaml",
        "name: svgp\nmodule: no_such_package.svgp\n",
        ["module 'no_such_package.svgp' cannot be found"],
    ),
    "study of the project": (
        "conf/study/default.yaml",
        "title: [t]\nmethods: []\ndatasets: []\n",
        ["study 'default' (", "default.yaml): title: Input should be a valid string"],
    ),
    "missing key": ("conf/budget/quick.yaml", "title: t\n", ["budget 'quick'", "steps: Field required"]),
    "key that is not there": ("conf/trainer/cpu.yaml", "name: cpu\ndevise: cpu\n", ["'devise'", "mean 'device'?"]),
    "another name": (
        "conf/budget/quick.yaml",
        "name: slow\n",
        ["quick.yaml", "'name' differs from the name of the file"],
    ),
    "alias bomb": (
        "conf/trainer/cpu.yaml",
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)),
        ["trainer/cpu.yaml is not valid YAML", "its aliases stand for more than 100,000 values"],
    ),
    "deep nesting": ("conf/trainer/cpu.yaml", "[" * 5000, ["trainer/cpu.yaml is not valid YAML"]),
    "budget without a default": (
        "conf/budget/quick.yaml",
        "name: quick\ntitle: t\nsteps: {}\n",
        ["'quick' has no steps"],
    ),
}


@pytest.mark.parametrize(("name", "content", "said"), FILES.values(), ids=FILES)
def test_configuration_files(project, refused, name, content, said):
    (project / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(("plan",), said)


@pytest.mark.parametrize("words", [("plan", "--nope"), ("cost", "--cores", "1_0"), ("nope",), ("fit",)])
def test_arguments_that_do_not_parse_are_one_line(words, capfd):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capfd.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert re.search("see `gpbench.*--help`$", err)


def test_a_setting_in_the_wrong_place_is_told_where_it_goes(capfd):
    with pytest.raises(SystemExit):
        main(["plan", "default", "splits=2"])
    assert "unrecognized arguments: splits=2 (a setting goes behind --set)" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main(["plan", "default", "nonsense"])
    assert "unrecognized arguments: nonsense; see" in capfd.readouterr().err


def test_a_folder_without_a_project(project, refused, monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("GPBENCH_ROOT", str(tmp_path / "empty"))
    refused(("plan",), ["no conf/config.yaml in", "empty", "set GPBENCH_ROOT"])


@pytest.mark.parametrize("value", ["no_such_package", "no.such.package", "json.tool"])
def test_a_plugin_that_names_no_package(refused, monkeypatch, tmp_path, value):
    info = tmp_path / "site" / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gpbench.conf]\nmine = {value}\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    refused(("plan",), ["entry point 'mine' in gpbench.conf", repr(value), "is not a package"])


def test_a_store_that_cannot_be_written_to(project, refused, monkeypatch):
    prepare(config.compose(project / "conf", "dataset", "wine"), places.find())
    (project / "file").touch()
    monkeypatch.setenv("GPBENCH_STORE", str(project / "file" / "store"))
    refused(CELL, ["cannot write to the store", "file/store: Not a directory", "set GPBENCH_STORE"])


def test_results_that_cannot_be_written(project, refused):
    where = places.find()
    plan = planning.make(where, "default", "methods=[constant] datasets=[wine] splits=1")
    planning.freeze(plan, where)
    write_if_changed(collect.stamp(where, plan.name), collect.seen(collect.Ended(where, plan.name), plan))
    (project / "results").touch()
    refused(("collect", plan.name), ["cannot write", "results/", "check the folder's permissions"])


def test_a_file_with_damaged_bytes_has_changed(tmp_path):
    (tmp_path / "file").write_bytes(b"\xff")
    assert write_if_changed(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


def test_a_gpu_that_is_not_there(project, gpbench):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = gpbench("fit", "method=svgp", "dataset=wine", "budget=smoke", "trainer=gpu")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "no GPU is available here; use trainer=cpu" in done.err


def test_a_checkpoint_of_another_configuration(project, gpbench):
    where = places.find()
    plan = planning.make(where, "default", "methods=[svgp] datasets=[wine] splits=1 budget=smoke")
    work = Store(where.store).begin(plan.batches[0].groups[0])
    checkpoint.write(work, {"step": 50, "fits": ["another"]}, {})
    done = gpbench("fit", "method=svgp", "dataset=wine", "budget=smoke")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "is a checkpoint of another configuration; delete " in done.err
