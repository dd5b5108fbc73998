"""L-BFGS: minimisation of one smooth function by a quasi-Newton method of limited memory (nocedal1980).

    x' = x + t d,  d = -H g,  t the first of t_0, t_0/2, t_0/4, ... with f(x + t d) <= f(x) + 1e-4 t g^T d and < f(x),

H the inverse Hessian by the two-loop recursion over the last `PAIRS` pairs s = x' - x, y = g' - g with s^T y > 0
(`CURVATURE`); t_0 = 1, but min(1, 1 / |g|_1) while there are no pairs and d = -g.
A point at which f is not finite counts as one that is too far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

PAIRS, HALVINGS, DECREASE = 20, 30, 1e-4
CURVATURE = 1e-12
"""Least s^T y / (||s|| ||y||) of a pair that is kept."""

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""f and its gradient `[P]` at x `[P]`."""


@dataclass
class Search:
    """Where a minimisation stands: x `[P]`, f(x), its gradient, and the pairs (s, y), the latest last.

    ended: no step along the steepest descent makes f smaller, to the precision of f, as where f(x) is NaN."""

    x: Tensor
    loss: Tensor
    gradient: Tensor
    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    ended: bool = False


def flatten(params: dict[str, Tensor]) -> Tensor:
    """The numbers of all tensors, one after another `[P]`."""
    return torch.cat([value.flatten() for value in params.values()])


def unflatten(x: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `flatten`; like: tensors of the same names and shapes."""
    parts = x.split([value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


def of_params(f: Callable[[dict[str, Tensor]], Tensor], like: dict[str, Tensor]) -> Objective:
    """f of tensors `like`, as a function of their numbers."""

    def objective(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        value = f(unflatten(x, like)).sum()
        return value.detach(), torch.autograd.grad(value, x)[0]

    return objective


def start(objective: Objective, x: Tensor) -> Search:
    """A search that begins at x."""
    return Search(x, *objective(x))


def step(objective: Objective, search: Search) -> Search:
    """One iteration; a search whose pairs lead nowhere goes on by steepest descent, and ends where that does not."""
    if search.ended:
        return search
    for pairs in (search.pairs, []) if search.pairs else ([],):
        direction = _direction(search.gradient, pairs)
        slope = direction @ search.gradient
        length = 1.0 if pairs else float((1 / search.gradient.abs().sum()).clamp(max=1.0))
        for _ in range(HALVINGS):
            x = search.x + length * direction
            loss, gradient = objective(x)
            enough = search.loss + DECREASE * length * slope  # which rounding may make the same as the loss
            if loss <= enough and loss < search.loss and gradient.isfinite().all():
                return _moved(search, x, loss, gradient, pairs)
            length *= 0.5
    return Search(search.x, search.loss, search.gradient, ended=True)


def minimise(objective: Objective, x: Tensor, iterations: int, tolerance: float) -> Tensor:
    """x after so many iterations, or once a tenth of them make f smaller by less than the tolerance."""
    search, patience = start(objective, x), max(iterations // 10, 1)
    before = search.loss
    for iteration in range(1, iterations + 1):
        search = step(objective, search)
        if search.ended:
            break
        if iteration % patience == 0:
            if before - search.loss < tolerance:
                break
            before = search.loss
    return search.x


def _direction(gradient: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """-H g by the two-loop recursion (nocedal1980)."""
    q, weights = gradient, []
    for s, y in reversed(pairs):
        weights.append((s @ q) / (s @ y))
        q = q - weights[-1] * y
    if pairs:
        s, y = pairs[-1]
        q = (s @ y) / (y @ y) * q
    for (s, y), weight in zip(pairs, reversed(weights), strict=True):
        q = q + (weight - (y @ q) / (s @ y)) * s
    return -q


def _moved(search: Search, x: Tensor, loss: Tensor, gradient: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Search:
    s, y = x - search.x, gradient - search.gradient
    kept = [*pairs, (s, y)] if s @ y > CURVATURE * torch.linalg.norm(s) * torch.linalg.norm(y) else pairs
    return Search(x, loss, gradient, kept[-PAIRS:])
