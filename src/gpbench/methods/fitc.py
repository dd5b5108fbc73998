"""FITC: the fully independent training conditional approximation to GP regression (snelson2006, "SPGP").

Model      q(f | u) = prod_n p(f_n | u), u = f(Z) ~ N(0, K_ZZ); y_n = f_n + e_n, e_n ~ N(0, s)
           (quinonerocandela2005, section 6). Several targets have a function each, independent, with the same kernel,
           inducing inputs and noise variance; their log evidences add up.
Objective  log evidence = log N(y; 0, Q + Lambda), Lambda = diag(K - Q) + s I,  Q = K_XZ K_ZZ^-1 K_ZX
           (snelson2006, eq. 9): exact at Z = X, but no bound of the log evidence of the exact GP.
Posterior  q(u) = N(m, S), S = K_ZZ (K_ZZ + K_ZX Lambda^-1 K_XZ)^-1 K_ZZ, m = S K_ZZ^-1 K_ZX Lambda^-1 y;
           mean = k_* K_ZZ^-1 m, variance = k_** - k_* (K_ZZ^-1 - K_ZZ^-1 S K_ZZ^-1) k_*^T + s  (eq. 8).

It is `sgpr` with another noise at the training rows, and without the penalty tr(K - Q) / (2 s).
"""

from __future__ import annotations

from torch import Tensor

from gpbench.gp import lowrank
from gpbench.hyper import dataclass
from gpbench.methods import sgpr
from gpbench.methods.base import Noise, State
from gpbench.methods.training_rows import Batch


@dataclass(frozen=True)
class Hyperparameters(sgpr.Hyperparameters):
    """Those of `sgpr`."""


class Method(sgpr.Method):
    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        mask = (batch.weight > 0).to(batch.x.dtype)
        a, unexplained = self.rows(state.params, batch.x)
        variance = self.variance(state.params, unexplained)  # diag(K - Q) + s
        # - log N(y; 0, Q + Lambda)
        return -lowrank.log_density(a, batch.y, variance, mask, sgpr.NAME)

    def variance(self, params: dict[str, Tensor], unexplained: Tensor) -> Tensor:
        """Variance of y_n given u `[R, N]`: the diagonal of Lambda."""
        return unexplained + params["log_noise_variance"].exp()[:, None]
