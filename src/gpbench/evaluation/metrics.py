"""The registry of metrics: each is a function of the pointwise table and of a few facts of the fit.

Means are over the rows of the table, so over test rows and targets. `info` holds: task, num_classes,
train_target_mean and train_target_sd (a list, one a target, original units), seconds_train, seconds_predict,
peak_memory_mb.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpbench.errors import UserError
from gpbench.evaluation.abstention import capacity
from gpbench.evaluation.calibration import ROUNDING, coverage, expected_calibration_error
from gpbench.sampling.diagnostics import CHECKPOINTS

if TYPE_CHECKING:
    import pandas as pd

REGRESSION = ("regression",)
BINARY = ("binary",)
CLASSIFICATION = (*BINARY, "multiclass")
COUNTS = ("counts",)
TASKS = REGRESSION + CLASSIFICATION + COUNTS


@dataclass(frozen=True)
class Metric:
    """One number per fit, computed from its pointwise table.

    direction: lower is better, higher is better, or nearer to `target`; unit: "" is dimensionless, "y" the target's.
    lower, upper: values outside are a bug, not a bad fit. NaN is neither where it is `nullable`: undefined on these
    rows or not measured. Otherwise NaN, and infinity of a metric with tasks, say that predictions overflow. tasks:
    empty for a metric of the draws of a Markov chain. quantiles: whether it reads those of the table."""

    name: str
    label: str
    direction: Literal["min", "max", "target"]
    unit: str
    lower: float
    upper: float
    tasks: tuple[str, ...]
    function: Callable[[pd.DataFrame, Mapping[str, Any]], float]
    target: float | None = None
    nullable: bool = False
    quantiles: bool = False

    def __call__(self, points: pd.DataFrame, info: Mapping[str, Any]) -> float:
        """Checked value; ValueError outside [lower, upper], for infinity (not of chains), for NaN if not nullable.

        UserError where the function fails, which the predictions are not to blame for."""
        try:
            value = float(self.function(points, info))
        except ValueError:
            raise
        except Exception as error:
            raise UserError(
                f"metric {self.name!r} fails: {type(error).__name__}: {error}; mend its function"
            ) from error
        if math.isinf(value) and self.tasks or math.isnan(value) and not self.nullable:
            raise ValueError(f"the {self.label} of its predictions is {value:g}")
        if not (math.isnan(value) or self.lower - ROUNDING <= value <= self.upper + ROUNDING):
            raise ValueError(f"{self.name} = {value:g} lies outside [{self.lower:g}, {self.upper:g}]")
        return value

    def loss(self, value: Any) -> Any:
        """A number, array or pandas object turned so that lower is better: itself, minus it, or |value - target|."""
        if self.direction == "target":
            return abs(value - self.target)
        return -value if self.direction == "max" else value


def score(points: pd.DataFrame, info: Mapping[str, Any]) -> dict[str, float]:
    """Every metric of the fit's task, by name; UserError for an unknown task or an empty table."""
    if info["task"] not in TASKS:
        raise UserError(f"unknown task {info['task']!r}; choose one of: {', '.join(TASKS)}")
    if len(points) == 0:
        raise UserError("this protocol leaves no test rows to score")
    # a metric may change its table
    asked = (metric for metric in METRICS.values() if info["task"] in metric.tasks)
    return {metric.name: metric(points.copy(deep=False), info) for metric in asked}


