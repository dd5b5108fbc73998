"""What preconditioners save on a grid of parameters (cutajar2016, figure 1), and solvers against condition numbers
(filippone2015, figures 1 to 4)."""

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
LIMIT = 2.0  # the colours of ratios end at 10^-2 and 10^2
SMALLEST = 1e-9  # stands for 0, which has no logarithm


def heat_maps(view: View, measured: str) -> Figure:
    """log10 of what conjugate gradients take, then of each preconditioner's ratio to it; rows of panels by data set."""
    systems, grid = relative_to_cg(view), view.grid("preconditioner")
    alone = set(grid.loc[grid["preconditioner"] == "none", "method"])
    canvas.require(len(systems), "No systems: no finished fit of a solver without a preconditioner.")
    each = -(-len(view.methods) // COLUMNS)
    figure, axes = canvas.panels(each * len(view.datasets), COLUMNS, 1.25, "log₁₀ lengthscale", "log₁₀ noise")
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


PANELS = {
    "iterations": "iterations, inner ones too",
    "error": "error of s",
    "sd": "sd of an element of s",
    "gradient_error": "log₁₀ squared relative error of g",
}
NO_SYSTEMS = "No systems: no finished fit of a solver measured condition numbers."


def condition_numbers(view: View) -> Figure:
    """The distribution of log10 kappa over systems, a curve a method and a panel a data set."""
    systems = view.probe("systems")
    canvas.require("kappa" in systems, NO_SYSTEMS)
    figure, axes = canvas.titled(view.datasets, 2.0, 3, "condition number κ", "share of systems below")
    for axis, _, of_dataset in canvas.by_dataset(axes, view.datasets, systems[systems["kappa"].notna()]):
        for look, rows in canvas.by_method(view, of_dataset):
            kappa = np.sort(rows["kappa"])
            axis.step(kappa, np.arange(1, len(kappa) + 1) / len(kappa), color=look.color, linestyle=look.linestyle)
        axis.set(xscale="log")
    canvas.legend(figure, view, systems["method"], marks=False)
    return figure


def by_condition(view: View) -> Figure:
    """Iterations, errors and spreads of every solver against kappa, rows of panels by data set."""
    systems = view.probe("systems")
    canvas.require("kappa" in systems, NO_SYSTEMS)
    systems = systems.assign(iterations=systems["iterations"] + systems.get("inner", 0))
    solved = systems[systems["iterations"] > 0]
    shown = [name for name in PANELS if name in solved and solved[name].notna().any()]
    figure, axes = canvas.panels(len(view.datasets), max(len(shown), 1), 2.0, "condition number κ")
    for row, dataset, of_dataset in canvas.by_dataset(axes, view.datasets, solved):
        for axis, name in zip(row, shown, strict=False):
            logarithmic = name != "gradient_error"
            measured = of_dataset[of_dataset[name].notna()]
            if logarithmic:  # an estimate that is never cut short has no spread
                smallest = measured.loc[measured[name] > 0, name].min()
                measured = measured.assign(**{name: measured[name].replace(0, smallest / 10)})
            for look, rows in canvas.by_method(view, measured):
                stopped = rows["stopped"].astype(bool)
                for part, fill in ((rows[~stopped], look.color), (rows[stopped], "none")):
                    kappa, values = part[["kappa", name]].to_numpy(float).T
                    axis.plot(kappa, values, look.marker, c=look.color, mfc=fill, markersize=2.5, alpha=0.7)
            axis.set(xscale="log", yscale="log" if logarithmic else "linear", ylabel=PANELS[name])
        canvas.title(row[0], dataset)
    canvas.legend(figure, view, solved["method"], lines=False)
    return figure
