"""Covariance of a layer of a deep GP given the layer below: composition and convolution (urbainczyk2025, section 2.1).

With u the values of the layer below, rho(t) = exp(-t^2 / 2), lengthscale l, outputscale v:

    stationary    k(x, x') = v rho(|x - x'| / l), of the first layer
    composition   k(x, x') = v rho(|u(x) - u(x')| / l)
    convolution   k(x, x') = v [2 sqrt(h h') / (h + h')]^(d/2) exp(-|x - x'|^2 / (h + h')),
                  sqrt(h) = clip(u, l / 10, 10 l), the local lengthscale; u is scalar

The convolution is that of paciorek2003. The paper prints rho(2 |x - x'| / (h + h')) in place of the exponential, which
is not positive definite (docs/errata.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpbench.gp import kernels

RANGE = 10.0
"""Local lengthscales lie within this factor of the fitted one."""


class DeepKernel(NamedTuple):
    """architecture: composition or convolution; lengthscale `[R, 1]`; start_map `[R, D, width]`: what takes the inputs
    to the values where a composition starts, nothing where these are the inputs themselves.

    Places are what the covariance of a layer looks at, `[R, S, k, *]`: u, or x and u beside each other."""

    architecture: str
    lengthscale: Tensor
    start_map: Tensor | None = None

    def start(self, x: Tensor) -> Tensor:
        """Values below `[R, 1, k, width]` with which the covariance is stationary in x `[R, 1, k, D]`: x, or l."""
        if self.architecture == "convolution":
            return self._scale.expand(*x.shape[:-1], 1)
        return x if self.start_map is None else x @ self.start_map[:, None]

    def places(self, x: Tensor, u: Tensor) -> Tensor:
        """Of rows with inputs x `[R, S or 1, k, D]` and values u `[R, S, k, width]` of the layer below."""
        if self.architecture == "composition":
            return u
        local = torch.minimum(torch.maximum(u, self._scale / RANGE), self._scale * RANGE)
        return torch.cat([x.expand(*u.shape[:-1], -1), local], -1)

    def covariance(self, one: Tensor, other: Tensor, outputscale: Tensor) -> Tensor:
        """k `[R, S, k, l]` between places, outputscale `[R, 1]`."""
        if self.architecture == "composition":
            return self.stationary(one, other, outputscale)
        x, h = one[..., :-1], one[..., -1, None].square()
        x_other, h_other = other[..., :-1], other[..., None, :, -1].square()
        total, power = h + h_other, x.shape[-1] / 4
        # in logarithms, for a power takes as long as all the rest
        scale = outputscale.log()[..., None, None] + power * (4 * h).log() + power * h_other.log()
        return (scale - 2 * power * total.log() - torch.cdist(x, x_other).square_().div_(total)).exp_()

    def stationary(self, x: Tensor, other: Tensor, outputscale: Tensor) -> Tensor:
        """k `[R, S, k, l]` of x `[R, S, k, *]`, of whose replicas and particles one may stand for all."""
        a, b = kernels.scaled(x, None if other is x else other, self.lengthscale[..., None])
        return kernels.rbf_scaled(a, b, outputscale)

    @property
    def _scale(self) -> Tensor:
        return self.lengthscale[..., None, None]
