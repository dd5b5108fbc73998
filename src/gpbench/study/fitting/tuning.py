"""Tuned fits: some settings are tried on an inner split of the training rows, and the fit is made with the best.

Finished trials are kept in the fit's folder of work, so that a fit that was interrupted does not repeat them."""

import json
import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpbench.data.table import Table
from gpbench.places import errno_of_disk, write_text
from gpbench.study.fitting import inner_split, stopping
from gpbench.study.fitting.entries import entry
from gpbench.study.fitting.outcome import Lost, Outcome
from gpbench.study.records import Fit, Group, Setting

TRIALS_FILE = "trials.json"


class Trial(NamedTuple):
    """Settings, their mean negative log density on the validation rows, why they have none, and how long it took."""

    settings: dict[str, Setting]
    score: float
    reason: str
    seconds: float


def run(group: Group, table: Table, work: Path) -> list[Outcome]:
    """Try the settings of a group of one fit, and make the fit with the best of them."""
    what, (fit,) = group.what, group.fits
    assert what.tune is not None
    path = work / TRIALS_FILE
    trials = _kept(path) if path.is_file() else []
    part = inner_split.training_part(what, table, fit.split)
    for settings in what.tune.candidates[len(trials) :]:
        ended = _try(group, part, work / f"trial-{len(trials)}", settings)
        if isinstance(ended, Outcome):
            return [ended]
        trials.append(ended)
        write_text(path, json.dumps([trial._asdict() for trial in trials]))
    chosen = trials[inner_split.best([t.score for t in trials], [t.reason for t in trials])].settings
    (outcome,) = entry(what).run(replace(group, what=what.with_settings(chosen)), table, work)
    seconds = sum(trial.seconds for trial in trials)
    outcome.seconds["train"] = outcome.seconds.get("train", 0.0) + seconds
    outcome.info |= {"tuned": chosen, "trials": len(trials), "seconds_tuning": seconds}
    return [outcome]


def _kept(path: Path) -> list[Trial]:
    """The trials of an earlier process; none where they are damaged, and so are made again."""
    try:
        return [Trial(**kept) for kept in json.loads(path.read_bytes())]
    except (ValueError, TypeError):
        return []


def _try(group: Group, part: Table, work: Path, settings: dict[str, Setting]) -> Outcome | Trial:
    """A trial; an outcome where it was stopped."""
    if stopping.is_requested():
        return Outcome("stopped", "stopped between two trials, as its job had to end")
    what, (fit,) = inner_split.trial(group.what, settings), group.fits
    rows, validation = what.protocol.splits.sizes(len(part.targets))
    inner = replace(group, what=what, rows=rows, fits=(Fit(fit.fit_id, 0, fit.replica, rows, validation),))
    work.mkdir(exist_ok=True)
    started = time.perf_counter()
    score, reason = math.inf, ""
    try:
        outcome: Outcome
        (outcome,) = entry(what).run(inner, part, work)
        if outcome.status == "stopped":
            return outcome
        reason = outcome.reason
        if outcome.points is not None:
            score = -float(outcome.points["log_density"].mean())
    except Exception as error:  # settings that a method cannot take have lost, a full disk or a dead process has not
        if errno_of_disk(error) or isinstance(error, Lost):
            raise
        reason = f"{type(error).__name__}: {error}"
    shutil.rmtree(work)
    return Trial(settings, score, reason, time.perf_counter() - started)
