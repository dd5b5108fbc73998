"""MNLL against a setting that a study varies, a curve for each treatment: inducing inputs, depth, tests by depth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gpbench.report.figures.canvas import Look, empty, label_edges, legend_of, looks_of, remark, wrapped
from gpbench.report.figures.intervals import OPEN, limits, published
from gpbench.report.significance.comparisons import ALPHA
from gpbench.report.tables import objectives
from gpbench.report.view import View

PAIRED = Look("paired over splits", "#0072B2", "o", "-")
UNPAIRED = Look("unpaired resamples (public code)", "#D55E00", "s", (0, (5, 1.5)))
LEVEL = Look(f"p = {ALPHA}", "#777777", "", ":")


def num_inducing(view: View) -> Figure:
    """MNLL against the number of inducing inputs, a curve for each treatment of the others."""
    return _against(view, "num_inducing", "inducing inputs", "log")


def depth(view: View) -> Figure:
    """MNLL against the number of layers."""
    return _against(view, "layers", "layers", "linear")


def curves(view: View, key: str) -> pd.DataFrame:
    """The methods of which the study sets `key`, with their curve: the label without the word that is that value."""
    grid = view.grid(key)
    words = [(view.labels[row.method].split(), str(getattr(row, key))) for row in grid.itertuples()]
    return grid.assign(curve=[" ".join(word for word in label if word != value) for label, value in words])


def p_values(view: View) -> Figure:
    """p-values of "VFE is better than FITC" against depth, paired and not, one panel per data set."""
    found = objectives.p_values(view)
    if found.empty:
        return empty("No FITC and VFE of the same depth are finished on the same split.")
    figure, axes = wrapped(len(view.datasets), 1.8)
    least = found[["p_paired", "p_unpaired_low"]].min(axis=None)
    for axis, dataset in zip(axes, view.datasets, strict=True):
        rows = found[found["dataset"] == dataset]
        _p_values(axis, rows)
        axis.set_title(dataset, loc="left", fontweight="bold")
        remark(axis, f"{rows['n'].min()} splits" if len(rows) else "no finished pair")
        axis.set_ylim(least / 2, 1.5)
        _ticks(axis, found["layers"])
    label_edges(axes, "layers", "p")
    legend_of(figure, [PAIRED, UNPAIRED, LEVEL])
    return figure


def _p_values(axis: Axes, rows: pd.DataFrame) -> None:
    """Both tests; the bar of the unpaired one is the middle 90 % of its resamples."""
    middle = rows["p_unpaired"]
    bar = [middle - rows["p_unpaired_low"], rows["p_unpaired_high"] - middle]
    axis.errorbar(rows["layers"] + 0.08, middle, yerr=bar, **UNPAIRED.drawn, elinewidth=0.7)
    axis.plot(rows["layers"] - 0.08, rows["p_paired"], **PAIRED.drawn)
    axis.axhline(ALPHA, color=LEVEL.color, linestyle=LEVEL.linestyle, linewidth=0.9)
    axis.set_yscale("log")


def _against(view: View, key: str, name: str, scale: str) -> Figure:
    """One panel per data set; a method without this setting is a level line."""
    grid, card = curves(view, key), published(view)
    if grid.empty or view.done.empty:
        return empty(f"No method of this study sets {key}." if grid.empty else "No fit of this study is finished.")
    alone = [method for method in view.methods if method not in set(grid["method"])]
    level = [view.labels[method] for method in alone]
    look = looks_of({label: label for label in [*grid["curve"].unique(), *level]})
    look |= {label: replace(look[label], marker="") for label in level}
    figure, axes = wrapped(len(view.datasets), 1.8)
    for axis, dataset in zip(axes, view.datasets, strict=True):
        cells = view.cells("mnll").query("dataset == @dataset").set_index("method")
        printed = card[card["dataset"] == dataset].set_index("ours_method")["published"]
        for curve, rows in grid.groupby("curve", sort=False):
            _curve(axis, rows.set_index("method"), key, cells, printed, look[curve])
        for method in alone:
            axis.axhline(cells.loc[method, "mean"], **look[view.labels[method]].drawn, linewidth=0.9)
        axis.set_ylim(limits(view.per_split("mnll", dataset), printed))
        axis.set_title(dataset, loc="left", fontweight="bold")
        if absent := int((~cells["complete"]).sum()):
            remark(axis, f"{absent} incomplete")
        _ticks(axis, grid[key], scale)
    label_edges(axes, name, "test MNLL")
    legend_of(figure, list(look.values()))
    return figure


def _curve(axis: Axes, rows: pd.DataFrame, key: str, cells: pd.DataFrame, printed: pd.Series, look: Look) -> None:
    """Mean and standard deviation over splits; open marks: published."""
    rows = rows.join(cells[cells["n"] > 0], how="inner").sort_values(key)
    axis.errorbar(rows[key], rows["mean"], yerr=np.nan_to_num(rows["sd"]), **look.drawn, elinewidth=0.7)
    theirs = rows[[key]].join(printed, how="inner")
    axis.plot(theirs[key], theirs["published"], look.marker, color=look.color, **OPEN)


def _ticks(axis: Axes, values: pd.Series, scale: str = "linear") -> None:
    """A tick at every setting."""
    axis.set_xscale(scale)
    axis.xaxis.set_minor_locator(NullLocator())
    ticks = sorted(values.unique())
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
