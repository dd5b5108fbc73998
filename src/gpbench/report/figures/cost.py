"""Seconds of training or prediction against the score."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.view import View

SHORTEST = 1e-6  # seconds; a logarithmic axis cannot show 0


def _cost(view: View, stage: str, column: str) -> Figure:
    """Seconds of a stage against test MNLL, one panel per data set."""
    cells = view.cells("mnll").merge(view.cells(column), on=["method", "dataset"], suffixes=("", "_seconds"))
    cells = cells[(cells["n"] > 0) & cells["mean_seconds"].notna()]
    canvas.require(len(cells), "No finished fit has a test score and seconds.")
    figure, axes = canvas.titled(view.datasets, 1.9, x=f"{stage} seconds per fit", y="test MNLL")
    for axis, dataset in zip(axes, view.datasets, strict=True):
        rows = cells[cells["dataset"] == dataset]
        if rows.empty:
            canvas.write_reason(axis, "no finished fit\nwith seconds")
            continue
        for look, cell in canvas.by_method(view, rows):
            _mark(axis, cell.iloc[0], look)
        canvas.log_x(axis)
    canvas.legend(figure, view, list(cells["method"].unique()), lines=False)
    return figure


def _mark(axis: Axes, cell: pd.Series, look: canvas.Look) -> None:
    """Means, with standard deviations as bars that stay above 0 seconds."""
    left = min(cell["sd_seconds"], 0.9 * cell["mean_seconds"])
    x, xerr = max(cell["mean_seconds"], SHORTEST), np.nan_to_num([[left], [cell["sd_seconds"]]])
    options = look.options | {"linestyle": "-", "markersize": 5, "elinewidth": 0.7}
    options |= {} if cell["complete"] else {"markerfacecolor": "white"}
    axis.errorbar(x, cell["mean"], xerr=xerr, yerr=np.nan_to_num(cell["sd"]), **options)


cost = partial(_cost, stage="training", column="seconds_train")
prediction_cost = partial(_cost, stage="prediction", column="seconds_predict")
