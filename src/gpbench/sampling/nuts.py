"""The No-U-Turn sampler of R chains side by side (hoffman2014), with the weights of betancourt2017.

From p ~ N(0, I) a trajectory of leapfrog steps is doubled, forwards or backwards by chance, until it or one of the
subtrees that it is made of turns back, which for momenta p_l and p_r at the ends and rho the sum of all is

    p_l . (rho - (p_l + p_r)/2) <= 0   or   p_r . (rho - (p_l + p_r)/2) <= 0,

until a point is `DIVERGED` nats below the start, or `depth` times. Points weigh exp(l(w) - |p|^2/2). A subtree draws
one of its points by weight; if it is complete, the trajectory goes over to that point with probability min(1, weight
of the subtree / weight of what was there before), so that far points are favoured and l is left invariant.

No tree is built: in step n (from 0) of a subtree, the subtrees that end there begin where the ones at the end of n in
binary are taken away one by one, and a place for each digit is enough for the momenta there (phan2019). Chains double
on their own: none waits for another within a transition, and the density is computed for those that are still going.
All random numbers are arguments.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gpbench.sampling import hmc
from gpbench.sampling.hmc import Point

DIVERGED = 1000.0
"""Nats of energy by which a step is wrong beyond doubt."""


class LogDensity(Protocol):
    """Positions `[A, K]` of some chains -> the points there; chains `[A]`: which ones, None for all."""

    def __call__(self, position: Tensor, chains: Tensor | None = None) -> Point: ...


class Move(NamedTuple):
    """The point after a transition, the mean probability of acceptance along the trajectory, its number of leapfrog
    steps and whether it diverged, each `[R]`."""

    point: Point
    acceptance: Tensor
    leapfrogs: Tensor
    divergent: Tensor


class Subtree(NamedTuple):
    """The doubling in progress: where it is, its momentum, the point drawn of it, log weight `[R]`, sum of momenta and
    number of steps `[R]`; momenta and their sums `[R, depth, K]` where unfinished subtrees of it begin."""

    at: Point
    momentum: Tensor
    drawn: Point
    log_weight: Tensor
    total: Tensor
    steps: Tensor
    starts: Tensor
    totals: Tensor


class Trajectory(NamedTuple):
    """What is complete: both ends with their momenta, the point drawn, log weight `[R]`, sum of momenta, doublings."""

    ends: tuple[Point, Point]
    momenta: tuple[Tensor, Tensor]
    drawn: Point
    log_weight: Tensor
    total: Tensor
    doublings: Tensor


def uniforms_needed(depth: int) -> int:
    """Random numbers of a transition besides the momentum: for every doubling two, for every step one."""
    return 2 * depth + 2**depth - 1


def step(
    start: Point, log_density: LogDensity, momentum: Tensor, uniforms: Tensor, step_size: Tensor, depth: int
) -> Move:
    """One transition: momentum `[R, K]` standard normal, uniforms `[R, uniforms_needed(depth)]`, step_size `[R]`."""
    directions, merges, draws = uniforms.tensor_split([depth, 2 * depth], 1)
    zero, none = torch.zeros_like(step_size), torch.zeros_like(step_size, dtype=torch.long)
    energy = start.value - 0.5 * momentum.square().sum(1)
    places = momentum.new_zeros(len(momentum), depth, momentum.shape[1])
    whole = Trajectory((start, start), (momentum, momentum), start, zero, momentum, none)
    part = Subtree(start, momentum, start, zero - math.inf, 0 * momentum, none, places, places)
    active, accepted, taken = torch.ones_like(zero, dtype=torch.bool), zero, none
    divergent = ~active
    while bool(active.any()):
        forwards = _picked(directions, whole.doublings) < 0.5
        part = _leapfrog(part, log_density, torch.where(forwards, step_size, -step_size), active)
        gain = (part.at.value - 0.5 * part.momentum.square().sum(1) - energy).nan_to_num(-math.inf)
        accepted = accepted + torch.where(active, gain.clamp_max(0.0).exp(), 0.0)
        part, turned = _counted(part, gain, _picked(draws, taken), active)
        taken = taken + active
        failed = active & (gain < -DIVERGED)
        divergent = divergent | failed
        ended = active & (turned | failed)
        active = active & ~ended
        complete = active & (part.steps == 2**whole.doublings)
        if bool(complete.any()):
            whole, turned = _merged(whole, part, forwards, _picked(merges, whole.doublings), complete)
            active = active & ~(complete & (turned | (whole.doublings == depth)))
            part = _begun(part, whole, _picked(directions, whole.doublings) < 0.5, complete & active)
    return Move(whole.drawn, accepted / taken, taken.to(zero), divergent)


def _picked(values: Tensor, column: Tensor) -> Tensor:
    """values[r, column[r]] `[R]`; the last column where there is none."""
    return values.gather(1, column.clamp_max(values.shape[1] - 1)[:, None])[:, 0]


def _leapfrog(part: Subtree, log_density: LogDensity, step_size: Tensor, active: Tensor) -> Subtree:
    """The subtree one step further in active chains."""
    chains = None if bool(active.all()) else active.nonzero()[:, 0]
    at, momentum, size = part.at, part.momentum, step_size[:, None]
    if chains is not None:
        at = Point(*(value if value is hmc.NOTHING else value[chains] for value in at))
        momentum, size = momentum[chains], size[chains]
    # p <- p + e/2 grad l(w);  w <- w + e p;  p <- p + e/2 grad l(w)
    half = momentum + 0.5 * size * at.gradient
    moved = log_density(at.position + size * half, chains)
    momentum = half + 0.5 * size * moved.gradient
    if chains is not None:
        pairs = zip(part.at, moved, strict=True)
        moved = Point(*(old if old is hmc.NOTHING else old.index_copy(0, chains, new) for old, new in pairs))
        momentum = part.momentum.index_copy(0, chains, momentum)
    return part._replace(at=moved, momentum=momentum)


def _counted(part: Subtree, gain: Tensor, uniform: Tensor, active: Tensor) -> tuple[Subtree, Tensor]:
    """The subtree with its last step counted in, and whether one that ends there turns `[R]`; gain: its log weight."""
    log_weight = torch.logaddexp(part.log_weight, gain)
    drawn = hmc.where(active & (uniform.log() < gain - log_weight), part.at, part.drawn)
    total, number = part.total + part.momentum, part.steps
    # the ones at the end of n in binary, and those before them: places of the subtrees that end here
    depth = part.starts.shape[1]
    index = torch.arange(depth, device=number.device)
    digits = (number[:, None] >> index) & 1
    last, place = digits.cumprod(1).sum(1), digits[:, 1:].sum(1)
    begins = ((index == place[:, None]) & (digits[:, :1] == 0) & active[:, None])[..., None]
    ends = (index <= place[:, None]) & (index > (place - last)[:, None])
    inside = total[:, None] - part.totals + part.starts
    turned = (_turns(part.starts, part.momentum[:, None], inside) & ends).any(1)
    starts = torch.where(begins, part.momentum[:, None], part.starts)
    totals = torch.where(begins, total[:, None], part.totals)
    counted = Subtree(part.at, part.momentum, drawn, log_weight, total, number + active, starts, totals)
    return counted, turned


def _merged(
    whole: Trajectory, part: Subtree, forwards: Tensor, uniform: Tensor, complete: Tensor
) -> tuple[Trajectory, Tensor]:
    """The trajectory with its subtree where that is complete `[R]`, and whether it turns then `[R]`."""
    drawn = hmc.where(complete & (uniform.log() < part.log_weight - whole.log_weight), part.drawn, whole.drawn)
    log_weight = torch.where(complete, torch.logaddexp(whole.log_weight, part.log_weight), whole.log_weight)
    total = torch.where(complete[:, None], whole.total + part.total, whole.total)
    behind, ahead = complete & ~forwards, complete & forwards
    ends = hmc.where(behind, part.at, whole.ends[0]), hmc.where(ahead, part.at, whole.ends[1])
    left = torch.where(behind[:, None], part.momentum, whole.momenta[0])
    right = torch.where(ahead[:, None], part.momentum, whole.momenta[1])
    whole = Trajectory(ends, (left, right), drawn, log_weight, total, whole.doublings + complete)
    return whole, _turns(left, right, total)


def _begun(part: Subtree, whole: Trajectory, forwards: Tensor, chosen: Tensor) -> Subtree:
    """The next subtree in the chosen chains `[R]`, from the end at which it goes on."""
    at = hmc.where(chosen & ~forwards, whole.ends[0], hmc.where(chosen & forwards, whole.ends[1], part.at))
    left, right = whole.momenta
    momentum = torch.where(chosen[:, None], torch.where(forwards[:, None], right, left), part.momentum)
    return part._replace(
        at=at,
        momentum=momentum,
        log_weight=part.log_weight.masked_fill(chosen, -math.inf),
        total=part.total.masked_fill(chosen[:, None], 0.0),
        steps=part.steps.masked_fill(chosen, 0),
    )


def _turns(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    """Whether trajectories with momenta `[..., K]` at the ends and their sum `[..., K]` turn back."""
    along = total - 0.5 * (left + right)
    return ((left * along).sum(-1) <= 0) | ((right * along).sum(-1) <= 0)
