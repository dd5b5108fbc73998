"""Effective sample sizes, as they are and for what they cost (tables 2 to 6 of filippone2013).

In percent of the draws, so that chains of any length compare, and published ones too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from gpbench.report.figures.canvas import Look, empty, label_edges, remark, wrapped
from gpbench.report.figures.intervals import OPEN
from gpbench.report.tables.sampler_efficiency import scored
from gpbench.report.view import View

KINDS = {
    "ess_percent": Look("least ESS of a chain", "#0072B2", "o", "none"),
    "per_operation": Look("the same per O(n³) operation of an iteration", "#D55E00", "s", "none"),
}
_COLUMNS, _SHIFT, _APART = 3, 0.17, 0.08


def ess_per_operation(view: View) -> Figure:
    """Least ESS, and the same per O(n^3) operation, methods in rows, one panel per data set."""
    fits = scored(view).assign(per_operation=lambda rows: rows["ess_percent"] / rows["cubic"].where(rows["cubic"] > 0))
    if fits.empty:
        return empty("No chains: no fit by a sampler is finished.")
    figure, axes = wrapped(len(view.datasets), 0.6 + 0.24 * len(view.methods), _COLUMNS)
    published = view.card[view.card["ours_metric"] == "ess_percent"].dropna(subset="published")
    decades = _decades(fits[list(KINDS)], published["published"])
    for i, (axis, dataset) in enumerate(zip(axes, view.datasets, strict=True)):
        own, theirs = fits[fits["dataset"] == dataset], published[published["dataset"] == dataset]
        for kind, look in KINDS.items():
            side = _SHIFT * (1 if kind == "per_operation" else -1)
            _marks(axis, own.groupby("method")[kind].agg(["mean", "std"]), view.methods, side, look)
        printed = theirs[theirs["ours_method"].isin(view.methods)].set_index("ours_method")
        sds = printed.reindex(columns=["published", "published_sd"]).set_axis(["mean", "std"], axis=1)
        _marks(axis, sds, view.methods, _APART - _SHIFT, KINDS["ess_percent"], OPEN)
        axis.set(xscale="log", xlim=decades, ylim=(len(view.methods) - 0.4, -0.6))
        axis.xaxis.set_minor_formatter(NullFormatter())
        labels = [view.labels[method] for method in view.methods] if i % _COLUMNS == 0 else []
        axis.set_yticks(range(len(view.methods)), labels or [""] * len(view.methods))
        axis.set_title(dataset, loc="left", fontweight="bold")
        remark(
            axis, f"{own['split'].nunique()} splits, {own['iterations'].max():,.0f} draws" if len(own) else "no chain"
        )
    label_edges(axes, "ESS, % of draws", "", _COLUMNS)
    _legend(figure, not published.empty)
    return figure


def _decades(fits: pd.DataFrame, published: pd.Series) -> tuple[float, float]:
    """The whole decades that all panels show."""
    values = np.concatenate([fits.to_numpy().ravel(), published.to_numpy(float)])
    powers = np.log10(values[values > 0])  # False where NaN
    return 10 ** np.floor(powers.min()), 10 ** np.ceil(powers.max() + 1e-9)


def _said(fits: pd.DataFrame) -> str:
    """Splits, and draws of a chain."""
    return f"{fits['split'].nunique()} splits, {fits['iterations'].max():,.0f} draws" if len(fits) else "no chain"


def _marks(axis: Axes, cells: pd.DataFrame, methods: list[str], shift: float, look: Look, options=None) -> None:
    """Mean of each method, and its standard deviation where there is one; a bar below zero ends at the axis."""
    cells = cells[cells["mean"] > 0]
    if cells.empty:
        return
    spread = np.nan_to_num(cells["std"])
    low = np.minimum(spread, 0.95 * cells["mean"])
    places = [methods.index(method) + shift for method in cells.index]
    style = {"color": look.color, "marker": look.marker, "linestyle": "none", "elinewidth": 0.8, "markersize": 3.8}
    axis.errorbar(cells["mean"], places, xerr=[low, spread], **style, **(options or {}))


def _legend(figure: Figure, published: bool) -> None:
    handles = [Line2D([], [], label=look.label, **look.drawn) for look in KINDS.values()]
    open_ones = [
        Line2D([], [], label="published", color=KINDS["ess_percent"].color, marker="o", linestyle="none", **OPEN)
    ]
    figure.legend(handles=handles + open_ones * published, loc="outside lower center", ncols=3)
