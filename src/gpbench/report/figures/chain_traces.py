"""Draws of a parameter, their autocorrelation and their R-hat (filippone2014, figures 3 and 4)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.signal import correlate

from gpbench.report.figures import canvas
from gpbench.report.figures.cells import by_cell
from gpbench.report.figures.r_hat import LEAST, excess, threshold_axis
from gpbench.report.figures.traces import draw_chains
from gpbench.report.tables.sampler_efficiency import CELL, shrinkage
from gpbench.report.view import UNMIXED, View

LAGS = 100  # kept draws over which autocorrelation is shown
MOST_ROWS = 20  # rows of the figure; data sets beyond are left out
LIMIT: canvas.Style = {"color": "#D55E00", "linestyle": "--", "linewidth": 0.9}


def chain_traces(view: View) -> Figure:
    """Trace and autocorrelation of the first parameter, R-hat of the slowest; one row per data set and sampler.

    Shows the first data sets, as many as fit into MOST_ROWS, but at least one."""
    draws = view.probe("draws")
    if draws.empty:
        return canvas.empty("No chains: no fit by a sampler is finished.")
    datasets = _datasets_that_fit(view, draws)
    draws = draws[draws["quantity"] == draws.groupby(CELL)["quantity"].transform("first")]
    limits = draws.groupby(["dataset", "quantity"])["value"].agg(["min", "max"])
    r_hat = {cell: rows for cell, rows in shrinkage(view).groupby(CELL)}
    looks = canvas.chain_looks(draws["replica"])
    cells = by_cell(view, draws[draws["dataset"].isin(datasets)])
    figure, axes = canvas.panels(len(cells), 3, 1.15, width_ratios=[2.2, 1, 1])
    for ((dataset, method), of_cell), (trace, acf, shrink) in zip(cells.items(), axes, strict=True):
        quantity = of_cell["quantity"].iloc[0]
        draw_chains(trace, of_cell, "value", looks, 0.5)
        trace.set_ylabel(quantity)
        trace.set_ylim(*limits.loc[dataset, quantity])
        canvas.title(trace, f"{dataset}, {view.labels[method]}")
        canvas.remark(shrink, _failing(view, dataset, method))
        _autocorrelation(acf, of_cell)
        _shrinkage(shrink, r_hat.get((dataset, method), pd.DataFrame()))
    for axis, name in zip(axes[-1], ("iteration", "lag in iterations", "iterations"), strict=True):
        axis.set_xlabel(name)
    canvas.legend_of(figure, list(looks.values()))
    return figure


def _datasets_that_fit(view: View, draws: pd.DataFrame) -> list[str]:
    rows = draws.groupby("dataset")["method"].nunique().reindex(view.datasets).dropna().cumsum()
    return list(rows.index[(rows <= MOST_ROWS) | (rows.index == rows.index[0])])


def _autocorrelation(axis: Axes, drawn: pd.DataFrame) -> None:
    """Thin lines: every chain; thick: their mean."""
    chains = [chain.sort_values("draw") for _, chain in drawn.groupby("replica")]
    step = np.diff(chains[0]["draw"].to_numpy()[:2]).sum() or 1
    rho = np.array([autocorrelation(chain["value"].to_numpy(), LAGS) for chain in chains])
    lags = step * np.arange(rho.shape[1])
    axis.plot(lags, rho.T, color="#BBBBBB", linewidth=0.5)
    axis.plot(lags, rho.mean(0), color="black", linewidth=1)
    axis.set(ylabel="autocorrelation", ylim=(-0.2, 1.02))


def autocorrelation(values: np.ndarray, lags: int) -> np.ndarray:
    """rho_0 = 1 .. rho_lags of draws `[T]`, each sum of products divided by T; NaN for constant draws."""
    centred = values - values.mean()
    products = correlate(centred, centred, method="fft")[len(values) - 1 :][: lags + 1]
    return products / products[0] if products[0] > 0 else np.full(len(products), np.nan)


def _shrinkage(axis: Axes, rows: pd.DataFrame) -> None:
    """Median over splits of R-hat (solid) and of its 97.5 % upper limit (dashed)."""
    if rows.empty:
        canvas.write_reason(axis, "one chain")
        return
    median = rows.groupby("iteration")[["r_hat", "upper"]].median()
    axis.plot(median.index, excess(median["r_hat"]), color="black", marker=".", markersize=4)
    axis.plot(median.index, excess(median["upper"]), **LIMIT)
    axis.set(yscale="log", ylim=(LEAST, None), ylabel="R-hat")
    threshold_axis(axis)


def _failing(view: View, dataset: str, method: str) -> str:
    fits = view.done.query("dataset == @dataset and method == @method")
    failing = fits.loc[fits["status"] == UNMIXED, "split"].nunique()
    return f"✗ {failing}/{fits['split'].nunique()} splits" if failing else ""
