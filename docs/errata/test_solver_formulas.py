"""Formulas that papers on linear solvers and on STRIDE misprint: as printed they fail, as mended they hold.

No method here uses these formulas yet, so two forms are told apart by dense algebra (docs/errata.md).
"""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from gpbench import config

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(30, 2))
TARGETS = np.sin(INPUTS[:, 0])
NOISE = 0.1
DISTANCES = ((INPUTS[:, None] - INPUTS[None]) ** 2).sum(-1)


def kernel(tau=1.0):
    return np.exp(-tau * DISTANCES)


def slope(function, at, step=1e-5):
    """Central difference."""
    return (function(at + step) - function(at - step)) / (2 * step)


def test_the_gradient_of_the_evidence_has_a_half_before_both_terms():
    def evidence(tau):
        covariance = kernel(tau) + NOISE * np.eye(30)
        return -0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * TARGETS @ np.linalg.solve(covariance, TARGETS)

    inverse, derivative = np.linalg.inv(kernel() + NOISE * np.eye(30)), -DISTANCES * kernel()
    trace, square = np.trace(inverse @ derivative), TARGETS @ inverse @ derivative @ inverse @ TARGETS
    truth = slope(evidence, 1.0)
    assert -0.5 * trace + 0.5 * square == pytest.approx(truth)
    assert abs(-0.5 * trace + square - truth) > 0.1


def test_a_kernel_that_grows_with_distance_is_no_covariance():
    assert np.linalg.eigvalsh(kernel()).min() > -1e-9
    assert np.linalg.eigvalsh(kernel(-1.0)).min() < -1


def pcg(slip="", steps=40):
    """Preconditioned conjugate gradients after so many steps, with one line as cutajar2016 prints it."""
    a = kernel() + NOISE * np.eye(30)
    inverse = np.diag(1 / np.linspace(1, 5, 30))
    x, r = np.zeros(30), TARGETS.copy()
    z = inverse @ r
    p = z.copy()
    for _ in range(steps):
        alpha = (r @ z) / (r @ a @ z if slip == "alpha" else p @ a @ p)
        x = x + alpha * p
        new = r + alpha * (a @ p) if slip == "residual" else r - alpha * (a @ p)
        new_z = inverse @ new
        beta = (new @ new) / (r @ r) if slip == "beta" else (new @ new_z) / (r @ z)
        p = p + beta * p if slip == "direction" else new_z + beta * p
        r, z = new, new_z
        if not 1e-12 < np.linalg.norm(r) < 1e12:
            break
    return np.linalg.norm(x - np.linalg.solve(a, TARGETS))


def test_preconditioned_conjugate_gradients_solve_the_system_only_as_mended():
    assert pcg() < 1e-9
    for slip in ("alpha", "residual", "beta", "direction"):
        assert pcg(slip) > 1e-4, slip


def woodbury(factor, core):
    """lambda^-1 (I - factor core^-1 factor')."""
    return (np.eye(30) - factor @ np.linalg.solve(core, factor.T)) / NOISE


def test_the_nystrom_preconditioner_has_lambda_before_k_uu():
    cross = kernel()[:, :6]
    inner = kernel()[:6, :6]
    truth = np.linalg.inv(cross @ np.linalg.solve(inner, cross.T) + NOISE * np.eye(30))
    np.testing.assert_allclose(woodbury(cross, NOISE * inner + cross.T @ cross), truth, atol=1e-8)
    assert np.abs(woodbury(cross, inner + cross.T @ cross) - truth).max() > 0.1


def test_the_spectral_preconditioner_has_lambda_before_the_identity():
    angles = INPUTS @ np.random.default_rng(1).normal(size=(2, 4))
    features = np.hstack([np.cos(angles), np.sin(angles)]) / 2
    truth = np.linalg.inv(features @ features.T + NOISE * np.eye(30))
    np.testing.assert_allclose(woodbury(features, NOISE * np.eye(8) + features.T @ features), truth, atol=1e-8)
    assert np.abs(woodbury(features, np.eye(8) + features.T @ features) - truth).max() > 0.1


