"""Scores of classifiers that may abstain: binary (filippone2014, figure 5) and of many classes (filippone2012)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.evaluation.abstention import Score, abstention_curve, reject_curve
from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures.canvas import Look, empty, label_edges, legend, looks, panels, remark, say, wrapped
from gpbench.report.view import View

GRID = np.linspace(0, 1, 201)
"""Degrees of abstention at which curves of splits are averaged."""
Curve = Callable[[pd.DataFrame], tuple[np.ndarray, np.ndarray]]
"""From the test points of a fit to degrees of abstention and scores of the rest."""


def abstention(view: View) -> Figure:
    """Accuracy and AUC against the degree of abstention at the smallest training size, a row a data set."""
    datasets, points = view.datasets_of("binary"), _smallest(view)
    if points.empty:
        return empty("No fit to two classes is finished.")
    figure, axes = panels(len(datasets), len(BINARY), 1.9)
    for dataset, row in zip(datasets, axes, strict=True):
        own = points[points["dataset"] == dataset]
        for axis, (name, curve) in zip(row, BINARY.items(), strict=True):
            _panel(axis, view, own, curve)
            axis.set_ylabel(f"{name} of the rest")
        row[0].set_title(dataset, loc="left", fontweight="bold")
        if len(own):
            remark(row[-1], f"{own['n_train'].iloc[0]:.0f} training rows, {own['split'].nunique()} splits")
    for axis in axes[-1]:
        axis.set_xlabel("degree of abstention")
    legend(figure, view, list(points["method"]))
    return figure


def reject(view: View) -> Figure:
    """Accuracy of the rest against the rate of rejection, a curve a classifier, one panel per data set."""
    datasets, points = view.datasets_of("multiclass"), view.points
    points = points[points["dataset"].isin(datasets)]
    if points.empty:
        return empty("No fit to several classes is finished.")
    figure, axes = wrapped(len(datasets), 2.3, 2)
    for axis, dataset in zip(axes, datasets, strict=True):
        own = points[points["dataset"] == dataset]
        _panel(axis, view, own, _rejecting)
        axis.set_title(dataset, loc="left", fontweight="bold")
        remark(axis, f"{own['split'].nunique()} splits")
    label_edges(axes, "rate of rejection", "accuracy of the rest", 2)
    legend(figure, view, list(points["method"]))
    return figure


def mean_curve(curves: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Mean score at every degree of GRID over curves, each straight between its points; NaN beyond half of them."""
    values = np.array([np.interp(GRID, degree, score, right=np.nan) for degree, score in map(_steps, curves)])
    reached = np.isfinite(values).sum(0)
    return np.where(2 * reached > len(curves), np.nansum(values, 0) / np.maximum(reached, 1), np.nan)


def _steps(curve: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A curve without thresholds that abstain on the same rows as the one before."""
    degree, first = np.unique(curve[0], return_index=True)
    return degree, curve[1][first]


def _smallest(view: View) -> pd.DataFrame:
    """Test points of two classes, with n_train, of each data set's fits with the fewest training rows.

    Folds may differ by a row: sizes within a twentieth count as one."""
    fits = view.done[view.done["task"] == "binary"]
    fits = fits[fits["n_train"] <= 1.05 * fits.groupby("dataset")["n_train"].transform("min")]
    return view.points.merge(fits[["fit_id", "n_train"]], on="fit_id")


def _panel(axis: Axes, view: View, points: pd.DataFrame, curve: Curve) -> None:
    if points.empty:
        say(axis, "no finished fit")
        return
    for method, look in looks(view).items():
        fits = points[points["method"] == method].groupby("fit_id")
        found = [one for one in (curve(rows) for _, rows in fits) if len(one[0])]
        if found:
            _draw(axis, mean_curve(found), look)


def _draw(axis: Axes, scores: np.ndarray, look: Look) -> None:
    """A line; a classifier that is always or never sure is a single mark."""
    drawn = np.isfinite(scores)
    axis.plot(GRID[drawn], scores[drawn], **look.drawn, markevery=[0], markersize=4)


def _accuracy(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean((p > 0.5) == y))


def _auc(p: np.ndarray, y: np.ndarray) -> float:
    return METRICS["auc"].function(pd.DataFrame({"p0": 1 - p, "p1": p, "y": y}), {"num_classes": 2})


def _abstaining(score: Score) -> Curve:
    """The curve of a score of classifiers of two classes."""
    return lambda rows: abstention_curve(rows["p1"], rows["y"], score)


def _rejecting(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return reject_curve(rows["confidence"], rows["modal"] == rows["y"])


BINARY = {"accuracy": _abstaining(_accuracy), "AUC": _abstaining(_auc)}
