"""Posteriors over a covariance function, from those over its parameters and inducing inputs; and these parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from gpbench.data.table import evenly
from gpbench.report.figures import canvas
from gpbench.report.view import View

COLOURS = ("#0072B2", "#D55E00", "#009E73")  # one per inducing input
POINTS, LINES = 241, 20  # points of an x axis; draws shown inside a band
BAND = (0.05, 0.5, 0.95)
MARGIN = 0.15  # as a share of the range of the training inputs
SCALES = ("lengthscale", "outputscale")
PANELS = {"fixed θ and Z": (*SCALES, "z"), "sampling θ": ("z",), "sampling Z": SCALES, "sampling θ and Z": ()}
"""Title -> the parts fixed at their posterior means."""
STYLES: dict[str, canvas.Style] = {".": {"markersize": 2.5, "alpha": 0.6}, "X": {"markersize": 8, "zorder": 3}}
"""Marker of a method, that of states of a sampler or that of an optimum -> how `parameters` draws it."""


class Posterior(NamedTuple):
    """States of all chains: inducing inputs z `[S, M]` in ascending order, lengthscale, outputscale and chain `[S]`."""

    z: np.ndarray
    lengthscale: np.ndarray
    outputscale: np.ndarray
    chain: np.ndarray

    def with_fixed(self, names: tuple[str, ...]) -> Posterior:
        """The states with some parts fixed at their posterior means, scales at those of their logarithms."""
        means = {"z": self.z.mean(0)} | {name: np.exp(np.log(getattr(self, name)).mean()) for name in SCALES}
        return self._replace(**{name: np.broadcast_to(means[name], getattr(self, name).shape) for name in names})

    def covariance(self, distance: np.ndarray) -> np.ndarray:
        """outputscale exp(-1/2 (distance / lengthscale)^2) `[S, T]` at distances `[S, T]` or `[T]`."""
        return self.outputscale[:, None] * np.exp(-0.5 * (distance / self.lengthscale[:, None]) ** 2)


def covariance(view: View) -> Figure:
    """Two rows of panels per method: k(x, z) with more and more of it sampled, then k over distance and its scales."""
    (rows,) = canvas.probed(view, "covariances", "inducing")
    cells = canvas.by_cell(view, rows, unfinished=True)
    figure, axes = canvas.panels(2 * len(cells), 3, 1.75)
    for ((dataset, method), of_cell), block in zip(cells.items(), axes.reshape(-1, 6), strict=True):
        name = canvas.cell_label(view, dataset, method)
        if of_cell.empty or of_cell["column"].max() > 0:
            reason = f"{name}: " + ("no finished fit" if of_cell.empty else "more than one input")
            for axis, text in zip(block, ["", reason, *[""] * 4], strict=True):
                canvas.write_reason(axis, text)
            continue
        _draw(name, of_cell, block)
        canvas.remark(block[-1], canvas.mixing(view, of_cell, "r_hat_covariance"))
    return figure


def _draw(name: str, rows: pd.DataFrame, axes: np.ndarray) -> None:
    states, observed = _posterior(rows), rows.loc[rows["layer"] == 0, "x"].unique()
    top = np.quantile(states.outputscale, BAND[-1]) * 1.15
    for axis, (heading, fixed) in zip(axes, PANELS.items(), strict=False):
        axis.set_title(heading, loc="left")
        _draw_at_inducing_inputs(axis, states, states.with_fixed(fixed), observed)
        axis.set(ylim=(-0.03 * top, top), xlabel="x")
    for axis in axes[[0, 3]]:
        axis.set_ylabel(f"{name}\nk(x, z)")
    distance = np.linspace(0, 3 * np.quantile(states.lengthscale, BAND[-1]), POINTS)
    _band(axes[4], distance, states.covariance(distance), "#555555")
    axes[4].set(xlabel="|x − x′|", ylim=(0, top), xlim=(0, distance[-1]))
    axes[4].set_title("over distance", loc="left")
    _scales(axes[5], states)


def _draw_at_inducing_inputs(axis: Axes, states: Posterior, sampled: Posterior, observed: np.ndarray) -> None:
    """k(x, z) for three z, with a part of the states fixed; dashed: everything fixed."""
    margin = MARGIN * (observed.max() - observed.min())
    x = np.linspace(observed.min() - margin, observed.max() + margin, POINTS)
    fixed, size = states.with_fixed((*SCALES, "z")), states.z.shape[1]
    # positions of up to three evenly spaced inducing inputs, without the ends if there are enough
    points = sorted({round(size * (part + 0.5) / len(COLOURS) - 0.5) for part in range(len(COLOURS))})
    for colour, point in zip(COLOURS, points, strict=False):
        _band(axis, x, sampled.covariance(x - sampled.z[:, [point]]), colour)
        axis.plot(x, fixed.covariance(x - fixed.z[:, [point]])[0], color="black", linewidth=0.9, linestyle="--")
    axis.plot(observed, np.zeros_like(observed), "|", color=canvas.GREY, markersize=5, markeredgewidth=0.5)
    axis.set_xlim(x[0], x[-1])


def _posterior(rows: pd.DataFrame) -> Posterior:
    states = rows[rows["layer"] == 1].sort_values(["replica", "sample", "x"], kind="stable")
    first = states.groupby(["replica", "sample"])[list(SCALES)].first()
    z = states["x"].to_numpy().reshape(len(first), -1)
    lengthscale, outputscale = (first[name].to_numpy() for name in SCALES)
    return Posterior(z, lengthscale, outputscale, first.index.get_level_values("replica").to_numpy())


def _band(axis: Axes, x: np.ndarray, k: np.ndarray, colour: str) -> None:
    """Pointwise 90 % band of functions `[S, T]`, their median, and LINES of them."""
    low, middle, high = np.quantile(k, BAND, axis=0)
    axis.fill_between(x, low, high, color=colour, alpha=0.22, linewidth=0)
    # chains have equally many states, in their order
    lines = [np.column_stack([x, line]) for line in k[evenly(len(k), LINES)]]
    axis.add_collection(LineCollection(lines, colors=colour, linewidths=0.35, alpha=0.5))
    axis.plot(x, middle, color=colour)


def _scales(axis: Axes, states: Posterior) -> None:
    looks = canvas.looks_of({chain: "" for chain in sorted(set(states.chain))})
    for chain, look in looks.items():
        of_chain = states.chain == chain
        x, y = states.lengthscale[of_chain], states.outputscale[of_chain]
        axis.plot(x, y, look.marker, color=look.color, markersize=2.5, markeredgewidth=0, alpha=0.7)
    axis.set_title("θ", loc="left")
    axis.set(xlabel="lengthscale", ylabel="outputscale")


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
