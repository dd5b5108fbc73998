"""Probabilities of classes over two inputs, and the posterior at one inducing input (hensman2015mcmc, figure 4)."""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.view import View

LEVELS = (0.3, 0.95, 0.99)
INDUCING = canvas.Look("inducing inputs", "#000000", ".", "none")


def classes(view: View) -> Figure:
    """Contours of every method over its training rows, then two sampled functions at one inducing input."""
    classified, inducing = canvas.probed(view, "probabilities of classes", "probabilities", "inducing")
    values = view.probe("whitened")
    cells, points = canvas.by_cell(view, classified, unfinished=True), canvas.by_cell(view, inducing)
    sampled = canvas.by_cell(view, values) if len(values) else {}
    names = [canvas.cell_label(view, *cell) for cell in cells]
    names += [f"{canvas.cell_label(view, *cell)}, v" for cell in sampled]
    figure, axes = canvas.titled(names, 2.3, 3)
    labels = {number: f"class {number}" for number in sorted(classified["class"].unique())}
    looks = {number: replace(look, marker=".", linestyle="-") for number, look in canvas.looks_of(labels).items()}
    for (cell, rows), axis in zip(cells.items(), axes, strict=False):
        if rows.empty:
            canvas.write_reason(axis, "no finished fit")
            continue
        _contours(axis, rows, looks)
        _note(axis, canvas.mixing(view, rows))
        if cell in points:  # of the first chain, in its last state
            of_cell = points[cell]
            first = of_cell[(of_cell["layer"] == 1) & (of_cell["fit_id"] == of_cell["fit_id"].iloc[0])]
            z = first[first["sample"] == first["sample"].max()].pivot(index="point", columns="column", values="x")
            axis.plot(z[0], z[1], **INDUCING.options, markersize=3.5)
    for rows, axis in zip(sampled.values(), axes[len(cells) :], strict=True):
        _two_functions(axis, rows)
    canvas.legend_of(figure, [*looks.values(), INDUCING])
    return figure


def _contours(axis: Axes, rows: pd.DataFrame, looks: dict[int, canvas.Look]) -> None:
    """Training rows, and probabilities averaged over chains, which share their training rows."""
    for number, look in looks.items():
        part = rows[rows["class"] == number]
        data = part[(part["layer"] == 0) & (part["p"] == 1) & (part["fit_id"] == part["fit_id"].iloc[0])]
        axis.scatter(data["x0"], data["x1"], c=look.color, s=1.5, linewidths=0, alpha=0.5, rasterized=True)
        p = part[part["layer"] == 1].groupby(["x1", "x0"])["p"].mean().unstack()
        axis.contour(p.columns, p.index, p, LEVELS, colors=look.color, linewidths=(0.6, 0.9, 1.2))
    axis.grid(False)
    axis.set(xlabel=rows["x0_name"].iloc[0], ylabel=rows["x1_name"].iloc[0])


def _two_functions(axis: Axes, rows: pd.DataFrame) -> None:
    """Draws of v of two functions at the inducing input where they correlate most, a colour a chain."""
    v = rows.pivot(index=["replica", "sample"], columns=["point", "output"], values="v")
    functions = list(rows["output"].unique())
    pairs = [(m, a, b) for m in rows["point"].unique() for a in functions for b in functions if a < b]
    if not pairs or len(v) < 2:
        canvas.write_reason(axis, "fewer than two functions or draws")
        return
    correlation = [np.corrcoef(v[m, a], v[m, b])[0, 1] for m, a, b in pairs]
    m, a, b = pairs[int(np.argmax(np.nan_to_num(np.abs(correlation))))]  # NaN: of a value that never moved
    for chain, look in canvas.chain_looks(rows["replica"]).items():
        of_chain = v.loc[chain]
        axis.plot(of_chain[m, a], of_chain[m, b], ".", color=look.color, markersize=2)
    _note(axis, f"input {m + 1}, correlation {np.corrcoef(v[m, a], v[m, b])[0, 1]:.2f}")
    axis.set(xlabel=f"v of function {a}", ylabel=f"v of function {b}")


def _note(axis: Axes, text: str) -> None:
    """Small grey text in the lower right corner, as titles leave no room for it."""
    canvas.note(axis, 0.98, 0.03, text, ha="right", va="bottom", transform=axis.transAxes)
