"""Mixtures of Poissons against scipy.stats and sums over counts; their table of points and their metrics."""

import numpy as np
import pytest
import torch
from scipy.stats import poisson

from gpbench.evaluation.metrics import METRICS, score
from gpbench.evaluation.pointwise import components, pointwise
from gpbench.predictive.counts import Counts

WEIGHTS = np.array([0.5, 0.3, 0.15, 0.05])
INFO = {"task": "counts", "num_classes": 0, "train_target_mean": [2.0], "train_target_sd": [1.0]}
INFO |= {"seconds_train": 1.0, "seconds_predict": 1.0, "peak_memory_mb": 1.0}


@pytest.fixture
def rate():
    """Rates from 0.02 to 300 `[S, R, N, P]`: four components, two replicas, five rows, three targets."""
    return np.exp(np.random.default_rng(0).uniform(-4, 5.7, (4, 2, 5, 3)))


@pytest.fixture
def predictive(rate):
    return Counts(rate, WEIGHTS)


def mixture(function, rate, *arguments):
    """Of scipy's Poissons."""
    return np.tensordot(WEIGHTS, function(*arguments, rate), axes=1)


def test_it_is_the_mixture_of_scipys_poissons(rate, predictive):
    assert predictive.shape == (2, 5, 3)
    for y in (0, 1, 7, 40, 250):
        whole = np.full(predictive.shape, y)
        density = mixture(poisson.pmf, rate, y)
        told = density > 1e-300
        np.testing.assert_allclose(predictive.log_prob(whole)[told], np.log(density[told]), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(predictive.cdf(whole), mixture(poisson.cdf, rate, y), rtol=1e-10, atol=1e-300)
    grid = np.arange(2000)[:, None, None, None]
    density = np.stack([mixture(poisson.pmf, rate, y) for y in range(2000)])
    np.testing.assert_allclose(density.sum(0), 1)
    np.testing.assert_allclose(predictive.mean(), (grid * density).sum(0), rtol=1e-10)
    np.testing.assert_allclose(predictive.variance(), ((grid - predictive.mean()) ** 2 * density).sum(0), rtol=1e-9)


def test_quantiles_are_the_smallest_counts_that_reach_their_level(rate, predictive):
    levels = [1e-6, 0.05, 0.5, 0.9, 1 - 1e-6]
    cumulative = np.stack([mixture(poisson.cdf, rate, y) for y in range(2000)])
    for level, found in zip(levels, predictive.quantile(levels), strict=True):
        np.testing.assert_array_equal(found, (cumulative >= level).argmax(0))


def test_far_counts_have_a_finite_log_probability():
    one = Counts(np.array([[[1e-3]], [[2.0]]]), [0.5, 0.5])
    assert one.log_prob([[3000]])[0, 0] == pytest.approx(poisson.logpmf(3000, 2.0) - np.log(2), rel=1e-12)


def test_a_rate_of_zero_allows_no_event():
    never = Counts(np.zeros((1, 2, 1)), [1.0])
    np.testing.assert_array_equal(never.log_prob([[0], [3]]), [[0], [-np.inf]])
    np.testing.assert_array_equal(never.quantile([0.5, 0.99]), 0)
    either = Counts(np.array([0.0, 3.0])[:, None, None], [0.25, 0.75])
    assert either.log_prob([[0]])[0, 0] == pytest.approx(np.log(0.25 + 0.75 * np.exp(-3)))
    assert either.log_prob([[2]])[0, 0] == pytest.approx(np.log(0.75 * poisson.pmf(2, 3)))


def test_samples_have_its_moments(predictive):
    draws = predictive.sample(40_000, np.random.default_rng(1))
    assert draws.shape == (40_000, 2, 5, 3)
    error = np.sqrt(predictive.variance() / 40_000)
    assert (np.abs(draws.mean(0) - predictive.mean()) < 5 * error).all()
    np.testing.assert_allclose(draws.var(0), predictive.variance(), rtol=0.1)


def test_the_targets_of_a_drawn_row_come_from_one_component():
    rate = np.array([1.0, 1000.0])[:, None, None] * np.ones((2, 1, 2))
    draws = Counts(rate, [0.5, 0.5]).sample(200, np.random.default_rng(0))[:, 0]
    np.testing.assert_array_equal(draws[:, 0] > 500, draws[:, 1] > 500)


def test_tensors_and_single_precision_are_accepted(rate):
    there = Counts(torch.as_tensor(rate), torch.as_tensor(WEIGHTS))
    np.testing.assert_array_equal(there.mean(), Counts(rate, WEIGHTS).mean())
    assert Counts(rate.astype(np.float32), WEIGHTS.astype(np.float32)).mean().dtype == np.float64


def test_a_predictive_that_is_not_finite_reports_it(rate):
    assert Counts(rate, WEIGHTS).is_finite()
    for value in (np.nan, np.inf):
        rate[1, 0, 2, 0] = value
        assert not Counts(rate, WEIGHTS).is_finite()


@pytest.mark.parametrize(
    ("rate", "weights", "message"),
    [
        (np.ones((2, 3)), [0.5, 0.5], r"rate must be \[S, \*R, N, P\]"),
        (np.ones((2, 3, 1)), [1.0], r"weights \[S\], not \(2, 3, 1\) and \(1,\)"),
        (-np.ones((1, 3, 1)), [1.0], "rate must not be negative; the smallest is -1"),
        (np.ones((2, 3, 1)), [0.5, 0.6], "to 1.1"),
        (np.ones((2, 3, 1)), [-0.5, 1.5], "weights must not be negative"),
        (np.ones((1, 3, 1)), [np.nan], "not to nan"),
    ],
)
def test_invalid_mixtures_are_refused(rate, weights, message):
    with pytest.raises(ValueError, match=message):
        Counts(rate, weights)


@pytest.mark.parametrize("y", [-1.0, 0.5, np.nan])
def test_values_that_are_not_counts_are_refused(y):
    one = Counts(np.ones((1, 2, 1)), [1.0])
    for function in (one.log_prob, one.cdf):
        with pytest.raises(ValueError, match="y must hold counts"):
            function([[1.0], [y]])
    with pytest.raises(ValueError, match="does not match"):
        one.log_prob([1.0, 2.0])
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        one.quantile([0.5, 1.0])


def test_points_and_metrics(rate):
    one, y = Counts(rate[:, 0, :, :1], WEIGHTS), np.array([0, 3, 1, 150, 20.0])
    points = pointwise(one, y, task="counts", rows=np.arange(10, 15))
    assert list(points) == ["row", "output", "y", "mean", "sd", "log_density", "pit"]
    assert points["row"].tolist() == [10, 11, 12, 13, 14]
    first = rate[:, 0, :, 0]
    below, at = mixture(poisson.cdf, first, y - 1), mixture(poisson.pmf, first, y)
    np.testing.assert_allclose(points["pit"], below + at / 2)
    np.testing.assert_allclose(points["sd"] ** 2, one.variance()[:, 0])
    scores = score(points, INFO)
    assert set(scores) == {name for name, metric in METRICS.items() if "counts" in metric.tasks}
    assert scores["mnll"] == pytest.approx(-np.log(at).mean())
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((y - one.mean()[:, 0]) ** 2)))
    assert scores["smse"] == pytest.approx(scores["rmse"] ** 2 / y.var())


def test_the_mid_pit_of_a_right_predictive_has_mean_one_half():
    one = Counts(np.full((1, 20_000, 1), 0.7), [1.0])
    y = one.sample(1, np.random.default_rng(2))[0]
    points = pointwise(one, y, task="counts", rows=np.arange(len(y)))
    assert points["pit"].mean() == pytest.approx(0.5, abs=4 * points["pit"].std() / np.sqrt(len(y)))


def test_components_are_kept_in_single_precision(rate):
    kept = components(Counts(rate[:, 0], WEIGHTS))
    np.testing.assert_array_equal(kept["rate"], rate[:, 0].astype(np.float32))
    np.testing.assert_array_equal(kept["weights"], WEIGHTS.astype(np.float32))
