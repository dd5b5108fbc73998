"""What scores cost in seconds; performance profiles and Pareto fronts: distances from the best method of a data set."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gpbench.errors import count
from gpbench.evaluation.compare import LOST, ranks
from gpbench.evaluation.practical import ROPES
from gpbench.evaluation.profiles import excess, pareto_front, profile, resampled
from gpbench.report.figures import canvas
from gpbench.report.figures.published import score_limits
from gpbench.report.significance.comparisons import COMPARISONS, Comparison, complete_losses, rankable
from gpbench.report.view import View

_PROFILED = ("regression_mnll", "regression_rmse", "classification_mnll", "classification_error")
_PRICED = ("regression_mnll", "classification_mnll")
_BEYOND = {
    "mnll": "test MNLL above that of the best (nats)",
    "rmse": "test RMSE above that of the best (fraction of it)",
    "error": "test error rate above that of the best",
}
_TICKS = (0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 100, 1000)  # between further ones is no room for their labels
_STRONG = 6  # curves that the eye can follow
FADED: canvas.Style = {"color": "#BBBBBB", "marker": "", "linewidth": 0.7}
_REGION = "#EEEEEE"
SHORTEST = 1e-6  # seconds; a logarithmic axis cannot show 0


def performance_profile(view: View) -> Figure:
    """Share of the data sets within a distance of the best, one panel per comparison."""
    compared = _compared(view, _PROFILED)
    canvas.require(compared, "No profile: no data set has two methods with all splits finished.")
    most = max(losses.shape[1] for _, losses, _ in compared)
    figure, axes = canvas.panels(len(compared), 1, max(0.6 + 0.125 * most, 1.6))
    for axis, (spec, losses, dropped) in zip(axes[:, 0], compared, strict=True):
        _head(axis, spec, losses, dropped)
        _profile(axis, view, spec.metric, losses)
    return figure


def _compared(view: View, names: tuple[str, ...]) -> list[tuple[Comparison, pd.DataFrame, list[dict]]]:
    """The named comparisons with at least two complete methods, their losses and what was dropped."""
    compared = [(spec, *complete_losses(view, spec)) for spec in COMPARISONS if spec.name in names]
    return [row for row in compared if rankable(row[1])]


def _head(axis: Axes, spec: Comparison, losses: pd.DataFrame, dropped: list[dict]) -> None:
    """A title, and numbers of incomplete data sets and methods, which the critical-difference diagram names."""
    canvas.title(axis, f"{spec.title} ({count(len(losses), 'data set')})")
    if kinds := Counter("data set" if row["kind"] == "dataset" else row["kind"] for row in dropped):
        canvas.remark(axis, f"left out: {', '.join(count(n, kind) for kind, n in kinds.items())}")


def _profile(axis: Axes, view: View, metric: str, losses: pd.DataFrame) -> None:
    distances, rope = excess(losses, metric), ROPES[metric].half_width
    end = max(1.1 * float(distances.to_numpy().max()), 10 * rope)
    steps, within = profile(distances), (distances <= (1 + LOST) * rope).mean()
    for place, method in enumerate(ranks(losses).mean().sort_values(kind="stable").index):
        curve, look, strong = steps[steps["method"] == method], canvas.looks(view)[method], place < _STRONG
        x = [0, *curve["distance"], end]
        if place == 0:  # of more methods they would cover each other
            low, high = resampled(curve["share"], len(losses))
            beyond: canvas.Style = {"step": "post", "color": look.color, "alpha": 0.15, "linewidth": 0, "zorder": 1}
            axis.fill_between(x, [0, *low, 1], [0, *high, 1], **beyond)
        style = look.options | ({"linewidth": 1.5, "markersize": 3.5} if strong else FADED)
        style |= {"markevery": slice(1, -1, -(-len(curve) // 15)), "zorder": 3 - 0.01 * place, "clip_on": False}
        label = f"{within[method]:4.0%}  {look.label}"  # grey ones too, in the same order
        axis.plot(x, [0, *curve["share"], 1], drawstyle="steps-post", label=label, **style)
    axis.axvspan(0, rope, color=_REGION, zorder=0)
    axis.set(xlim=(0, end), ylim=(0, 1), xlabel=_BEYOND[metric], ylabel="share of data sets")
    axis.set_xscale("symlog", linthresh=rope, linscale=0.5)
    # distances of RMSE are logarithms of ratios; ticks show the ratios
    _ticks(axis.xaxis, end, np.log1p if metric == "rmse" else float)
    options = {"title": "within the shaded region", "title_fontsize": 6.5, "fontsize": 6.5, "alignment": "left"}
    axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), **options)


def _ticks(axis: Axis, end: float, place: Callable[[float], float] = float) -> None:
    ticks = [tick for tick in _TICKS if place(tick) <= end]
    axis.set_ticks([place(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axis.set_minor_locator(NullLocator())


def pareto(view: View) -> Figure:
    """Training seconds against mean distance from the best MNLL, one panel per kind of task."""
    timed = set(view.done.loc[view.done["seconds_train"].notna(), "method"])  # published methods have no seconds
    every = ((spec, losses.loc[:, losses.columns.isin(timed)], out) for spec, losses, out in _compared(view, _PRICED))
    compared = [row for row in every if rankable(row[1])]
    canvas.require(compared, "No front: no data set has two methods with seconds and all splits finished.")
    figure, axes = canvas.panels(1, len(compared), 3.0)
    for axis, (spec, losses, dropped) in zip(axes[0], compared, strict=True):
        _head(axis, spec, losses, dropped)
        _prices(axis, view, prices(view, losses))
    canvas.legend(figure, view, [method for _, losses, _ in compared for method in losses.columns], lines=False)
    return figure


def prices(view: View, losses: pd.DataFrame) -> pd.DataFrame:
    """Per method over the data sets of a table of MNLL: training seconds of a fit (geometric mean of the
    medians over splits, as a single fit may have shared its machine) and mean excess."""
    cells = view.done.pivot_table("seconds_train", "dataset", "method", aggfunc="median")
    seconds = cells.loc[losses.index, losses.columns].clip(lower=SHORTEST)
    return pd.DataFrame({"seconds": np.exp(np.log(seconds).mean()), "excess": excess(losses, "mnll").mean()})


def _prices(axis: Axes, view: View, costs: pd.DataFrame) -> None:
    front = costs.loc[pareto_front(costs["seconds"], costs["excess"])]
    # below and to the left of the front is room for a label, but for those of the first and of one beside the last
    near = (front["seconds"] < 5 * front["seconds"].shift()) & (front["excess"] > 0.7 * front["excess"].shift())
    axis.plot(front["seconds"], front["excess"], drawstyle="steps-post", color=canvas.GREY, linewidth=0.9, zorder=1)
    for method, at in costs.iterrows():
        look, inside = canvas.looks(view)[method], method in front.index
        fill, size = (look.color, 6) if inside else ("white", 5)
        axis.plot(*at, look.marker, color=look.color, markerfacecolor=fill, markersize=size, clip_on=False)
        if inside:
            place, align = ((3, 6), "left") if near[method] or method == front.index[0] else ((-5, -9), "right")
            axis.annotate(canvas.broken(look.label), at, place, ha=align, textcoords="offset points", fontsize=6.5)
    rope = ROPES["mnll"].half_width
    end = max(1.5 * float(costs["excess"].max()), 10 * rope)
    axis.axhspan(0, rope, color=_REGION, zorder=0)
    canvas.log_x(axis)
    axis.set(xlabel="training seconds per fit", ylabel="mean test MNLL above the best (nats)", ylim=(0, end))
    axis.set_yscale("symlog", linthresh=rope, linscale=0.5)
    _ticks(axis.yaxis, end)


def _cost(view: View, stage: str, column: str) -> Figure:
    """Seconds of a stage against test MNLL, one panel per data set."""
    cells = view.cells("mnll").merge(view.cells(column), on=["method", "dataset"], suffixes=("", "_seconds"))
    cells = cells[(cells["n"] > 0) & cells["mean_seconds"].notna()]
    canvas.require(len(cells), "No finished fit has a test score and seconds.")
    figure, axes = canvas.titled(view.datasets, 1.9, x=f"{stage} seconds per fit", y="test MNLL (nats)")
    for axis, dataset, rows in canvas.by_dataset(axes, view.datasets, cells):
        if rows.empty:
            canvas.write_reason(axis, "no finished fit\nwith seconds")
            continue
        axis.set_ylim(score_limits(view.per_split("mnll", dataset)))
        for look, cell in canvas.by_method(view, rows):
            _mark(axis, cell.iloc[0], look)
        canvas.log_x(axis)
    canvas.legend(figure, view, cells["method"], lines=False)
    return figure


def _mark(axis: Axes, cell: pd.Series, look: canvas.Look) -> None:
    """Means, with standard deviations as bars that stay above 0 seconds; the number of one beyond the axis."""
    left = min(cell["sd_seconds"], 0.9 * cell["mean_seconds"])
    x, xerr = max(cell["mean_seconds"], SHORTEST), np.nan_to_num([[left], [cell["sd_seconds"]]])
    options = look.options | {"linestyle": "-", "markersize": 5, "elinewidth": 0.7}
    options |= {} if cell["complete"] else {"markerfacecolor": "white"}
    y, high = cell["mean"], axis.get_ylim()[1]
    if y > high:
        axis.annotate(f"{y:.2g}", (x, high), (0, -10), textcoords="offset points", ha="center", fontsize=6)
    yerr = np.nan_to_num(cell["sd"]) * (y <= high)
    axis.errorbar(x, min(y, high), xerr=xerr, yerr=yerr, clip_on=y <= high, **options)


cost = partial(_cost, stage="training", column="seconds_train")
prediction_cost = partial(_cost, stage="prediction", column="seconds_predict")
