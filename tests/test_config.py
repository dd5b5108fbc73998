"""Configuration: every file composes, mistakes are one line that names the nearest name and the file, no torch."""

import re
import subprocess
import sys

import hydra
import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from gpbench import config
from gpbench.config.compose import MethodConfig, _merged, compose
from gpbench.config.overrides import split_overrides
from gpbench.config.schema import Sizes
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study.planning import plan
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
ITEMS = [(path.parent.name, path.stem) for path in sorted(CONF.glob("*/*.yaml"))]


@pytest.mark.parametrize(("group", "name"), ITEMS)
def test_every_file_composes(group, name):
    item = compose(CONF, group, name)
    written = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    if isinstance(item, MethodConfig):
        assert item.header.name == name
        assert item.header.tasks
        chosen = {k: getattr(item.hyper, k) for k in written if hasattr(item.hyper, k)}
        assert all((list(value) if isinstance(value, tuple) else value) == written[k] for k, value in chosen.items())
    else:
        assert item.name == name


def test_config_yaml_composes_the_groups():
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    defaults = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    named = {k for entry in defaults if isinstance(entry, dict) for k in entry if not k.startswith("override")}
    assert named == {"method", *config.GROUPS} - {"paper"}, "a paper is no part of a cell"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert named <= set(hydra_compose("config"))


