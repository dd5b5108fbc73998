"""Greedy choice of inducing points among the rows of a GP regression (titsias2009, urbainczyk2025 section 3.2).

Of the rows M, with V = L^-1 K_mn, L L^T = K_mm + jitter I, Q = V^T V, s the noise variance, P = Q + s I and
B = I + V V^T / s = U U^T:

    log likelihood   l(M) = log N(y; 0, P) = -1/2 [ n log 2 pi s + log |B| + (|y|^2 - |U^-1 V y|^2 / s) / s ]
    bound            F(M) = l(M) - tr(K - Q) / (2 s)
    adding row j     v = (K_nj - Q_nj) / sqrt(K_jj + jitter - Q_jj),     t = v^T P^-1 v,   c = y^T P^-1 v:
                     F(M + j) - F(M) =  c^2 / (2 (1 + t)) - 1/2 log(1 + t) + |v|^2 / (2 s)  >= 0
    removing row i   w = (K_nm L^-T L^-1)_ni / sqrt((L^-T L^-1)_ii),     t = w^T P^-1 w,   c = y^T P^-1 w:
                     F(M - i) - F(M) = -c^2 / (2 (1 - t)) - 1/2 log(1 - t) - |w|^2 / (2 s)  <= 0

All of it needs sums over rows only, as V V^T and V y, taken part by part, so that memory does not grow with n.
Tensors have axes of replicas R and of particles S; the rows M are those of a replica, for all its particles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gpbench.gp import linalg

CHUNK_ELEMENTS = 2**20
"""Numbers in a temporary of a part of the rows (8 MB in float64)."""
LEAST_VARIANCE = 1e-10
"""Of a row given those in M, relative to its variance, for it to be worth adding."""
Rows = slice | Tensor
"""Some rows: a slice, or their numbers `[R, k]`, or `[R, S, k]` where particles differ."""


class Regression(NamedTuple):
    """A GP regression, at one state of what lies below its covariance.

    covariance: of two sets of places `[R, S, k, *]`; places: those of some rows; variance `[R, 1]`: k(x, x); y, mask
    `[R, n]`: targets, and 0 in rows of padding; noise_variance `[R, 1]`; jitter: of K_mm, relative to the variance."""

    covariance: Callable[[Tensor, Tensor], Tensor]
    places: Callable[[Rows], Tensor]
    variance: Tensor
    y: Tensor
    mask: Tensor
    noise_variance: Tensor
    jitter: float


class Summary(NamedTuple):
    """What the rows of a regression say of the function at the rows M, whose places are `centres` `[R, S, m, *]`."""

    centres: Tensor
    chol: Tensor  # L [R, S, m, m]
    gram: Tensor  # V V^T [R, S, m, m]
    moment: Tensor  # V y [R, S, m]
    root: Tensor  # U [R, S, m, m]
    whitened: Tensor  # U^-1 V y [R, S, m]


def take(values: Tensor, rows: Rows) -> Tensor:
    """values `[R, S, n, *]` of some rows, `[R, S, k, *]`; the S of either may be 1."""
    if isinstance(rows, slice):
        return values[..., rows, :]
    rows = rows if rows.ndim == 3 else rows[:, None]
    particles, size = max(values.shape[1], rows.shape[1]), values.shape[-1]
    places = rows[..., None].expand(-1, particles, -1, size)
    return values.expand(-1, particles, -1, -1).gather(-2, places)


def factor(matrix: Tensor, name: str, jitter: Tensor | None = None) -> Tensor:
    """Lower Cholesky factor of a matrix `[R, S, m, m]` (+ jitter `[R, 1]` I), as `linalg.cholesky` has it."""
    if matrix.shape[-1] == 0:
        return matrix
    jitter = None if jitter is None else jitter.expand(matrix.shape[:2]).mT
    return linalg.cholesky(matrix.transpose(0, 1), name, jitter).transpose(0, 1)


def parts(rows: int, numbers_each: int) -> Iterator[slice]:
    """All rows, in parts whose temporary of so many numbers a row has about `CHUNK_ELEMENTS`."""
    size = max(1, CHUNK_ELEMENTS // max(numbers_each, 1))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def features(model: Regression, chol: Tensor, centres: Tensor, rows: Rows) -> Tensor:
    """Columns V_n = L^-1 k(Z, x_n) of some rows `[R, S, m, k]`."""
    # from the right, where a solver may go along the rows that lie in memory
    cross = model.covariance(model.places(rows), centres)
    return torch.linalg.solve_triangular(chol.mT, cross, upper=True, left=False).mT


def summarise(model: Regression, centres: Tensor) -> Summary:
    """The sums over all rows, O(n m^2) for each particle."""
    chol = factor(model.covariance(centres, centres), "inducing points", model.jitter * model.variance)
    size, rows = chol.shape[-1], model.y.shape[-1]
    gram, moment = torch.zeros_like(chol), chol.new_zeros(chol.shape[:-1])
    for part in parts(rows, chol.shape[0] * chol.shape[1] * size):
        v = features(model, chol, centres, part) * model.mask[:, None, None, part]
        gram = gram + v @ v.mT
        moment = moment + linalg.multiply(v, model.y[:, None, part])
    eye = torch.eye(size, dtype=gram.dtype, device=gram.device)
    root = factor(eye + gram / model.noise_variance[..., None, None], "inducing points given y")
    return Summary(centres, chol, gram, moment, root, linalg.solve(root, moment))


def log_likelihood(model: Regression, summary: Summary) -> Tensor:
    """l = log N(y; 0, Q + s I) in nats `[R, S]`."""
    s = model.noise_variance
    count, squares = model.mask.sum(-1, keepdim=True), (model.mask * model.y.square()).sum(-1, keepdim=True)
    quadratic = (squares - summary.whitened.square().sum(-1) / s) / s  # y^T P^-1 y
    log_det = count * s.log() + 2 * linalg.half_log_det(summary.root)  # log |P|
    return -0.5 * (quadratic + log_det + count * math.log(2 * math.pi))


def bound(model: Regression, summary: Summary) -> Tensor:
    """F = l - tr(K - Q) / (2 s) in nats `[R, S]`."""
    trace = model.mask.sum(-1, keepdim=True) * model.variance - _trace(summary.gram)
    return log_likelihood(model, summary) - 0.5 * trace / model.noise_variance


def gains_of_adding(model: Regression, summary: Summary, rows: Tensor) -> Tensor:
    """F(M + j) - F(M) `[R, S, J]` for rows j `[R, J]`, O(n m J); minus infinity where the variance of j given
    M, with the jitter, is below `LEAST_VARIANCE`: with a jitter of 1e-10 or more a copy of a row in M gains about 0."""
    s, chol, places = model.noise_variance[..., None], summary.chol, model.places(rows)
    v_j = features(model, chol, summary.centres, rows)  # [R, S, m, J]
    variance = model.variance[..., None] * (1 + model.jitter) - v_j.square().sum(-2)  # K_jj + jitter - Q_jj
    squares, along, through = torch.zeros_like(variance), torch.zeros_like(variance), torch.zeros_like(v_j)
    for part in parts(model.y.shape[-1], variance.shape[0] * variance.shape[1] * variance.shape[2]):
        v = features(model, chol, summary.centres, part)
        left = (model.covariance(model.places(part), places) - v.mT @ v_j) * model.mask[:, None, part, None]
        squares = squares + left.square().sum(-2)
        along = along + linalg.multiply(left.mT, model.y[:, None, part])
        through = through + v @ left  # V (K_nj - Q_nj)
    through = torch.linalg.solve_triangular(summary.root, through, upper=False)
    # P^-1 = (I - V^T B^-1 V / s) / s
    t = (squares - through.square().sum(-2) / s) / s / variance
    c = (along - linalg.multiply(through.mT, summary.whitened) / s) / s
    gain = 0.5 * (c.square() / variance / (1 + t) - t.log1p() + squares / variance / s)
    return gain.masked_fill(variance < LEAST_VARIANCE * model.variance[..., None], -math.inf)


def gains_of_removing(model: Regression, summary: Summary) -> Tensor:
    """F(M - i) - F(M) `[R, S, m]` for every row i of M, from the sums alone, O(m^3)."""
    s, eye = model.noise_variance[..., None], torch.eye(summary.chol.shape[-1]).to(summary.chol)
    inverse = torch.linalg.solve_triangular(summary.chol, eye.expand_as(summary.chol), upper=False)  # L^-1
    scale = inverse.square().sum(-2)  # (L^-T L^-1)_ii
    through = summary.gram @ inverse  # V w_i sqrt(scale)
    squares = (inverse * through).sum(-2) / scale  # |w|^2
    along = linalg.multiply(inverse.mT, summary.moment)  # y^T w sqrt(scale)
    through = torch.linalg.solve_triangular(summary.root, through, upper=False)
    t = (squares - through.square().sum(-2) / scale / s) / s
    c = (along - linalg.multiply(through.mT, summary.whitened) / s) / s
    return 0.5 * (-c.square() / scale / (1 - t) - (-t).log1p() - squares / s)


def insert(model: Regression, chosen: Tensor, candidates: Tensor) -> Tensor:
    """M `[R, m]` with the candidate `[R, J]` added whose gain, averaged over particles, is the largest."""
    gains = gains_of_adding(model, summarise(model, model.places(chosen)), candidates).mean(1)
    return torch.cat([chosen, candidates.gather(1, gains.argmax(1, keepdim=True))], 1)


def exchange(model: Regression, chosen: Tensor, candidates: Tensor) -> Tensor:
    """M `[R, m]` after a round: the row goes whose loss, averaged over particles, is the smallest, then the best of the
    candidates `[R, J]` and of that row comes in its stead. The average bound never falls."""
    losses = gains_of_removing(model, summarise(model, model.places(chosen))).mean(1)
    worst = losses.argmax(1, keepdim=True)
    others = torch.arange(chosen.shape[1] - 1, device=chosen.device).expand(len(chosen), -1)
    kept = chosen.gather(1, others + (others >= worst))
    return insert(model, kept, torch.cat([candidates, chosen.gather(1, worst)], 1))


def candidates(keys: Tensor, chosen: Tensor, mask: Tensor, number: int) -> Tensor:
    """Random rows outside M `[R, min(number, n - m)]`: those with the largest of the random numbers keys `[R, n]`.

    A replica with fewer rows to choose from has its first candidate in the places that are left."""
    keys = keys.masked_fill(mask == 0, -math.inf).scatter(1, chosen, -math.inf)
    best = keys.topk(min(number, keys.shape[1] - chosen.shape[1]), 1)
    return torch.where(best.values.isinf(), best.indices[:, :1], best.indices)


def posterior(model: Regression, summary: Summary) -> dict[str, Tensor]:
    """q(f) given y, as `marginals` needs it: centres, prior_root L^-T, root L^-T U^-T and weights root U^-1 V y / s.

    The factors are inverted here as products take half the time of solves, and predictions are many."""
    eye = torch.eye(summary.chol.shape[-1]).to(summary.chol).expand_as(summary.chol)
    prior_root = torch.linalg.solve_triangular(summary.chol.mT, eye, upper=True)
    root = torch.linalg.solve_triangular(summary.root.mT, prior_root, upper=True, left=False)
    weights = linalg.multiply(root, summary.whitened) / model.noise_variance[..., None]
    return {"centres": summary.centres, "prior_root": prior_root, "root": root, "weights": weights}


def marginals(known: dict[str, Tensor], cross: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of f `[R, S, T]` by a `posterior`: k_m weights and k - |L^-1 k_m|^2 + |U^-1 L^-1 k_m|^2.

    cross `[R, S, T, m]`: k_m, covariances with the centres; variance `[R, 1]`."""
    prior, given = ((cross @ known[name]).square().sum(-1) for name in ("prior_root", "root"))
    return linalg.multiply(cross, known["weights"]), (variance[..., None] - prior + given).clamp_min(0.0)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
