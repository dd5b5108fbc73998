"""Posteriors of the weights of sources of data in the covariance of each class (filippone2012, figure 3)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gpbench.report.figures.canvas import Look, empty, looks_of, panels, remark
from gpbench.report.tables.sampler_efficiency import CELL
from gpbench.report.view import View

QUANTILES = {"whislo": 0.05, "q1": 0.25, "med": 0.5, "q3": 0.75, "whishi": 0.95}
WIDTH = 0.8


def weights(view: View) -> Figure:
    """A box for every class and source, classes side by side; a row for each data set and method."""
    kept = view.probe("weights")
    if kept.empty:
        return empty("No weights of sources: no fit that learns them is finished.")
    kept = kept[kept["split"] == kept.groupby(CELL)["split"].transform("min")]
    cells = dict(list(kept.groupby(CELL)))
    order = [(d, m) for d in view.datasets for m in view.methods if (d, m) in cells]
    figure, axes = panels(len(order), 1, 1.9)
    for (dataset, method), axis in zip(order, axes[:, 0], strict=True):
        own = cells[dataset, method]
        _panel(axis, own)
        axis.set_title(f"{dataset}, {view.labels[method]}", loc="left", fontweight="bold")
        remark(axis, f"split {own['split'].iloc[0]}, {own['replica'].nunique()} chains")
        axis.set_ylabel("weight")
    return figure


def _panel(axis: Axes, kept: pd.DataFrame) -> None:
    classes, sources = list(kept["class"].unique()), list(kept["source"].unique())
    width = WIDTH / len(sources)
    found = looks_of({source: source for source in sources})
    for i, (source, look) in enumerate(found.items()):
        drawn = [kept.loc[(kept["class"] == name) & (kept["source"] == source), "weight"] for name in classes]
        places = np.arange(len(classes)) + (i - (len(sources) - 1) / 2) * width
        _boxes(axis, drawn, places, 0.75 * width, look)
    axis.set_xticks(range(len(classes)), classes)
    axis.set(xlim=(-0.6, len(classes) - 0.4), ylim=(0, None))
    handles = [
        Patch(facecolor=look.color, alpha=0.55, edgecolor=look.color, label=look.label) for look in found.values()
    ]
    axis.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _boxes(axis: Axes, drawn: list[pd.Series], places: np.ndarray, width: float, look: Look) -> None:
    """Quartiles, whiskers from 5 % to 95 %, and the mean."""
    told = [{name: values.quantile(q) for name, q in QUANTILES.items()} | {"mean": values.mean()} for values in drawn]
    ink = {"color": look.color}
    mean = {"marker": look.marker, "markerfacecolor": "white", "markeredgecolor": look.color, "markersize": 3.5}
    boxes = {"facecolor": look.color, "alpha": 0.55, "edgecolor": look.color}
    axis.bxp(told, positions=places, widths=width, showmeans=True, showfliers=False, patch_artist=True, boxprops=boxes,
             medianprops={"color": "black"}, whiskerprops=ink, capprops=ink, meanprops=mean)  # fmt: skip
