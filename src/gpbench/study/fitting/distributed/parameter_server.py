"""Parameter server and workers of asynchronous SGD, as plain objects; `asynchronous` makes them processes.

Each of the tickets 0 .. steps - 1 stands for the rows and the noise of a step, and is applied exactly once: the server
hands them out in order, and takes back those of workers that die.
"""

import heapq
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from gpbench.data.table import Table
from gpbench.study.fitting import devices
from gpbench.study.fitting.checkpoint import Content, serialised
from gpbench.study.fitting.children import keep_freed_memory
from gpbench.study.fitting.distributed import updates
from gpbench.study.fitting.distributed.updates import Push
from gpbench.study.fitting.lightning_module import GradientFit
from gpbench.study.records import Group


class Task(NamedTuple):
    """What a worker fetches: the step whose rows and noise it is to take, and the parameters, an array each."""

    ticket: int
    parameters: list[np.ndarray]


class Moment(NamedTuple):
    """What the server tells of an update that is due in the trace; parameters only where they are to be evaluated.

    staleness: mean over the updates since the last moment."""

    step: int
    seconds: float
    loss: np.ndarray
    staleness: float
    active: bool
    parameters: list[np.ndarray] | None


class SharedFit(GradientFit):
    """A fit whose steps are made by several processes; each of them holds one of these.

    issued: tickets 0 .. issued - 1 were handed out; returned: those of them that are to be handed out again;
    staleness: number of updates whose gradient was 0, 1, ... updates old; restarts: of workers."""

    def __init__(self, group: Group, table: Table, work: Path) -> None:
        device = devices.of(group.how)
        torch.set_num_threads(group.how.threads)
        keep_freed_memory()  # of server and workers, which are no forks of the process that does
        # before a checkpoint is loaded
        self.issued, self.restarts = 0, 0
        self.returned: list[int] = []
        self.staleness: list[int] = []
        super().__init__(group, table, work, device)
        self.to(device)
        self.configure_optimizers()

    def content(self) -> Content:
        tickets = {"issued": self.issued, "returned": self.returned}
        return super().content() | tickets | {"staleness": self.staleness, "restarts": self.restarts}

    def load(self, saved: Content) -> None:
        super().load(saved)
        self.issued, self.returned = saved["issued"], saved["returned"]
        self.staleness, self.restarts = saved["staleness"], saved["restarts"]


class Server:
    """Owner of the parameters, of Adam and of the tickets.

    Its calls come one at a time and with all their arguments, so that a push is applied wholly or not at all."""

    def __init__(self, group: Group, table: Table, work: Path) -> None:
        self.fit = SharedFit(group, table, work)
        self.out: dict[int, tuple[int, int]] = {}  # worker -> its ticket, and the updates that its parameters have seen
        self.lost: set[int] = set()
        self.recent: list[int] = []  # staleness since the last moment
        self.moments: list[Moment] = []
        self.at_work = False

    def exchange(self, worker: int, push: Push | None) -> Task | None:
        """Take a worker's push, if it has one, and give it the next task; None where nothing is left to do."""
        if worker in self.lost:
            return None  # its last words, which come late: its ticket is with another
        if not self.at_work and self.fit.done < self.fit.steps:
            self.fit.clock.go()
            self.at_work = True
        if push is not None:
            _, version = self.out.pop(worker)
            self._apply(push, self.fit.done - version)
        return self._hand_out(worker)

    def lose(self, worker: int) -> int:
        """Take back the ticket of a worker that died; the number of those so far."""
        self.lost.add(worker)
        if worker in self.out:
            heapq.heappush(self.fit.returned, self.out.pop(worker)[0])
        self.fit.restarts += 1
        return self.fit.restarts

    def report(self, whole: bool) -> tuple[float, list[Moment], bytes | None]:
        """Seconds of training, what happened since the last report, and (if asked) the content of a checkpoint."""
        fit, (moments, self.moments) = self.fit, (self.moments, [])
        if not whole:
            return self._seconds(), moments, None
        content = fit.content() | {"returned": sorted([*fit.returned, *(ticket for ticket, _ in self.out.values())])}
        return self._seconds(), moments, bytes(serialised(content | {"seconds": self._seconds()}))

    def _hand_out(self, worker: int) -> Task | None:
        fit = self.fit
        if fit.returned:
            ticket = heapq.heappop(fit.returned)
        elif fit.issued < fit.steps:
            ticket, fit.issued = fit.issued, fit.issued + 1
        else:
            return None
        self.out[worker] = ticket, fit.done
        return Task(ticket, updates.parameters_of(fit))

    def _apply(self, push: Push, staleness: int) -> None:
        fit = self.fit
        updates.apply(fit, push, fit.done)
        fit.note(push.events)
        fit.done += 1
        self.recent.append(staleness)
        fit.staleness += [0] * (staleness + 1 - len(fit.staleness))
        fit.staleness[staleness] += 1
        looked = fit.done in fit.evaluated
        if looked or fit.done in fit.logged:
            mean, self.recent = float(np.mean(self.recent)), []
            parameters = updates.parameters_of(fit) if looked else None
            self.moments.append(Moment(fit.done, self._seconds(), push.loss, mean, bool(fit.active[0]), parameters))
        if fit.done == fit.steps:
            fit.clock.pause()
            self.at_work = False

    def _seconds(self) -> float:
        """Of training: from the first task to the last push."""
        if self.at_work:
            self.fit.clock.pause()
            self.fit.clock.go()
        return self.fit.clock.seconds


class Worker:
    """Computes gradients."""

    def __init__(self, group: Group, table: Table, work: Path) -> None:
        self.fit = SharedFit(group, table, work)

    def work(self, exchange: Callable[[Push | None], Task | None]) -> None:
        """Until nothing is left to do."""
        push = None
        while (task := exchange(push)) is not None:
            push = self.gradient(task)

    def gradient(self, task: Task) -> Push:
        return updates.gradient(self.fit, task.parameters, task.ticket)
