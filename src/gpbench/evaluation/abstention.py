"""Scores of a classifier that may abstain where it is unsure, as curves and as one number (filippone2012, 2014)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

# of probabilities of class 1 and class numbers; NaN where it is undefined on these rows
Score = Callable[[np.ndarray, np.ndarray], float]


def abstention_curve(p: ArrayLike, y: ArrayLike, score: Score) -> tuple[np.ndarray, np.ndarray]:
    """Share of rows abstained on and score of the rest, `[K]` each, K <= 51, of a binary classifier.

    For rho = 0, 0.01, ..., 0.50 it abstains where 0.5 - rho < p < 0.5 + rho; p `[N]` is the probability of class 1,
    y `[N]` the class numbers. Thresholds that leave no row, or rows whose score is NaN, are left out.
    Source: filippone2014."""
    p, y = np.asarray(p, float), np.asarray(y)
    half = np.arange(51)
    # hundredths are rounded once, so that a probability of 0.6 is not below a threshold of 0.5 + 0.1
    answered = (p <= (50 - half[:, None]) / 100) | (p >= (50 + half[:, None]) / 100)
    scores = np.array([score(p[rows], y[rows]) if rows.any() else np.nan for rows in answered])
    defined = ~np.isnan(scores)
    return 1 - answered.mean(1)[defined], scores[defined]


def capacity(p: ArrayLike, y: ArrayLike, score: Score) -> float:
    """Mean height of the abstention curve: area under it by the trapezoid rule / largest share abstained on.

    The score itself where the classifier never abstains, the limit; NaN where the score is never defined.
    Source: filippone2014."""
    abstained, scores = abstention_curve(p, y, score)
    if scores.size == 0:
        return np.nan
    if abstained[-1] == 0:
        return float(scores[0])
    return float(np.trapezoid(scores, abstained) / abstained[-1])


def reject_curve(confidence: ArrayLike, correct: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Share of rows rejected and accuracy on the rest, `[K]` each, K <= 101, of any classifier.

    For t = 0, 0.01, ..., 1 it rejects where confidence <= t; confidence `[N]` is the probability of the predicted
    class, correct `[N]` whether it was right. Thresholds that leave no row are left out. Source: filippone2012."""
    confidence, correct = np.asarray(confidence, float), np.asarray(correct, float)
    answered = confidence > np.arange(101)[:, None] / 100
    answered = answered[answered.any(1)]
    return 1 - answered.mean(1), answered @ correct / answered.sum(1)