def test_everything_composes_and_plans_without_torch(project):
    program = (
        "import sys, time; started = time.perf_counter(); from pathlib import Path\n"
        "from gpbench import config\n"
        "from gpbench.cli import main as cli\n"
        "items = [*Path('conf').glob('method/*.yaml'), *(next(p.glob('*.yaml')) for p in Path('conf').glob('*/'))]\n"
        "for p in items: config.compose(Path('conf'), p.parent.name, p.stem)\n"
        "assert cli.main(['plan']) == 0 and cli.main(['status']) == 0\n"
        "heavy = {'torch', 'lightning', 'mlflow', 'pandas', 'sklearn', 'gpbench.methods.svgp'} & set(sys.modules)\n"
        "print('seconds an item', (time.perf_counter() - started) / len(items))\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # 0.04 s here; the bound only catches what is an order of magnitude slower
    assert float(done.stdout.split()[-1]) < 0.4


def test_defaults_and_presets():
    one, two = compose(CONF, "method", "bsgp_1"), compose(CONF, "method", "bsgp_2")
    assert (one.hyper.layers, two.hyper.layers) == (1, 2)
    assert one.family == two.family == "bsgp"
    assert compose(CONF, "method", "fitc_svgp").hyper == config.hyperparameters("gpbench.methods.fitc_svgp")()


def test_every_preset_of_a_paper_is_in_a_study():
    used: set[str] = set()
    for name in config.options(CONF, "study"):
        study = compose(CONF, "study", name)
        used |= {*study.methods, *(variant["method"] for variant in study.variants.values())}
        used |= {preset for presets in study.presets.values() for preset in presets.values()}
    presets = [name for name in config.options(CONF, "method") if re.search(r"_20\d\d", name)]
    assert [name for name in presets if name not in used] == []


def test_presets_have_the_settings_of_the_programs_that_they_name():
    aep, dsvi = compose(CONF, "method", "aep_2016").hyper, compose(CONF, "method", "dsvi_2017").hyper
    assert (aep.learning_rate, aep.jitter) == (0.005, 1e-6)
    assert (dsvi.noise_variance, dsvi.layer_noise_variance) == (0.05, 0.0)
    steps = compose(CONF, "budget", "paper").steps
    assert [steps[name].small for name in ("aep_2016", "dsvi_2017", "svgp_2017")] == [6000, 10000, 10000]


def test_the_schema_read_from_source_is_the_module_s():
    from gpbench.methods import svgp

    read = config.hyperparameters("gpbench.methods.svgp")
    assert read is not svgp.Hyperparameters
    assert vars(read()) == vars(svgp.Hyperparameters())


def test_overrides_reach_the_item_with_their_types():
    svgp = compose(CONF, "method", "svgp", ("num_inducing=50", "learning_rate=1e-3", "lengthscale=null", "steps=7"))
    assert (svgp.hyper.num_inducing, svgp.hyper.learning_rate, svgp.hyper.lengthscale) == (50, 1e-3, None)
    assert svgp.header.steps == 7
    protocol = compose(CONF, "protocol", "common", ("splits.train_fraction=0.8",))
    assert (protocol.splits.train_fraction, protocol.splits.count) == (0.8, 20)


def test_what_a_file_refers_to_is_put_in_without_an_override_too(project):
    (project / "conf/budget/mine.yaml").write_text("defaults: [smoke, _self_]\ntitle: as ${budget.name}\n")
    assert compose(project / "conf", "budget", "mine").title == "as mine"


def test_updates_go_by_the_size_of_the_training_inputs():
    sizes = Sizes(small=1, medium=2, large=3)
    assert [sizes.steps(values) for values in (9_999, 10_000, 299_999, 300_000)] == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("group", "name", "overrides", "said"),
    [
        ("method", "svpg", (), ["unknown method 'svpg'", "did you mean 'svgp'?"]),
        ("method", "SVGP", (), ["unknown method 'SVGP'", "did you mean 'svgp'?"]),
        ("dataset", "mydata", (), ["unknown dataset 'mydata'", "choose one of: abalone, "]),  # not yacht
        ("method", "svgp", ("num_inducng=5",), ["unknown key 'num_inducng'", "'num_inducing'", "svgp.yaml"]),
        ("method", "svgp", ("kernel=rbf+matern5",), ["svgp.yaml", "unknown kernel 'matern5'", "mean 'matern52'?"]),
        ("trainer", "cpu", ("thread=5",), ["unknown key 'thread'", "did you mean 'threads'?", "cpu.yaml"]),
        ("protocol", "common", ("splits.sed=5",), ["unknown key 'sed'", "common.yaml): splits", "mean 'seed'?"]),
        ("budget", "quick", ("steps.default.smal=5",), ["unknown key 'smal'", "quick.yaml): steps", "'small'"]),
        ("method", "svgp", ("num_inducing=many",), ["num_inducing", "valid integer", "'many'", "svgp.yaml"]),
        ("method", "svgp", ("num_inducing=1.5",), ["num_inducing", "integer", "1.5"]),
        ("method", "svgp", ("learning_rate=0",), ["learning_rate", "greater than 0", "given: 0"]),
        ("method", "svgp", ("learning_rate=nan",), ["learning_rate", "greater than 0", "nan"]),
        ("trainer", "cpu", ("device=tpu",), ["device", "'cpu' or 'cuda'", "'tpu'"]),
        ("protocol", "common", ("splits.train_fraction=1",), ["splits.train_fraction", "less than 1"]),
        ("study", "default", ("methods=svgp",), ["methods", "valid list", "'svgp'", "default.yaml"]),
        ("method", "svgp", ("num_inducing=${nowhere}",), ["nowhere", "svgp.yaml"]),
        ("method", "svgp", ("num_inducing=[1",), ["num_inducing=[1", "svgp.yaml"]),
        ("method", "svgp", ("num_inducing=50,60",), ["num_inducing=50,60 is not one value", "svgp.yaml"]),
        ("method", "svgp", ("num_inducing=range(1,3)",), ["num_inducing=range(1,3) is not one value"]),
        ("method", "svgp", ("num_inducing@other=5",), ["num_inducing@other=5 is not one value of one key"]),
    ],
)
def test_a_mistake_is_one_line(group, name, overrides, said):
    with pytest.raises(UserError) as caught:
        compose(CONF, group, name, overrides)
    assert "\n" not in str(caught.value)
    for part in said:
        assert part in str(caught.value)


def test_a_program_that_uses_hydra_keeps_its_own():
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        theirs = GlobalHydra.instance().hydra
        compose(CONF, "method", "svgp", ("num_inducing=51",))
        assert GlobalHydra.instance().hydra is theirs is not None


