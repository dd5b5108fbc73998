"""Probit GP classification by expectation propagation, hyperparameters by type-II maximum likelihood (rasmussen2006).

Model      y_i | f_i ~ Bernoulli(Phi(f_i)), f ~ GP(0, k), k RBF with one lengthscale, or with `ard` one an input.
Objective  log Z_EP(psi), the log evidence of q(f) = N(mu, Sigma) (algorithm 3.5, eq. 3.65), ascended by Adam on
           psi = (log lengthscale, log outputscale); EP runs from the start at every psi.
Gradient   d log Z_EP = 1/2 Tr(M dK), M = b b^T - (K + diag(tau)^-1)^-1, b = K^-1 mu, tau the precisions of the sites
           (eq. 5.27): at a fixed point of EP they may be held while K moves.
Predictive P(y_* = 1) = Phi(m / sqrt(1 + s^2)) of f_* ~ N(m, s^2) under q (section 3.6.2).

The competitor "EP ML" of filippone2014: no prior, so that nothing keeps the outputscale of separable classes finite but
the number of updates. Cost: n sites one after the other, O(n^3), two or three times an update.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpbench.gp import kernels
from gpbench.gp.latent_likelihoods import Probit
from gpbench.hyper import OptimisedSettings, PositiveFloat, dataclass
from gpbench.methods.base import GradientMethod, Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.sampling.latent import approximations
from gpbench.sampling.latent.model import Model, Prior
from gpbench.streams import Key

UNUSED = Prior(1.0, 1.0)
"""The likelihood is maximised, not the posterior."""


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """Initial values in scaled units; lengthscale None: sqrt(total variance of the inputs); ard: a lengthscale an
    input. Always a full batch."""

    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    ard: bool = False
    learning_rate: PositiveFloat = 0.05


class Method(GradientMethod):
    def init(self, train: Batch, key: Key) -> State:
        x, lengthscale = train.x, kernels.start_lengthscale(train.x, self.hyper.lengthscale)
        params = {
            "log_lengthscale": lengthscale.log()[:, None].repeat(1, x.shape[-1] if self.hyper.ard else 1),
            "log_outputscale": x.new_full((1,), math.log(self.hyper.outputscale)),
        }
        return State(params, {"x": x, "y": train.y[..., 0], "mask": train.weight})

    def model(self, x: Tensor, y: Tensor, mask: Tensor) -> Model:
        """Rows in an order of their own, padding last: where EP stops near its fixed point depends on the order."""
        order = torch.where(mask > 0, x.sum(-1), torch.inf).argsort(dim=1, stable=True)
        x, y, mask = x.gather(1, order[..., None].expand_as(x)), y.gather(1, order), mask.gather(1, order)
        return Model(x, y, mask, Probit(), lengthscale=UNUSED, variance=UNUSED, ard=self.hyper.ard)

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        model, psi = self.model(batch.x, batch.y[..., 0], batch.weight), parameters(state)
        with torch.no_grad():
            chol = model.factor(psi)
            q = approximations.ep(model, psi, chol)
            outer = q.outer(chol)  # M [R, n, n]
        # 1/2 Tr(M K)
        trace = 0.5 * (outer * model.covariance(psi)).sum((1, 2))
        # the value of log Z, with the gradient of 1/2 Tr(M K)
        return -(q.log_evidence + trace - trace.detach())

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        model, psi = self.model(**state.buffers), parameters(state)
        chol = model.factor(psi)
        q = approximations.ep(model, psi, chol)
        return model.likelihood.predictive(*q.predict(chol, model.cross(psi, x), model.outputscale(psi)[:, None]))


def parameters(state: State) -> Tensor:
    """psi `[R, P]`: log lengthscales, then the log of the outputscale."""
    return torch.cat([state.params["log_lengthscale"], state.params["log_outputscale"][:, None]], -1)
