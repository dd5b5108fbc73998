"""PITC: the partially independent training conditional approximation (quinonerocandela2005, section 7).

Model      q(f | u) = prod_b p(f_b | u), blocks b of sqrt(n) rows that lie together, u = f(Z) ~ N(0, K_ZZ);
           y_n = f_n + e_n, e_n ~ N(0, s). Several targets have a function each, with the same kernel, inducing inputs
           and noise variance; their log evidences add up.
Objective  log evidence = log N(y; 0, Q + Lambda), Lambda = bldiag(K - Q) + s I,  Q = K_XZ K_ZZ^-1 K_ZX: exact at Z = X,
           and for one block, but no bound.
Posterior  that of `fitc` with this Lambda: a test row is conditionally independent of all blocks.

It is `sgpr` whose rows are whitened block by block: with Lambda = L L^T the rows L^-1 A^T and L^-1 y, A^T A = Q, have
independent noise of variance 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpbench.gp import linalg, lowrank
from gpbench.hyper import dataclass
from gpbench.methods import sgpr
from gpbench.methods.base import Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.solvers import blocks


@dataclass(frozen=True)
class Hyperparameters(sgpr.Hyperparameters):
    """Those of `sgpr`."""


class Method(sgpr.Method):
    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        losses = []
        for r, kept in enumerate(batch.weight > 0):  # a replica at a time: blocks are of its own rows
            params = {name: value[r : r + 1] for name, value in state.params.items()}
            with linalg.replicas_from(r):
                a, y, log_det = self.whitened(params, batch.x[r : r + 1, kept], batch.y[r : r + 1, kept])
                # of a = A L^-T: log N(L^-1 y; 0, I + a^T a) = log int N(v; 0, I) N(L^-1 y; a^T v, I) dv
                integral = lowrank.log_normaliser(a @ a.mT, a @ y, sgpr.NAME)
                alone = -0.5 * (y.square().sum((1, 2)) + y.numel() * math.log(2 * math.pi))
                losses.append(y.shape[-1] * log_det - integral - alone)  # P log |L| - log N(L^-1 y; 0, I + a^T a)
        return torch.cat(losses)

    def whitened(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A L^-T `[1, M, n]`, L^-1 y `[1, n, P]` and log |L| `[1]`; x `[1, n, D]`, y `[1, n, P]`."""
        a, kernel, n = self.features(params, x)[0].mT, self.kernel(params).map(lambda value: value[0]), x.shape[1]
        index = blocks.partition(x[0], math.isqrt(n))
        rows, x_b = blocks.take(torch.cat([a, y[0]], 1), index), blocks.take(x[0], index)  # [b, s, M + P], [b, s, D]
        a_b, exists = rows[..., : a.shape[1]], (index < n).to(x)
        left = (kernel.covariance(x_b, x_b) - a_b @ a_b.mT) * exists[:, :, None] * exists[:, None]
        # the identity where a block has a row less
        diagonal = torch.where(index < n, params["log_noise_variance"].exp(), 1.0)
        chol = linalg.cholesky((left + diagonal.diag_embed())[:, None], "blocks")[:, 0]
        white = blocks.put(torch.linalg.solve_triangular(chol, rows, upper=False), index, n)[None]
        a, y = white.split([a.shape[1], y.shape[-1]], -1)
        return a.mT, y, linalg.half_log_det(chol).sum()[None]

    def marginals(self, state: State, x: Tensor) -> tuple[Tensor, Tensor]:
        params, kept = state.params, state.buffers["mask"][0] > 0
        a, y, _ = self.whitened(params, state.buffers["x"][:, kept], state.buffers["y"][:, kept])
        q = lowrank.condition(a, y, torch.ones_like(y[..., 0]), sgpr.NAME)
        return lowrank.marginals(q, self.features(params, x), self.kernel(params).diagonal(x))
