"""R-hat against kept draws: how fast samplers converge (filippone2013; filippone2014, figures 3 and 4).

Curves for a few methods; for more, tiles shaded like the bars of filippone2013."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from gpbench.report.figures import canvas
from gpbench.report.tables.sampler_efficiency import shrinkage
from gpbench.report.view import View

THRESHOLDS = (1.1, 1.3, 2.0)
SHADES = {"below 1.1": "#E4EEF6", "1.1 to 1.3": "#9CC3E0", "1.3 to 2": "#3F80B5", "above 2": "#0B2F59"}
MOST_CURVES = 8
TICKS = (1.001, 1.01, *THRESHOLDS, 11.0)
LEAST, MOST = 1e-3, 30.0  # ends of the logarithmic axis of R-hat - 1, where values beyond it are drawn


def r_hat(view: View) -> Figure:
    """The slowest variable's R-hat at the checkpoints, one panel per data set."""
    r_hats = shrinkage(view)
    canvas.require(len(r_hats), canvas.NO_CHAINS)
    return (curves if len(view.methods) <= MOST_CURVES else tiles)(view, r_hats)


def curves(view: View, r_hats: pd.DataFrame) -> Figure:
    """The median over splits, a curve a method, with a band up to the median of the upper limits."""
    figure, axes = canvas.titled(view.datasets, 1.9, 3, "kept draws", "R-hat")
    for axis, _, of_dataset in canvas.by_dataset(axes, view.datasets, r_hats):
        for look, rows in canvas.by_method(view, of_dataset):
            median = rows.groupby("iteration")[["r_hat", "upper"]].median()
            axis.plot(median.index, excess(median["r_hat"]), **look.options, markersize=3.5)
            axis.fill_between(median.index, *excess(median.T), color=look.color, alpha=0.12, linewidth=0)
        axis.set(xscale="log", yscale="log", ylim=(LEAST, None))
        ticks = sorted(of_dataset["iteration"].unique())
        axis.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks], rotation=30, ha="right")
        axis.xaxis.set_minor_locator(NullLocator())
        threshold_axis(axis)
        canvas.remark(axis, _chains(of_dataset, view))
    canvas.legend(figure, view, r_hats["method"])
    return figure


def tiles(view: View, r_hats: pd.DataFrame) -> Figure:
    """One row per method, one tile per checkpoint."""
    height = 0.5 + 0.17 * len(view.methods) * canvas.row(view)
    figure, axes = canvas.titled(view.datasets, height, 3, "kept draws", sharey=True)
    checkpoints = sorted(r_hats["iteration"].unique())
    for axis, _, of_dataset in canvas.by_dataset(axes, view.datasets, r_hats):
        median = of_dataset.groupby(["method", "iteration"])["r_hat"].median().unstack()
        values = median.reindex(view.methods, columns=checkpoints).to_numpy(float)
        shade = np.where(np.isnan(values), np.nan, np.digitize(values, THRESHOLDS))
        axis.imshow(shade, cmap=ListedColormap(list(SHADES.values())), vmin=-0.5, vmax=3.5, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                ink = "white" if value >= THRESHOLDS[1] else "black"
                text = f"{value:.2f}" if value < 10 else f"{value:.0f}" if value < 100 else ">99"
                axis.text(column, row, text, ha="center", va="center", fontsize=5.5, color=ink)
        axis.set_xticks(range(len(checkpoints)), [f"{t:,.0f}" for t in checkpoints], rotation=30, ha="right")
        axis.grid(False)
        canvas.remark(axis, _chains(of_dataset, view))
    canvas.name_rows(axes[0], view)
    handles = [Patch(facecolor=shade, edgecolor=canvas.GREY, label=name) for name, shade in SHADES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def excess(values: pd.Series | np.ndarray) -> np.ndarray:
    """R-hat - 1, clipped to the axis."""
    return np.clip(np.asarray(values, float) - 1, LEAST, MOST)


def threshold_axis(axis: Axes, ticks: tuple[float, ...] = TICKS) -> None:
    """Ticks of R-hat on the logarithmic axis of R-hat - 1, and a darker line at the usual limit."""
    axis.set_yticks(np.array(ticks) - 1, [f"{tick:g}" for tick in ticks])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.axhline(THRESHOLDS[0] - 1, color=canvas.GREY, linewidth=0.8, linestyle=":")


def _chains(rows: pd.DataFrame, view: View) -> str:
    if rows.empty:
        return "no split with several chains"
    chains = view.done[view.done["dataset"] == rows["dataset"].iloc[0]].groupby(["method", "split"]).size().max()
    return f"{rows['split'].nunique()} x {chains} chains"
