"""Scores of classifiers against the number of training rows (filippone2014, figures 6 and 7)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures.canvas import empty, legend, looks, panels, present, say
from gpbench.report.tables.scores_by_n import by_size
from gpbench.report.view import View

SHOWN = ("accuracy", "auc", "capacity_accuracy", "capacity_auc")


def score_against_n(view: View) -> Figure:
    """Mean and standard error over the splits of one size, a line a method, a row a data set."""
    datasets = view.datasets_of("binary")
    if not datasets or view.done.empty:
        return empty("No fit to two classes is finished.")
    figure, axes = panels(len(datasets), len(SHOWN), 1.6)
    for dataset, row in zip(datasets, axes, strict=True):
        fits = view.done[view.done["dataset"] == dataset]
        for axis, metric in zip(row, SHOWN, strict=True):
            _panel(axis, view, fits, metric)
        row[0].set_ylabel(dataset, fontweight="bold")
        where = {"ha": "right", "va": "bottom", "transform": row[-1].transAxes, "fontsize": 6.5, "color": "#777777"}
        row[-1].text(0.99, 0.02, _said(view, dataset), **where)
    for axis, metric in zip(axes[0], SHOWN, strict=True):
        axis.set_title(METRICS[metric].label.replace("area under ROC curve", "AUC"), loc="left")
    for axis in axes[-1]:
        axis.set_xlabel("training rows")
    legend(figure, view, list(view.done["method"]))
    return figure


def _panel(axis: Axes, view: View, fits: pd.DataFrame, metric: str) -> None:
    scores, look = by_size(fits, metric), looks(view)
    if scores.empty:
        say(axis, "undefined")
        return
    names = present(view.methods, scores["method"])
    for i, method in enumerate(names):
        found = scores[scores["method"] == method].groupby("n_train")["value"].agg(["mean", "sem"])
        x = found.index * 1.03 ** (i - (len(names) - 1) / 2)  # a little apart, so that each bar shows
        options = look[method].drawn | {"elinewidth": 0.7, "markersize": 3.5}
        axis.errorbar(x, found["mean"], yerr=np.nan_to_num(found["sem"]), **options)
    sizes = sorted(scores["n_train"].unique())
    axis.set_xscale("log")
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.xaxis.set_minor_locator(NullLocator())


def _said(view: View, dataset: str) -> str:
    """Splits of a size, and whether some cells are not complete."""
    fits = view.done[view.done["dataset"] == dataset]
    most = fits.groupby(["method", "n_train"])["split"].nunique().max() if len(fits) else 0
    absent = int((~view.cells("accuracy").query("dataset == @dataset")["complete"]).sum())
    return f"{most} splits a size" + f", {absent} incomplete" * bool(absent)
