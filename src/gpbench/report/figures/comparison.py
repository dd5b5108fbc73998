"""Scores of every split beside each other."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures.canvas import empty, looks, panels
from gpbench.report.view import View

_COLUMNS = 3


def log_density(view: View) -> Figure:
    """Mean test log density of each split, methods in rows, one panel per data set."""
    if view.done.empty:
        return empty("No fit of this study is finished.")
    rows = -(-len(view.datasets) // _COLUMNS)
    columns = min(_COLUMNS, len(view.datasets))
    figure, axes = panels(rows, columns, 0.55 + 0.16 * len(view.methods), sharey=True)
    for i, axis in enumerate(axes.flat):
        if i >= len(view.datasets):
            axis.set_axis_off()
            continue
        _splits(axis, view, view.datasets[i])
        if i + columns >= len(view.datasets):
            axis.set_xlabel("mean test log density (nats)")
    names = [view.labels[method] for method in view.methods]
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].set_ylim(len(names) - 0.4, -0.6)
    return figure


def _splits(axis: Axes, view: View, dataset: str) -> None:
    scores = -view.per_split("mnll", dataset)
    cells = view.cells("mnll").query("dataset == @dataset").set_index("method")
    low = _floor(scores)
    for i, (method, look) in enumerate(looks(view).items()):
        values = scores[method].dropna()
        shown = values[values >= low]
        axis.plot(shown, np.full(len(shown), i), look.marker, color=look.color, markersize=3.5, alpha=0.7, mew=0)
        if len(values) and values.mean() >= low:
            axis.plot([values.mean()] * 2, [i - 0.35, i + 0.35], color=look.color, linewidth=1.6)
        if len(shown) < len(values):
            axis.text(0, i, f"◂ {len(values) - len(shown)}", va="center", color=look.color, transform=_row(axis))
        grey = {"va": "center", "fontsize": 7, "color": "#777777", "transform": _row(axis)}
        cell = cells.loc[method]
        if cell["n"] == 0:
            axis.text(0.5, i, textwrap.shorten(cell["statuses"], 34, placeholder=" …"), ha="center", **grey)
        elif not cell["complete"]:
            left_out = cell["n"] < cell["expected"]
            axis.text(1.01, i, f"{cell['n']}/{cell['expected']}" if left_out else "✗", **grey)
    axis.set_title(dataset, loc="left", fontweight="bold")
    axis.margins(x=0.08)


def _floor(scores: pd.DataFrame) -> float:
    """Below this a value is counted, not drawn: three times the range of the better half under their worst."""
    means = scores.mean().dropna().sort_values(ascending=False)
    if means.empty:
        return -np.inf
    better = scores[means.index[: max(len(means) // 2, 1)]]
    worst, best = np.nanmin(better), np.nanmax(better)
    return worst - max(3 * (best - worst), 0.5)


def _row(axis: Axes):
    """x in fractions of the axis, y in rows."""
    return axis.get_yaxis_transform()
