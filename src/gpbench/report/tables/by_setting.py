"""Scores by what a study varies: random features, pairs of methods, workers, or the training rows (filippone2014)."""

from dataclasses import asdict

import numpy as np
import pandas as pd

from gpbench.evaluation.compare import PairedDifference, paired_difference
from gpbench.evaluation.metrics import METRICS, Metric
from gpbench.report.significance.comparisons import ALPHA
from gpbench.report.tables.render import Table, decimals, mean_sd, moments, number, signed
from gpbench.report.view import View

FIXED, RESAMPLED = "var_fixed", "var_resampled"
OF_SIZES = ("accuracy", "auc", "capacity_accuracy", "capacity_auc", "mnll")


def side_by_side(view: View, varied: str, key: str) -> list[tuple[object, dict[str, str]]]:
    """(value of `key`, value of `varied` -> method) for all values of `key`. Of several methods with both alike, the
    first of each value of `varied` stand together, then the second ones."""
    grid = view.grid(varied, key)
    places = [grid[key], grid.groupby([varied, key]).cumcount()]
    return [(value, dict(zip(of[varied], of["method"], strict=True))) for (value, _), of in grid.groupby(places)]


def features(view: View) -> Table:
    """Error and MNLL by number of features and treatment of the frequencies, and their paired difference."""
    compared = side_by_side(view, "frequencies", "num_features")
    treatments = list(view.grid("frequencies", "num_features")["frequencies"].unique())
    data, shown = [], []
    for dataset in view.datasets:
        for metric in (view.error_metric(dataset), "mnll"):
            scores = view.per_split(metric, dataset)
            places = decimals(scores.std(ddof=1))
            for num_features, methods in compared:
                by_treatment = scores[list(methods.values())].set_axis(list(methods), axis=1)
                by_treatment = by_treatment.reindex(columns=dict.fromkeys([*treatments, FIXED, RESAMPLED]))
                difference = (by_treatment[FIXED] - by_treatment[RESAMPLED]).dropna()
                columns = by_treatment[treatments].assign(difference=difference)
                place = {"dataset": dataset, "metric": metric, "num_features": num_features} | methods
                summaries = {name: moments(values) for name, values in columns.items()}
                data.append(place | {f"{name}_{k}": v for name, known in summaries.items() for k, v in known.items()})
                shown.append(
                    {"data set": dataset, "features": num_features, "metric": METRICS[metric].label}
                    | {"methods": "; ".join(view.labels[method] for method in methods.values())}
                    | {in_capitals(name): mean_sd(**summaries[name], places=places) for name in treatments}
                    | {f"{in_capitals(FIXED)} − {in_capitals(RESAMPLED)}": signed(difference.mean(), places=places)}
                    | {"signs": " ".join("−0+"[int(np.sign(value)) + 1] for value in difference) or "-"}
                )
    note = (
        "Mean ± standard deviation over splits (number of splits). The difference is paired: its mean over the splits "
        f"that both treatments have, and its sign on each of them; below zero {in_capitals(FIXED)} is better."
    )
    return Table(pd.DataFrame(data), pd.DataFrame(shown), "Treatments of the frequencies", note)


def in_capitals(treatment: str) -> str:
    """'VAR-FIXED' of `var_fixed`."""
    return treatment.replace("_", "-").upper()


def differences(view: View) -> Table:
    """Scores of one method minus those of another, paired over splits, for the `pairs` of methods in the study."""
    data, shown = [], []
    for dataset in view.datasets:
        reported = [METRICS[name] for name in view.study["reported"]["metrics"]]
        printed = [m.name for m in reported if m.direction == "min" and view.tasks.get(dataset) in m.tasks]
        metrics = list(dict.fromkeys(["mnll", view.error_metric(dataset), *printed]))
        cells = view.cells_of(dataset, metrics[-1])
        for a, b in view.study["pairs"]:
            row = {"data set": dataset, "difference": f"{view.labels[a]} − {view.labels[b]}"}
            for metric in metrics:
                scores = view.per_split(metric, dataset)
                difference = paired_interval(scores[a], scores[b], view.test_fraction(dataset))
                data.append({"dataset": dataset, "a": a, "b": b, "metric": metric} | asdict(difference))
                digits = decimals([scores[b].std(ddof=1)])
                row[METRICS[metric].label] = signed(difference.mean, difference.lower, difference.upper, digits)
            better = view.labels[a] if difference.upper < 0 else view.labels[b] if difference.lower > 0 else "undecided"
            compared = cells.loc[[a, b], "complete"].all()
            shown.append(row | {"splits": difference.n, "better": better if compared else "not compared"})
    note = (
        "Mean over the splits that both have; below zero the first is better. In brackets: the 95 % Nadeau-Bengio "
        "interval, which allows for overlapping training sets (not corrected for the number of pairs); a single split "
        "has none, nor have equal differences. Better: the method that the interval of the last metric of its row "
        "leaves; not compared: splits of either are unfinished or have not converged."
    )
    last = ["splits", "better"]
    table = pd.DataFrame(shown)
    table = table.reindex(columns=[*table.columns.difference(last, sort=False), *last]).fillna("-")
    return Table(pd.DataFrame(data), table, "Paired differences", note)


