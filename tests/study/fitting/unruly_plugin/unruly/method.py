"""Linear regression by Adam that fails on one split, half-way, and keeps a diary of the fits that begin."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Literal

from torch import Tensor

from gpbench.hyper import NonNegativeFloat, NonNegativeInt, OptimisedSettings, PositiveFloat, PositiveInt, dataclass
from gpbench.methods.base import GradientMethod, Noise, State
from gpbench.methods.training_rows import Batch, TrainingSet
from gpbench.predictive.distributions import GaussianMixture, Predictive
from gpbench.streams import Key

STEP = 30


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """pause: seconds before a fit begins to learn; num_inducing: none here, but by it the planner knows that splits
    may ride together."""

    fate: Literal["raises", "dies"] = "raises"
    victim: NonNegativeInt = 1
    pause: NonNegativeFloat = 0.0
    num_inducing: PositiveInt = 1
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 10_000


class Method(GradientMethod):
    step, doomed = 0, False

    def start(self, data: TrainingSet, keys: list[Key]) -> State:
        splits = [key.split for key in keys]
        with Path(os.environ["UNRULY_DIARY"]).open("a") as diary:
            diary.write(f"{splits}\n")
        time.sleep(self.hyper.pause)
        self.step, self.doomed = 0, self.hyper.victim in splits
        return State({"weight": data.x_shift.new_zeros(*data.x_shift.shape, 1)})

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        self.step += 1
        if self.doomed and self.step == STEP:
            if self.hyper.fate == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("the sum is wrong\nand this line is for the log")
        error = batch.y - batch.x @ state.params["weight"]
        return (batch.weight * error[..., 0].square()).sum(-1)

    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        mean = x @ state.params["weight"]
        return GaussianMixture(mean, mean.new_ones(mean.shape))
