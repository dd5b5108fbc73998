"""Sparse GP regression whose inducing inputs are rows, chosen greedily (titsias2009, section 3.1; urbainczyk2025).

Model, objective and posterior are those of `sgpr`, with one lengthscale and Z = the inputs of the rows M, which starts
empty: num_inducing times the row comes in that makes the bound largest, of some random candidates (`gp.greedy`).
Choosing M at given parameters and ascending the bound at given M take turns; L-BFGS ascends from several lengthscales
at first, and from the best of these ends later.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import greedy, kernels, lbfgs
from gpbench.hyper import Annotated, Ge, PositiveFloat, PositiveInt, RBFSettings, dataclass
from gpbench.methods import sgpr
from gpbench.methods.base import Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

Z, ROWS = "inducing_inputs", "inducing_rows"
LEAST_GAIN = 1e-3
"""Nats a tenth of the iterations of the start must gain for it to go on."""


@dataclass(frozen=True)
class Hyperparameters(RBFSettings):
    """Settings of urbainczyk2025 (which gives no optimiser) where they have a name; the others are those of `sgpr`.

    candidates: rows among which each inducing input is the best; alternations: of choice and ascent, the last ascent
    being that of the trainer; restarts: lengthscales from which the first one begins, a factor of 2 apart;
    ascent_iterations: of L-BFGS, at most, in all ascents but the last."""

    num_inducing: PositiveInt = 50
    ard: bool = False
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.1
    jitter: PositiveFloat = 1e-8
    optimiser: Literal["adam", "lbfgs"] = "lbfgs"
    learning_rate: PositiveFloat = 0.05
    candidates: PositiveInt = 500
    alternations: Annotated[int, Ge(2)] = 3
    restarts: PositiveInt = 5
    ascent_iterations: PositiveInt = 50

    def least_rows(self) -> int:
        return self.num_inducing

    def probes(self) -> list[str]:
        return []


class Method(sgpr.Method):
    def init(self, train: Batch, key: Key) -> State:
        x, hyper, rng = train.x, self.hyper, streams.rng(key, "init")
        width = x.shape[-1] if hyper.ard else 1
        log_lengthscale = kernels.start_lengthscale(x, hyper.lengthscale).log()[:, None].repeat(1, width)
        params = kernels.start("rbf", log_lengthscale, x.new_full((1,), math.log(hyper.outputscale)))
        params["log_noise_variance"] = x.new_full((1,), math.log(hyper.noise_variance))
        state = self.choose(State(params, {"x": x, "y": train.y, "mask": train.weight}), rng)
        factors = [2.0 ** (k - (hyper.restarts - 1) / 2) for k in range(hyper.restarts)]
        starts = [params | {"log_lengthscale": log_lengthscale + math.log(factor)} for factor in factors]
        ends = [self.ascend(State(start, state.buffers), train) for start in starts]
        state = min(ends, key=lambda end: float(self.profile(end, train).nan_to_num(math.inf)))
        for _ in range(hyper.alternations - 2):
            state = self.ascend(self.choose(state, rng), train)
        return self.choose(state, rng)

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        return super().loss(at_rows(state), batch, noise)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        return super().predict(at_rows(state), x, key)

    def ascend(self, state: State, train: Batch) -> State:
        """The state of one replica after some iterations of L-BFGS at its inducing inputs."""
        objective = lbfgs.of_params(lambda params: self.profile(State(params, state.buffers), train), state.params)
        start = lbfgs.flatten(state.params)
        best = lbfgs.minimise(objective, start, self.hyper.ascent_iterations, LEAST_GAIN)
        return State(lbfgs.unflatten(best, state.params), state.buffers)

    @torch.no_grad()
    def choose(self, state: State, rng: np.random.Generator) -> State:
        """The state of one replica with rows M chosen anew at its parameters, none to begin with."""
        model, x, mask = self.regression(state), state.buffers["x"], state.buffers["mask"]
        chosen = torch.zeros(1, 0, dtype=torch.int64, device=x.device)
        for _ in range(min(self.hyper.num_inducing, x.shape[1])):
            keys = torch.from_numpy(rng.random((1, x.shape[1]))).to(x)
            chosen = greedy.insert(model, chosen, greedy.candidates(keys, chosen, mask, self.hyper.candidates))
        return State(state.params, state.buffers | {ROWS: chosen, Z: greedy.take(x[:, None], chosen)[:, 0]})

    def regression(self, state: State) -> greedy.Regression:
        """The regression among whose rows M is; its first target stands for all."""
        kernel, buffers = self.kernel(state.params).map(lambda value: value[:, None]), state.buffers
        return greedy.Regression(
            kernel.covariance,
            lambda rows: greedy.take(buffers["x"][:, None], rows),
            kernel.outputscale,
            buffers["y"][..., 0],
            buffers["mask"],
            state.params["log_noise_variance"].exp()[:, None],
            self.hyper.jitter,
        )


def at_rows(state: State) -> State:
    """The state as `sgpr` has it, with the inducing inputs among its parameters."""
    return State(state.params | {Z: state.buffers[Z]}, state.buffers)


def fit(hyper: Hyperparameters, train: Batch, key: Key) -> State:
    """What the method finds for one replica without a trainer, with rows M chosen at these parameters."""
    method = Method(hyper, "regression")
    return method.choose(method.ascend(method.init(train, key), train), streams.rng(key, "init", 1))
