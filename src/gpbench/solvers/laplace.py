"""The mode of Laplace's approximation by Newton's method, with whatever solves B x = r (cutajar2016, section 2.2).

Of log p(y | f) - 1/2 f^T K^-1 f, f = K a, with W = -grad grad log p(y | f), S = W^1/2 and B = I + S K S:

    b = W f + grad log p(y | f),   B x = S K b,   a = b - S x,   f = K a.

A step is halved while it makes things worse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gpbench.gp.latent_likelihoods import Likelihood

TOLERANCE, MOST_STEPS, MOST_HALVINGS = 1e-6, 50, 30
"""Largest change of f at which Newton's method ends (in single precision the root of what 1 + eps tells from 1), steps
it may take, and times that a step may be halved."""
SLACK = 1e-3
"""Nats that a step may lose; far more than rounding."""


class Mode(NamedTuple):
    """f, a = K^-1 f, grad log p(y | f), S and d3 log p(y | f) / df3, each `[n]`; log p(y | f) - 1/2 f^T a in nats."""

    f: Tensor
    a: Tensor
    gradient: Tensor
    root: Tensor
    third: Tensor
    value: Tensor


@torch.no_grad()
def mode(
    multiply: Callable[[Tensor], Tensor], solve: Callable[[Tensor, Tensor], Tensor], y: Tensor, likelihood: Likelihood
) -> Mode:
    """The mode for targets y `[n]`: multiply(v) = K v, solve(S, r) = B^-1 r, of vectors `[n]`.

    After `MOST_STEPS` steps, or where something is not finite, what it has come to."""
    f = a = torch.zeros_like(y)
    tolerance = max(TOLERANCE, torch.finfo(y.dtype).eps ** 0.5)
    value = likelihood.log_prob(y, f).sum()
    for _ in range(MOST_STEPS):
        curvature = likelihood.curvature(y, f).clamp_min(0.0)
        root, b = curvature.sqrt(), curvature * f + likelihood.gradient(y, f)
        step_a = b - root * solve(root, root * multiply(b)) - a
        step = multiply(a + step_a) - f
        size = 1.0
        for _ in range(MOST_HALVINGS):
            new_f, new_a = f + size * step, a + size * step_a
            new_value = likelihood.log_prob(y, new_f).sum() - 0.5 * new_f @ new_a
            if new_value >= value - SLACK or not bool(step.isfinite().all()):
                break
            size *= 0.5
        f, a, value = new_f, new_a, new_value
        if not step.abs().max() >= tolerance:  # so of NaN too
            break
    root = likelihood.curvature(y, f).clamp_min(0.0).sqrt()
    return Mode(f, a, likelihood.gradient(y, f), root, likelihood.third(y, f), value)
