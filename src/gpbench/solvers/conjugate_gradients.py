"""Preconditioned conjugate gradients for A x = b, A symmetric and positive definite (cutajar2016, algorithm 1).

    r_0 = b - A x_0,  z_0 = P^-1 r_0,  p_0 = z_0
    alpha_i = r_i^T z_i / (p_i^T A p_i),  x_i+1 = x_i + alpha_i p_i,  r_i+1 = r_i - alpha_i A p_i
    z_i+1 = P^-1 r_i+1,  beta_i = r_i+1^T z_i+1 / (r_i^T z_i),  p_i+1 = z_i+1 + beta_i p_i

`flexible`: beta_i = z_i+1^T (r_i+1 - r_i) / (z_i^T r_i), for a P^-1 that is itself found by iterations. (The paper
prints r_i^T A z_i in alpha, a plus before alpha_i A p_i, and beta without z.)

Columns of b go in lockstep and share the products; one that has stopped is dropped from them. The residual that the
recursion carries drifts: a column has converged once the residual recomputed from the product says so. Where it does
not the column starts anew from there, and ends where that has not halved it: more the precision does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""v `[n, c]` -> A v `[n, c]`, column by column."""
Watch = Callable[[int, Tensor, Tensor], Tensor | None]
"""(i, alpha_i p_i `[n, c]`, |r_i+1| `[c]`), zero increments in columns that have stopped; may return which columns are
wanted no further, bool `[c]`."""


class Solution(NamedTuple):
    """x `[n, c]`; products: of A with a column, in all; by column `[c]`: iterations, the norm of the residual,
    converged (False: the cap, the precision, a matrix that is not positive definite, numbers that are not finite, or
    `watch`).

    alpha, beta `[i, c]`: the coefficients of the iterations, NaN after the end of a column; beta is 0 where it started
    anew."""

    x: Tensor
    iterations: Tensor
    products: int
    residual: Tensor
    converged: Tensor
    alpha: Tensor
    beta: Tensor

    def of(self, columns: slice) -> Solution:
        """That of some columns; products: of all."""
        by_column = (self.iterations, self.residual, self.converged)
        iterations, residual, converged = (value[columns] for value in by_column)
        x, alpha, beta = (value[:, columns] for value in (self.x, self.alpha, self.beta))
        return Solution(x, iterations, self.products, residual, converged, alpha, beta)


class _Columns(NamedTuple):
    """The columns that go on, `[n, k]` each; number `[k]`: which they are; rz `[k]`: r^T z."""

    number: Tensor
    r: Tensor
    z: Tensor
    p: Tensor
    rz: Tensor

    def keep(self, going: Tensor) -> _Columns:
        if bool(going.all()):
            return self
        return _Columns(self.number[going], self.r[:, going], self.z[:, going], self.p[:, going], self.rz[going])


@torch.no_grad()
def solve(
    product: Product,
    b: Tensor,
    *,
    precondition: Product | None = None,
    start: Tensor | None = None,
    tolerance: float | Tensor,
    cap: int,
    flexible: bool = False,
    watch: Watch | None = None,
) -> Solution:
    """A^-1 b for b `[n, c]`, from start `[n, c]` or 0, until |b - A x| <= tolerance (a number or `[c]`) or for cap
    iterations."""
    apply = precondition or torch.clone
    limit = torch.as_tensor(tolerance, dtype=b.dtype, device=b.device).expand(b.shape[1])
    x = torch.zeros_like(b) if start is None else start.clone()
    r = b if start is None else b - product(x)
    products = 0 if start is None else b.shape[1]
    residual, iterations = r.norm(dim=0), torch.zeros_like(limit, dtype=torch.int64)
    converged, z = residual <= limit, apply(r)
    going = _Columns(torch.arange(b.shape[1], device=b.device), r, z, z, _dots(r, z)).keep(~converged)
    history: list[Tensor] = []
    last_seen = torch.full_like(limit, torch.inf)  # the residual when it was recomputed
    while len(history) < cap and len(going.number) > 0:
        index, r, z, p, rz = going
        q = product(p)
        curvature = _dots(p, q)
        sound = (curvature > 0) & curvature.isfinite() & (rz > 0)
        alpha = torch.where(sound, rz / curvature, 0.0)
        increment = torch.where(sound, alpha * p, 0.0)
        x.index_add_(1, index, increment)
        r_next = torch.where(sound, torch.addcmul(r, alpha, q, value=-1), r)
        checked = sound & (r_next.norm(dim=0) <= limit[index])
        if bool(checked.any()):  # the recursion says so: what is the residual?
            r_next[:, checked] = b[:, index[checked]] - product(x[:, index[checked]])
        products += len(index) + int(checked.sum())
        residual[index], iterations[index] = r_next.norm(dim=0), iterations[index] + sound
        converged[index] = checked & (residual[index] <= limit[index])
        stalled = checked & ~converged[index] & ~(residual[index] <= 0.5 * last_seen[index])
        last_seen[index] = torch.where(checked, residual[index], last_seen[index])
        unwanted = None if watch is None else watch(len(history), _spread(increment, index, b, 0.0), residual)
        z_next = apply(r_next)
        along = _dots(r_next, z_next)
        beta = torch.where(checked, 0.0, (_dots(z_next, r_next - r) if flexible else along) / rz)
        history.append(_spread(torch.stack([alpha, beta]), index, limit.expand(2, -1)))
        goes_on = sound & ~converged[index] & ~stalled & (True if unwanted is None else ~unwanted[index])
        going = _Columns(index, r_next, z_next, torch.addcmul(z_next, beta, p), along).keep(goes_on)
    alpha, beta = (
        (torch.stack(part) for part in zip(*history, strict=True)) if history else 2 * (b.new_zeros(0, b.shape[1]),)
    )
    return Solution(x, iterations, products, residual, converged, alpha, beta)


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """a_c^T b_c `[c]`."""
    return (a * b).sum(0)


def _spread(values: Tensor, index: Tensor, like: Tensor, others: float = torch.nan) -> Tensor:
    """values `[..., k]` of the columns `index` among all those of `like` `[..., c]`."""
    return torch.full_like(like, others).index_copy_(-1, index, values)
