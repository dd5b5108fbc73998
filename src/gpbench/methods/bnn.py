"""Bayesian neural network with a mean-field variational posterior (graves2011, blundell2015).

The network of `dnn` without dropout, every weight and bias w with prior N(0, v) and posterior N(m, s^2):

    elbo = sum_b weight_b 1/S sum_s log p(y_b | f_sb) - KL[q || p],
    KL = 1/2 sum_w (s^2 / v + m^2 / v - 1 - log s^2 / v).

Training samples pre-activations instead of weights (local reparameterisation, kingma2015, section 2.3): given its
inputs a, a layer's a W + b is N(a M + m_b, a^2 S^2 + s_b^2) under q, independently for every row and unit, so

    f = a M + m_b + sqrt(a^2 S^2 + s_b^2) eps,  eps ~ N(0, I).

Prediction is the equal mixture over `samples_test` networks whose weights all rows share. Units as in `dnn`.

`pbp` is the published inference for such a network, probabilistic back-propagation (hernandezlobato2015): network and
factorised Gaussian posterior are alike, the inference is not, and the variances of prior and noise, inferred there, are
here fixed and a point estimate. s^2 starts small, for under the noise of s^2 = v training stalls. Stored as logs: s^2
and the noise variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import mean_field
from gpbench.hyper import PositiveFloat, PositiveInt, dataclass
from gpbench.methods import dnn
from gpbench.methods.base import Noise, Shapes, State, noise_variance
from gpbench.methods.training_rows import Batch
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(dnn.Network):
    """units, match_basis, match_width: as in `dnn`; prior_variance: v; weight_variance: initial s^2."""

    prior_variance: PositiveFloat = 1.0
    weight_variance: PositiveFloat = 1e-4
    samples_train: PositiveInt = 1
    samples_test: PositiveInt = 100


def sampled_affine(x: Tensor, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """Draw of x W + b `[R, B, H]`, fresh for every row, W and b in mean, variance `[R, D + 1, H]`; noise `[R, B, H]`.

    Source: kingma2015, section 2.3."""
    return dnn.affine(x, mean) + dnn.affine(x.square(), variance).sqrt() * noise


class Method(dnn.NetworkMethod):
    def init(self, train: Batch, key: Key) -> State:
        """Means as the weights of `dnn` start, variances small."""
        params = super().init(train, key).params
        start = math.log(self.hyper.weight_variance)
        variances = {f"{name}.log_variance": torch.full_like(params[f"{name}.weight"], start) for name in self.names}
        return State(params | variances)

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """One normal a row, training sample and unit, the outputs included."""
        return Shapes(per_row=(self.hyper.samples_train, sum(weight.shape[-1] for weight in self.weights(state))))

    def variances(self, state: State) -> list[Tensor]:
        """Posterior variances s^2, in the shape and order of the means `weights`."""
        return [state.params[f"{name}.log_variance"].exp() for name in self.names]

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        """-elbo `[R]`."""
        f = self.sample_outputs(state, batch.x, noise.per_row)
        # 1/S sum_s log p(y_b | f_sb)
        log_prob = self.likelihood.log_prob(batch.y, f, noise_variance(state.params)).mean(0)
        return self.kl(state) - (batch.weight * log_prob).sum(-1)

    def sample_outputs(self, state: State, x: Tensor, noise: Tensor) -> Tensor:
        """Outputs `[S, R, B, Q]` at x `[R, B, D]`, S = samples_train; noise `[R, B, S, units]`."""
        samples, (replicas, rows, _) = self.hyper.samples_train, x.shape
        f = x.repeat_interleave(samples, 1)  # [R, B S, D]
        means, variances = self.weights(state), self.variances(state)
        noises = noise.view(replicas, rows * samples, -1).split([mean.shape[-1] for mean in means], -1)
        f = sampled_affine(f, means[0], variances[0], noises[0])
        for mean, variance, eps in zip(means[1:], variances[1:], noises[1:], strict=True):
            f = sampled_affine(f.relu(), mean, variance, eps)
        return f.view(replicas, rows, samples, -1).permute(2, 0, 1, 3)

    def kl(self, state: State) -> Tensor:
        """KL[q || p] in nats, `[R]`."""
        prior = torch.tensor(math.log(self.hyper.prior_variance))
        posteriors = ((state.params[f"{name}.weight"], state.params[f"{name}.log_variance"]) for name in self.names)
        terms = (mean_field.kl(mean, log_variance, prior.to(mean)) for mean, log_variance in posteriors)
        return sum(terms, torch.zeros(()))

    def predictive_weights(self, state: State, key: Key) -> Iterator[list[Tensor]]:
        """`samples_test` draws of all weights, one at a time: of a wide network they are large."""
        means, variances = self.weights(state), self.variances(state)
        shapes = [mean.shape[1:] for mean in means]
        for sample in range(self.hyper.samples_test):
            noise = streams.normal(key, "eval", sample, (1, sum(map(math.prod, shapes))), like=means[0])
            noises = noise.split([math.prod(shape) for shape in shapes], -1)
            yield [
                mean + variance.sqrt() * eps.view_as(mean)
                for mean, variance, eps in zip(means, variances, noises, strict=True)
            ]
