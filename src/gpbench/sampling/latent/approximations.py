"""Gaussian approximations of p(f | y, psi): Laplace's and expectation propagation, of R chains side by side.

Both replace each factor p(y_i | f_i) by exp(-1/2 lambda_i f_i^2 + eta_i f_i) up to a constant, so that f | y, psi is

    q(f) = N(mean, (K^-1 + diag(lambda))^-1),   mean = K w,   w = eta - lambda mean,   K = L L^T:
    f = L nu,   nu ~ N(B^-1 L^T eta, B^-1),   B = I + L^T diag(lambda) L,

in which K is never inverted. Laplace (williams1998, rasmussen2006 algorithm 3.1): lambda is the curvature of
-log p(y | f) at the mode, found by Newton's method from f = 0; a step is halved while it makes things worse. EP
(minka2001, rasmussen2006 algorithm 3.5), of probit factors: each in turn is that for which q has the first two moments
of q without it times p(y_i | f_i). Both stop when |change|^2 < n / 10^4 of f or of the mean (filippone2014), each chain
on its own, so that its result does not depend on the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpbench.errors import UserError
from gpbench.gp import linalg
from gpbench.gp.latent_likelihoods import Probit
from gpbench.gp.linalg import half_log_det, multiply, solve, solve_transposed
from gpbench.sampling.latent.model import Info, Model

TOLERANCE = 1e-4
"""Of the squared change, times n."""
MOST_STEPS, MOST_SWEEPS, MOST_HALVINGS = 50, 20, 30
SLACK = 1e-3
"""Nats that a Newton step may lose; far more than rounding."""
HAZARD_AT_0 = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Gaussian:
    """q(f) of R chains: mean, w = K^-1 mean (weights) and lambda (precision) `[R, n]`.

    whitened `[R, n]`: the mean of nu; root `[R, n, n]`: the factor of B."""

    mean: Tensor
    weights: Tensor
    precision: Tensor
    whitened: Tensor
    root: Tensor

    @property
    def half_log_det(self) -> Tensor:
        """1/2 log |B| `[R]`."""
        return half_log_det(self.root)

    def draw(self, z: Tensor) -> Tensor:
        """nu `[R, m, n]` of standard normals z `[R, m, n]`."""
        return self.whitened[:, None] + torch.linalg.solve_triangular(self.root.mT, z.mT, upper=True).mT

    def coordinates(self, nu: Tensor) -> Tensor:
        """z `[R, n]` of nu `[R, n]`: `draw` backwards."""
        return multiply(self.root.mT, nu - self.whitened)

    def predict(self, chol: Tensor, cross: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance `[R, T]` of f at T more rows; cross `[R, n, T]` covariances, variance `[R, T]` a priori."""
        known = torch.linalg.solve_triangular(chol, cross, upper=False)
        left = torch.linalg.solve_triangular(self.root, known, upper=False)
        mean = (cross.mT @ self.weights[..., None])[..., 0]
        return mean, (variance - known.square().sum(1) + left.square().sum(1)).clamp_min(0.0)

    def outer(self, chol: Tensor) -> Tensor:
        """w w^T - (K + diag(lambda)^-1)^-1 `[R, n, n]`: of EP, d log Z = 1/2 Tr(it dK) (rasmussen2006, eq. 5.27)."""
        half = torch.linalg.solve_triangular(self.root, chol.mT * self.precision[:, None], upper=False)
        outer = self.weights[:, :, None] * self.weights[:, None]
        return outer - torch.diag_embed(self.precision) + half.mT @ half


@dataclass(frozen=True)
class Approximation(Gaussian):
    """q(f) with its log evidence log Z and the number of steps or sweeps `[R]`; counts: operations in all."""

    log_evidence: Tensor
    iterations: Tensor
    counts: Info


def posterior(chol: Tensor, precision: Tensor, linear: Tensor, root: Tensor | None = None) -> Gaussian:
    """q of lambda and eta `[R, n]`; root: the factor of B, if it is known already."""
    if root is None:
        root = whitened_factor(chol, precision, "posterior")
    whitened = solve_transposed(root, solve(root, multiply(chol.mT, linear)))
    mean = multiply(chol, whitened)
    return Gaussian(mean, linear - precision * mean, precision, whitened, root)


