"""Structured kernel interpolation (KISS-GP, wilson2015): a GP on a grid, brought to the data by cubic interpolation.

    K = W K_UU W^T,  K_UU = K_1 (x) ... (x) K_D  on the G^D points of a regular grid over [0, 1]^D,

with k(a, b) = outputscale * exp(-1/2 sum_d (a_d - b_d)^2 / lengthscale_d^2) and, in every row of W, the 4^D weights of
cubic convolution (keys1981). As weights and kernel are products over inputs, K is the elementwise product of the D
matrices W_d K_d W_d^T: that is how few rows are treated, by Cholesky factors. Many rows take conjugate gradients with
products W (K_UU (W^T v)), and stochastic Lanczos quadrature for the log determinant (gardner2018), by linear_operator.

One replica at a time: inputs z `[N, D]`, targets y `[N, P]`, factors `[D, G, G]`.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from gpytorch.utils.interpolation import Interpolation
from linear_operator import settings
from linear_operator.operators import InterpolatedLinearOperator, KroneckerProductLinearOperator, LinearOperator
from torch import Tensor

from gpbench.gp import linalg

MARGIN = 1.01
"""Cells of the grid beyond the data on either side: the four neighbours of a point always exist, rounding included."""
MOST_ITERATIONS = 1000
QUADRATURE = 100
"""Lanczos steps of the log determinant: where noise is small, linear_operator's 20 bias it by more than probes do."""
PREDICTION_TOLERANCE = 1e-4
"""Of the residual that predictive means are made from: they are solved for once."""


class Accuracy(NamedTuple):
    """cholesky_rows: up to here no approximation; cg_tolerance: of the mean relative residual in training (it ends at
    1e-5 or so); num_probes: of the log determinant; rank: of the inverse covariance in predictive variances."""

    cholesky_rows: int
    cg_tolerance: float
    num_probes: int
    rank: int


class Points(NamedTuple):
    """Inputs as interpolation sees them: the 4 nearest grid points an input and their weights, both `[N, D, 4]`."""

    index: Tensor  # type: ignore[assignment]  # the field hides tuple.index
    weight: Tensor


class Process(NamedTuple):
    """A GP with Gaussian noise at its training inputs."""

    points: Points
    factors: Tensor
    noise_variance: Tensor


def grid(size: int, like: Tensor) -> Tensor:
    """The points of the grid in one dimension `[G]`: [0, 1] and `MARGIN` cells on either side."""
    cell = 1 / (size - 1 - 2 * MARGIN)
    return torch.linspace(-MARGIN * cell, 1 + MARGIN * cell, size, dtype=like.dtype, device=like.device)


def interpolate(z: Tensor, size: int) -> Points:
    """Cubic interpolation at z `[N, D]` in [0, 1], on a grid of `size` points an input."""
    index, weight = Interpolation().interpolate([grid(size, z)], z.reshape(-1, 1))
    index = index.clamp(0, size - 1)  # of what is not a number; its weights are none either
    return Points(index.reshape(*z.shape, 4), weight.reshape(*z.shape, 4))


def kernel_factors(lengthscale: Tensor, outputscale: Tensor, size: int) -> Tensor:
    """K_1, ..., K_D `[D, G, G]` for lengthscale `[D]` in ranges of the data; each has its share of the outputscale."""
    z = grid(size, lengthscale)
    distance = (z[:, None] - z) / lengthscale[:, None, None]
    return outputscale.pow(1 / len(lengthscale)) * torch.exp(-0.5 * distance.square())


def log_density(process: Process, y: Tensor, noise: Tensor, accuracy: Accuracy) -> Tensor:
    """log N(y; 0, K + noise_variance I), summed over targets; NaN where the process is not finite.

    noise: one standard normal, from which the probes of the log determinant are drawn, where there are many rows."""
    if not all(bool(part.isfinite().all()) for part in (process.points.weight, *process[1:])):
        return torch.nan * (process.points.weight.sum() + process.factors.sum() + process.noise_variance)
    if len(y) <= accuracy.cholesky_rows:
        chol = linalg.cholesky(dense(process)[None], "structured")[0]
        quadratic = torch.linalg.solve_triangular(chol, y, upper=False).square().sum()
        logdet = 2 * chol.diagonal().log().sum()
    else:
        covariance = operator(process)
        covariance._probe_vectors_and_norms = lambda: probes(noise, y, accuracy.num_probes)
        with approximately(accuracy):
            quadratic, logdet = covariance.inv_quad_logdet(y, logdet=True)
    return -0.5 * (quadratic + y.shape[1] * logdet + y.numel() * math.log(2 * math.pi))


