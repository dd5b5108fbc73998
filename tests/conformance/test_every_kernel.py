"""Chains under every kernel, and contracts under a formula of many parts; more in `test_kernels_of_methods`."""

import numpy as np
import pytest
from contracts import (
    batched_is_looped,
    permuting_test_rows_permutes_predictions,
    resumed_is_uninterrupted,
    single_precision_is_close,
)

from cases import Case, group, mnll
from gpbench.hyper import KERNELS

METHODS = ["exact_gp", "sgpr", "dsvi", "bsgp_2", "mcmc_svgp"]
FORMULA = "matern52 * periodic + linear"


def case_of(name: str, folders, **options) -> Case:
    return Case(name, "regression", folders, hyper=options, few=True)


@pytest.mark.parametrize("formula", KERNELS[1:])
@pytest.mark.parametrize("name", ["bsgp_1", "mcmc_svgp"])
@pytest.mark.slow
def test_chains_under_every_kernel_end_in_finite_predictions(name, formula, tmp_path_factory):
    case = case_of(name, tmp_path_factory, kernel=formula, ard=name == "bsgp_1")
    (outcome,) = case.fit(group(case.cell, 0))
    assert np.isfinite(mnll(outcome))
    assert any("log_lengthscale" in key for key in outcome.model["samples"])


@pytest.fixture(scope="module", params=METHODS)
def case(request, tmp_path_factory):
    return case_of(request.param, tmp_path_factory, kernel=FORMULA)


CONTRACTS = [
    batched_is_looped,
    resumed_is_uninterrupted,
    single_precision_is_close,
    permuting_test_rows_permutes_predictions,
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.slow
def test_contract(case, contract):
    contract(case)
