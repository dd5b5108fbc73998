"""Linear baselines.

Regression: Bayesian linear regression y = w^T x + b + noise, w ~ N(0, I / lambda), noise ~ N(0, 1 / alpha),
with both precisions at the maximum of the evidence (MacKay 1992; scikit-learn's BayesianRidge); the predictive
variance is 1 / alpha + x_*^T Cov(w) x_*. Classification: multinomial logistic regression with an L2 penalty whose
strength has the best held-out log probability in cross-validation on the training rows.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import KFold

from gpbench.errors import UserError
from gpbench.hyper import Annotated, Ge, Settings, dataclass
from gpbench.methods.base import ClosedFormMethod, Model
from gpbench.methods.constant import with_unseen
from gpbench.predictive.distributions import Categorical, GaussianMixture, Predictive

# inverse penalties tried, in scikit-learn's scale: C multiplies the sum of log likelihoods
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """folds: of the cross-validation that chooses the penalty (classification)."""

    folds: Annotated[int, Ge(2)] = 5


class Method(ClosedFormMethod):
    def fit(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Model:
        """One estimator a column of y `[n, P]`, or one for the class numbers y `[n]`; UserError for a single class."""
        if self.task == "regression":
            return {"estimators": [BayesianRidge().fit(x, column) for column in y.T]}
        if len(np.unique(y)) < 2:
            raise UserError("linear: the training rows hold a single class; use more rows or another split")
        seed = int(rng.integers(2**31))
        strength = max(STRENGTHS, key=lambda strength: self._held_out_log_prob(x, y, strength, seed))
        return {"estimator": _logistic(strength).fit(x, y), "strength": strength, "rows": len(y)}

    def predict(self, model: Model, x: np.ndarray) -> Predictive:
        """Gaussian with parameter uncertainty and noise, or class probabilities, for x `[T, D]`."""
        if self.task == "regression":
            moments = np.array([estimator.predict(x, return_std=True) for estimator in model["estimators"]])
            mean, sd = moments.transpose(1, 2, 0)
            return GaussianMixture(mean[None], sd[None] ** 2)
        return Categorical(self._probabilities(model["estimator"], x, model["rows"])[None])

    def _held_out_log_prob(self, x: np.ndarray, y: np.ndarray, strength: float, seed: int) -> float:
        total = 0.0
        for train, test in KFold(min(self.hyper.folds, len(y)), shuffle=True, random_state=seed).split(x):
            if len(np.unique(y[train])) < 2:
                raise UserError("linear: a cross-validation fold trains on one class alone; take other rows or splits")
            probs = self._probabilities(_logistic(strength).fit(x[train], y[train]), x[test], len(train))
            total += np.log(probs[np.arange(len(test)), y[test].astype(int)]).sum()
        return total

    def _probabilities(self, estimator: LogisticRegression, x: np.ndarray, rows: int) -> np.ndarray:
        return with_unseen(estimator.predict_proba(x), estimator.classes_, self.num_classes, rows)


def _logistic(strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, max_iter=2000, tol=1e-4)