def rmse(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Root of the mean squared error of the predictive mean, original units."""
    return math.sqrt(np.mean((points["y"] - points["mean"]) ** 2))


def rmse_scaled(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """`rmse` of targets in units of their standard deviation in the training rows, NaN where that is 0."""
    if min(info["train_target_sd"]) == 0:
        return math.nan
    error = (points["y"] - points["mean"]) / _of_target(points, info, "train_target_sd")
    return math.sqrt(np.mean(error**2))


def mnll(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Mean negative log density (regression, original units) or probability (classes, counts), nats."""
    return -float(np.mean(points["log_density"]))


def mnll_scaled(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Mean negative log density of the standardised target, nats."""
    return -float(np.mean(points["log_density_scaled"]))


def mnll_gaussian(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """`mnll` of the Gaussian that has the mean and variance of the predictive, original units."""
    z = (points["y"] - points["mean"]) / points["sd"]
    return float(np.mean(0.5 * z**2 + np.log(points["sd"]))) + 0.5 * math.log(2 * math.pi)


def mnll_draws(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Mean over draws of the `mnll` of each, never below `mnll`; NaN for fits made before it was noted."""
    return -float(np.mean(points.get("log_density_draws", math.nan)))


def smse(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Mean over targets of squared error / variance in test rows (Rasmussen and Williams, 2.5); NaN where it is 0."""
    parts = [part for _, part in points.groupby("output")]
    variances = [float(np.var(part["y"].to_numpy())) for part in parts]
    if min(variances) == 0:
        return math.nan
    return float(np.mean([rmse(part, info) ** 2 / v for part, v in zip(parts, variances, strict=True)]))


def msll(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """`mnll` minus that of a Gaussian with training mean and sd; below 0 beats it (Rasmussen and Williams, 2.5).
    NaN where the sd is 0."""
    if min(info["train_target_sd"]) == 0:
        return math.nan
    mean, sd = (_of_target(points, info, name) for name in ("train_target_mean", "train_target_sd"))
    trivial = 0.5 * np.log(2 * np.pi * sd**2) + 0.5 * ((points["y"] - mean) / sd) ** 2
    return mnll(points, info) - float(np.mean(trivial))


def crps(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Mean continuous ranked probability score, original units."""
    return float(np.mean(points["crps"]))


def central_coverage(points: pd.DataFrame, info: Mapping[str, Any], *, level: float) -> float:
    """Fraction of test targets inside the central predictive interval of probability `level`."""
    return coverage(points["pit"], level)


def pit_ks(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Kolmogorov-Smirnov distance of the probability integral transforms from the uniform distribution."""
    pit, n = np.sort(points["pit"].to_numpy()), len(points)
    return float(max(np.max(np.arange(1, n + 1) / n - pit), np.max(pit - np.arange(n) / n)))


def accuracy(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Fraction of test rows whose modal class is right."""
    return float(np.mean(points["modal"] == points["y"]))


def error(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """1 - `accuracy`."""
    return 1.0 - accuracy(points, info)


def balanced_accuracy(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Fraction of the rows of a class whose modal class is right, averaged over the classes of the test rows."""
    return float((points["modal"] == points["y"]).groupby(points["y"]).mean().mean())


def brier(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Mean of sum_c (p_c - [y = c])^2 over all C classes, in [0, 2]: twice the one-class form for C = 2 (Brier)."""
    truth = np.arange(info["num_classes"]) == points["y"].to_numpy()[:, None]
    return float(np.mean(np.sum((_probabilities(points, info) - truth) ** 2, axis=1)))


def ece(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Expected calibration error of the modal class's probability, 15 equal-width bins (Guo et al. 2017)."""
    confidence = _probabilities(points, info).max(axis=1)
    return expected_calibration_error(confidence, points["modal"] == points["y"], bins=15)


def auc(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Area under the ROC curve of p1, or the plain mean of one-vs-rest areas; NaN if the test rows lack a class."""
    probabilities, y = _probabilities(points, info), points["y"].to_numpy()
    if info["num_classes"] == 2:
        return roc_area(probabilities[:, 1], y == 1)
    return float(np.mean([roc_area(column, y == number) for number, column in enumerate(probabilities.T)]))


def capacity_accuracy(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """Accuracy averaged over degrees of abstention (see `abstention.capacity`)."""
    return capacity(points["p1"], points["y"], lambda p, y: float(np.mean((p > 0.5) == y)))


def capacity_auc(points: pd.DataFrame, info: Mapping[str, Any]) -> float:
    """`auc` averaged over degrees of abstention (see `abstention.capacity`); NaN if the test rows lack a class."""
    return capacity(points["p1"], points["y"], roc_area)


def fact(points: pd.DataFrame, info: Mapping[str, Any], *, name: str) -> float:
    """The number of this name among the facts of the fit: a cost that was measured, or one of a chain's draws."""
    return info[name]


def _of_target(points: pd.DataFrame, info: Mapping[str, Any], name: str) -> np.ndarray:
    """A fact of the training targets, that of its target for each row of the table."""
    return np.asarray(info[name])[points["output"]]


def _probabilities(points: pd.DataFrame, info: Mapping[str, Any]) -> np.ndarray:
    return points[[f"p{number}" for number in range(info["num_classes"])]].to_numpy()


def roc_area(scores: np.ndarray, positive: np.ndarray) -> float:
    """P(score of a positive > score of a negative), ties one half (Mann-Whitney), NaN without both kinds.

    positive `[N]`: True or 1 for a positive."""
    from scipy.stats import rankdata  # scipy.stats costs more to import than all the rest

    positive = np.asarray(positive, bool)
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        return math.nan
    return float((rankdata(scores)[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def efficiency(values: Mapping[str, float]) -> dict[str, float]:
    """The values that are metrics of Markov chains (those without a task), by name, checked."""
    return {m.name: m(None, values) for m in METRICS.values() if not m.tasks and m.name in values}


def _coverage(percent: int) -> Metric:
    level = percent / 100
    label, function = f"coverage of {percent}% intervals", partial(central_coverage, level=level)
    return Metric(f"coverage_{percent}", label, "target", "", 0, 1, REGRESSION, function, level)


def _cost(name: str, label: str, unit: str) -> Metric:
    return Metric(name, label, "min", unit, 0, math.inf, TASKS, partial(fact, name=name), nullable=True)


def _drawn(name: str, label: str, direction: Literal["min", "max"] = "max", upper: float = math.inf) -> Metric:
    """A metric of the draws of a Markov chain, without a task because nothing is predicted."""
    return Metric(name, label, direction, "", 0, upper, (), partial(fact, name=name), nullable=True)


def _by_name(*metrics: Metric) -> dict[str, Metric]:
    found = {metric.name: metric for metric in metrics}
    if twice := [metric.name for metric in metrics if found[metric.name] is not metric]:
        raise UserError(f"metric {twice[0]!r} is defined twice; rename one")
    return found


METRICS = _by_name(
    Metric("rmse", "RMSE", "min", "y", 0, math.inf, REGRESSION + COUNTS, rmse),
    Metric("rmse_scaled", "RMSE (standardised)", "min", "", 0, math.inf, REGRESSION, rmse_scaled, nullable=True),
    Metric("mnll", "MNLL", "min", "nats", -math.inf, math.inf, TASKS, mnll),
    Metric("mnll_scaled", "MNLL (standardised)", "min", "nats", -math.inf, math.inf, REGRESSION, mnll_scaled),
    Metric("mnll_gaussian", "MNLL (Gaussian moments)", "min", "nats", -math.inf, math.inf, REGRESSION, mnll_gaussian),
    Metric(
        *("mnll_draws", "MNLL (mean over draws)", "min", "nats", -math.inf, math.inf, REGRESSION, mnll_draws),
        nullable=True,
    ),
    Metric("smse", "SMSE", "min", "", 0, math.inf, REGRESSION + COUNTS, smse, nullable=True),
    Metric("msll", "MSLL", "min", "nats", -math.inf, math.inf, REGRESSION, msll, nullable=True),
    Metric("crps", "CRPS", "min", "y", 0, math.inf, REGRESSION, crps),
    *map(_coverage, (50, 80, 90, 95)),
    Metric("pit_ks", "PIT distance from uniform", "min", "", 0, 1, REGRESSION, pit_ks),
    Metric("accuracy", "accuracy", "max", "", 0, 1, CLASSIFICATION, accuracy),
    Metric("error", "error rate", "min", "", 0, 1, CLASSIFICATION, error),
    Metric("balanced_accuracy", "balanced accuracy", "max", "", 0, 1, CLASSIFICATION, balanced_accuracy),
    Metric("brier", "Brier score", "min", "", 0, 2, CLASSIFICATION, brier),
    Metric("ece", "expected calibration error", "min", "", 0, 1, CLASSIFICATION, ece),
    Metric("auc", "area under ROC curve", "max", "", 0, 1, CLASSIFICATION, auc, nullable=True),
    Metric("capacity_accuracy", "accuracy capacity", "max", "", 0, 1, BINARY, capacity_accuracy),
    Metric("capacity_auc", "AUC capacity", "max", "", 0, 1, BINARY, capacity_auc, nullable=True),
    _cost("seconds_train", "training time", "s"),
    _cost("seconds_predict", "prediction time", "s"),
    _cost("peak_memory_mb", "peak memory", "MB"),
    _drawn("iterations", "draws of a chain"),
    _drawn("ess_min", "least ESS of a chain"),
    _drawn("ess_percent", "least ESS, % of transitions"),
    _drawn("ess_per_cubic", "least ESS / O(n³) operations an iteration"),
    _drawn("ess_percent_per_cubic", "least ESS in % of transitions / O(n³) operations an iteration"),
    _drawn("ess_per_second", "least ESS / s"),
    _drawn("ess_bulk", "bulk ESS of all chains"),
    _drawn("ess_tail", "tail ESS of all chains"),
    _drawn("ess_bulk_per_cubic", "bulk ESS / O(n³) operations an iteration"),
    _drawn("ess_bulk_per_second", "bulk ESS / s"),
    _drawn("r_hat", "R-hat, rank-normalised", "min"),
    _drawn("r_hat_classic", "R-hat (Gelman-Rubin)", "min"),
    *(_drawn(f"r_hat_classic_{t}", f"R-hat (Gelman-Rubin) of {t} draws", "min") for t in CHECKPOINTS),
    _drawn("acceptance_latents", "acceptance of latent values", upper=1),
    _drawn("acceptance_theta", "acceptance of parameters", upper=1),
    _drawn("divergent", "divergent trajectories, share", "min", upper=1),
    _drawn("e_bfmi", "E-BFMI"),
    _drawn("cubic", "O(n³) operations an iteration", "min"),
    _drawn("cholesky", "factorisations an iteration", "min"),
    _drawn("inverse", "inversions an iteration", "min"),
    _drawn("product", "matrix products an iteration", "min"),
    _drawn("quadratic", "O(n²) operations an iteration", "min"),
    _drawn("unsolved", "systems of a step that missed their tolerance, share", "min", upper=1),
    _drawn("unsolved_test", "systems of a prediction that missed their tolerance, share", "min", upper=1),
)