def posterior(process: Process, y: Tensor, points: Points, accuracy: Accuracy) -> tuple[Tensor, Tensor]:
    """Mean `[T, P]` and variance `[T]` of f at other points.

    With many rows (K + noise_variance I)^-1 is R R^T in the variance, R `[N, rank]` by Lanczos iterations from y
    (pleiss2018): it leaves out, and so never overstates, what the data tell of f."""
    factors = process.factors
    if len(y) <= accuracy.cholesky_rows:
        chol = linalg.cholesky(dense(process)[None], "structured")[0]
        projected = torch.linalg.solve_triangular(chol, product(process.points, points, factors), upper=False).mT
        mean = projected @ torch.linalg.solve_triangular(chol, y, upper=False)
    else:
        with approximately(accuracy._replace(cg_tolerance=PREDICTION_TOLERANCE)):
            solved = operator(process).solve(y)
            start = torch.where(y[:, :1].any(), y[:, :1], 1.0)  # a constant target is zero, which leads nowhere
            root = operator(process).root_inv_decomposition(initial_vectors=start, method="lanczos").root.to_dense()
            across = interpolated(points, process.points, factors)
            mean, projected = across._matmul(solved), across._matmul(root)
    return mean, (prior_variance(points, factors) - projected.square().sum(1)).clamp_min(0.0)


def rows(points: Points, size: int) -> Tensor:
    """W_1, ..., W_D, dense `[D, N, G]`."""
    zeros = points.weight.new_zeros(*points.weight.shape[:2], size)
    return zeros.scatter(-1, points.index, points.weight).transpose(0, 1)


def product(one: Points, other: Points, factors: Tensor) -> Tensor:
    """W K_UU W'^T, dense `[N, T]`."""
    size = factors.shape[-1]
    return (rows(one, size) @ factors @ rows(other, size).mT).prod(0)


def dense(process: Process) -> Tensor:
    """K + noise_variance I `[N, N]`."""
    covariance = product(process.points, process.points, process.factors)
    return covariance + process.noise_variance * torch.eye(len(covariance)).to(covariance)


def prior_variance(points: Points, factors: Tensor) -> Tensor:
    """Diagonal of W K_UU W^T `[T]`."""
    w = rows(points, factors.shape[-1])
    return ((w @ factors) * w).sum(-1).prod(0)


class Interpolated(InterpolatedLinearOperator):
    """W K_UU W'^T, with sparse matrices that are compressed by rows: ten times as fast as triplets."""

    def _matmul(self, rhs: Tensor) -> Tensor:
        columns = rhs if rhs.ndim == 2 else rhs[:, None]
        if not hasattr(self, "_compressed"):
            size = self.base_linear_op.shape[-1]
            left = compressed(self.left_interp_indices, self.left_interp_values, size)
            right = compressed(self.right_interp_indices, self.right_interp_values, size)
            self._compressed = left, right.mT.to_sparse_csr()
        left, right = self._compressed
        return (left @ self.base_linear_op._matmul(right @ columns)).reshape(-1, *rhs.shape[1:])

    def _sparse_left_interp_t(self, index: Tensor, weight: Tensor) -> Tensor:
        return compressed(index, weight, self.base_linear_op.shape[-1]).mT.to_sparse_csr()

    _sparse_right_interp_t = _sparse_left_interp_t


def compressed(index: Tensor, weight: Tensor, columns: int) -> Tensor:
    """A matrix `[N, columns]` whose rows have as many entries each, compressed."""
    ends = torch.arange(0, index.numel() + 1, index.shape[1], device=index.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        shape = len(index), columns
        return torch.sparse_csr_tensor(ends, index.flatten(), weight.flatten(), shape, check_invariants=False)


def interpolated(one: Points, other: Points, factors: Tensor) -> Interpolated:
    """W K_UU W'^T `[N, T]`."""
    size = factors.shape[-1]
    return Interpolated(KroneckerProductLinearOperator(*factors), *on_grid(one, size), *on_grid(other, size))


def on_grid(points: Points, size: int) -> tuple[Tensor, Tensor]:
    """Which of the G^D points of the grid, last input fastest, have weight and how much, both `[N, 4^D]`."""
    index, weight = points.index[:, 0], points.weight[:, 0]
    for d in range(1, points.index.shape[1]):
        index = (size * index[:, :, None] + points.index[:, d, None]).flatten(1)
        weight = (weight[:, :, None] * points.weight[:, d, None]).flatten(1)
    return index, weight


def operator(process: Process) -> LinearOperator:
    """K + noise_variance I `[N, N]`, as its products with vectors."""
    return interpolated(process.points, process.points, process.factors).add_diagonal(process.noise_variance)


@contextmanager
def approximately(accuracy: Accuracy) -> Iterator[None]:
    """linear_operator's settings; no preconditioner: the rows of K that it wants cost 16^D a number."""
    with (
        settings.max_cholesky_size(0),
        settings.max_preconditioner_size(0),
        settings.max_cg_iterations(MOST_ITERATIONS),
        settings.cg_tolerance(accuracy.cg_tolerance),
        settings.max_lanczos_quadrature_iterations(QUADRATURE),
        settings.max_root_decomposition_size(accuracy.rank),
    ):
        yield


def probes(noise: Tensor, like: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Vectors of N normals, at unit length `[N, count]`, and their lengths `[1, count]`; like: `[N, P]`.

    One normal `[1]` decides them on every device and in every precision; linear_operator's own depend on both."""
    # a hash, as the generator looks at the lowest 32 bits of a seed, where a short number has none
    seed = int.from_bytes(hashlib.sha256(noise.float().cpu().numpy().tobytes()).digest()[:8], "big") >> 1
    normals = torch.randn(len(like), count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(like)
    length = normals.norm(dim=0, keepdim=True)
    return normals / length, length
