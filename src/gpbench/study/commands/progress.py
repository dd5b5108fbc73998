"""Progress of a batch for a person: which cells, how far, how much longer. Silent under CI."""

from __future__ import annotations

import os
import sys
import time

from gpbench.places import Places
from gpbench.study import tracking
from gpbench.study.commands.snakemake_graph import StudyClock
from gpbench.study.records import Group, Progress
from gpbench.study.storage.store import Store

CLEAR = "\r\033[K"  # empties the line of a terminal


class Watch:
    """One line a group of fits on stderr; on a terminal also a line that moves; on request, a live stream to MLflow."""

    def __init__(self, groups: list[Group], where: Places) -> None:
        self.store = Store(where.store)
        self.total = sum(len(g.fits) for g in groups)
        self.count, self.looked = 0, 0.0
        self.quiet = bool(os.environ.get("CI"))
        self.moving = sys.stderr.isatty() and not self.quiet
        self.live = tracking.Live(where) if any(g.how.live for g in groups) else None
        self.study = StudyClock(where)

    def begin(self, group: Group) -> None:
        self.count += len(group.fits)
        if not self.quiet:
            fresh = CLEAR * self.moving  # the line that moved is replaced, not continued
            place = f"fit {self.count}/{self.total} of this job: {name(group)}"
            print(f"{fresh}  {place}{self.study.in_words()}", file=sys.stderr)

    def look(self, group: Group) -> None:
        """Look at a group's progress, at most once a second."""
        now = time.monotonic()
        if now - self.looked < 1.0:
            return
        self.looked = now
        progress = self.store.progress(group.group_id)
        if self.live and progress and group.how.live:
            self.live.see(group, progress)
        if self.moving and progress:
            print(f"{CLEAR}  {name(group)}: {describe(progress)}", end="", file=sys.stderr, flush=True)

    def end(self, group: Group) -> None:
        if self.live:
            self.live.end(group)


def name(group: Group) -> str:
    """method on dataset, splits a-b."""
    splits = sorted(f.split for f in group.fits)
    address = group.address
    which = f"split {splits[0]}" if len(splits) == 1 else f"splits {splits[0]}-{splits[-1]}"
    return f"{address.method} on {address.dataset}, {which}"


def describe(progress: Progress) -> str:
    """How far a group is, and an estimate of the rest."""
    part = progress.step / progress.steps
    left = progress.seconds * (1 - part) / max(part, 1e-9)
    if progress.at_most:
        return f"step {progress.step} of at most {progress.steps}, at most {left:.0f} s left"
    return f"step {progress.step} of {progress.steps} ({part:.0%}), about {left:.0f} s left"
