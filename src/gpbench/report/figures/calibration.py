"""Calibration of predictive intervals and probabilities, and scores of classifiers that may abstain: of two classes
(filippone2014, figure 5) and of many (filippone2012)."""

import textwrap
from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.errors import count
from gpbench.evaluation.abstention import Score, abstention_curve, reject_curve
from gpbench.evaluation.calibration import coverage_curve, pit_histogram, reliability_curve
from gpbench.evaluation.metrics import roc_area
from gpbench.report.figures import canvas
from gpbench.report.view import View

_FEW = 10  # test points; bins with fewer are left out
_REFERENCE: canvas.Style = {"color": "black", "linewidth": 0.8, "zorder": 1}  # the line of perfect calibration
GRID = np.linspace(0, 1, 201)  # degrees of abstention at which curves of splits are averaged
Curve = Callable[[pd.DataFrame], tuple[np.ndarray, np.ndarray]]
"""From the test points of a fit to degrees of abstention and scores of the remaining points."""


def _found(view: View, tasks: str, *of: str) -> tuple[pd.DataFrame, list[str]]:
    """Rows of some kinds and the data sets that have any; no figure where none has."""
    shown = view.calibration[view.calibration["of"].isin(of)]
    datasets = canvas.present(view.datasets, shown["dataset"])
    canvas.require(datasets, view.unrecorded("calibration") or f"No finished fit of a {tasks} data set.")
    return shown, datasets


def calibration(view: View) -> Figure:
    """Coverage errors of regression and reliability curves of classification, one panel per data set."""
    shown, datasets = _found(view, "regression or classification", "pit", "confidence")
    figure, axes = canvas.titled(datasets, 2.0, 3)
    for axis, dataset, rows in canvas.by_dataset(axes, datasets, shown):
        regression = view.tasks[dataset] == "regression"
        for look, of_method in canvas.by_method(view, rows):
            if regression:
                curve = coverage_curve(_pooled(of_method)["count"])
                axis.plot(curve["nominal"], curve["empirical"] - curve["nominal"], **look.options, markevery=4)
            else:
                _draw_reliability(axis, of_method, look)
        if regression:
            axis.axhline(0, **_REFERENCE)
            reach = max(0.1, 1.1 * max(map(abs, axis.get_ylim())))
            axis.set(xlabel="nominal coverage", ylabel="observed − nominal", xlim=(0, 1), ylim=(-reach, reach))
        else:
            axis.axline((0.5, 0.5), slope=1, **_REFERENCE)
            low = min(axis.get_xlim()[0], axis.get_ylim()[0])
            axis.set(xlabel="predicted probability", ylabel="fraction correct", xlim=(low, 1.02), ylim=(low, 1.02))
        canvas.remark_incomplete(axis, view.cells_of(dataset, "mnll"))
    canvas.legend(figure, view, shown["method"])
    canvas.headline(figure, view.unrecorded("calibration"))
    return figure


def _pooled(bins: pd.DataFrame) -> pd.DataFrame:
    """The bins of all points of some fits."""
    return bins.groupby("bin")[["count", "predicted", "happened"]].sum()


def _draw_reliability(axis: Axes, bins: pd.DataFrame, look: canvas.Look) -> None:
    """Observed frequency against the predicted probability, without bins of few test points."""
    curve = reliability_curve(_pooled(bins))
    curve = curve[curve["count"] >= _FEW]
    axis.plot(curve["confidence"], curve["fraction"], **look.options)


def reliability(view: View) -> Figure:
    """Observed frequency against predicted probability, for every class of every test point."""
    shown, datasets = _found(view, "classification", "classes")
    figure, axes = canvas.titled(datasets, 2.6, 3)
    for axis, dataset, rows in canvas.by_dataset(axes, datasets, shown):
        for look, of_method in canvas.by_method(view, rows):
            _draw_reliability(axis, of_method, look)
        axis.axline((0, 0), slope=1, **_REFERENCE)
        axis.set(xlabel="predicted probability", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), box_aspect=1)
        axis.set_ylabel("fraction of class 1" if view.tasks[dataset] == "binary" else "fraction correct")
        canvas.remark_incomplete(axis, view.cells_of(dataset, "mnll"))
    canvas.legend(figure, view, shown["method"])
    canvas.headline(figure, view.unrecorded("calibration"))
    return figure


def pit(view: View) -> Figure:
    """PIT histograms, one panel per regression data set and one row of bars per method."""
    bins, datasets = _found(view, "regression", "pit")
    methods = canvas.present(view.methods, bins["method"])
    figure, axes = canvas.titled(datasets, 0.33 * len(methods) + 0.4, x="PIT")
    for i, (axis, dataset, rows) in enumerate(canvas.by_dataset(axes, datasets, bins)):
        fraction = view.test_fraction(dataset)
        bars = {method: _bars(group, fraction) for method, group in rows.groupby("method")}
        _histograms(axis, methods, bars, canvas.looks(view))
        labels = [textwrap.fill(view.labels[method], 12) if i % 4 == 0 else "" for method in methods]
        axis.set_yticks(np.arange(len(methods)) - 0.4, labels)
        canvas.remark_incomplete(axis, view.cells_of(dataset, "mnll"))
    canvas.headline(figure, view.unrecorded("calibration"))
    return figure


