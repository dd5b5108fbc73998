"""Calibration of predictive intervals and probabilities."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.evaluation.calibration import coverage_curve, pit_histogram, reliability_curve
from gpbench.report.figures import canvas
from gpbench.report.view import View

_FEW = 10  # test points; bins with fewer are left out


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
    for axis, dataset in zip(axes, datasets, strict=True):
        rows = shown[shown["dataset"] == dataset]
        regression = view.tasks[dataset] == "regression"
        for look, of_method in canvas.by_method(view, rows):
            if regression:
                curve = coverage_curve(_pooled(of_method)["count"])
                axis.plot(curve["nominal"], curve["empirical"] - curve["nominal"], **look.options, markevery=4)
            else:
                _draw_reliability(axis, of_method, look)
        _reference(axis, regression)
    canvas.legend(figure, view, list(shown["method"].unique()))
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


def _reference(axis: Axes, regression: bool) -> None:
    black: canvas.Style = {"color": "black", "linewidth": 0.8, "zorder": 1}
    if regression:
        axis.axhline(0, **black)
        reach = max(0.1, 1.1 * max(map(abs, axis.get_ylim())))
        axis.set(xlabel="nominal coverage", ylabel="observed − nominal", xlim=(0, 1), ylim=(-reach, reach))
    else:
        axis.axline((0.5, 0.5), slope=1, **black)
        low = min(axis.get_xlim()[0], axis.get_ylim()[0])
        axis.set(xlabel="predicted probability", ylabel="fraction correct", xlim=(low, 1.02), ylim=(low, 1.02))


def reliability(view: View) -> Figure:
    """Observed frequency against predicted probability, for every class of every test point."""
    shown, datasets = _found(view, "classification", "classes")
    figure, axes = canvas.titled(datasets, 2.6, 3)
    for axis, dataset in zip(axes, datasets, strict=True):
        for look, rows in canvas.by_method(view, shown[shown["dataset"] == dataset]):
            _draw_reliability(axis, rows, look)
        axis.axline((0, 0), slope=1, color="black", linewidth=0.8, zorder=1)
        axis.set_box_aspect(1)
        axis.set(xlabel="predicted probability", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axis.set_ylabel("fraction of class 1" if view.tasks[dataset] == "binary" else "fraction correct")
    canvas.legend(figure, view, list(shown["method"].unique()))
    canvas.headline(figure, view.unrecorded("calibration"))
    return figure


def pit(view: View) -> Figure:
    """PIT histograms, one panel per regression data set and one row of bars per method."""
    bins, datasets = _found(view, "regression", "pit")
    methods = canvas.present(view.methods, bins["method"])
    figure, axes = canvas.titled(datasets, 0.33 * len(methods) + 0.4, x="PIT")
    for i, (dataset, axis) in enumerate(zip(datasets, axes, strict=True)):
        fraction, of_dataset = view.test_fraction(dataset), bins[bins["dataset"] == dataset].groupby("method")
        found = {name: _bars(group, fraction) for name, group in of_dataset}
        _histograms(axis, {method: found.get(method) for method in methods}, canvas.looks(view))
        labels = [textwrap.fill(view.labels[method], 12) if i % 4 == 0 else "" for method in methods]
        axis.set_yticks(np.arange(len(methods)) - 0.4, labels)
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


def _histograms(axis: Axes, by_method: dict[str, pd.DataFrame | None], look: dict[str, canvas.Look]) -> None:
    """Densities on one scale, the first method on top, with the level and band of perfect calibration."""
    bars = {method: part for method, part in by_method.items() if part is not None}
    unit = -0.85 / max(float((part[["count", "upper"]].max(axis=1) / part["expected"]).max()) for part in bars.values())
    levels, bands = [], []
    for line, method in enumerate(by_method):
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
    axis.set(xlim=(0, 1), ylim=(len(by_method) - 0.95, -0.95), xticks=(0, 0.5, 1))
    axis.tick_params(axis="y", length=0)
    axis.grid(False)
