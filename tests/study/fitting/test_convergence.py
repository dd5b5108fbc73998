"""The rule of convergence on objectives whose end is known, and fits that it ends."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from cases import SPLITS, STEPS, Case, assert_close, assert_same, group, numbers, with_hyper
from gpbench.errors import UserError
from gpbench.hyper import Settings
from gpbench.study.fitting import convergence, lightning_module
from gpbench.study.fitting.convergence import ADAM, CONVERGED, IMPROVING, NOT_JUDGED, Convergence, judge
from gpbench.study.fitting.schedule import Schedule

TOTAL = 4000
TIMES = ADAM.window * (np.arange(TOTAL // ADAM.window) + 0.5)
EARLY, LATE, DECAY = 8, 16, 0.25
"""Steps at which the fits of this file converge: of the split with a row less, and of the others."""


def noise(scale: float) -> np.ndarray:
    return scale * np.random.default_rng(0).normal(size=len(TIMES))


@pytest.mark.parametrize(
    ("objective", "status"),
    [
        (1 - np.exp(-TIMES / 100) + noise(0.002), CONVERGED),
        (0.1 * np.log(TIMES) + noise(0.002), IMPROVING),
        (np.where(TIMES < 600, 0.0, 1.0), CONVERGED),  # a plateau that goes on long enough
        (np.where(TIMES < 1600, 0.1 * np.log(TIMES), 0.1 * math.log(1600)), NOT_JUDGED),  # one that has just begun
        (np.where(TIMES < 3000, 0.0, 1.0), IMPROVING),  # a fit that rested for long and went on
        (noise(0.5), NOT_JUDGED),
        (-0.1 * np.log(TIMES), NOT_JUDGED),
        (np.where(TIMES < 3900, 0.0, np.nan), NOT_JUDGED),
    ],
)
def test_the_rule_knows_what_has_converged(objective, status):
    found = judge(objective, TOTAL)
    assert found.convergence == status
    assert (found.not_judged_because != "") == (status == NOT_JUDGED)


def test_the_predicted_gain_is_what_as_many_steps_again_gain():
    objective = 0.1 * np.log(ADAM.window * (np.arange(2 * len(TIMES)) + 0.5))
    actual = 0.1 * math.log(2)
    assert judge(objective, TOTAL).gain == pytest.approx(actual)


def test_the_predicted_gain_and_its_error_are_those_of_a_regression_on_the_last_half():
    objective = 0.1 * np.log(TIMES) + noise(0.1)
    late = TIMES > TOTAL / 2
    line = stats.linregress(np.log(TIMES[late]), objective[late])
    found = convergence.predicted_gain(objective, TOTAL)
    assert found == pytest.approx((math.log(2) * line.slope, math.log(2) * line.stderr), rel=1e-9)


def test_a_gain_is_surely_below_a_limit_at_5_percent():
    errors = [0.02 / stats.norm.ppf(level) for level in (0.951, 0.949)]
    assert [convergence.Gain(0.0, error).is_below(0.02) for error in errors] == [True, False]


@pytest.mark.parametrize(
    ("gain", "reason"), [(-0.01, "too noisy, or converged too recently"), (-0.03, "the objective falls")]
)
def test_an_objective_falls_only_where_it_loses_as_much_as_the_rule_lets_it_gain(gain, reason):
    objective = noise(0.1)
    late = TIMES > TOTAL / 2
    slope = stats.linregress(np.log(TIMES[late]), objective[late]).slope
    found = judge(objective + (gain / math.log(2) - slope) * np.log(TIMES), TOTAL)
    assert (found.convergence, found.not_judged_because) == (NOT_JUDGED, reason)
    assert found.gain == pytest.approx(gain)


def test_few_steps_are_not_judged_and_the_reason_says_so():
    found = judge(np.ones(20), 500)
    assert (found.convergence, found.not_judged_because) == (NOT_JUDGED, "500 steps are too few")
    assert math.isnan(found.gain)


def test_the_rule_is_applied_a_few_times_a_doubling():
    checked = [step for step in range(1, 10_000) if convergence.is_checked(step)]
    assert checked[0] >= 2 * ADAM.window * convergence.LEAST_WINDOWS
    assert all(step % ADAM.window == 0 for step in checked)
    doubling = [step for step in checked if 4000 < step <= 8000]
    assert len(doubling) == convergence.CHECKS_PER_DOUBLING


def observed(schedule: Schedule, *objectives: np.ndarray) -> Schedule:
    """A schedule that has seen an objective a replica, of one row."""
    for step, values in enumerate(zip(*objectives, strict=True)):
        if step < schedule.last():
            schedule.observe(-torch.tensor(values, dtype=torch.float64), step)
    return schedule


def test_replicas_end_each_for_itself_and_one_that_diverges_disturbs_no_other():
    steps = np.arange(TOTAL) + 0.5
    settled, rising, lost = 1 - np.exp(-steps / 100), 0.1 * np.log(steps), np.full(TOTAL, np.nan)
    schedule = observed(Schedule(TOTAL, 0.0, [1, 1, 1], until_converged=True), settled, rising, lost)
    alone = observed(Schedule(TOTAL, 0.0, [1], until_converged=True), settled)
    assert schedule.ends(0) == alone.ends(0) < TOTAL
    assert (schedule.ends(1), schedule.ends(2)) == (TOTAL, TOTAL)
    assert [schedule.judge(r).convergence for r in range(3)] == [CONVERGED, IMPROVING, NOT_JUDGED]
    assert observed(Schedule(TOTAL, 0.0, [1], until_converged=False), settled).ends(0) == TOTAL


def test_the_rate_is_constant_and_then_falls_to_zero():
    schedule = Schedule(40, DECAY, [9], until_converged=False)
    factors = [schedule.factors(step)[0] for step in range(41)]
    assert factors[:30] == [1.0] * 30
    assert all(a > b > 0 for a, b in zip(factors[29:39], factors[30:40], strict=True))
    assert factors[40] == 0.0
    assert Schedule(40, 0.0, [9], until_converged=False).factors(39) == [1.0]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Fits of fitc_svgp, of which split 1 converges first; all of them within `STEPS`."""
    case = Case("fitc_svgp", "regression", tmp_path_factory)
    what = dataclasses.replace(case.cell.what, until_converged=True)
    case.cell = with_hyper(dataclasses.replace(case.cell, what=what), decay=DECAY)
    with pytest.MonkeyPatch.context() as patch:
        least = len(case.fold.train) - 1

        def judged(schedule, r, step=None):
            enough = (step or schedule.constant[r]) >= (EARLY if schedule.rows[r] == least else LATE)
            return Convergence(CONVERGED if enough else IMPROVING, 0.01)

        patch.setattr(Schedule, "judge", judged)
        patch.setattr(convergence, "is_checked", lambda step, window: True)
        yield case


