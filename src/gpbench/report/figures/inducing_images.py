"""Inducing inputs that are images, before and after they were optimised (hensman2015mcmc, figure 5)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.datasets.images import mosaic, paint
from gpbench.report.figures import canvas
from gpbench.report.view import View

IMAGES = 3


def inducing_images(view: View) -> Figure:
    """A row of panels a cell: the three inducing inputs that moved most as they started, ended, and the difference."""
    (rows,) = canvas.probed(view, "inducing inputs before and after training", "starts")
    cells = canvas.by_cell(view, rows)
    figure, axes = canvas.panels(len(cells), 3, 0.8 * IMAGES)
    for ((dataset, method), points), line in zip(cells.items(), axes, strict=True):
        _draw(line, canvas.cell_label(view, dataset, method), points[points["fit_id"] == points["fit_id"].iloc[0]])
    return figure


def _draw(axes: np.ndarray, name: str, points: pd.DataFrame) -> None:
    before, after = (points.pivot(index="point", columns="column", values=part).to_numpy() for part in ("before", "x"))
    chosen = np.argsort(-np.square(after - before).sum(1), kind="stable")[:IMAGES]
    low, high = np.quantile(before, [0, 1])
    change = (after - before)[chosen]
    _column(axes[0], f"{name}\nbefore", before[chosen], low, high, "gray_r")
    _column(axes[1], "after", after[chosen], low, high, "gray_r")
    most = np.abs(change).max()
    _column(axes[2], f"difference, at most {most:.3g}", change, -most, most, "RdBu_r")


def _column(axis: Axes, heading: str, pixels: np.ndarray, low: float, high: float, colours: str) -> None:
    grid, _ = mosaic(pixels, [np.arange(len(pixels))], len(pixels))
    paint(axis, grid, colours, vmin=low, vmax=high)
    axis.set_title(heading, loc="left")
