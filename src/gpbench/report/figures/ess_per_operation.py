"""Effective sample sizes, also per operation (tables 2 to 6 of filippone2013).

In percent of the transitions after burn-in, kept or not, so that chains of any length can be compared.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from gpbench.errors import count
from gpbench.report.figures import canvas
from gpbench.report.figures.published import OPEN
from gpbench.report.tables.sampler_efficiency import scored
from gpbench.report.view import View

KINDS = {
    "ess_percent": canvas.Look("least ESS of a chain", "#0072B2", "o", "none"),
    "per_operation": canvas.Look("the same per O(n³) operation of an iteration", "#D55E00", "s", "none"),
}
_SHIFT, _PUBLISHED_SHIFT = 0.17, 0.08


def ess_per_operation(view: View) -> Figure:
    """Least ESS, and the same per O(n^3) operation, methods in rows, one panel per data set."""
    fits = scored(view).assign(per_operation=lambda rows: rows["ess_percent"] / rows["cubic"].where(rows["cubic"] > 0))
    canvas.require(len(fits), canvas.NO_CHAINS)
    height = 0.6 + 0.24 * len(view.methods) * canvas.row(view)
    figure, axes = canvas.titled(view.datasets, height, 3, "ESS, % of transitions", sharey=True)
    published = view.card[view.card["ours_metric"] == "ess_percent"].dropna(subset="published").set_index("ours_method")
    values = np.concatenate([fits[list(KINDS)].to_numpy().ravel(), published["published"].to_numpy(float)])
    powers = np.log10(values[values > 0] if (values > 0).any() else [1.0])  # False where NaN
    decades = 10 ** np.floor(powers.min()), 10 ** np.ceil(powers.max() + 1e-9)
    for axis, dataset, of_dataset in canvas.by_dataset(axes, view.datasets, fits):
        for kind, look in KINDS.items():
            side = _SHIFT * (1 if kind == "per_operation" else -1)
            _marks(axis, of_dataset.groupby("method")[kind].agg(["mean", "std"]), view.methods, side, look)
        printed = published[(published["dataset"] == dataset) & published.index.isin(view.methods)]
        sds = printed.reindex(columns=["published", "published_sd"]).set_axis(["mean", "std"], axis=1)
        _marks(axis, sds, view.methods, _PUBLISHED_SHIFT - _SHIFT, KINDS["ess_percent"], **OPEN)
        axis.set(xscale="log", xlim=decades)
        axis.xaxis.set_minor_formatter(NullFormatter())
        splits, draws = of_dataset["split"].nunique(), of_dataset["iterations"].max()
        canvas.remark(axis, f"{count(splits, 'split')}, {draws:,.0f} kept draws" if splits else "no chain")
    canvas.name_rows(axes[0], view)
    entries = [(look.label, look.options) for look in KINDS.values()]
    if not published.empty:
        entries.append(("published", KINDS["ess_percent"].options | OPEN))
    canvas.legend_of_marks(figure, entries, 3)
    return figure


def _marks(axis: Axes, cells: pd.DataFrame, methods: list[str], shift: float, look: canvas.Look, **style: Any) -> None:
    """Mean and standard deviation of each method; bars stay above zero."""
    cells = cells[cells["mean"] > 0]
    if cells.empty:
        return
    spread = np.nan_to_num(cells["std"])
    low = np.minimum(spread, 0.95 * cells["mean"])
    places = [methods.index(method) + shift for method in cells.index]
    style |= {"color": look.color, "marker": look.marker, "linestyle": "none"}
    axis.errorbar(cells["mean"], places, xerr=[low, spread], elinewidth=0.8, markersize=3.8, **style)
