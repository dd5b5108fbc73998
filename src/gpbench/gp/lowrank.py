"""Gaussian conditioning where a covariance has low rank plus a diagonal, in whitened inducing variables.

u = f(Z) = L v with L L^T = K_ZZ and v ~ N(0, I); a row enters through its column a_n = L^-1 k(Z, x_n) of A,
so that Q = A^T A = K_XZ K_ZZ^-1 K_ZX. Everything costs O(N M^2). P targets share the covariance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpbench.gp import linalg, sparse
from gpbench.gp.kernels import Kernel


class Posterior(NamedTuple):
    """q(v_p) = N(B^-1 b_p, B^-1) with B = I + Phi = U U^T, a mean a target."""

    upper: Tensor  # U [R, M, M], upper triangular
    root_mean: Tensor  # U^-1 b [R, M, P]


def posterior(phi: Tensor, b: Tensor, name: str) -> Posterior:
    """q(v_p) proportional to N(v_p; 0, I) exp(-1/2 v_p^T Phi v_p + b_p^T v_p); phi `[R, M, M]`, b `[R, M, P]`.

    name: of the layer, in the events of `linalg.cholesky`."""
    eye = torch.eye(phi.shape[-1], dtype=phi.dtype, device=phi.device)
    # reversed, the lower factor is upper
    upper = linalg.cholesky((eye + phi).flip(-2, -1), name).flip(-2, -1)
    return Posterior(upper, torch.linalg.solve_triangular(upper, b, upper=True))


def log_normaliser(phi: Tensor, b: Tensor, name: str) -> Tensor:
    """Logarithm of what `posterior` normalises by, summed over targets, in nats `[R]`.

    sum_p log int N(v; 0, I) exp(-1/2 v^T Phi v + b_p^T v) dv = 1/2 sum_p b_p^T B^-1 b_p - P/2 log |B|."""
    eye = torch.eye(phi.shape[-1], dtype=phi.dtype, device=phi.device)
    quadratic, log_det = linalg.quadratic_and_log_det(eye + phi, b, name)
    return 0.5 * (quadratic - b.shape[-1] * log_det)


def mean_and_chol(q: Posterior) -> tuple[Tensor, Tensor]:
    """Means B^-1 b `[R, M, P]` and the factor U^-T `[R, P, M, M]`, lower triangular, of the covariances."""
    eye = torch.eye(q.upper.shape[-1], dtype=q.upper.dtype, device=q.upper.device)
    chol = torch.linalg.solve_triangular(q.upper.mT, eye, upper=False)
    return chol @ q.root_mean, chol[:, None].expand(-1, q.root_mean.shape[-1], -1, -1)


def condition(a: Tensor, y: Tensor, weight: Tensor, name: str) -> Posterior:
    """q(v | y) for y_n ~ N(a_n^T v, 1 / weight_n), 0 in padding; a `[R, M, N]`, y `[R, N, P]`, weight `[R, N]`."""
    phi, b = _Gram.apply(a, y, weight)
    return posterior(phi, b, name)


class _Gram(torch.autograd.Function):
    """A diag(w) A^T `[R, M, M]` and A diag(w) y `[R, M, P]`, with the gradients of A and w by hand.

    With G that of the first, taken as symmetric, and g that of the second, H = 2 G A and h = g y^T:
    dA = (H + h) diag(w),    dw_n = a_n^T (1/2 H + h)_n."""

    @staticmethod
    def forward(ctx, a: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a, y, weight)
        scaled = a * weight[:, None]
        return scaled @ a.mT, scaled @ y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor, grad_y: Tensor) -> tuple[Tensor, None, Tensor]:
        a, y, weight = ctx.saved_tensors
        half = torch.bmm(0.5 * (grad + grad.mT), a)  # 1/2 H
        along = torch.baddbmm(half, grad_y, y.mT)
        grad_weight = (a * along).sum(1)
        return along.add_(half).mul_(weight[:, None]), None, grad_weight


def log_density(a: Tensor, y: Tensor, variance: Tensor, mask: Tensor, name: str) -> Tensor:
    """sum_p log N(y_p; 0, A^T A + diag(variance)) in nats `[R]`, shapes as in `condition`.

    variance `[R, N]`; mask `[R, N]` is 0 in padding rows."""
    weight = mask / variance
    rows = y.shape[-1] * mask * torch.log(2 * math.pi * variance) + y.square().sum(-1) * weight
    phi, b = _Gram.apply(a, y, weight)
    return log_normaliser(phi, b, name) - 0.5 * rows.sum(-1)


def bound(a: Tensor, y: Tensor, unexplained: Tensor, noise_variance: Tensor, mask: Tensor, name: str) -> Tensor:
    """Lower bound of the log evidence at the best q(v) (titsias2009, eq. 9), in nats `[R]`, summed over targets:

    log N(y; 0, Q + s I) - tr(K - Q) / (2 s);  unexplained `[R, N]`: diagonal of K - Q, noise_variance `[R]`: s, other
    shapes as in `log_density`."""
    variance = noise_variance[:, None].expand_as(unexplained)
    penalty = 0.5 * y.shape[-1] * (mask * unexplained).sum(-1) / noise_variance  # tr(K - Q) / (2 s)
    return log_density(a, y, variance, mask, name) - penalty


def marginals(q: Posterior, a: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Mean a^T B^-1 b and variance k(x, x) - ||a||^2 + ||U^-1 a||^2 of f `[R, T, P]`, in the columns of A; the diagonal
    of k `[R, T or 1]`."""
    root = torch.linalg.solve_triangular(q.upper, a, upper=True)
    mean = root.mT @ q.root_mean
    variance = (diagonal - a.square().sum(1) + root.square().sum(1)).clamp_min(0.0)
    return mean, variance[..., None].expand_as(mean)


def features(x: Tensor, z: Tensor, kernel: Kernel, jitter: float, name: str) -> Tensor:
    """Columns a_n = L^-1 k(Z, x_n) `[R, M, N]`, L L^T = K_ZZ + jitter * scale * I; x `[R, N, D]`, z `[R, M, D]`."""
    return sparse.project(x, z, kernel.factor(z, jitter, name), kernel)
