"""Cholesky factors that survive ill-conditioned matrices, one replica at a time; products and solves of vectors."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from gpbench.gp.jitter import FIRST_JITTER, JITTER_GROWTH, LAST_JITTER


class Event(TypedDict):
    """What happened to the matrix `name` of a replica: the jitter added (absolute), and whether it has no factor."""

    name: str
    replica: int
    jitter: float
    failed: bool


_events: list[Event] = []


def events(clear: bool = True) -> list[Event]:
    """What `cholesky` had to do since the last call."""
    recorded = list(_events)
    if clear:
        _events.clear()
    return recorded


def cholesky(matrix: Tensor, name: str, jitter: Tensor | None = None) -> Tensor:
    """Lower Cholesky factor L of K (+ jitter I): L L^T = K + (jitter + added) I.

    matrix `[*S, R, M, M]`; jitter `[*S, R]` is always added (a method's published jitter). Where that
    is not enough, 1e-8, 1e-7, ..., 1e-4 of the mean diagonal is added, only in the replicas that need
    it, and recorded in `events` under `name`. A matrix that stays indefinite (or holds NaN) gets a
    factor of NaN and an event with `failed`; the other replicas are not touched. Differentiable.
    """
    if jitter is not None:
        matrix = matrix + torch.diag_embed(jitter[..., None].expand(matrix.shape[:-1]))
    factor, failed = _try(matrix)
    if not bool(failed.any()):
        return factor
    added = _jitter_needed(matrix.detach())
    _record(name, added)
    failed = added.isnan()[..., None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    # a failed matrix is replaced, so that its factor and gradient cannot upset the batched routines
    mended = torch.where(failed, eye, matrix + added[..., None, None] * eye)
    # filled in LAPACK's order of memory, which later products depend on to the last bit
    return _try(mended)[0].mT.masked_fill(failed, torch.nan).mT


def _try(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Factor, and where it failed `[*S, R]`; some LAPACKs let NaN pass, and it always ends in the last pivot."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor, (info > 0) | ~factor[..., -1, -1].isfinite()


def _jitter_needed(matrix: Tensor) -> Tensor:
    """Least jitter of the ladder that makes each matrix definite `[*S, R]`; NaN where none does."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    added = torch.zeros_like(scale)
    needs = _try(matrix)[1]
    relative = FIRST_JITTER
    while bool(needs.any()) and relative <= LAST_JITTER * 1.001:
        added = torch.where(needs, relative * scale, added)
        needs = _try(matrix + added[..., None, None] * eye)[1]
        relative *= JITTER_GROWTH
    return added.masked_fill(needs, torch.nan)


def _record(name: str, added: Tensor) -> None:
    replicas = added.shape[-1] if added.ndim else 1
    for position, jitter in enumerate(added.flatten().tolist()):
        if jitter != 0:
            failed = jitter != jitter
            _events.append({"name": name, "replica": position % replicas, "jitter": jitter, "failed": failed})


def solve(chol: Tensor, vector: Tensor) -> Tensor:
    """L^-1 v `[R, n]`."""
    return torch.linalg.solve_triangular(chol, vector[..., None], upper=False)[..., 0]


def solve_transposed(chol: Tensor, vector: Tensor) -> Tensor:
    """L^-T v `[R, n]`."""
    return torch.linalg.solve_triangular(chol.mT, vector[..., None], upper=True)[..., 0]


def half_log_det(chol: Tensor) -> Tensor:
    """1/2 log |L L^T| `[R]`."""
    return chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def log_normal(x: Tensor, mean: Tensor, root: Tensor, size: Tensor) -> Tensor:
    """log N(x; mean, size^2 G^-1) `[R]`, G = root root^T, but for what depends on size alone."""
    return half_log_det(root) - 0.5 * (multiply(root.mT, x - mean) / size).square().sum(1)


def multiply(matrix: Tensor, vector: Tensor) -> Tensor:
    """A v `[R, n]`."""
    # as a row times a matrix: of batches, that is 4 to 8 times faster on a CPU than a matrix times a column
    return (vector[..., None, :] @ matrix.mT)[..., 0, :]
