"""Predictions by the states of Markov chains."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.figures.cells import by_cell, mixing
from gpbench.report.view import View


def traces(view: View) -> Figure:
    """Predictions at three test rows against the draw, one colour per chain, one row per sampler and data set."""
    drawn = view.probe("chains")
    if drawn.empty:
        return canvas.empty("No chains: no fit by a Markov chain is finished.")
    looks, cells = canvas.chain_looks(drawn["replica"]), by_cell(view, drawn)
    figure, axes = canvas.panels(len(cells), max(draws["row"].nunique() for draws in cells.values()), 1.5)
    for ((dataset, method), draws), line in zip(cells.items(), axes, strict=True):
        classes = view.tasks[dataset] in ("binary", "multiclass")
        line[0].set_ylabel("probability of\nthe observed class" if classes else "predictive mean")
        canvas.title(line[0], f"{dataset}, {view.labels[method]}")
        canvas.remark(line[-1], mixing(view, draws))
        for axis, (row, predictions) in zip(line, draws.groupby("row"), strict=False):
            draw_chains(axis, predictions, "mean", looks, 0.6)
            axis.set_xlabel(f"draw, test row {row}")
    canvas.legend_of(figure, list(looks.values()))
    return figure


def draw_chains(axis: Axes, draws: pd.DataFrame, column: str, looks: dict[int, canvas.Look], linewidth: float) -> None:
    """A column against the draw, one line per chain."""
    for replica, chain in draws.sort_values("draw").groupby("replica"):
        axis.plot(chain["draw"], chain[column], linewidth=linewidth, **looks[replica].options)
