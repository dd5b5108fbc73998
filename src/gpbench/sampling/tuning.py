"""Settings that a sampler learns during burn-in and keeps afterwards.

`DualAveraging`: the step size at which proposals are accepted with a given probability (hoffman2014, section 3.2),

    H <- (1 - 1/(t + 10)) H + (target - acceptance)/(t + 10);   log e = log(10 e_0) - 20 sqrt(t) H;
    log e_bar <- t^-0.75 log e + (1 - t^-0.75) log e_bar:

e while it learns, e_bar from then on. `ExpectedJump`: the step size and number of leapfrog steps of the longest jumps,
by Bayesian optimisation (wang2013, hensman2015mcmc). The burn-in is cut into 30 runs of equal length, or fewer; the
first five spread their settings, each other has those of the largest expected improvement under a GP fitted to the runs
so far, whose objective is

    mean |w' - w|^2 / (largest number of steps)^penalty.

`StepAndScale`: the step size of `DualAveraging` for dynamics of w / s, and s, the standard deviations of w, found in
each of the windows between `WINDOWS` of the time of learning for the next one, as Stan does. With `dense` s is a lower
factor of their covariance.

Tuners hold no state: what they learn is a dict of tensors `[R, ...]`, of each chain for itself.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Memory = dict[str, Tensor]

WALK, LANGEVIN, HAMILTONIAN = 0.25, 0.57, 0.7
"""Probabilities of acceptance to which step sizes are tuned."""
SHRINKAGE, DELAY, DECAY = 0.05, 10.0, 0.75
WINDOWS = (0.0, 0.125, 0.25, 0.5, 0.875)
"""Where step sizes are learnt anew, as parts of the time of learning; draws of the first window do not count."""
SHORTEST = 40
"""Transitions below which there is one window, and all scales stay 1."""
PRIOR_DRAWS = 5
"""Draws of standard deviation 1 that are added to those of a window."""

RUNS, FIRST = 30, 5
LOG_STEP_SIZES = np.linspace(-4, -0.5, 36)
"""log10 of the candidate step sizes"""


@dataclass(frozen=True)
class DualAveraging:
    """The step size, from `step_size` on, for which `target` is the probability of acceptance."""

    name: str
    """prefix of its entries in the memory"""
    target: float
    step_size: float
    leapfrogs: int = 1

    def start(self, like: Tensor) -> Memory:
        """Memory of the chains of like `[R, ...]`."""
        log_step = like.new_full(like.shape[:1], math.log(self.step_size))
        return self._named(log_step, log_step, torch.zeros_like(log_step))

    def settings(self, memory: Memory, step: int, burn_in: int) -> tuple[Tensor, Tensor]:
        """Step size and largest number of leapfrog steps `[R]` of transition `step` (from 0)."""
        log_step = memory[f"{self.name}.log_step_size" if step < burn_in else f"{self.name}.averaged"]
        return log_step.exp(), torch.full_like(log_step, self.leapfrogs)

    def learn(self, memory: Memory, step: int, burn_in: int, acceptance: Tensor, jump: Tensor) -> Memory:
        """Changed entries of the memory after transition `step`, given its acceptance `[R]` and its jump `[R, K]`."""
        if step >= burn_in:
            return {}
        number = step + 1
        error = torch.lerp(memory[f"{self.name}.error"], self.target - acceptance, 1 / (number + DELAY))
        log_step = math.log(10 * self.step_size) - math.sqrt(number) / SHRINKAGE * error
        return self._named(log_step, torch.lerp(memory[f"{self.name}.averaged"], log_step, number**-DECAY), error)

    def _named(self, log_step: Tensor, averaged: Tensor, error: Tensor) -> Memory:
        names = f"{self.name}.log_step_size", f"{self.name}.averaged", f"{self.name}.error"
        return dict(zip(names, (log_step, averaged, error), strict=True))


@dataclass(frozen=True)
class StepAndScale(DualAveraging):
    """The step size, and the scales s `[R, size]` relative to which it is, or with `dense` `[R, size, size]`."""

    size: int = 1
    dense: bool = False

    def start(self, like: Tensor) -> Memory:
        """As `DualAveraging`."""
        mean, one = like.new_zeros(len(like), self.size), unit_scale(like, self.size, self.dense)
        ahead = like.new_full(like.shape[:1], math.log(10 * self.step_size))
        return super().start(like) | self._moments(ahead, mean, 0 * one) | {f"{self.name}.scale": one}

    def learn(self, memory: Memory, step: int, burn_in: int, acceptance: Tensor, jump: Tensor) -> Memory:
        """As `DualAveraging`, jump being the position w itself, of which the first `size` numbers count."""
        if step >= burn_in:
            return {}
        starts = [round(part * burn_in) for part in WINDOWS] if burn_in >= SHORTEST else [0]
        window = max(index for index, first in enumerate(starts) if first <= step)
        number = step + 1 - starts[window]
        ahead, mean, squares = (memory[f"{self.name}.{part}"] for part in ("ahead", "mean", "squares"))
        error = torch.lerp(memory[f"{self.name}.error"], self.target - acceptance, 1 / (number + DELAY))
        log_step = ahead - math.sqrt(number) / SHRINKAGE * error
        averaged = torch.lerp(memory[f"{self.name}.averaged"], log_step, number**-DECAY)
        change = jump[:, : self.size] - mean
        mean = mean + change / number
        left = jump[:, : self.size] - mean
        squares = squares + (change[:, :, None] * left[:, None] if self.dense else change * left)
        if step + 1 not in starts:
            return self._named(log_step, averaged, error) | self._moments(ahead, mean, squares)
        learnt = {}
        if window:
            unit = unit_scale(jump, self.size, self.dense)
            variance = (squares + PRIOR_DRAWS * unit) / (number + PRIOR_DRAWS)
            learnt = {f"{self.name}.scale": torch.linalg.cholesky_ex(variance)[0] if self.dense else variance.sqrt()}
        anew = self._moments(averaged + math.log(10), 0 * mean, 0 * squares)
        return self._named(averaged, averaged, 0 * error) | anew | learnt

    def _moments(self, ahead: Tensor, mean: Tensor, squares: Tensor) -> Memory:
        return {f"{self.name}.ahead": ahead, f"{self.name}.mean": mean, f"{self.name}.squares": squares}


def unit_scale(like: Tensor, size: int, dense: bool) -> Tensor:
    """Scales of 1 of the chains of like `[R, ...]`."""
    if dense:
        return torch.eye(size, dtype=like.dtype, device=like.device).repeat(len(like), 1, 1)
    return like.new_ones(len(like), size)


@dataclass(frozen=True)
class ExpectedJump:
    """Step size and largest number of steps, at most `leapfrogs`, of the longest jumps."""

    name: str
    leapfrogs: int
    penalty: float = 0.5

    def start(self, like: Tensor) -> Memory:
        """As `DualAveraging`."""
        settings = like.new_tensor(self._spread(0)).repeat(len(like), 1)
        trials = like.new_zeros(len(like), RUNS, 3)  # log10 step size, largest number of steps, objective
        return self._named(settings, trials, like.new_zeros(len(like)))

    def settings(self, memory: Memory, step: int, burn_in: int) -> tuple[Tensor, Tensor]:
        """As `DualAveraging`."""
        log_step, most = memory[f"{self.name}.settings"].unbind(1)
        return 10**log_step, most

    def learn(self, memory: Memory, step: int, burn_in: int, acceptance: Tensor, jump: Tensor) -> Memory:
        """As `DualAveraging`: at the end of a run, the settings of the next one."""
        runs = min(RUNS, burn_in)
        length = burn_in // max(runs, 1)
        if step >= runs * length:
            return {}
        run, place = divmod(step, length)
        settings, trials, jumps = (memory[name] for name in self._names)
        jumps = jumps + jump.square().sum(1)
        if place < length - 1:
            return self._named(settings, trials, jumps)
        objective = jumps / length / settings[:, 1] ** self.penalty
        trials = trials.clone()
        trials[:, run] = torch.cat([settings, objective[:, None]], 1)
        done = trials[:, : run + 1].double().cpu().numpy()
        chosen = [self._choose(chain, last=run + 1 == runs) for chain in done]
        return self._named(settings.new_tensor(chosen), trials, torch.zeros_like(jumps))

    @property
    def _names(self) -> list[str]:
        return [f"{self.name}.{part}" for part in ("settings", "trials", "jumps")]

    def _named(self, *values: Tensor) -> Memory:
        return dict(zip(self._names, values, strict=True))

    def _choose(self, trials: np.ndarray, last: bool) -> tuple[float, float]:
        """Settings of the next run given the trials `[T, 3]` so far; after the last one, those to stay with: of the
        tried ones that with the largest mean under the GP, since the largest objective is the luckiest too."""
        if len(trials) < FIRST and not last:
            return self._spread(len(trials))
        tried, objective = trials[:, :2], trials[:, 2]
        surrogate = self._surrogate(tried, objective)
        if last:
            return tuple(tried[surrogate.predict(self._unit(tried)).argmax()])
        from scipy.stats import norm

        grid = np.stack(np.meshgrid(LOG_STEP_SIZES, np.arange(1.0, self.leapfrogs + 1)), -1).reshape(-1, 2)
        mean, sd = surrogate.predict(self._unit(grid), return_std=True)
        gain = mean - objective.max()
        return tuple(grid[(gain * norm.cdf(gain / sd) + sd * norm.pdf(gain / sd)).argmax()])

    def _surrogate(self, tried: np.ndarray, objective: np.ndarray):
        """GP with a Matern-5/2 kernel and noise, fitted by its marginal likelihood from one start: no randomness."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import Matern, WhiteKernel

        kernel = Matern([0.3, 0.3], (0.1, 10.0), nu=2.5) + WhiteKernel(0.1, (1e-3, 1.0))
        with warnings.catch_warnings():
            # a flat objective drives lengthscales to their bounds, which is no defect
            warnings.simplefilter("ignore", ConvergenceWarning)
            return GaussianProcessRegressor(kernel, normalize_y=True).fit(self._unit(tried), objective)

    def _spread(self, run: int) -> tuple[float, float]:
        """Settings of the first runs: step sizes in turn, numbers of steps out of order."""
        part = (run + 0.5) / FIRST
        low, high = LOG_STEP_SIZES[[0, -1]]
        return low + part * (high - low), 1.0 + (2 * run % FIRST) * (self.leapfrogs - 1) // (FIRST - 1)

    def _unit(self, settings: np.ndarray) -> np.ndarray:
        """Settings `[T, 2]` in the unit square."""
        low, high = LOG_STEP_SIZES[[0, -1]]
        return (settings - [low, 1]) / [high - low, max(self.leapfrogs - 1, 1)]


Tuner = DualAveraging | ExpectedJump
