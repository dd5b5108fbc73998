"""Progress against time and steps, and the price of a score."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures.canvas import Look, empty, label_edges, legend, looks, panels, present, say, wrapped
from gpbench.report.view import View

QUOTED = "quoted from other work"  # the reason by which published/*.csv marks such a row
CLOCKS = {"training": "seconds_train", "prediction": "seconds_predict"}
_SHORTEST = 1e-6  # seconds; a logarithmic axis has no place for 0


def convergence(view: View) -> Figure:
    """Test MNLL against seconds and against steps, one row per data set."""
    traces, finals = _progress(view, "mnll")
    datasets = present(view.datasets, traces["dataset"])
    if not datasets:
        return empty("No finished fit recorded test scores during training.")
    figure, axes = panels(len(datasets), 2, 1.3, sharey="row")
    for dataset, (left, right) in zip(datasets, axes, strict=True):
        rows, rest = traces[traces["dataset"] == dataset], finals[finals["dataset"] == dataset]
        means = [_curve(axis, view, rows, clock, "mnll") for axis, clock in ((left, "seconds"), (right, "step"))]
        _limit(left, means[1], rest["mnll"])
        _without_steps(left, view, rest, "mnll")
        _published(right, view, dataset)
        left.set_title(dataset, loc="left", fontweight="bold")
        left.set_ylabel("test MNLL")
        left.set_xscale("log")
    axes[-1, 0].set_xlabel("training seconds")
    axes[-1, 1].set_xlabel("steps")
    legend(figure, view, [*traces["method"].unique(), *finals.loc[finals["dataset"].isin(datasets), "method"].unique()])
    return figure


def _published(axis: Axes, view: View, dataset: str) -> None:
    """A triangle at the right edge for every method whose number was published under the same protocol."""
    card = view.card[(view.card["dataset"] == dataset) & (view.card["ours_metric"] == "mnll")]
    for row in card[card["protocol"] == view.study["protocol"]].itertuples():
        if row.ours_method in view.methods:
            look = looks(view)[row.ours_method]
            axis.plot(1.02, row.published, "<", color=look.color, clip_on=False, transform=axis.get_yaxis_transform())
            low, high = axis.get_ylim()
            axis.set_ylim(min(low, row.published), max(high, row.published))


def error_over_time(view: View) -> Figure:
    """Error and MNLL on test rows against seconds, one column per data set."""
    if view.done.empty:
        return empty("No fit of this study is finished.")
    figure, axes = panels(2, len(view.datasets), 1.8, sharex="col")
    for row, error in zip(axes, (True, False), strict=True):
        label = ""
        for axis, dataset in zip(row, view.datasets, strict=True):
            metric = view.error_metric(dataset) if error else "mnll"
            _timed(axis, view, *(part[part["dataset"] == dataset] for part in _progress(view, metric)), metric)
            _quoted(axis, view, dataset, metric)
            # a name stands for the panels on its right as well, until there is another
            label, left = f"test {METRICS[metric].label}", label
            axis.set_ylabel(label if label != left else "")
    for dataset, (top, bottom) in zip(view.datasets, axes.T, strict=True):
        top.set_title(dataset, loc="left", fontweight="bold")
        bottom.set_xlabel("training seconds")
    legend(figure, view, list(view.done["method"]))
    return figure


def _timed(axis: Axes, view: View, rows: pd.DataFrame, rest: pd.DataFrame, metric: str) -> None:
    """One panel of scores against seconds."""
    means = _curve(axis, view, rows, "seconds", metric)
    if not means and not np.isfinite(rest[metric].astype(float)).any():
        say(axis, f"no finished fit\nhas a test {METRICS[metric].label}")
        return
    # on a logarithmic clock half of the curve is the first moments
    _limit(axis, [mean[len(mean) // 2 :] for mean in means], rest[metric])
    _without_steps(axis, view, rest, metric)
    axis.set_xscale("log")


def _quoted(axis: Axes, view: View, dataset: str, metric: str) -> None:
    """The number of other work that the paper holds its own against, where it is one."""
    card = view.card
    rows = card[(card["dataset"] == dataset) & (card["ours_metric"] == metric) & (card["reason"] == QUOTED)]
    if len(rows) == 1:
        value, name = rows.iloc[0][["published", "method_printed"]]
        low, high = axis.get_ylim()
        axis.axhline(value, color="#777777", linestyle=":", linewidth=0.9)
        axis.annotate(
            name, (0.02, value), xycoords=axis.get_yaxis_transform(), va="bottom", color="#777777", fontsize=6.5
        )
        axis.set_ylim(min(low, value - 0.05 * (high - low)), max(high, value + 0.1 * (high - low)))


def _progress(view: View, metric: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Trace rows of finished fits with a score, and the finished fits without any."""
    traces = view.traces.merge(view.done[["fit_id", "method", "dataset", "split"]], on="fit_id")
    traces = traces[np.isfinite(traces[metric].astype(float)) & (traces["seconds"] > 0)]
    return traces, view.done[~view.done["fit_id"].isin(traces["fit_id"])]


