"""Asynchronous SGD: a parameter server and k workers, whose gradients may be stale (cutajar2017, appendix F).

A worker fetches the parameters theta_v, which have seen v updates, and a ticket t; it computes the gradient g of minus
the objective at theta_v, with the rows and the noise of step t of a fit in one process, and pushes it. The server
applies it at once, when the parameters have seen u updates:

    theta_(u+1) = Adam(theta_u, g),    staleness u - v >= 0.

Each ticket is applied exactly once. One worker makes the fit of one process, bit for bit. With
more, the order of the pushes is a matter of time, so that neither a repeated nor a resumed fit has the same numbers.
What depends on the step but is no draw (which parameters are frozen) follows the number of updates u.

The processes are actors of ray; the driver, which starts them, evaluates the server's snapshots and writes checkpoints.
"""

import io
import itertools
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.study.fitting.devices import Clock
from gpbench.study.fitting.distributed.parameter_server import Moment, Server, SharedFit, Task, Worker
from gpbench.study.fitting.distributed.updates import Push, set_parameters
from gpbench.study.fitting.lightning_module import MODEL_FILE, TimeCap, answer, outcome, save
from gpbench.study.fitting.outcome import Lost, Outcome
from gpbench.study.records import Group

__all__ = ["MODEL_FILE", "answer", "run", "save"]

POLL_SECONDS = 0.2
LONGEST = 28  # letters of a temporary folder below which ray's sockets find place: the system allows a path of 107
MOST_RESTARTS = 20  # workers lost beyond this number are no accident


def exchange(server: Any, worker: int, push: Push | None) -> Task | None:
    """`Server.exchange` of the server in another process, whose handle this is."""
    import ray

    task: Task | None = ray.get(server.exchange.remote(worker, push))
    return task


class ServerClock(Clock):
    """The server's clock, as the driver last heard of it."""

    def pause(self) -> float:
        return self.seconds


class Driver:
    """Starts server and workers, replaces workers that die, and keeps trace and checkpoints out of the server's way."""

    def __init__(self, fit: SharedFit, workers: int) -> None:
        self.fit = fit
        fit.clock = ServerClock(fit.clock.device, fit.clock.seconds)
        with cluster(workers + 1) as self.ray:
            self.shared = fit.group, self.ray.put(fit.table), fit.work
            self.server = self.ray.remote(Server).remote(*self.shared)
            self.numbers = itertools.count()
            self.crew: dict[int, Any] = {}
            try:
                self.hire(workers)
                self.watch()
            except self.ray.exceptions.RayActorError as error:
                raise Lost(f"the parameter server died ({str(error).splitlines()[0]})") from error

    def hire(self, count: int) -> None:
        """New workers; none of them begins before all are there."""
        workers = [self.ray.remote(Worker).remote(*self.shared) for _ in range(count)]
        self.ray.wait([worker.__ray_ready__.remote() for worker in workers], num_returns=count)
        for worker in workers:
            number = next(self.numbers)
            self.crew[worker.work.remote(partial(exchange, self.server, number))] = number, worker

    def watch(self) -> None:
        """Until no worker is left."""
        while self.crew:
            ended, _ = self.ray.wait(list(self.crew), timeout=POLL_SECONDS)
            for work in ended:
                self.dismiss(work)
            whole = not self.crew or self.fit.is_due() or self.fit.is_over()
            self.follow(*self.ray.get(self.server.report.remote(whole)))

    def dismiss(self, work: Any) -> None:
        """A worker that ended; one that died is replaced."""
        number, _ = self.crew.pop(work)
        try:
            self.ray.get(work)
        except self.ray.exceptions.RayActorError as error:
            if self.ray.get(self.server.lose.remote(number)) > MOST_RESTARTS:
                raise RuntimeError(f"{MOST_RESTARTS + 1} workers died; the last: {error}") from error
            self.hire(1)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def follow(self, seconds: float, moments: list[Moment], content: bytes | None) -> None:
        """Trace rows of what happened at the server; a checkpoint where its content came along."""
        fit = self.fit
        for moment in moments:
            fit.done, fit.clock.seconds = moment.step, moment.seconds
            fit.active.fill_(moment.active)
            if moment.parameters is not None:
                set_parameters(fit, moment.parameters)
            fit.record(torch.tensor(moment.loss))
            fit.trace[-1][0]["staleness"] = moment.staleness
        fit.clock.seconds = seconds
        if content is not None:
            take(fit, content)
            fit.pause_at_block()


def take(fit: SharedFit, content: bytes) -> None:
    """Be as the server was at a report; the trace stays."""
    fit.load(torch.load(io.BytesIO(content), weights_only=True, map_location=fit.device) | {"trace": fit.trace})
    fit.configure_optimizers()


@contextmanager
def cluster(processes: int) -> Iterator[Any]:
    """ray, on this machine alone and for this fit alone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"  # all processes of a fit share its device
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else ray keeps one in the home folder
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: these workers are the fit itself
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError("asynchronous training needs ray, which is absent; pip install gpbench[distributed]") from None
    # not the work folder: paths of sockets are short
    place = None if len(tempfile.gettempdir()) <= LONGEST else "/tmp"
    with tempfile.TemporaryDirectory(prefix="ray-", dir=place, ignore_cleanup_errors=True) as folder:
        try:
            ray.init(
                address="local",
                num_cpus=processes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
            )
            yield ray
        finally:
            ray.shutdown()


def run(group: Group, table: Table, work: Path) -> list[Outcome]:
    """Fit the one fit of a group with `what.workers` workers (resuming where it was cut off)."""
    fit = SharedFit(group, table, work)
    workers = group.what.workers
    if fit.done < fit.steps:
        try:
            Driver(fit, workers)
        except TimeCap as cap:
            return [Outcome("stopped", str(cap))]
    result = outcome(fit, 0)
    count = np.array(fit.staleness)
    result.info |= {
        "workers": workers,
        "staleness_mean": float(np.arange(len(count)) @ count / count.sum()),
        "staleness_max": len(count) - 1,
        "staleness_histogram": fit.staleness,
        "restarts": fit.restarts,
    }
    return [result]
