"""Sparse GP classification by Laplace in the FITC and PITC models, as cutajar2016, figure 2, has them for classes.

Model      f ~ N(0, K~), K~ = Q + Lambda, Q = K_XZ K_ZZ^-1 K_ZX, Lambda = bldiag(K - Q), whose blocks are single rows
           (FITC) or sqrt(n) that lie together (PITC) (quinonerocandela2005, sections 6, 7); y_n ~ Bernoulli(Phi(f_n)).
Objective  log evidence = log p(y | f) - 1/2 f^T K~^-1 f - 1/2 log |B| at the mode f,  B = I + S K~ S,  S = W^1/2,
           W = -grad grad log p(y | f): that of `gp_cholesky` at Z = X, and for one block.
Gradient   1/2 a^T dK~ a - 1/2 d log |B| - 1/2 u^T (I + K~ W)^-1 dK~ g, with f fixed,  a = K~^-1 f,
           g = grad log p(y | f),  u = diag((K~^-1 + W)^-1) o dW/df.
Posterior  f_* ~ N(k_* K_ZZ^-1 K_ZX a, k_** - Q_*X S B^-1 S Q_X*), a test row being conditionally independent of all
           blocks given f(Z);  p(y_* = 1) = Phi(mean / sqrt(1 + variance)).

With Q = A^T A and the blocks I + S Lambda S = L L^T, B = L (I + V V^T) L^T, V = L^-1 S A^T: O(n M^2) for a Newton step.
Z and the logarithms of lengthscale and outputscale are trained on all rows by L-BFGS or by Adam, as those of `sgpr`.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpbench.gp import linalg
from gpbench.gp.latent_likelihoods import Probit
from gpbench.hyper import dataclass
from gpbench.methods import sgpr
from gpbench.methods.base import Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.solvers import blocks, laplace
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(sgpr.Hyperparameters):
    """Those of `sgpr`, without a noise variance; training_conditional: Lambda has blocks of one row, or of sqrt(n)."""

    training_conditional: Literal["fitc", "pitc"] = "fitc"


class Prior(NamedTuple):
    """N(0, A^T A + Lambda) of f at n rows: A `[M, n]`, the blocks of Lambda `[b, s, s]`, and their rows `[b, s]`."""

    a: Tensor
    conditional: Tensor
    rows: Tensor

    def multiply(self, v: Tensor) -> Tensor:
        """K~ v of a vector `[n]`."""
        inside = self.conditional @ blocks.take(v[:, None], self.rows)
        return self.a.mT @ (self.a @ v) + blocks.put(inside, self.rows, len(v))[:, 0]


class System:
    """B = I + S K~ S for a diagonal S `[n]`: L `[b, s, s]`, V `[b s, M]`, and C C^T = I + V^T V."""

    def __init__(self, prior: Prior, root: Tensor) -> None:
        self.rows = prior.rows
        s = blocks.take(root[:, None], self.rows)  # [b, s, 1], 0 where a block has a row less
        eye = torch.eye(s.shape[1], dtype=s.dtype, device=s.device)
        self.chol = linalg.cholesky((eye + s * prior.conditional * s.mT)[:, None], "blocks")[:, 0]
        self.v = self.within(root[:, None] * prior.a.mT)
        gram = self.v.mT @ self.v
        self.core = linalg.cholesky((gram + torch.eye(len(gram), dtype=s.dtype, device=s.device))[None], sgpr.NAME)[0]

    def within(self, columns: Tensor) -> Tensor:
        """L^-1 of columns `[n, c]`, by block `[b s, c]`."""
        by_block = blocks.take(columns, self.rows)
        return torch.linalg.solve_triangular(self.chol, by_block, upper=False).flatten(0, 1)

    def half_log_det(self) -> Tensor:
        """1/2 log |B|."""
        return linalg.half_log_det(self.chol).sum() + linalg.half_log_det(self.core)

    def solve(self, r: Tensor) -> Tensor:
        """B^-1 r = L^-T (I - V (I + V^T V)^-1 V^T) L^-1 r of a vector `[n]`."""
        t = self.within(r[:, None])
        t = t - self.v @ torch.cholesky_solve(self.v.mT @ t, self.core)
        by_block = torch.linalg.solve_triangular(self.chol.mT, t.view(*self.rows.shape, 1), upper=True)
        return blocks.put(by_block, self.rows, len(r))[:, 0]


class Method(sgpr.Method):
    likelihood = Probit()

    def init(self, train: Batch, key: Key) -> State:
        state = super().init(train, key)
        del state.params["log_noise_variance"]  # classes have none
        return state

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        losses = []
        for r, kept in enumerate(batch.weight > 0):  # a replica at a time: its mode takes steps of its own
            params = {name: value[r : r + 1] for name, value in state.params.items()}
            with linalg.replicas_from(r):
                losses.append(-self.log_evidence(self.prior(params, batch.x[r, kept]), batch.y[r, kept, 0]))
        return torch.stack(losses)

    def prior(self, params: dict[str, Tensor], x: Tensor) -> Prior:
        """Of one replica at rows x `[n, D]`."""
        a, kernel, n = self.features(params, x[None])[0], self.kernel(params).map(lambda value: value[0]), len(x)
        rows = blocks.partition(x, n if self.hyper.training_conditional == "fitc" else math.isqrt(n))
        a_b, x_b, exists = blocks.take(a.mT, rows), blocks.take(x, rows), (rows < n).to(x)
        left = kernel.covariance(x_b, x_b) - a_b @ a_b.mT  # K - Q
        return Prior(a, left * exists[:, :, None] * exists[:, None], rows)

    def log_evidence(self, prior: Prior, y: Tensor) -> Tensor:
        """Of Laplace in nats, with its gradient in A and Lambda."""
        fixed = Prior(*(value.detach() for value in prior))
        at = self.mode(fixed, y)
        with torch.enable_grad():
            root = at.root.clone().requires_grad_()
            system = System(fixed, root)
            (slope,) = torch.autograd.grad(system.half_log_det(), root)  # S diag((K~^-1 + W)^-1)
        with torch.no_grad():
            u = torch.where(root > 0, slope / root, 0.0) * -at.third
            q = u - root * system.solve(root * fixed.multiply(u))  # (I + W K~)^-1 u
        half_log_det = System(prior, at.root).half_log_det()
        # 1/2 a^T K~ a - 1/2 q^T K~ g - 1/2 log |B|: with a, q, g and S held its gradient is that of the evidence
        surrogate = 0.5 * (at.a @ prior.multiply(at.a) - q @ prior.multiply(at.gradient)) - half_log_det
        return at.value - half_log_det.detach() + surrogate - surrogate.detach()

    def mode(self, prior: Prior, y: Tensor) -> laplace.Mode:
        return laplace.mode(prior.multiply, lambda root, r: System(prior, root).solve(r), y, self.likelihood)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        params, kept = state.params, state.buffers["mask"][0] > 0
        prior = self.prior(params, state.buffers["x"][0, kept])
        at = self.mode(prior, state.buffers["y"][0, kept, 0])
        # k_** - |a_*|^2 + a_*^T (I + V^T V)^-1 a_*,  as A S B^-1 S A^T = I - (I + V^T V)^-1
        a, core = self.features(params, x)[0], System(prior, at.root).core
        left = torch.linalg.solve_triangular(core, a, upper=False)
        variance = self.kernel(params).diagonal(x)[0] - a.square().sum(0) + left.square().sum(0)
        mean = (prior.a @ at.a) @ a
        return self.likelihood.predictive(mean[None], variance.clamp_min(0.0)[None])
