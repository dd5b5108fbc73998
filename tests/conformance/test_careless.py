"""Methods that are written carelessly but plausibly: what can be made right is, what cannot is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from contracts import batched_is_looped, resumed_is_uninterrupted

from cases import Case, group
from gpbench.cli import main
from gpbench.errors import UserError
from gpbench.study.planning import identity
from plugins import empty, install

INIT = '        return State(params, {"x": train.x,'
LOSS, PREDICT = "        return 0.5 * (", "        (a, s), train = self.variances(state.params), state.buffers\n"
CHANGES = {
    # a parameter that shares the memory of a buffer, with the name of an attribute of the fit, and a loss asked by name
    "shares": [
        (INIT, f'        params["steps"] = train.x[:, :5]\n{INIT}'),
        (LOSS, '        return (state.params["steps"] - 3).square().sum((-2, -1)) + 0.5 * ('),
        (PREDICT, f"{PREDICT}        assert self.loss(state, batch=Batch(**train), noise=None).ndim == 1\n"),
    ],
    "remembers": [
        (INIT, f"        self.shift = train.x.mean()\n{INIT}"),
        ("mean = new @", "mean = self.shift + new @"),
    ],
    "single": [(INIT, f'        params["z"] = train.x[:, :1].float()\n{INIT}')],
    "helped": [("import math\n", "import math\n\nimport aside_of_packages\n")],
    "outside": [("import math\n", "import math\n\nfrom gpbench.study.storage import seals\n")],
}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("plugin")
    package = empty(root, "careless")
    (root / "aside_of_packages.py").write_text("SHIFT = 0.0\n")
    for name, changes in CHANGES.items():
        assert main.main(["new", "method", name, "--out", str(package)]) == 0
        path = package / f"{name}.py"
        text = path.read_text()
        for old, new in changes:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        install(root, tmp_path_factory.mktemp("site"), patch)
        yield root


@pytest.mark.parametrize("contract", [batched_is_looped, resumed_is_uninterrupted])
def test_parameters_that_share_memory_are_set_apart(plugin, tmp_path_factory, contract):
    contract(Case("shares", "regression", tmp_path_factory, few=True))


def test_what_init_leaves_in_attributes_is_no_part_of_a_prediction(plugin, tmp_path_factory):
    case = Case("remembers", "regression", tmp_path_factory, few=True)
    with pytest.raises(AttributeError, match="no attribute 'shift'"):
        case.fit(group(case.cell, 0))


def test_parameters_of_another_type_are_refused(plugin, tmp_path_factory):
    case = Case("single", "regression", tmp_path_factory, few=True)
    with pytest.raises(
        UserError,
        match=r"careless\.single: init returned State with z in torch\.float32; .* params in the type of the inputs",
    ):
        case.fit(group(case.cell, 0))


def test_a_module_of_no_package_is_part_of_what_a_fit_is(plugin):
    before = identity.code("careless.helped")
    assert {"careless.helped", "aside_of_packages"} <= before.keys()
    assert "aside_of_packages" not in identity.versions("careless.helped")


def test_the_package_of_a_method_is_part_of_what_a_fit_is(plugin):
    """Its `__init__.py` runs first, and may register a kernel, say."""
    assert "careless" in identity.code("careless.remembers")


def test_a_module_of_which_changes_would_go_unnoticed_is_refused(plugin):
    said = r"careless\.outside imports gpbench\.study\.storage\.seals, which lies outside .*; move it below gpbench/met"
    with pytest.raises(UserError, match=said):
        identity.code("careless.outside")