def whitened_factor(chol: Tensor, precision: Tensor, name: str) -> Tensor:
    """L_B `[R, n, n]`, L_B L_B^T = B = I + L^T diag(precision) L, which is never near singular."""
    scaled = precision.sqrt()[..., None] * chol
    return linalg.cholesky(_plus_identity(scaled.mT @ scaled), name)


def _factor(covariance: Tensor, precision: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """S `[R, n]`, the square root of lambda, and the factor of I + S K S `[R, n, n]`."""
    root = precision.sqrt()
    return root, linalg.cholesky(_plus_identity(root[:, :, None] * covariance * root[:, None]), name)


def _plus_identity(matrix: Tensor) -> Tensor:
    matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return matrix


def laplace(model: Model, psi: Tensor, chol: Tensor) -> Approximation:
    """Laplace's approximation at psi `[R, P]`, chol the factor of K; one factorisation per Newton step."""
    mean, iterations = _mode(model, psi)
    precision = model.curvature(mean).clamp_min(0.0)
    # eta = lambda f + gradient makes the mean of q one more Newton step, at no cost
    q = posterior(chol, precision, precision * mean + model.gradient(mean))
    evidence = model.log_lik(q.mean) - 0.5 * (q.weights * q.mean).sum(1) - q.half_log_det
    counts: Info = {"cholesky": iterations + 1.0, "product": 1.0, "quadratic": 5.0 * iterations + 4.0}
    return Approximation(**vars(q), log_evidence=evidence, iterations=iterations, counts=counts)


def _mode(model: Model, psi: Tensor) -> tuple[Tensor, Tensor]:
    """The mode f `[R, n]` of log p(y | f) + log N(f; 0, K), and the number of steps `[R]`."""
    covariance, rows = model.covariance(psi), model.weight.sum(1)
    f = weights = torch.zeros_like(model.weight)
    value, iterations = model.log_lik(f), torch.zeros_like(rows)
    active = torch.ones_like(rows, dtype=torch.bool)
    for _ in range(MOST_STEPS):
        step, weights_step = _newton(model, covariance, f, weights)
        iterations = iterations + active
        f, weights, value = _halving(model, (f, weights, value), step, weights_step, active)
        active = active & (step.square().sum(1) >= TOLERANCE * rows)  # not of NaN
        if not bool(active.any()):
            break
    return f, iterations


def _newton(model: Model, covariance: Tensor, f: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The step from f = K weights to the maximum of the parabola there, and that of weights `[R, n]`."""
    curvature = model.curvature(f).clamp_min(0.0)
    root, factor = _factor(covariance, curvature, "laplace")
    linear = curvature * f + model.gradient(f)
    inner = solve_transposed(factor, solve(factor, root * multiply(covariance, linear)))
    new = linear - root * inner
    return multiply(covariance, new) - f, new - weights


def _halving(
    model: Model, start: tuple[Tensor, Tensor, Tensor], step: Tensor, weights_step: Tensor, active: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """f, weights and log density after the largest of the steps 1, 1/2, 1/4, ... that does not lower the density."""
    f, weights, value = start
    size = active.to(f)
    for _ in range(MOST_HALVINGS):
        new_f, new_weights = f + size[:, None] * step, weights + size[:, None] * weights_step
        new_value = model.log_lik(new_f) - 0.5 * (new_f * new_weights).sum(1)
        worse = active & ~(new_value >= value - SLACK) & ~step.isnan().any(1)
        if not bool(worse.any()):
            break
        size = torch.where(worse, 0.5 * size, size)
    return new_f, new_weights, new_value


def ep(model: Model, psi: Tensor, chol: Tensor) -> Approximation:
    """Expectation propagation at psi `[R, P]`, chol the factor of K; four O(n^3) operations a sweep.

    Raises UserError for a likelihood other than probit."""
    if not isinstance(model.likelihood, Probit):
        raise UserError("expectation propagation needs the probit likelihood; choose approximation=laplace")
    covariance, rows = model.covariance(psi), model.weight.sum(1)
    tau = nu = mean = torch.zeros_like(model.weight)
    sigma, iterations = covariance, torch.zeros_like(rows)
    active = torch.ones_like(rows, dtype=torch.bool)
    for _ in range(MOST_SWEEPS):
        updated = _sweep(model, sigma, mean, tau, nu)
        tau, nu = (torch.where(active[:, None], new, old) for new, old in zip(updated, (tau, nu), strict=True))
        before, (sigma, mean) = mean, _moments(covariance, tau, nu)
        iterations = iterations + active
        active = active & ((mean - before).square().sum(1) >= TOLERANCE * rows)  # not of NaN
        if not bool(active.any()):
            break
    q = posterior(chol, tau, nu)
    # products of a sweep: its n updates of rank one together, and V^T V
    counts: Info = {"cholesky": iterations + 1.0, "inverse": iterations, "product": 2.0 * iterations + 1.0}
    counts |= {"quadratic": iterations + 4.0}
    evidence = _log_evidence(model, q, sigma.diagonal(dim1=-2, dim2=-1), nu)
    return Approximation(**vars(q), log_evidence=evidence, iterations=iterations, counts=counts)


def _sweep(model: Model, sigma: Tensor, mean: Tensor, tau: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
    """New sites lambda = tau and eta = nu `[R, n]`, updated one after the other from the covariance and mean of q.

    A site changes sigma by -c s s^T, s its column, and the mean by e s. Sigma is not written to: s is computed from the
    columns before it, and only in the rows of later sites."""
    columns, mean, gains = torch.empty_like(sigma), mean.clone(), torch.empty_like(tau)
    parts = (part.unbind(1) for part in (2 * model.y - 1, model.weight, tau, nu))
    sites = []
    for i, (sign, weight, old, old_linear) in enumerate(zip(*parts, strict=True)):
        before, here = columns[:, :i, i:], sigma[:, i : i + 1, i:]
        along = (gains[:, :i] * before[..., 0])[:, None]
        column = torch.baddbmm(here, along, before, alpha=-1)[:, 0]
        columns[:, i, i:] = column
        variance, m = column[:, 0], mean[:, i]
        total = variance.reciprocal()
        cavity = total - old
        site, linear = _match(sign, weight, cavity, torch.addcmul(-old_linear, m, total) / cavity)
        change, linear_change = site - old, linear - old_linear
        gains[:, i] = gain = change / (1 + change * variance)
        shift = linear_change - gain * torch.addcmul(m, linear_change, variance)
        mean[:, i:].addcmul_(shift[:, None], column)
        sites.append((site, linear))
    new_tau, new_nu = (torch.stack(part, 1) for part in zip(*sites, strict=True))
    return new_tau, new_nu


def _match(sign: Tensor, weight: Tensor, cavity: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """lambda and eta `[R]` with which N(mean, 1 / cavity) has the moments that Phi(sign f) gives it; 0 in padding."""
    more = cavity + 1
    scale = sign * (cavity / more).sqrt()
    z = scale * mean
    hazard = HAZARD_AT_0 * weight / torch.special.erfcx(z * -math.sqrt(0.5))  # phi(z) / Phi(z)
    slope = (hazard * (z + hazard)).clamp(0.0, 1.0)  # removes rounding only
    left = more - slope
    site = slope * cavity / left
    return site, torch.addcmul(mean * site, scale * hazard, more / left)


def _moments(covariance: Tensor, tau: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
    """Covariance `[R, n, n]` and mean `[R, n]` of q."""
    root, factor = _factor(covariance, tau, "ep")
    half = torch.linalg.solve_triangular(factor, root[:, :, None] * covariance, upper=False)
    sigma = torch.baddbmm(covariance, half.mT, half, alpha=-1)
    return sigma, multiply(sigma, nu)


def _log_evidence(model: Model, q: Gaussian, variance: Tensor, linear: Tensor) -> Tensor:
    """log Z of EP `[R]` (rasmussen2006, eq. 3.65); variance, linear: of q and eta `[R, n]`."""
    tau, total = q.precision, 1 / variance
    cavity = total - tau
    cavity_mean = (q.mean * total - linear) / cavity
    z = (2 * model.y - 1) * cavity_mean * (cavity / (1 + cavity)).sqrt()
    sites = torch.special.log_ndtr(z) + 0.5 * torch.log1p(tau / cavity)
    sites = sites + 0.5 * linear * (q.mean - linear * variance)
    sites = sites + 0.5 * cavity_mean * cavity * variance * (tau * cavity_mean - 2 * linear)
    return (model.weight * sites).sum(1) - q.half_log_det
