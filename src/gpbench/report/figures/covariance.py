"""The posterior over a covariance function that one over its parameters and inducing inputs induces."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from gpbench.report.figures.canvas import empty, looks_of, panels, remark, say
from gpbench.report.figures.inducing import asked, first_split, mixing
from gpbench.report.view import View

COLOURS = ("#0072B2", "#D55E00", "#009E73")  # an inducing input each
NUMBERS, LINES = 241, 20  # of places, and of draws beside a band
BAND = (0.05, 0.5, 0.95)
MARGIN = 0.15  # of the range of the training inputs
SCALES = ("lengthscale", "outputscale")
PANELS = {"fixed θ and Z": (*SCALES, "z"), "sampling θ": ("z",), "sampling Z": SCALES, "sampling θ and Z": ()}
"""Title -> what is held at its posterior mean."""


class Posterior(NamedTuple):
    """States of all chains: inducing inputs z `[S, M]` in rising order, lengthscale, outputscale and chain `[S]`."""

    z: np.ndarray
    lengthscale: np.ndarray
    outputscale: np.ndarray
    chain: np.ndarray

    def held(self, names: tuple[str, ...]) -> Posterior:
        """With some parts at their posterior means, scales at those of their logarithms."""
        means = {"z": self.z.mean(0)} | {name: np.exp(np.log(getattr(self, name)).mean()) for name in SCALES}
        return self._replace(**{name: np.broadcast_to(means[name], getattr(self, name).shape) for name in names})

    def covariance(self, distance: np.ndarray) -> np.ndarray:
        """outputscale exp(-1/2 (distance / lengthscale)^2) `[S, T]` at distances `[S, T]` or `[T]`."""
        return self.outputscale[:, None] * np.exp(-0.5 * (distance / self.lengthscale[:, None]) ** 2)


def covariance(view: View) -> Figure:
    """Two lines of panels a method: k(x, z) with more and more of it sampled, then k over distance and its scales."""
    rows = view.probe("inducing")
    if rows.empty:
        return empty(
            "No covariances: inducing.parquet is missing or no fit is finished (`probes: [inducing]` of the study)."
        )
    cells = asked(view, rows)
    figure, axes = panels(2 * len(cells), 3, 1.75)
    for (dataset, method), block in zip(cells, axes.reshape(-1, 6), strict=True):
        own = first_split(rows, dataset, method)
        name = view.labels[method] if len(view.datasets) == 1 else f"{dataset}: {view.labels[method]}"
        if own.empty or own["column"].max() > 0:
            _blank(block, f"{name}: " + ("no finished fit" if own.empty else "more than one input"))
            continue
        _draw(name, own, block)
        remark(block[-1], mixing(view, own, "r_hat_covariance"))
    return figure


def _blank(axes: np.ndarray, reason: str) -> None:
    for axis, text in zip(axes, ["", reason, *[""] * 4], strict=True):
        say(axis, text)


def _draw(name: str, rows: pd.DataFrame, axes: np.ndarray) -> None:
    """The six panels of a method on one data set."""
    states, observed = _posterior(rows), rows.loc[rows["layer"] == 0, "x"].unique()
    low, high = observed.min(), observed.max()
    margin = MARGIN * (high - low)
    x = np.linspace(low - margin, high + margin, NUMBERS)
    top = np.quantile(states.outputscale, BAND[-1]) * 1.15
    # every chain gives as many states, and those of a chain come in its order
    thinned = np.unique(np.linspace(0, len(states.z) - 1, LINES).round().astype(int))
    for axis, (title, held) in zip(axes, PANELS.items(), strict=False):
        some = states.held(held)
        axis.set_title(title, loc="left")
        for colour, point in zip(COLOURS, _ranks(states.z.shape[1]), strict=False):
            fixed = states.held((*SCALES, "z"))
            _band(axis, x, some.covariance(x - some.z[:, [point]]), thinned, colour)
            axis.plot(x, fixed.covariance(x - fixed.z[:, [point]])[0], color="black", linewidth=0.9, linestyle="--")
        axis.plot(observed, np.zeros_like(observed), "|", color="#777777", markersize=5, markeredgewidth=0.5)
        axis.set(xlim=(x[0], x[-1]), ylim=(-0.03 * top, top), xlabel="x")
    for axis in axes[[0, 3]]:
        axis.set_ylabel(f"{name}\nk(x, z)")
    distance = np.linspace(0, 3 * np.quantile(states.lengthscale, BAND[-1]), NUMBERS)
    _band(axes[4], distance, states.covariance(distance), thinned, "#555555")
    axes[4].set(xlabel="|x − x′|", ylim=(0, top), xlim=(0, distance[-1]))
    axes[4].set_title("over distance", loc="left")
    _scales(axes[5], states)


def _posterior(rows: pd.DataFrame) -> Posterior:
    kept = rows[rows["layer"] == 1].sort_values(["replica", "sample", "x"], kind="stable")
    first = kept.groupby(["replica", "sample"], sort=True)[list(SCALES)].first()
    z = kept["x"].to_numpy().reshape(len(first), -1)
    return Posterior(z, *(first[name].to_numpy() for name in SCALES), first.index.get_level_values("replica"))


def _ranks(size: int) -> list[int]:
    """Evenly through the inducing inputs in their order, without the ends where there are enough."""
    return sorted({round(size * (part + 0.5) / len(COLOURS) - 0.5) for part in range(len(COLOURS))})


def _band(axis: Axes, x: np.ndarray, k: np.ndarray, thinned: np.ndarray, colour: str) -> None:
    """Pointwise 90 % band of functions `[S, T]`, their median, and some of them."""
    low, middle, high = np.quantile(k, BAND, axis=0)
    axis.fill_between(x, low, high, color=colour, alpha=0.22, linewidth=0)
    lines = [np.column_stack([x, line]) for line in k[thinned]]
    axis.add_collection(LineCollection(lines, colors=colour, linewidths=0.35, alpha=0.5))
    axis.plot(x, middle, color=colour)


def _scales(axis: Axes, states: Posterior) -> None:
    """Draws of lengthscale and outputscale, a mark a chain."""
    looks = looks_of({chain: "" for chain in sorted(set(states.chain))})
    for chain, look in looks.items():
        own = states.chain == chain
        marks = {"marker": look.marker, "markersize": 2.5, "markeredgewidth": 0, "linestyle": "none", "alpha": 0.7}
        axis.plot(states.lengthscale[own], states.outputscale[own], color=look.color, **marks)
    axis.set_title("θ", loc="left")
    axis.set(xlabel="lengthscale", ylabel="outputscale")
