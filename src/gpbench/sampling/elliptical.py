"""Elliptical slice sampling of a vector with a Gaussian prior (murray2010, figure 2).

For f ~ N(0, Sigma) a priori and a likelihood L(f), a transition draws nu ~ N(0, Sigma), a threshold U L(f) with
U ~ U(0, 1), and an angle phi ~ U(0, 2 pi), and goes along the ellipse through f and nu:

    f' = f cos phi + nu sin phi,  accepted where L(f') > U L(f);

otherwise the bracket (first [phi - 2 pi, phi]) shrinks to phi on its side of 0, and phi is drawn again from it. There
is nothing to tune and the prior itself is never evaluated. Chains are the leading axis R and none depends on another:
those that have accepted stay while others go on. All random numbers are arguments, one uniform for every try.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

MAX_TRIES = 64
"""After so many rejections the bracket is about 2 pi e^-32 wide, so that a chain which stays has not visibly moved."""


def step(
    f: Tensor, log_likelihood: Callable[[Tensor], Tensor], value: Tensor, prior_draw: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One transition of R chains: the new f `[R, ...]`, its log likelihood and the number of tries `[R]`.

    log_likelihood maps f to `[R]` nats; value is that of f; prior_draw nu in the shape of f; uniforms `[R, 1 + T]` in
    (0, 1): that of the threshold, then one for every try. A chain stays where it is after T rejected tries, and if its
    log likelihood is NaN; proposals of NaN are rejected. Source: murray2010."""
    threshold = value + uniforms[:, 0].log()
    waiting = ~threshold.isnan()
    moved, moved_value, tries = f, value, torch.zeros_like(waiting, dtype=torch.int64)
    low, high = torch.zeros_like(value), torch.full_like(value, 2 * math.pi)
    for number, uniform in enumerate(uniforms[:, 1:].unbind(1)):
        angle = low + uniform * (high - low)
        if number == 0:
            low = angle - 2 * math.pi  # the whole ellipse, cut at the first angle
        # f' = f cos phi + nu sin phi
        proposal = _along(angle.cos(), f) + _along(angle.sin(), prior_draw)
        proposed = log_likelihood(proposal)
        accepted = waiting & (proposed > threshold)
        moved = torch.where(_shaped(accepted, f), proposal, moved)
        moved_value = torch.where(accepted, proposed, moved_value)
        tries = tries + waiting
        waiting = waiting & ~accepted
        if not bool(waiting.any()):
            break
        low, high = torch.where(angle < 0, angle, low), torch.where(angle < 0, high, angle)
    return moved, moved_value, tries


def _along(factor: Tensor, f: Tensor) -> Tensor:
    return _shaped(factor, f) * f


def _shaped(values: Tensor, f: Tensor) -> Tensor:
    """values `[R]` with as many axes as f."""
    return values.reshape(-1, *[1] * (f.ndim - 1))
