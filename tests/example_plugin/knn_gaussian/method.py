"""Nearest neighbours: p(y_*) = N(m, v), m the mean target of the k training rows nearest to x_* (fix1951).

v = (1 + 1 / k) s^2, where s^2 is the mean variance of the targets among the neighbours of a training row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial import KDTree

from gpbench.hyper import Annotated, Ge, Settings, dataclass
from gpbench.methods.base import ClosedFormMethod
from gpbench.predictive.distributions import GaussianMixture, Predictive


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """neighbours: k."""

    neighbours: Annotated[int, Ge(2)] = 5


class Method(ClosedFormMethod):
    def fit(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
        k = self.hyper.neighbours
        spread = self._near(x, y, x).var(1, ddof=1).mean(0)
        return {"x": x, "y": y, "variance": (1 + 1 / k) * spread}

    def predict(self, model: dict[str, Any], x: np.ndarray) -> Predictive:
        mean = self._near(model["x"], model["y"], x).mean(1)
        return GaussianMixture(mean[None], np.broadcast_to(model["variance"], mean.shape)[None])

    def _near(self, x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Targets of the k nearest rows `[T, k, P]`."""
        return y[KDTree(x).query(at, self.hyper.neighbours)[1]]
