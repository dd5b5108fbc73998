"""Stochastic dual descent for A alpha = b, A = K + diag(noise) (lin2024, algorithm 1).

    L*(alpha) = 1/2 alpha^T A alpha - alpha^T b                                     the dual objective
    g_t     = n/B sum_{i in I_t} [A_i (alpha_t-1 + rho v_t-1) - b_i] e_i            random coordinates
    v_t     = rho v_t-1 - beta g_t,   alpha_t = alpha_t-1 + v_t                     Nesterov momentum
    mean_t  = r alpha_t + (1 - r) mean_t-1                                          geometric averaging

I_t: B of the n rows, drawn uniformly, here without replacement. A step forms B rows of K: O(n B). The paper tunes
n beta by hand between 10 and 100; here it is what bounds a step,

    n beta = B min(1 / lambda_max(A_BB),  (1 - rho) / max_i A_ii).

The first matters where rows are alike (long lengthscales): a step then does not raise L* in its block. The second
matters where they are not: momentum moves a coordinate 1 / (1 - rho) times as far as its gradient asked for before it
is drawn again. With rho = 0.9, B = 512 and unit variance the second is n beta = 51.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpbench.solvers.products import KernelProduct


class Iterate(NamedTuple):
    """alpha, v and the mean, all `[n, c]` for c right-hand sides."""

    alpha: Tensor
    velocity: Tensor
    mean: Tensor


def step_size(product: KernelProduct, block: Tensor, momentum: float) -> Tensor:
    """beta of a random block of rows `[B]`, O(n B D + B^3): all of its rows of K are formed."""
    largest = torch.linalg.eigvalsh(product.rows(block)[:, block])[-1]
    bound = torch.minimum(1 / largest, (1 - momentum) / product.diagonal().max())
    return bound * len(block) / product.n


def step(
    product: KernelProduct, b: Tensor, now: Iterate, block: Tensor, beta: Tensor, momentum: float, averaging: float
) -> tuple[Iterate, Tensor]:
    """The next iterate, from rows `[B]`, and the unbiased estimate of L* `[c]` at alpha_t-1 + rho v_t-1."""
    ahead = now.alpha + momentum * now.velocity
    scale = product.n / len(block)
    image = product.rows(block) @ ahead  # A_i (alpha + rho v)
    objective = scale * (ahead[block] * (0.5 * image - b[block])).sum(0)
    velocity = (momentum * now.velocity).index_add(0, block, image - b[block], alpha=-float(beta) * scale)
    alpha = now.alpha + velocity
    return Iterate(alpha, velocity, torch.lerp(now.mean, alpha, averaging)), objective
