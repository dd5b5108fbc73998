"""Which methods of a study differ: ranks, tests and practical differences over data sets and over splits."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench.errors import count
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
from gpbench.evaluation.practical import DECIDED, ROPES, correlated_t_posterior, decision, signed_rank_posterior
from gpbench.places import write_text
from gpbench.report.significance.findings import to_markdown
from gpbench.report.view import View

ALPHA = 0.05
MAIN = {"mnll": TASKS, "rmse": REGRESSION, "error": CLASSIFICATION}  # metrics, and the tasks that they compare


@dataclass(frozen=True)
class Comparison:
    """A metric over the data sets of some tasks."""

    name: str
    title: str
    metric: str
    tasks: tuple[str, ...]


OVERALL = Comparison("all_mnll", "All data sets, MNLL", "mnll", TASKS)
COMPARISONS = (
    OVERALL,
    Comparison("regression_mnll", "Regression, MNLL", "mnll", REGRESSION),
    Comparison("regression_rmse", "Regression, RMSE", "rmse", REGRESSION),
    Comparison("classification_mnll", "Classification, MNLL", "mnll", CLASSIFICATION),
    Comparison("classification_error", "Classification, error rate", "error", CLASSIFICATION),
)


def statistics(view: View) -> dict:
    """All comparisons over data sets, and every method against the best of each data set."""
    return {
        "alpha": ALPHA,
        "decided": DECIDED,
        "ropes": {metric: {"half_width": rope.half_width, "said": rope.in_words} for metric, rope in ROPES.items()},
        "comparisons": {
            spec.name: compare(view, spec) | {"bayes": posteriors(view, spec).to_dict("records")}
            for spec in compared(view)
        },
        "differences": differences(view).to_dict("records"),
    }


def compared(view: View) -> list[Comparison]:
    """The comparison over all data sets, and those over tasks of which the study has some."""
    return [spec for spec in COMPARISONS if spec.tasks == TASKS or view.datasets_of(*spec.tasks)]


def complete_losses(view: View, spec: Comparison) -> tuple[pd.DataFrame, list[dict]]:
    """Mean losses `[data sets, methods]` without a missing cell, and the methods and data sets dropped for that.

    Only cells with every expected split done count. Methods that do not apply to every task are dropped first, then the
    method or data set with the largest share of missing cells. Each dropped one has kind ('method' or 'dataset'), name,
    the numbers of complete and of all cells, and by reason the number of incomplete cells."""
    losses = METRICS[spec.metric].loss(view.matrix(spec.metric, *spec.tasks))
    complete_cells = complete(losses.drop(columns=unable(view, spec)))
    cells = view.cells(spec.metric, *spec.tasks)
    dropped = []
    for kind, names, left in zip(("dataset", "method"), losses.axes, complete_cells.axes, strict=True):
        for name in names.difference(left, sort=False):
            rows = cells[cells[kind] == name]
            reasons = rows.loc[~rows["complete"], "statuses"].map(_why).value_counts().to_dict()
            row = {"kind": kind, "name": name, "complete": int(rows["complete"].sum()), "cells": len(rows)}
            dropped.append(row | {"reasons": reasons})
    return complete_cells, dropped


def _why(statuses: str) -> str:
    """Why a cell is not complete, without the numbers of splits: 'skipped: regression only', 'partly stopped', ..."""
    if statuses.startswith(("missing", "not planned")):
        return statuses.split(":")[0]
    partly = re.findall(r"\d+(?: of \d+)? ([a-z -]+)", statuses) if statuses[:1].isdigit() else []
    # without a status every split is done, but the metric has no finite value
    return f"partly {' and '.join(partly)}" if partly else statuses or "no finite score"


def unable(view: View, spec: Comparison) -> list[str]:
    """Methods whose fits were all skipped for one of the tasks."""
    fits = view.fits[view.fits["task"].isin(spec.tasks)]
    skipped = (fits["status"] == "skipped").groupby([fits["method"], fits["task"]]).all()
    skipping = set(skipped[skipped].index.get_level_values("method"))
    return [method for method in view.methods if method in skipping]


def rankable(losses: pd.DataFrame) -> bool:
    """Whether there are at least two methods and one data set."""
    return len(losses) >= 1 and len(losses.columns) >= 2


def compare(view: View, spec: Comparison) -> dict:
    """Ranks with bootstrap intervals, Friedman's test and Wilcoxon-Holm pairs of `complete_losses`; `unconverged`: the
    mean ranks where fits that have not converged count, too, and on which data sets that is.

    Where fewer than two methods or no data set are left, `reason` states that in place of the results."""
    losses, dropped = complete_losses(view, spec)
    result: dict = {"title": spec.title, "metric": spec.metric, "datasets": list(losses.index)}
    result |= {"methods": list(losses.columns), "dropped": dropped}
    n, k = losses.shape
    if not rankable(losses):
        return result | {"reason": f"{count(n, 'data set')} x {count(k, 'method')} complete; ranks need at least 1 x 2"}
    intervals = rank_intervals(losses, 1 - ALPHA)
    pairs = wilcoxon_holm(losses, ALPHA)
    first = (ranks(losses) == 1).sum()
    ranked = intervals.rename_axis("method").reset_index().assign(firsts=first[intervals.index].to_numpy())
    # what is left out may be the data sets that are hard for one method and that others predict well
    scored = view.matrix(spec.metric, *spec.tasks, converged=False).drop(columns=unable(view, spec))
    every = complete(METRICS[spec.metric].loss(scored))
    every = every if rankable(every) else losses
    return result | {
        "unconverged": {"datasets": list(every.index), "ranks": ranks(every).mean().sort_values().to_dict()},
        "ranks": ranked.to_dict("records"),
        "friedman": asdict(friedman(losses)) if n >= 2 and k >= 3 else None,
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


def posteriors(view: View, spec: Comparison, best_only: bool = False) -> pd.DataFrame:
    """Bayesian signed-rank test of every pair of `complete_losses` (or of the first in mean rank with each other one).

    Columns a, b (in rank order), a_better, equal, b_better, decision; no rows where fewer than two methods are left."""
    losses, _ = complete_losses(view, spec)
    ordered = ranks(losses).mean().sort_values(kind="stable").index if rankable(losses) else []
    rows = []
    for a, b in combinations(ordered, 2):
        if a == ordered[0] or not best_only:
            posterior = signed_rank_posterior(losses[a], losses[b], spec.metric)
            rows.append({"a": a, "b": b, **asdict(posterior), "decision": decision(posterior)})
    return pd.DataFrame(rows, columns=["a", "b", "a_better", "equal", "b_better", "decision"])


def differences(view: View, metrics: Mapping[str, tuple[str, ...]] = MAIN) -> pd.DataFrame:
    """`differences_to_best` of some metrics on every data set of their tasks."""
    frames = [
        frame
        for metric, tasks in metrics.items()
        for dataset in view.datasets_of(*tasks)
        if len(frame := differences_to_best(view, metric, dataset))
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def differences_to_best(view: View, metric: str, dataset: str) -> pd.DataFrame:
    """Loss of each complete method minus that of the best, paired over splits: intervals and posteriors.

    Columns dataset, metric, method, best, difference, lower, upper, p (Nadeau and Bengio; not corrected for the number
    of methods), n, better, equal, worse (Bayesian correlated t test; NaN of a metric without a ROPE); no rows where
    fewer than two splits or methods are complete."""
    cells = view.cells(metric)
    methods = list(cells.loc[(cells["dataset"] == dataset) & cells["complete"], "method"])
    losses = METRICS[metric].loss(view.per_split(metric, dataset)[methods])
    if len(losses) < 2 or len(methods) < 2:
        return pd.DataFrame()
    best, fraction = losses.mean().idxmin(), view.test_fraction(dataset)
    rows = []
    for method in methods:
        if method != best:
            paired = paired_difference(losses[method], losses[best], fraction, 1 - ALPHA)
            posterior = correlated_t_posterior(losses[method], losses[best], fraction, metric)
            row = {"dataset": dataset, "metric": metric, "method": method, "best": best, "difference": paired.mean}
            row |= {"lower": paired.lower, "upper": paired.upper, "p": paired.p, "n": paired.n}
            rows.append(row | {"better": posterior.a_better, "equal": posterior.equal, "worse": posterior.b_better})
    return pd.DataFrame(rows)


def write_statistics(view: View, folder: str | Path) -> None:
    """Write `folder`/statistics.json and statistics.md."""
    results, folder = statistics(view), Path(folder)
    # read again, NaN and infinities, which JSON cannot hold, are None
    finite = json.loads(json.dumps(results, default=np.generic.item), parse_constant=lambda _: None)
    write_text(folder / "statistics.json", json.dumps(finite, indent=1, allow_nan=False) + "\n")
    write_text(folder / "statistics.md", to_markdown(results, view))
