"""Models side by side: as in ashman2020, the published number of each beside ours; by the metric of urbainczyk2025."""

import math
from collections import Counter
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.errors import count
from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import canvas
from gpbench.report.figures.published import OPEN, QUOTED, source_legend
from gpbench.report.view import View

LEAVES = 3.0  # a mean beyond so many medians of the panel leaves the axis
# family -> colour, and markers of its methods in the order of the study
FAMILIES = {"svgp": ("#000000", "os"), "dsvi": ("#C00000", "^"), "aep": ("#009E73", "*")}
OTHERS = {"#000000": "#808080", "#009E73": "#56B4E9", "#D55E00": "#E69F00"}  # colours like theirs -> those of others
Marks = dict[str, canvas.Style]
QUOTED_MARK: canvas.Style = {"color": "#0072B2", "marker": "x"}
SHIFT = 0.2  # of our marks to the left and of published ones to the right
_COLUMNS = 4


def _by_model(view: View, error: bool) -> Figure:
    """RMSE or error rate of every model, or its mean test log-likelihood, one panel per data set."""
    metrics = {name: view.error_metric(name) if error else "mnll" for name in view.datasets}
    cells = {name: view.cells_of(name, metric) for name, metric in metrics.items()}
    datasets = [name for name in view.datasets if cells[name]["n"].any()]
    canvas.require(datasets)
    marks, card = _marks(view), view.card[view.card["protocol"] == view.study["protocol"]]
    card = card[card["ours_metric"] == card["dataset"].map(metrics)]
    names = [*marks, *card.query("reason == @QUOTED and dataset in @datasets")["method_printed"].unique()]
    labels, sign = [view.labels.get(name, name) for name in names], 1 if error else -1
    figure, axes = canvas.titled(datasets, 1.9, _COLUMNS, y="" if error else "test log-lik. (nats)")
    figure.set_figheight(figure.get_figheight() + 0.05 * max(map(len, labels)))  # panels keep their height
    for axis, dataset in zip(axes, datasets, strict=True):
        _draw_ours(axis, cells[dataset], marks, sign)
        _draw_published(axis, card.query("dataset == @dataset"), names, marks, sign)
        axis.set_xlim(-0.7, len(names) - 0.3)
        axis.set_xticks(range(len(names)), [])
        if error:
            axis.set_ylabel(f"test {METRICS[metrics[dataset]].label}")
    for axis in axes[-_COLUMNS:]:
        axis.set_xticklabels(labels, rotation=90, fontsize=6)
    if unfinished := [name for name in view.datasets if name not in datasets]:
        figure.suptitle(f"No finished fit: {', '.join(unfinished)}.", fontsize=7, color=canvas.GREY)
    source_legend(figure, view, not card.empty)
    return figure


loglik_by_model = partial(_by_model, error=False)
error_by_model = partial(_by_model, error=True)


def _marks(view: View) -> Marks:
    """Colour and marker of every method; kernels with one lengthscale per layer are pale and half filled."""
    fits = view.fits.dropna(subset="family")  # a fit that was never collected has no family
    family = {name: name for name in view.methods} | dict(zip(fits["method"], fits["family"], strict=True))
    seen: Counter[str] = Counter()
    marks: Marks = {}
    for method, look in canvas.looks(view).items():
        color, markers = FAMILIES.get(family[method], (OTHERS.get(look.color, look.color), look.marker))
        marks[method] = {"color": color, "marker": markers[seen[family[method]] % len(markers)]}
        seen[family[method]] += 1
        if view.study["settings"][method].get("ard") is False:
            marks[method] |= {"fillstyle": "left", "markerfacecoloralt": "white", "alpha": 0.6}
    return marks


