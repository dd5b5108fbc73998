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
FACTS = [*CELL, "split", "replica", "status", "reason", "protocol", "budget", "overrides", "commit", "dirty", "unmixed"]
ANY = "any"  # name of a data set that stands for each: ours is the first that is judged
LENGTH = ["iterations", "ess_min", "ess_bulk", "chains", "r_hat"]


@dataclass(frozen=True)
class OurMean:
    """Our mean over n runs."""

    mean: float
    sd: float
    n: int
    sd_of_splits: float  # of the means of splits: of a sampler, between its data sets
    splits: int
    chains: int  # of a sampler on one data set; 0 for predictions without chains
    improving: int  # fits by gradients that still improve
    unfinished: str  # why it may not be judged; empty where it may
    protocol: str
    budget: str
    commit: str  # of the finished fits; `+`: with uncommitted changes


class Scores(NamedTuple):
    """The scores of a cell by split (of chains, by split and number), and why they are not judged."""

    run: Counterparts
    values: pd.Series
    reason: str


class Counterparts:
    """The means of a study by method, data set and metric; each metric is averaged once."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.study, self.settings = run_settings(view.study["command"])
        self._fits = view.fits[[*FACTS, *LENGTH, "steps", "steps_done", "convergence"]]
        self._places = self._fits.groupby(CELL).indices
        self._averages, self._facts_of = cache(self._averaged), cache(self._of_cell)
        self.by_run = cache(self._by_run)

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
        if (method, dataset) not in self._places:
            return "not planned"
        if (method, dataset) not in self._averages(metric):
            return describe_statuses(self._fits.iloc[self._places[method, dataset]]) or "the metric is undefined"
        mean, sd, n, between = self._averages(metric)[method, dataset]
        fits, facts = self._facts_of(method, dataset)
        unfinished = self._unfinished(fits, metric, int(n))
        return OurMean(mean, sd, int(n), between, unfinished=unfinished, **facts)

    def updates(self, method: str, dataset: str) -> float:
        """Updates that a fit of a cell made on average, before the rule of convergence ended it; 0 without any."""
        fits = self._fits.iloc[self._places.get((method, dataset), [])]
        return float(np.nan_to_num(fits["steps_done"].fillna(fits["steps"]).astype(float).mean()))

    def paired(self, method: str, dataset: str, metric: str, theirs: dict[int, float]) -> tuple[float, float, int]:
        """(mean of ours - theirs, its standard error, number) of the splits that both have; (NaN, NaN, 0) below two."""
        ours = self.by_run(method, dataset, metric)
        both = pd.DataFrame({"ours": ours.values if ours else {}, "theirs": theirs}, dtype=float)
        both = both[np.isfinite(both).all(axis=1)]
        return paired_mean(both["ours"], both["theirs"], 0.0) if len(both) > 1 else (math.nan, math.nan, 0)

    def _by_run(self, method: str, dataset: str, metric: str) -> Scores | None:
        """None where the run has no fit of them."""
        if (method, dataset) not in self._places:
            return None
        fits = self._fits.iloc[self._places[method, dataset]]
        fits = fits[~fits["status"].isin(("missing", "skipped"))]
        keys = ["split", "replica"] if self.by_chain(metric) else ["split"]
        scores = self.view.fits[metric].astype(float)[fits.index].groupby([fits[key] for key in keys]).mean().dropna()
        reason = why_not_judged(fits, metric) or ("" if np.isfinite(scores).all() else "an infinite score")
        return Scores(self, scores, reason) if len(scores) or reason else None

    def _of_cell(self, method: str, dataset: str) -> tuple[pd.DataFrame, dict]:
        """The fits of a cell, and what `OurMean` says of it whatever the metric is."""
        fits = self._fits.iloc[self._places[method, dataset]]
        done = fits[fits["status"].isin(SCORED)]
        return fits, {
            "splits": fits["split"].nunique(),
            "chains": int(fits["chains"].astype(float).fillna(0).max()),
            "improving": int((fits["chains"].isna() & (fits["status"] == UNMIXED)).sum()),
            "protocol": done["protocol"].iloc[0],
            "budget": done["budget"].iloc[0],
            "commit": " ".join(commits(done, 10, mark_dirty=True)) or "unknown",
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

    def _unfinished(self, fits: pd.DataFrame, metric: str, n: int) -> str:
        """Why a mean may not be judged."""
        if verdicts.group(metric) == "predictions" and any(
            fit["convergence"] == "" and pd.notna(fit["steps"]) and pd.isna(fit["chains"]) and not _as_published(fit)
            for fit in fits.to_dict("records")
        ):
            return "no record says whether ours have converged"
        undefined = (len(fits) if self.by_chain(metric) else fits["split"].nunique()) - n
        lacking = f"the metric is undefined in {count(undefined, 'run')}" if undefined else ""
        return why_not_judged(fits, metric) or lacking


def why_not_judged(fits: pd.DataFrame, metric: str) -> str:
    """Why scores of some fits may not be judged, '' if they may. Fits by gradients that still improve may with as many
    updates as were published; how chains move may up to `MIXED`, and their R-hat always."""
    rows, moves = fits.to_dict("records"), verdicts.is_of_moves(metric)
    for fit in rows:
        any_stage = moves or pd.isna(fit["chains"]) and _as_published(fit)
        if fit["status"] != "done" and not (any_stage and fit["status"] in SCORED):
            return describe_statuses(fits)
    if metric.startswith("r_hat"):
        return ""
    failing = [fit for fit in rows if fit["unmixed"] and not (moves and fit["r_hat"] <= verdicts.MIXED)]
    if failing:
        return f"not converged in {count(len({fit['split'] for fit in failing}), 'split')}: {failing[0]['unmixed']}"
    return _too_short(fits) if metric.startswith("ess_") else ""


def _too_short(fits: pd.DataFrame) -> str:
    """Why effective sample sizes of a cell may not be compared: of few autocorrelation times an estimate is too large,
    with as many draws as were published ours as much as the printed one. The time is that of the worst method and
    split, by Geyer's estimate for each chain or the bulk ESS of all, whichever is the longer."""
    fewest = verdicts.FEWEST_TIMES_ALIKE if all(map(_as_published, fits.to_dict("records"))) else verdicts.FEWEST_TIMES
    splits = fits.groupby(["method", "split"])[LENGTH].mean().astype(float)
    times = np.fmin(splits["ess_min"], splits["ess_bulk"] / splits["chains"])
    if not (times < fewest).any():
        return ""
    length = f"chains of {splits['iterations'].max():g} draws are {times.min():.2g} autocorrelation times long"
    return f"{length}, of which {fewest} are needed"


def _as_published(fit: dict[str, Any]) -> bool:
    """Whether a fit has as many updates as were published: at budget `paper`, without `steps=` of a user."""
    return fit["budget"] == "paper" and not re.search(r"\bsteps=", str(fit["overrides"]))


def run_settings(command: str) -> tuple[str, str]:
    """The study in a run's command, and its overrides of methods, protocol or budget (not of the study's own keys)."""
    study, overrides = config.command_words(command)
    of_study = {*STUDY_KEYS, *(f"study.{key}" for key in STUDY_KEYS)} - {"tune"}
    settings = [f"{key}={value}" for key, value in config.split_overrides(overrides) if key not in of_study]
    return study, " ".join(settings)
