"""Lower bounds of trained models beside their test scores."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import kendalltau

from gpbench.report.figures import canvas
from gpbench.report.view import View


def bounds(view: View) -> Figure:
    """Negative lower bound on large mini-batches, one box per method, beside the final test MNLL."""
    (rows,) = canvas.probed(view, "bounds", "bounds")
    figure, axes = canvas.panels(len(view.datasets), 2, 2.1, sharex=True)
    for (left, right), dataset, of_dataset in canvas.by_dataset(axes, view.datasets, rows):
        scores = view.per_split("mnll", dataset)
        for i, (method, look) in enumerate(canvas.looks(view).items()):
            _draw_bounds(left, i, of_dataset.loc[of_dataset["method"] == method, "bound"], look)
            _draw_scores(right, i, scores[method].dropna(), look)
        canvas.title(left, dataset)
        left.set_ylabel("negative lower bound\n(nats per training row)")
        right.set_ylabel("test MNLL")
        medians = of_dataset.groupby("method")["bound"].median()
        both = pd.DataFrame({"bound": medians, "mnll": scores.mean()}).dropna()
        if len(both) >= 3:
            tau = kendalltau(both["bound"], both["mnll"]).statistic
            canvas.remark(right, f"Kendall's τ with the bound: {tau:.2f}")
    for axis in axes[-1]:
        canvas.name_columns(axis, view, view.methods)
    return figure


def _draw_bounds(axis: Axes, i: int, values: pd.Series, look: canvas.Look) -> None:
    if values.empty:
        canvas.note(axis, i, 0.5, "no bound", transform=axis.get_xaxis_transform(), rotation=90)
        return
    line = {"color": look.color, "linewidth": 1.0}
    lines: canvas.Style = dict.fromkeys(("boxprops", "whiskerprops", "capprops", "medianprops"), line)
    outliers = {"marker": ".", "markersize": 3, "markeredgecolor": look.color}
    axis.boxplot(values, positions=[i], widths=0.5, flierprops=outliers, **lines)


def _draw_scores(axis: Axes, i: int, values: pd.Series, look: canvas.Look) -> None:
    if values.empty:
        canvas.note(axis, i, 0.5, "no finished fit", transform=axis.get_xaxis_transform(), rotation=90)
        return
    axis.plot(np.full(len(values), i), values, look.marker, color=look.color, markersize=4, mew=0)
    axis.plot([i - 0.3, i + 0.3], [values.mean()] * 2, color=look.color)
