"""Our means in the place of published numbers: the cells of a study, of samplers averaged over chains."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from gpbench import config
from gpbench.errors import count
from gpbench.report.scorecard import verdicts
from gpbench.report.view import SCORED, View, describe_statuses
from gpbench.study.planning.resolve import STUDY_KEYS

CELL = ["method", "dataset"]
FACTS = [*CELL, "split", "status", "reason", "protocol", "budget", "commit", "dirty"]


@dataclass(frozen=True)
class Ours:
    """Our mean over n runs; unfinished: why it may not be judged, '' where it may."""

    mean: float
    sd: float
    n: int
    unfinished: str
    protocol: str
    budget: str
    commit: str


class Counterparts:
    """The cells of a study by method, data set and metric; each metric is averaged once, each cell looked up."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.study, self.settings = asked(view.study["command"])
        self._fits = view.fits[FACTS]
        self._places = self._fits.groupby(CELL).indices
        self._averages = cache(self._averaged)

    def name(self, names: str) -> str:
        """The first of the names that this study has; else all of them, as they are."""
        return next((name for name in names.split("|") if name in self.view.methods), names)

    def has(self, method: str, dataset: str) -> bool:
        """Whether the study has this cell, finished or not."""
        return method in self.view.methods and dataset in self.view.datasets

    def by_chain(self, metric: str) -> bool:
        """Whether a run is a chain of a sampler, not a split."""
        return self.view.study["kind"] == "sample" and not metric.startswith(verdicts.OF_A_SET)

    def find(self, method: str, dataset: str, metric: str) -> Ours | str:
        """Our mean, or why there is none."""
        if (method, dataset) not in self._places:
            return "not planned"
        fits = self._fits.iloc[self._places[method, dataset]]
        if (method, dataset) not in self._averages(metric):
            return describe_statuses(fits) or "the metric is undefined"
        mean, sd, n = self._averages(metric)[method, dataset]
        return Ours(mean, sd, int(n), self._unfinished(fits, metric, int(n)), *_facts(fits))

    def _averaged(self, metric: str) -> dict[tuple[str, str], tuple[float, float, float]]:
        """mean, sd (ddof = 1), n of the finite values of finished fits; of predictions, of the means of splits."""
        done = self.view.done
        values = done.loc[np.isfinite(done[metric].astype(float)), [*CELL, "split", metric]]
        if not self.by_chain(metric):
            values = values.groupby([*CELL, "split"], as_index=False)[metric].mean()
        found = values.groupby(CELL)[metric].agg(["mean", "std", "count"])
        return dict(zip(found.index, found.itertuples(index=False, name=None), strict=True))

    def _unfinished(self, fits: pd.DataFrame, metric: str, n: int) -> str:
        """An R-hat needs no chain that passes the gate: it is what the gate is about."""
        allowed = SCORED if metric.startswith("r_hat") else ("done",)
        if not fits["status"].isin(allowed).all():
            return describe_statuses(fits)
        lacking = (len(fits) if self.by_chain(metric) else fits["split"].nunique()) - n
        return f"the metric is undefined in {count(lacking, 'run')}" if lacking else ""


def _facts(fits: pd.DataFrame) -> tuple[str, str, str]:
    """Protocol, budget and commits (a plus: with uncommitted changes) of the finished fits of a cell."""
    done = fits[fits["status"].isin(SCORED)]
    made = zip(done["commit"].fillna(""), done["dirty"], strict=True)
    commits = {f"{commit[:10]}{'+' * (dirty is True)}" for commit, dirty in made if commit}
    return done["protocol"].iloc[0], done["budget"].iloc[0], " ".join(sorted(commits)) or "unknown"


def asked(command: str) -> tuple[str, str]:
    """The study that a run's command names, and what it overrides besides keys of the study: of methods, protocol or
    budget."""
    words = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
    given = config.split_overrides(words.get("overrides", ""))
    settings = [f"{key}={value}" for key, value in given if key.removeprefix("study.") not in STUDY_KEYS]
    return words.get("study", ""), " ".join(settings)