def end(constant: int) -> int:
    return constant + round(constant * DECAY / (1 - DECAY))


def test_fits_that_end_at_different_steps_are_what_they_are_alone(case):
    assert [o.info["steps_done"] for o in case.together] == [end(LATE), end(EARLY), end(LATE)]
    for one, other in zip(case.together, case.alone, strict=False):
        assert one.info == other.info
        assert_close(one, other)
        assert list(numbers(one)["step"]) == list(numbers(other)["step"])
        assert numbers(one)["step"].iloc[-1] == one.info["steps_done"] < STEPS
        np.testing.assert_allclose(numbers(one)["objective"], numbers(other)["objective"], rtol=1e-9)
        assert np.isfinite(numbers(one)["mnll"].iloc[-1])


def test_a_fit_that_the_rule_ends_resumes_bit_for_bit_and_names_its_step(case):
    work, stops = case.folder(), []
    while (outcomes := case.fit(group(case.cell, *range(SPLITS), max_minutes=1e-9), work=work))[0].status == "stopped":
        stops.append(outcomes[0].reason)
    assert len(stops) == end(LATE) // 5
    for one, other in zip(outcomes, case.together, strict=True):
        assert_same(one, other)
        assert one.info == other.info


def test_what_happens_to_a_replica_after_its_end_is_of_no_account(case, monkeypatch):
    """A draw of its loss that is not finite does not make it diverge."""
    fit = lightning_module.GradientFit
    differentiate = fit.differentiate

    def later_infinite(self, batch, noise):
        loss = differentiate(self, batch, noise)
        return loss + torch.where(torch.tensor([False, self.done >= end(EARLY)]), torch.inf, 0.0)

    monkeypatch.setattr(fit, "differentiate", later_infinite)
    for one, other in zip(case.fit(group(case.cell, 0, 1)), case.alone, strict=True):
        assert one.info == other.info
        assert_close(one, other)


def test_a_replica_that_diverges_does_not_disturb_the_others(case, monkeypatch):
    fit = lightning_module.GradientFit
    differentiate = fit.differentiate

    def infinite(self, batch, noise):
        return differentiate(self, batch, noise) + torch.tensor([0.0, torch.inf])

    monkeypatch.setattr(fit, "differentiate", infinite)
    whole, lost = case.fit(group(case.cell, 0, 1))
    assert lost.status == "diverged"
    assert_close(whole, case.alone[0])


def test_a_gradient_method_whose_settings_have_no_schedule_is_refused_in_one_line(case, monkeypatch):
    monkeypatch.setattr(lightning_module, "OptimisedSettings", type("Other", (Settings,), {}))
    with pytest.raises(UserError, match=r"svgp: Hyperparameters of a gradient method must inherit from gpbench\.hyper"):
        case.fit(group(case.cell, 0))
