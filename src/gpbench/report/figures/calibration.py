"""Do the stated probabilities come true?"""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.evaluation.calibration import coverage_curve, pit_histogram, reliability_curve
from gpbench.evaluation.metrics import CLASSIFICATION
from gpbench.report.figures.canvas import Look, empty, legend, looks, panels, wrapped
from gpbench.report.view import View

_COLUMNS = 3
_FEW = 10  # test points in a bin below which a fraction says nothing


def calibration(view: View) -> Figure:
    """Coverage errors of regression and reliability curves of classification, one panel per data set."""
    points = view.points
    # counts have no exact intervals
    datasets = [n for n in view.datasets_of("regression", *CLASSIFICATION) if n in set(points["dataset"])]
    if not datasets:
        return empty("No finished fit of a regression or classification data set has test points.")
    figure, axes = wrapped(len(datasets), 2.0, _COLUMNS)
    for axis, dataset in zip(axes, datasets, strict=True):
        rows = points[points["dataset"] == dataset]
        regression = view.tasks[dataset] == "regression"
        draw = _coverage_error if regression else _reliability
        for method, look in looks(view).items():
            chosen = rows[rows["method"] == method]
            if len(chosen):
                draw(axis, chosen, look)
        _reference(axis, regression)
        axis.set_title(dataset, loc="left", fontweight="bold")
    legend(figure, view, list(points["method"].unique()))
    return figure


def _coverage_error(axis: Axes, points: pd.DataFrame, look: Look) -> None:
    curve = coverage_curve(points["pit"])
    error = curve["empirical"] - curve["nominal"]
    axis.plot(curve["nominal"], error, color=look.color, linestyle=look.linestyle, marker=look.marker, markevery=4)


def _reliability(axis: Axes, points: pd.DataFrame, look: Look) -> None:
    curve = reliability_curve(points["confidence"], points["modal"] == points["y"], bins=10)
    curve = curve[curve["count"] >= _FEW]
    axis.plot(curve["confidence"], curve["fraction"], color=look.color, linestyle=look.linestyle, marker=look.marker)


def _reference(axis: Axes, regression: bool) -> None:
    black = {"color": "black", "linewidth": 0.8, "zorder": 1}
    if regression:
        axis.axhline(0, **black)
        reach = max(0.1, 1.1 * max(map(abs, axis.get_ylim())))
        axis.set(xlabel="nominal coverage", ylabel="observed − nominal", xlim=(0, 1), ylim=(-reach, reach))
    else:
        axis.axline((0.5, 0.5), slope=1, **black)
        low = min(axis.get_xlim()[0], axis.get_ylim()[0])
        axis.set(xlabel="stated probability", ylabel="fraction correct", xlim=(low, 1.02), ylim=(low, 1.02))


def reliability(view: View) -> Figure:
    """Stated probability against how often it came true, for every class of every test point."""
    datasets = [name for name in view.datasets_of(*CLASSIFICATION) if name in set(view.points["dataset"])]
    if not datasets:
        return empty("No finished fit of a classification data set: there are no probabilities to show.")
    figure, axes = wrapped(len(datasets), 2.6, _COLUMNS)
    for axis, dataset in zip(axes, datasets, strict=True):
        rows = view.points[view.points["dataset"] == dataset]
        for method, look in looks(view).items():
            chosen = rows[rows["method"] == method]
            if len(chosen):
                _every_class(axis, chosen, view.tasks[dataset] == "binary", look)
        axis.axline((0, 0), slope=1, color="black", linewidth=0.8, zorder=1)
        axis.set_box_aspect(1)
        axis.set(xlabel="stated probability", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axis.set_ylabel("fraction of class 1" if view.tasks[dataset] == "binary" else "fraction correct")
        axis.set_title(dataset, loc="left", fontweight="bold")
    legend(figure, view, list(view.points.loc[view.points["dataset"].isin(datasets), "method"].unique()))
    return figure


def _every_class(axis: Axes, points: pd.DataFrame, binary: bool, look: Look) -> None:
    """15 bins of p1 where there are two classes, else 10 bins of all the probabilities, as in ashman2020."""
    probabilities = points[["p1"]] if binary else points.filter(regex=r"^p\d+$").dropna(axis="columns")
    classes = probabilities.columns.str.removeprefix("p").astype(int).to_numpy()
    right = points["y"].to_numpy()[:, None] == classes
    curve = reliability_curve(probabilities.to_numpy().ravel(), right.ravel(), bins=15 if binary else 10)
    curve = curve[curve["count"] >= _FEW]
    axis.plot(curve["confidence"], curve["fraction"], color=look.color, linestyle=look.linestyle, marker=look.marker)


def pit(view: View) -> Figure:
    """PIT histograms, methods in rows and regression data sets in columns."""
    datasets = view.datasets_of("regression")
    points = view.points[view.points["task"] == "regression"]
    methods = [method for method in view.methods if method in set(points["method"])]
    if not methods:
        return empty("No finished fit of a regression data set: there is no PIT to show.")
    figure, axes = panels(len(methods), len(datasets), 0.8, sharex=True, sharey="col")
    for method, row in zip(methods, axes, strict=True):
        look = looks(view)[method]
        for dataset, axis in zip(datasets, row, strict=True):
            _histogram(axis, points[(points["method"] == method) & (points["dataset"] == dataset)], look)
        row[0].set_ylabel(textwrap.fill(look.label, 11), fontsize=7)
    for dataset, axis in zip(datasets, axes[0], strict=True):
        axis.set_title(dataset, loc="left", fontweight="bold")
    for axis in axes[-1]:
        axis.set_xlabel("PIT")
    return figure


def _histogram(axis: Axes, points: pd.DataFrame, look: Look) -> None:
    axis.grid(False)
    if points.empty:
        axis.text(0.5, 0.5, "no finished fit", ha="center", va="center", color="#777777", transform=axis.transAxes)
        return
    bars = pit_histogram(points["pit"])
    scale = 1 / bars["expected"]
    axis.bar(bars["left"], bars["count"] * scale, 0.1, align="edge", color=look.color, edgecolor="white", alpha=0.75)
    axis.axhline(1, color="black", linewidth=0.6)
    for band in ("lower", "upper"):
        axis.hlines((bars[band] * scale).iloc[0], 0, 1, color="black", linewidth=0.7, linestyle=(0, (2, 2)))
