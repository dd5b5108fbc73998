"""Deep kernel learning: a KISS-GP over the two outputs of a neural network (wilson2016dkl).

    f = g(h(x)),  h(x) = W_L relu(... relu(W_1 x + b_1) ...) + b_L,  g a KISS-GP on a grid over the range of h on the
    training rows.

Network and GP ascend the log evidence of `kiss_gp` together, full batch, by Adam at `learning_rate` for the network.
Adam's steps do not depend on the scale of a gradient: the logarithms of the GP are stored divided by
gp_learning_rate / learning_rate, and so move at `gp_learning_rate`.
rossi2021 gives the network d-1000-1000-500-50-2 and the grid of 100 x 100, and says that the two were optimised in
turn, but no rates, initial values or number of steps. Choices here: ReLU, weights N(0, 2 / number of inputs of the
layer) (he2015), biases 0; the GP starts where gpytorch's does, with log 2 for each parameter (features between -0.95
and 0.95).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench import streams
from gpbench.hyper import Annotated, Ge, PositiveFloat, PositiveInt, dataclass
from gpbench.methods import kiss_gp
from gpbench.methods.kiss_gp import Params
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(kiss_gp.Hyperparameters):
    """num_outputs: outputs of the network; lengthscale: in ranges of the features."""

    hidden_units: tuple[PositiveInt, ...] = (1000, 1000, 500, 50)
    num_outputs: PositiveInt = 2
    grid_size: Annotated[int, Ge(5)] = 100
    lengthscale: PositiveFloat = 0.36
    outputscale: PositiveFloat = 0.69
    noise_variance: PositiveFloat = 0.69
    learning_rate: PositiveFloat = 0.001
    gp_learning_rate: PositiveFloat = 0.01

    def impossible(self, task: str) -> str:
        points = self.grid_size**self.num_outputs
        return f"a grid of {points} points exceeds a million" if points > 1_000_000 else super().impossible(task)


class Method(kiss_gp.Method):
    def __init__(self, hyper, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.speed = hyper.gp_learning_rate / hyper.learning_rate
        self.names = [f"layer{number}" for number in range(1, len(hyper.hidden_units) + 2)]

    def start_features(self, x: Tensor, key: Key) -> Params:
        """Weights `[1, inputs + 1, outputs]` of every layer, the last row its biases."""
        rng, widths = streams.rng(key, "init"), [x.shape[-1], *self.hyper.hidden_units, self.hyper.num_outputs]
        params = {}
        for name, inputs, outputs in zip(self.names, widths, widths[1:], strict=False):
            weight = torch.as_tensor(rng.normal(0.0, (2 / inputs) ** 0.5, (1, inputs, outputs))).to(x)
            params[name] = torch.cat([weight, weight.new_zeros(1, 1, outputs)], 1)
        return params

    def start_lengthscale(self, x: Tensor) -> Tensor:
        return x.new_full((1, self.hyper.num_outputs), self.hyper.lengthscale)

    def features(self, params: Params, x: Tensor) -> Tensor:
        """Outputs of the network `[N, Q]`."""
        *hidden, last = (params[name] for name in self.names)
        for layer in hidden:
            x = torch.addmm(layer[-1], x, layer[:-1]).relu()
        return torch.addmm(last[-1], x, last[:-1])
