"""SGPR: variational learning of the inducing inputs of a sparse GP regression (titsias2009).

Model      f ~ GP(0, k); y_n = f(x_n) + e_n, e_n ~ N(0, s). Several targets have a function each, independent,
           with the same kernel, inducing inputs and noise variance; their bounds add up.
Objective  bound = log N(y; 0, Q + s I) - tr(K - Q) / (2 s),  Q = K_XZ K_ZZ^-1 K_ZX  (eq. 9),
           a lower bound of the log evidence, equal at Z = X: that of `svgp` at its best q(u), found in closed form.
Posterior  q(u) = N(m, S), S = K_ZZ (K_ZZ + K_ZX K_XZ / s)^-1 K_ZZ, m = S K_ZZ^-1 K_ZX y / s  (eq. 10);
           mean = k_* K_ZZ^-1 m, variance = k_** - k_* (K_ZZ^-1 - K_ZZ^-1 S K_ZZ^-1) k_*^T + s.

Z and the logarithms of lengthscale, outputscale and noise variance are trained on all rows, O(N M^2) a step, by L-BFGS
(from the optimum of some random rows, where there are many) or by Adam.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import kernels, likelihoods, lowrank, sparse
from gpbench.gp.layers import start_inducing
from gpbench.hyper import Formula, OptimisedSettings, PositiveFloat, PositiveInt, dataclass
from gpbench.methods import warm_start
from gpbench.methods.base import GradientMethod, Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

NAME = "sparse GP"
"""of its one layer, in the events of the Cholesky helper"""


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """Initial values in scaled units; lengthscale None: sqrt(total variance of the inputs); kernel: a formula of
    `gp.kernels`; ard: one an input; inducing_start: as in `svgp`; learning_rate: of Adam. Always a full batch."""

    num_inducing: PositiveInt = 100
    inducing_start: Literal["kmeans", "rows", "greedy"] = "kmeans"
    kernel: Formula = "rbf"
    ard: bool = True
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.1
    jitter: PositiveFloat = 1e-6
    optimiser: Literal["adam", "lbfgs"] = "lbfgs"
    learning_rate: PositiveFloat = 0.05


class Method(GradientMethod):
    def init(self, train: Batch, key: Key) -> State:
        x, lengthscale = train.x, kernels.start_lengthscale(train.x, self.hyper.lengthscale)
        rng = streams.rng(key, "init")
        log_lengthscale = lengthscale.log()[:, None].repeat(1, x.shape[-1] if self.hyper.ard else 1)
        log_outputscale = x.new_full((1,), math.log(self.hyper.outputscale))
        start = kernels.start(self.hyper.kernel, log_lengthscale, log_outputscale)
        kind = self.hyper.inducing_start, self.kernel(start)
        params = {
            "inducing_inputs": start_inducing(x, self.hyper.num_inducing, rng, *kind),
            **start,
            "log_noise_variance": x.new_full((1,), math.log(self.hyper.noise_variance)),
        }
        return warm_start.by_some_rows(self, State(params, {"x": x, "y": train.y, "mask": train.weight}), train, rng)

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        mask = (batch.weight > 0).to(batch.x.dtype)
        a, unexplained = self.rows(state.params, batch.x)  # A with Q = A^T A; diag(K - Q)
        noise_variance = state.params["log_noise_variance"].exp()
        # - log N(y; 0, Q + s I) + tr(K - Q) / (2 s)
        return -lowrank.bound(a, batch.y, unexplained, noise_variance, mask, NAME)

    def features(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        """A with Q = A^T A `[R, M, B]`."""
        return lowrank.features(x, params["inducing_inputs"], self.kernel(params), self.hyper.jitter, NAME)

    def kernel(self, params: dict[str, Tensor]) -> kernels.Kernel:
        return kernels.read(self.hyper.kernel, params)

    def rows(self, params: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """A `[R, M, N]` and the diagonal of K - Q `[R, N]` of training rows."""
        a = self.features(params, x)
        return a, sparse.unexplained(a, self.kernel(params).diagonal(x))

    def variance(self, params: dict[str, Tensor], unexplained: Tensor) -> Tensor:
        """Variance of y_n given u, in the likelihood that gives q(u) `[R, N]`: s."""
        return params["log_noise_variance"].exp()[:, None].expand_as(unexplained)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        return likelihoods.Gaussian().predictive(*self.marginals(state, x), state.params["log_noise_variance"].exp())

    def marginals(self, state: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at test rows x `[1, T, D]`: two `[1, T, P]`."""
        params, train = state.params, state.buffers
        a, unexplained = self.rows(params, train["x"])
        q = lowrank.condition(a, train["y"], train["mask"] / self.variance(params, unexplained), NAME)
        return lowrank.marginals(q, self.features(params, x), self.kernel(params).diagonal(x))