def _curve(axis: Axes, view: View, rows: pd.DataFrame, clock: str, metric: str) -> list[np.ndarray]:
    means = []
    for method, look in looks(view).items():
        fits = [fit.sort_values("step") for _, fit in rows[rows["method"] == method].groupby("fit_id", sort=True)]
        if not fits:
            continue
        grid, values = _aligned(fits, clock, metric)
        mean = values.mean(axis=0)
        if len(fits) > 1:
            axis.fill_between(grid, values.min(axis=0), values.max(axis=0), color=look.color, alpha=0.15, linewidth=0)
        places = sorted({len(grid) // 3, len(grid) - 1})
        axis.plot(
            grid, mean, color=look.color, linestyle=look.linestyle, marker=look.marker, markevery=places, markersize=3
        )
        means.append(mean)
    return means


def _aligned(fits: list[pd.DataFrame], clock: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores of each split `[fits, points]` on a common clock, between the first and last value that all have."""
    first = max(fit[clock].iloc[0] for fit in fits)
    last = max(min(fit[clock].iloc[-1] for fit in fits), first)
    spread = np.geomspace if clock == "seconds" else np.linspace
    grid = spread(first, last, max(map(len, fits)))
    return grid, np.stack([np.interp(grid, fit[clock], fit[metric]) for fit in fits])


def _limit(axis: Axes, means: list[np.ndarray], finals: pd.Series) -> None:
    """Show final values and curves (against steps) from their second eighth on; earlier values may leave the axis."""
    late = np.concatenate([mean[len(mean) // 8 :] for mean in means] + [finals[np.isfinite(finals)].to_numpy(float)])
    low, high = late.min(), late.max()
    margin = 0.08 * (high - low) or 0.1
    axis.set_ylim(low - margin, high + margin)


def _without_steps(axis: Axes, view: View, fits: pd.DataFrame, metric: str) -> None:
    for method, look in looks(view).items():
        rows = fits[(fits["method"] == method) & np.isfinite(fits[metric].astype(float))]
        if len(rows):
            at = max(rows["seconds_train"].mean(), _SHORTEST)
            mean = rows[metric].mean()
            spread = [[mean - rows[metric].min()], [rows[metric].max() - mean]]
            axis.errorbar([at], [mean], yerr=spread, color=look.color, marker=look.marker, elinewidth=0.8)


def cost(view: View, of: str = "training") -> Figure:
    """Seconds of training (or `prediction`) against test MNLL, one panel per data set."""
    scores, seconds = view.cells("mnll"), view.cells(CLOCKS[of])
    cells = scores.merge(seconds, on=["method", "dataset"], suffixes=("", "_seconds"))
    drawn = cells[cells["n"] > 0]
    if drawn.empty:
        return empty("No finished fit has a test score.")
    figure, axes = wrapped(len(view.datasets), 1.9)
    for axis, dataset in zip(axes, view.datasets, strict=True):
        rows = drawn[drawn["dataset"] == dataset].set_index("method")
        if rows.empty:
            say(axis, f"{dataset}\nno finished fit")
            continue
        for method, look in looks(view).items():
            if method in rows.index:
                _priced(axis, rows.loc[method], look)
        axis.set_title(dataset, loc="left", fontweight="bold")
        axis.set_xscale("log")
    label_edges(axes, f"{of} seconds per fit", "test MNLL")
    legend(figure, view, list(drawn["method"].unique()), lines=False)
    return figure


def _priced(axis: Axes, cell: pd.Series, look: Look) -> None:
    axis.errorbar(
        max(cell["mean_seconds"], _SHORTEST),
        cell["mean"],
        xerr=np.nan_to_num([[min(cell["sd_seconds"], 0.9 * cell["mean_seconds"])], [cell["sd_seconds"]]]),
        yerr=np.nan_to_num(cell["sd"]),
        color=look.color,
        marker=look.marker,
        markersize=5,
        elinewidth=0.7,
    )
