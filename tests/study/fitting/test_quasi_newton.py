"""Fits by L-BFGS: an iteration a step, each replica by itself until its search has ended."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cases import ALONE, SPLITS, Case, assert_close, assert_same, group
from gpbench.study.fitting.convergence import CONVERGED, LBFGS, NOT_JUDGED
from gpbench.study.fitting.schedule import Schedule

MANY = 300
"""Steps of which every search of the exact GP leaves some."""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    made = Case("exact_gp", "regression", tmp_path_factory)
    made.cell = replace(made.cell, what=replace(made.cell.what, steps=MANY))
    return made


def test_a_search_that_has_ended_stops_its_replica_and_the_last_one_the_fit(case):
    ends = [outcome.info["steps_done"] for outcome in case.together]
    assert max(ends) < MANY
    assert len(set(ends)) > 1
    for outcome in case.together:
        assert outcome.trace[-1]["step"] == outcome.info["steps_done"]
        assert outcome.info["convergence"] == CONVERGED
    objectives = [row["objective"] for row in case.together[0].trace]
    assert objectives == sorted(objectives)


def test_replicas_that_end_at_unlike_steps_are_the_same_batched_and_looped(case):
    for one, other in zip(case.together[:ALONE], case.alone, strict=True):
        assert_close(one, other)
        assert one.info["steps_done"] == other.info["steps_done"]


def test_resumed_with_searches_under_way_and_ended_it_is_the_uninterrupted_fit(case):
    work = case.folder()
    for _ in range(3):
        outcomes = case.fit(group(case.cell, *range(SPLITS), max_minutes=1e-9), work=work)
        assert {outcome.status for outcome in outcomes} == {"stopped"}
    for one, other in zip(case.fit(group(case.cell, *range(SPLITS)), work=work), case.together, strict=True):
        assert_same(one, other)


def test_the_rule_of_convergence_ends_a_fit_before_its_search(case):
    ruled = replace(case.cell, what=replace(case.cell.what, until_converged=True))
    svgp = Case("svgp", "regression", case.folders)
    svgp.cell = replace(svgp.cell, what=replace(svgp.cell.what, steps=MANY, until_converged=True))
    (outcome,) = svgp.fit(group(svgp.cell, 0))
    assert outcome.info["convergence"] == CONVERGED
    assert outcome.info["steps_done"] < MANY
    assert case.fit(group(ruled, 0))[0].info["steps_done"] <= case.alone[0].info["steps_done"]


@pytest.mark.parametrize(("slope", "convergence"), [(0.001, CONVERGED), (1.0, "not judged")])
def test_a_search_that_ended_has_converged_if_its_gradient_is_small(slope, convergence):
    schedule = Schedule(100, 0.0, [50], until_converged=False, rule=LBFGS)
    for step in range(6):
        schedule.observe(torch.tensor([100.0 - step]), step)
    schedule.end(0, 6, slope)
    assert schedule.judge(0).convergence == convergence
    assert (schedule.ends(0), schedule.last()) == (6, 6)


def test_a_fit_that_single_precision_rounds_too_much_says_so(case, tmp_path_factory):
    """Targets that are linear but for noise of variance 1e-6 leave float32 too few digits of the objective."""
    linear = case.table.inputs.sum(1, keepdims=True) / case.table.inputs.std()
    exact = replace(case.table, targets=linear + 1e-3 * np.random.default_rng(0).standard_normal(linear.shape))
    found = {}
    for name, table in {"noisy": case.table, "exact": exact}.items():
        fits = Case("sgpr", "regression", tmp_path_factory, data=table)
        longer = replace(fits.single, what=replace(fits.single.what, steps=MANY))
        (found[name],) = fits.fit(group(longer, 0))
    assert "float32" not in found["noisy"].info["not_judged_because"]
    assert found["exact"].info["convergence"] == NOT_JUDGED
    assert "float32 changes the objective by" in found["exact"].info["not_judged_because"]
