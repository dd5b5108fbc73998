"""Inferred rates of events over binned inputs of one or two dimensions."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.view import View


def rates(view: View) -> Figure:
    """One row of panels per data set of counts: the counts (with all rates if there is one input), then each method."""
    (seen,) = canvas.probed(view, "rates", "inputs")
    datasets = canvas.present(view.datasets_of("counts"), seen["dataset"])
    canvas.require(datasets, "No rates: no fit to counts is finished.")
    figure, axes = canvas.panels(len(datasets), 1 + len(view.methods), 1.7)
    for row, dataset, of_dataset in canvas.by_dataset(axes, datasets, seen):
        by_method = dict(iter(_rates(view, of_dataset, dataset).groupby("method")))
        draw = _plane if "x1" in next(iter(by_method.values())) else _line
        draw(view, dataset, by_method, row)
    return figure


def _rates(view: View, seen: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """method, row, y, rate, sd, x0 (x1) of the first split whose inputs are known: moments of the mixture of chains.

    Given the rate r of a bin its count has variance r, so Var(r) = Var(y) - E(y)."""
    seen = seen[seen["split"] == seen["split"].min()]
    points = view.points[(view.points["dataset"] == dataset) & (view.points["split"] == seen["split"].iloc[0])]
    points = points.assign(second=(points["sd"] ** 2 - points["mean"]).clip(lower=0) + points["mean"] ** 2)
    moments = points.groupby(["method", "row"])[["y", "mean", "second"]].mean().reset_index()
    moments["sd"] = np.sqrt((moments["second"] - moments["mean"] ** 2).clip(lower=0))
    of_fit = seen[seen["fit_id"] == seen["fit_id"].iloc[0]]
    places = of_fit.pivot(index="row", columns="column", values="x").add_prefix("x").reset_index()
    return moments.rename(columns={"mean": "rate"}).merge(places, on="row")


def _line(view: View, dataset: str, by_method: dict[str, pd.DataFrame], axes: np.ndarray) -> None:
    look = canvas.looks(view)
    first = next(iter(by_method.values()))
    top = max(first["y"].max(), *(float((part["rate"] + 2 * part["sd"]).max()) for part in by_method.values()))
    axes[0].set_ylabel("counts and rate, a bin")
    for axis, method in zip(axes, [None, *view.methods], strict=True):
        heading = view.labels[method] if method else f"{dataset}: held-out counts"
        axis.set_title(heading, loc="left", fontsize=8)
        axis.set_xlabel("input")
        axis.vlines(first["x0"], 0, first["y"], color="#bbbbbb", linewidth=0.8)
        axis.set_ylim(0, 1.05 * top)
        for name in [method] if method else by_method:
            if name not in by_method:
                canvas.write_reason(axis, "no finished fit")
                continue
            part, colour = by_method[name], look[name].color
            axis.plot(part["x0"], part["rate"], color=colour, linestyle=look[name].linestyle, linewidth=1)
            if method:
                low, high = part["rate"] - 2 * part["sd"], part["rate"] + 2 * part["sd"]
                axis.fill_between(part["x0"], low.clip(lower=0), high, color=colour, alpha=0.25, linewidth=0)


def _plane(view: View, dataset: str, by_method: dict[str, pd.DataFrame], axes: np.ndarray) -> None:
    top = max(float(part["rate"].max()) for part in by_method.values())
    counts = next(iter(by_method.values()))
    _image(axes[0], counts, "y", f"{dataset}: held-out counts", float(counts["y"].max()))
    for axis, method in zip(axes[1:], view.methods, strict=True):
        if method in by_method:
            part = by_method[method]
            _image(axis, part, "rate", f"{view.labels[method]}, at most {part['rate'].max():.2g}", top)
        else:
            axis.set_title(view.labels[method], loc="left", fontsize=8)
            canvas.write_reason(axis, "no finished fit")


def _image(axis: Axes, part: pd.DataFrame, column: str, heading: str, top: float) -> None:
    grid = part.pivot(index="x1", columns="x0", values=column)
    axis.pcolormesh(grid.columns, grid.index, grid, vmin=0, vmax=top, cmap="cividis", rasterized=True)
    axis.set(xlabel="first input", ylabel="second input", aspect="equal")
    axis.set_title(heading, loc="left", fontsize=8)
