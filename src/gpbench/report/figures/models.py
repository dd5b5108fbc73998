"""Models side by side as ashman2020 draws them, the published number of each beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures.canvas import empty, label_edges, looks, remark, wrapped
from gpbench.report.figures.curves import QUOTED
from gpbench.report.view import View

# family -> colour, and markers in the order in which a study names its members
FAMILIES = {"svgp": ("#000000", "os"), "dsvi": ("#C00000", "^"), "aep": ("#009E73", "*")}
QUOTED_MARK = {"color": "#0072B2", "marker": "x"}
OPEN = {"fillstyle": "none", "alpha": 0.55}
ASIDE = 0.2  # of ours to the left, of a published number to the right
_COLUMNS = 4


def loglik_by_model(view: View) -> Figure:
    """Mean test log-likelihood of every model, one panel per data set."""
    figure = _by_model(view, lambda dataset: "mnll", -1)
    label_edges(figure.axes, "", "test log-lik. (nats)", _COLUMNS)
    return figure


def error_by_model(view: View) -> Figure:
    """RMSE or error rate of every model, one panel per data set."""
    return _by_model(view, view.error_metric, 1)


def _by_model(view: View, metric_of: Callable[[str], str], sign: int) -> Figure:
    """One panel per data set with a finished fit, of sign x its metric."""
    cells = {name: view.cells(metric_of(name)).query("dataset == @name").set_index("method") for name in view.datasets}
    datasets = [name for name in view.datasets if cells[name]["n"].any()]
    if not datasets:
        return empty("No fit of this study is finished.")
    marks, card = _marks(view), view.card[view.card["protocol"] == view.study["protocol"]]
    names = [*marks, *card.query("reason == @QUOTED and dataset in @datasets")["method_printed"].unique()]
    labels = [view.labels.get(name, name) for name in names]
    figure, axes = wrapped(len(datasets), 1.9, _COLUMNS)
    for axis, dataset in zip(axes, datasets, strict=True):
        metric = metric_of(dataset)
        _ours(axis, cells[dataset], marks, sign)
        _published(axis, card.query("dataset == @dataset and ours_metric == @metric"), names, marks, sign)
        axis.set_title(dataset, loc="left", fontweight="bold")
        axis.set_xlim(-0.7, len(names) - 0.3)
        axis.set_xticks(range(len(names)), [])
        if sign > 0:
            axis.set_ylabel(f"test {METRICS[metric].label}")
    for axis in axes[-_COLUMNS:]:
        axis.set_xticklabels(labels, rotation=90, fontsize=6)
    if absent := [name for name in view.datasets if name not in datasets]:
        figure.suptitle(f"No finished fit: {', '.join(absent)}.", fontsize=7, color="#777777")
    _legend(figure, labels[0], published=not card.empty)
    return figure


def _marks(view: View) -> dict[str, dict]:
    """Colour and marker of every method; a kernel with one lengthscale a layer is pale and half filled."""
    fits = view.fits.dropna(subset="family")  # one that was never collected has none
    family = {name: name for name in view.methods} | dict(zip(fits["method"], fits["family"], strict=True))
    seen: dict[str, int] = {}
    marks = {}
    for method, look in looks(view).items():
        color, markers = FAMILIES.get(family[method], (look.color, look.marker))
        order = seen[family[method]] = seen.get(family[method], -1) + 1
        marks[method] = {"color": color, "marker": markers[order % len(markers)]}
        if view.study["settings"][method].get("ard") is False:
            marks[method] |= {"fillstyle": "left", "markerfacecoloralt": "white", "alpha": 0.6}
    return marks


def _ours(axis: Axes, cells: pd.DataFrame, marks: dict[str, dict], sign: int) -> None:
    """Mean and population sd of every cell; dashed: the first method."""
    for x, (method, mark) in enumerate(marks.items()):
        cell = cells.loc[method]
        if cell["n"]:
            bar = _population(cell["sd"], cell["n"])
            axis.errorbar(x - ASIDE, sign * cell["mean"], yerr=bar, elinewidth=0.8, markersize=4.5, **mark)
    first = cells.iloc[0]
    if first["n"]:
        axis.axhline(sign * first["mean"], color="#777777", linestyle="--", linewidth=0.7, zorder=0)
    absent = int((~cells["complete"]).sum())
    if absent:
        remark(axis, f"{absent} incomplete")


def _published(axis: Axes, card: pd.DataFrame, names: list[str], marks: dict[str, dict], sign: int) -> None:
    """The published number of every method that has one, and of other work that the paper quotes."""
    for row in card.itertuples():
        quoted = row.reason == QUOTED
        name = row.method_printed if quoted else row.ours_method
        if name in names:
            mark = QUOTED_MARK if quoted else marks[name] | OPEN
            bar = _population(row.published_sd, row.splits)
            axis.errorbar(names.index(name) + ASIDE, sign * row.published, yerr=bar, elinewidth=0.6, ms=3.5, **mark)


def _population(sd: float, n: int) -> float:
    """Standard deviation with ddof = 0, which the paper prints, of one with ddof = 1; 0 where there is none."""
    return 0.0 if math.isnan(sd) else sd * math.sqrt((n - 1) / n)


def _legend(figure: Figure, first: str, published: bool) -> None:
    ink = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 4}
    handles = [Line2D([], [], label="ours", **ink)]
    if published:
        handles.append(Line2D([], [], label="published", **ink | OPEN))
    handles.append(Line2D([], [], color="#777777", linestyle="--", linewidth=0.7, label=f"our {first}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
