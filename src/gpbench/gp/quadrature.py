"""Integrals against a normal distribution in one dimension, by weighted nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

Rule = tuple[np.ndarray, np.ndarray]
"""Nodes t_k and weights w_k `[K]` with E[g(e)] = sum_k w_k g(t_k) for a standard normal e."""

SMALLEST_VARIANCE = 1e-12
"""Below it a marginal counts as a point; keeps the gradient of a standard deviation finite."""


@cache
def hermite() -> Rule:
    """Gauss-Hermite, 20 nodes, 0.7 apart in the middle: for g that is smooth on that scale."""
    nodes, weights = np.polynomial.hermite.hermgauss(20)
    return math.sqrt(2.0) * nodes, weights / math.sqrt(math.pi)


@cache
def trapezoid() -> Rule:
    """81 equidistant nodes from -8 to 8, 0.2 apart: for g that is narrower."""
    nodes = np.linspace(-8.0, 8.0, 81)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / weights.sum()


@cache
def _on(rule: Callable[[], Rule], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Nodes and weights of a rule where they are needed: they go there once."""
    return [torch.tensor(part, dtype=dtype, device=device) for part in rule()]


def at_nodes(mean: Tensor, variance: Tensor, rule: Callable[[], Rule]) -> tuple[Tensor, Tensor]:
    """f `[..., K]` at the nodes of N(mean, variance), and the weights `[K]`."""
    nodes, weights = _on(rule, mean.dtype, mean.device)
    return mean[..., None] + std(variance)[..., None] * nodes, weights


def std(variance: Tensor) -> Tensor:
    """Standard deviation, that of `SMALLEST_VARIANCE` at least."""
    return variance.clamp_min(SMALLEST_VARIANCE).sqrt()
