"""Scores of classifiers that may abstain: of two classes (filippone2014, figure 5) and of many (filippone2012)."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.evaluation.abstention import Score, abstention_curve, reject_curve
from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import canvas
from gpbench.report.view import View

GRID = np.linspace(0, 1, 201)  # degrees of abstention at which curves of splits are averaged
Curve = Callable[[pd.DataFrame], tuple[np.ndarray, np.ndarray]]
"""From the test points of a fit to degrees of abstention and scores of the remaining points."""


def abstention(view: View) -> Figure:
    """Accuracy and AUC against the degree of abstention at the smallest training size, one row per data set."""
    datasets, points = view.datasets_of("binary"), _smallest(view)
    canvas.require(len(points), "No fit to two classes is finished.")
    figure, axes = canvas.panels(len(datasets), len(BINARY), 1.9, "degree of abstention")
    for dataset, row in zip(datasets, axes, strict=True):
        of_dataset = points[points["dataset"] == dataset]
        for axis, (name, curve) in zip(row, BINARY.items(), strict=True):
            _panel(axis, view, of_dataset, curve)
            axis.set_ylabel(f"{name} of the rest")
        canvas.title(row[0], dataset)
        if len(of_dataset):
            rows, splits = of_dataset["n_train"].iloc[0], of_dataset["split"].nunique()
            canvas.remark(row[-1], f"{rows:.0f} training rows, {splits} splits")
    canvas.legend(figure, view, list(points["method"]))
    return figure


def reject(view: View) -> Figure:
    """Accuracy of the rest against the rate of rejection, one curve per classifier, one panel per data set."""
    datasets, points = view.datasets_of("multiclass"), view.points
    points = points[points["dataset"].isin(datasets)]
    canvas.require(len(points), "No fit to several classes is finished.")
    figure, axes = canvas.titled(datasets, 2.3, 2, "rate of rejection", "accuracy of the rest")
    for axis, dataset in zip(axes, datasets, strict=True):
        of_dataset = points[points["dataset"] == dataset]
        _panel(axis, view, of_dataset, lambda rows: reject_curve(rows["confidence"], rows["modal"] == rows["y"]))
        canvas.remark(axis, f"{of_dataset['split'].nunique()} splits")
    canvas.legend(figure, view, list(points["method"]))
    return figure


def mean_curve(curves: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Mean score at every degree of GRID over curves, interpolated linearly; NaN where fewer than half reach."""
    values = np.empty((len(curves), len(GRID)))
    for value, (degree, score) in zip(values, curves, strict=True):
        steps, first_threshold = np.unique(degree, return_index=True)
        value[:] = np.interp(GRID, steps, score[first_threshold], right=np.nan)
    reached = np.isfinite(values).sum(0)
    return np.where(2 * reached > len(curves), np.nansum(values, 0) / np.maximum(reached, 1), np.nan)


def _smallest(view: View) -> pd.DataFrame:
    """Test points of two classes, with n_train, of each data set's fits with the fewest training rows.

    Folds may differ by a row: sizes within 5 % count as one."""
    fits = view.done[view.done["task"] == "binary"]
    fits = fits[fits["n_train"] <= 1.05 * fits.groupby("dataset")["n_train"].transform("min")]
    return view.points.merge(fits[["fit_id", "n_train"]], on="fit_id")


def _panel(axis: Axes, view: View, points: pd.DataFrame, curve: Curve) -> None:
    for look, of_method in canvas.by_method(view, points):
        scores = mean_curve([of for of in (curve(rows) for _, rows in of_method.groupby("fit_id")) if len(of[0])])
        reached = np.isfinite(scores)
        if reached.any():  # the mark shows a classifier that always or never abstains
            axis.plot(GRID[reached], scores[reached], **look.options, markevery=[0], markersize=4)
    if not axis.lines:
        canvas.write_reason(axis, "undefined" if len(points) else "no finished fit")


def _auc(p: np.ndarray, y: np.ndarray) -> float:
    return METRICS["auc"].function(pd.DataFrame({"p0": 1 - p, "p1": p, "y": y}), {"num_classes": 2})


def _abstaining(score: Score) -> Curve:
    return lambda rows: abstention_curve(rows["p1"], rows["y"], score)


BINARY = {"accuracy": _abstaining(lambda p, y: float(np.mean((p > 0.5) == y))), "AUC": _abstaining(_auc)}
