"""Formulas that papers misprint: each as printed fails, and as mended holds, on numbers (docs/errata.md).

Nothing of gpbench is used: what is told apart is two formulas, by dense algebra, quadrature or finite differences.
"""

import itertools

import numpy as np
import pytest
from scipy.stats import gamma, lognorm, norm

# N(0, 1) by quadrature, exact for polynomials of degree 79
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
X = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
Y = np.sin(2 * X)
INPUTS = np.random.default_rng(0).normal(size=(12, 2))


def rbf(a, b, lengthscale=0.6, variance=1.3):
    """Kernel of rows `[n, d]`, or of numbers `[n]`."""
    a, b = np.reshape(a, (len(a), -1)), np.reshape(b, (len(b), -1))
    return variance * np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1) / lengthscale**2)


def slope(function, at, step=1e-5):
    """Central difference."""
    return (function(at + step) - function(at - step)) / (2 * step)


# ashman2020 and salimbeni2017


def test_a_bound_without_the_logarithm_is_no_bound():
    """q the prior, so that no KL is left: the toy's log evidence lies above E log p(y | f) and below E p(y | f)."""
    covariance = rbf(X, X) + 0.05 * np.eye(5)
    evidence = -0.5 * (Y @ np.linalg.solve(covariance, Y) + np.linalg.slogdet(2 * np.pi * covariance)[1])
    log_density = norm.logpdf(Y[:, None], np.sqrt(1.3) * NODES, np.sqrt(0.05))
    assert (log_density @ WEIGHTS).sum() < evidence < (np.exp(log_density) @ WEIGHTS).sum()


def test_the_mean_map_is_the_transpose_of_right_singular_vectors():
    x = np.random.default_rng(1).normal(size=(9, 4))
    left, values, right = np.linalg.svd(x)
    np.testing.assert_allclose(np.linalg.norm(x @ right[:2].T, axis=0), values[:2])
    for printed in (right[:2], left[:, :2]):
        with pytest.raises(ValueError, match="matmul"):
            x @ printed


def robustmax(mean, variance, inside=False, root=True, epsilon=0.1):
    """E p(y = 0 | f) of two classes by 200 nodes; `inside` or not `root`: as ashman2020 prints equation 3.15."""
    x, w = np.polynomial.hermite.hermgauss(200)
    divisor = np.sqrt(variance[1]) if root else variance[1]
    below = norm.cdf((mean[0] + np.sqrt(2 * variance[0]) * x - mean[1]) / divisor)
    largest = w @ (below + epsilon if inside else below) / np.sqrt(np.pi)
    return (1 - 2 * epsilon) * largest + (0 if inside else epsilon)


def test_robust_max_adds_epsilon_once_and_divides_by_standard_deviations():
    mean, variance = np.array([0.3, -0.4]), np.array([0.5, 2.0])
    largest = norm.cdf((mean[0] - mean[1]) / np.sqrt(variance.sum()))
    truth = 0.9 * largest + 0.1 * (1 - largest)
    assert robustmax(mean, variance) == pytest.approx(truth, abs=1e-6)
    assert abs(robustmax(mean, variance, inside=True) - truth) > 0.01
    assert abs(robustmax(mean, variance, root=False) - truth) > 0.01


def test_the_gradients_of_robust_max_have_no_second_minus_sign():
    mean, variance = np.array([0.3, -0.4]), np.array([0.5, 2.0])
    own, other = (slope(lambda s, e=e: robustmax(mean + s * e, variance), 0.0) for e in np.eye(2))
    density = norm.pdf((mean[0] - mean[1]) / np.sqrt(variance.sum())) / np.sqrt(variance.sum())
    assert own == pytest.approx(0.8 * density, rel=1e-5)
    assert own == pytest.approx(-other, rel=1e-5)


def test_the_variance_under_a_linear_mean_has_twice_psi4():
    """E (w x + k(x)'a)^2 over x ~ N(0.4, 0.3), whose cross term is twice E k w x a."""
    x, w, a = 0.4 + np.sqrt(0.3) * NODES, 0.7, np.array([0.9, -0.5])
    k = rbf(x, np.array([0.0, 1.0]), 1.0, 1.0)
    psi2, psi3, psi4 = k.T @ (WEIGHTS[:, None] * k), WEIGHTS @ (w * x) ** 2, k.T @ (WEIGHTS * w * x)
    truth = WEIGHTS @ (w * x + k @ a) ** 2
    assert psi3 + 2 * psi4 @ a + a @ psi2 @ a == pytest.approx(truth)
    assert abs(psi3 + psi4 @ a + a @ psi2 @ a - truth) > 0.01


