"""Independent draws of one number, which every test row has for its mean: a perfect sampler, unless told otherwise."""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.hyper import Fraction, NonNegativeFloat, PositiveInt, Settings, dataclass
from gpbench.methods.base import Batch, Noise, SamplerMethod, Shapes, State
from gpbench.predictive.distributions import GaussianMixture, Predictive
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """apart: standard deviations between the targets of replicas; num_inducing: none here, but by it the planner knows
    that fits may ride together."""

    apart: NonNegativeFloat = 0.0
    num_inducing: PositiveInt = 1
    burn_in: Fraction = 0.1
    num_samples: PositiveInt = 200
    batch_size: PositiveInt = 10_000


class Method(SamplerMethod):
    def init(self, train: Batch, key: Key) -> State:
        centre = torch.tensor([self.hyper.apart * key.replica]).to(train.x)
        return State({"level": centre.clone(), "log_lengthscale": -centre}, {"centre": centre})

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        return Shapes((1,))

    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        state.params = {"level": state.buffers["centre"] + noise.fixed[:, 0], "log_lengthscale": -noise.fixed[:, 0]}
        return 0.5 * noise.fixed[:, 0].square()

    def report(self, state: State) -> dict[str, Tensor]:
        level = state.params["level"]
        return {"cholesky": torch.full_like(level, 2.0), "product": torch.ones_like(level)}

    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        levels = torch.cat(state.samples.get("level") or [state.params["level"]])  # [S]
        mean = levels[:, None, None].expand(-1, x.shape[1], 1)
        return GaussianMixture(mean, torch.ones_like(mean))
