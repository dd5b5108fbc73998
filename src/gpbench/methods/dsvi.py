"""DSVI: doubly stochastic variational inference for deep GPs (salimbeni2017).

Model      f^0 = x;  f^l = m^l(f^{l-1}) + g^l(f^{l-1}) + e^l,  g^l ~ GP(0, k^l), e^l ~ N(0, s_l),  l = 1..L,
           with fixed linear mean functions m^l(f) = f W^l in the hidden layers, none in the last (nor e^L);
           W is the identity, padded with zeros to widen, the leading right-singular vectors to narrow.
Posterior  q = prod_l p(g^l | u^l) q(u^l), each layer as in `svgp`; layers are coupled through samples only.
Objective  elbo = 1/S sum_s sum_n E_{q(f^L_n | f^{L-1}_sn)} log p(y_n | f^L_n) - sum_l KL[q(v^l) || N(0, I)],
           f^l_sn = mean + sqrt(variance + s_l) * normal, row by row (salimbeni2017, eqs. 15 and 18).

With one layer it is `svgp`. Softmax, whose expectation has no closed form, takes one f^L_sn for each f^{L-1}_sn.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import sparse
from gpbench.gp.sparse import Layer
from gpbench.hyper import PositiveFloat, PositiveInt, dataclass
from gpbench.methods import svgp
from gpbench.methods.base import State, TrainingSet


@dataclass(frozen=True)
class Hyperparameters(svgp.Hyperparameters):
    """Settings of salimbeni2017 as ashman2020 ran them; hidden layers have min(hidden_width, D) outputs.

    lengthscale null: sqrt(total variance of the layer's inputs); the others as in `svgp`."""

    layers: PositiveInt = 2
    hidden_width: PositiveInt = 30
    layer_noise_variance: PositiveFloat = 1e-5
    inner_chol_factor: PositiveFloat = 1e-5


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
    def __init__(self, hyper, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.names = [f"layer{number}" for number in range(1, hyper.layers + 1)]

    def init(self, data: TrainingSet, keys: list[streams.Key]) -> State:
        hyper, train = self.hyper, data.full()
        x, z = train.x, self.start_inducing(train, data.count, keys)
        width = min(hyper.hidden_width, x.shape[-1])
        state = State(self.start_noise(z))
        for name in self.names[:-1]:
            state.params |= self.start_layer(name, x, train.weight, z, width, hyper.inner_chol_factor)
            state.params[f"{name}.log_noise_variance"] = z.new_full(z.shape[:1], hyper.layer_noise_variance).log()
            state.buffers[f"{name}.mean_map"] = mean_map(x, width)
            x, z = x @ state.buffers[f"{name}.mean_map"], z @ state.buffers[f"{name}.mean_map"]
        state.params |= self.start_layer(self.names[-1], x, train.weight, z, self.num_outputs)
        return state

    @property
    def row_noise(self) -> int:
        """Standard normals of a row and sample: those of the hidden layers, then those of f^L where it is drawn."""
        return (self.hyper.layers - 1) * self.hyper.hidden_width + super().row_noise

    def deepen(
        self, state: State, layers: list[Layer], x: Tensor, moments: tuple[Tensor, Tensor], noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Moments of g^L `[S, R, B, Q]` from those of g^1(x) `[1, R, B, W]` and noise `[S, R, B, row_noise]`."""
        f, (mean, variance) = x[None], moments
        noises = noise.split(self.hyper.hidden_width, -1)
        for name, part, eps in zip(self.names[:-1], layers[1:], noises, strict=False):
            std = (variance + state.params[f"{name}.log_noise_variance"].exp()[:, None, None]).sqrt()
            f = f @ state.buffers[f"{name}.mean_map"] + mean + std * eps[..., : mean.shape[-1]]
            mean, variance = sparse.conditional(f, *part)
        return mean, variance

    def outputs(self, state: State, name: str, f: Tensor, g: Tensor, normal: Callable[..., Tensor]) -> Tensor:
        """f^l = m^l(f) + g^l(f) + e^l in the hidden layers."""
        if name == self.names[-1]:
            return g
        std = (0.5 * state.params[f"{name}.log_noise_variance"]).exp()[:, None, None]
        return f @ state.buffers[f"{name}.mean_map"] + g + std * normal(*g.shape[1:])
