"""Weights of sources of data: posteriors by class, and those of SimpleMKL by fold (filippone2012, figures 3 and 4)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gpbench.errors import count
from gpbench.report.figures import canvas
from gpbench.report.view import View

QUANTILES = {"whislo": 0.05, "q1": 0.25, "med": 0.5, "q3": 0.75, "whishi": 0.95}
WIDTH = 0.8


def weights(view: View) -> Figure:
    """One box per class and source, classes side by side; one row per data set and method."""
    kept = view.probe("weights")
    canvas.require(len(kept), "No weights of sources: no fit that learns them is finished.")
    cells = canvas.by_cell(view, kept)
    figure, axes = canvas.panels(len(cells), 1, 1.9, y="weight")
    for ((dataset, method), states), axis in zip(cells.items(), axes[:, 0], strict=True):
        _panel(axis, states)
        canvas.title(axis, f"{dataset}, {view.labels[method]}")
        canvas.remark(axis, f"split {states['split'].iloc[0]}, {count(states['replica'].nunique(), 'chain')}")
    return figure


def kernel_weights(view: View) -> Figure:
    """One bar per fold and source, folds side by side; one panel per data set and method."""
    (learned,) = canvas.probed(view, "weights of kernels", "kernel_weights")
    cells = dict(iter(learned.groupby(["dataset", "method"], sort=False)))
    titles = [f"{dataset}, {view.labels[method]}" for dataset, method in cells]
    figure, axes = canvas.titled(titles, 1.9, 2, x="fold", y="weight")
    for axis, rows in zip(axes, cells.values(), strict=True):
        by_fold = rows.pivot_table(index="split", columns="source", values="weight", sort=False).sort_index()
        width = WIDTH / by_fold.shape[1]
        for i, look in enumerate(canvas.looks_of({source: source for source in by_fold}).values()):
            places = np.arange(len(by_fold)) + (i - (by_fold.shape[1] - 1) / 2) * width
            axis.bar(places, by_fold.iloc[:, i], 0.9 * width, label=look.label, color=look.color)
        axis.set_xticks(range(len(by_fold)), [str(split + 1) for split in by_fold.index])
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _panel(axis: Axes, kept: pd.DataFrame) -> None:
    """Quartiles, whiskers from 5 % to 95 %, and the mean."""
    classes, sources = list(kept["class"].unique()), list(kept["source"].unique())
    width = WIDTH / len(sources)
    look_of = canvas.looks_of({source: source for source in sources})
    for i, (source, look) in enumerate(look_of.items()):
        drawn = [kept.loc[(kept["class"] == name) & (kept["source"] == source), "weight"] for name in classes]
        places = np.arange(len(classes)) + (i - (len(sources) - 1) / 2) * width
        statistics = [{name: y.quantile(q) for name, q in QUANTILES.items()} | {"mean": y.mean()} for y in drawn]
        lines: canvas.Style = dict.fromkeys(("whiskerprops", "capprops"), {"color": look.color})
        mean = {"marker": look.marker, "markerfacecolor": "white", "markeredgecolor": look.color, "markersize": 3.5}
        lines |= {"patch_artist": True, "boxprops": _box_options(look), "medianprops": {"color": "black"}}
        axis.bxp(statistics, places, widths=0.75 * width, showmeans=True, meanprops=mean, showfliers=False, **lines)
    axis.set_xticks(range(len(classes)), classes)
    axis.set(xlim=(-0.6, len(classes) - 0.4), ylim=(0, None))
    handles = [Patch(label=look.label, **_box_options(look)) for look in look_of.values()]
    axis.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _box_options(look: canvas.Look) -> canvas.Style:
    return {"facecolor": look.color, "alpha": 0.55, "edgecolor": look.color}
