"""Progress of a batch for a person: which cells, how far, how much longer. Silent under CI."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator

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
        self.live: tracking.Live | None = None
        if any(group.how.live for group in groups):
            with self._ended_by_an_error():
                self.live = tracking.Live(where)
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
            with self._ended_by_an_error():
                self.live.see(group, progress)
        if self.moving and progress:
            print(f"{CLEAR}  {name(group)}: {describe(progress)}", end="", file=sys.stderr, flush=True)

    def end(self, group: Group) -> None:
        if self.live:
            with self._ended_by_an_error():
                self.live.end(group)

    @contextlib.contextmanager
    def _ended_by_an_error(self) -> Iterator[None]:
        """A block that calls the tracker; an error in it gives a line, and ends the stream."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a tracker is a view: whatever it does wrong ends no batch
            self.live = None
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(f"gpbench: no live stream to MLflow ({first}); the fits go on", file=sys.stderr)


def name(group: Group) -> str:
    """method on dataset, splits a-b."""
    splits = sorted(f.split for f in group.fits)
    which = f"split {splits[0]}" if len(splits) == 1 else f"splits {splits[0]}-{splits[-1]}"
    return f"{group.address.method} on {group.address.dataset}, {'all rows' if group.what.is_final else which}"


def describe(progress: Progress) -> str:
    """How far a group is, and an estimate of the rest."""
    part = progress.step / progress.steps
    left = progress.seconds * (1 - part) / max(part, 1e-9)
    if progress.at_most:
        return f"step {progress.step} of at most {progress.steps}, at most {left:.0f} s left"
    return f"step {progress.step} of {progress.steps} ({part:.0%}), about {left:.0f} s left"
