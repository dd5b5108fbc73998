"""Scores of classifiers by the number of training rows, where the splits of a protocol differ in it (filippone2014)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from gpbench.evaluation.metrics import METRICS
from gpbench.report.tables.render import Table
from gpbench.report.view import View

SHOWN = ("accuracy", "auc", "capacity_accuracy", "capacity_auc", "mnll")
ALPHA = 0.05


def by_size(fits: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Scores by method, size and split, replicas of a split averaged: columns method, n_train, split, value."""
    values = fits.assign(value=fits[metric].astype(float)).dropna(subset="value")
    return values.groupby(["method", "n_train", "split"], as_index=False, sort=False)["value"].mean()


def scores_by_n(view: View) -> Table:
    """Mean ± sd over the splits of each size, and what is told apart from the first method."""
    data, shown = [], []
    for dataset in view.datasets_of("binary"):
        fits = view.done[view.done["dataset"] == dataset]
        for metric in SHOWN:
            for n, rows in by_size(fits, metric).groupby("n_train"):
                scores = rows.pivot(index="split", columns="method", values="value").reindex(columns=view.methods)
                place = {"dataset": dataset, "n_train": int(n), "metric": metric}
                found = [_summary(scores, method) for method in view.methods]
                data += [place | row for row in found]
                shown.append(_printed(view, place, found))
    first = view.labels[view.methods[0]]
    note = (
        "Mean ± standard deviation over the splits of one size (number of splits); bold: best mean. > and <: above "
        f"and below {first} by a paired t test at {ALPHA:g} over the splits that both have, not corrected for the "
        "number of comparisons. Splits of one size share most test rows, and training rows where the size is large for "
        "the data set: the test speaks of training sets drawn from this table, and is a little too sure there. ✗: some "
        "fits of the method on the data set are not done, or not converged. The CSV has differences and intervals."
    )
    return Table(pd.DataFrame(data), pd.DataFrame(shown), "Scores by number of training rows", note)


def _summary(scores: pd.DataFrame, method: str) -> dict:
    """Mean, sd and number of splits, and the paired difference to the first method; scores `[splits, methods]`."""
    own, difference = scores[method], (scores[method] - scores.iloc[:, 0]).dropna()
    mean, half, p = difference.mean(), np.nan, np.nan
    if len(difference) > 1 and scores.columns[0] != method:
        test = stats.ttest_1samp(difference, 0.0)
        low, high = test.confidence_interval(1 - ALPHA)
        half, p = (high - low) / 2, float(test.pvalue)
    found = {"method": method, "mean": own.mean(), "sd": own.std(ddof=1), "n": int(own.count())}
    return found | {"difference": mean, "lower": mean - half, "upper": mean + half, "p": p}


def _printed(view: View, place: dict, found: list[dict]) -> dict[str, str]:
    """A row of the table."""
    unfinished = view.progress.query("dataset == @place['dataset']").set_index("method")["statuses"]
    metric = METRICS[place["metric"]]
    best = np.nanmin([metric.loss(row["mean"]) for row in found])
    cells = {}
    for row in found:
        text = _mean(row) + " ✗" * bool(unfinished.get(row["method"]))
        cells[view.labels[row["method"]]] = f"**{text}**" if metric.loss(row["mean"]) == best else text
    return {"data set": place["dataset"], "rows": place["n_train"], "metric": metric.label} | cells


def _mean(row: dict) -> str:
    """Mean ± sd (number of splits), and whether it is told apart from the first method."""
    if not row["n"]:
        return "-"
    spread = f" ± {row['sd']:.3f}" if row["n"] > 1 else ""
    sign = (" >" if row["difference"] > 0 else " <") if row["p"] <= ALPHA else ""
    return f"{row['mean']:.3f}{spread} ({row['n']}){sign}"
