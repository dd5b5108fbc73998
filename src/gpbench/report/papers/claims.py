"""What committed records say of the claims of papers (`published/claims/PAPER.yaml`), by the same rules for all.

A claim names two methods of a study, a metric, and data sets. On each data set the difference of their losses is paired
over the splits that both have finished, with the interval of Nadeau and Bengio (2003). Of samplers on several simulated
data sets the means over chains are paired; on a single one the chains are, by number, and a result is of it alone.

That the first is better *holds* on a data set where the difference has the claimed sign at 5 %, and *does not hold*
where it has the other one, with Holm's correction over all data sets of the claim under one protocol; otherwise it is
*not significant*, as one split always is. That both are equal (that the first is not worse) holds where the 95 %
interval lies inside the scorecard's margin (below its upper end), and does not hold where it lies outside (above).

Of several runs one with several splits counts, then the larger budget, several simulated data sets (judged or not, or a
set on which chains mix would decide), one that is judged, the settings of its study (but for the most updates where
fits end by the rule), more splits, and more updates; the two methods may be of two runs with the same splits, if
each is converged or at the published updates. Fits that failed, or did not converge as their budget requires, and
chains that have not mixed are *not judged*; where a method has no fit, it is *not run*. Of chains that have not mixed,
or are short, too many draws count as effective, or they arrive after burn-in; they are judged where they are behind.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench import config
from gpbench.config.evidence import Claim, Comparison, Evidence, Explanation, Findings
from gpbench.config.schema import Study
from gpbench.errors import UserError, unknown
from gpbench.evaluation.compare import PairedDifference, holm, signed_rank_test
from gpbench.evaluation.metrics import METRICS
from gpbench.report.scorecard import verdicts
from gpbench.report.scorecard.all_runs import BUDGETS
from gpbench.report.scorecard.counterparts import Counterparts, Scores
from gpbench.report.significance.comparisons import ALPHA
from gpbench.report.tables.by_setting import paired_interval
from gpbench.study.planning.variants import expand

OURS = "common"  # the protocol under which all methods are compared; every other one is a paper's
HOLDS, FAILS, UNDECIDED, NOT_JUDGED, NOT_RUN = "holds", "does not hold", "not significant", "not judged", "not run"
MIXED, PARTLY = "holds in some comparisons and not in others", "holds in part"
FEWEST = 6  # data sets from which on an exact two-sided signed-rank test can reject at 5 %


@dataclass(frozen=True)
class Result:
    """A comparison on one data set: the difference of losses (first - second), below zero where the first is better."""

    comparison: Comparison
    dataset: str
    protocol: str
    kind: str = NOT_RUN
    reason: str = ""  # why it is not judged
    behind: str = ""  # the method behind, if its effective draws are at most as many as counted
    runs: tuple[Counterparts, ...] = ()  # those of the first and of the second method
    difference: PairedDifference | None = None
    splits: int = 0  # that both have; of a sampler its data sets
    p: float = np.nan  # by Holm's correction
    margin: float = np.nan  # of two equal methods

    @property
    def labels(self) -> list[str]:
        """Of both methods, as their runs print them."""
        return [run.view.labels.get(name, name) for run, name in zip(self.runs, self.comparison.methods, strict=True)]


def read(folder: Path, conf: Path, published: pd.DataFrame) -> dict[str, Evidence]:
    """Citation key -> claims, for the files of a folder; UserError for what no study or published number has."""
    evidence = {path.stem: config.read(Evidence, path) for path in sorted(folder.glob("[!.]*.yaml"))}
    for key, paper in evidence.items():
        where = str(folder / f"{key}.yaml")
        config.require_option(conf, "paper", key, where)
        _check(conf, paper.claims, where)
        for number, explanation in enumerate(paper.explanations, 1):
            rows_of(explanation, published[published["source"] == key], f"explanation {number} of {where}")
    return evidence


def ours(path: Path, conf: Path) -> list[Claim]:
    """Our own claims about methods; UserError as for those of papers."""
    claims = config.read(Findings, path).claims
    _check(conf, claims, str(path))
    return claims


def _check(conf: Path, claims: list[Claim], path: str) -> None:
    for number, claim in enumerate(claims, 1):
        where = f"claim {number} of {path}"
        if bool(claim.comparisons) == bool(claim.untested):
            raise UserError(f"{where} needs either `comparisons` or, in `untested`, the reason why it has none")
        for comparison in claim.comparisons:
            config.require_known("study", comparison.studies, config.options(conf, "study"), where)
            plans = [_plan(conf, name) for name in comparison.studies]
            if len(protocols := {plan.protocol for plan in plans}) != 1:
                names = " and ".join(sorted(protocols)) or "none"
                raise UserError(f"{where}: its studies must share one protocol, not {names}")
            config.require_known("metric", [comparison.metric], METRICS, where)
            for plan in plans:
                config.require_known("method", comparison.methods, plan.methods, where)
            datasets = [name for plan in plans for name in plan.datasets]
            config.require_known("data set", comparison.datasets, datasets, where)


@cache
def _plan(conf: Path, name: str) -> Study:
    """A study with all the methods that it compares: its variants, and those of released scores."""
    study: Study = config.compose(conf, "study", name)
    return replace(study, methods=[*expand(study), *study.per_split])


def rows_of(explanation: Explanation, rows: pd.DataFrame, where: str = "") -> pd.DataFrame:
    """The rows of a paper's numbers (or of its scorecard) that an explanation is about.

    With `where`, UserError with the nearest name for one that no row has."""
    for column in ("item", "dataset", "method_printed", "setting", "metric_printed"):
        if value := getattr(explanation, column):
            matching = rows[rows[column] == value]
            if where and matching.empty:
                raise unknown(column, value, rows[column].unique(), where)
            rows = matching
    return rows


def judge(claim: Claim, runs: list[Counterparts], conf: Path) -> list[Result]:
    """The results of a claim, those under the paper's protocol first."""
    results = []
    for comparison in claim.comparisons:
        plans = [_plan(conf, name) for name in comparison.studies]
        protocol, of_study = plans[0].protocol, [run for run in runs if run.study in comparison.studies]
        among = [run for run in of_study if run.view.study["protocol"] == protocol]
        for dataset in comparison.datasets or dict.fromkeys(name for plan in plans for name in plan.datasets):
            sides = ([s for r in among if (s := r.by_run(m, dataset, comparison.metric))] for m in comparison.methods)
            blank = Result(comparison, dataset, protocol)
            candidates = [_paired(a, b, blank) for a, b in product(*sides) if _alike(a.run, b.run)]
            results.append(max(candidates, key=_weight, default=blank))
    return [result for part in by_protocol(results) for result in _decided(part)]


