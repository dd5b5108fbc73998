"""Riemann manifold Hamiltonian Monte Carlo of R chains side by side (girolami2011): HMC whose mass is a metric G(x).

    H(x, p) = -l(x) + log|G(x)|/2 + p^T G(x)^-1 p/2,    p ~ N(0, G(x));
    dH/dx_i = -dl/dx_i + Tr(G^-1 d_iG)/2 - u^T d_iG u/2,    u = G^-1 p.

The leapfrog is implicit, the first two of its equations being solved by fixed-point iterations:

    p_half = p - e/2 dH/dx(x, p_half);  x' = x + e/2 (G(x)^-1 + G(x')^-1) p_half;  p' = p_half - e/2 dH/dx(x', p_half).

If the equations are solved, it is reversible and keeps volumes. With a fixed number of iterations they often are not:
with six, the draws visibly have another law. So iterations go on until nothing moves; a trajectory for which
`MOST_ITERATIONS` are not enough is rejected, as is one that ends in NaN, and long steps thus have low acceptances. So
is one that does not lead back: from its end with the momentum turned round the equations must be solved again and end
at the start (of those solved forwards one in twelve is not solved backwards at long steps). With a constant metric it
is HMC with mass G. All random numbers are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gpbench.gp.linalg import half_log_det, multiply, solve, solve_transposed
from gpbench.sampling import hmc

MOST_ITERATIONS, TOLERANCE = 20, 1e-4
"""Of a fixed-point iteration, and the relative change that ends it; filippone2012 gives neither."""
RETURNED = 1e-2
"""Relative distance from the start at which a trajectory back still counts as having returned: what tolerances leave
over ten steps is less, another solution of the equations is farther."""


class Point(NamedTuple):
    """Position, log density and its gradient, factor of G `[R, K, K]`, Tr(G^-1 d_iG) `[R, K]`, and the quantity that
    `Target.quadratics` needs."""

    position: Tensor
    value: Tensor
    gradient: Tensor
    factor: Tensor
    traces: Tensor
    local: Tensor


class Target(Protocol):
    """A density of positions `[R, K]` with its metric; NaN in one chain must not change the others."""

    def factor(self, position: Tensor) -> Tensor:
        """Lower factor of G `[R, K, K]`."""

    def at(self, position: Tensor) -> Point:
        """The position with everything that a `Point` holds."""

    def quadratics(self, point: Point, u: Tensor) -> Tensor:
        """u^T d_iG u `[R, K]`."""


class Move(NamedTuple):
    """Positions after a transition `[R, K]`, its probability of acceptance and the number of metrics for it `[R]`."""

    position: Tensor
    acceptance: Tensor
    metrics: Tensor


def step(start: Point, target: Target, normal: Tensor, uniform: Tensor, step_size: Tensor, leapfrogs: int) -> Move:
    """One transition: normal `[R, K]` standard; uniform `[R]` in (0, 1), for the Metropolis test; step_size `[R]`.

    Source: girolami2011, section 6."""
    momentum = multiply(start.factor, normal)
    wanted = torch.ones_like(step_size, dtype=torch.bool)
    end, final, solved, metrics = integrate(start, momentum, target, step_size, leapfrogs, wanted)
    back, _, solved, more = integrate(end, -final, target, step_size, leapfrogs, solved)
    far = (back.position - start.position).abs().amax(1) > RETURNED * (1 + start.position.abs().amax(1))
    gain = energy(start, momentum) - energy(end, final)
    probability = hmc.acceptance(gain) * (solved & ~far)
    position = torch.where((uniform < probability)[:, None], end.position, start.position)
    return Move(position, probability, metrics + more)


def integrate(
    start: Point, momentum: Tensor, target: Target, step_size: Tensor, leapfrogs: int, wanted: Tensor
) -> tuple[Point, Tensor, Tensor, Tensor]:
    """The point after generalised leapfrog steps of the chains that are wanted `[R]`, the momentum there, whether all
    equations were solved `[R]` and how many metrics that took `[R]`."""
    point, size, solved, metrics = start, step_size[:, None], wanted, torch.zeros_like(step_size)
    for _ in range(leapfrogs):
        if not bool(solved.any()):
            break
        here, before = point, momentum

        def pushed(p: Tensor, x: Point = here, start: Tensor = before) -> Tensor:
            return start - 0.5 * size * slope(x, target, p)

        # p_half = p - e/2 dH/dx(x, p_half)
        half, solved, _ = fixed_point(pushed, before, solved)
        velocity = _solve(here.factor, half)

        def moved(position: Tensor, x: Tensor = here.position, v: Tensor = velocity, p: Tensor = half) -> Tensor:
            return x + 0.5 * size * (v + _solve(target.factor(position), p))

        # x' = x + e/2 (G(x)^-1 + G(x')^-1) p_half; the first iteration, with G(x') = G(x), needs no new metric
        position, solved, tries = fixed_point(moved, here.position + size * velocity, solved)
        point = target.at(position)
        # p' = p_half - e/2 dH/dx(x', p_half)
        momentum = half - 0.5 * size * slope(point, target, half)
        metrics = metrics + tries + solved
    return point, momentum, solved, metrics


def fixed_point(update: Callable[[Tensor], Tensor], start: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The x = update(x) `[R, K]` reached from start, whether it is solved `[R]`, and the number of updates `[R]`.

    Chains that are solved, or that are not wanted `[R]`, do not move while the others go on."""
    x, tries, solved = start, torch.zeros_like(start[:, 0]), torch.zeros_like(wanted)
    active = wanted
    for _ in range(MOST_ITERATIONS):
        if not bool(active.any()):
            break
        new = update(x)
        change = (new - x).abs().amax(1)
        x, tries = torch.where(active[:, None], new, x), tries + active
        solved = solved | (active & (change <= TOLERANCE * (1 + new.abs().amax(1))))
        active = active & ~solved & change.isfinite()
    return x, solved, tries


def slope(point: Point, target: Target, momentum: Tensor) -> Tensor:
    """dH/dx `[R, K]`."""
    u = _solve(point.factor, momentum)
    return -point.gradient + 0.5 * point.traces - 0.5 * target.quadratics(point, u)


def energy(point: Point, momentum: Tensor) -> Tensor:
    """H `[R]`."""
    return -point.value + half_log_det(point.factor) + 0.5 * solve(point.factor, momentum).square().sum(-1)


def _solve(factor: Tensor, vector: Tensor) -> Tensor:
    """G^-1 v."""
    return solve_transposed(factor, solve(factor, vector))
