"""How far the scores of a study allow to tell its methods apart."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench.evaluation.compare import (
    complete,
    friedman,
    paired_difference,
    power_statement,
    rank_intervals,
    ranks,
    wilcoxon_holm,
)
from gpbench.evaluation.metrics import CLASSIFICATION, METRICS, REGRESSION, TASKS
from gpbench.report.view import View
from gpbench.report.writing import count, number, write

ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    """A metric over the data sets of some tasks."""

    name: str
    title: str
    metric: str
    tasks: tuple[str, ...]


COMPARISONS = (
    Comparison("all_mnll", "All data sets, MNLL", "mnll", TASKS),
    Comparison("regression_mnll", "Regression, MNLL", "mnll", REGRESSION),
    Comparison("regression_rmse", "Regression, RMSE", "rmse", REGRESSION),
    Comparison("classification_mnll", "Classification, MNLL", "mnll", CLASSIFICATION),
    Comparison("classification_error", "Classification, error rate", "error", CLASSIFICATION),
)


def statistics(view: View) -> dict:
    """Every comparison over data sets, and every method against the best of each data set."""
    return {
        "alpha": ALPHA,
        "comparisons": {spec.name: compare(view, spec) for spec in COMPARISONS},
        "differences": differences(view).to_dict("records"),
    }


def compare(view: View, spec: Comparison) -> dict:
    """Ranks with bootstrap intervals, Friedman's test and Wilcoxon-Holm pairs of one comparison.

    Only cells with every expected split done count; a data set or method with other cells is dropped and named.
    Where fewer than two methods or one data set are left, `reason` says so and nothing else is given.
    """
    losses = METRICS[spec.metric].loss(view.matrix(spec.metric, *spec.tasks))
    kept = complete(losses)
    result = {
        "title": spec.title,
        "metric": spec.metric,
        "datasets": list(kept.losses.index),
        "methods": list(kept.losses.columns),
        "dropped_datasets": kept.dropped_datasets,
        "dropped_methods": kept.dropped_methods,
    }
    n, k = kept.losses.shape
    if n < 1 or k < 2:
        return result | {"reason": f"{count(n, 'data set')} x {count(k, 'method')} complete; ranks need at least 1 x 2"}
    intervals = rank_intervals(kept.losses, np.random.default_rng(0), level=1 - ALPHA)
    pairs = wilcoxon_holm(kept.losses, ALPHA)
    first = (ranks(kept.losses) == 1).sum()
    return result | {
        "ranks": intervals.rename_axis("method")
        .reset_index()
        .assign(firsts=first[intervals.index].to_numpy())
        .to_dict("records"),
        "friedman": asdict(friedman(kept.losses)) if n >= 2 and k >= 3 else None,
        "pairs": pairs.to_dict("records"),
        "groups": indistinct_groups(list(intervals.index), pairs),
        "power": power_statement(k, n, ALPHA),
    }


def indistinct_groups(ordered: list[str], pairs: pd.DataFrame) -> list[list[str]]:
    """Maximal runs of at least two methods, in rank order, in which no pair is rejected."""
    rejected = {frozenset(pair) for pair in pairs.loc[pairs["reject"], ["a", "b"]].itertuples(index=False)}
    groups, reached = [], 0
    for start in range(len(ordered)):
        stop = start + 1
        while stop < len(ordered) and all(frozenset((a, ordered[stop])) not in rejected for a in ordered[start:stop]):
            stop += 1
        if stop > max(reached, start + 1):
            groups.append(ordered[start:stop])
            reached = stop
    return groups


def differences(view: View) -> pd.DataFrame:
    """`differences_to_best` of the main metrics on every data set."""
    frames = [
        differences_to_best(view, metric, dataset)
        for metric, tasks in (("mnll", TASKS), ("rmse", REGRESSION), ("error", CLASSIFICATION))
        for dataset in view.datasets_of(*tasks)
    ]
    frames = [frame for frame in frames if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def differences_to_best(view: View, metric: str, dataset: str) -> pd.DataFrame:
    """Loss of each complete method minus that of the best, paired over splits, with Nadeau-Bengio intervals.

    Columns dataset, metric, method, best, difference, lower, upper, p (not corrected for the number of methods), n;
    no rows where fewer than two splits or methods are complete.
    """
    cells = view.cells(metric)
    methods = list(cells.loc[(cells["dataset"] == dataset) & cells["complete"], "method"])
    losses = METRICS[metric].loss(view.per_split(metric, dataset)[methods])
    if len(losses) < 2 or len(methods) < 2:
        return pd.DataFrame()
    best = losses.mean().idxmin()
    rows = []
    for method in methods:
        if method != best:
            found = paired_difference(losses[method], losses[best], view.test_fraction(dataset), 1 - ALPHA)
            named = {"dataset": dataset, "metric": metric, "method": method, "best": best, "difference": found.mean}
            rows.append(named | {"lower": found.lower, "upper": found.upper, "p": found.p, "n": found.n})
    return pd.DataFrame(rows)


def write_statistics(view: View, folder: str | Path) -> list[Path]:
    """Write `folder`/statistics.json and statistics.md."""
    found = statistics(view)
    text = json.dumps(_finite(found), indent=1, allow_nan=False) + "\n"
    folder = Path(folder)
    return [write(folder / "statistics.json", text), write(folder / "statistics.md", to_markdown(found, view))]


def to_markdown(found: dict, view: View) -> str:
    """The statistics in words."""
    parts = ["# Statistics\n"]
    for comparison in found["comparisons"].values():
        parts.append(f"## {comparison['title']}\n")
        parts += [f"- {sentence}" for sentence in sentences(comparison, view)]
        parts.append("")
    return "\n".join(parts)


def sentences(comparison: dict, view: View) -> list[str]:
    """What a comparison found, one sentence an item."""
    dropped = [*comparison["dropped_datasets"], *(view.labels[m] for m in comparison["dropped_methods"])]
    lines = [f"Dropped, because not every cell is complete: {', '.join(dropped)}."] if dropped else []
    if "reason" in comparison:
        return [*lines, f"No ranks: {comparison['reason']}."]
    order = ", ".join(f"{view.labels[row['method']]} {row['mean_rank']:.2f}" for row in comparison["ranks"])
    lines.append(f"Mean ranks over {count(len(comparison['datasets']), 'data set')}: {order}.")
    if comparison["friedman"]:
        test = comparison["friedman"]
        lines.append(
            f"Friedman: chi-squared {number(test['chi_squared'])}, {p_value(test['p_chi_squared'])};"
            f" Iman-Davenport: {p_value(test['p_f'])}."
        )
    told = [f"{view.labels[p['a']]} and {view.labels[p['b']]}" for p in comparison["pairs"] if p["reject"]]
    verdict = f"differ: {'; '.join(told)}" if told else "no pair is told apart"
    return [*lines, f"Wilcoxon signed rank with Holm's correction: {verdict}.", comparison["power"]]


def p_value(p: float) -> str:
    """'p = 0.012', or 'p < 0.0001'."""
    return f"p = {number(p, 2)}" if p >= 1e-4 else "p < 0.0001"


def _finite(value: object) -> object:
    """The same structure with None for numbers that JSON cannot hold, and plain Python numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
