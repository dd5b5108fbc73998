"""A method in a package of its own: found by entry point, composed, held to the contracts, fitted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from contracts import CONTRACTS

from cases import CONF, Case, every_case
from gpbench import config
from gpbench.errors import UserError
from gpbench.study.records import MethodSettings
from gpbench.study.storage.store import Store
from plugins import install

PLUGIN = Path(__file__).parents[1] / "example_plugin"
NAME = "knn_gaussian"


@pytest.fixture(scope="module")
def python_path(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield install(PLUGIN, tmp_path_factory.mktemp("site") / "meta", patch)


@pytest.fixture(scope="module")
def case(python_path, tmp_path_factory):
    ((name, task),) = [case for case in every_case(CONF) if case[0] == NAME]
    return Case(name, task, tmp_path_factory)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_contract(case, contract):
    contract(case)


def test_it_is_listed_beside_the_methods_of_the_project(python_path):
    options = config.options(CONF, "method")
    assert options[NAME] == PLUGIN / NAME / "conf" / "method" / f"{NAME}.yaml"
    assert "svgp" in options


def test_it_composes_with_its_own_hyperparameters(python_path):
    assert config.compose(CONF, "method", NAME).hyper.neighbours == 5
    assert config.compose(CONF, "method", NAME, ("neighbours=7",)).hyper.neighbours == 7
    with pytest.raises(UserError, match="did you mean 'neighbours'"):
        config.compose(CONF, "method", NAME, ("neighbors=7",))


def test_it_composes_from_a_folder_with_an_awkward_name(tmp_path, monkeypatch):
    # a path that has a space and characters of the grammar of Hydra's overrides
    install(copy_as("awkward", tmp_path / "my code, (a=b)"), tmp_path / "meta", monkeypatch)
    assert "my code, (a=b)" in str(config.options(CONF, "method")["awkward"])
    assert config.compose(CONF, "method", "awkward", ("neighbours=7",)).hyper.neighbours == 7


def test_it_cannot_take_the_name_of_a_method_of_the_project(tmp_path, monkeypatch):
    plugin = copy_as("thief", tmp_path / "plugin")
    conf = plugin / "thief" / "conf" / "method"
    (conf / "thief.yaml").rename(conf / "svgp.yaml")
    install(plugin, tmp_path / "meta", monkeypatch)
    with pytest.raises(UserError, match="'svgp' is defined twice"):
        config.options(CONF, "method")


def copy_as(name: str, target: Path) -> Path:
    """The plugin under another name in the new folder `target`."""
    for path in PLUGIN.rglob("*.*"):
        if path.suffix in (".py", ".toml", ".yaml"):
            copy = target / str(path.relative_to(PLUGIN)).replace(NAME, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text().replace(NAME, name).replace("knn-gaussian", name))
    return target


def test_the_command_line_fits_it(python_path, project):
    command = [sys.executable, "-m", "gpbench.cli", "fit", f"method={NAME}", "dataset=diabetes", "method.neighbours=7"]
    environment = os.environ | {"PYTHONPATH": python_path, "GPBENCH_STORE": str(project / "store")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["status"] == "done"
    record = Store(project / "store").record(answer["fit_id"])
    assert record.what.method == MethodSettings(f"{NAME}.method", {"neighbours": 7})
    # its code is part of what it is, and so is the code of the helpers it imports
    assert {f"{NAME}.method", "gpbench.predictive.distributions"} <= set(record.what.code)
    assert "scipy" in record.what.versions
