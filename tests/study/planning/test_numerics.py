"""The boundary of identity, on the real code: what is inside stays inside, and what moves which fits."""

from __future__ import annotations

import ast
import pkgutil

import pytest

import gpbench
from cases import CONF
from gpbench import config
from gpbench.config.method_source import source_path, source_tree
from gpbench.study.planning import identity, numerics

MODULES = [found.name for found in pkgutil.walk_packages(gpbench.__path__, "gpbench.") if "__main__" not in found.name]
METHODS = {name: config.compose(CONF, "method", name).header for name in config.options(CONF, "method")}


def identities() -> dict[str, str]:
    """Module of a method -> digest of the code that its fits use."""
    trained_by = {h.module: "closed_form" if h.closed_form else h.scheme for h in METHODS.values()}
    return {
        module: identity.digest(identity.code(*identity.numerics(module, how))) for module, how in trained_by.items()
    }


def test_the_boundary_names_modules_that_exist():
    for name in (*numerics.INSIDE, *numerics.OUTSIDE, *numerics.VOCABULARY, *sum(numerics.LOOPS.values(), ())):
        assert source_path(name).is_file()


@pytest.mark.parametrize("module", [name for name in MODULES if numerics.is_inside(name)])
def test_a_module_inside_imports_none_outside(module):
    outside = [name for name in identity.whole_code(module) if not numerics.is_inside(name) and not is_package(name)]
    assert set(outside) <= set(numerics.VOCABULARY)


def is_package(module: str) -> bool:
    return source_path(module).name == "__init__.py"


@pytest.fixture
def edited(monkeypatch):
    """Edit a module for whoever digests it; returns the methods whose identity moved."""

    def edit(module: str, old: str, new: str) -> set[str]:
        before = identities()
        text = source_path(module).read_text()
        assert old in text, f"{module} no longer holds {old!r}"
        plain = identity._parse  # which remembers the other modules
        with monkeypatch.context() as patch:
            patch.setattr(identity, "source_tree", lambda path: ast.parse(text.replace(old, new, 1)))
            changed = plain.__wrapped__(module)
            patch.setattr(identity, "_parse", lambda name: changed if name == module else plain(name))
            identity.code.cache_clear()
            after = identities()
        identity.code.cache_clear()
        return {name for name in before if before[name] != after[name]}

    yield edit
    identity.code.cache_clear()


UNMOVED = {
    "a docstring of a kernel": ("gpbench.gp.kernels", '"""Covariance', '"""Kernels: covariance'),
    "a message of a likelihood": ("gpbench.gp.likelihoods", "no likelihood for the task", "unknown task"),
    "a message of a user's error": ("gpbench.errors", "did you mean", "was it perhaps"),
    "a metric": ("gpbench.evaluation.metrics", "import", "import math\nimport"),
    "the table of points": ("gpbench.evaluation.pointwise", "def pointwise", "A = 1\n\n\ndef pointwise"),
    "what a checkpoint holds": ("gpbench.study.fitting.checkpoint", "def write", "A = 1\n\n\ndef write"),
    "the adapter of Lightning": ("gpbench.study.fitting.lightning_module", "class Fit(", "A = 1\n\n\nclass Fit("),
    "a place": ("gpbench.places", "def find", "A = 1\n\n\ndef find"),
    "why settings are impossible": ("gpbench.methods.svgp", "exposure is for counts", "exposure suits counts"),
}


@pytest.mark.parametrize(("module", "old", "new"), UNMOVED.values(), ids=UNMOVED)
def test_what_changes_no_number_moves_no_identity(edited, module, old, new):
    assert edited(module, old, new) == set()


PINNED = {
    ("gpbench.hyper", "rows_per_step"): (
        "return rows if rows <= getattr(self, 'full_batch_rows', 0) else min(getattr(self, 'batch_size', rows), rows)"
    ),
    ("gpbench.hyper", "takes_lbfgs"): "return getattr(self, 'optimiser', 'adam') == 'lbfgs'",
    ("gpbench.methods.mcmc_gp", "needs"): (
        "return ['f', 'log_variance'] if self.sampler in ('latents', 'theta_given_f', 'theta_given_nu') else []"
    ),
}
"""What decides numbers and is not hashed: mini-batches, the optimiser, and where chains on latent values start."""


@pytest.mark.parametrize(("module", "function"), PINNED)
def test_what_decides_numbers_outside_of_identities_is_as_it_was(module, function):
    """Another one would give other numbers under the same identities: override it in a method's own settings."""
    nodes = ast.walk(source_tree(source_path(module)))
    (found,) = (node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == function)
    code = ast.unparse([node for node in found.body if not isinstance(node, ast.Expr)])
    assert code == PINNED[module, function]


def users(module: str) -> set[str]:
    """Methods whose closure holds a module, by their imports alone."""
    return {name for name in identities() if module in identity.code(name, "gpbench.study.fitting.fold")}


def test_a_changed_kernel_moves_exactly_its_users(edited):
    moved = edited("gpbench.gp.kernels", "def rbf", "A = 1\n\n\ndef rbf")
    assert moved == users("gpbench.gp.kernels")
    assert {"gpbench.methods.svgp", "gpbench.methods.dsvi", "gpbench.methods.exact_gp"} <= moved
    assert not moved & {"gpbench.methods.constant", "gpbench.methods.gradient_boosting", "gpbench.methods.dnn"}


def test_changed_splits_or_scaling_move_everything(edited):
    for module in ("gpbench.data.splits", "gpbench.data.scaling", "gpbench.streams"):
        assert edited(module, "\n\n\n", "\n\nA = 1\n\n\n") == set(identities())


def test_a_changed_loop_moves_the_fits_that_it_trains(edited):
    moved = edited("gpbench.study.fitting.loop", "class Loop", "A = 1\n\n\nclass Loop")
    assert moved == {h.module for h in METHODS.values() if not h.closed_form}
