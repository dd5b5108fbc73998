"""Our counterparts of published numbers: means over the splits, or over the chains of samplers, of a study's cells."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gpbench import config
from gpbench.errors import count
from gpbench.evaluation.compare import paired_mean
from gpbench.report.scorecard import verdicts
from gpbench.report.view import SCORED, UNMIXED, View, commits, describe_statuses
from gpbench.study.planning.resolve import STUDY_KEYS

CELL = ["method", "dataset"]
LENGTH = ["iterations", "ess_min", "ess_bulk", "chains", "r_hat"]
FACTS = [*CELL, "split", "status", "reason", "protocol", "budget", "overrides", "commit", "dirty", "unmixed"]
FACTS += [*LENGTH, "steps", "steps_done", "convergence", "n_test"]
NOT_TRIED = ("missing", "skipped")
OF_METHODS = {"tune", "presets", "variants"}  # keys of a study that change its methods
ANY = "any"  # name of a data set that stands for each: ours is the first that is judged


@dataclass(frozen=True)
class OurMean:
    """Our mean over n runs."""

    mean: float
    sd: float
    n: int
    sd_of_splits: float  # of the means of splits: of a sampler, between its data sets
    splits: int
    chains: int  # of a sampler on one data set; 0 for predictions without chains
    unconverged: int  # fits by gradients that still improve, or are not judged to have converged
    unfinished: str  # why it may not be judged; empty where it may
    protocol: str
    budget: str
    commit: str  # of the finished fits; `+`: with uncommitted changes


class Scores(NamedTuple):
    """The scores of a cell by split (of chains, by split and number), and why they are not judged."""

    run: Counterparts
    values: pd.Series
    reason: str
    at_most: bool  # whether they are effective draws, with a reason at most as many


class Counterparts:
    """The means of a study by method, data set and metric; each metric is averaged once."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.study, self.settings = run_settings(view.study["command"])
        self._cells: dict[tuple[str, str], list[Any]] = {}
        for fit in view.fits[FACTS].itertuples(index=False, name="Fit"):
            self._cells.setdefault((fit.method, fit.dataset), []).append(fit)
        self._averages, self._scores = cache(self._averaged), cache(self._by_split)
        self._facts_of, self.by_run = cache(self._of_cell), cache(self._by_run)

    def name(self, names: str) -> str:
        """The first of the names `a|b` that this study has; otherwise the names as given."""
        return next((name for name in names.split("|") if name in self.view.methods), names)

    def has(self, method: str, dataset: str) -> bool:
        """Whether the study has this cell, finished or not."""
        return method in self.view.methods and dataset in (*self.view.datasets, ANY)

    def by_chain(self, metric: str) -> bool:
        """Whether a run is a chain of a sampler rather than a split."""
        return self.view.study["kind"] == "sample" and not metric.startswith(verdicts.OF_A_SET)

    def find(self, method: str, dataset: str, metric: str) -> OurMean | str:
        """Our mean, or why there is none."""
        if not (fits := self._cells.get((method, dataset), [])):
            return "not planned"
        if (method, dataset) not in self._averages(metric):
            return describe_statuses(fits) or "the metric is undefined"
        mean, sd, n, between = self._averages(metric)[method, dataset]
        unfinished = self._unfinished(fits, metric, int(n))
        return OurMean(mean, sd, int(n), between, unfinished=unfinished, **self._facts_of(method, dataset))

    def updates(self, method: str, dataset: str) -> float:
        """Updates that a fit of a cell made on average, before the rule of convergence ended it; 0 without any."""
        fits = self._cells.get((method, dataset), [])
        updates = [fit.steps if pd.isna(fit.steps_done) else fit.steps_done for fit in fits]
        return float(np.mean([steps for steps in updates if pd.notna(steps)] or [0.0]))

    def test_rows(self, method: str, dataset: str) -> dict[int, float]:
        """Split -> how many test rows a cell has there."""
        return {fit.split: fit.n_test for fit in self._cells.get((method, dataset), []) if pd.notna(fit.n_test)}

    def paired(self, method: str, dataset: str, metric: str, theirs: dict[int, float]) -> tuple[float, float, int]:
        """(mean of ours - theirs, its standard error, number) of the splits that both have; (NaN, NaN, 0) below two."""
        ours = self.by_run(method, dataset, metric)
        both = pd.DataFrame({"ours": ours.values if ours else {}, "theirs": theirs}, dtype=float)
        both = both[np.isfinite(both).all(axis=1)]
        return paired_mean(both["ours"], both["theirs"], 0.0) if len(both) > 1 else (math.nan, math.nan, 0)

    def _by_run(self, method: str, dataset: str, metric: str) -> Scores | None:
        """None where the run has no fit of them."""
        fits = [fit for fit in self._cells.get((method, dataset), []) if fit.status not in NOT_TRIED]
        scores = self._scores(metric).get((method, dataset), pd.Series(dtype=float))
        finite = bool(np.isfinite(scores).all())
        reason = why_not_judged(fits, metric) or ("" if finite else "an infinite score, or none")
        at_most = finite and metric.startswith("ess_") and all(fit.status in SCORED for fit in fits)
        return Scores(self, scores, reason, at_most) if len(scores) or reason else None

    def _by_split(self, metric: str) -> dict[tuple[str, str], pd.Series]:
        """Cell -> its scores by split, of chains by split and number."""
        fits = self.view.fits[~self.view.fits["status"].isin(NOT_TRIED)]
        keys = ["split", "replica"] if self.by_chain(metric) else ["split"]
        means = fits[metric].astype(float).groupby([fits[key] for key in (*CELL, *keys)]).mean()
        return {cell: scores.droplevel(CELL) for cell, scores in means.groupby(level=CELL) if scores.notna().any()}

    def _of_cell(self, method: str, dataset: str) -> dict[str, Any]:
        """What `OurMean` says of a cell whatever the metric is."""
        fits = self._cells[method, dataset]
        done = [fit for fit in fits if fit.status in SCORED]
        made_by = pd.DataFrame([(fit.commit, fit.dirty) for fit in done], columns=["commit", "dirty"])
        return {
            "splits": len({fit.split for fit in done}),
            "chains": max(0 if pd.isna(fit.chains) else int(fit.chains) for fit in fits),
            "unconverged": sum(pd.isna(fit.chains) and fit.status == UNMIXED for fit in fits),
            "protocol": done[0].protocol,
            "budget": done[0].budget,
            "commit": " ".join(commits(made_by, 10, mark_dirty=True)) or "unknown",
        }

    def _averaged(self, metric: str) -> dict[tuple[str, str], tuple[float, float, float, float]]:
        """(mean, sd with ddof = 1, n) over finite values of finished fits, and the sd of the means of splits; of
        predictions all are over these means."""
        done = self.view.done
        values = done.loc[np.isfinite(done[metric].astype(float)), [*CELL, "split", metric]]
        of_splits = values.groupby([*CELL, "split"], as_index=False)[metric].mean()
        summary = (values if self.by_chain(metric) else of_splits).groupby(CELL)[metric].agg(["mean", "std", "count"])
        summary["between"] = of_splits.groupby(CELL)[metric].std()
        return dict(zip(summary.index, summary.itertuples(index=False, name=None), strict=True))

    def _unfinished(self, fits: list[Any], metric: str, n: int) -> str:
        """Why a mean may not be judged."""
        if verdicts.group(metric) == "predictions" and any(
            fit.convergence == "" and pd.notna(fit.steps) and pd.isna(fit.chains) and not _as_published(fit)
            for fit in fits
        ):
            return "no record says whether ours have converged"
        undefined = (len(fits) if self.by_chain(metric) else len({fit.split for fit in fits})) - n
        lacking = f"the metric is undefined in {count(undefined, 'run')}" if undefined else ""
        return why_not_judged(fits, metric) or lacking


