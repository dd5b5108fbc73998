"""DSVI: doubly stochastic variational inference for deep GPs (salimbeni2017).

Model      f^0 = x;  f^l = m^l(f^{l-1}) + g^l(f^{l-1}) + e^l,  g^l ~ GP(0, k^l), e^l ~ N(0, s_l),  l = 1..L,
           with fixed linear mean functions m^l(f) = f W^l in the hidden layers, none in the last (nor e^L);
           W is the identity, padded with zeros to widen, the leading right-singular vectors to narrow.
Posterior  q = prod_l p(g^l | u^l) q(u^l), each layer as in `svgp`; layers are coupled through samples only.
Objective  elbo = 1/S sum_s sum_n E_{q(f^L_n | f^{L-1}_sn)} log p(y_n | f^L_n) - sum_l KL[q(v^l) || N(0, I)],
           f^l_sn = m^l(f^{l-1}_sn) + mean + sqrt(variance + s_l) * normal, row by row (salimbeni2017, eqs. 15 and 18).

With one layer it is `svgp`. Softmax, whose expectation has no closed form, takes one f^L_sn for each f^{L-1}_sn.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gpbench import streams
from gpbench.gp import quadrature, sparse
from gpbench.gp.layers import mean_map
from gpbench.gp.sparse import Layer
from gpbench.hyper import Annotated, Ge, NonNegativeInt, PositiveFloat, PositiveInt, dataclass
from gpbench.methods import svgp, warm_layer
from gpbench.methods.base import State
from gpbench.methods.layered import LayeredMethod, Moments
from gpbench.methods.training_rows import Batch
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(svgp.LayerSettings):
    """Settings of salimbeni2017 as ashman2020 ran them, but for q, here whitened, and lengthscale (1 there).

    Hidden layers have min(hidden_width, D) outputs. lengthscale null: sqrt(total variance of the layer's inputs);
    inner: of the hidden layers at the start; layer_noise_variance: s_l at the start, 0: no noise there. start_rows:
    in regression the last layer starts at the optimum of `sgpr` on at most so many rows (0: like the others), found by
    start_iterations of L-BFGS; hidden layers and rates are smaller where there is little noise; others as in `svgp`."""

    layers: PositiveInt = 2
    hidden_width: PositiveInt = 30
    layer_noise_variance: Annotated[float, Ge(0)] = 1e-5
    inner_chol_factor: PositiveFloat = 1e-5
    inner_outputscale: PositiveFloat = 1.0
    start_rows: NonNegativeInt = 0
    start_iterations: PositiveInt = 500

    def impossible(self, task: str) -> str:
        if self.start_rows and task == "regression" and not self.is_full_and_whitened:
            return "start_rows gives the last layer a full covariance in whitened coordinates; set start_rows=0"
        return super().impossible(task)


class Method(LayeredMethod):
    def __init__(self, hyper: Any, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets, depth=hyper.layers)
        if hyper.layer_noise_variance:
            self.noises += [f"{name}.log_noise_variance" for name in self.names[:-1]]

    def init(self, train: Batch, key: Key) -> State:
        hyper, x, z = self.hyper, train.x, self.start_inducing(train.x, streams.rng(key, "init"))
        width = min(hyper.hidden_width, x.shape[-1])
        state = State(self.start_noise(z))
        for name in self.names[:-1]:
            state.params |= self.start_layer(name, x, z, width, hyper.inner_outputscale, hyper.inner_chol_factor)
            if hyper.layer_noise_variance:
                state.params[f"{name}.log_noise_variance"] = z.new_full(z.shape[:1], hyper.layer_noise_variance).log()
            state.buffers[f"{name}.mean_map"] = mean_map(x, width)
            x, z = x @ state.buffers[f"{name}.mean_map"], z @ state.buffers[f"{name}.mean_map"]
        state.params |= self.start_layer(self.names[-1], x, z, self.num_outputs, hyper.outputscale)
        if hyper.start_rows and self.task == "regression":
            warm_layer.start(state, self.names, hyper, Batch(x, train.y, train.weight), key)
        return state

    def pace(self, state: State) -> Tensor | float:
        return state.buffers["pace"][:, 0] if "pace" in state.buffers else 1.0

    @property
    def hidden_noise(self) -> int:
        return (self.hyper.layers - 1) * self.hyper.hidden_width

    def propagate(self, state: State, layers: list[Layer], x: Tensor, first: Moments, noise: Tensor) -> Moments:
        """Moments of g^L given one draw f^l_sn of every row in every hidden layer (salimbeni2017, eq. 15)."""
        f, (mean, variance) = x[None], first
        noises = noise.split(self.hyper.hidden_width, -1)
        for name, part, eps in zip(self.names[:-1], layers[1:], noises, strict=False):
            # f^l = f^{l-1} W + mean + sqrt(variance + s_l) * eps
            log_noise = state.params.get(f"{name}.log_noise_variance")
            if log_noise is None:
                std = quadrature.std(variance)
            else:
                std = (variance + log_noise.exp()[:, None, None]).sqrt()
            f = f @ state.buffers[f"{name}.mean_map"] + mean + std * eps[..., : mean.shape[-1]]
            mean, variance = sparse.conditional(f, part)
        return mean, variance
