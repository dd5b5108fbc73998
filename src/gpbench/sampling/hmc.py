"""Hamiltonian Monte Carlo of R chains side by side (duane1987), and the random walk that some coordinates take instead.

For a log density l(w) up to a constant, unit mass and momentum p ~ N(0, I), a transition makes L leapfrog steps

    p <- p + e/2 grad l(w);   w <- w + e p;   p <- p + e/2 grad l(w)

and accepts where it ends with probability min(1, exp(l(w') - |p'|^2/2 - l(w) + |p|^2/2)). The leapfrog is reversible
and keeps volumes, so that l is left invariant whatever the step size e and L; drawing L anew every time keeps
trajectories from closing. A trajectory that ends in NaN is rejected.

Chains are the leading axis R; each has its own step size and number of steps, and none depends on another. All random
numbers are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

NOTHING = torch.empty(0)


class Point(NamedTuple):
    """Where chains are: position `[R, K]`, log density there `[R]` in nats, its gradient `[R, K]`, and what else is
    known there `[R, E]`."""

    position: Tensor
    value: Tensor
    gradient: Tensor
    extra: Tensor = NOTHING


LogDensity = Callable[[Tensor], Point]
"""Position `[R, K]` -> the point there; NaN in one chain must not change the others."""


def differentiated(log_density: Callable[[Tensor], Tensor]) -> LogDensity:
    """A log density `[R]` of positions `[R, K]` with its gradient, by automatic differentiation."""

    def at(position: Tensor) -> Point:
        leaf = position.detach().requires_grad_()
        value = log_density(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return Point(position, value.detach(), gradient)

    return at


def step(
    start: Point, log_density: LogDensity, momentum: Tensor, uniform: Tensor, step_size: Tensor, leapfrogs: Tensor
) -> tuple[Point, Tensor]:
    """One transition: the new point and the probability of acceptance `[R]`, 0 for NaN.

    momentum `[R, K]` standard normal; uniform `[R]` in (0, 1), for the Metropolis test; step_size `[R]`, leapfrogs
    `[R]` of integers >= 1. Source: neal2011, figure 2."""
    end, final = integrate(start, momentum, log_density, step_size, leapfrogs)
    # l(w') - |p'|^2/2 - l(w) + |p|^2/2
    gain = end.value - start.value + 0.5 * (momentum.square() - final.square()).sum(1)
    probability = acceptance(gain)
    return where(uniform < probability, end, start), probability


def random_walk(
    position: Tensor, value: Tensor, log_density: Callable[[Tensor], Tensor], jump: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One Metropolis transition: position `[R, K]`, its log density `[R]`, and the probability of acceptance `[R]`.

    value is the log density at the start; the proposal is `jump` `[R, K]` away, drawn from a symmetric law."""
    proposal = position + jump
    proposed = log_density(proposal)
    probability = acceptance(proposed - value)
    accepted = uniform < probability
    return torch.where(accepted[:, None], proposal, position), torch.where(accepted, proposed, value), probability


def integrate(
    start: Point, momentum: Tensor, log_density: LogDensity, step_size: Tensor, leapfrogs: Tensor
) -> tuple[Point, Tensor]:
    """The point after `leapfrogs` `[R]` steps and the momentum there; chains that are done wait for the others."""
    point, size = start, step_size[:, None]
    for number in range(int(leapfrogs.max())):
        active = leapfrogs > number
        # p <- p + e/2 grad l(w);  w <- w + e p;  p <- p + e/2 grad l(w)
        half = momentum + 0.5 * size * point.gradient
        moved = log_density(torch.where(active[:, None], point.position + size * half, point.position))
        momentum = torch.where(active[:, None], half + 0.5 * size * moved.gradient, momentum)
        point = where(active, moved, point)
    return point, momentum


def acceptance(gain: Tensor) -> Tensor:
    """min(1, exp(gain)) `[R]`; 0 where gain is NaN."""
    return gain.clamp_max(0.0).exp().nan_to_num(0.0)


def where(chosen: Tensor, new: Point, old: Point) -> Point:
    """The new points in the chosen chains `[R]`, the old ones in the others."""
    column = chosen[:, None]
    return Point(
        torch.where(column, new.position, old.position),
        torch.where(chosen, new.value, old.value),
        torch.where(column, new.gradient, old.gradient),
        old.extra if old.extra is NOTHING else torch.where(column, new.extra, old.extra),
    )


def draw_leapfrogs(uniform: Tensor, most: Tensor) -> Tensor:
    """Numbers of steps `[R]`, uniform on 1, ..., most; uniform `[R]` in (0, 1)."""
    # in single precision a uniform number may be rounded to 1
    return (uniform * most).long().clamp_max(most.long() - 1) + 1