def why_not_judged(fits: list[Any], metric: str) -> str:
    """Why scores of some fits (rows of `View.fits`) may not be judged, '' if they may. Fits by gradients that still
    improve may with as many updates as were published; how chains move may up to `MIXED`, and their R-hat always."""
    moves = metric in verdicts.OPERATIONS or verdicts.group(metric) == "samplers"
    for fit in fits:
        any_stage = moves or pd.isna(fit.chains) and _as_published(fit)
        if fit.status != "done" and not (any_stage and fit.status in SCORED):
            return describe_statuses(fits)
    if metric.startswith("r_hat"):
        return ""
    failing = [fit for fit in fits if fit.unmixed and not (moves and fit.r_hat <= verdicts.MIXED)]
    if failing:
        return f"not converged in {count(len({fit.split for fit in failing}), 'split')}: {failing[0].unmixed}"
    return _too_short(fits) if fits and metric.startswith("ess_") else ""


def _too_short(fits: list[Any]) -> str:
    """Why effective sample sizes of a cell may not be compared: of few autocorrelation times an estimate is too large,
    with as many draws as were published ours as much as the printed one. The time is that of the worst method and
    split, by Geyer's estimate for each chain or the bulk ESS of all, whichever is the longer."""
    fewest = verdicts.FEWEST_TIMES_ALIKE if all(map(_as_published, fits)) else verdicts.FEWEST_TIMES
    splits = pd.DataFrame(fits).groupby(["method", "split"])[LENGTH].mean().astype(float)
    times = np.fmin(splits["ess_min"], splits["ess_bulk"] / splits["chains"])
    if not (times < fewest).any():
        return ""
    length = f"chains of {splits['iterations'].max():g} draws are {times.min():.2g} autocorrelation times long"
    return f"{length}, of which {fewest} are needed"


def _as_published(fit: Any) -> bool:
    """Whether a fit has as many updates as were published: at budget `paper`, without `steps=` of a user."""
    return fit.budget == "paper" and not re.search(r"\bsteps=", str(fit.overrides))


def run_settings(command: str) -> tuple[str, str]:
    """The study in a run's command, and those of its overrides that change methods, protocol or budget."""
    study, overrides = config.command_words(command)
    of_study, given = {*STUDY_KEYS} - OF_METHODS, config.split_overrides(overrides)
    return study, " ".join(f"{key}={value}" for key, value in given if key.removeprefix("study.") not in of_study)
