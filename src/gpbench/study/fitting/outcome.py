"""What a fit leaves behind, and its evaluation on held-out rows, by which nothing is ever chosen. No torch."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from gpbench.errors import UserError
from gpbench.evaluation.pointwise import components, pointwise
from gpbench.predictive.distributions import Categorical, Predictive
from gpbench.study.fitting.fold import Fold

EVAL_ROWS = 250  # test rows that are looked at while a fit is running


class Lost(UserError):
    """Another process that a fit needs has died: the fit has failed, and its checkpoints stay."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; `gpbench retry` continues from the checkpoint")


@dataclass
class Outcome:
    """What a fit leaves behind. What it does not make is absent: without a prediction points, components and model.

    chain: of a Markov chain, what its states predict one by one (`chain_draws`), or its draws (`chains_only`)."""

    status: str
    reason: str = ""
    points: pd.DataFrame | None = None
    components: dict[str, np.ndarray] = field(default_factory=dict)
    chain: dict[str, np.ndarray] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    trace: list[dict[str, float]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)


def finish(outcome: Outcome, predictive: Predictive, fold: Fold, task: str, started: float) -> Outcome:
    """Evaluate a predictive (scaled units) of the test rows; one that is not finite marks the fit as diverged."""
    outcome.seconds["predict"] = time.perf_counter() - started
    if not predictive.is_finite():
        outcome.status, outcome.reason = "diverged", "the predictive is not finite"
        return outcome
    outcome.points = points_of(predictive, fold, task)
    outcome.reason = _constant(outcome.points)
    outcome.components = components(predictive)
    outcome.info |= {
        "train_target_mean": fold.targets[fold.train].mean(0).tolist(),
        "train_target_sd": fold.targets[fold.train].std(0).tolist(),
    }
    return outcome


def points_of(predictive: Predictive, fold: Fold, task: str) -> pd.DataFrame:
    """`pointwise` of a predictive (scaled units) of the test rows."""
    scaled_by = fold.scaling.y_shift, fold.scaling.y_scale
    return pointwise(predictive, fold.targets[fold.test], task=task, scaled_by=scaled_by, rows=fold.test)


def _constant(points: pd.DataFrame) -> str:
    """That all test rows have the same prediction, in words; '' where they have not, or have the same target."""
    outputs = [part for _, part in points.groupby("output")] if "output" in points else [points]
    predicted = [part.filter(regex=r"^(mean|sd|p\d+)$") for part in outputs]
    if _varies([part[["y"]] for part in outputs]) and not _varies(predicted):
        return f"predicts the same for all {len(outputs[0])} test rows"
    return ""


def _varies(parts: list[pd.DataFrame]) -> bool:
    """Whether some column has values that differ by more than rounding."""
    return any(((part.max() - part.min()) > 1e-9 * part.abs().max()).any() for part in parts)


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
