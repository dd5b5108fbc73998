"""Posterior draws of the functions of every layer of a deep GP with one input."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from gpbench.data.table import evenly
from gpbench.report.figures import canvas
from gpbench.report.view import View

DRAWS = 100
RISING = canvas.Look("hidden function rises over the data", "#0072B2", "", "-")
FALLING = canvas.Look("hidden function falls", "#D55E00", "", "-")


def layers(view: View) -> Figure:
    """Posterior draws of the functions of every layer; layers in rows, methods in columns."""
    (rows,) = canvas.probed(view, "functions", "layers")
    cells = canvas.by_cell(view, rows, unfinished=True)
    depth = int(rows["layer"].max())
    figure, axes = canvas.panels(depth, len(cells), 1.9, "input", sharex="col", sharey="row")
    for ((dataset, method), of_cell), column in zip(cells.items(), axes.T, strict=True):
        label = view.labels[method] if len(view.datasets) == 1 else f"{dataset}\n{view.labels[method]}"
        canvas.title(column[0], label.replace(", ", ",\n"))
        if of_cell.empty:
            for axis in column:
                canvas.write_reason(axis, "no finished fit")
            continue
        _draw_layers(column, of_cell)
    for number, axis in enumerate(axes[:, 0], 1):
        axis.set_ylabel(f"output (layer {number})" if number == depth else f"layer {number}")
    canvas.legend_of(figure, [RISING, FALLING])
    return figure


def _draw_layers(column: np.ndarray, rows: pd.DataFrame) -> None:
    """All chains of a sampler together, or one replica of a variational method."""
    observed, drawn = rows[rows["layer"] == 0], rows[rows["layer"] > 0]
    if not rows["chain"].any():
        drawn = drawn[drawn["replica"] == drawn["replica"].min()]
    drawn = _thinned(drawn)
    low, high = observed["x"].min(), observed["x"].max()
    rises = _rises(drawn, low, high)
    for number, axis in enumerate(column, 1):
        _draw_functions(axis, drawn[drawn["layer"] == number], rises)
        axis.axvspan(low, high, color="#EFEFEF", zorder=-1)
    points = observed[observed["replica"] == observed["replica"].min()]
    column[-1].plot(points["x"], points["f"], "k.", markersize=2.5, zorder=3)


def _rises(drawn: pd.DataFrame, low: float, high: float) -> pd.Series:
    """Whether the first layer's slope over the data [low, high] is positive, by (replica, sample)."""
    inside = drawn[(drawn["layer"] == 1) & (drawn["output"] == 0) & drawn["x"].between(low, high)]
    inside = inside.assign(product=(inside["x"] - (low + high) / 2) * inside["f"])
    return inside.groupby(["replica", "sample"])["product"].sum() > 0


def _draw_functions(axis: Axes, drawn: pd.DataFrame, rises: pd.Series) -> None:
    lines, colours = [], []
    for (replica, sample, _), line in drawn.groupby(["replica", "sample", "output"]):
        lines.append(line[["x", "f"]].to_numpy())
        colours.append((RISING if rises[replica, sample] else FALLING).color)
    axis.add_collection(LineCollection(lines, colors=colours, linewidths=0.4, alpha=0.35))
    axis.autoscale_view()


def _thinned(drawn: pd.DataFrame) -> pd.DataFrame:
    """At most DRAWS draws, evenly spaced among those of all replicas."""
    draws = drawn[["replica", "sample"]].drop_duplicates().sort_values(["replica", "sample"])
    return drawn.merge(draws.iloc[evenly(len(draws), DRAWS)], on=["replica", "sample"])
