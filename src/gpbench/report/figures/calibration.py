"""Do the stated probabilities come true?"""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.evaluation.calibration import coverage_curve, pit_histogram, reliability_curve
from gpbench.evaluation.metrics import CLASSIFICATION
from gpbench.report.figures.canvas import Look, empty, label_edges, legend, looks, present, wrapped
from gpbench.report.view import View

_COLUMNS = 3
_FEW = 10  # test points in a bin below which a fraction says nothing


def calibration(view: View) -> Figure:
    """Coverage errors of regression and reliability curves of classification, one panel per data set."""
    points = view.points
    # counts have no exact intervals
    datasets = present(view.datasets_of("regression", *CLASSIFICATION), points["dataset"])
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
    datasets = present(view.datasets_of(*CLASSIFICATION), view.points["dataset"])
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
    """PIT histograms, a panel for each regression data set and a line of bars for each method."""
    points = view.points[view.points["task"] == "regression"]
    datasets = present(view.datasets_of("regression"), points["dataset"])
    methods = present(view.methods, points["method"])
    if not methods:
        return empty("No finished fit of a regression data set: there is no PIT to show.")
    figure, axes = wrapped(len(datasets), 0.33 * len(methods) + 0.4)
    for i, (dataset, axis) in enumerate(zip(datasets, axes, strict=True)):
        found = dict(iter(points.loc[points["dataset"] == dataset, ["method", "pit"]].groupby("method")["pit"]))
        _histograms(axis, {method: found.get(method) for method in methods}, looks(view))
        labels = [textwrap.fill(view.labels[method], 12) if i % 4 == 0 else "" for method in methods]
        axis.set_yticks(np.arange(len(methods)) - 0.4, labels)
        axis.set_title(dataset, loc="left", fontweight="bold")
    label_edges(axes, "PIT", "")
    return figure


def _histograms(axis: Axes, found: dict[str, pd.Series | None], look: dict[str, Look]) -> None:
    """Densities on one scale, each above its line, the first method on top, with the level and band of calibration."""
    bars = {method: pit_histogram(values) for method, values in found.items() if values is not None}
    unit = -0.85 / max(float((one[["count", "upper"]].max(axis=1) / one["expected"]).max()) for one in bars.values())
    levels, bands = [], []
    for line, method in enumerate(found):
        if method not in bars:
            axis.text(0.5, line - 0.4, "no finished fit", ha="center", va="center", color="#777777", fontsize=7)
            continue
        one, edges = bars[method], [*bars[method]["left"], 1.0]
        scale = unit / one["expected"]
        axis.stairs(line + one["count"] * scale, edges, baseline=line, fill=True, color=look[method].color, alpha=0.75)
        levels.append(line + unit)
        bands += [line + (one[name] * scale).iloc[0] for name in ("lower", "upper")]
    axis.hlines(levels, 0, 1, color="black", linewidth=0.6)
    axis.hlines(bands, 0, 1, color="black", linewidth=0.7, linestyle=(0, (2, 2)))
    axis.set(xlim=(0, 1), ylim=(len(found) - 0.95, -0.95), xticks=(0, 0.5, 1))
    axis.tick_params(axis="y", length=0)
    axis.grid(False)