def _bars(bins: pd.DataFrame, fraction: float) -> pd.DataFrame:
    """`pit_histogram` of the fits of a method, S splits of r fits each with this fraction of rows to test. Its band is
    wider by sqrt(r (1 + (S - 1) fraction)): a row counts as often as it is tested, with one transform."""
    part, splits = pit_histogram(_pooled(bins)["count"]), bins["split"].nunique()
    widened = np.sqrt(bins["fit_id"].nunique() / splits * (1 + (splits - 1) * fraction))
    for edge in ("lower", "upper"):
        part[edge] = (part["expected"] + widened * (part[edge] - part["expected"])).clip(lower=0)
    return part


def _histograms(axis: Axes, methods: list[str], bars: dict[str, pd.DataFrame], look: dict[str, canvas.Look]) -> None:
    """Densities on one scale, the first method on top, with the level and band of perfect calibration."""
    unit = -0.85 / max(float((part[["count", "upper"]].max(axis=1) / part["expected"]).max()) for part in bars.values())
    levels, bands = [], []
    for line, method in enumerate(methods):
        if method not in bars:
            axis.text(0.5, line - 0.4, "no finished fit", ha="center", va="center", color=canvas.GREY, fontsize=7)
            continue
        bar, edges = bars[method], [*bars[method]["left"], 1.0]
        scale = unit / bar["expected"]
        axis.stairs(line + bar["count"] * scale, edges, baseline=line, fill=True, color=look[method].color, alpha=0.75)
        levels.append(line + unit)
        bands += [line + (bar[name] * scale).iloc[0] for name in ("lower", "upper")]
    axis.hlines(levels, 0, 1, color="black", linewidth=0.6)
    axis.hlines(bands, 0, 1, color="black", linewidth=0.7, linestyle=(0, (2, 2)))
    axis.set(xlim=(0, 1), ylim=(len(methods) - 0.95, -0.95), xticks=(0, 0.5, 1))
    axis.tick_params(axis="y", length=0)
    axis.grid(False)


def abstention(view: View) -> Figure:
    """Accuracy and AUC against the degree of abstention at the smallest training size, one row per data set."""
    datasets, fits = view.datasets_of("binary"), view.done[view.done["task"] == "binary"]
    # folds may differ by a row: sizes within 5 % count as one
    fits = fits[fits["n_train"] <= 1.05 * fits.groupby("dataset")["n_train"].transform("min")]
    points = view.points.merge(fits[["fit_id", "n_train"]], on="fit_id")
    canvas.require(len(points), "No fit to two classes is finished.")
    figure, axes = canvas.panels(len(datasets), len(BINARY), 1.9, "degree of abstention")
    for row, dataset, of_dataset in canvas.by_dataset(axes, datasets, points):
        for axis, (name, curve) in zip(row, BINARY.items(), strict=True):
            _panel(axis, view, of_dataset, curve)
            axis.set_ylabel(f"{name} of the rest")
        canvas.title(row[0], dataset)
        if len(of_dataset):
            rows, splits = of_dataset["n_train"].iloc[0], of_dataset["split"].nunique()
            canvas.remark(row[-1], f"{rows:.0f} training rows, {count(splits, 'split')}")
    canvas.legend(figure, view, points["method"])
    return figure


def reject(view: View) -> Figure:
    """Accuracy of the rest against the rate of rejection, one curve per classifier, one panel per data set."""
    datasets, points = view.datasets_of("multiclass"), view.points
    points = points[points["dataset"].isin(datasets)]
    canvas.require(len(points), "No fit to several classes is finished.")
    figure, axes = canvas.titled(datasets, 2.3, 2, "rate of rejection", "accuracy of the rest")
    for axis, _, of_dataset in canvas.by_dataset(axes, datasets, points):
        _panel(axis, view, of_dataset, lambda rows: reject_curve(rows["confidence"], rows["modal"] == rows["y"]))
        canvas.remark(axis, count(of_dataset["split"].nunique(), "split"))
    canvas.legend(figure, view, points["method"])
    return figure


def mean_curve(curves: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Mean score at every degree of GRID over curves, interpolated linearly, of those that end before it their last:
    else the mean would move as splits leave it. NaN where half or fewer reach."""
    values, reached = np.empty((len(curves), len(GRID))), np.zeros(len(GRID))
    for value, (degree, score) in zip(values, curves, strict=True):
        steps, first_threshold = np.unique(degree, return_index=True)
        value[:] = np.interp(GRID, steps, score[first_threshold])
        reached += steps[-1] >= GRID
    return np.where(2 * reached > len(curves), values.sum(0) / max(len(curves), 1), np.nan)


def _panel(axis: Axes, view: View, points: pd.DataFrame, curve: Curve) -> None:
    for look, of_method in canvas.by_method(view, points):
        scores = mean_curve([of for of in (curve(rows) for _, rows in of_method.groupby("fit_id")) if len(of[0])])
        reached = np.isfinite(scores)
        if reached.any():  # the mark shows a classifier that always or never abstains
            axis.plot(GRID[reached], scores[reached], **look.options, markevery=[0], markersize=4)
    if not axis.lines:
        canvas.write_reason(axis, "undefined" if len(points) else "no finished fit")


def _abstaining(score: Score) -> Curve:
    return lambda rows: abstention_curve(rows["p1"], rows["y"], score)


BINARY = {"accuracy": _abstaining(lambda p, y: float(np.mean((p > 0.5) == y))), "AUC": _abstaining(roc_area)}
