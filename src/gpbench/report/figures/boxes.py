"""Box plots of the splits, as rossi2021 compares structured methods (figure 10)."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpbench.report.figures.canvas import empty, label_edges, looks, present, remark, wrapped
from gpbench.report.figures.intervals import OPEN, published
from gpbench.report.view import View

_COLUMNS = 3
PRINTED = {"color": "black", "marker": "D", "markersize": 4, "linestyle": "none"} | OPEN


def boxes(view: View) -> Figure:
    """Test MNLL of the splits, a box a method, one panel per data set without the methods that are skipped there."""
    if view.done.empty:
        return empty("No fit of this study is finished.")
    card = published(view)
    figure, axes = wrapped(len(view.datasets), 2.4, _COLUMNS)
    for axis, dataset in zip(axes, view.datasets, strict=True):
        _panel(axis, view, dataset)
        names = _methods(view, dataset)
        for row in card[(card["dataset"] == dataset) & card["ours_method"].isin(names)].itertuples():
            axis.plot(names.index(row.ours_method) + 1, row.published, **PRINTED)
    label_edges(axes, "", "test MNLL (nats)", _COLUMNS)
    if not card.empty:
        figure.legend(handles=[Line2D([], [], label="published mean", **PRINTED)], loc="outside lower center")
    return figure


def _methods(view: View, dataset: str) -> list[str]:
    """Those of which a fit to this data set can be asked."""
    fits = view.fits.query("dataset == @dataset and status != 'skipped'")
    return present(view.methods, fits["method"])


def _panel(axis: Axes, view: View, dataset: str) -> None:
    scores, look = view.per_split("mnll", dataset), looks(view)
    cells = view.cells("mnll").query("dataset == @dataset").set_index("method")
    names = _methods(view, dataset)
    for place, name in enumerate(names, 1):
        values, ink = scores[name].dropna(), {"color": look[name].color}
        if len(values):
            lines = {key: ink for key in ("boxprops", "whiskerprops", "capprops", "medianprops")}
            axis.boxplot([values], positions=[place], widths=0.5, sym=".", flierprops={"markeredgecolor": ink["color"]},
                         **lines)  # fmt: skip
        else:
            reason = textwrap.shorten(cells.loc[name, "statuses"], 34, placeholder=" …")
            where = {"ha": "center", "va": "bottom", "transform": axis.get_xaxis_transform()}
            axis.text(place, 0.05, reason, rotation=90, fontsize=6.5, color="#777777", **where)
    axis.set_xticks(range(1, len(names) + 1), [view.labels[name] for name in names], rotation=30, ha="right")
    axis.set_xlim(0.4, len(names) + 0.6)
    axis.set_title(dataset, loc="left", fontweight="bold")
    if absent := int((~cells.loc[names, "complete"]).sum()):
        remark(axis, f"{absent} incomplete")
