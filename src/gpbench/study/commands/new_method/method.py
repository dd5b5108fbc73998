"""LABEL: one sentence on what it is (mackay1992: put the citation key of your source here).

What follows is Bayesian linear regression, small and working; replace it, and these lines, by your method.

Model      y_n = w^T [x_n, 1] + e_n, w ~ N(0, a I), e_n ~ N(0, s). Several targets have weights each; their log
           evidences add up.
Objective  log evidence = log N(y; 0, s I + a X X^T) = -1/2 (n log 2 pi s + D log a + log |A| + y^T (y - X m) / s),
           A = X^T X / s + I / a, m = A^-1 X^T y / s, with X `[n, D]`, the column of ones among the D.
Posterior  w ~ N(m, A^-1); a prediction has mean x^T m and variance x^T A^-1 x + s.

log a and log s are trained by Adam on full batches, O(n D^2) each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpbench.gp import likelihoods, linalg
from gpbench.hyper import OptimisedSettings, PositiveFloat, dataclass
from gpbench.methods.base import GradientMethod, Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """Initial variances of weights and noise in scaled units, and Adam's rate: the published defaults stand here."""

    weight_variance: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.1
    learning_rate: PositiveFloat = 0.05


class Method(GradientMethod):
    def init(self, train: Batch, key: Key) -> State:
        params = {
            "log_weight_variance": train.x.new_full((1,), math.log(self.hyper.weight_variance)),
            "log_noise_variance": train.x.new_full((1,), math.log(self.hyper.noise_variance)),
        }
        return State(params, {"x": train.x, "y": train.y, "weight": train.weight})

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        """Minus the log evidence `[R]`; batches are full, padding rows have weight 0."""
        a, s = self.variances(state.params)
        x, y, rows = self.features(batch.x, batch.weight), batch.y * batch.weight[..., None], batch.weight.sum(-1)
        factor, mean = self.posterior(x, y, a, s)
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        misfit = (y * (y - x @ mean)).sum((-2, -1)) / s
        each = rows * (math.log(2 * math.pi) + s.log()) + x.shape[-1] * a.log() + log_det
        return 0.5 * (y.shape[-1] * each + misfit)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        (a, s), train = self.variances(state.params), state.buffers
        known = self.features(train["x"], train["weight"]), train["y"] * train["weight"][..., None]
        factor, weights = self.posterior(*known, a, s)
        new = self.features(x, torch.ones_like(x[..., 0]))
        mean = new @ weights
        variance = torch.linalg.solve_triangular(factor, new.mT, upper=False).square().sum(-2)
        return likelihoods.Gaussian().predictive(mean, variance[..., None].expand_as(mean), s)

    @staticmethod
    def variances(params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """a and s, `[R]` each."""
        return params["log_weight_variance"].exp(), params["log_noise_variance"].exp()

    @staticmethod
    def features(x: Tensor, weight: Tensor) -> Tensor:
        """[x, 1] `[R, n, D]`, 0 in rows of weight 0."""
        return torch.cat([x, torch.ones_like(x[..., :1])], -1) * weight[..., None]

    @staticmethod
    def posterior(x: Tensor, y: Tensor, a: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Cholesky factor of A `[R, D, D]`, and m `[R, D, P]`."""
        prior = torch.diag_embed((1 / a)[:, None].expand(-1, x.shape[-1]))
        factor = linalg.cholesky(x.mT @ x / s[:, None, None] + prior, "weights")
        return factor, torch.cholesky_solve(x.mT @ y / s[:, None, None], factor)
