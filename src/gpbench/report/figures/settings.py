"""Scores against what a study varies: the number of random features, the number of workers."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures.canvas import Look, empty, legend_of, looks_of, panels, remark, say
from gpbench.report.view import View

ALONE = Look("one process", "#555555", "", "--")


def features(view: View) -> Figure:
    """Error and MNLL against the number of features, a line for each treatment of the frequencies."""
    grid = view.grid("frequencies", "num_features")
    if reason := _nothing(view, grid, "frequencies and num_features"):
        return empty(reason)
    look = looks_of({name: name.replace("_", "-").upper() for name in grid["frequencies"].unique()})
    figure, axes = panels(2, len(view.datasets), 1.9, sharex=True)
    for dataset, column in zip(view.datasets, axes.T, strict=True):
        for axis, metric in zip(column, (view.error_metric(dataset), "mnll"), strict=True):
            cells = grid.merge(view.cells(metric).query("dataset == @dataset"), on="method")
            _lines(axis, cells, "frequencies", "num_features", look)
            axis.set_ylabel(f"test {METRICS[metric].label}")
        column[0].set_title(dataset, loc="left", fontweight="bold")
    _ticks(axes, grid["num_features"])
    legend_of(figure, list(look.values()))
    return figure


def workers(view: View) -> Figure:
    """Seconds, error and staleness against the number of workers, a line for each scheme; dashed: one process."""
    grid = view.grid("scheme", "workers")
    if reason := _nothing(view, grid, "scheme and workers"):
        return empty(reason)
    look = looks_of({name: name for name in grid["scheme"].unique()})
    figure, axes = panels(len(view.datasets), 3, 1.9, sharex=True)
    for dataset, row in zip(view.datasets, axes, strict=True):
        error = view.error_metric(dataset)
        for axis, metric in zip(row, ("seconds_train", error), strict=False):
            cells = view.cells(metric).query("dataset == @dataset")
            _lines(axis, grid.merge(cells, on="method"), "scheme", "workers", look)
            _single(axis, cells[~cells["method"].isin(grid["method"])])
        _staleness(row[2], view, grid, dataset, look)
        row[0].set_title(dataset, loc="left", fontweight="bold")
        row[0].set_ylabel("training seconds")
        remark(row[0], f"{view.study['machine']['cores']} cores")
        row[1].set_ylabel(f"test {METRICS[error].label}")
    _ticks(axes, grid["workers"])
    legend_of(figure, [*look.values(), *[ALONE] * (len(grid) < len(view.methods))])
    return figure


def _nothing(view: View, grid: pd.DataFrame, keys: str) -> str:
    """Why there is nothing to draw; empty where there is."""
    if grid.empty:
        return f"No method of this study sets {keys}."
    return "No fit of this study is finished." if view.done.empty else ""


def _lines(axis: Axes, cells: pd.DataFrame, by: str, at: str, look: dict[str, Look]) -> None:
    """Mean and standard deviation of cells; lines a little apart, so that each shows its spread."""
    drawn = cells[cells["n"] > 0]
    for i, (name, line) in enumerate(look.items()):
        rows = drawn[drawn[by] == name].sort_values(at)
        x = rows[at].astype(float) * 1.02 ** (i - (len(look) - 1) / 2)
        axis.errorbar(x, rows["mean"], yerr=np.nan_to_num(rows["sd"]), **line.drawn, elinewidth=0.7)
    absent = len(cells) - int(cells["complete"].sum())
    if absent:
        remark(axis, f"{absent} of {len(cells)} not complete")


def _ticks(axes: np.ndarray, values: pd.Series) -> None:
    """A logarithmic axis below the last row, with a tick at every setting; panels share it."""
    ticks = sorted(values.unique())
    for axis in axes[-1]:
        axis.set_xscale("log")
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel(values.name.replace("num_", "random "))


def _single(axis: Axes, cells: pd.DataFrame) -> None:
    """A dashed line for each method that is trained by one process."""
    for mean in cells.loc[cells["n"] > 0, "mean"]:
        axis.axhline(mean, color=ALONE.color, linestyle=ALONE.linestyle, linewidth=0.9)


def _staleness(axis: Axes, view: View, grid: pd.DataFrame, dataset: str, look: dict[str, Look]) -> None:
    """Updates that others made between the fetch of the parameters and the push of their gradient."""
    fits = view.done[(view.done["dataset"] == dataset) & view.done["staleness_mean"].notna()]
    if fits.empty:
        say(axis, "no staleness\nwas noted")
        return
    values = fits.astype({"staleness_mean": float}).groupby("method")["staleness_mean"]
    cells = values.agg(["mean", "std", "size"]).set_axis(["mean", "sd", "n"], axis=1).assign(complete=True)
    _lines(axis, grid.merge(cells.reset_index(), on="method"), "scheme", "workers", look)
    axis.set_ylabel("mean staleness (updates)")
