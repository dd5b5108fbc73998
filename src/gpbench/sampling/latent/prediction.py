"""Predictions of f at new rows from kept states (f, psi) of chains."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gpbench.sampling.latent.model import Model, State
from gpbench.sampling.latent.pseudo_marginal import APPROXIMATIONS

CHUNK_ELEMENTS = 2**22
"""The largest number of elements of the covariance matrices of kept states that predict together."""


def moments(model: Model, kept: State, x: Tensor, approximation: str | None) -> tuple[Tensor, Tensor]:
    """Mean, variance `[S, R, T]` of f at x `[R, T, D]` given S kept states, or by an approximation given their psi."""
    size = max(1, CHUNK_ELEMENTS // (model.x.shape[1] ** 2 * len(x)))
    chunks = zip(*(values.split(size) for values in kept.values()), strict=True)
    parts = [_moments(model, dict(zip(kept, chunk, strict=True)), x, approximation) for chunk in chunks]
    mean, variance = (torch.cat(part) for part in zip(*parts, strict=True))
    return mean, variance


def _moments(model: Model, kept: State, x: Tensor, approximation: str | None) -> tuple[Tensor, Tensor]:
    shape = kept["psi"].shape[:2]
    flat = {name: value.flatten(0, 1) for name, value in kept.items()}  # S R chains
    psi, x = flat["psi"], _repeated(x, shape[0])
    rows, y, weight = (_repeated(part, shape[0]) for part in (model.x, model.y, model.weight))
    model = replace(model, x=rows, y=y, weight=weight)
    chol, cross, prior = model.factor(psi), model.cross(psi, x), model.kernel(psi).diagonal(x)
    if approximation:
        mean, variance = APPROXIMATIONS[approximation](model, psi, chol).predict(chol, cross, prior)
    else:
        joined = torch.linalg.solve_triangular(chol, torch.cat([cross, flat["f"][..., None]], 2), upper=False)
        left, nu = joined[..., :-1], joined[..., -1:]
        # k_*^T K^-1 f and k_** - k_*^T K^-1 k_*, with L^-1 k_* and nu = L^-1 f
        mean = (left.mT @ nu)[..., 0]
        variance = (prior - left.square().sum(1)).clamp_min(0.0)
    return mean.unflatten(0, shape), variance.unflatten(0, shape)


def _repeated(values: Tensor, times: int) -> Tensor:
    """values `[R, ...]` as `[times R, ...]`."""
    return values.expand(times, *values.shape).flatten(0, 1)