def test_overrides_are_split_as_by_a_shell():
    text = "budget=smoke 'svgp.label=a b' *.num_inducing=50 methods=[constant,svgp]"
    assert split_overrides(text) == [
        ("budget", "smoke"),
        ("svgp.label", "a b"),
        ("*.num_inducing", "50"),
        ("methods", "[constant,svgp]"),
    ]
    assert split_overrides("") == []


def test_a_broken_file_is_met_only_where_it_is_used(project):
    (project / "conf/dataset/boston.yaml").write_text("name: [")
    (project / "conf/trainer/cpu.yaml").write_text("- a\n- b\n")
    assert compose(project / "conf", "method", "svgp").header.name == "svgp"
    with pytest.raises(UserError, match=r"dataset/boston\.yaml is not valid YAML: .*line 1"):
        compose(project / "conf", "dataset", "boston")
    with pytest.raises(UserError, match=r"trainer/cpu\.yaml must be a mapping of keys to values"):
        compose(project / "conf", "trainer", "cpu")


def test_hidden_files_are_no_items(project, gpbench):
    """What a killed process left half written, and the lock of an editor."""
    for group in ("dataset", "method", "study"):
        (project / "conf" / group / ".mine.a1b2c3d4.yaml").touch()
        (project / "conf" / group / ".#mine.yaml").symlink_to("me@host.1:2")
    answer = gpbench("plan")
    assert (answer.code, answer.err) == (0, "")
    (project / ".mine.a1b2c3d4.yaml").touch()
    with pytest.raises(UserError, match=r"unknown scores by split 'min' in .*; choose one of: \(none\)"):
        config.printed_splits(project, "min")


def test_the_name_of_a_file_names_its_item(project):
    path = project / "conf/dataset/housing.yaml"
    path.write_text((project / "conf/dataset/boston.yaml").read_text() + "name: boston\n")
    with pytest.raises(UserError, match=r"housing\.yaml: 'name' differs from the name of the file; leave it out"):
        compose(project / "conf", "dataset", "housing")


def test_hyperparameters_that_inherit_are_read_without_importing_their_bases(tmp_path, monkeypatch):
    """from other modules, by whatever import, and from the same one"""
    (tmp_path / "base_method.py").write_text(
        "raise AssertionError('imported')\n@dataclass(frozen=True)\nclass Hyperparameters(Settings):\n    a: int = 1\n"
        "    def impossible(self, task):\n        return task * self.a\n"
    )
    for number, (statement, base) in enumerate(
        [
            ("import base_method as other", "other.Hyperparameters"),
            ("from base_method import Hyperparameters as Other", "Other"),
            ("@dataclass(frozen=True)\nclass Near(Settings):\n    a: int = 1\n", "Near"),
        ]
    ):
        (tmp_path / f"derived_{number}.py").write_text(
            f"{statement}\n@dataclass(frozen=True)\nclass Hyperparameters({base}):\n    b: int = 3\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    for number in range(3):
        settings = config.hyperparameters(f"derived_{number}")(a=2)
        assert vars(settings) == {"a": 2, "b": 3}
        assert settings.impossible("no") == ("" if number == 2 else "nono")
    from gpbench.methods import dsvi

    read = config.hyperparameters("gpbench.methods.dsvi")
    assert vars(read()) == vars(dsvi.Hyperparameters())
    assert read(natural_gradients="all").allows_stale_gradients() is False


@pytest.mark.parametrize("item", ["dataset/lrg_400_10", "method/sghmc_dgp_3", "protocol/salimbeni2017"])
def test_files_are_merged_as_hydra_merges_them(item):
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    group, name = item.split("/")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        by_hydra = OmegaConf.to_container(hydra_compose(item))[group]
    assert _merged(name, config.options(CONF, group)) == by_hydra


@pytest.mark.parametrize("bases", ["[svpg, _self_]", "[mine, _self_]"])
def test_a_base_that_does_not_exist_or_is_the_file_itself(project, bases):
    (project / "conf/method/mine.yaml").write_text(f"defaults: {bases}\n")
    with pytest.raises(UserError, match=r"unknown base '(svpg|mine)' in 'defaults' of .*mine\.yaml; (did|choose)"):
        compose(project / "conf", "method", "mine")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Hyperparameters(:\n", r"bad_method_0\.py, line 1: invalid syntax"),
        ("x = 1\n", r"bad_method_1\.py has no dataclass Hyperparameters"),
        ("@dataclass\nclass Hyperparameters:\n    a: Tensor = 1\n", r"'Tensor' is not defined; use .*gpbench\.hyper"),
        (
            "@dataclass\nclass Hyperparameters:\n    a: int = 1\n",
            r"Hyperparameters must inherit from gpbench\.hyper\.Settings",
        ),
        (
            "@dataclass\nclass Hyperparameters(Settings):\n    a: list = []\n",
            r"_4\.py: Hyperparameters: ValueError: mutable",
        ),
        ("@dataclass\nclass Hyperparameters(Settings):\n    a: int = 1 // 0\n", r"Hyperparameters: ZeroDivisionError"),
        (
            "@dataclass\nclass Hyperparameters(Settings):\n    a = 2\n",
            "`a = 2` has no type; write one, as in",
        ),
        ("x = 'é'\n", r"bad_method_7\.py, line 1: .*'utf-8' codec can't decode"),
        ("\0", r"bad_method_8\.py.*: source code string cannot contain null bytes"),
    ],
)
def test_a_method_module_that_cannot_be_read(project, monkeypatch, request, source, said):
    module = f"bad_method_{request.node.callspec.indices['source']}"
    (project / f"{module}.py").write_bytes(source.encode("latin-1"))
    monkeypatch.syspath_prepend(project)
    preset = (project / "conf/method/constant.yaml").read_text()
    (project / "conf/method/mine.yaml").write_text(preset.replace("gpbench.methods.constant", module))
    with pytest.raises(UserError, match=said):
        compose(project / "conf", "method", "mine")


