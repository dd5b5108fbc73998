"""Test images whose lower part was predicted: the original, the inputs, and the predictions of each method; inducing
inputs that are images, before and after they were optimised (hensman2015mcmc, figure 5)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.datasets.picture import mosaic, paint
from gpbench.report.figures import canvas
from gpbench.report.view import View

IMAGES, MOVED = 8, 3


def pictures(view: View) -> Figure:
    """Some test images: original, observed part, then mean and sd of the other pixels by each method."""
    (seen,) = canvas.probed(view, "pictures", "inputs")
    datasets = canvas.present(view.datasets, seen["dataset"])
    figure, axes = canvas.panels(len(datasets), 2 + 2 * len(view.methods), 0.62 * IMAGES)
    for row, dataset, of_dataset in canvas.by_dataset(axes, datasets, seen):
        _draw(view, dataset, of_dataset, row)
    return figure


def _draw(view: View, dataset: str, seen: pd.DataFrame, axes: np.ndarray) -> None:
    fits = view.done[(view.done["dataset"] == dataset) & (view.done["split"] == seen["split"].min())]
    first = fits.sort_values("replica", kind="stable").groupby("method")["fit_id"].first()
    probed = first[first.isin(seen["fit_id"])].iloc[0]  # a closed form is not asked for its inputs
    inputs = seen[seen["fit_id"] == probed].pivot(index="row", columns="column", values="x")
    # evenly spaced, so that the choice does not depend on the predictions
    inputs = inputs.iloc[np.linspace(0, len(inputs) - 1, IMAGES).round().astype(int)]
    points = view.points[view.points["row"].isin(inputs.index)]

    def predicted(method: str, column: str) -> np.ndarray:
        """Values `[IMAGES, P]` of the predicted pixels."""
        of_fit = points[points["fit_id"] == first[method]]
        return of_fit.pivot(index="row", columns="output", values=column).loc[inputs.index].to_numpy()

    original = predicted(first.index[0], "y")
    most = max(inputs.to_numpy().max(), original.max())
    sds = {method: predicted(method, "sd") for method in first.index}
    widest = max(sd.max() for sd in sds.values())
    _column(axes[0], "original", inputs, original, most)
    _column(axes[1], "seen", inputs, np.full_like(original, np.nan), most)
    for method, (left, right) in zip(view.methods, axes[2:].reshape(-1, 2), strict=True):
        if method not in first:
            left.set_title(view.labels[method], loc="left")
            canvas.write_reason(left, "no\nfinished\nfit")
            right.set_axis_off()
            continue
        _column(left, f"{view.labels[method]}\nmean", inputs, predicted(method, "mean"), most)
        _column(right, f"sd, at most\n{sds[method].max():.3g}", np.full_like(inputs, np.nan), sds[method], widest)


def _column(axis: Axes, heading: str, above: np.ndarray, below: np.ndarray, most: float) -> None:
    """Images below each other, from their first pixels and their other ones; shades from 0 to `most`."""
    pixels = np.hstack([above, below])
    grid, side = mosaic(pixels, [np.array([i]) for i in range(len(pixels))], 1)
    paint(axis, grid, vmin=0.0, vmax=most)
    axis.set_title(heading, loc="left", fontsize=7)
    for line in range(len(pixels)):
        axis.axhline(line * (side + 1) + np.shape(above)[1] / side - 0.5, color="#D55E00", linewidth=0.6)


def inducing_images(view: View) -> Figure:
    """A row of panels a cell: the three inducing inputs that moved most as they started, ended, and the difference."""
    (rows,) = canvas.probed(view, "inducing inputs before and after training", "starts")
    cells = canvas.by_cell(view, rows)
    figure, axes = canvas.panels(len(cells), 3, 0.8 * MOVED)
    for (cell, points), line in zip(cells.items(), axes, strict=True):
        table = points[points["fit_id"] == points["fit_id"].iloc[0]].pivot(index="point", columns="column")
        before, after = table["before"].to_numpy(), table["x"].to_numpy()
        chosen = np.argsort(-np.square(after - before).sum(1), kind="stable")[:MOVED]
        low, high = np.quantile(before, [0, 1])
        change = (after - before)[chosen]
        _strip(line[0], f"{canvas.cell_label(view, *cell)}\nbefore", before[chosen], low, high, "gray_r")
        _strip(line[1], "after", after[chosen], low, high, "gray_r")
        most = np.abs(change).max()
        _strip(line[2], f"difference, at most {most:.3g}", change, -most, most, "RdBu_r")
    return figure


def _strip(axis: Axes, heading: str, pixels: np.ndarray, low: float, high: float, colours: str) -> None:
    grid, _ = mosaic(pixels, [np.arange(len(pixels))], len(pixels))
    paint(axis, grid, colours, vmin=low, vmax=high)
    axis.set_title(heading, loc="left")
