"""Closed forms against scipy.stats, quadrature and Monte Carlo."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from gpbench.predictive import mixtures
from gpbench.predictive.distributions import Categorical, GaussianMixture


@pytest.fixture
def rng():
    return np.random.default_rng(20240501)


@pytest.fixture
def mixture(rng):
    """Five components, two replicas, seven rows, two targets; some mixtures are multi-modal."""
    shape = (5, 2, 7, 2)
    return GaussianMixture(3 * rng.standard_normal(shape), np.exp(rng.standard_normal(shape)))


def test_one_gaussian_is_scipys_normal(rng):
    mean, sd, y = rng.standard_normal((1, 50, 1)), np.exp(rng.standard_normal((1, 50, 1))), rng.standard_normal((50, 1))
    predictive, normal = GaussianMixture(mean, sd**2), stats.norm(mean[0], sd[0])
    levels = np.array([1e-9, 0.01, 0.3, 0.5, 0.99, 1 - 1e-9])
    np.testing.assert_allclose(predictive.log_prob(y), normal.logpdf(y), rtol=1e-12)
    np.testing.assert_allclose(predictive.cdf(y), normal.cdf(y), rtol=1e-12)
    expected = normal.ppf(levels[:, None, None])
    np.testing.assert_allclose(predictive.quantile(levels), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(predictive.mean(), mean[0])
    np.testing.assert_allclose(predictive.variance(), sd[0] ** 2)


def test_log_prob_is_log_mean_of_densities_and_integrates_to_one():
    mean, sd = np.array([-4.0, 0.0, 1.0]), np.array([0.3, 1.0, 2.0])
    grid = np.linspace(-15, 15, 20_001)
    predictive = GaussianMixture(*(np.tile(part[:, None, None], (1, len(grid), 1)) for part in (mean, sd**2)))
    density = np.exp(predictive.log_prob(grid[:, None])[:, 0])
    np.testing.assert_allclose(density, stats.norm(mean, sd).pdf(grid[:, None]).mean(axis=1), rtol=1e-12)
    assert integrate.trapezoid(density, grid) == pytest.approx(1, abs=1e-9)
    moments = [integrate.trapezoid(density * grid**power, grid) for power in (1, 2)]
    assert predictive.mean()[0, 0] == pytest.approx(moments[0], abs=1e-8)
    assert predictive.variance()[0, 0] == pytest.approx(moments[1] - moments[0] ** 2, abs=1e-6)


def test_log_prob_stays_finite_far_from_every_component():
    predictive = GaussianMixture(np.zeros((3, 1, 1)), np.ones((3, 1, 1)))
    assert predictive.log_prob([[1e3]])[0, 0] == pytest.approx(stats.norm.logpdf(1e3), rel=1e-12)


def test_cdf_inverts_quantile(mixture):
    levels = np.arange(1, 100) / 100
    quantiles = mixture.quantile(levels)
    assert quantiles.shape == (99, 2, 7, 2)
    assert np.all(np.diff(quantiles, axis=0) > 0)
    for level, quantile in zip(levels, quantiles, strict=True):
        np.testing.assert_allclose(mixture.cdf(quantile), level, atol=1e-9)


def test_quantile_of_far_and_narrow_modes():
    """Newton alone fails between modes; golden numbers: each half of the mass is one Gaussian."""
    predictive = GaussianMixture([[[-1e4]], [[1e4]]], [[[1e-8]], [[4.0]]])
    low, high = predictive.quantile([0.2, 0.9])[:, 0, 0]
    assert low == pytest.approx(stats.norm(-1e4, 1e-4).ppf(0.4), abs=1e-9)
    assert high == pytest.approx(stats.norm(1e4, 2).ppf(0.8), abs=1e-6)


def test_quantile_solves_extreme_levels(mixture):
    levels = np.array([1e-12, 1e-6, 1 - 1e-6])
    for level, quantile in zip(levels, mixture.quantile(levels), strict=True):
        np.testing.assert_allclose(mixture.cdf(quantile), level, rtol=1e-8)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, np.nan])
def test_quantile_refuses_levels_outside_the_open_interval(mixture, level):
    with pytest.raises(ValueError, match="strictly between"):
        mixture.quantile([level])


def test_crps_of_one_gaussian_is_the_closed_form(rng):
    """sd (z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi)), Gneiting and Raftery (2007), equation 21."""
    mean, sd, y = rng.standard_normal(40), np.exp(rng.standard_normal(40)), 3 * rng.standard_normal(40)
    z = (y - mean) / sd
    expected = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(mixtures.crps(mean[None], sd[None], y), expected, rtol=1e-10)
    repeated = mixtures.crps(np.tile(mean, (7, 1)), np.tile(sd, (7, 1)), y)
    np.testing.assert_allclose(repeated, expected, rtol=1e-10)


def test_crps_of_a_mixture_is_the_integral_of_squared_cdf_error():
    mean, sd, y = np.array([-2.0, 0.5, 3.0]), np.array([0.4, 1.0, 0.7]), 0.8
    total = sum(
        integrate.quad(lambda x: (stats.norm(mean, sd).cdf(x).mean() - (x >= y)) ** 2, *ends, limit=200)[0]
        for ends in ((-12, y), (y, 12))
    )
    assert mixtures.crps(mean[:, None], sd[:, None], np.array([y]))[0] == pytest.approx(total, rel=1e-7)


def test_blocks_do_not_change_results(mixture, rng, monkeypatch):
    y = rng.standard_normal(mixture.shape)
    whole = [mixture.log_prob(y), mixture.cdf(y), mixture.crps(y), mixture.quantile([0.1, 0.8])]
    monkeypatch.setattr(mixtures, "BLOCK", 1)
    pieces = [mixture.log_prob(y), mixture.cdf(y), mixture.crps(y), mixture.quantile([0.1, 0.8])]
    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_replicas_do_not_touch_each_other(mixture, rng):
    y = rng.standard_normal(mixture.shape)
    alone = GaussianMixture(mixture.component_mean[:, 1], mixture.component_variance[:, 1])
    for name in ("log_prob", "cdf", "crps"):
        np.testing.assert_allclose(getattr(mixture, name)(y)[1], getattr(alone, name)(y[1]), rtol=1e-12)
    np.testing.assert_allclose(mixture.quantile([0.3])[:, 1], alone.quantile([0.3]), rtol=1e-12)


def test_affine_changes_units(mixture, rng):
    y, scale, shift = rng.standard_normal(mixture.shape), np.array([2.0, 0.5]), np.array([-1.0, 7.0])
    moved, target = mixture.affine(scale=scale, shift=shift), shift + scale * y
    np.testing.assert_allclose(moved.log_prob(target), mixture.log_prob(y) - np.log(scale), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moved.cdf(target), mixture.cdf(y), rtol=1e-9)
    np.testing.assert_allclose(moved.crps(target), scale * mixture.crps(y), rtol=1e-9)
    np.testing.assert_allclose(moved.mean(), shift + scale * mixture.mean(), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="scale must be positive"):
        mixture.affine(scale=0.0, shift=0.0)


def test_samples_follow_the_cdf():
    predictive = GaussianMixture([[[-2.0]], [[2.0]]], [[[0.25]], [[1.0]]])
    draws = predictive.sample(4_000, np.random.default_rng(1))
    assert draws.shape == (4_000, 1, 1)
    pit = stats.norm([-2.0, 2.0], [0.5, 1.0]).cdf(draws[:, 0]).mean(axis=1)
    assert stats.kstest(pit, "uniform").pvalue > 1e-3


def test_targets_of_a_row_share_their_component():
    predictive = GaussianMixture([[[-9.0, -9.0]], [[9.0, 9.0]]], np.ones((2, 1, 2)))
    signs = np.sign(predictive.sample(200, np.random.default_rng(2))[:, 0])
    np.testing.assert_array_equal(signs[:, 0], signs[:, 1])
    assert set(signs[:, 0]) == {-1.0, 1.0}


def test_tensors_are_accepted():
    predictive = GaussianMixture(torch.zeros(2, 3, 1), torch.ones(2, 3, 1))
    assert predictive.component_mean.dtype == np.float64
    np.testing.assert_allclose(predictive.log_prob(torch.zeros(3, 1)), stats.norm.logpdf(0.0))


@pytest.mark.parametrize(
    ("mean", "variance", "message"),
    [
        (np.zeros((2, 3, 1)), np.ones((2, 4, 1)), "differ in shape"),
        (np.zeros((2, 3, 1)), np.zeros((2, 3, 1)), "variance must be positive"),
        (np.zeros((0, 3, 1)), np.zeros((0, 3, 1)), "S >= 1"),
        (np.zeros(3), np.ones(3), r"\[S, \*R, N, P\]"),
    ],
)
def test_bad_mixtures_are_refused(mean, variance, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(mean, variance)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_divergence_is_reported_not_raised(bad):
    assert not GaussianMixture([[[bad]]], [[[1.0]]]).is_finite()
    assert not GaussianMixture([[[0.0]]], [[[bad]]]).is_finite()
    assert GaussianMixture([[[0.0]]], [[[1.0]]]).is_finite()
    assert not Categorical([[[np.nan, np.nan]]]).is_finite()


def test_wrong_shape_of_y_is_refused(mixture):
    with pytest.raises(ValueError, match="does not match"):
        mixture.log_prob(np.zeros(7))


@pytest.fixture
def categorical():
    return Categorical([[[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]], [[0.1, 0.8, 0.1], [0.0, 0.3, 0.7]]])


def test_categorical_averages_probabilities(categorical):
    """Golden numbers by hand; the mode of the average is not the average of the modes."""
    np.testing.assert_allclose(categorical.probabilities(), [[0.4, 0.5, 0.1], [0.0, 0.4, 0.6]])
    np.testing.assert_array_equal(categorical.modal(), [1, 2])
    np.testing.assert_allclose(categorical.log_prob([0, 2]), np.log([0.4, 0.6]))
    np.testing.assert_array_equal(categorical.log_prob([0.0, 0.0])[1], -np.inf)


def test_categorical_class_number_is_scipys_discrete_variable(categorical):
    for row, probability in enumerate(categorical.probabilities()):
        number = stats.rv_discrete(values=(np.arange(3), probability))
        assert categorical.mean()[row] == pytest.approx(number.mean())
        assert categorical.variance()[row] == pytest.approx(number.var())
        np.testing.assert_allclose(categorical.cdf([1, 1])[row], number.cdf(1))
        np.testing.assert_array_equal(categorical.quantile([0.2, 0.45, 0.95])[:, row], number.ppf([0.2, 0.45, 0.95]))


def test_categorical_samples_have_the_probabilities(categorical):
    draws = categorical.sample(5_000, np.random.default_rng(3))
    counts = np.bincount(draws[:, 0], minlength=3)
    assert stats.chisquare(counts, 5_000 * categorical.probabilities()[0]).pvalue > 1e-3
    assert not (draws[:, 1] == 0).any()


def test_float32_rounding_of_probabilities_is_divided_out():
    probs = np.float32([[[1 / 3, 1 / 3, 1 / 3]]])
    assert Categorical(probs).probabilities().sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[[0.5, 0.6]]], "sum to 1"),
        ([[[-0.1, 1.1]]], r"lie in \[0, 1\]"),
        ([[[1.0]]], "C >= 2"),
    ],
)
def test_bad_probabilities_are_refused(probs, message):
    with pytest.raises(ValueError, match=message):
        Categorical(probs)


@pytest.mark.parametrize("y", [[0, 3], [-1, 0], [0.5, 0]])
def test_unknown_classes_are_refused(categorical, y):
    with pytest.raises(ValueError, match="class numbers 0..2"):
        categorical.log_prob(y)


def test_a_quantile_of_classes_is_the_first_that_reaches_the_level():
    predictive = Categorical([[[0.25, 0.25, 0.5]]])
    assert predictive.quantile([0.2, 0.25, 0.26, 0.5, 0.75])[:, 0].tolist() == [0, 0, 1, 1, 2]
