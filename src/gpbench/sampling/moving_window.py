"""Moving-window Monte Carlo EM (havasi2018): parameters that a chain does not sample are optimised at its past states.

A step stores the state of the chain, chooses one of the last `window` states at random, and moves the parameters
phi by one step of Adam along the gradient of the loss there:

    m = b_1 m + (1 - b_1) g,  s = b_2 s + (1 - b_2) g^2,
    phi = phi - rate * m / (1 - b_1^t) / (sqrt(s / (1 - b_2^t)) + epsilon).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpbench.sampling.sghmc import flatten, unflatten

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8
Params = dict[str, Tensor]


def init(chain: Params, parameters: Params, window: int) -> Params:
    """Memory of the optimiser of some parameters: Adam's moments `[R, P]`, and `window` states `[R, w, K]`."""
    flat, state = flatten(parameters), flatten(chain)
    moments = {"adam_mean": torch.zeros_like(flat), "adam_square": torch.zeros_like(flat)}
    return moments | {"window": state.new_zeros(len(state), window, state.shape[1])}


def step(
    chain: Params,
    parameters: Params,
    memory: Params,
    choice: Tensor,
    loss: Callable[[Params], Tensor],
    *,
    count: int,
    learning_rate: Tensor | float,
) -> tuple[Params, Params]:
    """Parameters, and Adam's moments of the memory, after step `count` (from 0); the window of the memory is written in
    place. choice `[R]`: normals; loss: of all params, `[R]`."""
    window = memory["window"]
    window[:, count % window.shape[1]] = flatten(chain)
    filled = min(count + 1, window.shape[1])
    member = (torch.special.ndtr(choice) * filled).long().clamp_max(filled - 1)
    chosen = unflatten(window[torch.arange(len(window), device=window.device), member], chain)
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    gradients = torch.autograd.grad(loss(chosen | leaves).sum(), list(leaves.values()))
    gradient = flatten(dict(zip(leaves, gradients, strict=True)))
    mean = torch.lerp(gradient, memory["adam_mean"], FIRST_DECAY)
    square = torch.lerp(gradient.square(), memory["adam_square"], SECOND_DECAY)
    direction = mean / (1 - FIRST_DECAY ** (count + 1))
    scale = (square / (1 - SECOND_DECAY ** (count + 1))).sqrt() + EPSILON
    moved = flatten(parameters) - learning_rate * direction / scale
    return unflatten(moved, parameters), {"adam_mean": mean, "adam_square": square}
