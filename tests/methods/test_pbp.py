"""Probabilistic backpropagation: moments by Monte Carlo, gradients by differences, updates by exact posteriors."""

import numpy as np
import pytest
from scipy import special, stats

from gpbench.methods import pbp
from gpbench.methods.pbp import Layer

DRAWS = 400_000


def network(*widths: int, seed: int = 0) -> list[Layer]:
    rng = np.random.default_rng(seed)
    shapes = [(outputs, inputs + 1) for inputs, outputs in zip(widths, widths[1:], strict=False)]
    return [Layer(rng.normal(size=shape), rng.gamma(2.0, 0.3, size=shape)) for shape in shapes]


def assert_moments(draws: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> None:
    """Of draws `[S, n]`, within five standard errors."""
    error = draws.std(0) / np.sqrt(len(draws))
    np.testing.assert_array_less(np.abs(draws.mean(0) - mean), 5 * error + 1e-12)
    squares = (draws - draws.mean(0)) ** 2
    error = squares.std(0) / np.sqrt(len(draws))
    np.testing.assert_array_less(np.abs(squares.mean(0) - variance), 5 * error + 1e-12)


def test_a_weight_whose_variance_would_not_be_positive_stays_as_it_is():
    """After a row 50 away the update of some variances is negative; their means do not move either."""
    before = network(2, 3, 1)
    after, _ = pbp.include(before, (6.0, 6.0), np.array([1.0, -2.0]), np.array([50.0]))
    stays = [new.variance == old.variance for new, old in zip(after, before, strict=True)]
    assert sum(part.sum() for part in stays) == 12
    for new, old, part in zip(after, before, stays, strict=True):
        assert (new.variance > 0).all()
        np.testing.assert_array_equal(new.mean[part], old.mean[part])
        assert (new.mean[~part] != old.mean[~part]).all()


def test_a_gamma_without_a_mean_is_not_taken_over():
    """Z_2 Z / Z_1^2 = 2 at a = b = 6 would give 1/a = 2 7/6 - 1: then b / (a - 1) is no variance."""
    assert pbp.matched(6.0, 6.0, 0.0, 0.0, np.log(2)) == (6.0, 6.0)
    # 1/a = 1.5 7/6 - 1 and 1/b = 1.5 7/6 - 1
    assert pbp.matched(6.0, 6.0, 0.0, 0.0, np.log(1.5)) == pytest.approx((4 / 3, 4 / 3))


def test_moments_of_a_rectified_normal():
    mean, variance = np.array([-3.0, -0.5, 0.0, 0.7, 4.0]), np.array([2.0, 0.3, 1.0, 5.0, 0.1])
    draws = mean + np.sqrt(variance) * np.random.default_rng(0).normal(size=(DRAWS, 5))
    assert_moments(np.maximum(draws, 0), *pbp.relu(mean, variance))


@pytest.mark.parametrize("t", [-40.0, -20.0, 20.0, 1e6])
def test_moments_of_a_rectified_normal_far_from_zero(t):
    """All or nothing of it is left, without cancellation: N(t, 1), or a mean and variance that vanish."""
    (mean,), (variance,) = pbp.relu(np.array([t]), np.array([1.0]))
    if t > 0:
        assert mean == pytest.approx(t, rel=1e-12)
        assert variance == pytest.approx(1, rel=1e-12)
    else:  # of exp(-t^2/2), times the leading terms 1/t^2 and 2/|t|^3 of the expansion over sqrt(2 pi)
        tail = np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
        assert mean == pytest.approx(tail / t**2, rel=0.02, abs=1e-300)
        assert variance == pytest.approx(2 * tail / abs(t) ** 3, rel=0.04, abs=1e-300)


def test_moments_of_a_linear_layer():
    """Of W [z, 1] / sqrt(n) with W and z drawn."""
    (layer,), rng = network(3, 2), np.random.default_rng(1)
    mean, variance = np.array([0.4, -1.0, 2.0]), np.array([0.5, 0.1, 1.5])
    z = mean + np.sqrt(variance) * rng.normal(size=(DRAWS, 3))
    z = np.concatenate([z, np.ones((DRAWS, 1))], 1)
    w = layer.mean + np.sqrt(layer.variance) * rng.normal(size=(DRAWS, 2, 4))
    assert_moments(np.einsum("sij,sj->si", w, z) / 2, *pbp.linear(layer, *pbp.with_bias(mean, variance)))


def test_moments_of_a_network_are_those_of_drawn_weights():
    """Hidden units of one hidden layer are independent given x, so that the moments of f are exact."""
    layers, rng, x = network(2, 4, 1), np.random.default_rng(2), np.array([0.3, -1.2])
    w1, w2 = (part.mean + np.sqrt(part.variance) * rng.normal(size=(DRAWS, *part.mean.shape)) for part in layers)
    hidden = np.maximum(w1 @ np.append(x, 1.0) / np.sqrt(3), 0)
    f = np.einsum("sij,sj->si", w2, np.concatenate([hidden, np.ones((DRAWS, 1))], 1)) / np.sqrt(5)
    assert_moments(f, *pbp.forward(layers, x)[-1][1])


@pytest.mark.parametrize("widths", [(2, 3, 1), (2, 3, 4, 2)])
def test_gradients_agree_with_finite_differences(widths):
    layers, rng = network(*widths), np.random.default_rng(3)
    x, to_mean, to_variance = rng.normal(size=2), rng.normal(size=widths[-1]), rng.normal(size=widths[-1])

    def value() -> float:
        mean, variance = pbp.forward(layers, x)[-1][1]
        return to_mean @ mean + to_variance @ variance

    found = pbp.gradients(layers, pbp.forward(layers, x), to_mean, to_variance)
    for layer, pair in zip(layers, found, strict=True):
        for values, gradient in zip(layer, pair, strict=True):
            for place in np.ndindex(values.shape):
                kept = values[place]
                values[place] = kept + 1e-6
                above = value()
                values[place] = kept - 1e-6
                difference = (above - value()) / 2e-6
                values[place] = kept
                assert gradient[place] == pytest.approx(difference, rel=1e-6, abs=1e-8)


def test_a_row_of_a_linear_model_gives_the_exact_posterior_of_every_weight():
    """Noise known (a, b -> infinity): w | y of f = w^T [x, 1] / sqrt(n) is Gaussian."""
    layers, x, y, noise = network(3, 1), np.array([0.5, -1.0, 2.0]), np.array([1.7]), 0.4
    (moved,), (a, b) = pbp.include(layers, (1e9, 1e9 * noise), x, y)
    feature, prior = np.append(x, 1.0) / 2, layers[0].variance[0]
    gain = prior * feature / (feature**2 @ prior + noise)
    np.testing.assert_allclose(moved.mean[0], layers[0].mean[0] + gain * (y - feature @ layers[0].mean[0]), rtol=1e-6)
    np.testing.assert_allclose(moved.variance[0], prior - gain * feature * prior, rtol=1e-6)
    assert b / (a - 1) == pytest.approx(noise, rel=1e-6)


def test_gamma_has_the_moments_of_the_exact_posterior():
    """N(g; 0, 1/gamma) Gamma(gamma; a, b) is Gamma(a + 1/2, b + g^2/2), with Z(a, b) known."""
    a, b, g = 3.0, 2.0, 1.3
    log_z = [
        s * np.log(b) + special.gammaln(s + 0.5) - special.gammaln(s) - (s + 0.5) * np.log(b + g**2 / 2)
        for s in (a, a + 1, a + 2)
    ]
    assert pbp.matched(a, b, *log_z) == pytest.approx((a + 0.5, b + g**2 / 2))


def moments_after(mean: float, variance: float, gap: float, a: float, b: float) -> tuple[float, float]:
    """Gamma (a, b) of a precision with the first two moments after N(gap; mean, variance + 1 / precision), the latter
    a Student's t that has b / (a - 1) for its variance, as hernandezlobato2015 have it."""
    z, z1, z2 = (stats.norm(mean, np.sqrt(variance + b / (a + k - 1))).pdf(gap) for k in range(3))
    first, second = z1 / z * a / b, z2 / z * a * (a + 1) / b**2
    rate = first / (second - first**2)
    return first * rate, rate


def test_noise_and_prior_move_to_the_moments_after_a_factor():
    layers, x, y = network(2, 1), np.array([0.5, -1.0]), np.array([1.3])
    (mean,), (variance,) = pbp.forward(layers, x)[-1][1]
    _, noise = pbp.include(layers, (3.0, 2.0), x, y)
    assert noise == pytest.approx(moments_after(mean, variance, y[0], 3.0, 2.0))
    prior = pbp.Prior(layers)
    m, v, factor = 0.9, 0.2, np.array([0.4, 1.5, 0.0, 0.0])  # of the weight alone, so that lambda has no cavity
    prior.refined(m, v, factor)
    cavity = 1 / (1 / v - 1.5)
    assert (prior.a, prior.b) == pytest.approx(moments_after(cavity * (m / v - 0.4), cavity, 0.0, 6.0, 6.0))


def test_moments_that_no_gamma_has_leave_it_as_it_is():
    assert pbp.matched(3.0, 2.0, 0.0, 5.0, 0.0) == (3.0, 2.0)


def test_a_row_far_from_all_others_leaves_the_noise_as_it_is():
    """log Z = -g^2 / (2 b) (s - 1) of a gap g far beyond the noise is beyond the range of an exponential."""
    a, b, g = 6.0, 6.0, 1e3
    log_z = [-0.5 * g**2 * (s - 1) / b for s in (a, a + 1, a + 2)]
    assert pbp.matched(a, b, *log_z[::-1]) == (a, b)
    layers = [Layer(np.zeros((1, 2)), np.ones((1, 2)))]
    moved, noise = pbp.include(layers, (a, b), np.ones(1), np.full(1, g))
    assert noise == (a, b)
    assert np.isfinite(moved[0].mean).all()


def test_a_refined_factor_is_the_prior():
    """lambda known (a, b -> infinity): q of a weight becomes its cavity times N(0, 1 / lambda)."""
    (layer,), precision = network(1, 1), 4.0
    prior = pbp.Prior([layer])
    prior.a, prior.b = 1e9, 1e9 / precision
    prior.factors = [np.stack([0 * layer.mean, 0.3 / layer.variance, 0 * layer.mean, 0 * layer.mean])]
    cavity = 0.7 / layer.variance
    expected_mean, expected = layer.mean / layer.variance / (cavity + precision), 1 / (cavity + precision)
    prior.refine([layer])
    np.testing.assert_allclose(layer.mean, expected_mean, rtol=1e-6)
    np.testing.assert_allclose(layer.variance, expected, rtol=1e-6)
    # what is left without the factor is the cavity, so that another round changes nothing
    np.testing.assert_allclose(1 / layer.variance - prior.factors[0][1], cavity, rtol=1e-6)
    before = layer.mean.copy(), layer.variance.copy()
    prior.refine([layer])
    np.testing.assert_allclose(layer.mean, before[0], rtol=1e-6)
    np.testing.assert_allclose(layer.variance, before[1], rtol=1e-6)


def test_weights_that_the_data_have_not_touched_are_left_alone():
    """Their cavity is flat."""
    layer = Layer(np.array([[0.5, -0.2]]), np.full((1, 2), 1.2))
    prior = pbp.Prior([layer])
    prior.refine([layer])
    np.testing.assert_array_equal(layer.mean, [[0.5, -0.2]])
    assert (prior.a, prior.b) == (6.0, 6.0)


def test_a_network_starts_at_the_mean_variance_of_its_prior_and_predicts_with_that_of_its_noise():
    method = pbp.Method(pbp.Hyperparameters(), "regression")
    layer = method.start(99, 200, np.random.default_rng(0))
    np.testing.assert_allclose(layer.variance, stats.invgamma(6, scale=6).mean())
    assert layer.mean.std() == pytest.approx(0.1, rel=0.02)
    nothing = [np.zeros((3, 3)), np.zeros((1, 4))]
    little = [np.full_like(part, 1e-12) for part in nothing]
    predictive = method.predict({"means": nothing, "variances": little, "noise": (3.0, 2.0)}, np.ones((2, 2)))
    np.testing.assert_allclose(predictive.variance(), stats.invgamma(3, scale=2).mean(), rtol=1e-9)


def test_a_pass_takes_every_row_in_a_new_order_and_ends_with_the_prior(monkeypatch):
    taken, include, refine = [], pbp.include, pbp.Prior.refine
    monkeypatch.setattr(pbp, "include", lambda *of: taken.append(float(of[2][0])) or include(*of))
    monkeypatch.setattr(pbp.Prior, "refine", lambda *of: taken.append(None) or refine(*of))
    method = pbp.Method(pbp.Hyperparameters(units=2, passes=3), "regression")
    rows = np.arange(8.0)[:, None] / 8
    method.fit(rows, rows, np.random.default_rng(0))
    passes = [tuple(taken[first : first + 9]) for first in (0, 9, 18)]
    assert [one[-1] for one in passes] == [None] * 3
    assert all(sorted(one[:-1]) == rows[:, 0].tolist() for one in passes)
    assert len({*passes, (*rows[:, 0], None)}) == 4


@pytest.mark.slow
def test_it_learns_a_function_and_its_noise():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(500, 1))
    f = np.maximum(x, 0) - 0.5 * np.maximum(-x - 1, 0)
    y = np.concatenate([f + 0.2 * rng.normal(size=x.shape), -f + 0.2 * rng.normal(size=x.shape)], 1)
    method = pbp.Method(pbp.Hyperparameters(passes=20), "regression", num_targets=2)
    model = method.fit(x[:400], y[:400], np.random.default_rng(1))
    predictive = method.predict(model, x[400:])
    assert np.sqrt(((predictive.mean() - y[400:]) ** 2).mean()) < 0.25
    a, b = model["noise"]
    assert 0.15 < np.sqrt(b / (a - 1)) < 0.25
    assert 0.8 < ((predictive.cdf(y[400:]) > 0.05) & (predictive.cdf(y[400:]) < 0.95)).mean() < 0.97
    assert (predictive.variance() > b / (a - 1)).all()
