"""Kullback-Leibler divergences in closed form."""

from __future__ import annotations

from torch import Tensor


def mean_field_kl(mean: Tensor, log_variance: Tensor, prior_log_variance: Tensor) -> Tensor:
    """KL[N(m, s^2) || N(0, p^2)] of factorised Gaussians, in nats, summed over a matrix of them.

    1/2 (s^2 / p^2 + m^2 / p^2 - 1 - log s^2 / p^2); mean, log_variance `[R, D, F]`, prior_log_variance broadcasts with
    them; returns `[R]`.
    """
    log_ratio = log_variance - prior_log_variance
    terms = log_ratio.exp() + mean.square() * (-prior_log_variance).exp() - 1 - log_ratio
    return 0.5 * terms.sum((-2, -1))
