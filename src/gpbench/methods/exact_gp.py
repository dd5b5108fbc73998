"""Exact GP regression with hyperparameters by type-II maximum likelihood (rasmussen2006, algorithm 2.1).

Model      f ~ GP(0, k); y_n = f(x_n) + e_n, e_n ~ N(0, noise_variance). Several targets have a function
           each, independent, with the same kernel and noise variance; their log evidences add up.
Objective  log evidence = -1/2 ||L^-1 y||^2 - sum_i log L_ii - n/2 log 2 pi,  L L^T = K + noise_variance I,
           ascended by L-BFGS (from the optimum of some random rows, where there are many) or by Adam on the
           logarithms of lengthscale, outputscale and noise variance.
Posterior  mean = k_* L^-T L^-1 y;  variance = k_** - ||L^-1 k_*^T||^2 + noise_variance.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import kernels, likelihoods, linalg
from gpbench.hyper import Formula, OptimisedSettings, PositiveFloat, dataclass
from gpbench.methods import warm_start
from gpbench.methods.base import GradientMethod, Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """Initial values in scaled units; lengthscale None: sqrt(total variance of the inputs); kernel: a formula of
    `gp.kernels`; ard: a lengthscale an input; learning_rate: of Adam. Always a full batch."""

    kernel: Formula = "rbf"
    ard: bool = True
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.1
    jitter: PositiveFloat = 1e-8
    optimiser: Literal["adam", "lbfgs"] = "lbfgs"
    learning_rate: PositiveFloat = 0.05


class Method(GradientMethod):
    def init(self, train: Batch, key: Key) -> State:
        x, lengthscale = train.x, kernels.start_lengthscale(train.x, self.hyper.lengthscale)
        log_lengthscale = lengthscale.log()[:, None].repeat(1, x.shape[-1] if self.hyper.ard else 1)
        params = kernels.start(self.hyper.kernel, log_lengthscale, x.new_full((1,), math.log(self.hyper.outputscale)))
        params["log_noise_variance"] = x.new_full((1,), math.log(self.hyper.noise_variance))
        state = State(params, {"x": x, "y": train.y, "mask": train.weight})
        return warm_start.by_some_rows(self, state, train, streams.rng(key, "init"))

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        mask = (batch.weight > 0).to(batch.x.dtype)
        y = batch.y * mask[..., None]
        covariance = self.covariance(state.params, batch.x, mask)
        quadratic, log_det = linalg.quadratic_and_log_det(covariance, y, "exact_gp")
        # a padding row is a standard normal at 0, apart from its constant
        constant = mask.sum(-1) * math.log(2 * math.pi)
        return 0.5 * (quadratic + y.shape[-1] * (log_det + constant))  # -sum_p log N(y_p; 0, C)

    def kernel(self, params: dict[str, Tensor]) -> kernels.Kernel:
        return kernels.read(self.hyper.kernel, params)

    def covariance(self, params: dict[str, Tensor], x: Tensor, mask: Tensor) -> Tensor:
        """K + noise_variance I `[R, N, N]`; padding rows are rows of the identity."""
        covariance = self.kernel(params).covariance(x, x) * mask[:, :, None] * mask[:, None, :]
        return covariance + torch.where(mask > 0, self.noise_variance(params)[:, None], 1.0).diag_embed()

    def noise_variance(self, params: dict[str, Tensor]) -> Tensor:
        """Of the likelihood `[R]`; the jitter is part of it, so that no fit to repeated rows predicts without noise."""
        return params["log_noise_variance"].exp() + self.hyper.jitter * self.kernel(params).scale

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        train_x, train_y, mask = state.buffers["x"], state.buffers["y"], state.buffers["mask"]
        chol = linalg.cholesky(self.covariance(state.params, train_x, mask), "exact_gp")
        kernel = self.kernel(state.params)
        cross = kernel.covariance(train_x, x) * mask[..., None]
        a = torch.linalg.solve_triangular(chol, cross, upper=False)  # [1, N, T]
        mean = a.mT @ torch.linalg.solve_triangular(chol, train_y, upper=False)
        variance = (kernel.diagonal(x) - a.square().sum(1)).clamp_min(0.0)[..., None].expand_as(mean)
        return likelihoods.Gaussian().predictive(mean, variance, self.noise_variance(state.params))
