"""Mistakes of a user: one line that says what, where and what to do, a status that is not 0, nothing half-written."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from gpbench import config, places
from gpbench.data.prepare import prepare
from gpbench.data.protocols import Splits, split_rows
from gpbench.places import write_if_changed
from gpbench.study import checkpoint, collect, run
from gpbench.study import plan as planning
from gpbench.study.store import Store
from projects import copy_project

CELL = ("fit", "method=constant", "dataset=wine")


def listing(folder: Path) -> set[tuple[str, str]]:
    """Every file with the md5 of its content, and every folder; logs and DVC's own apart."""
    return {
        (str(path.relative_to(folder)), hashlib.md5(path.read_bytes()).hexdigest() if path.is_file() else "folder")
        for path in folder.rglob("*")
        if not {"logs", ".dvc"} & set(path.parts)
    }


@pytest.fixture
def refused(project, gpbench) -> Callable[..., None]:
    """Check that a command is refused with one line that holds some parts, and leaves every file as it was."""

    def check(words: tuple[str, ...], said: list[str], folder: Path = project) -> None:
        before = listing(folder)
        answer = gpbench(*words)
        assert answer.code == 1
        assert answer.out == ""
        assert answer.err.startswith("gpbench: ")
        assert answer.err.count("\n") == 1, answer.err
        assert "Traceback" not in answer.err
        for part in said:
            assert part in answer.err
        assert listing(folder) ^ before == set()

    return check


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
    "not key=value": ((*CELL, "split"), ["'split' is not of the form key=value"]),
    "no value": (overrides("svgp.num_inducing="), ["'svgp.num_inducing=' is not of the form key=value"]),
    "unbalanced quotes": (overrides("svgp.label='Sparse"), ["overrides", "No closing quotation"]),
    "unbalanced brackets": (overrides("methods=[svgp"), ["methods=[svgp", "default.yaml"]),
    "split that is not there": ((*CELL, "split=20"), ["wants splits 20 to 20 of 'wine'", "'common' has 0 to 19"]),
    "negative split": ((*CELL, "split=-1"), ["split=-1 is not a number from 0 upwards"]),
    "split in words": ((*CELL, "split=first"), ["split=first is not a number from 0 upwards"]),
    "too many splits": (overrides("splits=21"), ["wants splits 0 to 20", "'common' has 0 to 19"]),
    "negative first split": (overrides("first_split=-1"), ["first_split", "greater than or equal to 0", "-1"]),
    "no methods": (overrides("methods=[]"), ["study 'default' is empty", "it needs methods and datasets"]),
    "no data sets": (overrides("datasets=[]"), ["study 'default' is empty"]),
    "data set twice": (overrides("datasets=[wine,boston,wine]"), ["dataset 'wine' twice", "name it once"]),
    "method twice": (overrides("methods=[svgp,svgp]"), ["method 'svgp' twice", "name it once"]),
    "splits of an unknown data set": (overrides("splits_of={wien:3}"), ["'wien'", "splits_of", "'wine'"]),
    "impossible cell": (("fit", "method=exact_gp", "dataset=wine"), ["exact_gp on wine: regression only"]),
    "no data set named": (("fit", "method=svgp"), ["gpbench fit needs dataset=NAME", "choose one of: auto_mpg, "]),
    "identity of no fit": (("why", "abc"), ["no fit begins with 'abc' in ", "`gpbench plan`"]),
    "study that was not planned": (("collect", "mine"), ["plans/mine.json is missing", "run `gpbench plan`"]),
    "unknown data set to fetch": (("fetch", "bostn"), ["unknown dataset 'bostn'", "did you mean 'boston'?"]),
}


@pytest.mark.parametrize(("words", "said"), WORDS.values(), ids=WORDS)
def test_words(refused, words, said):
    refused(words, said)


