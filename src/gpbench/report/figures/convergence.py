"""Test scores against training time and steps."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import canvas
from gpbench.report.figures.profiles import SHORTEST
from gpbench.report.figures.published import QUOTED, published_scores, score_limits
from gpbench.report.view import View


def convergence(view: View) -> Figure:
    """Test MNLL against seconds and against steps, one row per data set."""
    traces, finals = _progress(view, "mnll")
    datasets = canvas.present(view.datasets, traces["dataset"])
    canvas.require(datasets, view.unrecorded("traces") or "No finished fit recorded test scores during training.")
    figure, axes = canvas.panels(len(datasets), 2, 1.3, sharey="row")
    for dataset, (left, right) in zip(datasets, axes, strict=True):
        rows, without_trace = (part[part["dataset"] == dataset] for part in (traces, finals))
        curves = [_curve(axis, view, rows, clock, "mnll") for axis, clock in ((left, "seconds"), (right, "step"))]
        _limit(left, curves[1], without_trace["mnll"], 8)
        _draw_finals(left, view, without_trace, "mnll")
        _draw_published(right, view, dataset)
        canvas.title(left, dataset)
        canvas.remark_incomplete(right, view.cells_of(dataset, "mnll"))
        left.set_ylabel("test MNLL (nats)")
        canvas.log_x(left)
    axes[-1, 0].set_xlabel("training seconds")
    axes[-1, 1].set_xlabel("steps")
    single = finals.loc[finals["dataset"].isin(datasets) & finals["seconds_train"].notna(), "method"]
    canvas.legend(figure, view, [*traces["method"], *single])
    canvas.headline(figure, view.unrecorded("traces"))
    return figure


def _draw_published(axis: Axes, view: View, dataset: str) -> None:
    """A dash at the right edge for every method with a number published under the same protocol."""
    for row in published_scores(view).query("dataset == @dataset").itertuples():
        look = canvas.looks(view)[row.ours_method]
        dash: canvas.Style = {"marker": "_", "markersize": 9, "markeredgewidth": 1.8}  # no marker of a method
        axis.plot(1.03, row.published, **dash, color=look.color, clip_on=False, transform=axis.get_yaxis_transform())
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, row.published), max(high, row.published))


def error_over_time(view: View) -> Figure:
    """Error and, below it, MNLL on test rows against seconds, a column per data set, of which a line holds four."""
    canvas.require(len(view.done))
    datasets, columns = view.datasets, min(len(view.datasets), 4)
    figure, axes = canvas.panels(2 * -(-len(datasets) // columns), columns, 1.8)
    errors, densities = axes[::2].ravel(), axes[1::2].ravel()
    for unused in (*errors[len(datasets) :], *densities[len(datasets) :]):
        unused.axis("off")
    for i, (dataset, upper, lower) in enumerate(zip(datasets, errors, densities, strict=False)):
        lower.sharex(upper)
        upper.tick_params(labelbottom=False)
        lower.set_xlabel("training seconds")
        error, on_left = (view.error_metric(datasets[place]) for place in (i, max(i - 1, 0)))
        # a label applies to the panels on its right as well, up to the next one
        _draw_over_time(upper, view, dataset, error, not i % columns or error != on_left)
        _draw_over_time(lower, view, dataset, "mnll", not i % columns)
        canvas.title(upper, dataset)
        canvas.remark_incomplete(upper, view.cells_of(dataset, error))
    canvas.legend(figure, view, view.done.loc[view.done["seconds_train"].notna(), "method"])
    canvas.headline(figure, view.unrecorded("traces"))
    return figure


def _draw_over_time(axis: Axes, view: View, dataset: str, metric: str, labelled: bool) -> None:
    traces, finals = (part[part["dataset"] == dataset] for part in _progress(view, metric))
    scores = _curve(axis, view, traces, "seconds", metric)
    if scores or np.isfinite(finals[metric].astype(float)).any():
        _limit(axis, scores, finals[metric])
        _draw_finals(axis, view, finals, metric)
        canvas.log_x(axis)
    else:
        canvas.write_reason(axis, f"no finished fit\nhas a test {METRICS[metric].label}")
    _draw_quoted(axis, view, dataset, metric)
    axis.set_ylabel(f"test {METRICS[metric].label}" if labelled else "")


def error_at_equal_seconds(view: View) -> Figure:
    """Error on test rows against seconds, one panel per data set; where a method has ended its last error goes on."""
    canvas.require(len(view.done))
    figure, axes = canvas.titled(view.datasets, 2.4, 3, "training seconds")
    drawn: list[str] = []
    for axis, dataset in zip(axes, view.datasets, strict=True):
        metric = view.error_metric(dataset)
        traces = _progress(view, metric)[0].query("dataset == @dataset")
        if not (scores := _curve(axis, view, traces, "seconds", metric)):
            canvas.write_reason(axis, "no finished fit recorded\ntest scores during training")
            continue
        right = traces["seconds"].max()
        for values, (look, rows) in zip(scores, canvas.by_method(view, traces), strict=True):
            last = values[:, -1].mean()
            axis.plot([rows["seconds"].max(), right], [last, last], ":", color=look.color, linewidth=0.8)
        _limit(axis, scores, pd.Series(dtype=float))
        canvas.remark_incomplete(axis, view.cells_of(dataset, metric))
        axis.set_ylabel(f"test {METRICS[metric].label}")
        canvas.log_x(axis)
        drawn += traces["method"].tolist()
    canvas.legend(figure, view, drawn)
    canvas.headline(figure, view.unrecorded("traces"))
    return figure


def _draw_quoted(axis: Axes, view: View, dataset: str, metric: str) -> None:
    """The number of other work that the paper compares its own with, if it is a single one."""
    card = view.card
    rows = card[(card["dataset"] == dataset) & (card["ours_metric"] == metric) & (card["reason"] == QUOTED)]
    if len(rows) == 1:
        value, name = rows.iloc[0][["published", "method_printed"]]
        low, high = axis.get_ylim()
        axis.axhline(value, color=canvas.GREY, linestyle=":", linewidth=0.9)
        canvas.note(axis, 0.02, value, name, "left", "bottom", transform=axis.get_yaxis_transform())
        axis.set_ylim(min(low, value - 0.05 * (high - low)), max(high, value + 0.1 * (high - low)))


def _progress(view: View, metric: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Trace rows of finished fits with a score, and the finished fits without such rows."""
    traces = view.traces.merge(view.done[["fit_id", "method", "dataset", "split"]], on="fit_id")
    traces = traces[np.isfinite(traces[metric].astype(float)) & (traces["seconds"] > 0)]
    return traces, view.done[~view.done["fit_id"].isin(traces["fit_id"])]


