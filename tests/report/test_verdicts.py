import numpy as np
import pytest
from scipy import stats

from gpbench.evaluation.metrics import METRICS
from gpbench.report.scorecard import verdicts
from gpbench.report.scorecard.verdicts import combined, direction, interval, judge, kind, margin


@pytest.mark.parametrize(
    ("lower", "upper", "direction", "expected"),
    [
        (-0.05, 0.05, "min", "agrees"),
        (-0.05, 0.0501, "min", "inconclusive"),
        (-0.0501, 0.05, "max", "inconclusive"),
        (-0.2, -0.0501, "min", "better"),
        (-0.2, -0.0501, "max", "worse"),
        (-0.2, -0.05, "min", "inconclusive"),
        (0.0501, 0.2, "min", "worse"),
        (0.0501, 0.2, "max", "better"),
        (0.05, 0.2, "max", "inconclusive"),
        (0.06, 0.2, "", "differs"),
        (-0.2, -0.06, "", "differs"),
        (-0.01, 0.01, "", "agrees"),
        (-1.0, 1.0, "min", "inconclusive"),
    ],
)
def test_verdict_follows_interval_and_margin(lower, upper, direction, expected):
    assert judge(lower, upper, 0.05, direction) == expected


@pytest.mark.parametrize(
    ("metric", "published", "expected"),
    [
        ("mnll", -3.0, 0.05),
        ("mnll_scaled", 0.001, 0.05),
        ("mnll_gaussian", -3.0, 0.05),
        ("mnll_draws", 3.0, 0.05),
        ("rmse", 3.0, 0.15),
        ("rmse_scaled", 0.4, 0.02),
        ("error", 0.02, 0.001),
        ("accuracy", 0.98, 0.001),
        ("auc", 0.9, 0.005),
        ("brier", 0.4, 0.02),
        ("ess_percent", 7.5, 0.75),
        ("ess_percent_per_cubic", 2.0, 0.2),
        ("acceptance_theta", 0.25, 0.025),
        ("r_hat", 1.01, 0.05),
        ("r_hat_classic_1000", 3.0, 0.05),
        ("cubic", 20.0, 1.0),
        ("seconds_train", 100.0, 5.0),
    ],
)
def test_margins_are_those_stated(metric, published, expected):
    assert margin(metric, published) == pytest.approx(expected)


def test_every_metric_has_a_margin_and_a_direction():
    for name in METRICS:
        assert margin(name, 0.5) > 0
        assert direction(name) in ("min", "max", "")
    assert [direction(name) for name in ("acceptance_theta", "coverage_90")] == ["", ""]
    assert [direction(name) for name in ("mnll", "r_hat", "ess_percent", "accuracy")] == ["min", "min", "max", "max"]
    assert set(verdicts.UNDIRECTED) <= set(METRICS)


def test_what_a_number_is_about():
    """Costs and operations are neither predictions nor how chains move, of which the badge counts the former."""
    of = {name: [metric for metric in METRICS if verdicts.group(metric) == name] for name in verdicts.GROUPS}
    costs = ["seconds_train", "seconds_predict", "peak_memory_mb"]
    assert of["bookkeeping"] == [*costs, "iterations", "cubic", "cholesky", "inverse", "product", "quadratic"]
    assert of["predictions"] == [name for name, metric in METRICS.items() if metric.tasks and name not in costs]
    assert {"ess_min", "r_hat", "acceptance_theta"} <= set(of["samplers"])


def test_interval_is_that_of_scipy_s_welch_test():
    """At the level of its p-value the interval ends at 0."""
    error, freedom, assumed = combined(0.3, 5, 0.2, 8)
    found = stats.ttest_ind_from_stats(2.5, 0.3, 5, 2.3, 0.2, 8, equal_var=False)
    lower, upper = interval(0.2, error, freedom, level=1 - found.pvalue)
    assert (lower, upper, assumed) == (pytest.approx(0, abs=1e-9), pytest.approx(0.4), "")


