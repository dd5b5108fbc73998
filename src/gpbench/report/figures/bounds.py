"""Lower bounds of trained models beside their test scores."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import kendalltau

from gpbench.report.figures import canvas
from gpbench.report.view import View


def bounds(view: View) -> Figure:
    """Negative lower bound on large mini-batches, one box per method, beside the final test MNLL."""
    (rows,) = canvas.probed(view, "bounds", "bounds")
    figure, axes = canvas.panels(len(view.datasets), 2, 2.1, sharex=True)
    for (left, right), dataset, of_dataset in canvas.by_dataset(axes, view.datasets, rows):
        scores = view.per_split("mnll", dataset)
        for i, (method, look) in enumerate(canvas.looks(view).items()):
            of_method, finals = of_dataset.loc[of_dataset["method"] == method, "bound"], scores[method].dropna()
            if len(of_method):
                canvas.box(left, i, of_method, look.color, 3)
            else:
                canvas.note(left, i, 0.5, "no bound", transform=left.get_xaxis_transform(), rotation=90)
            if len(finals):
                right.plot(np.full(len(finals), i), finals, look.marker, color=look.color, markersize=4, mew=0)
                right.plot([i - 0.3, i + 0.3], [finals.mean()] * 2, color=look.color)
            else:
                canvas.note(right, i, 0.5, "no finished fit", transform=right.get_xaxis_transform(), rotation=90)
        canvas.title(left, dataset)
        left.set_ylabel("negative lower bound\n(nats per training row)")
        right.set_ylabel("test MNLL")
        medians = of_dataset.groupby("method")["bound"].median()
        both = pd.DataFrame({"bound": medians, "mnll": scores.mean()}).dropna()
        if len(both) >= 3:
            tau = kendalltau(both["bound"], both["mnll"]).statistic
            canvas.remark(right, f"Kendall's τ with the bound: {tau:.2f}")
    for axis in axes[-1]:
        canvas.name_columns(axis, view, view.methods)
    return figure
