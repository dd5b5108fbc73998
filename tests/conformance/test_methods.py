"""Every method that conf/method (or a plugin) offers keeps the contracts; the tests find them by themselves."""

import numpy as np
import pytest
from contracts import CONTRACTS

from cases import CONF, Case, every_case, methods, table
from gpbench import config
from gpbench.data import table as tables
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study.planning import resolve as resolving

CASES = every_case(CONF)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request, tmp_path_factory):
    return Case(*request.param, tmp_path_factory)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_contract(case, contract):
    contract(case)


@pytest.mark.parametrize("name", config.options(CONF, "method"))
def test_every_method_and_preset_composes(name):
    method = config.compose(CONF, "method", name)
    assert method.header.name == name
    assert method.header.tasks


def test_a_task_that_a_method_does_not_support_is_skipped_with_its_reason(tmp_path):
    every = methods(CONF)
    overrides = f"datasets=[boston,wdbc,wine] methods=[{','.join(every)}] kiss_gp.max_inputs=null"
    _, cells, _ = resolving.resolve(Places(CONF.parent, tmp_path), "default", overrides)
    assert len(cells) == 3 * len(every)
    for cell in cells:
        tasks = every[cell.address.method].header.tasks
        assert cell.skip == ("" if cell.what.data.task in tasks else f"{' and '.join(tasks)} only")


@pytest.mark.parametrize("part", ["inputs", "targets"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(part, value):
    data = table("regression")
    bad = {"inputs": data.inputs.copy(), "targets": data.targets.copy()}
    bad[part][7, 0] = value
    with pytest.raises(UserError, match="is not a finite number in row 7"):
        tables.check(tables.Table(**bad, input_names=data.input_names, target_names=["y"]), "smooth", "regression", 0)
