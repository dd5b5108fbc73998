"""How long each replica of an optimised fit trains, and how its rate falls at the end.

A fit trains at a constant rate for c steps, and d more while the rate falls as half a cosine to zero,
d / (c + d) = `decay`. Without a stopping rule c + d is the number of steps; with it c is where the rule of
`convergence` holds first, if it does before. Replicas decide each for itself. A search for a minimum may also end by
itself, where it finds no lower value; it has converged if there the gradient is small, or if the rule holds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpbench.study.fitting import convergence
from gpbench.study.fitting.convergence import ADAM, CONVERGED, Convergence, Rule


class Schedule:
    """rows: training rows of each replica; until_converged: whether the rule may end a fit before `steps`; rule:
    that of the optimiser.

    constant: the steps at the constant rate of each replica, as far as they are decided; stationary: whether it ended
    where its gradient is small."""

    def __init__(self, steps: int, decay: float, rows: list[int], until_converged: bool, rule: Rule = ADAM) -> None:
        self.steps, self.decay, self.until_converged, self.rule = steps, decay, until_converged, rule
        self.rows = np.array(rows)
        self.longest = steps - round(decay * steps)
        self.constant = [self.longest] * len(rows)
        self.stationary = [False] * len(rows)
        self.sum: Tensor | float = 0.0
        self.means: list[Tensor] = []

    def ends(self, r: int) -> int:
        """The last step of a replica."""
        if self.constant[r] == self.longest:
            return self.steps
        return self.constant[r] + round(self.constant[r] * self.decay / (1 - self.decay))

    def last(self) -> int:
        """The last step of all replicas."""
        return max(map(self.ends, range(len(self.constant))))

    def factors(self, step: int) -> list[float]:
        """What the rates of the replicas are multiplied by at `step`, from 0; 0 once they have ended."""
        return [self._factor(step, constant, self.ends(r)) for r, constant in enumerate(self.constant)]

    @staticmethod
    def _factor(step: int, constant: int, end: int) -> float:
        if step < constant:
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - constant + 0.5) / (end - constant))) if step < end else 0.0

    def observe(self, loss: Tensor, step: int) -> None:
        """Take note of the loss `[R]` of `step`, and end the constant rate of replicas that have converged."""
        self.sum = self.sum - loss
        if (step + 1) % self.rule.window == 0:
            self.means.append(self.sum / self.rule.window)
            self.sum = 0.0
        if self.until_converged and convergence.is_checked(step + 1, self.rule.window):
            for r in range(len(self.constant)):
                if self.constant[r] == self.longest and self.judge(r, step + 1).convergence == CONVERGED:
                    self.constant[r] = min(step + 1, self.longest)

    def end(self, r: int, step: int, slope: float) -> None:
        """Replica r has found no lower value and makes `step` steps; slope: the steepest in a parameter, in nats."""
        self.constant[r] = step
        self.stationary[r] = slope / self.rows[r] < convergence.LARGEST_SLOPE

    def judge(self, r: int, step: int | None = None) -> Convergence:
        """Whether replica r has converged, by its steps at the constant rate or, of them, the first `step`."""
        means = torch.stack(self.means)[:, r].double().cpu().numpy() / self.rows[r] if self.means else np.zeros(0)
        found = convergence.judge(means, step or self.constant[r], self.rule)
        return Convergence(CONVERGED, found.gain) if self.stationary[r] else found

    def content(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"constant": self.constant, "stationary": self.stationary, "sum": self.sum, "means": self.means}

    def load(self, saved: dict[str, Any]) -> None:
        """Take over `content`."""
        self.constant, self.stationary = saved["constant"], saved["stationary"]
        self.sum, self.means = saved["sum"], saved["means"]
