"""Means over the transitions of a chain, which a method reports: operations, acceptances, divergences."""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.sampling.latent.model import COUNTS, Info, State

SHARES = {"acceptance.latents": "latents.acceptance", "acceptance.theta": "theta.acceptance", "divergent": "divergent"}
"""Names of sums of shares, and what they are called in the info of an operator."""


def start(like: Tensor) -> State:
    """Sums before the first transition, each like a tensor `[R]`."""
    names = [*(f"count.{name}" for name in ("steps", *COUNTS)), *SHARES]
    return {name: torch.zeros_like(like) for name in names}


def add(sums: State, info: Info) -> State:
    """Sums with those of one more transition."""
    terms = {f"count.{name}": info.get(name, 0.0) for name in COUNTS} | {"count.steps": 1.0}
    terms |= {name: info.get(own, torch.nan) for name, own in SHARES.items()}
    return {name: sums[name] + value for name, value in terms.items()}


def means(sums: State) -> State:
    """Means per transition `[R]`, named as in `SamplerMethod.report`."""
    steps = sums["count.steps"].clamp_min(1)
    counts = {name: sums[f"count.{name}"] / steps for name in COUNTS}
    return counts | {name.replace(".", "_"): sums[name] / steps for name in SHARES}
