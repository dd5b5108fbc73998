"""Cholesky factors that survive ill-conditioned matrices, one replica at a time; products and solves of vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypedDict

import torch
from torch import Tensor

from gpbench.gp.jitter import FIRST_JITTER, JITTER_GROWTH, LAST_JITTER


class Event(TypedDict):
    """What `times` matrices `name` of a replica needed: jitter, the largest one (absolute); or they have no factor."""

    name: str
    replica: int
    jitter: float
    failed: bool
    times: int


Tally = dict[tuple[str, int, bool], Event]
_events: Tally = {}


def add(tally: Tally, event: Event) -> None:
    """Add an event to those of the same matrix, replica and outcome, of which one is kept."""
    key = event["name"], event["replica"], event["failed"]
    known = tally.get(key)
    if known is not None:
        event = event | {"times": known["times"] + event["times"], "jitter": max(known["jitter"], event["jitter"])}
    tally[key] = event


def events(clear: bool = True) -> list[Event]:
    """What `cholesky` had to do since the last call, in the order of first times."""
    recorded = list(_events.values())
    if clear:
        _events.clear()
    return recorded


_first_replica = 0
_some_replicas: Sequence[int] | None = None


@contextmanager
def replicas_from(first: int) -> Iterator[None]:
    """In it the replicas of matrices are numbered from `first` on in events."""
    global _first_replica
    before, _first_replica = _first_replica, first
    try:
        yield
    finally:
        _first_replica = before


@contextmanager
def of_replicas(numbers: Sequence[int]) -> Iterator[None]:
    """In it matrices `[len(numbers), M, M]` are those of some replicas, which events name by these numbers."""
    global _some_replicas
    before, _some_replicas = _some_replicas, numbers
    try:
        yield
    finally:
        _some_replicas = before


_deferred = False


@contextmanager
def deferred_checks() -> Iterator[None]:
    """In it `cholesky` waits for no check: a replica without a factor gets NaN, and nothing is mended or recorded.

    For a step whose result is checked anyway, and which is made again outside where it is not finite."""
    global _deferred
    before, _deferred = _deferred, True
    try:
        yield
    finally:
        _deferred = before


def checks_are_deferred() -> bool:
    return _deferred


def cholesky(matrix: Tensor, name: str, jitter: Tensor | None = None) -> Tensor:
    """Lower Cholesky factor L of K (+ jitter I): L L^T = K + (jitter + added) I.

    matrix `[*S, R, M, M]`; jitter `[*S, R]` is always added (a method's published jitter). Where that
    is not enough, 1e-8, 1e-7, ..., 1e-4 of the mean diagonal is added, only in the replicas that need
    it, and recorded in `events` under `name` (but see `deferred_checks`). A matrix that stays indefinite (or holds NaN)
    gets a factor of NaN and an event with `failed`; the other replicas are not touched. Differentiable once."""
    factor: Tensor = _Cholesky.apply(matrix, jitter, name)
    return factor


def symmetric(product: Tensor) -> Tensor:
    """1/2 (Phi(X) + Phi(X)^T), Phi(X) the lower triangle of X, its diagonal halved."""
    lower = product.tril().mul_(0.5)
    return lower.add_(lower.tril(-1).mT)


class _Cholesky(torch.autograd.Function):
    """`cholesky`. Backward: d jitter = tr dK."""

    @staticmethod
    def forward(ctx, matrix: Tensor, jitter: Tensor | None, name: str) -> Tensor:
        if jitter is not None:
            matrix = matrix.clone()
            matrix.diagonal(dim1=-2, dim2=-1).add_(jitter[..., None])
        factor = factorise(matrix, name)
        ctx.save_for_backward(factor)
        return factor

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (factor,) = ctx.saved_tensors
        grad_matrix = factor_gradient(factor, grad)
        trace = grad_matrix.diagonal(dim1=-2, dim2=-1).sum(-1) if ctx.needs_input_grad[1] else None
        return grad_matrix, trace, None


def factorise(matrix: Tensor, name: str) -> Tensor:
    """`cholesky` of K itself, without a gradient."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if _deferred:
        # NaN in the last pivot reaches all that is made of the factor
        factor.diagonal(dim1=-2, dim2=-1)[..., -1].masked_fill_(info > 0, torch.nan)
    elif bool(_failed(factor, info).any()):
        factor = _mended(matrix, name)
    return factor


def factor_gradient(factor: Tensor, grad: Tensor) -> Tensor:
    """dK = L^-T symmetric(L^T dL) L^-1, symmetric but for rounding, from L and dL."""
    return gradient_from_product(factor, factor.mT @ grad)


def gradient_from_product(factor: Tensor, product: Tensor) -> Tensor:
    """dK from L and L^T dL."""
    half = torch.linalg.solve_triangular(factor, symmetric(product), upper=False, left=False)
    return torch.linalg.solve_triangular(factor, half.mT, upper=False, left=False)


def quadratic_and_log_det(matrix: Tensor, y: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """sum_p y_p^T C^-1 y_p and log |C| `[R]` of C `[R, M, M]`, y `[R, M, P]`; jitter as in `cholesky`.

    Differentiable once, in half the work of going through the factor."""
    both: tuple[Tensor, Tensor] = _QuadraticAndLogDet.apply(matrix, y, name)
    return both


class _QuadraticAndLogDet(torch.autograd.Function):
    """`quadratic_and_log_det`. Backward, with alpha = C^-1 y and the gradients g and h of the two (rasmussen2006,
    eq. 5.9; here, and only here, the inverse itself is what is asked for):

    dC = h C^-1 - g alpha alpha^T,    dy = 2 g alpha."""

    @staticmethod
    def forward(ctx, matrix: Tensor, y: Tensor, name: str) -> tuple[Tensor, Tensor]:
        factor = factorise(matrix, name)
        whitened = torch.linalg.solve_triangular(factor, y, upper=False)
        ctx.save_for_backward(factor, whitened)
        return whitened.square().sum((1, 2)), 2 * half_log_det(factor)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor, grad_log_det: Tensor) -> tuple[Tensor, Tensor, None]:
        factor, whitened = ctx.saved_tensors
        alpha = torch.linalg.solve_triangular(factor.mT, whitened, upper=True)
        scaled = grad[:, None, None] * alpha
        inverse = torch.cholesky_inverse(factor).mul_(grad_log_det[:, None, None])
        return inverse.baddbmm_(scaled, alpha.mT, alpha=-1), 2 * scaled, None


def _mended(matrix: Tensor, name: str) -> Tensor:
    """Factors with the jitter that they need."""
    added = _jitter_needed(matrix)
    _record(name, added)
    failed = added.isnan()[..., None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    # a failed matrix is replaced, so that it cannot upset the batched routines
    factor, _ = torch.linalg.cholesky_ex(torch.where(failed, eye, matrix + added[..., None, None] * eye))
    # filled in LAPACK's order of memory, which later products depend on to the last bit
    return factor.mT.masked_fill(failed, torch.nan).mT


def _failed(factor: Tensor, info: Tensor) -> Tensor:
    """Where there is no factor `[*S, R]`; some LAPACKs let NaN pass, and it always ends in the last pivot."""
    return (info > 0) | ~factor[..., -1, -1].isfinite()


def _jitter_needed(matrix: Tensor) -> Tensor:
    """Least jitter of the ladder that makes each matrix definite `[*S, R]`; NaN where none does."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    added = torch.zeros_like(scale)
    needs = _failed(*torch.linalg.cholesky_ex(matrix))
    relative = FIRST_JITTER
    while bool(needs.any()) and relative <= LAST_JITTER * 1.001:
        added = torch.where(needs, relative * scale, added)
        needs = _failed(*torch.linalg.cholesky_ex(matrix + added[..., None, None] * eye))
        relative *= JITTER_GROWTH
    return added.masked_fill(needs, torch.nan)


def _record(name: str, added: Tensor) -> None:
    replicas = added.shape[-1] if added.ndim else 1
    for position, jitter in enumerate(added.flatten().tolist()):
        if jitter != 0:
            number = position % replicas if _some_replicas is None else _some_replicas[position]
            replica, failed = _first_replica + number, jitter != jitter
            add(_events, Event(name=name, replica=replica, jitter=jitter, failed=failed, times=1))


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
    """log N(x; mean, size^2 G^-1) `[R]` but for what size `[R, 1]` alone decides; root `[R, n, n]`: G = root root^T."""
    return half_log_det(root) - 0.5 * (multiply(root.mT, x - mean) / size).square().sum(1)


def multiply(matrix: Tensor, vector: Tensor) -> Tensor:
    """A v `[R, n]`."""
    # as a row times a matrix: of batches, that is 4 to 8 times faster on a CPU than a matrix times a column
    return (vector[..., None, :] @ matrix.mT)[..., 0, :]
