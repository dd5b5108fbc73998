"""How far unbiased estimates of a posterior scatter (filippone2014, figure 2).

Every draw of a fit is an independent estimate of log p(y | tau) at each point of a grid of log tau, `log_estimate[g]`;
the study sets the grid (`grid_low`, `grid_high`, `grid_points`) and the prior (`lengthscale_shape` and `_rate`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import logsumexp
from scipy.stats import loggamma

from gpbench.errors import count
from gpbench.report.figures.canvas import Look, empty, legend_of, panels, remark, say
from gpbench.report.view import View

GRID = ("grid_low", "grid_high", "grid_points")
SETTINGS = ("approximation", "num_importance", *GRID, "lengthscale_shape", "lengthscale_rate")
PREFIX = "log_estimate["
QUANTILES = (0.025, 0.975)
MEAN = Look("mean", "#000000", "", "-")
PRIOR = Look("prior", "#D62728", "", "-")
LIMITS = ({"color": "#E69F00", "linestyle": (0, (1.2, 1.2))}, {"color": "#0072B2", "linestyle": (0, (5, 1.5))})
TITLES = {"laplace": "Laplace", "ep": "EP"}


def estimator(view: View) -> Figure:
    """Mean and quantiles of estimates of the posterior density of log tau; rows approximations, columns data sets."""
    drawn, grid = view.probe("draws"), view.grid(*SETTINGS)
    if drawn.empty or grid.empty:
        return empty("No estimates: no finished fit of scheme estimator whose grid and prior the study sets.")
    approximations, looks = grid["approximation"].unique(), _limits(sorted(set(grid["num_importance"].tolist())))
    figure, axes = panels(len(approximations), len(view.datasets), 1.9, sharey="col")
    for approximation, row in zip(approximations, axes, strict=True):
        methods = grid[grid["approximation"] == approximation].sort_values("num_importance")
        for dataset, axis in zip(view.datasets, row, strict=True):
            _panel(axis, drawn[drawn["dataset"] == dataset], methods, looks)
            axis.set_title(f"{dataset}, {TITLES.get(approximation, approximation)}", loc="left", fontweight="bold")
        row[0].set_ylabel("density of log τ")
    for axis in axes[-1]:
        axis.set_xlabel("log τ")
    legend_of(figure, [replace(MEAN, label=f"mean, {count(max(looks), 'sample')}"), *looks.values(), PRIOR])
    return figure


def _limits(counts: list[int]) -> dict[int, Look]:
    """A look of the quantiles for each number of importance samples."""
    said = {n: "{:.1%} and {:.1%}, ".format(*QUANTILES) + count(n, "sample") for n in counts}
    return {n: Look(said[n], marker="", **LIMITS[i % len(LIMITS)]) for i, n in enumerate(counts)}


def _panel(axis: Axes, drawn: pd.DataFrame, methods: pd.DataFrame, looks: dict[int, Look]) -> None:
    """methods: of one approximation, by number of samples; the scale is that of the mean of the most."""
    found = {
        row.num_importance: (row, _estimates(drawn[drawn["method"] == row.method])) for row in methods.itertuples()
    }
    found = {n: (row, estimates) for n, (row, estimates) in found.items() if estimates.size}
    if not found:
        say(axis, "no finished fit")
        return
    row, estimates = found[max(found)]
    x, prior = _grid(row)
    mean = logsumexp(estimates, axis=0) - np.log(len(estimates)) + prior
    area = np.log(np.trapezoid(np.exp(mean - mean.max()), x)) + mean.max()
    axis.plot(x, np.exp(mean - area), color=MEAN.color)
    axis.plot(x, np.exp(prior), color=PRIOR.color, linewidth=0.9)
    for n, (row, estimates) in found.items():
        x, prior = _grid(row)
        limits = np.quantile(estimates, QUANTILES, axis=0) + prior - area
        axis.plot(x, np.exp(limits.T), color=looks[n].color, linestyle=looks[n].linestyle, linewidth=0.9)
    remark(
        axis, f"{len(estimates)} estimates" + f", {len(methods) - len(found)} not done" * (len(found) < len(methods))
    )


def _grid(row: NamedTuple) -> tuple[np.ndarray, np.ndarray]:
    """log tau of a method's settings, and its log prior density there, each `[G]`."""
    x = np.linspace(row.grid_low, row.grid_high, row.grid_points)
    return x, loggamma(row.lengthscale_shape).logpdf(x + np.log(row.lengthscale_rate))


def _estimates(drawn: pd.DataFrame) -> np.ndarray:
    """Estimates `[repetitions, G]` of all chains."""
    own = drawn[drawn["quantity"].str.startswith(PREFIX)]
    points = own["quantity"].str.removeprefix(PREFIX).str.removesuffix("]").astype(int)
    return own.assign(point=points).pivot(index=["replica", "draw"], columns="point", values="value").to_numpy()
