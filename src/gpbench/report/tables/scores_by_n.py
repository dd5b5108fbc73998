"""Scores of classifiers by number of training rows, for protocols whose splits differ in size (filippone2014)."""

import numpy as np
import pandas as pd

from gpbench.evaluation.compare import paired_difference
from gpbench.evaluation.metrics import METRICS, Metric
from gpbench.report.tables.render import Table, mean_sd, moments
from gpbench.report.view import View

SHOWN = ("accuracy", "auc", "capacity_accuracy", "capacity_auc", "mnll")
ALPHA = 0.05


def by_size(fits: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Scores by method, size and split, replicas of a split averaged: columns method, n_train, split, value."""
    values = fits.assign(value=fits[metric].astype(float)).dropna(subset="value")
    return values.groupby(["method", "n_train", "split"], as_index=False, sort=False)["value"].mean()


def scores_by_n(view: View) -> Table:
    """Mean ± sd over the splits of each size, and which methods differ significantly from the first."""
    data, shown = [], []
    for dataset in view.datasets_of("binary"):
        fits = view.done[view.done["dataset"] == dataset]
        for metric in SHOWN:
            for n, rows in by_size(fits, metric).groupby("n_train"):
                scores = rows.pivot(index="split", columns="method", values="value").reindex(columns=view.methods)
                summaries = {method: _summary(scores, method) for method in view.methods}
                place = {"dataset": dataset, "n_train": int(n), "metric": metric}
                data += [place | {"method": method} | summary for method, summary in summaries.items()]
                shown.append(_printed(view, dataset, int(n), METRICS[metric], summaries))
    first = view.labels[view.methods[0]]
    note = (
        "Mean ± standard deviation over the splits of one size (number of splits); bold: best mean. > and <: above "
        f"and below {first} by a paired t test at {ALPHA:g} over the splits that both have, not corrected for the "
        "number of comparisons. Splits of one size share most test rows, and training rows where the size is large for "
        "the data set: the test is about training sets drawn from this table, and slightly overconfident there. ✗: "
        "some fits of the method on the data set are not done or have not converged. The CSV has differences and "
        "intervals."
    )
    return Table(pd.DataFrame(data), pd.DataFrame(shown), "Scores by number of training rows", note)


def _summary(scores: pd.DataFrame, method: str) -> dict[str, float]:
    """Mean, sd and number of splits, and the paired difference to the first method; scores `[splits, methods]`."""
    values, difference = scores[method], (scores[method] - scores.iloc[:, 0]).dropna()
    mean, half, p = difference.mean(), np.nan, np.nan
    if len(difference) > 1 and np.isfinite(difference).all() and scores.columns[0] != method:
        paired = paired_difference(values, scores.iloc[:, 0], 0.0, 1 - ALPHA)
        half, p = paired.upper - paired.mean, paired.p
    return moments(values) | {"difference": mean, "lower": mean - half, "upper": mean + half, "p": p}


def _printed(view: View, dataset: str, n: int, metric: Metric, summaries: dict[str, dict]) -> dict[str, object]:
    unfinished = view.progress.query("dataset == @dataset").set_index("method")["statuses"]
    best = np.nanmin([metric.loss(summary["mean"]) for summary in summaries.values()])
    cells = {}
    for method, summary in summaries.items():
        sign = (" >" if summary["difference"] > 0 else " <") if summary["p"] <= ALPHA else ""
        text = mean_sd(summary["mean"], summary["sd"], summary["n"]) + sign + " ✗" * bool(unfinished.get(method))
        cells[view.labels[method]] = f"**{text}**" if metric.loss(summary["mean"]) == best else text
    return {"data set": dataset, "rows": n, "metric": metric.label} | cells
