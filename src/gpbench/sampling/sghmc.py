"""Stochastic-gradient Hamiltonian Monte Carlo whose preconditioner is learnt during burn-in.

The scheme of springenberg2016 as rossi2021 use it, element by element. With G = grad U / N for a potential U over
N data, step size e and friction b:

    burn-in   rho = 1 / (tau + 1);  g <- (1 - rho) g + rho G;  s <- (1 - rho) s + rho G^2;
              tau <- 1 + tau (1 - g^2 / s)                               (old values on the right, all start at 1)
    always    p <- (1 - b) p - e^2 G / sqrt(s) + N(0, 2 b e^2 / (N sqrt(s)));   theta <- theta + p

For U = theta^2 / (2 sd^2) with exact gradients the stationary variance is sd^2 / (1 - h / (2 (2 - b))),
h = e^2 / (N sqrt(s) sd^2); it is stable for h < 2 (2 - b).

Parameters and gradients are dicts of `[R, ...]`; no chain depends on another. Memory holds flat tensors `[R, K]`, one
column a scalar parameter, in the order of the dict.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_SQUARE = 1e-16


def flatten(tensors: dict[str, Tensor]) -> Tensor:
    """All entries side by side, `[R, K]`."""
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors.values()], 1)


def unflatten(flat: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `flatten`, with the names and shapes of `like`; flat may have more leading axes, `[*S, K]`."""
    parts = flat.split([tensor[0].numel() for tensor in like.values()], -1)
    return {
        name: part.reshape(*part.shape[:-1], *tensor.shape[1:])
        for (name, tensor), part in zip(like.items(), parts, strict=True)
    }


def init(params: dict[str, Tensor]) -> dict[str, Tensor]:
    """Momentum 0, and 1 for the running gradient, its square and the averaging window; each `[R, K]`."""
    flat = flatten(params)
    names = ("gradient_mean", "gradient_square", "averaging_window")
    return {"momentum": torch.zeros_like(flat)} | {name: torch.ones_like(flat) for name in names}


def step(
    params: dict[str, Tensor],
    gradient: dict[str, Tensor],
    memory: dict[str, Tensor],
    noise: Tensor,
    num_data: Tensor,
    *,
    step_size: Tensor | float,
    friction: float,
    adapt: bool,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One transition: the new parameters and memory.

    gradient of the potential U (not divided by N), named like params; noise `[R, K]` standard normal; num_data N
    `[R]`; step_size one number, or `[R, 1]`; friction in (0, 2). With `adapt` the preconditioner is updated first,
    otherwise it stays."""
    num_data = num_data[:, None]
    mean_gradient = flatten({name: gradient[name] for name in params}) / num_data
    if adapt:
        memory = memory | _adapted(memory, mean_gradient)
    scaled_step = step_size**2 / (memory["gradient_square"] + SMALLEST_SQUARE).sqrt()
    # p <- (1 - b) p - e^2 G / sqrt(s) + N(0, 2 b e^2 / (N sqrt(s)));   theta <- theta + p
    kick = (2 * friction * scaled_step / num_data).sqrt() * noise
    momentum = (1 - friction) * memory["momentum"] - scaled_step * mean_gradient + kick
    return unflatten(flatten(params) + momentum, params), memory | {"momentum": momentum}


def _adapted(memory: dict[str, Tensor], gradient: Tensor) -> dict[str, Tensor]:
    """Running moments of the gradient over a window that grows while its mean is small beside its spread."""
    mean, square, window = (memory[name] for name in ("gradient_mean", "gradient_square", "averaging_window"))
    rate = 1 / (window + 1)
    return {
        "gradient_mean": torch.lerp(mean, gradient, rate),
        "gradient_square": torch.lerp(square, gradient.square(), rate),
        "averaging_window": 1 + window * (1 - mean.square() / (square + SMALLEST_SQUARE)),
    }
