"""One child process for each group of fits, forked from a parent that has imported everything.

A child that crashes takes its own group with it and nothing else; a group of several is then tried one by one.
"""

import ctypes
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.places import Places, errno_of_disk, write_text
from gpbench.study import scoring
from gpbench.study.fitting import stopping, tuning
from gpbench.study.fitting.entries import entry
from gpbench.study.fitting.outcome import Lost, Outcome
from gpbench.study.planning import identity
from gpbench.study.records import Fit, FitRecord, Group, Seconds, to_json
from gpbench.study.storage import arrays, provenance
from gpbench.study.storage.store import Store

STOPPED = 75
"""Exit code of a child whose fits are stopped, or trained and not written, and can be resumed."""
UNTOUCHED = 76
"""Exit code of a child whose fits stay as they are, as a disk or a lock was refused: one by one they end no better."""
POLL_SECONDS = 0.02


def run_group(group: Group, table: Table, where: Places, look: Callable[[Group], None]) -> None:
    """One child for the group; if it dies with several fits, one child for each. `look` is called meanwhile.

    Where the job is to end soon, fits that have not ended stay as they are."""
    store = Store(where.store)
    code = _in_child(group, table, where, look)
    missing = [fit for fit in group.fits if not store.has(fit.fit_id)]
    if not missing or stopping.is_requested() or code in (STOPPED, UNTOUCHED):
        return
    if len(group.fits) > 1:
        for fit in missing:
            run_group(replace(group, fits=(fit,), group_id=identity.digest([fit.fit_id])), table, where, look)
        store.end(group.group_id)
    else:  # its checkpoints stay
        killed = f"killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended by exit({code})"
        outcome = Outcome("failed", f"{killed}; `gpbench retry` continues from the checkpoint")
        write(store, group, missing[0], outcome, provenance.now(), where)


def _in_child(group: Group, table: Table, where: Places, look: Callable[[Group], None]) -> int:
    """Fork, run, wait; the child's exit code, negative for a signal."""
    if multiprocessing.current_process().daemon:
        raise UserError("a daemonic process may start no fit; take a concurrent.futures.ProcessPoolExecutor")
    child = multiprocessing.get_context("fork").Process(target=_child, args=(group, table, where))
    child.start()
    try:
        while child.is_alive() and not stopping.is_late():
            look(group)
            child.join(POLL_SECONDS)
    finally:  # on an interrupt, and where it does not stop
        child.kill()
        child.join()
    assert child.exitcode is not None
    return child.exitcode


def _child(group: Group, table: Table, where: Places) -> None:
    """Fit in a process that dies with its parent; it exits with 0, `STOPPED`, `UNTOUCHED`, or 1."""
    die_with_parent()
    keep_freed_memory()
    store, fit_ids = Store(where.store), [fit.fit_id for fit in group.fits]
    try:
        with store.locked(fit_ids):
            if not all(map(store.has, fit_ids)):  # else another process did it while we waited
                sys.exit(_fit(group, table, where, store))
    except Exception as error:  # the fits stay as they are, and can be resumed
        if not (isinstance(error, UserError | OSError) or errno_of_disk(error)):
            raise
        print(f"gpbench: {error}", file=sys.stderr)
        sys.exit(UNTOUCHED)


def die_with_parent() -> None:
    """Have Linux kill this process when its parent ends, in whatever way."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def keep_freed_memory() -> None:
    """Have glibc keep what this process frees; else the system clears pages anew for the arrays of every step."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest that it takes


def _fit(group: Group, table: Table, where: Places, store: Store) -> int:
    work = store.begin(group)
    (work / "stopped.txt").unlink(missing_ok=True)
    log = os.open(work / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    stderr = os.dup(2)
    os.dup2(log, 1)
    os.dup2(log, 2)
    started = provenance.now()
    outcomes: list[Outcome] = []
    try:
        outcomes = (tuning if group.what.tune else entry(group.what)).run(group, table, work)
        os.dup2(stderr, 2)
        if any(outcome.status == "stopped" for outcome in outcomes):
            write_text(work / "stopped.txt", outcomes[0].reason)
            return STOPPED
        for fit, outcome in zip(group.fits, outcomes, strict=True):
            write(store, group, fit, outcome, started, where)
    except Exception as error:
        os.dup2(stderr, 2)
        if errno_of_disk(error):
            raise
        with (work / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(traceback.format_exc())
        failed = _failed(error)
        if outcomes:  # one by one they would be trained again to end no better
            write_text(work / "stopped.txt", f"trained, but not written: {failed.reason}; log: {work / 'log.txt'}")
            return STOPPED
        if len(group.fits) > 1:
            return 1
        write(store, group, group.fits[0], failed, started, where)
        if isinstance(error, Lost):
            return 0
    store.end(group.group_id)
    return 0


def _failed(error: Exception) -> Outcome:
    memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower() or "can't allocate" in str(error)
    first = (str(error).strip() or "no message").splitlines()[0]
    reason = first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
    return Outcome("out-of-memory" if memory else "failed", reason)


def write(store: Store, group: Group, fit: Fit, outcome: Outcome, started: str, where: Places) -> None:
    """The fit's folder: everything it leaves behind, visible at once or not at all."""
    with store.writing(fit.fit_id) as folder:
        if outcome.points is not None:
            outcome.points.to_parquet(folder / "points.parquet", index=False)
        trace = {str(name): column.to_numpy() for name, column in pd.DataFrame(outcome.trace).items()}
        arrays.write(folder, {"components": outcome.components, "chain": outcome.chain, "trace": trace})
        if outcome.model is not None:
            module = entry(group.what)
            module.save(outcome.model, folder / module.MODEL_FILE)
        log = store.work(group.group_id) / "log.txt"
        if log.is_file() and log.stat().st_size:
            (folder / "log.txt").write_bytes(log.read_bytes())
        on_cpu = group.how.device == "cpu" or entry(group.what).__name__.endswith(".closed_form")
        gpu = "" if on_cpu else importlib.import_module("torch").cuda.get_device_name()
        record = FitRecord.of(
            group,
            fit,
            status=outcome.status,
            reason=outcome.reason,
            seconds=Seconds(**outcome.seconds),  # type: ignore[arg-type]
            peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            provenance=provenance.since(started, where.root, gpu),
            info=outcome.info,
        )
        (folder / "fit.json").write_bytes(to_json(replace(record, scored=scoring.at_end(folder, record))).encode())
    store.spool(fit.fit_id)
