"""Factorised Gaussian posteriors N(m, s^2) of weights: their divergence from a prior, and draws of what they weigh."""

from __future__ import annotations

from torch import Tensor

from gpbench.gp.features import product

LOG_VARIANCE_RANGE = (-20.0, 5.0)
SMALLEST_VARIANCE = 1e-16
"""Of the outputs that are drawn; keeps the gradient of the root finite."""


def factor(params: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    """Mean and clipped log variance of the weights `name`."""
    return params[f"{name}_mean"], params[f"{name}_log_variance"].clamp(*LOG_VARIANCE_RANGE)


def kl(mean: Tensor, log_variance: Tensor, prior_log_variance: Tensor) -> Tensor:
    """KL[N(m, s^2) || N(0, p^2)] of factorised Gaussians, in nats, summed over a matrix of them.

    1/2 (s^2 / p^2 + m^2 / p^2 - 1 - log s^2 / p^2) `[R]`; mean, log_variance `[R, D, F]`, the prior's broadcasts."""
    log_ratio = log_variance - prior_log_variance
    terms = log_ratio.exp() + mean.square() * (-prior_log_variance).exp() - 1 - log_ratio
    return 0.5 * terms.sum((-2, -1))


def draw_outputs(phi: Tensor, mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """Phi m + sqrt(Phi^2 s^2) eps `[*S, R, B, Q]`, element by element: Phi W drawn a row at a time (kingma2015); phi
    `[*S, R, B, F]`, mean and log_variance (of W, log s^2) `[R, F, Q]`, noise eps `[*S, R, B, Q]`."""
    variance = product(phi.square(), log_variance.exp())
    return product(phi, mean) + variance.clamp_min(SMALLEST_VARIANCE).sqrt() * noise
