"""The backlog: runs that wait for an idle machine, in the order of their value (conf/backlog.yaml).

`gpbench backlog run` works through them in pieces of some minutes at the lowest priority. Tables fill evenly: a split
of every cell comes before the next one, and of a split the cheap cells come first. After each piece the finished fits
are recorded in docs/results. A piece that is killed resumes from its checkpoints, and a fit that another process is at
is left to it, so that several backlogs, or a study, may work on one store.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpbench import config
from gpbench.config.schema import Run
from gpbench.data import prepare
from gpbench.errors import UserError, count
from gpbench.places import Places, write_if_changed
from gpbench.study.planning import batches
from gpbench.study.planning import plan as planning
from gpbench.study.planning.estimate import Estimate, show
from gpbench.study.planning.plan import Plan
from gpbench.study.records import Batch, Cell, Group, to_json
from gpbench.study.results import collect
from gpbench.study.storage import committed
from gpbench.study.storage.store import Store

NICENESS = 19


def run(where: Places, cores: int, minutes: float) -> Iterator[str]:
    """Work through the backlog until it or the time ends; lines before and after each piece, then what is left out.
    UserError where a job cannot run."""
    end = time.monotonic() + 60 * minutes
    setting = config.backlog(where.conf)
    tried: set[str] = set()
    plan_of = functools.cache(functools.partial(_plan, where))  # several runs are parts of one study
    for waiting in setting.runs:  # a mistake in a later one is told now, and not in the middle of the night
        wanted_cells(plan_of(waiting.study, waiting.overrides), waiting)
    for waiting in setting.runs:
        absent: dict[str, str] = {}
        if time.monotonic() < end:
            plan = plan_of(waiting.study, waiting.overrides)
            if _has_unrecorded(where, waiting, plan):  # jobs of a backlog that was killed have ended, say
                yield _recorded(where, plan)
        while time.monotonic() < end:
            plan = plan_of(waiting.study, waiting.overrides)
            jobs = next_piece(where, waiting, plan, cores, setting.piece_minutes, tried, absent)
            if not jobs:
                break
            fits = {fit.fit_id for job in jobs for group in job.groups for fit in group.fits}
            left = sum(state.name == "pending" for state in plan.states.values())
            longest = max(job.seconds for job in jobs) / 60
            yield f"{plan.name}: {count(len(fits), 'fit')} of {left} that are left, about {longest:.1f} minutes"
            tried |= fits
            _work(where, plan.name, jobs, end)
            yield _recorded(where, plan)
            plan_of.cache_clear()
        yield from (f"{waiting.study}: {name} is left out: {reason}" for name, reason in absent.items())


def _plan(where: Places, study: str, overrides: str) -> Plan:
    try:
        return planning.make(where, study, overrides)
    except UserError as error:
        raise UserError(f"conf/backlog.yaml, study {study!r} with overrides {overrides!r}: {error}") from error


def next_piece(
    where: Places, waiting: Run, plan: Plan, cores: int, minutes: float, tried: set[str], absent: dict[str, str]
) -> list[Batch]:
    """The next fits of a run, of the plan of its study, dealt to the cores; [] where it has none left. tried: fits that
    were begun since the backlog runs; absent: data sets that cannot be prepared, and why."""
    store, cells = Store(where.store), wanted_cells(plan, waiting)
    fits = [fit.fit_id for cell in cells if cell.address.dataset not in absent for fit in cell.fits if not cell.skip]
    pending = {fit_id for fit_id in fits if plan.states[fit_id].name == "pending"} - tried
    wanted = batches.groups(store, cells, pending)
    jobs: list[list[Group]] = [[] for _ in range(cores)]
    seconds = [0.0] * cores
    predicted = {g.group_id: plan.cost.seconds(g, store.checkpoint(g.group_id)) * len(g.fits) for g in wanted}
    for group in sorted(wanted, key=lambda group: (min(fit.split for fit in group.fits), predicted[group.group_id])):
        core = seconds.index(min(seconds))
        if jobs[core] and seconds[core] > 60 * minutes:
            break
        if not store.is_free(group) or not _is_prepared(where, group.address.dataset, absent):
            continue
        jobs[core].append(group)
        seconds[core] += predicted[group.group_id]
    return [batches.batch_of(groups, total) for groups, total in zip(jobs, seconds, strict=True) if groups]


def wanted_cells(plan: Plan, waiting: Run) -> list[Cell]:
    """The cells of a plan that the backlog names. Raises UserError where a name is none of the study's."""
    where = f"conf/backlog.yaml, study {waiting.study!r}"
    all_methods, all_datasets = {cell.method for cell in plan.cells}, {cell.address.dataset for cell in plan.cells}
    methods = all_methods if waiting.methods is None else waiting.methods
    datasets = all_datasets if waiting.datasets is None else waiting.datasets
    config.require_known("method", methods, all_methods, where)
    config.require_known("data set", datasets, all_datasets, where)
    return [cell for cell in plan.cells if cell.method in methods and cell.address.dataset in datasets]