FILES = {
    "invalid YAML": ("conf/method/svgp.yaml", "name: [", ["method/svgp.yaml is not valid YAML", "line 1"]),
    "YAML that is not a mapping": ("conf/budget/quick.yaml", "- 1\n", ["budget/quick.yaml must hold keys and values"]),
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
    "missing key": ("conf/trainer/cpu.yaml", "device: cpu\n", ["trainer 'cpu'", "name: Field required"]),
    "key that is not there": ("conf/trainer/cpu.yaml", "name: cpu\ndevise: cpu\n", ["'devise'", "mean 'device'?"]),
    "another name": ("conf/budget/quick.yaml", "name: slow\n", ["quick.yaml", "name is 'slow'", "the file's name"]),
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
    refused(("plan",), ["entry point 'mine' in gpbench.conf", repr(value), "no package"])


# a text table of two inputs, three rows and classes, and how its catalogue entry or file can be wrong
ENTRY = {
    "name": "mine",
    "title": "Mine",
    "task": "regression",
    "source": {"kind": "table", "item": "mine.csv", "target": "y"},
    "rows": 3,
    "columns": 2,
    "md5": "00",
    "licence": "",
    "citation": "",
    "url": "",
}
GOOD = "1,2,0\n3,4,1\n5,6,0\n"
RAW = {
    "raw file that is not there": (
        None,
        {},
        ["data/raw/mine.csv is missing", "not pinned in data.dvc", "put the file"],
    ),
    "empty raw file": ("", {}, ["mine.csv is empty"]),
    "not a number": ("1,2,0\n3,four,1\n5,6,0\n", {}, ["mine.csv, line 2, column 'x1': 'four' is not a number"]),
    "ragged row": ("1,2,0\n3,4,1\n5,6\n", {}, ["mine.csv, line 3: 2 columns, expected 3"]),
    "NaN": ("1,2,0\n3,nan,1\n5,6,0\n", {}, ["'mine'", "input 'x1' is not a finite number in row 1", "mend the source"]),
    "infinite target": ("1,2,0\n3,4,inf\n5,6,0\n", {}, ["target 'y' is not a finite number in row 1"]),
    "one row": ("1,2,0\n", {"rows": 1}, ["'mine' has 1 row(s)", "at least 2"]),
    "other rows": (GOOD, {"rows": 4}, ["'mine'", "(3, 2)", "the catalogue says (4, 2)"]),
    "other columns": (GOOD, {"columns": 3}, ["'mine'", "(3, 2)", "the catalogue says (3, 3)"]),
    "other arrays": (GOOD, {}, ["'mine': md5 of the arrays is", "the catalogue says 00"]),
    "no md5": (GOOD, {"md5": None}, ["'mine' is not pinned", "write md5: ", "conf/dataset/mine.yaml"]),
    "class numbers": (GOOD, {"task": "multiclass", "classes": ["a", "b", "c"]}, ["[0.0, 1.0]", "expected 0..2"]),
    "class names": (
        "1,2,no\n3,4,yes\n5,6,maybe\n",
        {"task": "binary", "classes": ["no", "yes"]},
        ["line 3, column 'y': 'maybe' is not one of ['no', 'yes']"],
    ),
    "dropped column": (GOOD, {"drop": ["x9"]}, ["'mine': cannot drop ['x9']", "['x0', 'x1']"]),
}


@pytest.mark.parametrize(("content", "changes", "said"), RAW.values(), ids=RAW)
def test_raw_files(project, refused, content, changes, said):
    (project / "conf/dataset/mine.yaml").write_text(yaml.safe_dump(ENTRY | changes))
    if content is not None:
        (project / "data/raw").mkdir(parents=True)
        (project / "data/raw/mine.csv").write_text(content)
    refused(("prepare", "mine"), said)


def test_a_raw_file_that_is_not_the_pinned_one(project, refused):
    path = project / "data/raw/boston/housing.data"
    path.parent.mkdir(parents=True)
    path.write_text("1 2 3\n")
    refused(("prepare", "boston_uci"), ["housing.data is not the pinned file", "data.dvc", "delete it"])


def test_a_raw_file_that_nobody_has(project, refused, monkeypatch):
    pins = project / "data.dvc"
    pins.write_text("".join(line for line in pins.read_text().splitlines(True) if "http" not in line))
    monkeypatch.setenv("GPBENCH_MIRROR", "/no/such/mirror")
    refused(("fetch", "boston_uci"), ["boston/housing.data could not be fetched", "/no/such/mirror", "No such file"])


@pytest.fixture
def batch(project, monkeypatch, capfd):
    """Run the first batch of a small study as a job does; (exit status, standard error, files changed)."""
    where = places.find()
    plan = planning.make(where, "default", "methods=[constant] datasets=[wine] splits=1")
    planning.freeze(plan, where)
    source = where.plans / "batches" / f"{plan.batches[0]['batch_id']}.json"
    prepare(config.compose(where.conf, "dataset", "wine"), where)

    def start() -> tuple[int, str, set[str]]:
        monkeypatch.setattr(sys, "argv", ["run", str(source), str(where.runs / source.name)])
        before = listing(project)
        capfd.readouterr()
        code = run.main()
        changed = {name for name, _ in listing(project) ^ before}
        return code, capfd.readouterr().err, changed

    return start


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(flip, "wine.npz ", id="flipped byte"),
        pytest.param(lambda content: content[:1000], "wine.npz cannot be read", id="truncated"),
        pytest.param(lambda content: b"", "wine.npz cannot be read", id="empty"),
        pytest.param(None, "wine.npz is missing; run `gpbench prepare wine`", id="missing"),
    ],
)
def test_prepared_files_are_checked_before_any_fit(project, batch, spoil, said):
    path = project / "data/prepared/wine.npz"
    content = path.read_bytes()
    path.unlink()
    if spoil:
        path.write_bytes(spoil(content))
    code, err, changed = batch()
    assert code == 1
    assert err.count("\n") == 1
    assert said in err
    assert "`gpbench prepare wine`" in err
    assert changed <= {"store", "store/.tmp"}


