"""Covariance functions, and where their lengthscales start."""

from __future__ import annotations

import torch
from torch import Tensor


def rbf(x1: Tensor, x2: Tensor, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
    """Squared-exponential covariance with one lengthscale an input (ARD).

    k(a, b) = outputscale * exp(-1/2 sum_d (a_d - b_d)^2 / lengthscale_d^2).
    x1 `[*R, N, D]`, x2 `[*R, M, D]`, lengthscale `[*R, D]` (units of x), outputscale `[*R]` (a variance,
    units of f squared); returns `[*R, N, M]`.
    """
    a, b = x1 / lengthscale[..., None, :], x2 / lengthscale[..., None, :]
    norm_a = 0.5 * a.square().sum(-1, keepdim=True) - outputscale.log()[..., None, None]
    norm_b = 0.5 * b.square().sum(-1, keepdim=True)
    # norms and scale ride in the matrix product as two more columns: [a, -norm_a, 1] [b, 1, -norm_b]^T
    left = torch.cat([a, -norm_a, torch.ones_like(norm_a)], -1)
    right = torch.cat([b, torch.ones_like(norm_b), -norm_b], -1)
    return (left @ right.mT).exp()


def start_lengthscale(x: Tensor, given: float | None = None) -> Tensor:
    """Initial lengthscale `[R]`: the one given, else sqrt(sum_d var x_d), which is sqrt(D) on standardised inputs.

    x `[R, N, D]`: the training rows, none of padding.
    """
    if given is not None:
        return x.new_full(x.shape[:1], given)
    centred = x - x.sum(1, keepdim=True) / x.shape[1]
    return (centred.square().sum((1, 2)) / x.shape[1]).clamp_min(1e-6).sqrt()
