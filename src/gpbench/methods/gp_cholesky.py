"""Exact GP regression, and probit GP classification by Laplace, dense: the method CHOL of cutajar2016.

Regression is that of `exact_gp`. Classification:

Model      f ~ GP(0, k); y_n ~ Bernoulli(Phi(f(x_n))).
Objective  log evidence = log p(y | f) - 1/2 f^T K^-1 f - 1/2 log |B| at the mode f,  B = I + S K S,  S = W^1/2,
           W = -grad grad log p(y | f), ascended by L-BFGS or Adam on the logarithms of lengthscale and outputscale.
Gradient   1/2 a^T dK a - 1/2 tr(S B^-1 S dK) - 1/2 u^T (I + K W)^-1 dK a,  a = K^-1 f,
           u = diag((K^-1 + W)^-1) o dW/df  (supplement, section B.1, which prints -dW/df).
Posterior  f_* ~ N(k_* a, k_** - |L^-1 S k_*^T|^2), L L^T = B;  p(y_* = 1) = Phi(mean / sqrt(1 + variance)).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.gp import linalg
from gpbench.gp.kernels import Kernel
from gpbench.gp.latent_likelihoods import Probit
from gpbench.hyper import dataclass
from gpbench.methods import exact_gp
from gpbench.methods.base import Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.solvers import laplace
from gpbench.solvers.laplace import Mode
from gpbench.streams import Key

NOISE_VARIANCE = "log_noise_variance"


@dataclass(frozen=True)
class Hyperparameters(exact_gp.Hyperparameters):
    """Those of `exact_gp`; noise_variance and jitter: of regression."""


class Method(exact_gp.Method):
    likelihood = Probit()

    def init(self, train: Batch, key: Key) -> State:
        state = super().init(train, key)
        if self.task == "binary":  # classes have no noise variance
            del state.params[NOISE_VARIANCE]
        return state

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        if self.task == "regression":
            return super().loss(state, batch, noise)
        losses = []
        for r, kept in enumerate(batch.weight > 0):  # a replica at a time: its mode takes steps of its own
            with linalg.replicas_from(r):
                k = self.kernel_of(state.params, r).covariance(batch.x[r, kept], batch.x[r, kept])
                losses.append(-self.log_evidence(k, batch.y[r, kept, 0]))
        return torch.stack(losses)

    def kernel_of(self, params: dict[str, Tensor], r: int) -> Kernel:
        """The kernel of a replica."""
        return self.kernel(params).map(lambda value: value[r])

    def log_evidence(self, k: Tensor, y: Tensor) -> Tensor:
        """Of Laplace in nats, with its gradient in K `[n, n]`."""
        with torch.no_grad():
            at, chol = self.mode(k, y)
            value = at.value - linalg.half_log_det(chol)  # log p(y | f) - 1/2 f^T K^-1 f - 1/2 log |B|
            weights = at.root[:, None] * torch.cholesky_inverse(chol) * at.root  # S B^-1 S = (K + W^-1)^-1
            half = torch.linalg.solve_triangular(chol, at.root[:, None] * k, upper=False)  # L^-1 S K
            u = (k.diagonal() - half.square().sum(0)) * -at.third  # diag((K^-1 + W)^-1) o dW/df
            q = u - weights @ (k @ u)  # (I + W K)^-1 u
            slope = 0.5 * (at.a.outer(at.a) - weights - q.outer(at.gradient))  # d log evidence / dK
        surrogate = (slope * k).sum()
        return value + surrogate - surrogate.detach()

    def mode(self, k: Tensor, y: Tensor) -> tuple[Mode, Tensor]:
        """The mode given K `[n, n]`, and the factor L of B there."""

        def factor(root: Tensor) -> Tensor:
            b = root[:, None] * k * root
            b.diagonal().add_(1.0)
            return linalg.cholesky(b[None], "laplace")[0]

        def solve(root: Tensor, r: Tensor) -> Tensor:
            return torch.cholesky_solve(r[:, None], factor(root))[:, 0]

        at = laplace.mode(lambda v: k @ v, solve, y, self.likelihood)
        return at, factor(at.root)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        if self.task == "regression":
            return super().predict(state, x, key)
        kept, kernel = state.buffers["mask"][0] > 0, self.kernel_of(state.params, 0)
        train = state.buffers["x"][0, kept]
        at, chol = self.mode(kernel.covariance(train, train), state.buffers["y"][0, kept, 0])
        cross = kernel.covariance(train, x[0])
        known = torch.linalg.solve_triangular(chol, at.root[:, None] * cross, upper=False)
        variance = (kernel.diagonal(x[0]) - known.square().sum(0)).clamp_min(0.0)
        return self.likelihood.predictive((at.a @ cross)[None], variance[None])
