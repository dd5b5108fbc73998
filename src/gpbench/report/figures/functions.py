"""What fits found: posterior draws of the functions of every layer of a deep GP with one input; of functions of two
inputs the data, the posterior means, and the hidden layers of deep methods."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
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
    draws = drawn[["replica", "sample"]].drop_duplicates().sort_values(["replica", "sample"])
    drawn = drawn.merge(draws.iloc[evenly(len(draws), DRAWS)], on=["replica", "sample"])  # of those of all replicas
    low, high = observed["x"].min(), observed["x"].max()
    inside = drawn[(drawn["layer"] == 1) & (drawn["output"] == 0) & drawn["x"].between(low, high)]
    slopes = inside.assign(product=(inside["x"] - (low + high) / 2) * inside["f"])
    rises = slopes.groupby(["replica", "sample"])["product"].sum() > 0
    for number, axis in enumerate(column, 1):
        lines, colours = [], []
        for (replica, sample, _), line in drawn[drawn["layer"] == number].groupby(["replica", "sample", "output"]):
            lines.append(line[["x", "f"]].to_numpy())
            colours.append((RISING if rises[replica, sample] else FALLING).color)
        axis.add_collection(LineCollection(lines, colors=colours, linewidths=0.4, alpha=0.35))
        axis.autoscale_view()
        axis.axvspan(low, high, color="#EFEFEF", zorder=-1)
    points = observed[observed["replica"] == observed["replica"].min()]
    column[-1].plot(points["x"], points["f"], "k.", markersize=2.5, zorder=3)


MAPS = 4  # hidden functions side by side


class Panel(NamedTuple):
    """A map of posterior means; limits: those of the scale, if the panels of a line share one."""

    title: str
    rows: pd.DataFrame
    limits: tuple[float | None, float | None] = (None, None)


def surfaces(view: View) -> Figure:
    """Data and fits of a data set on one scale, then hidden functions of the deep methods, each on its own scale."""
    (rows,) = canvas.probed(view, "surfaces", "surfaces")
    lines = [line for dataset in view.datasets for line in _lines(view, rows[rows["dataset"] == dataset], dataset)]
    figure, axes = canvas.panels(len(lines), max(map(len, lines)), 1.5)
    for line, row in zip(lines, axes, strict=True):
        for axis in row[len(line) :]:
            axis.set_visible(False)
        shared = line[0].limits != (None, None)
        drawn = [(axis, scale) for panel, axis in zip(line, row, strict=False) if (scale := _draw(panel, axis))]
        for axis, scale in drawn[-1:] if shared else drawn:
            figure.colorbar(scale, ax=axis, fraction=0.06, pad=0.03).outline.set_visible(False)
        for axis in row[: len(line)]:
            axis.set_xlabel(next(iter(line[0].rows["x0_name"]), ""))
            axis.tick_params(labelleft=axis is row[0])
        row[0].set_ylabel(next(iter(line[0].rows["x1_name"]), ""))
    return figure


def _lines(view: View, rows: pd.DataFrame, dataset: str) -> Iterator[list[Panel]]:
    """Lines of panels of one data set, from the first split and replica of each method."""
    first = rows.sort_values(["split", "replica"], kind="stable").groupby("method")["fit_id"].first()
    done = set(view.done.loc[view.done["dataset"] == dataset, "method"])
    # a finished method without rows has no layers
    names = [name for name in view.methods if name in first or name not in done]
    parts = {name: rows[rows["fit_id"] == first.get(name)] for name in names}
    observed = next((part[part["layer"] == 0] for part in parts.values() if len(part)), rows)
    limits = (observed["mean"].min(), observed["mean"].max())
    title = "training data" if len(view.datasets) == 1 else f"{dataset}: data"
    fits = [Panel(view.labels[m], part[part["layer"] == part["layer"].max()], limits) for m, part in parts.items()]
    yield [Panel(title, observed, limits), *fits]
    for name, part in parts.items():
        hidden = part[(part["layer"] > 0) & (part["layer"] < part["layer"].max())]
        maps = [
            Panel(f"{view.labels[name]}\nlayer {layer}, function {output + 1}", group)
            for (layer, output), group in hidden.groupby(["layer", "output"])
        ]
        yield from (maps[start : start + MAPS] for start in range(0, len(maps), MAPS))


def _draw(panel: Panel, axis: Axes) -> ScalarMappable | None:
    axis.set_title(panel.title, loc="left")
    axis.grid(False)
    axis.margins(0)
    axis.locator_params(nbins=4)
    rows, (low, high) = panel.rows, panel.limits
    if rows.empty:
        canvas.write_reason(axis, "no finished fit")
        return None
    options: canvas.Style = {"vmin": low, "vmax": high, "rasterized": True}
    if (rows["layer"] == 0).all():
        return axis.scatter(rows["x0"], rows["x1"], c=rows["mean"], s=1.5, marker="s", linewidths=0, **options)
    grid = rows.pivot(index="x1", columns="x0", values="mean")
    return axis.pcolormesh(grid.columns, grid.index, grid, shading="nearest", **options)