def _curve(axis: Axes, view: View, rows: pd.DataFrame, clock: str, metric: str) -> list[np.ndarray]:
    """Draw mean and range of every method over its splits; returns the scores `[fits, points]` of each."""
    drawn = []
    for look, of_method in canvas.by_method(view, rows):
        fits = [fit.sort_values("step") for _, fit in of_method.groupby("fit_id")]
        grid, values = _aligned(fits, clock, metric)
        mean = values.mean(axis=0)
        if len(fits) > 1:
            axis.fill_between(grid, values.min(axis=0), values.max(axis=0), color=look.color, alpha=0.15, linewidth=0)
        axis.plot(grid, mean, **look.options, markevery=sorted({len(grid) // 3, len(grid) - 1}), markersize=3)
        drawn.append(values)
    return drawn


def _aligned(fits: list[pd.DataFrame], clock: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """A common clock `[points]`, from where all fits have a value to where the last one ends, and scores `[fits,
    points]`; a fit that has ended keeps its last score."""
    first, last = (max(fit[clock].iloc[end] for fit in fits) for end in (0, -1))
    spread = np.geomspace if clock == "seconds" else np.linspace
    grid = spread(first, last, max(map(len, fits)))
    return grid, np.stack([np.interp(grid, fit[clock], fit[metric]) for fit in fits])


def _limit(axis: Axes, scores: list[np.ndarray], finals: pd.Series, part: int = 2) -> None:
    """Limits that show the last scores of all fits, but of curves far behind the better half, and means after the
    first of so many parts: half of a curve on a logarithmic axis of seconds is its first moments."""
    means = [values[:, values.shape[1] // part :].mean(0) for values in scores]
    marks = finals[np.isfinite(finals)].to_numpy(float)
    late = np.concatenate([*means, *(values[:, -1] for values in scores)]) if scores else marks
    (low, high), edge = score_limits(pd.DataFrame(late)), 0.06 * float(np.ptp(late))
    axis.set_ylim(min([low, *(marks - edge)]), max([high, *(marks + edge)]))


def _draw_finals(axis: Axes, view: View, fits: pd.DataFrame, metric: str) -> None:
    finite = np.isfinite(fits[[metric, "seconds_train"]].astype(float)).all(axis=1)  # others tell no seconds
    for look, rows in canvas.by_method(view, fits[finite]):
        at, mean = max(rows["seconds_train"].mean(), SHORTEST), rows[metric].mean()
        spread = [[mean - rows[metric].min()], [rows[metric].max() - mean]]
        axis.errorbar([at], [mean], yerr=spread, color=look.color, marker=look.marker, elinewidth=0.8)
