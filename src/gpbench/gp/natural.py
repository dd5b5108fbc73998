"""Natural-gradient steps of Gaussian variational distributions."""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.gp import linalg

HALVINGS = 40


def step(
    mean: Tensor, chol: Tensor, grad_mean: Tensor, grad_chol: Tensor, rate: Tensor, name: str
) -> tuple[Tensor, Tensor]:
    """Mean and factor of q(v_q) = N(m_q, S_q), S = L L^T, after theta <- theta - rate d loss / d eta.

    With theta = (S^-1 m, -S^-1 / 2), eta = (m, S + m m^T) and G = d loss / d S the step is

        S'^-1 = S^-1 + 2 rate G,    m' = m - rate S' d loss / d m.

    L^T (2 G) L is the symmetric matrix H whose lower triangle is that of L^T (d loss / d L); with I + rate H = U U^T,
    U upper triangular, L' = L U^-T is lower triangular: S itself is never inverted.
    mean, grad_mean `[R, M, Q]`, chol, grad_chol `[R, Q, M, M]` (lower triangular), rate `[R]`, halved where it would
    leave S'^-1 indefinite; a gradient that is not finite gives NaN and an event of `linalg.cholesky` under `name`.
    Source: hensman2013; salimbeni2018."""
    product = chol.mT @ grad_chol
    eye = torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device)
    slope = product.tril() + product.tril(-1).mT
    rate = _shortened(rate[:, None, None, None], slope, eye)
    precision = eye + rate * slope
    # reversed, the lower factor is upper; the replicas come last where events are numbered
    flipped = linalg.cholesky(precision.flip(-2, -1).transpose(0, 1), name).transpose(0, 1)
    new_chol = torch.linalg.solve_triangular(flipped.flip(-2, -1).mT, chol, upper=False, left=False)
    change = new_chol @ (new_chol.mT @ grad_mean.mT[..., None])  # [R, Q, M, 1]
    return mean - rate[..., 0] * change[..., 0].mT, new_chol


def _shortened(rate: Tensor, slope: Tensor, eye: Tensor) -> Tensor:
    """Rates `[R, 1, 1, 1]` of which I + rate H is definite for every output, H `[R, Q, M, M]`.

    One that is not is halved until it is, and once more: no precision then falls by more than half."""
    shorter = rate
    for _ in range(HALVINGS):
        failed = (torch.linalg.cholesky_ex(eye + shorter * slope).info > 0).any(1)
        if not bool(failed.any()):
            break
        shorter = torch.where(failed[:, None, None, None], 0.5 * shorter, shorter)
    return torch.where(shorter < rate, 0.5 * shorter, rate)
