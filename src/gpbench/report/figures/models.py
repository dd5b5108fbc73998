"""Models side by side by the metric of a paper (urbainczyk2025)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import canvas
from gpbench.report.view import View

LEAVES = 3.0
"""A mean beyond so many medians of the panel leaves the axis."""


def errors_by_depth(view: View) -> Figure:
    """Mean and two standard deviations over splits of the protocol's first metric, one panel per data set and depth.

    Methods for which the study sets no `layers` stand in every panel."""
    canvas.require(len(view.done))
    metric, depth = view.study["reported"]["metrics"][0], dict(view.grid("layers").to_numpy())
    places = [
        (dataset, layers)
        for dataset in view.datasets
        for layers in sorted(set(depth.values()))
        if _is_planned(view, dataset, [name for name in depth if depth[name] == layers])
    ] or [(dataset, 1) for dataset in view.datasets]
    titles = [f"{dataset}, {layers} layers" for dataset, layers in places]
    figure, axes = canvas.titled(titles, 2.6, 2, y=f"test {METRICS[metric].label}")
    for axis, (dataset, layers) in zip(axes, places, strict=True):
        names = [name for name in view.methods if depth.get(name, layers) == layers]
        _draw_models(axis, view, view.cells_of(dataset, metric).loc[names])
    return figure


def _is_planned(view: View, dataset: str, names: list[str]) -> bool:
    """Whether the study has one of some methods on a data set."""
    rows = view.fits[(view.fits["dataset"] == dataset) & view.fits["method"].isin(names)]
    return bool((rows["status"] != "skipped").any())


def _draw_models(axis: Axes, view: View, cells: pd.DataFrame) -> None:
    """Means with bars of two standard deviations; an arrow and the number for a mean that leaves the axis."""
    look, means = canvas.looks(view), cells["mean"].astype(float)
    bars = np.nan_to_num(2 * cells["sd"].astype(float))
    high = LEAVES * np.nanmedian(means) if np.isfinite(means).any() else 1.0
    for x, (name, mean, bar) in enumerate(zip(cells.index, means, bars, strict=True)):
        mark: canvas.Style = {"color": look[name].color, "marker": look[name].marker}
        if mean > high:
            axis.annotate("", (x, 1), (x, 0.86), axis.get_xaxis_transform(), arrowprops={"arrowstyle": "->"})
            canvas.note(axis, x, 0.84, f"{mean:.2g}", va="top", transform=axis.get_xaxis_transform())
        elif np.isfinite(mean):
            axis.errorbar(x, mean, yerr=bar, elinewidth=0.8, markersize=4, **mark)
        else:
            canvas.upright_reason(axis, x, cells.loc[name])
    shown = means.to_numpy() <= high
    top = (means.to_numpy() + bars)[shown].max(initial=0.0)
    axis.set_ylim(0, 1.08 * min(top, high) or 1)
    canvas.name_columns(axis, view, cells.index)
    canvas.remark_incomplete(axis, cells)
