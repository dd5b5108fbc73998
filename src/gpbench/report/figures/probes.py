"""What finished fits were asked besides predictions: their bounds, and the functions of their layers."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpbench.report.figures.canvas import empty, looks, panels, remark, say
from gpbench.report.view import View

SAMPLES = 100
RISING, FALLING = "#0072B2", "#D55E00"


def bounds(view: View) -> Figure:
    """Negative lower bound on large mini-batches, a box a method, beside the final test MNLL."""
    rows = view.probe("bounds")
    if rows.empty:
        return empty("No bounds: bounds.parquet is missing or no fit is finished (`probes: [bounds]` of the study).")
    figure, axes = panels(len(view.datasets), 2, 2.1, sharex=True)
    for dataset, (left, right) in zip(view.datasets, axes, strict=True):
        own = rows[rows["dataset"] == dataset]
        _boxes(left, view, own)
        _scores(right, view, dataset)
        left.set_title(dataset, loc="left", fontweight="bold")
        left.set_ylabel("negative lower bound\n(nats per training row)")
        right.set_ylabel("test MNLL")
        remark(right, _agreement(own.groupby("method")["bound"].median(), view.per_split("mnll", dataset).mean()))
    for axis in axes[-1]:
        axis.set_xticks(range(len(view.methods)), [view.labels[m] for m in view.methods], rotation=25, ha="right")
    return figure


def _boxes(axis: Axes, view: View, rows: pd.DataFrame) -> None:
    for i, (method, look) in enumerate(looks(view).items()):
        values = rows.loc[rows["method"] == method, "bound"]
        if values.empty:
            _say_at(axis, i, "no bound")
            continue
        lines = {"color": look.color, "linewidth": 1.0}
        axis.boxplot(
            values,
            positions=[i],
            widths=0.5,
            boxprops=lines,
            whiskerprops=lines,
            capprops=lines,
            medianprops=lines,
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": look.color},
        )


def _scores(axis: Axes, view: View, dataset: str) -> None:
    scores = view.per_split("mnll", dataset)
    for i, (method, look) in enumerate(looks(view).items()):
        values = scores[method].dropna()
        if values.empty:
            _say_at(axis, i, "no finished fit")
            continue
        axis.plot(np.full(len(values), i), values, look.marker, color=look.color, markersize=4, mew=0)
        axis.plot([i - 0.3, i + 0.3], [values.mean()] * 2, color=look.color)
    axis.set_xlim(-0.6, len(view.methods) - 0.4)


def _say_at(axis: Axes, at: int, text: str) -> None:
    place = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "center", "rotation": 90}
    axis.text(at, 0.5, text, fontsize=6.5, color="#777777", **place)


def _agreement(bound: pd.Series, mnll: pd.Series) -> str:
    """Kendall's tau between the median bounds and the test scores of the methods that have both."""
    from scipy.stats import kendalltau

    both = pd.DataFrame({"bound": bound, "mnll": mnll}).dropna()
    if len(both) < 3:
        return ""
    return f"Kendall's τ with the bound: {kendalltau(both['bound'], both['mnll']).statistic:.2f}"


def layers(view: View) -> Figure:
    """Posterior draws of the functions of every layer; layers in rows, methods in columns."""
    rows = view.probe("layers")
    if rows.empty:
        return empty("No functions: layers.parquet is missing or no fit is finished (`probes: [layers]` of the study).")
    drawn, done = (set(zip(part["dataset"], part["method"], strict=True)) for part in (rows, view.done))
    # a method that is done and yet not there has no layers
    columns = [cell for cell in itertools.product(view.datasets, view.methods) if cell in drawn or cell not in done]
    depth = int(rows["layer"].max())
    figure, axes = panels(depth, len(columns), 1.9, sharex="col", sharey="row")
    for (dataset, method), column in zip(columns, axes.T, strict=True):
        own = rows[(rows["dataset"] == dataset) & (rows["method"] == method)]
        label = view.labels[method] if len(view.datasets) == 1 else f"{dataset}\n{view.labels[method]}"
        column[0].set_title(label.replace(", ", ",\n"), loc="left", fontweight="bold")
        if own.empty:
            for axis in column:
                say(axis, "no finished fit")
            continue
        _functions(column, own[own["split"] == own["split"].min()])
        column[-1].set_xlabel("input")
    for number, axis in enumerate(axes[:, 0], 1):
        axis.set_ylabel(f"output (layer {number})" if number == depth else f"layer {number}")
    handles = [Line2D([], [], color=color) for color in (RISING, FALLING)]
    labels = ["hidden function rises over the data", "hidden function falls"]
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _functions(column: np.ndarray, rows: pd.DataFrame) -> None:
    """All chains of a sampler together, or one replica of a variational method; the colour is the first layer's."""
    observed, drawn = rows[rows["layer"] == 0], rows[rows["layer"] > 0]
    if not rows["chain"].any():
        drawn = drawn[drawn["replica"] == drawn["replica"].min()]
    drawn = _thinned(drawn)
    low, high = observed["x"].min(), observed["x"].max()
    inside = drawn[(drawn["layer"] == 1) & (drawn["output"] == 0) & drawn["x"].between(low, high)]
    inside = inside.assign(product=(inside["x"] - (low + high) / 2) * inside["f"])
    rises = inside.groupby(["replica", "sample"])["product"].sum() > 0
    for number, axis in enumerate(column, 1):
        lines, colours = [], []
        for (replica, sample, _), line in drawn[drawn["layer"] == number].groupby(["replica", "sample", "output"]):
            lines.append(line[["x", "f"]].to_numpy())
            colours.append(RISING if rises[replica, sample] else FALLING)
        axis.add_collection(LineCollection(lines, colors=colours, linewidths=0.4, alpha=0.35))
        axis.autoscale_view()
        axis.axvspan(low, high, color="#EFEFEF", zorder=-1)
    points = observed[observed["replica"] == observed["replica"].min()]
    column[-1].plot(points["x"], points["f"], "k.", markersize=2.5, zorder=3)


def _thinned(drawn: pd.DataFrame) -> pd.DataFrame:
    """At most SAMPLES draws, evenly through those of all replicas."""
    draws = drawn[["replica", "sample"]].drop_duplicates().sort_values(["replica", "sample"])
    chosen = np.unique(np.linspace(0, len(draws) - 1, SAMPLES).round().astype(int))
    return drawn.merge(draws.iloc[chosen], on=["replica", "sample"])