def by_protocol(results: list[Result]) -> tuple[list[Result], list[Result]]:
    """The results under the protocol of a paper, and those under `OURS`."""
    return [r for r in results if r.protocol != OURS], [r for r in results if r.protocol == OURS]


def _alike(first: Counterparts, second: Counterparts) -> bool:
    """Whether methods may be paired: of one run, or on the same splits, converged or after the published updates."""
    budgets = {run.view.study["budget"] for run in (first, second)}
    same_splits = not any("protocol" in run.settings for run in (first, second))
    return first is second or (same_splits and budgets <= {"converged", "paper"})


def _weight(r: Result) -> tuple[bool | float, ...]:
    """Larger counts more: no single split, the larger budget, several data sets, a difference, mixed chains, settings
    of the study, more splits, one run, more updates. What more of a budget or more sets cannot tell, less cannot."""
    budgets = [run.view.study["budget"] for run in r.runs]
    place = min(BUDGETS.index(budget) if budget in BUDGETS else -1 for budget in budgets)
    n, first, second = r.difference.n if r.difference else 0, *r.runs
    updates = sum(run.updates(m, r.dataset) for run, m in zip(r.runs, r.comparison.methods, strict=True))
    capped = [r"\w+\.steps=\S+" if budget == "converged" else "" for budget in budgets]
    as_set = sum(not re.sub(cap, "", run.settings).strip() for cap, run in zip(capped, r.runs, strict=True))
    return n != 1, place, r.splits > 1, bool(r.difference), not r.behind, as_set, r.splits, n, first is second, updates


