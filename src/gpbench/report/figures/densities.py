"""Densities of one sampled number under several samplers (filippone2014, figure 1)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from gpbench.errors import count
from gpbench.report.figures import canvas
from gpbench.report.view import View

POINTS = 400  # of a curve
TAIL = 0.001  # share of the draws left out at each end of the axis


def densities(view: View) -> Figure:
    """Kernel estimates from the draws of all chains of the first split, one panel per data set."""
    drawn = view.probe("draws")
    if drawn.empty:
        return canvas.empty("No chains: no fit by a sampler is finished.")
    drawn = drawn[drawn["split"] == drawn["split"].min()]
    figure, axes = canvas.titled(view.datasets, 2.4, 2, y="density")
    for axis, dataset in zip(axes, view.datasets, strict=True):
        _panel(axis, view, drawn[drawn["dataset"] == dataset])
    canvas.legend(figure, view, list(drawn["method"]))
    return figure


def _panel(axis: Axes, view: View, drawn: pd.DataFrame) -> None:
    """Curves of the first number that every sampler has."""
    methods = drawn["method"].nunique()
    shared = drawn.groupby("quantity", sort=False)["method"].nunique()
    if not (shared == methods).any():
        canvas.write_reason(axis, "no number that all samplers draw")
        return
    quantity = shared.index[shared == methods][0]
    drawn = drawn[drawn["quantity"] == quantity]
    low, high = drawn["value"].quantile([TAIL, 1 - TAIL])
    x = np.linspace(low, high, POINTS)
    for look, rows in canvas.by_method(view, drawn):
        if rows["value"].nunique() > 2:
            axis.plot(x, gaussian_kde(rows["value"])(x), color=look.color, linestyle=look.linestyle)
    canvas.remark(axis, count(drawn["replica"].nunique(), "chain"))
    axis.set(xlabel=quantity, ylim=(0, None))
