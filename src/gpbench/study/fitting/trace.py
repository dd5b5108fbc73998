"""Scores of a fit at work, on a few test rows; nothing is ever chosen by them."""

from __future__ import annotations

import numpy as np

from gpbench.predictive.distributions import Categorical, Predictive
from gpbench.study.fitting.fold import Fold

EVAL_ROWS = 500
"""Test rows that are looked at while a fit is running."""


def test_scores(predictive: Predictive, fold: Fold, task: str) -> dict[str, float]:
    """mnll, and rmse or error, on the first `EVAL_ROWS` test rows in original units; none if not finite."""
    if not predictive.is_finite():
        return {}
    y = fold.targets[fold.test[:EVAL_ROWS]]
    if isinstance(predictive, Categorical):
        wrong = predictive.modal() != y[:, 0]
        return {"mnll": -float(predictive.log_prob(y[:, 0]).mean()), "error": float(wrong.mean())}
    shift, scale = fold.scaling.y_shift, fold.scaling.y_scale  # of counts: 0, 1
    density = predictive.log_prob((y - shift) / scale) - np.log(scale)
    error = predictive.mean() * scale + shift - y
    return {"mnll": -float(density.mean()), "rmse": float(np.sqrt((error**2).mean()))}