def test_spectral_frequencies_have_one_lengthscale_an_input():
    """E cos(2 pi s'(x - x')) over s ~ N(0, diag(1 / l_r^2) / 4 pi^2), r = 1..d, is the kernel."""
    lengthscales, difference = np.array([0.7, 1.5]), INPUTS[0] - INPUTS[1]
    frequencies = np.random.default_rng(2).normal(size=(400_000, 2)) / (2 * np.pi * lengthscales)
    values = np.cos(2 * np.pi * frequencies @ difference)
    truth = np.exp(-0.5 * ((difference / lengthscales) ** 2).sum())
    assert values.mean() == pytest.approx(truth, abs=4 * values.std() / np.sqrt(len(values)))


def test_one_block_of_block_jacobi_is_the_matrix_itself():
    covariance = kernel() + NOISE * np.eye(30)
    np.testing.assert_allclose(np.linalg.solve(covariance, covariance), np.eye(30), atol=1e-8)
    twice = np.linalg.solve(covariance + NOISE * np.eye(30), covariance)
    assert np.abs(twice - np.eye(30)).max() > 0.1


def test_the_laplace_evidence_takes_minus_the_third_derivative():
    """d/d tau of -1/2 log|B| - 1/2 f'K^-1 f + log p(y | f) at the mode, probit."""
    labels = np.where(TARGETS > 0, 1.0, -1.0)

    def derivatives(f):
        z = labels * f
        rho = np.exp(norm.logpdf(z) - norm.logcdf(z))
        return labels * rho, rho * (z + rho), labels * rho * ((z + rho) * (z + 2 * rho) - 1)

    def mode(tau):
        k, f = kernel(tau), np.zeros(30)
        for _ in range(30):
            gradient, w, _ = derivatives(f)
            root = np.sqrt(w)
            b = np.eye(30) + root[:, None] * k * root
            vector = w * f + gradient
            a = vector - root * np.linalg.solve(b, root * (k @ vector))
            f = k @ a
        return k, f, a, b

    def evidence(tau):
        _, f, a, b = mode(tau)
        return -0.5 * np.linalg.slogdet(b)[1] - 0.5 * a @ f + norm.logcdf(labels * f).sum()

    k, f, a, b = mode(1.0)
    gradient, w, third = derivatives(f)
    change, root = -DISTANCES * k, np.sqrt(w)
    weights = root[:, None] * np.linalg.inv(b) * root
    explicit = -0.5 * np.trace(weights @ change) + 0.5 * a @ change @ a
    covariance = np.diag(k - k @ weights @ k)
    through_mode = np.linalg.solve(np.eye(30) + k * w, change @ gradient)
    truth = slope(evidence, 1.0)
    assert explicit - 0.5 * (covariance * -third) @ through_mode == pytest.approx(truth, rel=1e-6)
    assert abs(explicit - 0.5 * (covariance * third) @ through_mode - truth) > 0.01


def test_concrete_has_1030_rows():
    assert config.compose(ROOT / "conf", "dataset", "concrete").rows == 1030


@pytest.mark.parametrize("seed", range(5))
def test_the_printed_convolution_kernel_is_no_covariance(seed):
    """sigma^2 = 1, local lengthscales sqrt(h) of random fields at 60 points of the plane."""
    rng = np.random.default_rng(seed)
    x, h = rng.uniform(size=(60, 2)), rng.uniform(0.05, 0.5, 60) ** 2
    total = h[:, None] + h[None]
    prefactor = 2 * np.sqrt(h[:, None] * h[None]) / total
    square = ((x[:, None] - x[None]) ** 2).sum(-1)
    mended = prefactor * np.exp(-square / total)
    printed = prefactor * np.exp(-0.5 * (2 * np.sqrt(square) / total) ** 2)
    assert np.linalg.eigvalsh(mended).min() > -1e-10
    assert np.linalg.eigvalsh(printed).min() < -1e-3
