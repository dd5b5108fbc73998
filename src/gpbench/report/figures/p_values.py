"""Paired and unpaired tests of two objectives by depth (rossi2021)."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.significance.comparisons import ALPHA
from gpbench.report.tables import objectives
from gpbench.report.view import View

PAIRED = canvas.Look("paired over splits", "#0072B2", "o", "-")
UNPAIRED = canvas.Look("unpaired resamples (public code)", "#D55E00", "s", (0, (5, 1.5)))
LEVEL = canvas.Look(f"p = {ALPHA}", canvas.GREY, "", ":")


def p_values(view: View) -> Figure:
    """p-values of "VFE is better than FITC" against depth, paired and not, one panel per data set."""
    tests = objectives.p_values(view).dropna(subset="p_paired")
    canvas.require(len(tests), "No FITC and VFE of the same depth are finished on the same two splits.")
    figure, axes = canvas.titled(view.datasets, 1.8, x="layers", y="p")
    least = tests[["p_paired", "p_unpaired_low"]].min(axis=None)
    for axis, dataset in zip(axes, view.datasets, strict=True):
        rows = tests[tests["dataset"] == dataset]
        _panel(axis, rows)
        canvas.remark(axis, f"{rows['n'].min()} splits" if len(rows) else "no finished pair")
        axis.set_ylim(least / 2, 1.5)
        canvas.tick_settings(axis, tests["layers"])
    canvas.legend_of(figure, [PAIRED, UNPAIRED, LEVEL])
    return figure


def _panel(axis: Axes, rows: pd.DataFrame) -> None:
    """Both tests; the bar of the unpaired one is the middle 90 % of its resamples."""
    middle = rows["p_unpaired"]
    bar = [middle - rows["p_unpaired_low"], rows["p_unpaired_high"] - middle]
    axis.errorbar(rows["layers"] + 0.08, middle, yerr=bar, **UNPAIRED.options, elinewidth=0.7)
    axis.plot(rows["layers"] - 0.08, rows["p_paired"], **PAIRED.options)
    axis.axhline(ALPHA, color=LEVEL.color, linestyle=LEVEL.linestyle, linewidth=0.9)
    axis.set_yscale("log")