@pytest.mark.parametrize("name", ["aep", "dgp_meanfield", "dgp_vae", "kiss_gp", "dkl"])
def test_methods_whose_formulas_need_the_rbf_kernel_say_so(name):
    hyper = compose(CONF, "method", name, ("kernel=matern52+linear*periodic",)).hyper
    assert hyper.impossible("regression") == "its formulas hold for kernel rbf only, not matern52+linear*periodic"
    assert compose(CONF, "method", name).hyper.impossible("regression") == ""


def test_the_probe_of_inducing_inputs_shows_an_rbf_kernel():
    assert compose(CONF, "method", "svgp").hyper.probes() == ["bounds", "inducing"]
    assert compose(CONF, "method", "svgp", ("kernel=matern12",)).hyper.probes() == ["bounds"]


@pytest.mark.parametrize("module", [".mod", "..", "a b", ""])
def test_a_module_with_no_name_of_one(project, module):
    preset = (project / "conf/method/constant.yaml").read_text()
    (project / "conf/method/mine.yaml").write_text(preset.replace("gpbench.methods.constant", f"'{module}'"))
    with pytest.raises(UserError, match="cannot be found; is its package installed"):
        compose(project / "conf", "method", "mine")


@pytest.mark.parametrize(
    ("module", "head", "answer", "said"),
    [
        ("raises", "impossible(self, task)", "1 / 0", r"impossible\('regression'\) raised ZeroDivisionError"),
        ("silent", "impossible(self, task)", "None", r"impossible\('regression'\) returned None; it must return a"),
        ("texts", "least_rows(self)", "'3'", r"least_rows\(\) returned '3'; it must return a value of type int"),
    ],
)
def test_a_plug_in_that_cannot_say_what_is_impossible(project, monkeypatch, module, head, answer, said):
    body = f"    def {head}:\n        return {answer}\n"
    (project / f"{module}.py").write_text(f"@dataclass(frozen=True)\nclass Hyperparameters(Settings):\n{body}")
    monkeypatch.syspath_prepend(project)
    preset = (project / "conf/method/constant.yaml").read_text()
    (project / "conf/method/mine.yaml").write_text(preset.replace("gpbench.methods.constant", module))
    with pytest.raises(UserError, match=f"{module}: {said}"):
        plan.make(Places(project, project / "store"), "default", "methods=[mine] datasets=[boston]")
