"""DSVI: doubly stochastic variational inference for deep GPs (salimbeni2017).

Model      f^0 = x;  f^l = m^l(f^{l-1}) + g^l(f^{l-1}) + e^l,  g^l ~ GP(0, k^l), e^l ~ N(0, s_l),  l = 1..L,
           with fixed linear mean functions m^l(f) = f W^l in the hidden layers, none in the last (nor e^L);
           W is the identity, padded with zeros to widen, the leading right-singular vectors to narrow.
Posterior  q = prod_l p(g^l | u^l) q(u^l), each layer as in `svgp`; layers are coupled through samples only.
Objective  elbo = 1/S sum_s sum_n E_{q(f^L_n | f^{L-1}_sn)} log p(y_n | f^L_n) - sum_l KL[q(v^l) || N(0, I)],
           f^l_sn = mean + sqrt(variance + s_l) * normal, row by row (salimbeni2017, eqs. 15 and 18).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import sparse
from gpbench.hyper import PositiveFloat, PositiveInt, dataclass
from gpbench.methods import svgp
from gpbench.methods.base import State, TrainingSet


@dataclass(frozen=True)
class Hyperparameters:
    """Settings of salimbeni2017 as ashman2020 ran them; hidden layers have min(hidden_width, D) outputs."""

    layers: PositiveInt = 2
    hidden_width: PositiveInt = 30
    num_inducing: PositiveInt = 100
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.05
    layer_noise_variance: PositiveFloat = 1e-5
    inner_chol_factor: PositiveFloat = 1e-5
    samples_train: PositiveInt = 1
    samples_test: PositiveInt = 100
    jitter: PositiveFloat = 1e-6
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 10_000


def mean_map(x: Tensor, width: int) -> Tensor:
    """W `[R, D, width]` of the linear mean function of a layer with inputs x `[R, N, D]` (salimbeni2017, sec. 3.1)."""
    replicas, _, num_inputs = x.shape
    if width >= num_inputs:
        return torch.eye(num_inputs, width, dtype=x.dtype, device=x.device).repeat(replicas, 1, 1)
    vectors = torch.linalg.eigh(x.mT @ x).eigenvectors.flip(-1)[..., :width]
    # eigenvectors have no sign of their own: the largest entry is made positive
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return vectors * largest.sign()


class Method(svgp.Method):
    def init(self, data: TrainingSet, keys: list[streams.Key]) -> State:
        hyper, train = self.hyper, data.full()
        x, z = train.x, self.start_inducing(train, data.count, keys)
        width = min(hyper.hidden_width, x.shape[-1])
        state = State(self.start_noise(z))
        for name in self.names[:-1]:
            lengthscale = self.start_lengthscale(x, train.weight)
            state.params |= svgp.init_layer(name, z, width, lengthscale, hyper.outputscale, hyper.inner_chol_factor)
            state.params[f"{name}.log_noise_variance"] = z.new_full(z.shape[:1], hyper.layer_noise_variance).log()
            state.buffers[f"{name}.mean_map"] = mean_map(x, width)
            x, z = x @ state.buffers[f"{name}.mean_map"], z @ state.buffers[f"{name}.mean_map"]
        lengthscale = self.start_lengthscale(x, train.weight)
        state.params |= svgp.init_layer(self.names[-1], z, self.likelihood.num_outputs, lengthscale, hyper.outputscale)
        return state

    @property
    def names(self) -> list[str]:
        return [f"layer{number}" for number in range(1, self.hyper.layers + 1)]

    def noise_size(self, batch_size: int, step: int = 0, steps: int = 1) -> int:
        return batch_size * self.hyper.samples_train * (self.hyper.layers - 1) * self.hyper.hidden_width

    def layers(self, state: State) -> list[svgp.Layer]:
        return [svgp.layer(state.params, name, self.hyper.jitter) for name in self.names]

    def propagate(self, state: State, layers: list[svgp.Layer], x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f^L `[S, R, B, Q]` given noise `[R, B * S * (L - 1) * hidden_width]`."""
        return self.deepen(state, layers, x, sparse.conditional(x[None], *layers[0]), noise)

    def deepen(
        self, state: State, layers: list[svgp.Layer], x: Tensor, moments: tuple[Tensor, Tensor], noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `propagate`, from the moments of g^1(x) `[1, R, B, W]`, which all samples share.

        Rows come first in the noise, so that padding rows at the end take nothing from the others.
        """
        replicas, rows, _ = x.shape
        hidden, width = self.hyper.layers - 1, self.hyper.hidden_width
        samples = noise.shape[-1] // (rows * hidden * width) if hidden else 1
        eps = noise.view(replicas, rows, samples, hidden, width).permute(3, 2, 0, 1, 4)  # [L-1, S, R, B, width]
        f, (mean, variance) = x[None], moments
        for name, part, e in zip(self.names[:-1], layers[1:], eps, strict=True):
            std = (variance + state.params[f"{name}.log_noise_variance"].exp()[:, None, None]).sqrt()
            f = f @ state.buffers[f"{name}.mean_map"] + mean + std * e[..., : mean.shape[-1]]
            mean, variance = sparse.conditional(f, *part)
        return mean, variance

    def marginals(self, state: State, x: Tensor, keys: list[streams.Key]) -> tuple[Tensor, Tensor]:
        """Mean and variance of f^L at test rows `[S, R, T, Q]`, S = samples_test, one sample at a time."""
        layers = self.layers(state)
        first = sparse.conditional(x[None], *layers[0])
        size = x.shape[1] * (self.hyper.layers - 1) * self.hyper.hidden_width
        draws = [
            self.deepen(state, layers, x, first, streams.normal(keys, "eval", sample, (size,), x))
            for sample in range(self.hyper.samples_test)
        ]
        means, variances = zip(*draws, strict=True)
        return torch.cat(means), torch.cat(variances)
