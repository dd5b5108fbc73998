"""Heat maps of what preconditioners save on a grid of lengthscales and noise variances (cutajar2016, figure 1)."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from gpbench.report.figures import canvas
from gpbench.report.tables.preconditioners import relative_to_cg
from gpbench.report.view import View

COLUMNS = 5
LIMIT = 2.0
"""The colours of ratios end at 10^-2 and 10^2."""
SMALLEST = 1e-9
"""Stands for 0, which has no logarithm."""


def heat_maps(view: View, measured: str) -> Figure:
    """log10 of what conjugate gradients take, then of each preconditioner's ratio to it; rows of panels by data set."""
    systems, grid = relative_to_cg(view), view.grid("preconditioner")
    alone = set(grid.loc[grid["preconditioner"] == "none", "method"])
    if systems.empty:
        return canvas.empty("No systems: no finished fit of a solver without a preconditioner.")
    each = -(-len(view.methods) // COLUMNS)
    figure, axes = canvas.panels(each * len(view.datasets), COLUMNS, 1.25)
    of_cg = np.log10(systems.loc[systems["method"].isin(alone), measured].clip(lower=SMALLEST))
    images = {}
    for dataset, block in zip(view.datasets, np.split(axes, len(view.datasets)), strict=True):
        for axis in block.flat[len(view.methods) :]:
            axis.set_axis_off()
        for axis, method in zip(block.flat, view.methods, strict=False):
            rows = systems[(systems["method"] == method) & (systems["dataset"] == dataset)]
            first = axis is block[0, 0]
            canvas.title(axis, f"{dataset}: {view.labels[method]}" if first else view.labels[method])
            if rows.empty:
                fits = view.fits[(view.fits["method"] == method) & (view.fits["dataset"] == dataset)]
                canvas.write_reason(axis, "\n".join(fits["status"].unique()))
            elif method in alone:
                images["cg"] = _panel(axis, rows, measured, cmap="viridis", vmin=of_cg.min(), vmax=of_cg.max())
            else:
                images["ratio"] = _panel(axis, rows, f"relative_{measured}", cmap="RdBu_r", vmin=-LIMIT, vmax=LIMIT)
    for axis in axes[-1]:
        axis.set_xlabel("log₁₀ lengthscale")
    for axis in axes[:, 0]:
        axis.set_ylabel("log₁₀ noise")
    words = {"cg": f"log₁₀ {measured} of CG", "ratio": f"log₁₀ ratio of {measured} to CG"}
    for name, image in images.items():
        figure.colorbar(image, ax=axes, location="bottom", shrink=0.4, aspect=40, pad=0.01, label=words[name])
    return figure


def _panel(axis: Axes, rows: pd.DataFrame, value: str, **colours: Any) -> QuadMesh:
    """The mean over draws of log10 of a column on the grid; ×: all were stopped at the cap."""
    rows = rows.assign(value=np.log10(rows[value].clip(lower=SMALLEST)))
    table = rows.pivot_table(index="noise", columns="lengthscale", values=["value", "stopped"], aggfunc="mean")
    x, y = (np.log10(index.to_numpy(float)) for index in (table["value"].columns, table["value"].index))
    image = axis.pcolormesh(x, y, table["value"].to_numpy(), shading="nearest", **colours)
    for i, j in np.argwhere(table["stopped"].to_numpy() == 1):
        axis.plot(x[j], y[i], "x", color="#000000", markersize=2.5, markeredgewidth=0.6)
    axis.tick_params(labelsize=6)
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(MultipleLocator(2))
    return image


iterations = partial(heat_maps, measured="iterations")
seconds = partial(heat_maps, measured="seconds")
