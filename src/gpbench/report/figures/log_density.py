"""Test scores of every split: mean log densities, and boxes of MNLL as in rossi2021 (figure 10)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.figures.published import OPEN, published_scores
from gpbench.report.view import IMPROVING, View

PUBLISHED: canvas.Style = {"color": "black", "marker": "D", "markersize": 4, "linestyle": "none"} | OPEN


def log_density(view: View) -> Figure:
    """Mean test log density of each split, methods in rows, one panel per data set."""
    canvas.require(len(view.done))
    height = 0.55 + 0.16 * len(view.methods) * canvas.row(view)
    figure, axes = canvas.titled(view.datasets, height, 3, x="mean test log density (nats)", sharey=True)
    for axis, dataset in zip(axes, view.datasets, strict=True):
        _draw_splits(axis, view, dataset)
    canvas.name_rows(axes[0], view)
    return figure


def _draw_splits(axis: Axes, view: View, dataset: str) -> None:
    scores = -view.per_split("mnll", dataset)
    cells = view.cells_of(dataset, "mnll")
    low, across = _lowest_drawn(scores), axis.get_yaxis_transform()
    for i, (method, look) in enumerate(canvas.looks(view).items()):
        values = scores[method].dropna()
        drawn = values[values >= low]
        axis.plot(drawn, np.full(len(drawn), i), look.marker, color=look.color, markersize=3.5, alpha=0.7, mew=0)
        if values.mean() >= low:
            axis.plot([values.mean()] * 2, [i - 0.35, i + 0.35], color=look.color, linewidth=1.6)
        if len(drawn) < len(values):
            axis.text(0, i, f"◂ {len(values) - len(drawn)}", va="center", color=look.color, transform=across)
        grey: canvas.Style = {"va": "center", "fontsize": 7, "color": canvas.GREY, "transform": across}
        cell = cells.loc[method]
        if cell["n"] == 0:
            axis.text(0.5, i, canvas.short_reason(cell), ha="center", **grey)
        elif not cell["complete"]:
            unfinished = cell["n"] < cell["expected"]
            axis.text(1.01, i, f"{cell['n']}/{cell['expected']}" if unfinished else "✗", **grey)
        elif cell["improving"]:
            axis.text(1.01, i, IMPROVING, **grey)
    axis.margins(x=0.08)
    if (scores < low).any(axis=None):  # room for the counts
        axis.set_xlim(left=axis.get_xlim()[0] - 0.12 * float(np.ptp(axis.get_xlim())))


def _lowest_drawn(scores: pd.DataFrame) -> float:
    """Values below are counted, not drawn: twice the range of the better half of the methods below its worst."""
    means = scores.mean().dropna().sort_values(ascending=False)
    if means.empty:
        return -np.inf
    better = scores[means.index[: max(len(means) // 2, 1)]]
    worst, best = np.nanmin(better), np.nanmax(better)
    return worst - max(2 * (best - worst), 0.5)


def boxes(view: View) -> Figure:
    """Test MNLL of the splits, one box per method that is not skipped, one panel per data set."""
    canvas.require(len(view.done))
    card = published_scores(view)
    figure, axes = canvas.titled(view.datasets, 2.4, 3, y="test MNLL (nats)")
    for axis, dataset in zip(axes, view.datasets, strict=True):
        fits = view.fits.query("dataset == @dataset and status != 'skipped'")
        methods = canvas.present(view.methods, fits["method"])
        scores, cells = view.per_split("mnll", dataset), view.cells_of(dataset, "mnll")
        for x, method in enumerate(methods):
            if len(values := scores[method].dropna()):
                canvas.box(axis, x, values, canvas.looks(view)[method].color, 6)
            else:
                canvas.upright_reason(axis, x, cells.loc[method])
        canvas.name_columns(axis, view, methods)
        canvas.remark_incomplete(axis, cells.loc[methods])
        for row in card[(card["dataset"] == dataset) & card["ours_method"].isin(methods)].itertuples():
            axis.plot(methods.index(row.ours_method), row.published, **PUBLISHED)
    if not card.empty:
        canvas.legend_of_marks(figure, [("published mean", PUBLISHED)], 1)
    return figure
