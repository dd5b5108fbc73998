"""Support vector classification with an RBF kernel and Platt's probabilities (platt1999; LIBSVM: chang2011).

Decision   g(x) = sum_i alpha_i y_i k(x, x_i) + b, k(a, b) = exp(-gamma ||a - b||^2), 0 <= alpha <= C, maximal margin.
Predictive p(y = 1 | x) = 1 / (1 + exp(-A g(x) - B)), A >= 0 and B likeliest for decision values of cross-validation on
           the training rows, with Platt's targets (n_1 + 1) / (n_1 + 2) and 1 / (n_0 + 2). Several classes: such a
           curve each, one against the rest, divided by their sum.
Choice     (C, gamma) on a grid by that likelihood, of equals the smallest C.

filippone2014 names the kernel, Platt and LIBSVM, but not the tuning. Accuracy in place of the likelihood would choose
among many equals from 10 rows, often a kernel so narrow that all decision values are next to 0 and Platt's curve is
flat. Folds are as many as the smallest class has rows, at most `folds`. The paper has two classes; for more LIBSVM
couples pairs instead (wu2004). Cost: 36 folds + 1 machines, each between n^2 and n^3.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import log_expit, logit, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.svm import SVC

from gpbench.errors import UserError
from gpbench.hyper import Annotated, Ge, Settings, dataclass
from gpbench.methods.base import ClosedFormMethod, Model
from gpbench.methods.constant import with_unseen
from gpbench.predictive.distributions import Categorical, Predictive

PENALTIES, GAMMAS = (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3), (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1)


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """folds: the most that cross-validation has."""

    folds: Annotated[int, Ge(2)] = 5


class Curve(NamedTuple):
    """Platt's curve of one class, and its loss: minus the mean log likelihood of the smoothed targets, nats."""

    slope: float
    offset: float
    loss: float


class Method(ClosedFormMethod):
    def fit(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Model:
        """Tuned machine of x `[n, D]`, class numbers y `[n]`, a curve a class (of two one); UserError for too few."""
        count = min(self.hyper.folds, smallest_class(y, "svm"))
        folds = StratifiedKFold(count, shuffle=True, random_state=int(rng.integers(2**31)))
        machines = [SVC(C=C, gamma=gamma) for C, gamma in product(PENALTIES, GAMMAS)]
        held_out = (cross_val_predict(each, x, y, cv=folds, method="decision_function") for each in machines)
        curves = [class_curves(values, y) for values in held_out]
        best = int(np.argmin([sum(curve.loss for curve in each) for each in curves]))
        return {"machine": machines[best].fit(x, y), "curves": curves[best], "rows": len(y)}

    def predict(self, model: Model, x: np.ndarray) -> Predictive:
        """Class probabilities for x `[T, D]`."""
        machine, (slope, offset, _) = model["machine"], np.array(model["curves"]).T
        values = slope * machine.decision_function(x).reshape(len(x), -1) + offset
        log_p = np.concatenate([log_expit(-values), log_expit(values)], 1) if len(slope) == 1 else log_expit(values)
        probs = with_unseen(softmax(log_p, axis=1), machine.classes_, self.num_classes, model["rows"])
        return Categorical(probs[None])


def class_curves(values: np.ndarray, y: np.ndarray) -> list[Curve]:
    """The curve of each class from decision values `[n, m]`, or of the second of two from `[n]`."""
    classes = np.unique(y)[-values[0].size :]
    return [platt(column, y == c) for column, c in zip(values.reshape(len(y), -1).T, classes, strict=True)]


def platt(values: np.ndarray, positive: np.ndarray) -> Curve:
    """The curve of decision values `[n]` whose class is positive or not `[n]`.

    A falling curve would say that held-out rows are taken for the other class, which says of a few rows how the folds
    were balanced: it is replaced by a flat one."""
    target = np.where(positive, 1 - 1 / (positive.sum() + 2), 1 / ((~positive).sum() + 2))
    centre, unit = values.mean(), values.std() or 1.0  # a small C or a narrow kernel makes them many orders below 1
    rows, labels = np.tile((values - centre) / unit, 2)[:, None], np.repeat([1, 0], len(values))
    likeliest = LogisticRegression(C=np.inf, tol=1e-8).fit(rows, labels, sample_weight=np.r_[target, 1 - target])
    slope = float(likeliest.coef_[0, 0] / unit)
    offset = float(likeliest.intercept_[0] - slope * centre)
    if slope <= 0:
        slope, offset = 0.0, float(logit(target.mean()))
    z = slope * values + offset
    return Curve(slope, offset, -float(np.mean(target * log_expit(z) + (1 - target) * log_expit(-z))))


def smallest_class(y: np.ndarray, name: str) -> int:
    """Rows of the smallest class that the training rows have; UserError where nothing can be held out of one."""
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        raise UserError(f"{name}: the training rows hold a single class; use more rows or another split")
    if counts.min() < 2:
        number = int(classes[counts.argmin()])
        raise UserError(f"{name}: class {number} has a single training row; use more rows or another split")
    return int(counts.min())