def test_r_hats_that_differ_are_compared_by_welch_s_test():
    """Of four chains each, with the standard deviations (R^2 - 1) / (2 R) sqrt(2/3)."""
    ours, published = (r * 2 for r in np.sqrt(2 / 3) * np.array([(2**2 - 1) / (2 * 2), (1.2**2 - 1) / (2 * 1.2)]))
    expected = stats.ttest_ind_from_stats(2.0, ours, 4, 1.2, published, 4, equal_var=False)
    error, freedom = verdicts.combined_r_hats(2.0, 1.2, 4)
    assert 2 * stats.t.sf(0.8 / error, freedom) == pytest.approx(expected.pvalue)


def test_a_side_without_a_spread_is_given_the_other_s():
    """With equal numbers that of Student, with one run the prediction interval: s sqrt(1 + 1/n), n - 1 degrees."""
    assert combined(0.2, 5, np.nan, 5) == (pytest.approx(0.2 * np.sqrt(2 / 5)), 4, "published")
    assert combined(np.nan, 5, 0.2, 8) == (pytest.approx(0.2 * np.sqrt(1 / 5 + 1 / 8)), 7, "ours")
    assert combined(0.1, 1, 0.2, 8) == (pytest.approx(0.2 * np.sqrt(1 + 1 / 8)), 7, "ours")
    error, _, assumed = combined(np.nan, 1, 0.2, 1)
    assert (np.isnan(error), assumed) == (True, "")
    assert np.isnan(interval(0.1, error, np.nan)).all()


def test_fewer_runs_that_lie_closer_together_are_given_the_spread_of_the_more():
    """As a single run is; fewer runs that spread more, or as many on either side, keep their own."""
    assert combined(0.05, 3, 0.2, 20) == combined(np.nan, 3, 0.2, 20)
    assert combined(0.2, 20, 0.05, 3) == combined(0.2, 20, np.nan, 3)
    # three runs that lie nearly as far apart say less than Student's t of all twenty
    assert combined(0.19, 3, 0.2, 20)[2] == combined(0.2, 20, 0.19, 3)[2] == ""
    assert combined(0.19, 3, 0.2, 20)[1] < 3
    assert [combined(*sides)[2] for sides in ((0.2, 3, 0.05, 20), (0.05, 20, 0.2, 20), (0.2, 3, 0.2, 20))] == [""] * 3


def test_few_splits_of_a_skewed_population_do_not_differ_from_it():
    """Of 2,000 triples of a log-normal population, against twenty others: Welch's interval alone excludes 0 in 13 %."""
    draws = np.random.default_rng(0).lognormal(size=(2000, 23))
    sides = [(row[:3], row[3:]) for row in draws]
    errors = [combined(a.std(ddof=1), 3, b.std(ddof=1), 20)[:2] for a, b in sides]
    limits = [interval(a.mean() - b.mean(), *error) for (a, b), error in zip(sides, errors, strict=True)]
    welch = [stats.ttest_ind(a, b, equal_var=False).pvalue < 0.05 for a, b in sides]
    assert np.mean([lower > 0 or upper < 0 for lower, upper in limits]) < 0.05 < np.mean(welch)


def test_prediction_interval_covers_the_next_run():
    """Of 4,000 means of five and one more, 95 % are covered: binomial standard error 0.0034."""
    draws = np.random.default_rng(0).normal(size=(4000, 6))
    covered = [
        np.prod(interval(five.mean() - one, *combined(five.std(ddof=1), 5, np.nan, 1)[:2])) <= 0
        for five, one in ((row[:5], row[5]) for row in draws)
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


def test_numbers_that_do_not_vary_are_compared_exactly():
    assert interval(0.0, *combined(0.0, 5, np.nan, 1)[:2]) == (0.0, 0.0)
    assert interval(0.1, *combined(0.0, 5, 0.0, 8)[:2]) == (0.1, 0.1)


def test_few_splits_do_not_make_numbers_agree():
    """The same means and spreads agree by twenty splits and are left open by two."""
    found = [judge(*interval(0.0, *combined(0.05, n, 0.05, 20)[:2]), 0.05, "min") for n in (2, 20)]
    assert found == ["inconclusive", "agrees"]


def test_a_verdict_has_its_kind():
    assert kind("other protocol (common; theirs x: y)") == "other protocol"
    assert kind("not run: failed: layer (1)") == "not run"
    assert {kind(name) for name in verdicts.VERDICTS} == set(verdicts.VERDICTS)