def paired_interval(a: pd.Series, b: pd.Series, test_fraction: float) -> PairedDifference:
    """The paired difference a - b `[splits]`; without an interval where fewer than two splits have both."""
    difference = (a - b).dropna()
    if len(difference) < 2:
        return PairedDifference(difference.mean(), np.nan, np.nan, np.nan, len(difference))
    return paired_difference(a, b, test_fraction)


def workers(view: View) -> Table:
    """Cost and scores of every cell by scheme and number of workers, with staleness and restarts where recorded."""
    grid = view.grid("scheme", "workers").set_index("method")
    data = []
    for dataset in view.datasets:
        for method in view.methods:
            fits = view.done[(view.done["dataset"] == dataset) & (view.done["method"] == method)]
            scheme, processes = grid.loc[method] if method in grid.index else ("one process", 1)
            columns = ["seconds_train", view.error_metric(dataset), "mnll", "staleness_mean", "restarts"]
            means = fits[columns].astype(float).mean().rename({view.error_metric(dataset): "error"})
            cell = {"dataset": dataset, "method": method, "scheme": scheme, "workers": int(processes)}
            data.append(cell | dict(means) | {"fits": len(fits)})
    names = {"seconds_train": "training s", "error": "RMSE or error rate", "mnll": "MNLL"}
    names |= {"staleness_mean": "mean staleness", "restarts": "restarts"}
    shown = pd.DataFrame(data).rename(columns=names | {"dataset": "data set"})
    shown[[*names.values()]] = shown[[*names.values()]].map(number)
    note = (
        f"Means over finished fits, on {view.study['machine']['cores']} cores: more workers than cores take turns. "
        "Staleness: updates by other workers between fetching the parameters and pushing an update."
    )
    return Table(pd.DataFrame(data), shown.drop(columns="method"), "Distributed training", note)


def by_size(fits: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Scores by method, size and split, replicas of a split averaged: columns method, n_train, split, value."""
    values = fits.assign(value=fits[metric].astype(float)).dropna(subset="value")
    return values.groupby(["method", "n_train", "split"], as_index=False, sort=False)["value"].mean()


def scores_by_n(view: View) -> Table:
    """Mean ± sd over the splits of each size, and which methods differ significantly from the first."""
    data, shown = [], []
    for dataset in view.datasets_of("binary"):
        fits = view.done[view.done["dataset"] == dataset]
        for metric in OF_SIZES:
            for n, rows in by_size(fits, metric).groupby("n_train"):
                scores = rows.pivot(index="split", columns="method", values="value").reindex(columns=view.methods)
                summaries = {method: _to_first(scores, method) for method in view.methods}
                place = {"dataset": dataset, "n_train": int(n), "metric": metric}
                data += [place | {"method": method} | summary for method, summary in summaries.items()]
                shown.append(_of_size(view, dataset, int(n), METRICS[metric], summaries))
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


def _to_first(scores: pd.DataFrame, method: str) -> dict[str, float]:
    """Mean, sd and number of splits, and the paired difference to the first method; scores `[splits, methods]`."""
    values, difference = scores[method], (scores[method] - scores.iloc[:, 0]).dropna()
    mean, half, p = difference.mean(), np.nan, np.nan
    if len(difference) > 1 and np.isfinite(difference).all() and scores.columns[0] != method:
        paired = paired_difference(values, scores.iloc[:, 0], 0.0, 1 - ALPHA)
        half, p = paired.upper - paired.mean, paired.p
    return moments(values) | {"difference": mean, "lower": mean - half, "upper": mean + half, "p": p}


def _of_size(view: View, dataset: str, n: int, metric: Metric, summaries: dict[str, dict]) -> dict[str, object]:
    unfinished = view.progress.query("dataset == @dataset").set_index("method")["statuses"]
    best = np.nanmin([metric.loss(summary["mean"]) for summary in summaries.values()])
    cells = {}
    for method, summary in summaries.items():
        sign = (" >" if summary["difference"] > 0 else " <") if summary["p"] <= ALPHA else ""
        text = mean_sd(summary["mean"], summary["sd"], summary["n"]) + sign + " ✗" * bool(unfinished.get(method))
        cells[view.labels[method]] = f"**{text}**" if metric.loss(summary["mean"]) == best else text
    return {"data set": dataset, "rows": n, "metric": metric.label} | cells
