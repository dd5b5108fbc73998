"""Draws of a parameter, their autocorrelation and their R-hat (filippone2014, figures 3 and 4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.signal import correlate

from gpbench.report.figures.canvas import empty, legend_of, looks_of, panels, remark, say
from gpbench.report.figures.r_hat import LEAST, excess, threshold_axis
from gpbench.report.tables.sampler_efficiency import CELL, shrinkage
from gpbench.report.view import UNMIXED, View

LAGS = 100
"""Kept draws over which autocorrelation is shown."""
MOST_ROWS = 20
"""Of the figure; data sets beyond are left out."""
LIMIT = {"color": "#D55E00", "linestyle": "--", "linewidth": 0.9}


def chain_traces(view: View) -> Figure:
    """Trace and autocorrelation of the first parameter, R-hat of the slowest; a row for each data set and sampler.

    Of the first data sets, as many as have MOST_ROWS in all, at least one."""
    drawn = view.probe("draws")
    if drawn.empty:
        return empty("No chains: no fit by a sampler is finished.")
    drawn = drawn[drawn["quantity"] == drawn.groupby(CELL)["quantity"].transform("first")]
    cells = dict(list(drawn.groupby(CELL)))
    limits = drawn.groupby(["dataset", "quantity"])["value"].agg(["min", "max"])
    shrunk = dict(list(shrinkage(view).groupby(CELL)))
    order = [(d, m) for d in _shown(view) for m in view.methods if (d, m) in cells]
    figure, axes = panels(len(order), 3, 1.15, width_ratios=[2.2, 1, 1])
    for cell, (trace, acf, shrink) in zip(order, axes, strict=True):
        _trace(trace, cells[cell])
        trace.set_title(f"{cell[0]}, {view.labels[cell[1]]}", loc="left", fontweight="bold")
        trace.set_ylim(*limits.loc[cell[0], cells[cell]["quantity"].iloc[0]])
        remark(shrink, _said(view, *cell))
        _autocorrelation(acf, cells[cell])
        _shrinkage(shrink, shrunk.get(cell, pd.DataFrame()))
    for axis, name in zip(axes[-1], ("iteration", "lag in iterations", "iterations"), strict=True):
        axis.set_xlabel(name)
    legend_of(figure, [replace(look, label=f"chain {i + 1}") for i, look in _looks(drawn).items()])
    return figure


def _shown(view: View) -> list[str]:
    """The data sets that have room."""
    drawn = view.probe("draws")
    rows = drawn.groupby("dataset")["method"].nunique().reindex(view.datasets).dropna().cumsum()
    return list(rows.index[(rows <= MOST_ROWS) | (rows.index == rows.index[0])])


def _looks(drawn: pd.DataFrame) -> dict:
    """A colour a chain, without marks."""
    looks = looks_of({replica: f"chain {replica + 1}" for replica in sorted(drawn["replica"].unique())})
    return {replica: replace(look, marker="", linestyle="-") for replica, look in looks.items()}


def _trace(axis: Axes, drawn: pd.DataFrame) -> None:
    looks = _looks(drawn)
    for replica, own in drawn.sort_values("draw").groupby("replica"):
        axis.plot(own["draw"], own["value"], **looks[replica].drawn | {"linewidth": 0.5})
    axis.set_ylabel(drawn["quantity"].iloc[0])


def _autocorrelation(axis: Axes, drawn: pd.DataFrame) -> None:
    """Of every chain, thin, and their mean."""
    chains = [own.sort_values("draw") for _, own in drawn.groupby("replica")]
    step = np.diff(chains[0]["draw"].to_numpy()[:2]).sum() or 1
    found = np.array([autocorrelation(own["value"].to_numpy(), LAGS) for own in chains])
    lags = step * np.arange(found.shape[1])
    axis.plot(lags, found.T, color="#BBBBBB", linewidth=0.5)
    axis.plot(lags, found.mean(0), color="black", linewidth=1)
    axis.set_ylabel("autocorrelation")
    axis.set_ylim(-0.2, 1.02)


def autocorrelation(values: np.ndarray, lags: int) -> np.ndarray:
    """rho_0 = 1 .. rho_lags of draws `[T]`, each sum of products divided by T; NaN where nothing moves."""
    centred = values - values.mean()
    products = correlate(centred, centred, method="fft")[len(values) - 1 :][: lags + 1]
    return products / products[0] if products[0] > 0 else np.full(len(products), np.nan)


def _shrinkage(axis: Axes, rows: pd.DataFrame) -> None:
    """Median over splits of R-hat, solid, and of its 97.5 % upper limit, dashed."""
    if rows.empty:
        say(axis, "one chain")
        return
    median = rows.groupby("iteration")[["r_hat", "upper"]].median()
    axis.plot(median.index, excess(median["r_hat"]), color="black", marker=".", markersize=4)
    axis.plot(median.index, excess(median["upper"]), **LIMIT)
    axis.set(yscale="log", ylim=(LEAST, None))
    axis.set_ylabel("R-hat")
    threshold_axis(axis)


def _said(view: View, dataset: str, method: str) -> str:
    """Whether any chains of the sampler fail the gate."""
    fits = view.done.query("dataset == @dataset and method == @method")
    failing = fits.loc[fits["status"] == UNMIXED, "split"].nunique()
    return f"✗ {failing}/{fits['split'].nunique()} splits" if failing else ""