def test_psi3_is_not_a_sum_over_inputs():
    """E (w'x)^2 of x ~ N(mu, diag s); the program of ashman2020 sums w_q^2 (s_q + mu_q^2)."""
    mean, variance, w = np.array([0.3, -0.4]), np.array([0.2, 0.5]), np.array([0.5, -1.0])
    pairs = itertools.product(range(40), repeat=2)
    truth = sum(WEIGHTS[i] * WEIGHTS[j] * (w @ (mean + np.sqrt(variance) * NODES[[i, j]])) ** 2 for i, j in pairs)
    assert w**2 @ variance + (w @ mean) ** 2 == pytest.approx(truth) == 0.8525
    assert abs(w**2 @ (variance + mean**2) - truth) > 0.1


# rossi2021


def test_lognormal_priors_have_medians_of_one_and_a_twentieth():
    """log x ~ N(log m, 1), as sampled: m is the median, the mean is e^(1/2) m."""
    for median in (1.0, 0.05):
        prior = lognorm(s=1.0, scale=median)
        assert prior.median() == pytest.approx(median)
        assert prior.mean() == pytest.approx(np.exp(0.5) * median)


def test_one_sample_inside_a_logarithm_is_biased():
    """p(y | f) over a hidden value with two equal chances: the mean over one sample each is below log E p."""
    density = norm.pdf(1.0, [0.9, -0.5], 0.3)
    assert np.log(density).mean() < np.log(density.mean()) - 1


def test_the_expected_square_has_the_variance_of_u():
    """E (y - a'u)^2 over u ~ N(m, S) in FITC-SVGP; without a'S a it is that of u = m."""
    y, a, m, root = 0.7, np.array([0.4, -0.3]), np.array([0.2, 0.5]), np.array([[0.6, 0.0], [0.3, 0.4]])
    pairs = itertools.product(range(40), repeat=2)
    truth = sum(WEIGHTS[i] * WEIGHTS[j] * (y - a @ (m + root @ NODES[[i, j]])) ** 2 for i, j in pairs)
    assert (y - a @ m) ** 2 + a @ root @ root.T @ a == pytest.approx(truth)
    assert abs((y - a @ m) ** 2 - truth) > 0.01


# cutajar2017


def test_the_standard_deviation_multiplies_the_noise():
    beta, mu = 0.5, 0.3
    mended, printed = mu + beta * NODES, mu + beta**2 * NODES
    assert WEIGHTS @ (mended - mu) ** 2 == pytest.approx(beta**2)
    assert WEIGHTS @ (printed - mu) ** 2 == pytest.approx(beta**4)


def test_a_layer_costs_its_outputs_in_the_second_product():
    """Multiplications of Phi W, counted by numpy: rows x features x outputs of the layer, not its inputs."""
    rows, inputs, features, outputs = 5, 3, 8, 7
    report = np.einsum_path("nf,fo->no", np.ones((rows, features)), np.ones((features, outputs)))[1]
    count = float(report.split("Naive FLOP count:")[1].split()[0])
    assert count == pytest.approx(2 * rows * features * outputs, rel=0.1)
    assert count != pytest.approx(2 * rows * features * inputs, rel=0.1)


def test_a_posterior_equal_to_the_prior_would_leave_no_kl():
    """The supplement sets prod q(W) and p(W) side by side as if equal; a posterior that has learned differs."""
    mean, sd = 0.8, 0.3
    log_ratio = norm.logpdf(mean + sd * NODES, mean, sd) - norm.logpdf(mean + sd * NODES)
    assert WEIGHTS @ log_ratio == pytest.approx(0.5 * (sd**2 + mean**2 - 1 - np.log(sd**2)))
    assert WEIGHTS @ log_ratio > 0.5


# hensman2015mcmc


def test_expected_robust_max_of_a_sure_class_is_nearly_nothing():
    epsilon, classes, sure = 1e-3, 10, 1.0
    printed = sure * np.log(epsilon) + (1 - sure) * np.log(epsilon / (classes - 1))
    mended = sure * np.log(1 - epsilon) + (1 - sure) * np.log(epsilon / (classes - 1))
    assert mended == pytest.approx(np.log(0.999))
    assert printed < -6
    assert (1 - epsilon) + (classes - 1) * epsilon / (classes - 1) == pytest.approx(1)
    assert epsilon / classes - 1 < 0, "the printed epsilon/K - 1 is no probability"