def _is_prepared(where: Places, dataset: str, absent: dict[str, str]) -> bool:
    """Whether a data set is there, fetched and prepared if need be; where it cannot be, `absent` says why."""
    if dataset not in absent:
        try:
            prepare.ensure(config.compose(where.conf, "dataset", dataset), where)
        except UserError as error:
            absent[dataset] = str(error)
    return dataset not in absent


def _work(where: Places, run: str, jobs: list[Batch], end: float) -> None:
    """Run some jobs of a run side by side; what is not finished at `end` stops and can be resumed."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.extend(_start(where, job) for job in jobs)
        for process in running:
            process.wait(max(end - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return
    finally:  # on an interrupt, too
        for process in running:
            process.terminate()
            process.wait()
    if failed := [batch for batch, process in zip(jobs, running, strict=True) if process.returncode]:
        raise UserError(f"a job of {run} ended with an error; see {_file(where, failed[0], 'log')}")


def _start(where: Places, job: Batch) -> subprocess.Popen[bytes]:
    """A process at the lowest priority, in a session of its own, that runs a job."""
    source, threads = _file(where, job, "json"), max(group.how.threads for group in job.groups)
    write_if_changed(source, to_json(job))
    python = ["nice", "-n", str(NICENESS), sys.executable, "-m"]
    command = [*python, "gpbench.study.commands.job", str(source), str(_file(where, job, "done.json")), "--no-wait"]
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    with _file(where, job, "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=where.root, env=environment, stderr=log, start_new_session=True)
    _let_others_first(process.pid)
    return process


def _let_others_first(session: int) -> None:
    """Linux may share the cores among sessions first (`autogroup` in man 7 sched): there niceness counts only within
    one, and the session as a whole has another."""
    group = Path(f"/proc/{session}/autogroup")
    while group.exists():
        try:
            group.write_bytes(b"%d" % NICENESS)
            return
        except BlockingIOError:  # a user may change one in a tenth of a second
            time.sleep(0.1)
        except OSError:  # the kernel or a container forbids it; niceness is left
            return


def _file(where: Places, job: Batch, suffix: str) -> Path:
    return where.runs / "backlog" / f"{job.batch_id}.{suffix}"


def _has_unrecorded(where: Places, waiting: Run, plan: Plan) -> bool:
    """Whether a fit of a run is done that the records lack."""
    fits = {fit.fit_id for cell in wanted_cells(plan, waiting) if not cell.skip for fit in cell.fits}
    return any(plan.states[fit_id].name == "done" for fit_id in fits - committed.by_fit(where, plan.name).keys())


def _recorded(where: Places, plan: Plan) -> str:
    if doubts := collect.doubts(where, plan):
        return f"{plan.name}: not recorded: {'; '.join(doubts)}; `gpbench record` with --force does"
    new, total = collect.record(where, plan)
    return f"{plan.name}: {count(new, 'fit')} recorded, {total} in all"


def overview(where: Places, waits: dict[str, int]) -> Iterator[str]:
    """For each run its fits done of those planned, the hours of one core left with their interval, and the verdicts
    that wait for it; below it what runs the same in Snakemake, on a cluster too. waits: number of these by study."""
    runs, plan_of = config.backlog(where.conf).runs, functools.cache(functools.partial(_plan, where))
    yield f"{'run':<40}{'done':>6} of {'fits':<7}{'left on one core, 90 % interval':<36}verdicts that wait"
    for waiting in runs:
        plan = plan_of(waiting.study, waiting.overrides)
        part = replace(plan, cells=tuple(wanted_cells(plan, waiting)))
        states = [plan.states[fit.fit_id].name for cell in part.cells if not cell.skip for fit in cell.fits]
        left = show(Estimate(part).core) if "pending" in states else "nothing"
        done = f"{states.count('done'):>6} of {len(states):<7}"
        yield f"{plan.name:<40}{done}{left:<36}{waits.get(waiting.study, 0)}"
        named = (("only", waiting.methods), ("datasets", waiting.datasets))
        narrowed = [f"{key}=[{','.join(names)}]" for key, names in named if names is not None]
        yield f"    {planning.snakemake_command(waiting.study, ' '.join([waiting.overrides, *narrowed]))}"
