"""FITC-SVGP: the variational form of FITC, trained on mini-batches (titsias2009, report, appendix C; rossi2021).

Model      f ~ GP(0, k); y_n = f(x_n) + e_n, e_n ~ N(0, lambda_n), lambda_n = s + k_nn - ||a_n||^2: the noise s
           and what u = f(Z) leaves unknown of f(x_n), a_n = L^-1 k(Z, x_n), L L^T = K_ZZ. Several targets have a
           function each, independent, with the same kernel, inducing inputs and noise variance.
Posterior  u = L v, q(v) = N(m, S)  (whitened), S = L_q L_q^T.
Objective  elbo = sum_n E_{q(f_n)} log N(y_n | f_n, lambda_n) - KL[q(v) || N(0, I)],
           q(f_n) = N(a_n^T m, k_nn - ||a_n||^2 + a_n^T S a_n).

At the best q, S = (I + A Lambda^-1 A^T)^-1, m = S A Lambda^-1 y, it is log N(y; 0, A^T A + Lambda)
- 1/2 sum_n (k_nn - ||a_n||^2) / lambda_n: the log evidence of `fitc` less a penalty, and predictions are those of
`fitc` for the same hyperparameters: y_* has the variance s + var f_*. `svgp` has lambda_n = s instead.
Everything is trained by Adam: Z, m, L_q, and the logarithms of lengthscale, outputscale and s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import kernels, likelihoods, sparse
from gpbench.gp.layers import init_layer, layer, start_inducing
from gpbench.hyper import Formula, OptimisedSettings, PositiveFloat, PositiveInt, dataclass
from gpbench.methods.base import GradientMethod, Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

NAME = "layer1"


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """Settings of rossi2021; initial values, which it does not give, of `svgp`; lengthscale None: sqrt(total variance
    of the inputs); kernel: a formula of `gp.kernels`; ard: a lengthscale an input, else one for all."""

    num_inducing: PositiveInt = 100
    kernel: Formula = "rbf"
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.05
    ard: bool = True
    jitter: PositiveFloat = 1e-6
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 1000


class Method(GradientMethod):
    def init(self, train: Batch, key: Key) -> State:
        hyper = self.hyper
        z = start_inducing(train.x, hyper.num_inducing, streams.rng(key, "init"))
        lengthscale = kernels.start_lengthscale(train.x, hyper.lengthscale)
        params = init_layer(
            NAME, z, self.num_targets, lengthscale, hyper.outputscale, ard=hyper.ard, formula=hyper.kernel
        )
        return State(params | {"log_noise_variance": z.new_full((len(z),), hyper.noise_variance).log()})

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        belief = layer(state.params, NAME, self.hyper.jitter, self.hyper.kernel)
        z, chol_kzz, m, _, kernel = belief
        chol = belief.posterior_chol
        a = sparse.project(batch.x, z, chol_kzz, kernel)  # a_n = L^-1 k(Z, x_n)  [R, M, B]
        unexplained = sparse.unexplained(a, kernel.diagonal(batch.x))[..., None]  # k_nn - ||a_n||^2
        # moments of q(f_n): a_n^T m and k_nn - ||a_n||^2 + ||L_q^T a_n||^2
        mean, variance = a.mT @ m, unexplained + (chol.mT @ a[:, None]).square().sum(2).mT  # [R, B, P]
        row_variance = state.params["log_noise_variance"].exp()[:, None, None] + unexplained  # lambda_n
        quadratic = ((batch.y - mean).square() + variance) / row_variance
        # E_{q(f_n)} log N(y_n | f_n, lambda_n)
        expected = -0.5 * (quadratic + torch.log(2 * torch.pi * row_variance)).sum(-1)
        # -elbo
        return sparse.kl_whitened(m, chol) - (batch.weight * expected).sum(-1)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        moments = sparse.conditional(x, layer(state.params, NAME, self.hyper.jitter, self.hyper.kernel))
        return likelihoods.Gaussian(self.num_targets).predictive(*moments, state.params["log_noise_variance"].exp())
