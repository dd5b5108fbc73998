"""Posterior draws of the kernel's lengthscale and variance (hensman2015mcmc, figure 2, right)."""

from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.view import View


def parameters(view: View) -> Figure:
    """A panel per data set: dots are states of all chains of a sampler, a cross is what a method has optimised."""
    (rows,) = canvas.probed(view, "covariance parameters", "inducing")
    states = rows[(rows["layer"] == 1) & (rows["point"] == 0) & (rows["column"] == 0)]
    cells, datasets = canvas.by_cell(view, states), canvas.present(view.datasets, states["dataset"])
    looks = canvas.looks(view)
    figure, axes = canvas.titled(datasets, 2.6, 2, x="lengthscale of the first input", y="variance")
    for axis, dataset in zip(axes, datasets, strict=True):
        for method, look in looks.items():
            if (dataset, method) in cells:
                _draw(axis, look, cells[dataset, method])
        axis.set(xscale="log", yscale="log")
    markers = {method: "." if rows["sample"].max() > 0 else "X" for method, rows in states.groupby("method")}
    shown = [replace(look, marker=markers[method]) for method, look in looks.items() if method in markers]
    canvas.legend_of(figure, shown, lines=False)
    return figure


def _draw(axis: Axes, look: canvas.Look, states: pd.DataFrame) -> None:
    x, y = states["lengthscale"], states["outputscale"]
    if states["sample"].max() > 0:
        axis.plot(x, y, ".", color=look.color, markersize=2.5, alpha=0.6)
    else:
        axis.plot(x, y, "X", color=look.color, markersize=8, zorder=3)
