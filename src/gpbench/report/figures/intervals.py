"""Mean test MNLL with confidence intervals, and mean ranks, methods in rows as in rossi2021."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from gpbench.errors import count
from gpbench.report.figures import canvas
from gpbench.report.figures.published import OPEN, published_scores, score_limits, source_legend
from gpbench.report.significance.comparisons import OVERALL, compare
from gpbench.report.view import View

BELOW = 0.3  # rows from our mark down to the published one


def intervals(view: View) -> Figure:
    """Mean MNLL of every method with a 95 % interval over splits, one panel per data set, the last for mean ranks."""
    canvas.require(len(view.done))
    card = published_scores(view)
    height = 0.55 + 0.18 * len(view.methods) * canvas.row(view)
    figure, (*axes, ranks) = canvas.titled([*view.datasets, "ranks"], height, 3, sharey=True)
    for axis, dataset, printed in canvas.by_dataset(axes, view.datasets, card):
        _draw_means(axis, view, dataset, printed)
        axis.set_xlabel("test MNLL (nats)")
    _draw_ranks(ranks, view, card)
    canvas.name_rows(axes[0], view)
    source_legend(figure, view, not card.empty)
    return figure


def _looks(view: View) -> dict[str, canvas.Look]:
    """One look for all methods whose labels differ only in their last number."""
    stems = {method: view.labels[method].rstrip("0123456789 ") for method in view.methods}
    look = canvas.looks_of({stem: stem for stem in stems.values()})
    return {method: look[stem] for method, stem in stems.items()}


def half_width(sd: float, n: int) -> float:
    """Half of the 95 % interval t_{n-1} sd / sqrt(n) of a mean over n splits, taken as independent; 0 if n < 2."""
    return float(stdtrit(n - 1, 0.975) * sd / np.sqrt(n)) if n > 1 and np.isfinite(sd) else 0.0


def _draw_means(axis: Axes, view: View, dataset: str, card: pd.DataFrame) -> None:
    """One data set; dashed: the mean of the first method."""
    cells = view.cells_of(dataset, "mnll")
    low, high = score_limits(view.per_split("mnll", dataset), card["published"])
    for row, (method, look) in enumerate(_looks(view).items()):
        cell = cells.loc[method]
        _mark(axis, look, row, cell["mean"], half_width(cell["sd"], cell["n"]), high, ours=True)
        for printed in card[card["ours_method"] == method].itertuples():
            half = half_width(printed.published_sd, printed.splits)
            _mark(axis, look, row, printed.published, half, high, ours=False)
        if not cell["n"]:
            canvas.note(axis, 0.5, row, canvas.short_reason(cell), transform=axis.get_yaxis_transform())
    axis.axvline(cells["mean"].iloc[0], color=canvas.GREY, linestyle="--", linewidth=0.7, zorder=0)
    axis.set_xlim(low, high)
    canvas.remark_incomplete(axis, cells)


def _mark(axis: Axes, look: canvas.Look, row: int, mean: float, half: float, high: float, ours: bool) -> None:
    """A mean with its bar, or its value if it lies beyond the axis."""
    if mean > high:
        x, text = (1, f"{mean:.3g} ▸") if ours else (0.8, f"({mean:.3g})")
        across = axis.get_yaxis_transform()
        axis.text(x, row, text, ha="right", va="center", fontsize=6, color=look.color, transform=across)
    else:
        shape: canvas.Style = {"color": look.color, "marker": look.marker, "markersize": 3.5} | ({} if ours else OPEN)
        axis.errorbar(mean, row if ours else row + BELOW, xerr=half, elinewidth=0.8, **shape)


def _draw_ranks(axis: Axes, view: View, card: pd.DataFrame) -> None:
    """Mean ranks with bootstrap intervals over the data sets, and those of the published means if all are known."""
    comparison = compare(view, OVERALL)
    if "reason" in comparison:
        canvas.write_reason(axis, f"No ranks: {comparison['reason']}.")
        return
    published = card.pivot_table(index="dataset", columns="ours_method", values="published")
    published = published.reindex(index=comparison["datasets"], columns=comparison["methods"])
    looks = _looks(view)
    for rank in comparison["ranks"]:
        mean, look, row = rank["mean_rank"], looks[rank["method"]], view.methods.index(rank["method"])
        bar = [[max(mean - rank["lower"], 0)], [max(rank["upper"] - mean, 0)]]
        axis.errorbar(mean, row, xerr=bar, color=look.color, marker=look.marker, markersize=3.5, elinewidth=0.8)
    if not published.isna().to_numpy().any():
        for method, mean in published.rank(axis=1).mean().items():
            look = looks[method]
            axis.plot(mean, view.methods.index(method) + BELOW, look.marker, color=look.color, markersize=3.5, **OPEN)
    axis.set_xlabel(f"mean rank over {count(len(comparison['datasets']), 'data set')}")
