"""One child process for each group of fits, forked from a parent that has imported everything.

A child that crashes takes its own group with it and nothing else; a group of several is then tried one by one.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import NoReturn

import numpy as np

from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.places import Places, write_text
from gpbench.study.fitting.entries import entry
from gpbench.study.fitting.outcome import Outcome
from gpbench.study.planning import identity
from gpbench.study.records import Fit, FitRecord, Group, Provenance, Seconds, to_json
from gpbench.study.storage import provenance
from gpbench.study.storage.store import Store

STOPPED = 75
"""Exit code of a child whose fits are stopped and can be resumed."""
POLL_SECONDS = 0.02


def run_group(group: Group, table: Table, where: Places, look: Callable[[Group], None]) -> None:
    """One child for the group; if it dies with several fits aboard, one child for each. `look` is called meanwhile."""
    store = Store(where.store)
    code = _in_child(group, table, where, look)
    missing = [fit for fit in group.fits if not store.has(fit.fit_id)]
    if code == 0 or not missing:
        return
    if len(group.fits) > 1 and code != STOPPED:
        for fit in missing:
            run_group(replace(group, fits=(fit,), group_id=identity.digest([fit.fit_id])), table, where, look)
        store.end(group.group_id)
    elif code < 0:
        for fit in missing:
            _record_death(group, fit, -code, where)


def _in_child(group: Group, table: Table, where: Places, look: Callable[[Group], None]) -> int:
    """Fork, run, wait; the child's exit code, negative for a signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _child(group, table, where)
    try:
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            look(group)
            time.sleep(POLL_SECONDS)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _child(group: Group, table: Table, where: Places) -> NoReturn:
    """Never returns. Output goes to the group's log; the child dies with its parent."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        store = Store(where.store)
        with store.locked([fit.fit_id for fit in group.fits]):
            if all(store.has(fit.fit_id) for fit in group.fits):
                code = 0  # another process did it while we waited
            else:
                code = _fit(group, table, where, store)
    except UserError as error:
        print(f"gpbench: {error}", file=sys.stderr)
    except BaseException:  # noqa: BLE001 - the child ends here whatever happened; the exit code says so
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _fit(group: Group, table: Table, where: Places, store: Store) -> int:
    work = store.begin(group)
    (work / "stopped.txt").unlink(missing_ok=True)
    log = os.open(work / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stderr = os.dup(2)
    os.dup2(log, 1)
    os.dup2(log, 2)
    started = provenance.now()
    try:
        outcomes = entry(group.what).run(group, table, work)
    except Exception as error:  # noqa: BLE001 - whatever a method does wrong is a result of its fits
        os.dup2(stderr, 2)
        with (work / "log.txt").open("a") as stream:
            stream.write(traceback.format_exc())
        if len(group.fits) > 1:
            return 1
        write(store, group, group.fits[0], _failed(error), started, where)
        store.end(group.group_id)
        return 0
    os.dup2(stderr, 2)
    if any(outcome.status == "stopped" for outcome in outcomes):
        write_text(work / "stopped.txt", outcomes[0].reason)
        return STOPPED
    for fit, outcome in zip(group.fits, outcomes, strict=True):
        write(store, group, fit, outcome, started, where)
    store.end(group.group_id)
    return 0


def _failed(error: Exception) -> Outcome:
    memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower() or "can't allocate" in str(error)
    first = (str(error).strip() or "no message").splitlines()[0]
    reason = first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
    return Outcome("out-of-memory" if memory else "failed", reason)


def _record_death(group: Group, fit: Fit, signum: int, where: Places) -> None:
    """A child that was killed; its checkpoints stay, so that a retry continues from them."""
    reason = f"killed by signal {signum} ({signal.Signals(signum).name}); `gpbench retry` continues from the checkpoint"
    write(Store(where.store), group, fit, Outcome("failed", reason), provenance.now(), where)


def write(store: Store, group: Group, fit: Fit, outcome: Outcome, started: str, where: Places) -> None:
    """The fit's folder: everything it leaves behind, visible at once or not at all."""
    import pandas as pd

    with store.writing(fit.fit_id) as folder:
        if outcome.points is not None:
            outcome.points.to_parquet(folder / "points.parquet", index=False)
        for file, arrays in (("components.npz", outcome.components), ("chain.npz", outcome.chain)):
            if arrays:
                np.savez(folder / file, **arrays)  # type: ignore[arg-type]
        if outcome.trace:
            pd.DataFrame(outcome.trace).to_parquet(folder / "trace.parquet", index=False)
        if outcome.model is not None:
            module = entry(group.what)
            module.save(outcome.model, folder / module.MODEL_FILE)
        log = store.work(group.group_id) / "log.txt"
        if log.is_file():
            (folder / "log.txt").write_bytes(log.read_bytes())
        (folder / "fit.json").write_text(to_json(_record(group, fit, outcome, started, where)))
    store.spool(fit.fit_id)


def _record(group: Group, fit: Fit, outcome: Outcome, started: str, where: Places) -> FitRecord:
    return FitRecord(
        fit_id=fit.fit_id,
        split=fit.split,
        replica=fit.replica,
        status=outcome.status,
        reason=outcome.reason,
        address=group.address,
        label=group.label,
        family=group.family,
        rows=fit.rows,
        what=group.what,
        how=group.how,
        seconds=Seconds(**asdict(Seconds()) | outcome.seconds),
        peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        provenance=Provenance(
            started=started,
            ended=provenance.now(),
            **asdict(provenance.commit(where.root)),
            **asdict(provenance.machine()),
        ),
        info=outcome.info,
    )
