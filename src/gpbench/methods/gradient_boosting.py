"""Tuned gradient-boosted trees, the baseline beside the GPs (friedman2001; scikit-learn's HistGradientBoosting).

Settings are drawn at random `trials` times and scored by cross-validation on the training rows alone; the number
of trees is read off the same held-out curves. The best setting is refitted on all training rows. Regression: trees
give no variance, so the predictive is N(prediction, s^2) with s^2 the mean squared *out-of-fold* residual of the
chosen setting (one variance for all inputs; the choice among `trials` curves makes it slightly optimistic).
Classification: the boosted class probabilities, chosen by held-out log probability.
Cost: trials * folds + 1 fits of `iterations` trees (times C classes).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import KFold

from gpbench.hyper import Annotated, Ge, PositiveInt, Settings, dataclass
from gpbench.methods.base import ClosedFormMethod, Model
from gpbench.methods.constant import with_unseen
from gpbench.predictive.distributions import Categorical, GaussianMixture, Predictive


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """trials: settings tried; folds: of the cross-validation; iterations: the most boosting rounds."""

    trials: PositiveInt = 10
    folds: Annotated[int, Ge(2)] = 5
    iterations: PositiveInt = 200


def draw_setting(rng: np.random.Generator) -> dict[str, float]:
    """One random setting of the trees."""
    return {
        "learning_rate": float(np.exp(rng.uniform(np.log(0.02), np.log(0.3)))),
        "max_leaf_nodes": int(rng.choice([4, 8, 16, 31])),
        "min_samples_leaf": int(rng.choice([3, 5, 10, 20])),
        "l2_regularization": float(np.exp(rng.uniform(np.log(1e-3), np.log(10.0)))),
    }


class Method(ClosedFormMethod):
    def fit(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Model:
        """One tuned ensemble per column of y `[n, P]` (regression) or one for the class numbers y `[n]`.

        held_out_loss `[P]`: mean squared out-of-fold residual, scaled units; in classification one log loss, in nats.
        """
        targets = y.T if self.task == "regression" else [y]
        estimators, losses = zip(*(self._tune(x, target, rng) for target in targets), strict=True)
        return {"estimators": list(estimators), "held_out_loss": np.array(losses), "rows": len(x)}

    def predict(self, model: Model, x: np.ndarray) -> Predictive:
        """Gaussian of the out-of-fold variance around the trees' prediction, or class probabilities, for x `[T, D]`."""
        if self.task == "regression":
            mean = np.stack([estimator.predict(x) for estimator in model["estimators"]], axis=-1)
            return GaussianMixture(mean[None], np.broadcast_to(model["held_out_loss"], mean.shape)[None])
        estimator = model["estimators"][0]
        probs = with_unseen(estimator.predict_proba(x), estimator.classes_, self.num_classes, model["rows"])
        return Categorical(probs[None])

    def _tune(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> tuple[Any, float]:
        """The refitted best ensemble, and its held-out loss."""
        seed = int(rng.integers(2**31))
        settings = [draw_setting(rng) for _ in range(self.hyper.trials)]
        losses = np.array([self._held_out_loss(x, y, setting, seed) for setting in settings])
        trial, last = np.unravel_index(losses.argmin(), losses.shape)
        return self._estimator(settings[trial], int(last) + 1, seed).fit(x, y), losses[trial, last]

    def _held_out_loss(self, x: np.ndarray, y: np.ndarray, setting: dict[str, float], seed: int) -> np.ndarray:
        """Mean out-of-fold loss after each boosting round `[iterations]`."""
        total = np.zeros(self.hyper.iterations)
        for train, test in KFold(min(self.hyper.folds, len(x)), shuffle=True, random_state=seed).split(x):
            estimator = self._estimator(setting, self.hyper.iterations, seed).fit(x[train], y[train])
            total += [loss.sum() for loss in self._staged_losses(estimator, x[test], y[test], len(train))]
        return total / len(x)

    def _staged_losses(self, estimator: Any, x: np.ndarray, y: np.ndarray, rows: int):
        """Per boosting round: squared errors, or minus log probabilities, of the held-out rows `[T]`."""
        if self.task == "regression":
            yield from ((y - mean) ** 2 for mean in estimator.staged_predict(x))
            return
        for probs in estimator.staged_predict_proba(x):
            complete = with_unseen(probs, estimator.classes_, self.num_classes, rows)
            yield -np.log(complete[np.arange(len(y)), y.astype(int)])

    def _estimator(self, setting: dict[str, float], iterations: int, seed: int) -> Any:
        family = HistGradientBoostingRegressor if self.task == "regression" else HistGradientBoostingClassifier
        return family(max_iter=iterations, early_stopping=False, random_state=seed, **setting)
