"""The constant predictor: what a method must beat.

Regression: p(y_*) = N(mean of y, variance of y). Classification: class frequencies with Laplace's
smoothing, p(c) = (n_c + 1) / (n + C), so that a class absent from the training rows keeps some mass.
Counts: Poisson with rate (sum of y + 1/2) / n, the posterior mean under Jeffreys' prior, so that it is never 0.
"""

from __future__ import annotations

import numpy as np

from gpbench.hyper import Settings, dataclass
from gpbench.methods.base import ClosedFormMethod, Model
from gpbench.predictive.counts import Counts
from gpbench.predictive.distributions import Categorical, GaussianMixture, Predictive


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """None."""


def with_unseen(probs: np.ndarray, classes: np.ndarray, num_classes: int, rows: int) -> np.ndarray:
    """Probabilities over all C classes `[T, C]` from those over the `classes` seen in the training rows.

    A class never seen gets what Laplace's rule gives it, 1 / (n + C), and the others share the rest."""
    complete = np.full((len(probs), num_classes), 1 / (rows + num_classes))
    complete[:, classes.astype(int)] = probs * (1 - (num_classes - len(classes)) / (rows + num_classes))
    return complete


class Method(ClosedFormMethod):
    def fit(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Model:
        """Moments or rate of y `[n, P]`, or smoothed frequencies of the class numbers y `[n]`."""
        if self.task == "regression":
            return {"mean": y.mean(0), "variance": y.var(0)}
        if self.task == "counts":
            return {"rate": (y.sum(0) + 0.5) / len(y)}
        counts = np.bincount(y.astype(int), minlength=self.num_classes)
        return {"probs": (counts + 1) / (len(y) + self.num_classes)}

    def predict(self, model: Model, x: np.ndarray) -> Predictive:
        """The same distribution for each row of x `[T, D]`."""
        if self.task == "regression":
            return GaussianMixture(*(np.tile(model[name], (1, len(x), 1)) for name in ("mean", "variance")))
        if self.task == "counts":
            return Counts(np.tile(model["rate"], (1, len(x), 1)), [1.0])
        return Categorical(np.tile(model["probs"], (1, len(x), 1)))
