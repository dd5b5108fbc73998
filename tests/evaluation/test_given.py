"""What others print as mean and sd, quantiles or samples scores as the distribution it was taken of."""

import numpy as np
import pytest
from scipy import stats

from gpbench.evaluation import given
from gpbench.evaluation.pointwise import pointwise

RNG = np.random.default_rng(0)
MEAN, SD = RNG.normal(size=6), np.exp(RNG.normal(size=6))
Y = MEAN + SD * RNG.normal(size=6)
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def points(predictive):
    return pointwise(predictive, Y, task="regression", scaled_by=([2.0], [3.0]), rows=np.arange(6))


def test_quantiles_of_a_gaussian_score_as_the_gaussian():
    values = MEAN + SD * stats.norm.ppf(LEVELS)[:, None]
    theirs, ours = points(given.Quantiles(LEVELS, values)), points(given.gaussian(MEAN, SD))
    np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-7)


def test_quantiles_of_a_skewed_distribution_are_kept_and_integrate_to_one():
    values = stats.gamma(2.0).ppf(LEVELS)[:, None]
    one = given.Quantiles(LEVELS, values)
    np.testing.assert_allclose([one.cdf([value])[0, 0] for value in values], LEVELS)
    np.testing.assert_allclose(one.quantile(LEVELS)[:, :, 0], values)
    grid = np.linspace(-40, 60, 200_001)
    density = np.exp([one.log_prob([[y]])[0, 0] for y in grid[::40]])
    step = 40 * (grid[1] - grid[0])
    assert density.sum() * step == pytest.approx(1, abs=1e-3)
    assert (density * grid[::40]).sum() * step == pytest.approx(one.mean()[0, 0], abs=2e-3)
    below = [one.cdf([[y]])[0, 0] for y in grid[::40]]
    crps = (np.square(below - (grid[::40] >= 1.5)) * step).sum()
    assert one.crps([[1.5]])[0, 0] == pytest.approx(crps, abs=0.005)


def test_samples_keep_their_mean_and_sd_and_come_near_the_density():
    drawn = stats.norm.rvs(MEAN[:, None], SD[:, None], size=(6, 4000), random_state=1)
    theirs = given.samples(drawn)
    np.testing.assert_allclose(theirs.mean()[:, 0], drawn.mean(1))
    np.testing.assert_allclose(theirs.variance()[:, 0], drawn.var(1))
    exact = given.gaussian(MEAN, SD).log_prob(Y[:, None])
    np.testing.assert_allclose(theirs.log_prob(Y[:, None]), exact, atol=0.1)


@pytest.mark.parametrize("count", [5, 300])
def test_samples_have_the_bandwidth_of_silverman(count):
    """h of kernels that are shrunk: variance h^2 / (1 + h^2) sd^2 around (y + h^2 mean) / (1 + h^2) in squares."""
    drawn = stats.norm.rvs(size=(1, count), random_state=2)
    h = stats.gaussian_kde(drawn, bw_method="silverman").factor
    found = given.samples(drawn)
    np.testing.assert_allclose(found.component_variance[:, 0, 0], drawn.var() * h**2 / (1 + h**2))
    np.testing.assert_allclose(found.component_mean[:, 0, 0] - drawn.mean(), (drawn[0] - drawn.mean()) / np.hypot(1, h))


def test_what_is_no_distribution_is_refused():
    with pytest.raises(ValueError, match="must increase with their level"):
        given.Quantiles([0.1, 0.9], [[1.0], [0.5]])
    with pytest.raises(ValueError, match="at least two"):
        given.Quantiles([0.5], [[1.0]])
    with pytest.raises(ValueError, match="all the same"):
        given.samples(np.ones((2, 5)))