def _paired(first: Scores, second: Scores, blank: Result) -> Result:
    """The difference of two methods on a data set, or why it is not judged."""
    metric, view = METRICS[blank.comparison.metric], first.run.view
    both = pd.concat([first.values, second.values], axis=1, join="inner")
    of_splits = both.groupby(level="split").mean()
    result = replace(blank, kind=NOT_JUDGED, runs=(first.run, second.run), splits=len(of_splits))
    both = of_splits if len(of_splits) > 1 else both  # between data sets samplers differ more than chains do on one
    losses = [metric.loss(both.iloc[:, column]) for column in (0, 1)]
    behind, ahead = (second, first) if losses[0].mean() < losses[1].mean() else (first, second)
    if behind.reason and behind.at_most and blank.comparison.expect == "better":
        reason, result = ahead.reason, replace(result, behind=blank.comparison.methods[behind is second])
    else:
        reason = first.reason or second.reason
    rows = [r.test_rows(m, blank.dataset) for r, m in zip(result.runs, blank.comparison.methods, strict=True)]
    if any(rows[0][split] != rows[1][split] for split in rows[0].keys() & rows[1].keys()):
        reason = "their splits have other test rows"
    if reason or both.empty:
        return replace(result, reason=reason or "no split that both have")
    fraction = view.test_fraction(result.dataset) if view.study["kind"] == "predict" else 0.0
    margin = verdicts.margin(metric.name, float(both.iloc[:, 1].mean()))
    return replace(result, difference=paired_interval(losses[0], losses[1], fraction), margin=margin)


def _decided(results: list[Result]) -> list[Result]:
    """The results of a claim under one protocol with their kinds."""
    tested = [r for r in results if r.difference and r.difference.n > 1 and r.comparison.expect == "better"]
    corrected = dict(zip(map(id, tested), holm([r.difference.p for r in tested if r.difference]), strict=True))
    return [_kind(r, corrected.get(id(r), np.nan)) if r.difference else r for r in results]


def _kind(result: Result, p: float) -> Result:
    difference, kind = result.difference, UNDECIDED
    assert difference
    if result.comparison.expect != "better" and difference.n > 1:
        # one that is not worse may be better by any amount
        lower = max(difference.lower, -np.inf if result.comparison.expect == "equal" else -result.margin)
        judged = verdicts.judge(lower, difference.upper, result.margin, "")
        kind = {"agrees": HOLDS, "differs": FAILS}.get(judged, UNDECIDED)
    elif p <= ALPHA:
        kind = HOLDS if difference.mean < 0 else FAILS
    return replace(result, kind=kind, p=p)


def verdict(results: list[Result]) -> str:
    """The claim as a whole under one protocol; in part where it fails on no data set and holds on some judged."""
    kinds = {result.kind for result in results}
    if HOLDS in kinds and kinds & {FAILS, UNDECIDED}:
        return MIXED if FAILS in kinds else PARTLY
    return next((kind for kind in (HOLDS, FAILS, UNDECIDED, NOT_JUDGED) if kind in kinds), NOT_RUN)


def described(results: list[Result]) -> str:
    """The verdict, the number of data sets by kind, budgets, and the signed-rank test where it tells; or else '-'."""
    if not results:
        return "-"
    kinds = Counter(result.kind for result in results)
    text = f"{verdict(results)} ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())})"
    if budgets := Counter(budget_of(result) for result in results if result.runs):
        text += f" at budget {', '.join(f'{name} ({n})' for name, n in budgets.items())}"
    return "; ".join([text, *over_datasets(results)])


def budget_of(result: Result) -> str:
    """'paper', or 'converged and paper' of two runs."""
    return " and ".join(sorted({run.view.study["budget"] for run in result.runs}))


def over_datasets(results: list[Result]) -> list[str]:
    """For each comparison of enough data sets, on how many the first is better; a test if no outcome chose the sets."""
    texts = []
    for comparison in {id(r.comparison): r.comparison for r in results}.values():
        judged = [r for r in results if r.comparison is comparison and r.difference]
        if len(judged) >= FEWEST and comparison.expect == "better":
            (a, b), means = judged[0].labels, [r.difference.mean for r in judged if r.difference]
            p = "" if any(r.behind for r in judged) else f", signed-rank p = {signed_rank_test(means):.2g}"
            texts.append(f"{a} is better than {b} on {sum(m < 0 for m in means)} of {len(means)} data sets{p}")
    return texts
