"""Budgets: whose updates a fit makes; `paper` has those that each paper gives, and `smoke` is short for all."""

from __future__ import annotations

import functools

import pytest

from gpbench import config
from gpbench.places import Places
from gpbench.study.planning.resolve import configured_method, resolve
from gpbench.study.records import Cell
from projects import REPOSITORY

BSGP, ROUNDS = (10_000 * 21, 256 * 32, 256, 21), (10_000, 256 * 32, 256, 1)
"""Transitions of burn-in, of sampling, states kept, and transitions for each step of Adam."""


@functools.cache
def cells_of(study: str):
    """Of a study under the budget, by method."""
    cells = resolve(Places(REPOSITORY, REPOSITORY / "store"), study, "budget=paper").cells
    return {method: [cell for cell in cells if cell.method == method] for method in (cell.method for cell in cells)}


def planned(words: str) -> tuple[Cell, ...]:
    """The cells of the default study with overrides."""
    return resolve(Places(REPOSITORY, REPOSITORY / "store"), "default", words).cells


@pytest.mark.parametrize(
    ("study", "method", "expected"),
    [
        ("rossi2021_uci", "bsgp_3", BSGP),
        ("rossi2021_uci", "sghmc_dgp_3", ROUNDS),
        ("rossi2021_ablation", "u_50", ROUNDS),
        ("rossi2021_ablation", "u_theta_z_50", BSGP),
        ("rossi2021_airline", "bsgp_1", (10_000 * 21, 200 * 1_000, 200, 21)),
        ("rossi2021_airline", "sghmc_dgp_1", (10_000, 200 * 1_000, 200, 1)),
        ("filippone2014_real", "la_1", (2_000, 10_000, 20_000, None)),
        ("filippone2014_classification", "pm_ep", (2_000, 10_000, 200, None)),
        ("filippone2014_efficiency", "la_1", (5_000, 10_000, 20_000, None)),
        ("filippone2013_parameterisations", "aa", (5_000, 20_000, 20_000, None)),
        ("filippone2015_sgld", "gp_mh", (10_000, 40_000, 40_000, None)),
        ("filippone2015_sgld", "sgld_ulisse_2015", (20_000, 20_000, 40_000, None)),
        ("cutajar2017_posterior", "mcmc", (1_000, 9_000, 100, None)),
    ],
)
def test_chains_have_the_published_length(study, method, expected):
    for what in (cell.what for cell in cells_of(study)[method]):
        burn_in = round(what.method.hyper["burn_in"] * what.steps)
        hyper = (what.method.hyper.get(name) for name in ("num_samples", "optimise_every"))
        found = (burn_in, what.steps - burn_in, *hyper)
        # a fraction of five digits rounds 210,000 to 210,001
        assert found == pytest.approx(expected, abs=1) if expected[-1] else found == expected


@pytest.mark.parametrize("method", ["svgp", "fitc_svgp"])
def test_sparse_gps_of_rossi2021_have_10000_steps_of_1000_rows(method):
    cells = cells_of("rossi2021_objective")[method]
    assert {cell.what.steps for cell in cells} == {10_000}
    assert {cell.what.method.hyper["batch_size"] for cell in cells} == {1_000}
    assert {cell.what.method.hyper.get("optimiser", "adam") for cell in cells} == {"adam"}


def test_smoke_draws_little_with_every_method():
    """It means seconds; `conf/budget/smoke.yaml` says less where a method's own number is large."""
    where = Places(REPOSITORY, REPOSITORY / "store")
    budget = config.compose(where.conf, "budget", "smoke")
    counts = ("num_samples", "samples_train", "samples_test", "trials", "restarts", "particles", "draws")
    hypers = {m: configured_method(where, m, budget, []).hyper for m in config.options(where.conf, "method")}
    large = {m: (key, getattr(h, key)) for m, h in hypers.items() for key in counts if getattr(h, key, 0) > 256}
    assert large == {}


def test_updates_are_those_of_the_search_or_the_method_or_its_family_or_the_default():
    numbers = {"lbfgs": 10, "bsgp_2": 11, "bsgp": 12, "default": 13}
    words = [f"budget.steps.{key}={{small:{n},medium:{n},large:{n}}}" for key, n in numbers.items()]
    methods = "methods=[svgp,bsgp_2,bsgp_1,heteroscedastic_gp,constant]"
    cells = planned(f"{methods} datasets=[boston] splits=1 {' '.join(words)}")
    assert [cell.what.steps for cell in cells] == [10, 11, 12, 13, None]


def test_fits_by_present_gradients_alone_end_by_themselves():
    pushed = "variants={pushed:{method:svgp,optimiser:adam,scheme:asynchronous,workers:2}}"
    cells = planned(f"methods=[constant,bsgp_1,svgp] {pushed} datasets=[boston] splits=1 budget=converged")
    assert {cell.method for cell in cells if cell.what.until_converged} == {"svgp"}
