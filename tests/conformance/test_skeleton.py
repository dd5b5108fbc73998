"""`gpbench new method`: what it writes keeps the contracts as written; what it cannot write it refuses, whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contracts import CONTRACTS

from cases import Case
from gpbench import config, methods
from gpbench.cli import main
from plugins import empty, install


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> Path:
    """A package of one's own, with a method written by the command."""
    root = tmp_path_factory.mktemp("plugin")
    assert main.main(["new", "method", "evidence", "--out", str(empty(root, "newcomer"))]) == 0
    return root


@pytest.fixture(scope="module")
def case(plugin, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        install(plugin, tmp_path_factory.mktemp("site"), patch)
        yield Case("evidence", "regression", tmp_path_factory, few=True)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_the_skeleton_keeps_the_contract(case, contract):
    contract(case)


def test_the_skeleton_is_bayesian_linear_regression(case):
    """Mean and variance of a test row against the dense formula in NumPy: k_* (K + s I)^-1 y, K = a X X^T."""
    x = case.fold.scaling.inputs(case.table.inputs[case.fold.train])
    y = case.fold.scaling.targets(case.table.targets[case.fold.train])
    new = case.fold.scaling.inputs(case.table.inputs[case.fold.test])
    params = case.alone[0].model["params"]
    a, s = (float(params[f"log_{name}_variance"].exp()) for name in ("weight", "noise"))
    x, new = (np.column_stack([part, np.ones(len(part))]) for part in (x, new))
    gain = a * new @ x.T @ np.linalg.inv(a * x @ x.T + s * np.eye(len(x)))
    predictive = case.answer(case.alone[0], new[:, :-1])
    np.testing.assert_allclose(predictive.mean(), gain @ y, rtol=1e-8)
    variance = a * (new @ new.T - gain @ x @ new.T).diagonal() + s
    np.testing.assert_allclose(predictive.variance()[:, 0], variance, rtol=1e-8)


def test_a_method_of_the_project(project, gpbench, monkeypatch):
    folder = project / "src" / "gpbench" / "methods"
    folder.mkdir(parents=True)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(folder)])
    answer = gpbench("new", "method", "my_own")
    assert answer.code == 0, answer.err
    assert str(folder / "my_own.py") in answer.out
    assert "pytest tests/conformance -k my_own" in answer.out
    assert "entry point" not in answer.out, "this project needs none"
    method = config.compose(project / "conf", "method", "my_own")
    assert (method.header.label, method.header.module) == ("My own", "gpbench.methods.my_own")
    assert method.hyper.noise_variance == 0.1
    assert (folder / "my_own.py").read_text().startswith('"""My own: ')


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("svgp",), "method 'svgp' exists"),
        (("My-Method",), "'My-Method' is not a name of a method: at most 60 lower-case letters"),
        (("lambda",), "'lambda' is not a name of a method"),
        (("null",), "'null' is not a name of a method"),
        (("a" * 61,), "is not a name of a method: at most 60 "),
        (("newcomer",), "gpbench does not run from"),  # a copy of the configuration alone
        (("newcomer", "--out", "conf"), "is no Python package: it has no __init__.py"),
        (("newcomer", "--out", "/nowhere"), "/nowhere is no Python package"),
    ],
)
def test_refused(project, gpbench, words, said):
    answer = gpbench("new", "method", *words)
    assert answer.code == 1
    assert answer.err.count("\n") == 1
    assert said in answer.err
    assert list(project.rglob("*newcomer*")) == []


@pytest.fixture
def package(project):
    """An empty Python package in the current folder."""
    package = project / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    return package


def test_a_module_that_exists_is_not_replaced(package, gpbench):
    (package / "newcomer.py").write_text("precious = 1\n")
    answer = gpbench("new", "method", "newcomer", "--out", "package")
    assert answer.code == 1
    assert "newcomer.py exists" in answer.err
    assert (package / "newcomer.py").read_text() == "precious = 1\n"
    assert not (package / "conf").exists()


def test_what_was_killed_after_the_module_is_written_by_the_same_command(package, gpbench):
    said = gpbench("new", "method", "newcomer", "--out", "package").out
    assert "name the package in an entry point of 'gpbench.conf' and install it" in said
    written = (package / "conf/method/newcomer.yaml").read_text()
    (package / "conf/method/newcomer.yaml").unlink()
    assert gpbench("new", "method", "newcomer", "--out", "package").code == 0
    assert (package / "conf/method/newcomer.yaml").read_text() == written


def test_both_files_or_none(package, gpbench):
    (package / "conf").write_text("a file where the folder would be")
    answer = gpbench("new", "method", "newcomer", "--out", "package")
    assert answer.code == 1
    assert answer.err.count("\n") == 1
    assert "cannot write" in answer.err
    assert sorted(path.name for path in package.iterdir()) == ["__init__.py", "conf"]
