"""Has an optimised fit converged? What as many steps again would gain, predicted from the objective so far.

The objective a datum, averaged over windows of steps at a constant rate, is regressed on log(step) over the last half
of the steps: gain = slope * log 2. A fit has converged where gain + 1.645 standard errors < 0.02 nats a datum (0.005 by
L-BFGS) and gain > -0.02 (-0.005), at t and at t / 2 steps, for there are plateaus on which fits rest before they go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Rule(NamedTuple):
    """window: steps whose objectives are averaged; gain: nats a datum that twice the steps may still gain."""

    window: int
    gain: float


LARGEST_GAIN = 0.02
ADAM, LBFGS = Rule(25, LARGEST_GAIN), Rule(2, 0.005)
"""An objective without noise tells small gains from none, and takes few steps (kin8nm: a fit by L-BFGS that gained 0.02
on doubling was 0.03 below its optimum)."""
LEAST_WINDOWS = 8
"""Windows of the last half without which nothing is said."""
LARGEST_SLOPE = 1e-4
"""Nats a datum, for a unit of a parameter (most are logarithms or standardised inputs), of one that is stationary."""
ONE_SIDED = 1.645
"""Quantile of 95 % of a standard normal."""
CHECKS_PER_DOUBLING = 4

CONVERGED, IMPROVING, NOT_JUDGED = "converged", "still improving", "not judged"


class Gain(NamedTuple):
    """Predicted gain in nats a datum, and its standard error."""

    mean: float
    error: float

    def is_below(self, limit: float) -> bool:
        """Whether it is surely below a limit; an objective that falls as much has not settled either."""
        return self.mean + ONE_SIDED * self.error < limit and self.mean > -limit


@dataclass(frozen=True)
class Convergence:
    """convergence: converged, still improving or not judged, and why; gain: the predicted one, NaN without any."""

    convergence: str
    gain: float = math.nan
    not_judged_because: str = ""


def predicted_gain(objective: np.ndarray, steps: int, window: int = ADAM.window) -> Gain | None:
    """Gain of `steps` further steps after the first `steps`; None where the last half has too few windows.

    objective `[windows]`: means a datum over consecutive windows of `window` steps."""
    first, last = math.ceil(steps / 2 / window), steps // window
    values = objective[first:last]
    if len(values) < LEAST_WINDOWS or not np.isfinite(values).all():
        return None
    log_step = np.log(window * (np.arange(first, last) + 0.5))
    centred = log_step - log_step.mean()
    scatter = centred @ centred
    slope = centred @ values / scatter
    residual = values - values.mean() - slope * centred
    error = math.sqrt(residual @ residual / (len(values) - 2) / scatter)
    return Gain(math.log(2) * slope, math.log(2) * error)


def judge(objective: np.ndarray, steps: int, rule: Rule = ADAM) -> Convergence:
    """The rule at `steps`, objective as in `predicted_gain`."""
    now, before = (predicted_gain(objective, so_far, rule.window) for so_far in (steps, steps // 2))
    if now is None or before is None:
        return Convergence(NOT_JUDGED, not_judged_because=f"{steps} steps are too few")
    if now.is_below(rule.gain) and before.is_below(rule.gain):
        return Convergence(CONVERGED, now.mean)
    if now.mean >= rule.gain:
        return Convergence(IMPROVING, now.mean)
    reason = "the objective falls" if now.mean <= -rule.gain else "too noisy, or converged too recently"
    return Convergence(NOT_JUDGED, now.mean, reason)


def is_checked(step: int, window: int = ADAM.window) -> bool:
    """Whether the rule is applied after `step` steps: at the ends of windows, a few times a doubling."""
    if step % window or step < 2 * window * LEAST_WINDOWS:
        return False
    level = CHECKS_PER_DOUBLING * math.log2(step)
    return math.floor(level) > math.floor(CHECKS_PER_DOUBLING * math.log2(step - window))