# filippone2012, 2013 and 2014


def test_a_longer_lengthscale_has_less_influence():
    k = rbf(np.array([[0.0], [0.0]]), np.array([[0.7]]), np.array([1.0]), 1.0)[0, 0]
    assert rbf([[0.0]], [[0.7]], 5.0, 1.0)[0, 0] > k > rbf([[0.0]], [[0.7]], 0.5, 1.0)[0, 0]


def test_the_second_derivative_of_the_ordinal_likelihood():
    low, high, sd = -0.6, 0.9, 0.5

    def bounds(f):
        return (low - f) / sd, (high - f) / sd

    def log_p(f):
        a, b = bounds(f)
        return np.log(norm.cdf(b) - norm.cdf(a))

    f = 0.4
    a, b = bounds(f)
    mass = norm.cdf(b) - norm.cdf(a)
    first, second = (a * norm.pdf(a) - b * norm.pdf(b)) / mass, ((norm.pdf(a) - norm.pdf(b)) / mass) ** 2
    truth = slope(lambda g: slope(log_p, g, 1e-4), f, 1e-4)
    assert (first - second) / sd**2 == pytest.approx(truth, rel=1e-4)
    assert abs((-first - second) / sd**2 - truth) > 1


def test_an_explicit_root_of_sigma_wants_the_factor_of_the_correlations():
    q, sigma = rbf(X, X, variance=1.0) + 1e-9 * np.eye(5), 1.3
    of_q, of_k = np.linalg.cholesky(q), np.linalg.cholesky(sigma * q)
    np.testing.assert_allclose(sigma * of_q @ of_q.T, sigma * q)
    np.testing.assert_allclose(sigma * of_k @ of_k.T, sigma**2 * q)


def test_a_bracket_that_shrinks_to_zero_ends_where_it_began():
    """Angles up to 0.05 are accepted: shrinking to the refused angle finds them, shrinking to 0 leaves f as it was."""

    def angles(shrink):
        rng, found = np.random.default_rng(0), []
        for _ in range(200):
            angle = rng.uniform(0, 2 * np.pi)
            low, high = angle - 2 * np.pi, angle
            while abs(angle) > 0.05 and high > low:
                low, high = (shrink * angle, high) if angle < 0 else (low, shrink * angle)
                angle = rng.uniform(low, high)
            found.append(angle)
        return np.array(found)

    mended, printed = angles(1.0), angles(0.0)
    assert 0.02 < mended.std() < 0.04
    assert (mended != 0).all()
    assert (printed == 0).mean() > 0.9


def test_the_prior_of_log_weights_enters_by_its_logarithm():
    """e^theta ~ Gam(2, 2): the slope of the log density of theta is 2 - 2 e^theta."""

    def density(theta):
        return gamma.pdf(np.exp(theta), 2, scale=0.5) * np.exp(theta)

    theta = 0.4
    assert slope(lambda t: np.log(density(t)), theta) == pytest.approx(2 - 2 * np.exp(theta))
    assert abs(slope(density, theta) - (2 - 2 * np.exp(theta))) > 0.1


def test_the_metric_of_log_weights_has_the_curvature_of_their_prior():
    """-d2/dtheta2 of log Gam(e^theta; 2, 2) e^theta is 2 e^theta, not nothing."""
    theta = 0.4
    curvature = -slope(lambda t: slope(lambda u: 2 * u - 2 * np.exp(u), t, 1e-4), theta, 1e-4)
    assert curvature == pytest.approx(2 * np.exp(theta), rel=1e-5)


def test_the_covariance_of_predictions_needs_a_transpose():
    k, cross = rbf(INPUTS, INPUTS) + 1e-6 * np.eye(12), rbf(INPUTS[:3] + 0.1, INPUTS)
    mended = rbf(INPUTS[:3] + 0.1, INPUTS[:3] + 0.1) - cross @ np.linalg.solve(k, cross.T)
    assert (np.linalg.eigvalsh(mended) > -1e-9).all()
    with pytest.raises(ValueError, match="matmul"):
        cross @ np.linalg.inv(k) @ cross
