"""KISS-GP: exact GP algebra for a GP that is interpolated from a grid (wilson2015), by gpytorch (gardner2018).

Model      f = sum_u w_u(x) g(u), g ~ GP(0, k) on a regular grid of G points an input, k RBF-ARD, w cubic interpolation;
           y_n = f(x_n) + e_n, e_n ~ N(0, noise_variance). Targets have a function each, independent, of one kernel.
Objective  log evidence = log N(y; 0, W K_UU W^T + noise_variance I), full batch, ascended by Adam on the logarithms of
           lengthscale (in ranges of the training inputs), outputscale and noise variance. Beyond `cholesky_rows` by
           conjugate gradients to `cg_tolerance`; log determinant and its gradient from `num_probes` random vectors.
Posterior  mean = k_* (K + noise_variance I)^-1 y; beyond `cholesky_rows` its residual is 1e-4, and in the variance the
           inverse has rank `lanczos_rank` (pleiss2018).

The grid spans the range of the training inputs; a test input outside is moved to its edge. A grid has G^D points: more
than four inputs are out of reach.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpbench.gp import kernels, likelihoods, linalg, structured
from gpbench.hyper import Annotated, Ge, NonNegativeInt, PositiveFloat, PositiveInt, RBFSettings, dataclass
from gpbench.methods.base import GradientMethod, Noise, Shapes, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

Params = dict[str, Tensor]
"""of one replica, without its axis"""


@dataclass(frozen=True)
class Hyperparameters(RBFSettings):
    """The grid of rossi2021; initial values in scaled units, lengthscale null: sqrt(total variance of the inputs)."""

    grid_size: Annotated[int, Ge(5)] = 10
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.1
    cholesky_rows: NonNegativeInt = 800
    cg_tolerance: PositiveFloat = 0.01
    num_probes: PositiveInt = 10
    lanczos_rank: PositiveInt = 200
    learning_rate: PositiveFloat = 0.05


class Method(GradientMethod):
    speed = 1.0
    """how much faster Adam moves the logarithms of the GP than `learning_rate`"""

    def __init__(self, hyper, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.accuracy = structured.Accuracy(
            hyper.cholesky_rows, hyper.cg_tolerance, hyper.num_probes, hyper.lanczos_rank
        )

    def init(self, train: Batch, key: Key) -> State:
        gp = {
            "log_lengthscale": self.start_lengthscale(train.x).log(),
            "log_outputscale": train.x.new_full((1,), math.log(self.hyper.outputscale)),
            "log_noise_variance": train.x.new_full((1,), math.log(self.hyper.noise_variance)),
        }
        params = self.start_features(train.x, key) | {name: value / self.speed for name, value in gp.items()}
        return State(params, {"x": train.x, "y": train.y, "mask": train.weight})

    def start_features(self, x: Tensor, key: Key) -> Params:
        """Parameters of `features`: the inputs themselves have none."""
        return {}

    def start_lengthscale(self, x: Tensor) -> Tensor:
        """Lengthscales in units of the grid `[1, D]`."""
        return kernels.start_lengthscale(x, self.hyper.lengthscale)[:, None] / edges(x[0])[1]

    def features(self, params: Params, x: Tensor) -> Tensor:
        """What the GP is over `[N, Q]`, here its inputs x `[N, D]`."""
        return x

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """A normal seeds the probes of the log determinant."""
        return Shapes((int(rows > self.hyper.cholesky_rows),))

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        """-log evidence `[R]`, a replica at a time: its rows alone decide how it is computed."""
        losses = []
        for r, kept in enumerate(batch.weight > 0):
            params = replica(state.params, r)
            process = self.process(params, self.features(params, batch.x[r, kept]))
            with linalg.replicas_from(r):
                losses.append(-structured.log_density(process, batch.y[r, kept], noise.fixed[r], self.accuracy))
        return torch.stack(losses)

    def process(self, params: Params, features: Tensor) -> structured.Process:
        """The GP at the features of the training inputs `[N, Q]`, whose range its grid spans."""
        lower, width = edges(features)
        size = self.hyper.grid_size
        lengthscale, outputscale, noise_variance = (
            (self.speed * params[f"log_{name}"]).exp() for name in ("lengthscale", "outputscale", "noise_variance")
        )
        factors = structured.kernel_factors(lengthscale, outputscale, size)
        return structured.Process(structured.interpolate((features - lower) / width, size), factors, noise_variance)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        kept, params = state.buffers["mask"] > 0, replica(state.params, 0)
        features = self.features(params, state.buffers["x"][kept])
        process, (lower, width) = self.process(params, features), edges(features)
        z = ((self.features(params, x[0]) - lower) / width).clamp(0.0, 1.0)
        points = structured.interpolate(z, self.hyper.grid_size)
        mean, variance = structured.posterior(process, state.buffers["y"][kept], points, self.accuracy)
        variance = variance[:, None].expand_as(mean)
        return likelihoods.Gaussian(self.num_targets).predictive(mean[None], variance[None], process.noise_variance)


def replica(params: Params, r: int) -> Params:
    return {name: value[r] for name, value in params.items()}


def edges(features: Tensor) -> tuple[Tensor, Tensor]:
    """Least value and range of every column of features `[N, Q]`; the range of a constant is 1."""
    lower, upper = features.amin(0), features.amax(0)
    return lower, torch.where(upper > lower, upper - lower, 1.0)
