"""Adaptive cross approximation: a covariance matrix by a few of its columns (harbrecht2012, urbainczyk2025 sec. 3.3).

K ~ C C^T, C `[n, r]` the first r columns of the pivoted Cholesky factor of K: with d = diag(K),

    p_k = argmax d,    C_k = (K_p - sum_{i<k} C_i C_pi) / sqrt(d_p),    d <- d - C_k^2,    k = 1, ..., r;

the error K - C C^T has trace sum d. At given pivots P, C = K_nP L^-T with L L^T = K_PP, in the order of the pivots.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def pivots(column: Callable[[Tensor], Tensor], diagonal: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pivots `[*R, r]`, C `[*R, n, r]`, and the diagonal of the error `[*R, n]`; O(n r^2), r columns of K.

    column(p): those of K `[*R, n]` at rows p `[*R]`; diagonal `[*R, n]`, 0 in rows that are to be no pivots."""
    columns, rest = diagonal.new_zeros(*diagonal.shape, rank), diagonal
    least = torch.finfo(diagonal.dtype).eps * diagonal.amax(-1)
    found: list[Tensor] = []
    for k in range(rank):
        chosen = torch.stack(found, -1) if found else diagonal.new_zeros((*diagonal.shape[:-1], 0), dtype=torch.int64)
        largest, pivot = rest.scatter(-1, chosen, -1.0).max(-1)
        row = columns.gather(-2, pivot[..., None, None].expand(*pivot.shape, 1, rank))  # C_p [*R, 1, r]
        left = column(pivot) - (columns @ row.mT)[..., 0]
        # where the error is rounding alone nothing is left to approximate
        scale = torch.where(largest > least, largest.clamp_min(least).rsqrt(), 0.0)
        columns[..., k] = left * scale[..., None]
        rest = (rest - columns[..., k].square()).clamp_min(0.0)
        found.append(pivot)
    return torch.stack(found, -1), columns, rest


def rewhiten(columns: Tensor, u: Tensor, jitter: float = 0.0) -> Tensor:
    """argmin |C xi - u|^2 + jitter |xi|^2 `[*R, r, width]`: u `[*R, n, width]` stays what it was when pivots change.

    Jitter keeps xi of the size that N(0, I) has where columns of C are nearly dependent, as that of a full covariance
    does. By QR of C above jitter^1/2 I, for the normal equations would square the condition number of C."""
    rank = columns.shape[-1]
    below = jitter**0.5 * torch.eye(rank, dtype=columns.dtype, device=columns.device)
    q, r = torch.linalg.qr(torch.cat([columns, below.expand(*columns.shape[:-2], rank, rank)], -2))
    return torch.linalg.solve_triangular(r, q[..., :-rank, :].mT @ u, upper=True)
