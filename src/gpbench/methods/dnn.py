"""Neural network with dropout (srivastava2014), the competitor of the deep GPs of cutajar2017.

    a^0 = x,  a^l = d^l * relu(a^(l-1) W^l + b^l) / (1 - p),  l = 1..L,  f = a^L W^(L+1) + b^(L+1),
    loss = -sum_b weight_b log p(y_b | f_b),

with masks d^l_bj ~ Bernoulli(1 - p), fresh for every row and step (inverted dropout); L hidden layers of h units.
Predictions leave dropout out (d = 1, no division) and are a single component. No weight decay.

MC dropout (gal2016) is the same network as an approximate Bayesian one: `input_dropout` masks x too,
`prior_lengthscale` l adds a decay, l^2 (1 - p) / 4 sum ||W^l||^2 (biases left out), which is that of its program where
the targets have variance 1 (elsewhere the program's has l sd(y) for l, see docs/decisions.md), and a prediction is the
mixture over `samples_test` S masks, fresh for every row,

    p(y | x) = 1/S sum_s p(y | f_s),    in regression N(y; f_s, 1 / precision).

Its program chooses p and the precision by the likelihood of a fifth of the training rows; here they are settings, and
the precision is learned under dropout where it is not given.

h is matched to the deep GP with random features: as many weights as its L + 1 layers have when Omega is fixed,

    D_in h + (L - 1) h^2 + h D_out = N_Phi (L D_F + D_out),  biases left out.

Likelihoods: softmax with an output a class, also for two classes; Gaussian with one learned noise variance. The paper
prints the log likelihood of its networks for classification only; here it is maximised, and exists, for both. As it is
learned under dropout, the noise variance includes the spread that the masks cause.
Choices where the paper is silent: ReLU, Adam at 0.01 and batches of 200, as its deep GPs have them; initial weights
N(0, 2 / number of inputs of the layer) (he2015), biases 0.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable

import torch
from scipy import special
from torch import Tensor

from gpbench import streams
from gpbench.gp import likelihoods
from gpbench.hyper import Annotated, Ge, Lt, NonNegativeInt, OptimisedSettings, PositiveFloat, PositiveInt, dataclass
from gpbench.methods.base import GradientMethod, Noise, Shapes, State, noise_variance
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

INITIAL_LOG_NOISE_VARIANCE = -2.0
CHUNK_ELEMENTS = 2**20
"""Numbers of one hidden layer in prediction: 8 MB in float64."""


@dataclass(frozen=True)
class Network(OptimisedSettings):
    """units: of every hidden layer; null = matched to a deep GP of as many hidden layers, `match_width` GPs in each
    and `match_basis` features N_Phi a layer: 200 are 100 frequencies of the RBF kernel, 100 of the arc-cosine are 100.
    """

    hidden_layers: PositiveInt = 1
    units: PositiveInt | None = None
    match_basis: PositiveInt = 200
    match_width: PositiveInt = 3
    batch_size: PositiveInt = 200
    learning_rate: PositiveFloat = 0.01

    def width(self) -> int:
        return self.units or self.match_basis  # how many are matched hangs on the data


@dataclass(frozen=True)
class Hyperparameters(Network):
    """Those of the network; dropout: probability p that a hidden unit (with `input_dropout`: or an input) is left out;
    samples_test: masks of a prediction, 0: none; prior_lengthscale: l of the weight decay, 0: none; precision: of
    scaled targets given f, null: learned."""

    dropout: Annotated[float, Ge(0), Lt(1)] = 0.5
    input_dropout: bool = False
    samples_test: NonNegativeInt = 0
    prior_lengthscale: Annotated[float, Ge(0)] = 0.0
    precision: PositiveFloat | None = None

    def impossible(self, task: str) -> str:
        return f"precision is for regression, not {task}" if self.precision and task != "regression" else ""


def matched_units(num_inputs: int, num_outputs: int, hidden_layers: int, basis: int, width: int) -> int:
    """Units h of each hidden layer, the whole number nearest to the positive root of the equation above, at least 1."""
    weights = basis * (hidden_layers * width + num_outputs)
    linear = num_inputs + num_outputs
    # this form of the root also holds for one hidden layer, where the equation is linear
    root = 2 * weights / (linear + math.sqrt(linear**2 + 4 * (hidden_layers - 1) * weights))
    return max(1, round(root))


def affine(x: Tensor, weight: Tensor) -> Tensor:
    """x W + b `[R, B, H]` for x `[R, B, D]` and weight `[R, D + 1, H]`, whose last row is b."""
    return torch.baddbmm(weight[:, -1:], x, weight[:, :-1])


def forward(x: Tensor, weights: list[Tensor], masks: Iterable[Tensor | float] | None = None) -> Tensor:
    """Outputs f `[R, B, Q]` for x `[R, B, D]`; masks: L factors `[R, B, h]` of the hidden units, 1 by default."""
    *hidden, last = weights
    factors: Iterable[Tensor | float] = masks or [1.0] * len(hidden)
    for weight, mask in zip(hidden, factors, strict=True):
        x = affine(x, weight).relu() * mask
    return affine(x, last)


class NetworkMethod(GradientMethod):
    """What networks share: their weights, and predictions by some of them."""

    def __init__(self, hyper: Network, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        regression = task == "regression"
        self.likelihood: likelihoods.Likelihood = (
            likelihoods.Gaussian(num_targets) if regression else likelihoods.Softmax(num_classes)
        )
        self.names = [f"layer{number}" for number in range(1, hyper.hidden_layers + 2)]

    def init(self, train: Batch, key: Key) -> State:
        """Weights `[1, D + 1, H]` of each layer, the biases (zero) in the last row."""
        rng, num_inputs, params = streams.rng(key, "init"), train.x.shape[-1], {}
        for name, width in zip(self.names, self.layer_widths(num_inputs), strict=True):
            draws = torch.from_numpy(rng.standard_normal((1, num_inputs, width)))
            weight = math.sqrt(2 / num_inputs) * draws.to(train.x)
            params[f"{name}.weight"] = torch.nn.functional.pad(weight, (0, 0, 0, 1))
            num_inputs = width
        if self.task == "regression":
            params["log_noise_variance"] = train.x.new_full((1,), INITIAL_LOG_NOISE_VARIANCE)
        return State(params)

    def layer_widths(self, num_inputs: int) -> list[int]:
        """Outputs of every layer, the last one included."""
        hyper, num_outputs = self.hyper, self.likelihood.num_outputs
        units = hyper.units or matched_units(
            num_inputs, num_outputs, hyper.hidden_layers, hyper.match_basis, hyper.match_width
        )
        return [units] * hyper.hidden_layers + [num_outputs]

    def weights(self, state: State) -> list[Tensor]:
        """Weights in the order in which they are applied."""
        return [state.params[f"{name}.weight"] for name in self.names]

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """One component for each of `predictive_weights`, the same weights for every row of x `[1, T, D]`."""
        f = torch.cat([outputs(x, weights) for weights in self.predictive_weights(state, key)])  # [S, T, Q]
        return self.likelihood.predictive(f, None, noise_variance(state.params))

    @abstractmethod
    def predictive_weights(self, state: State, key: Key) -> Iterable[list[Tensor]]:
        """Weights to predict with, one list a component."""


def outputs(x: Tensor, weights: list[Tensor]) -> Tensor:
    """`forward` without masks, by chunks of rows."""
    rows = max(1, CHUNK_ELEMENTS // (len(x) * weights[0].shape[-1]))
    return torch.cat([forward(part, weights) for part in x.split(rows, 1)], 1)


class Method(NetworkMethod):
    hyper: Hyperparameters

    def init(self, train: Batch, key: Key) -> State:
        """A given precision in place of the one that is learned."""
        state = super().init(train, key)
        if self.hyper.precision is not None:
            state.params["log_noise_variance"].fill_(-math.log(self.hyper.precision))
        return state

    def frozen(self, step: int, steps: int) -> frozenset[str]:
        return frozenset({"log_noise_variance"} if self.hyper.precision is not None else ())

    def units(self, state: State, inputs: int) -> int:
        """Hidden units of a row, and its inputs where they are masked too."""
        hidden = sum(weight.shape[-1] for weight in self.weights(state)[:-1])
        return hidden + inputs * self.hyper.input_dropout

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """One normal a row and unit that may be left out."""
        return Shapes(per_row=(self.units(state, self.weights(state)[0].shape[1] - 1),))

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        """-log likelihood `[R]`, under dropout, and the decay of the weights."""
        f = self.under_dropout(state, batch.x, noise.per_row)
        log_prob = self.likelihood.log_prob(batch.y, f[None], noise_variance(state.params))[0]  # log p(y_b | f_b)
        return self.decay(state) - (batch.weight * log_prob).sum(-1)

    def decay(self, state: State) -> Tensor:
        """l^2 (1 - p) / 4 sum_l ||W^l||^2 `[R]`, biases left out."""
        factor = self.hyper.prior_lengthscale**2 * (1 - self.hyper.dropout) / 4
        if not factor:
            return torch.zeros(())
        return factor * sum((weight[:, :-1].square().sum((1, 2)) for weight in self.weights(state)), torch.zeros(()))

    def under_dropout(self, state: State, x: Tensor, noise: Tensor) -> Tensor:
        """Outputs `[R, B, Q]` at x `[R, B, D]` under masks from normals `[R, B, units]`, those of the inputs first."""
        hidden = self.units(state, 0)
        if self.hyper.input_dropout:
            x = x * self.factor(noise[..., :-hidden])
        return forward(x, self.weights(state), self.masks(noise[..., -hidden:]))

    def masks(self, noise: Tensor) -> list[Tensor]:
        """Factors `[R, B, h]` of each hidden layer, from normals `[R, B, L h]`."""
        return list(self.factor(noise).chunk(self.hyper.hidden_layers, -1))

    def factor(self, noise: Tensor) -> Tensor:
        """0 with probability p, else 1 / (1 - p)."""
        return (noise > float(special.ndtri(self.hyper.dropout))).to(noise) / (1 - self.hyper.dropout)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """A component for each of `samples_test` masks, or a single one without any."""
        if not self.hyper.samples_test:
            return super().predict(state, x, key)
        shape = 1, x.shape[1], self.units(state, x.shape[-1])
        normals = (streams.normal(key, "eval", sample, shape, like=x) for sample in range(self.hyper.samples_test))
        f = torch.cat([self.under_dropout(state, x, noise) for noise in normals])  # [S, T, Q]
        return self.likelihood.predictive(f, None, noise_variance(state.params))

    def predictive_weights(self, state: State, key: Key) -> Iterable[list[Tensor]]:
        return [self.weights(state)]
