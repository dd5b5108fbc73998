"""Progress against time and steps, and the price of a score."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures.canvas import Look, empty, label_edges, legend, looks, panels, say, wrapped
from gpbench.report.view import View

_SHORTEST = 1e-6  # seconds; a logarithmic axis has no place for 0


def convergence(view: View) -> Figure:
    """Test MNLL against seconds and against steps, one row per data set."""
    traces = view.traces.merge(view.done[["fit_id", "method", "dataset", "split"]], on="fit_id")
    traces = traces[np.isfinite(traces["mnll"].astype(float)) & (traces["seconds"] > 0)]
    finals = view.done[~view.done["fit_id"].isin(traces["fit_id"])]
    datasets = [name for name in view.datasets if name in set(traces["dataset"])]
    if not datasets:
        return empty("No finished fit recorded test scores during training.")
    figure, axes = panels(len(datasets), 2, 1.3, sharey="row")
    for dataset, (left, right) in zip(datasets, axes, strict=True):
        rows, rest = traces[traces["dataset"] == dataset], finals[finals["dataset"] == dataset]
        means = [_curve(axis, view, rows, clock) for axis, clock in ((left, "seconds"), (right, "step"))]
        _limit(left, means[1], rest["mnll"])
        _without_steps(left, view, rest)
        left.set_title(dataset, loc="left", fontweight="bold")
        left.set_ylabel("test MNLL")
        left.set_xscale("log")
    axes[-1, 0].set_xlabel("training seconds")
    axes[-1, 1].set_xlabel("steps")
    legend(figure, view, [*traces["method"].unique(), *finals.loc[finals["dataset"].isin(datasets), "method"].unique()])
    return figure


def _curve(axis: Axes, view: View, rows: pd.DataFrame, clock: str) -> list[np.ndarray]:
    means = []
    for method, look in looks(view).items():
        fits = [fit.sort_values("step") for _, fit in rows[rows["method"] == method].groupby("fit_id", sort=True)]
        if not fits:
            continue
        grid, values = _aligned(fits, clock)
        mean = values.mean(axis=0)
        axis.fill_between(grid, values.min(axis=0), values.max(axis=0), color=look.color, alpha=0.15, linewidth=0)
        places = sorted({len(grid) // 3, len(grid) - 1})
        axis.plot(
            grid, mean, color=look.color, linestyle=look.linestyle, marker=look.marker, markevery=places, markersize=3
        )
        means.append(mean)
    return means


def _aligned(fits: list[pd.DataFrame], clock: str) -> tuple[np.ndarray, np.ndarray]:
    """MNLL of each split `[fits, points]` on a common clock, between the first and last value that all splits have."""
    first = max(fit[clock].iloc[0] for fit in fits)
    last = max(min(fit[clock].iloc[-1] for fit in fits), first)
    spread = np.geomspace if clock == "seconds" else np.linspace
    grid = spread(first, last, max(map(len, fits)))
    return grid, np.stack([np.interp(grid, fit[clock], fit["mnll"]) for fit in fits])


def _limit(axis: Axes, means: list[np.ndarray], finals: pd.Series) -> None:
    """Show final values and curves (against steps) from their second eighth on; earlier values may leave the axis."""
    late = np.concatenate([mean[len(mean) // 8 :] for mean in means] + [finals[np.isfinite(finals)].to_numpy(float)])
    low, high = late.min(), late.max()
    margin = 0.08 * (high - low) or 0.1
    axis.set_ylim(low - margin, high + margin)


def _without_steps(axis: Axes, view: View, fits: pd.DataFrame) -> None:
    for method, look in looks(view).items():
        rows = fits[(fits["method"] == method) & np.isfinite(fits["mnll"].astype(float))]
        if len(rows):
            at = max(rows["seconds_train"].mean(), _SHORTEST)
            mean = rows["mnll"].mean()
            spread = [[mean - rows["mnll"].min()], [rows["mnll"].max() - mean]]
            axis.errorbar([at], [mean], yerr=spread, color=look.color, marker=look.marker, elinewidth=0.8)


def cost(view: View) -> Figure:
    """Training seconds against test MNLL, one panel per data set."""
    scores, seconds = view.cells("mnll"), view.cells("seconds_train")
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
    label_edges(axes, "training seconds per fit", "test MNLL")
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
