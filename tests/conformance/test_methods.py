"""Every method that conf/method (or a plugin) offers keeps the contracts; the tests find them by themselves."""

import ast

import numpy as np
import pytest
from contracts import CONTRACTS, a_damaged_checkpoint_gives_way_to_the_one_before

from cases import CONF, Case, composed, every_case, table
from gpbench.config.method_source import source_path, source_tree
from gpbench.data import table as tables
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study.planning.numerics import PLANNING_ONLY
from gpbench.study.planning.resolve import resolve

CASES = every_case(CONF)
FIRST = dict(reversed(CASES))
"""method -> its first task; the others are kept where numerics change"""
PARAMS = [
    (name, task) if FIRST[name] == task else pytest.param((name, task), marks=pytest.mark.slow) for name, task in CASES
]


@pytest.fixture(scope="module", params=PARAMS, ids="-".join)
def case(request, tmp_path_factory):
    return Case(*request.param, tmp_path_factory, few=True)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_contract(case, contract):
    contract(case)


@pytest.mark.parametrize("name", FIRST)
def test_no_number_depends_on_what_only_planning_asks(name):
    """It is no part of identities; where the chains of `mcmc_gp` start is pinned by a test."""
    module = composed(CONF, "method", name).header.module
    calls = [node.func for node in ast.walk(source_tree(source_path(module))) if isinstance(node, ast.Call)]
    asked = {ast.unparse(call) for call in calls if getattr(call, "attr", "") in PLANNING_ONLY}
    assert {text for text in asked if "hyper" in text} == ({"hyper.needs"} if name == "mcmc_gp" else set())


@pytest.mark.parametrize("name", ["svgp", "bsgp_1"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(name, tmp_path_factory):
    """Of a fit with an optimiser, and of a chain, whose samples lie in files of their own."""
    a_damaged_checkpoint_gives_way_to_the_one_before(Case(name, "regression", tmp_path_factory))


def test_a_task_that_a_method_does_not_support_is_skipped_with_its_reason(tmp_path):
    names = list(dict(CASES))
    overrides = f"datasets=[boston,wdbc,wine] methods=[{','.join(names)}] kiss_gp.max_inputs=null"
    cells = resolve(Places(CONF.parent, tmp_path), "default", overrides).cells
    assert len(cells) == 3 * len(names)
    for cell in cells:
        tasks = composed(CONF, "method", cell.address.method).header.tasks
        assert cell.skip == ("" if cell.what.data.task in tasks else f"{' and '.join(tasks)} only")


@pytest.mark.parametrize("part", ["inputs", "targets"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(part, value):
    data = table("regression")
    bad = {"inputs": data.inputs.copy(), "targets": data.targets.copy()}
    bad[part][7, 0] = value
    with pytest.raises(UserError, match="is not a finite number in row 7"):
        tables.check(tables.Table(**bad, input_names=data.input_names, target_names=["y"]), "smooth", "regression", 0)
