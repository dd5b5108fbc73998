"""Posterior draws of the kernel's lengthscale and variance (hensman2015mcmc, figure 2, right)."""

from dataclasses import replace

from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.view import View

STYLES: dict[str, canvas.Style] = {".": {"markersize": 2.5, "alpha": 0.6}, "X": {"markersize": 8, "zorder": 3}}


def parameters(view: View) -> Figure:
    """A panel per data set: dots are states of all chains of a sampler, a cross is what a method has optimised."""
    (rows,) = canvas.probed(view, "covariance parameters", "inducing")
    states = rows[(rows["layer"] == 1) & (rows["point"] == 0) & (rows["column"] == 0)]
    cells, datasets = canvas.by_cell(view, states), canvas.present(view.datasets, states["dataset"])
    looks = canvas.looks(view)
    markers = {method: "." if rows["sample"].max() > 0 else "X" for method, rows in states.groupby("method")}
    figure, axes = canvas.titled(datasets, 2.6, 2, x="lengthscale of the first input", y="variance")
    for axis, dataset in zip(axes, datasets, strict=True):
        for method, look in looks.items():
            if (dataset, method) in cells:
                of_cell, mark = cells[dataset, method], markers[method]
                axis.plot(of_cell["lengthscale"], of_cell["outputscale"], mark, color=look.color, **STYLES[mark])
        axis.set(xscale="log", yscale="log")
    shown = [replace(look, marker=markers[method]) for method, look in looks.items() if method in markers]
    canvas.legend_of(figure, shown, lines=False)
    return figure
