"""Autoregressions x_t = rho x_(t-1) + sqrt(1 - rho^2) e_t of two parameters and five latent values, around levels that
the replicas may have for themselves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpbench.hyper import Annotated, Fraction, Ge, Lt, NonNegativeFloat, PositiveInt, Settings, dataclass
from gpbench.methods.base import Batch, Noise, SamplerMethod, Shapes, State
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

SIZES = {"f": 5, "psi": 2}


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """apart: between the levels of replicas, in standard deviations; truth: whether it asks for the latent values."""

    rho: Annotated[float, Ge(0), Lt(1)] = 0.5
    apart: NonNegativeFloat = 0.0
    burn_in: Fraction = 0.1
    num_samples: PositiveInt = 100_000
    truth: bool = False

    def needs(self) -> list[str]:
        return ["f"] if self.truth else []


class Method(SamplerMethod):
    def init(self, train: Batch, key: Key) -> State:
        level = torch.tensor([[self.hyper.apart * key.replica]]).to(train.x)
        return State({name: level.repeat(1, size) for name, size in SIZES.items()}, {"level": level})

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        return Shapes((sum(SIZES.values()),))

    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        level, rho = state.buffers["level"], self.hyper.rho
        for name, part in zip(SIZES, noise.fixed.split(list(SIZES.values()), 1), strict=True):
            moved = level + rho * (state.params[name] - level) + math.sqrt(1 - rho**2) * part
            state.params[name] = moved
        return 0.5 * (state.params["psi"] - level).square().sum(1)

    def report(self, state: State) -> dict[str, Tensor]:
        one = torch.ones_like(state.buffers["level"][:, 0])
        return {
            "acceptance_theta": 0.25 * one,
            "cholesky": 2 * one,
            "inverse": one,
            "product": one,
            "quadratic": 7 * one,
        }

    def variables(self, name: str, size: int) -> list[str]:
        return ["log lengthscale 1", "log variance"] if name == "psi" else super().variables(name, size)

    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        raise AssertionError("a fit of kind sample was asked for predictions")
