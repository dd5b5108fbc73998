"""Running mean and spread of what chains of several methods sample (filippone2015, figures 5 and 6)."""

from matplotlib.figure import Figure

from gpbench.report.figures import canvas
from gpbench.report.view import View

MOST = 4
"""Sampled numbers that are shown, of each data set the first."""


def running_moments(view: View) -> Figure:
    """Mean (solid) and two standard deviations (dotted) over the first iterations, one row a data set."""
    prefixes = view.probe("prefixes")
    if prefixes.empty:
        return canvas.empty("No chains: no fit by a sampler is finished.")
    datasets = canvas.present(view.datasets, prefixes["dataset"])
    figure, axes = canvas.panels(len(datasets), min(MOST, prefixes.groupby("dataset")["quantity"].nunique().max()), 1.9)
    for dataset, row in zip(datasets, axes, strict=True):
        of_dataset = prefixes[prefixes["dataset"] == dataset]
        for axis, quantity in zip(row, of_dataset["quantity"].unique(), strict=False):
            shown = of_dataset[of_dataset["quantity"] == quantity]
            for look, rows in canvas.by_method(view, shown):
                for _, chain in rows.groupby(["split", "replica"]):
                    spread = 2 * chain["variance"] ** 0.5
                    axis.plot(chain["iteration"], chain["mean"], color=look.color, linewidth=0.8)
                    for sign in (-1, 1):
                        axis.plot(chain["iteration"], chain["mean"] + sign * spread, ":", color=look.color, lw=0.6)
            canvas.title(axis, quantity)
        row[0].set_ylabel(dataset)
    for axis in axes[-1]:
        axis.set_xlabel("kept draws")
    canvas.legend(figure, view, list(prefixes["method"]), lines=False)
    return figure
