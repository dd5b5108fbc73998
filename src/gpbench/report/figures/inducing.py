"""Inducing inputs over two inputs, beside the decisions of the classifier."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter

from gpbench.report.figures import canvas
from gpbench.report.view import View

CLASSES = ("#D55E00", "#0072B2")
SHADES = LinearSegmentedColormap.from_list("classes", [CLASSES[0], "#FFFFFF", CLASSES[1]])
DENSITY = LinearSegmentedColormap.from_list("density", ["#FFFFFF", "#E69F00", "#A03000", "#2A0A00"])
BINS, SMOOTHING = 160, 3.0  # histogram bins along an axis; standard deviation of their smoothing, in bins
OUTLINE = 0.95  # share of the training rows inside the dotted line


class Grid(NamedTuple):
    """The averaged classifier of a cell: p `[T1, T0]` over axes x0 `[T0]` and x1 `[T1]`, and the training rows."""

    x0: np.ndarray
    x1: np.ndarray
    p: np.ndarray
    observed: pd.DataFrame

    def histogram(self, x0: np.ndarray, x1: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Smoothed density of points relative to a uniform one `[BINS, BINS]`, and the centres of its bins."""
        counts, *edges = np.histogram2d(x0, x1, BINS, [self.x0[[0, -1]], self.x1[[0, -1]]])
        density = gaussian_filter(counts.T, SMOOTHING, mode="constant") * BINS**2 / len(x0)
        return density, *((edge[1:] + edge[:-1]) / 2 for edge in edges)


def inducing(view: View) -> Figure:
    """Classifier and inducing inputs side by side, one row per method; all densities on one scale."""
    points, classified = canvas.probed(view, "inducing inputs", "inducing", "probabilities")
    cells, classifiers = canvas.by_cell(view, points, unfinished=True), canvas.by_cell(view, classified)
    figure, axes = canvas.panels(len(cells), 2, 1.75)
    last = {dataset: method for (dataset, method), z in cells.items() if len(z) and (dataset, method) in classifiers}
    maps: list[QuadMesh] = []
    for ((dataset, method), z), (left, right) in zip(cells.items(), axes, strict=True):
        canvas.title(left, canvas.cell_label(view, dataset, method))
        probabilities = classifiers.get((dataset, method))
        if probabilities is None or z.empty:
            canvas.write_reason(left, "no finished fit")
            canvas.write_reason(right, "")
            continue
        grid = _grid(probabilities)
        _draw_decisions(left, grid)
        canvas.remark(left, canvas.mixing(view, z))
        maps += _draw_positions(right, grid, z)
        if method == last[dataset]:
            for axis in (left, right):
                axis.set_xlabel(next(iter(grid.observed["x0_name"])))
    if maps:  # on one scale
        scale = ScalarMappable(Normalize(0.0, max(np.asarray(part.get_array()).max() for part in maps)), DENSITY)
        for part in maps:
            part.set_norm(scale.norm)
        bar = figure.colorbar(scale, ax=axes, location="bottom", shrink=0.6, aspect=60, pad=0.02)
        bar.set_label("density of inducing inputs relative to a uniform density over the panel")
        bar.outline.set_visible(False)
    return figure


def _grid(rows: pd.DataFrame) -> Grid:
    """Probabilities averaged over chains, which share their training rows."""
    p = rows[rows["layer"] == 1].groupby(["x1", "x0"])["p"].mean().unstack()
    observed = rows[(rows["layer"] == 0) & (rows["fit_id"] == rows["fit_id"].iloc[0])]
    return Grid(p.columns.to_numpy(), p.index.to_numpy(), p.to_numpy(), observed)


def _draw_decisions(axis: Axes, grid: Grid) -> None:
    axis.pcolormesh(grid.x0, grid.x1, grid.p, cmap=SHADES, vmin=0, vmax=1, alpha=0.45, linewidth=0, rasterized=True)
    colours = np.where(grid.observed["p"] > 0, *CLASSES[::-1])
    axis.scatter(grid.observed["x0"], grid.observed["x1"], c=colours, s=0.8, linewidths=0, rasterized=True)
    _draw_boundary(axis, grid, 1.2)
    axis.set_ylabel(next(iter(grid.observed["x1_name"])))


def _draw_positions(axis: Axes, grid: Grid, rows: pd.DataFrame) -> list[QuadMesh]:
    """Density of the kept states of inducing inputs, or the inducing inputs themselves if each chain has one state."""
    z = rows[rows["layer"] == 1].pivot(index=["fit_id", "sample", "point"], columns="column", values="x")
    _draw_outline(axis, grid)
    _draw_boundary(axis, grid, 0.7)
    outside = 1 - z[0].between(*grid.x0[[0, -1]]).mul(z[1].between(*grid.x1[[0, -1]])).mean()
    if outside >= 0.005:
        canvas.remark(axis, f"{outside:.0%} of the inducing inputs outside")
    distinct = z.reset_index().drop_duplicates(["fit_id", "point", 0, 1])
    if not distinct.duplicated(["fit_id", "point"]).any():
        axis.plot(distinct[0], distinct[1], "o", color="#A03000", markersize=3)
        return []
    density, x0, x1 = grid.histogram(z[0], z[1])
    return [axis.pcolormesh(x0, x1, density, cmap=DENSITY, zorder=0, rasterized=True)]


def _draw_outline(axis: Axes, grid: Grid) -> None:
    """The level line of the training rows' density that holds OUTLINE of them."""
    density, x0, x1 = grid.histogram(grid.observed["x0"], grid.observed["x1"])
    heights = np.sort(density, axis=None)
    level = heights[np.searchsorted(heights.cumsum(), (1 - OUTLINE) * heights.sum())]
    axis.contour(x0, x1, density, [level], colors=canvas.GREY, linewidths=0.7, linestyles="dotted")


def _draw_boundary(axis: Axes, grid: Grid, width: float) -> None:
    """The line of probability 1/2, in a panel that ends where the grid does."""
    axis.contour(grid.x0, grid.x1, grid.p, [0.5], colors="black", linewidths=width)
    axis.grid(False)
    axis.set(xlim=grid.x0[[0, -1]], ylim=grid.x1[[0, -1]])
