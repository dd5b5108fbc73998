"""Scores of classifiers against the number of training rows (filippone2014, figures 6 and 7)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import canvas
from gpbench.report.tables.scores_by_n import by_size
from gpbench.report.view import View

SHOWN = ("accuracy", "auc", "capacity_accuracy", "capacity_auc")


def score_against_n(view: View) -> Figure:
    """Mean and standard error over the splits of one size, one line per method, one row per data set."""
    datasets = view.datasets_of("binary")
    canvas.require(datasets and len(view.done), "No fit to two classes is finished.")
    figure, axes = canvas.panels(len(datasets), len(SHOWN), 1.6, "training rows")
    for dataset, row in zip(datasets, axes, strict=True):
        fits = view.done[view.done["dataset"] == dataset]
        for axis, metric in zip(row, SHOWN, strict=True):
            _panel(axis, view, fits, metric)
        row[0].set_ylabel(dataset, fontweight="bold")
        canvas.note(row[-1], 0.99, 0.02, _splits(view, dataset), "right", "bottom", transform=row[-1].transAxes)
    for axis, metric in zip(axes[0], SHOWN, strict=True):
        axis.set_title(METRICS[metric].label.replace("area under ROC curve", "AUC"), loc="left")
    canvas.legend(figure, view, list(view.done["method"]))
    return figure


def _panel(axis: Axes, view: View, fits: pd.DataFrame, metric: str) -> None:
    scores, look = by_size(fits, metric), canvas.looks(view)
    if scores.empty:
        canvas.write_reason(axis, "undefined" if len(fits) else "no finished fit")
        return
    names = canvas.present(view.methods, scores["method"])
    for i, method in enumerate(names):
        means = scores[scores["method"] == method].groupby("n_train")["value"].agg(["mean", "sem"])
        x = means.index * 1.03 ** (i - (len(names) - 1) / 2)  # shifted so that bars do not overlap
        options = look[method].options | {"elinewidth": 0.7, "markersize": 3.5}
        axis.errorbar(x, means["mean"], yerr=np.nan_to_num(means["sem"]), **options)
    canvas.tick_settings(axis, scores["n_train"].astype(int), "log")


def _splits(view: View, dataset: str) -> str:
    fits = view.done[view.done["dataset"] == dataset]
    most = fits.groupby(["method", "n_train"])["split"].nunique().max() if len(fits) else 0
    incomplete = int((~view.cells("accuracy").query("dataset == @dataset")["complete"]).sum())
    return f"{most} splits per size" + f", {incomplete} incomplete" * bool(incomplete)