def test_a_store_that_cannot_be_written_to(project, refused, monkeypatch):
    prepare(config.compose(project / "conf", "dataset", "wine"), places.find())
    (project / "file").touch()
    monkeypatch.setenv("GPBENCH_STORE", str(project / "file" / "store"))
    refused(CELL, ["cannot write to the store", "file/store: Not a directory", "set GPBENCH_STORE"])


def test_results_that_cannot_be_written(project, refused):
    where = places.find()
    plan = planning.make(where, "default", "methods=[constant] datasets=[wine] splits=1")
    planning.freeze(plan, where)
    write_if_changed(collect.stamp(where, plan.name), collect.seen(where, collect.read_plan(where, plan.name)))
    (project / "results").touch()
    refused(("collect", plan.name), ["cannot write", "results/", "check the folder's permissions"])


def test_a_damaged_record(project, refused):
    folder = project / "store/aa11"
    folder.mkdir(parents=True)
    (folder / "fit.json").write_text("{")
    refused(("plan",), ["aa11/fit.json is damaged", "`gpbench retry aa11` removes it"])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """A project with two finished fits, made by the command line in processes of its own."""
    root = copy_project(tmp_path_factory.mktemp("fitted") / "project")
    for split in ("0", "1"):
        done = call(root, *CELL, f"split={split}")
        assert done.returncode == 0, done.stderr
    return root


