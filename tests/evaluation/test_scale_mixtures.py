"""Scale mixtures of normals against scipy.stats, numerical integrals, equal-weight mixtures; their table of points."""

import numpy as np
import pytest
from scipy import integrate, stats

from gpbench.evaluation.pointwise import components, pointwise
from gpbench.methods.chained_gp import log_gamma
from gpbench.predictive.distributions import GaussianMixture
from gpbench.predictive.scale_mixtures import ScaleMixture

MEAN = np.array([[0.3], [-1.0], [20.0]])
Y = np.array([[1.1], [-1.0], [4.0]])


def student(nu: float, mean=MEAN, scale: float = 1.0) -> ScaleMixture:
    log_r, weights = log_gamma(nu)
    return ScaleMixture(
        mean, np.broadcast_to((scale**2 * np.exp(-log_r))[:, None, None], (len(weights), *mean.shape)), weights
    )


def mixture() -> ScaleMixture:
    """Three components of unequal weight, whose variances differ from row to row."""
    variance = np.array([0.2, 1.0, 30.0])[:, None, None] * np.array([[1.0], [0.1], [4.0]])
    return ScaleMixture(MEAN, variance, [0.5, 0.3, 0.2])


@pytest.mark.parametrize("nu", [2.01, 3.0, 10.0, 100.0, 1000.0])
def test_log_density_of_a_student_t_is_right_far_from_its_mean(nu):
    scales, atol = np.array([0.0, 0.5, 2.0, 8.0, 16.0, 30.0])[:, None], [1e-10] * 5 + [5e-5]
    error = np.abs(student(nu, np.zeros((6, 1))).log_prob(scales) - stats.t.logpdf(scales, nu))
    assert (error[:, 0] <= atol).all(), error


def test_as_many_nodes_of_equal_weight_would_miss_the_tail():
    """Of 100 equally likely noise variances, nu = 6: what `ScaleMixture` is for."""
    r = stats.gamma.ppf((np.arange(100) + 0.5) / 100, 3.0, scale=1 / 3)
    equal = GaussianMixture(np.zeros((100, 1, 1)), (1 / r)[:, None, None])
    assert abs(equal.log_prob([[8.0]])[0, 0] - stats.t.logpdf(8.0, 6)) > 0.1


@pytest.mark.parametrize("nu", [2.5, 4.0, 50.0])
def test_distribution_of_a_student_t(nu):
    ours, exact = student(nu, scale=2.0), stats.t(nu, MEAN, 2.0)
    levels = np.array([1e-6, 0.01, 0.3, 0.5, 0.9, 0.99, 1 - 1e-6])
    np.testing.assert_allclose(ours.cdf(Y), exact.cdf(Y), rtol=1e-9)
    np.testing.assert_allclose(ours.quantile(levels), exact.ppf(levels[:, None, None]), rtol=1e-7)
    np.testing.assert_array_equal(ours.mean(), MEAN)


@pytest.mark.parametrize("nu", [2.001, 2.01, 2.1, 2.5, 4.0, 50.0, 1e6])
def test_variance_of_a_student_t_has_what_lies_beyond_its_nodes(nu):
    np.testing.assert_allclose(student(nu).variance(), nu / (nu - 2), rtol=5e-5 if nu < 4 else 1e-9)
    assert np.isfinite(student(2.0).variance()).all()  # as single precision rounds nu, where no variance exists


@pytest.mark.parametrize("ours", [student(2.5), mixture()], ids=["student", "three"])
def test_crps_is_the_integral_of_the_squared_distance_of_distributions(ours):
    for row in range(3):

        def gap(x, row=row, ours=ours):
            where = MEAN.copy()
            where[row] = x
            return (ours.cdf(where)[row, 0] - (x >= Y[row, 0])) ** 2

        inner = sorted([Y[row, 0], MEAN[row, 0]])
        ends = [-np.inf, inner[0], inner[1], np.inf]
        parts = [integrate.quad(gap, a, b, limit=200)[0] for a, b in zip(ends, ends[1:], strict=False) if a < b]
        assert ours.crps(Y)[row, 0] == pytest.approx(sum(parts), rel=1e-4)


def test_equal_weights_give_the_equal_weight_mixture():
    variance = np.random.default_rng(0).gamma(1.0, size=(7, 3, 1))
    ours, other = ScaleMixture(MEAN, variance, np.full(7, 1 / 7)), GaussianMixture(np.tile(MEAN, (7, 1, 1)), variance)
    for one, two in [(ours, other), (ours.affine(3.0, -1.0), other.affine(3.0, -1.0))]:
        for name in ("log_prob", "cdf", "crps"):
            np.testing.assert_allclose(getattr(one, name)(Y), getattr(two, name)(Y), rtol=1e-10)
        levels = [0.001, 0.25, 0.5, 0.77]
        np.testing.assert_allclose(one.quantile(levels), two.quantile(levels), rtol=1e-9)
        np.testing.assert_allclose(one.variance(), two.variance(), rtol=1e-12)


def test_blocks_change_nothing(monkeypatch):
    ours = mixture()
    before = ours.log_prob(Y), ours.crps(Y), ours.quantile([0.1, 0.6])
    monkeypatch.setattr("gpbench.predictive.scale_mixtures.BLOCK", 4)
    for one, other in zip(before, (ours.log_prob(Y), ours.crps(Y), ours.quantile([0.1, 0.6])), strict=True):
        np.testing.assert_array_equal(one, other)


def test_draws_come_from_the_distribution():
    ours = mixture()
    draws = ours.sample(4000, np.random.default_rng(0))
    for row in range(3):
        at = np.repeat(draws[:, row : row + 1], 3, 1)
        levels = np.array([ours.cdf(value)[row, 0] for value in at])
        assert stats.kstest(levels, "uniform").pvalue > 1e-3


def test_table_of_points_and_components():
    ours = mixture()
    points = pointwise(ours, 10 * Y + 5, task="regression", scaled_by=(5.0, 10.0), rows=[4, 5, 6])
    np.testing.assert_allclose(points["log_density_scaled"], ours.log_prob(Y)[:, 0])
    np.testing.assert_allclose(points["crps"], 10 * ours.crps(Y)[:, 0])
    np.testing.assert_allclose(points["pit"], ours.cdf(Y)[:, 0])
    np.testing.assert_allclose(points["q50"], 10 * MEAN[:, 0] + 5)
    np.testing.assert_array_equal(points["log_density_draws"], points["log_density"])  # its nodes are no draws
    kept = components(ours)
    assert {name: array.shape for name, array in kept.items()} == {
        "mean": (3, 1),
        "variance": (3, 3, 1),
        "weights": (3,),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((MEAN, np.ones((2, 3)), [0.5, 0.5]), "mean must be"),
        ((MEAN, np.zeros((1, 3, 1)), [1.0]), "variance must be positive"),
        ((MEAN, np.ones((2, 3, 1)), [0.5, 0.6]), "weights must not be negative and sum to 1"),
        ((MEAN, np.ones((2, 3, 1)), [1.5, -0.5]), "weights must not be negative and sum to 1"),
    ],
)
def test_bad_numbers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScaleMixture(*arguments)


def test_numbers_that_are_not_finite_are_allowed_and_told():
    assert mixture().is_finite()
    assert not ScaleMixture(np.full((3, 1), np.nan), np.ones((1, 3, 1)), [1.0]).is_finite()


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1])
def test_levels_outside_the_open_interval_are_refused(level):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        mixture().quantile([level])