def _draw_ours(axis: Axes, cells: pd.DataFrame, marks: Marks, sign: int) -> None:
    """Mean and population standard deviation of every cell (NaN of one without a score); dashed: the first method."""
    for x, (method, mark) in enumerate(marks.items()):
        cell = cells.loc[method]
        bar = _population_sd(cell["sd"], cell["n"])
        axis.errorbar(x - SHIFT, sign * cell["mean"], yerr=bar, elinewidth=0.8, markersize=4.5, **mark)
    axis.axhline(sign * cells["mean"].iloc[0], color=canvas.GREY, linestyle="--", linewidth=0.7, zorder=0)
    canvas.remark_incomplete(axis, cells)


def _draw_published(axis: Axes, card: pd.DataFrame, names: list[str], marks: Marks, sign: int) -> None:
    for row in card.itertuples():
        quoted = row.reason == QUOTED
        name = row.method_printed if quoted else row.ours_method
        if name in names:
            mark = QUOTED_MARK if quoted else marks[name] | OPEN
            bar = _population_sd(row.published_sd, row.splits)
            axis.errorbar(names.index(name) + SHIFT, sign * row.published, yerr=bar, elinewidth=0.6, ms=3.5, **mark)


def _population_sd(sd: float, n: int) -> float:
    """Standard deviation with ddof = 0, as the paper prints it, from one with ddof = 1; 0 for NaN."""
    return 0.0 if math.isnan(sd) else sd * math.sqrt((n - 1) / n)


def errors_by_depth(view: View) -> Figure:
    """Mean and two standard deviations over splits of the protocol's first metric, one panel per data set and depth.

    Methods for which the study sets no `layers` stand in every panel."""
    canvas.require(len(view.done))
    metric, depth = view.study["reported"]["metrics"][0], dict(view.grid("layers").to_numpy())
    planned = view.fits[view.fits["status"] != "skipped"]
    wanted = {*zip(planned["dataset"], planned["method"].map(depth), strict=True)}
    pairs = product(view.datasets, sorted(set(depth.values())))
    places = [pair for pair in pairs if pair in wanted] or [(dataset, 1) for dataset in view.datasets]
    titles = [f"{dataset}, {count(layers, 'layer')}" for dataset, layers in places]
    figure, axes = canvas.titled(titles, 2.6, 2, y=f"test {METRICS[metric].label}")
    for axis, (dataset, layers) in zip(axes, places, strict=True):
        names = [name for name in view.methods if depth.get(name, layers) == layers]
        _draw_models(axis, view, view.cells_of(dataset, metric).loc[names])
    return figure


def _draw_models(axis: Axes, view: View, cells: pd.DataFrame) -> None:
    """Means with bars of two standard deviations; an arrow and the number for a mean that leaves the axis."""
    look, means = canvas.looks(view), cells["mean"].to_numpy(float)
    bars = np.nan_to_num(2 * cells["sd"].to_numpy(float))
    high = LEAVES * np.nanmedian(np.abs(means)) if np.isfinite(means).any() else 1.0
    for x, (name, mean, bar) in enumerate(zip(cells.index, means, bars, strict=True)):
        mark: canvas.Style = {"color": look[name].color, "marker": look[name].marker}
        if mean > high:
            axis.annotate("", (x, 1), (x, 0.86), axis.get_xaxis_transform(), arrowprops={"arrowstyle": "->"})
            canvas.note(axis, x, 0.84, f"{mean:.2g}", va="top", transform=axis.get_xaxis_transform())
        elif np.isfinite(mean):
            axis.errorbar(x, mean, yerr=bar, elinewidth=0.8, markersize=4, **mark)
        else:
            canvas.upright_reason(axis, x, cells.loc[name])
    top = (means + bars)[means <= high].max(initial=0.0)
    low = (means - bars)[means < 0].min(initial=0.0)  # of likelihoods
    axis.set_ylim(1.08 * low, 1.08 * min(top, high) or float(low == 0))
    canvas.name_columns(axis, view, cells.index)
    canvas.remark_incomplete(axis, cells)
