"""Condition numbers of systems, and what solvers take and miss as they grow (filippone2015, figures 1 to 4).

For studies of kind `solve` whose methods measure `kappa`.
"""

import numpy as np
from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.view import View

PANELS = {
    "iterations": "iterations, inner ones too",
    "error": "error of s",
    "sd": "sd of an element of s",
    "gradient_error": "log₁₀ squared relative error of g",
}
NO_SYSTEMS = "No systems: no finished fit of a solver measured condition numbers."


def condition_numbers(view: View) -> Figure:
    """The distribution of log10 kappa over systems, a curve a method and a panel a data set."""
    systems = view.probe("systems")
    if "kappa" not in systems:
        return canvas.empty(NO_SYSTEMS)
    figure, axes = canvas.titled(view.datasets, 2.0, 3, "condition number κ", "share of systems below")
    for axis, dataset in zip(axes, view.datasets, strict=True):
        of_dataset = systems[(systems["dataset"] == dataset) & systems["kappa"].notna()]
        for look, rows in canvas.by_method(view, of_dataset):
            kappa = np.sort(rows["kappa"])
            axis.step(kappa, np.arange(1, len(kappa) + 1) / len(kappa), color=look.color, linestyle=look.linestyle)
        axis.set(xscale="log")
    canvas.legend(figure, view, list(systems["method"]))
    return figure


def by_condition(view: View) -> Figure:
    """Iterations, errors and spreads of every solver against kappa, rows of panels by data set."""
    systems = view.probe("systems")
    if "kappa" not in systems:
        return canvas.empty(NO_SYSTEMS)
    systems = systems.assign(iterations=systems["iterations"] + systems.get("inner", 0))
    solved = systems[systems["iterations"] > 0]
    shown = [name for name in PANELS if name in solved and solved[name].notna().any()]
    figure, axes = canvas.panels(len(view.datasets), max(len(shown), 1), 2.0)
    for dataset, row in zip(view.datasets, axes, strict=True):
        of_dataset = solved[solved["dataset"] == dataset]
        for axis, name in zip(row, shown, strict=False):
            for look, rows in canvas.by_method(view, of_dataset[of_dataset[name].notna()]):
                stopped = rows["stopped"].astype(bool)
                for part, fill in ((rows[~stopped], look.color), (rows[stopped], "none")):
                    kappa, values = part[["kappa", name]].to_numpy(float).T
                    axis.plot(kappa, values, look.marker, c=look.color, mfc=fill, markersize=2.5, alpha=0.7)
            axis.set(xscale="log", yscale="linear" if name == "gradient_error" else "log", ylabel=PANELS[name])
        canvas.title(row[0], dataset)
    for axis in axes[-1]:
        axis.set_xlabel("condition number κ")
    canvas.legend(figure, view, list(solved["method"]), lines=False)
    return figure
