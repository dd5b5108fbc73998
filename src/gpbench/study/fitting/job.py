"""Run a batch: a fork server that imports once and starts one child per group of fits.

A child that crashes takes its own group with it and nothing else; a group of several is then tried one by
one. The batch exits 0 and writes the statuses of its fits; what failed is said at the end of the study.

    python -m gpbench.study.fitting.job plans/batches/ID.json runs/ID.json
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from gpbench import places
from gpbench.data import protocols
from gpbench.data import table as tables
from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.places import Places, write_text
from gpbench.study import tracking
from gpbench.study.fitting.progress import Watch
from gpbench.study.planning import identity
from gpbench.study.storage import provenance
from gpbench.study.storage.store import Store


def run_batch(batch: dict[str, Any], where: Places) -> dict[str, dict[str, str]]:
    """Fit what is not in the store yet; fit_id -> {status, reason}."""
    store = Store(where.store)
    store.require_writable()
    require_device(batch)
    groups = [g for g in batch["groups"] if not all(store.has(f["fit_id"]) for f in g["fits"])]
    data = {g["address"]["dataset"]: g["what"]["data"]["md5"] for g in groups}
    loaded = {name: tables.load(where.prepared_file(name), md5) for name, md5 in data.items()}
    for module in sorted({m for g in groups for m in (g["what"]["entry"], g["what"]["method"]["module"])}):
        importlib.import_module(module)
    gc.freeze()  # children share what is imported; the collector must not touch it
    watch = Watch(groups, where)
    for group in groups:
        watch.begin(group)
        table = protocols.rows(group["what"]["protocol"]["splits"], loaded[group["address"]["dataset"]])
        run_group(group, table, where, watch)
        watch.end(group)
        tracking.drain_soon(where)
    return {f["fit_id"]: _status(store, f["fit_id"], g) for g in batch["groups"] for f in g["fits"]}


def require_device(batch: dict[str, Any]) -> None:
    """Refuse a GPU that is not there before any fit is begun; CUDA itself is not started, for children are forked."""
    if any(g["how"]["device"] == "cuda" for g in batch["groups"]):
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        import torch

        if not torch.cuda.is_available():
            raise UserError("trainer.device is cuda, but no GPU is available here; use trainer=cpu")


def run_group(group: dict[str, Any], table: Table, where: Places, watch: Watch) -> None:
    """One child for the group; if it dies with several fits aboard, one child for each."""
    store = Store(where.store)
    code = _in_child(group, table, where, watch)
    missing = [f for f in group["fits"] if not store.has(f["fit_id"])]
    if code == 0 or not missing:
        return
    if len(group["fits"]) > 1 and code != STOPPED:
        for fit in missing:
            alone = group | {"fits": [fit], "group_id": identity.digest([fit["fit_id"]])}
            run_group(alone, table, where, watch)
        store.end(group["group_id"])
    elif code < 0:
        for fit in missing:
            _record_death(group, fit, -code, where)


STOPPED = 75  # exit code of a child whose fits are stopped and can be resumed


def _in_child(group: dict[str, Any], table: Table, where: Places, watch: Watch) -> int:
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
            watch.look(group)
            time.sleep(0.02)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _child(group: dict[str, Any], table: Table, where: Places) -> None:
    """Never returns. Output goes to the group's log; the child dies with its parent."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        store = Store(where.store)
        with store.locked([f["fit_id"] for f in group["fits"]]):
            if all(store.has(f["fit_id"]) for f in group["fits"]):
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


