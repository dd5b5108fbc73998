"""Models in rows, as rossi2021 draws them: mean test MNLL with its interval, and mean ranks."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpbench.errors import count
from gpbench.report.figures.canvas import Look, empty, looks_of, panels, remark, say
from gpbench.report.significance.comparisons import COMPARISONS, compare
from gpbench.report.view import View

_COLUMNS = 3
OPEN = {"fillstyle": "none", "alpha": 0.6}
BESIDE = 0.3  # rows between a model's own mark and the published one below it


def intervals(view: View) -> Figure:
    """Mean MNLL of every method with a 95 % interval over splits, one panel per data set, the last for mean ranks."""
    if view.done.empty:
        return empty("No fit of this study is finished.")
    card = published(view)
    columns = min(_COLUMNS, len(view.datasets) + 1)
    rows = -(-(len(view.datasets) + 1) // columns)
    figure, axes = panels(rows, columns, 0.55 + 0.18 * len(view.methods), sharey=True)
    last, *rest = axes.flat[len(view.datasets) :]
    for axis, dataset in zip(axes.flat, view.datasets, strict=False):
        _models(axis, view, dataset, card[card["dataset"] == dataset])
        axis.set_xlabel("test MNLL (nats)")
    _ranks(last, view, card)
    for axis in rest:
        axis.set_axis_off()
    names = [view.labels[method] for method in view.methods]
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].set_ylim(len(names) - 0.4, -0.6)
    _legend(figure, names[0], not card.empty)
    return figure


def published(view: View) -> pd.DataFrame:
    """Rows of the scorecard with an MNLL that was published under the same protocol for a method of this study."""
    card = view.card[(view.card["protocol"] == view.study["protocol"]) & (view.card["ours_metric"] == "mnll")]
    return card[card["ours_method"].isin(view.methods)]


def _looks(view: View) -> dict[str, Look]:
    """One look for all methods whose labels differ in their last number alone."""
    kinds = {method: view.labels[method].rstrip("0123456789 ") for method in view.methods}
    look = looks_of({kind: kind for kind in kinds.values()})
    return {method: look[kind] for method, kind in kinds.items()}


def half_width(sd: float, n: int, level: float = 0.95) -> float:
    """Half of the interval t_{n-1} sd / sqrt(n) of a mean over n splits, taken as independent; 0 where n < 2."""
    from scipy.stats import t

    return float(t.ppf(0.5 + level / 2, n - 1) * sd / np.sqrt(n)) if n > 1 and np.isfinite(sd) else 0.0


def _models(axis: Axes, view: View, dataset: str, card: pd.DataFrame) -> None:
    """One panel; dashed: the mean of the first method."""
    cells = view.cells("mnll").query("dataset == @dataset").set_index("method")
    low, high = limits(view.per_split("mnll", dataset), card["published"])
    for row, (method, look) in enumerate(_looks(view).items()):
        cell = cells.loc[method]
        _mark(axis, look, row, cell["mean"], half_width(cell["sd"], cell["n"]), high, ours=True)
        for one in card[card["ours_method"] == method].itertuples():
            _mark(axis, look, row, one.published, half_width(one.published_sd, one.splits), high, ours=False)
        if not cell["n"]:
            reason = textwrap.shorten(cell["statuses"], 34, placeholder=" …")
            axis.text(0.5, row, reason, ha="center", va="center", fontsize=6.5, color="#777777", transform=_row(axis))
    if cells["n"].iloc[0]:
        axis.axvline(cells["mean"].iloc[0], color="#777777", linestyle="--", linewidth=0.7, zorder=0)
    axis.set_xlim(low, high)
    axis.set_title(dataset, loc="left", fontweight="bold")
    if absent := int((~cells["complete"]).sum()):
        remark(axis, f"{absent} incomplete")


def limits(scores: pd.DataFrame, printed: pd.Series) -> tuple[float, float]:
    """Of the axis: scores `[splits, methods]` and published means, but for those far behind the better half."""
    values = np.concatenate([scores.to_numpy().ravel(), printed.to_numpy(float)])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, middle = values.min(), np.median(values)
    high = min(values.max(), middle + max(3 * (middle - low), 0.5))
    edge = 0.06 * (high - low) or 0.1
    return low - edge, high + edge


def _mark(axis: Axes, look: Look, row: int, mean: float, half: float, high: float, ours: bool) -> None:
    """A mean with its bar, or its value where it lies beyond the axis."""
    if mean > high:
        place = {"ha": "right", "va": "center", "fontsize": 6, "color": look.color, "transform": _row(axis)}
        axis.text(1 if ours else 0.8, row, f"{mean:.3g} ▸" if ours else f"({mean:.3g})", **place)
    else:
        shape = {"color": look.color, "marker": look.marker, "markersize": 3.5} | ({} if ours else OPEN)
        axis.errorbar(mean, row if ours else row + BESIDE, xerr=half, elinewidth=0.8, **shape)


def _row(axis: Axes):
    """x in fractions of the axis, y in rows."""
    return axis.get_yaxis_transform()


def _ranks(axis: Axes, view: View, card: pd.DataFrame) -> None:
    """Mean ranks with bootstrap intervals over the data sets, and those of the published means where all are there."""
    found = compare(view, COMPARISONS[0])
    axis.set_title("ranks", loc="left", fontweight="bold")
    if "reason" in found:
        say(axis, f"No ranks: {found['reason']}.")
        return
    theirs = card.pivot_table(index="dataset", columns="ours_method", values="published")
    theirs = theirs.reindex(index=found["datasets"], columns=found["methods"])
    ranks = {row["method"]: row for row in found["ranks"]}
    for row, (method, look) in enumerate(_looks(view).items()):
        if method in ranks:
            mean, lower, upper = (ranks[method][key] for key in ("mean_rank", "lower", "upper"))
            bar = [[max(mean - lower, 0)], [max(upper - mean, 0)]]
            axis.errorbar(mean, row, xerr=bar, color=look.color, marker=look.marker, markersize=3.5, elinewidth=0.8)
    if not theirs.isna().to_numpy().any():
        for method, mean in theirs.rank(axis=1).mean().items():
            row, look = view.methods.index(method) + BESIDE, _looks(view)[method]
            axis.plot(mean, row, look.marker, color=look.color, markersize=3.5, **OPEN)
    axis.set_xlabel(f"mean rank over {count(len(found['datasets']), 'data set')}")


def _legend(figure: Figure, first: str, has_published: bool) -> None:
    ink = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 4}
    handles = [Line2D([], [], label="ours", **ink)]
    if has_published:
        handles.append(Line2D([], [], label="published", **ink | OPEN))
    handles.append(Line2D([], [], color="#777777", linestyle="--", linewidth=0.7, label=f"our {first}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
