"""Preconditioned Crank-Nicolson: random walks that leave a prior N(0, I) of whitened variables be (cotter2013).

    xi' = sqrt(1 - b^2) xi + b z,  z ~ N(0, I),    accepted with probability min(1, L(xi') / L(xi)).

The prior cancels. Step sizes b in (0, 1] are adapted towards an acceptance: after every window of steps they grow or
shrink by a factor of 1.25. Chains are all leading axes of the values; every chain has a step size of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WINDOW, TARGET, GROWTH = 100, 0.3, 1.25
"""Steps between adaptations, the acceptance that they aim at, and the factor of the step size."""


def step(
    position: list[Tensor],
    value: Tensor,
    log_likelihood: Callable[[list[Tensor]], Tensor],
    normals: list[Tensor],
    uniform: Tensor,
    size: Tensor,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """One transition of chains `[*R]`: the new position, its log likelihood and whether it was accepted `[*R]`.

    position, normals: tensors `[*R, k, width]`; value: the log likelihood; uniform in (0, 1), size: b, `[*R]`. A
    proposal of NaN is rejected."""
    along = size[..., None, None]
    proposal = [(1 - along.square()).sqrt() * xi + along * z for xi, z in zip(position, normals, strict=True)]
    proposed = log_likelihood(proposal)
    accepted = proposed - value > uniform.log()
    moved = [torch.where(accepted[..., None, None], new, old) for new, old in zip(proposal, position, strict=True)]
    return moved, torch.where(accepted, proposed, value), accepted


def adapt(size: Tensor, accepted: Tensor) -> Tensor:
    """The step sizes `[*R]` after a window in which a fraction `accepted` `[*R]` of the proposals was accepted."""
    return torch.where(accepted > TARGET, size * GROWTH, size / GROWTH).clamp_max(1.0)
