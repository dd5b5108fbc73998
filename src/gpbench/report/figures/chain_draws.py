"""Draws of Markov chains one after the other, for the eye."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures.canvas import Look, empty, legend_of, looks_of, panels, remark
from gpbench.report.view import UNMIXED, View


def traces(view: View) -> Figure:
    """Predictions at three test rows against the draw, one colour a chain; a line for each sampler and data set."""
    drawn = view.probe("chains")
    if drawn.empty:
        return empty("No chains: no fit by a Markov chain is finished.")
    drawn = drawn[drawn["split"] == drawn.groupby(["dataset", "method"])["split"].transform("min")]
    looks = looks_of({replica: f"chain {replica + 1}" for replica in sorted(drawn["replica"].unique())})
    looks = {replica: replace(look, marker="", linestyle="-") for replica, look in looks.items()}
    found = dict(list(drawn.groupby(["dataset", "method"])))
    cells = [(d, m) for d in view.datasets for m in view.methods if (d, m) in found]
    figure, axes = panels(len(cells), drawn.groupby(["dataset", "method"])["row"].nunique().max(), 1.5)
    for cell, line in zip(cells, axes, strict=True):
        dataset, method = cell
        classes = view.tasks[dataset] in ("binary", "multiclass")
        line[0].set_ylabel("probability of\nthe observed class" if classes else "predictive mean")
        line[0].set_title(f"{dataset}, {view.labels[method]}", loc="left", fontweight="bold")
        remark(line[-1], _said(view, dataset, method, found[cell]["split"].iloc[0]))
        for axis, (row, own) in zip(line, found[cell].groupby("row"), strict=False):
            _trace(axis, own, looks)
            axis.set_xlabel(f"draw, test row {row}")
    legend_of(figure, list(looks.values()))
    return figure


def _trace(axis: Axes, drawn: pd.DataFrame, looks: dict[int, Look]) -> None:
    for replica, own in drawn.sort_values("draw").groupby("replica"):
        axis.plot(own["draw"], own["mean"], linewidth=0.6, **looks[replica].drawn)


def _said(view: View, dataset: str, method: str, split: int) -> str:
    """R-hat of the split, and whether its chains fail the gate."""
    fits = view.done.query("dataset == @dataset and method == @method and split == @split")
    failed = f", {UNMIXED}" * bool((fits["status"] == UNMIXED).any())
    return f"R-hat {fits['r_hat'].iloc[0]:.3f}{failed}"
