"""Scatter of unbiased estimates of a posterior (filippone2014, figure 2).

Every draw of a fit is an independent estimate of log p(y | tau) at each point of a grid of log tau, `log_estimate[g]`;
the study sets the grid (`grid_low`, `grid_high`, `grid_points`) and the prior (`lengthscale_shape` and `_rate`).
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import logsumexp
from scipy.stats import loggamma

from gpbench.errors import count
from gpbench.report.figures import canvas
from gpbench.report.view import View

GRID = ("grid_low", "grid_high", "grid_points")
SETTINGS = ("approximation", "num_importance", *GRID, "lengthscale_shape", "lengthscale_rate")
PREFIX = "log_estimate["
QUANTILES = (0.025, 0.975)
MEAN = canvas.Look("mean", "#000000", "", "-")
PRIOR = canvas.Look("prior", "#D62728", "", "-")
LIMITS = ({"color": "#E69F00", "linestyle": (0, (1.2, 1.2))}, {"color": "#0072B2", "linestyle": (0, (5, 1.5))})
TITLES = {"laplace": "Laplace", "ep": "EP"}


def estimator(view: View) -> Figure:
    """Mean and quantiles of estimates of the posterior density of log tau; rows approximations, columns data sets."""
    drawn, grid = view.probe("draws"), view.grid(*SETTINGS)
    canvas.require(len(drawn) and len(grid), "No estimates: no finished fit by an estimator has a grid and a prior.")
    approximations, looks = grid["approximation"].unique(), {}
    for i, n in enumerate(sorted(set(grid["num_importance"].tolist()))):
        label = "{:.1%} and {:.1%}, ".format(*QUANTILES) + count(n, "sample")
        looks[n] = canvas.Look(label, marker="", **LIMITS[i % len(LIMITS)])
    size = len(approximations), len(view.datasets)
    figure, axes = canvas.panels(*size, 1.9, "log τ", "density of log τ", sharey="col")
    for approximation, row in zip(approximations, axes, strict=True):
        methods = grid[grid["approximation"] == approximation].sort_values("num_importance")
        for axis, dataset, of_dataset in canvas.by_dataset(row, view.datasets, drawn):
            _panel(axis, of_dataset, methods, looks)
            canvas.title(axis, f"{dataset}, {TITLES.get(approximation, approximation)}")
    canvas.legend_of(figure, [replace(MEAN, label=f"mean, {count(max(looks), 'sample')}"), *looks.values(), PRIOR])
    return figure


def _panel(axis: Axes, drawn: pd.DataFrame, methods: pd.DataFrame, looks: dict[int, canvas.Look]) -> None:
    """methods: of one approximation, by number of samples; the scale is that of the mean with the most samples."""
    settings = {row.num_importance: row for row in methods.itertuples()}
    estimates_by_count = {n: _estimates(drawn[drawn["method"] == row.method]) for n, row in settings.items()}
    estimates_by_count = {n: estimates for n, estimates in estimates_by_count.items() if estimates.size}
    if not estimates_by_count:
        canvas.write_reason(axis, "no finished fit")
        return
    most = max(estimates_by_count)
    estimates = estimates_by_count[most]
    x, prior = _grid(settings[most])
    mean = logsumexp(estimates, axis=0) - np.log(len(estimates)) + prior
    area = np.log(np.trapezoid(np.exp(mean - mean.max()), x)) + mean.max()
    axis.plot(x, np.exp(mean - area), color=MEAN.color)
    axis.plot(x, np.exp(prior), color=PRIOR.color, linewidth=0.9)
    for n, estimates in estimates_by_count.items():
        x, prior = _grid(settings[n])
        limits = np.quantile(estimates, QUANTILES, axis=0) + prior - area
        axis.plot(x, np.exp(limits.T), color=looks[n].color, linestyle=looks[n].linestyle, linewidth=0.9)
    unfinished = len(methods) - len(estimates_by_count)
    canvas.remark(axis, f"{len(estimates)} estimates" + f", {unfinished} not finished" * bool(unfinished))


def _grid(row: Any) -> tuple[np.ndarray, np.ndarray]:
    """log tau of a method's settings, and its log prior density there, each `[G]`."""
    x = np.linspace(row.grid_low, row.grid_high, row.grid_points)
    return x, loggamma(row.lengthscale_shape).logpdf(x + np.log(row.lengthscale_rate))


def _estimates(drawn: pd.DataFrame) -> np.ndarray:
    """Estimates `[repetitions, G]` of all chains."""
    rows = drawn[drawn["quantity"].str.startswith(PREFIX)]
    points = rows["quantity"].str.removeprefix(PREFIX).str.removesuffix("]").astype(int)
    return rows.assign(point=points).pivot(index=["replica", "draw"], columns="point", values="value").to_numpy()