def _fit(group: dict[str, Any], table: Table, where: Places, store: Store) -> int:
    work = store.begin(group)
    (work / "stopped.txt").unlink(missing_ok=True)
    log = os.open(work / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stderr = os.dup(2)
    os.dup2(log, 1)
    os.dup2(log, 2)
    started = provenance.now()
    entry = importlib.import_module(group["what"]["entry"])
    try:
        outcomes = entry.run(group, table, work)
    except Exception as error:  # noqa: BLE001 - whatever a method does wrong is a result of its fits
        os.dup2(stderr, 2)
        (work / "log.txt").open("a").write(traceback.format_exc())
        if len(group["fits"]) > 1:
            return 1
        write(store, group, group["fits"][0], _failed(error), entry, started, where)
        store.end(group["group_id"])
        return 0
    os.dup2(stderr, 2)
    if any(o.status == "stopped" for o in outcomes):
        write_text(work / "stopped.txt", outcomes[0].reason)
        return STOPPED
    for fit, outcome in zip(group["fits"], outcomes, strict=True):
        write(store, group, fit, outcome, entry, started, where)
    store.end(group["group_id"])
    return 0


def _failed(error: Exception) -> Any:
    from gpbench.study.fitting.fold import Outcome

    memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower() or "can't allocate" in str(error)
    first = (str(error).strip() or "no message").splitlines()[0]
    reason = first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
    return Outcome("out-of-memory" if memory else "failed", reason)


def _record_death(group: dict[str, Any], fit: dict[str, Any], signum: int, where: Places) -> None:
    """A child that was killed; its checkpoints stay, so that a retry continues from them."""
    from gpbench.study.fitting.fold import Outcome

    store = Store(where.store)
    reason = f"killed by signal {signum} ({signal.Signals(signum).name}); `gpbench retry` continues from the checkpoint"
    entry = importlib.import_module(group["what"]["entry"])
    write(store, group, fit, Outcome("failed", reason), entry, provenance.now(), where)


def write(store: Store, group: dict, fit: dict, outcome: Any, entry: Any, started: str, where: Places) -> None:
    """The fit's folder: everything it leaves behind, visible at once or not at all."""
    import pandas as pd

    with store.writing(fit["fit_id"]) as folder:
        if outcome.points is not None:
            outcome.points.to_parquet(folder / "points.parquet", index=False)
        for file, arrays in (("components.npz", outcome.components), ("chain.npz", outcome.chain)):
            if arrays:
                import numpy as np

                np.savez(folder / file, **arrays)
        if outcome.trace:
            pd.DataFrame(outcome.trace).to_parquet(folder / "trace.parquet", index=False)
        if outcome.model is not None:
            entry.save(outcome.model, folder / entry.MODEL_FILE)
        log = store.work(group["group_id"]) / "log.txt"
        if log.is_file():
            (folder / "log.txt").write_bytes(log.read_bytes())
        record = {
            "fit_id": fit["fit_id"],
            "split": fit["split"],
            "replica": fit["replica"],
            "status": outcome.status,
            "reason": outcome.reason,
            "address": group["address"],
            "label": group["label"],
            "family": group["family"],
            "what": group["what"] | {"split": fit["split"], "replica": fit["replica"]},
            "how": group["how"],
            "seconds": {"train": 0.0, "predict": 0.0, "shared_by": 1} | outcome.seconds,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "info": outcome.info,
            "provenance": {
                "started": started,
                "ended": provenance.now(),
                **provenance.commit(where.root),
                **provenance.machine(),
            },
        }
        (folder / "fit.json").write_text(json.dumps(record, indent=1))
    store.spool(fit["fit_id"])


def _status(store: Store, fit_id: str, group: dict[str, Any]) -> dict[str, str]:
    if store.has(fit_id):
        record = store.record(fit_id)
        return {"status": record["status"], "reason": record["reason"]}
    stopped = store.work(group["group_id"]) / "stopped.txt"
    if stopped.is_file():
        return {"status": "stopped", "reason": stopped.read_text()}
    return {"status": "missing", "reason": "interrupted"}


def main() -> int:
    """Entry of a Snakemake job."""
    source, target = map(Path, sys.argv[1:3])
    try:
        statuses = run_batch(json.loads(source.read_text()), places.find())
        write_text(target, json.dumps(statuses, indent=1))
    except UserError as error:
        print(f"gpbench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
