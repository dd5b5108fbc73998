"""The numerics of asynchronous SGD: a worker's gradient at the parameters it fetched, and the server's update by it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from gpbench.gp import linalg
from gpbench.study.fitting.loop import GradientLoop


class Push(NamedTuple):
    """What a worker gives back: the loss `[1]` and its gradient, an array a parameter (None: it plays no part); events
    of Cholesky factors."""

    loss: np.ndarray
    gradient: list[np.ndarray | None]
    events: list[linalg.Event]


def parameters_of(loop: GradientLoop) -> list[np.ndarray]:
    """Copies of the parameters."""
    return [p.detach().cpu().numpy().copy() for p in loop.state.params.values()]


@torch.no_grad()
def set_parameters(loop: GradientLoop, parameters: Iterable[np.ndarray]) -> None:
    """Put arrays, in the order of `parameters_of`, in the place of the parameters."""
    for p, array in zip(loop.state.params.values(), parameters, strict=True):
        p.copy_(torch.tensor(array))


def gradient(loop: GradientLoop, parameters: Iterable[np.ndarray], ticket: int) -> Push:
    """The gradient at some parameters, with the rows and the noise of step `ticket`."""
    set_parameters(loop, parameters)
    loss = loop.differentiate(*loop.draw(ticket))
    arrays = [None if p.grad is None else p.grad.cpu().numpy() for p in loop.state.params.values()]
    return Push(loss.cpu().numpy(), arrays, linalg.events())


def apply(loop: GradientLoop, push: Push, step: int) -> None:
    """Update number `step` of the parameters, by a pushed gradient."""
    for p, array in zip(loop.state.params.values(), push.gradient, strict=True):
        p.grad = None if array is None else torch.tensor(array, device=p.device)
    loop.update(torch.tensor(push.loss, device=loop.active.device), step)