def call(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of gpbench in a process of its own; MLflow is not written to, as if it had been a moment ago."""
    (root / "store/.spool").mkdir(parents=True, exist_ok=True)
    (root / "store/.spool/.begun").touch()
    kept = {"PATH": "/usr/bin:/bin", "HOME": str(root), "CI": "1", "OMP_NUM_THREADS": "1", "GPBENCH_ROOT": str(root)}
    command = [sys.executable, "-m", "gpbench.cli", *words]
    return subprocess.run(command, env=kept, capture_output=True, text=True, check=False, cwd=root)


NAMES = "alcohol,malic_acid,ash,alcalinity_of_ash,magnesium,total_phenols,flavanoids,nonflavanoid_phenols"
HEADER = f"{NAMES},proanthocyanins,color_intensity,hue,od280/od315_of_diluted_wines,proline"
ROW = ",".join(["1"] * 13)
TABLES = {
    "missing column": (f"{NAMES}\n{','.join(['1'] * 8)}\n", ["columns ['proanthocyanins', 'color_", "the model needs"]),
    "text": (f"{HEADER}\n{ROW}\n{ROW.replace('1', 'red', 1)}\n", ["row 2, column 'alcohol': 'red' is not a number"]),
    "hole": (f"{HEADER}\n{ROW[1:]}\n", ["row 1, column 'alcohol'", "is not a number"]),
    "empty": ("", ["is not a CSV table", "No columns"]),
    "only a header": (f"{HEADER}\n", ["has no rows below its header"]),
    "ragged": (f"{HEADER}\n{ROW}\n{ROW},1,1\n", ["is not a CSV table", "line 3"]),
    "missing": (None, ["No such file or directory", "give a CSV with the columns alcohol, malic_acid"]),
}


@pytest.mark.parametrize(("content", "said"), TABLES.values(), ids=TABLES)
def test_tables_to_predict(fitted, refused, monkeypatch, tmp_path, content, said):
    monkeypatch.setenv("GPBENCH_ROOT", str(fitted))
    path, fit_id = tmp_path / "new.csv", Store(fitted / "store").ids()[0]
    if content is not None:
        path.write_text(content)
    refused(("predict", fit_id, str(path)), ["new.csv", *said], folder=fitted)


def test_an_answer_that_cannot_be_written(fitted, refused, monkeypatch, tmp_path):
    monkeypatch.setenv("GPBENCH_ROOT", str(fitted))
    (tmp_path / "new.csv").write_text(f"{HEADER}\n{ROW}\n")
    words = ("predict", Store(fitted / "store").ids()[0], str(tmp_path / "new.csv"), "--out")
    refused((*words, str(tmp_path / "new.csv" / "out.csv")), ["cannot write", "out.csv: "], folder=fitted)


def test_an_identity_that_two_fits_share(fitted, refused, monkeypatch):
    monkeypatch.setenv("GPBENCH_ROOT", str(fitted))
    refused(("why", ""), ["2 fits begin with ''", "give more of the identity"], folder=fitted)


def test_a_class_that_the_training_rows_lack(project):
    """A result of the fit, not of the command: it is kept with its reason, and the command says so."""
    raw = project / "data/raw/mine.csv"
    raw.parent.mkdir(parents=True)
    only = split_rows(Splits(), 40, 0)[1][0]  # the one row of its class is a test row
    raw.write_text("".join(f"{i},{i % 7},{int(i == only)}\n" for i in range(40)))
    entry = ENTRY | {"task": "binary", "classes": ["no", "yes"], "rows": 40}
    (project / "conf/dataset/mine.yaml").write_text(yaml.safe_dump(entry | {"md5": None}))
    md5 = call(project, "prepare", "mine").stderr.split("write md5: ")[1].split()[0]
    (project / "conf/dataset/mine.yaml").write_text(yaml.safe_dump(entry | {"md5": md5}))
    done = call(project, "fit", "method=constant", "dataset=mine", "split=0")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "failed: split 0: no training row of class [1]; use another split or more rows" in done.stderr


def test_a_gpu_that_is_not_there(project):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = call(project, "fit", "method=svgp", "dataset=wine", "budget=smoke", "trainer=gpu")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no GPU is available here; use trainer=cpu" in done.stderr


def test_a_checkpoint_of_another_configuration(project):
    where = places.find()
    plan = planning.make(where, "default", "methods=[svgp] datasets=[wine] splits=1 budget=smoke")
    work = Store(where.store).begin(plan.batches[0]["groups"][0])
    checkpoint.write(work, {"step": 50, "fits": ["another"]}, {})
    done = call(project, "fit", "method=svgp", "dataset=wine", "budget=smoke")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "is a checkpoint of another configuration; delete " in done.stderr
