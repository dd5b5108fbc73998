"""Run one Snakemake job, a batch of fits: everything is imported once, then each group of fits gets a child process.

The job exits 0 and writes the statuses of its fits; failed fits are listed at the end of the study. A job that is told
to end (see `stopping`) does so once its fit has a checkpoint.

    python -m gpbench.study.commands.job plans/batches/ID.json runs/ID.json
"""

import argparse
import gc
import importlib
import json
import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from gpbench import config, places
from gpbench.data import splits
from gpbench.data import table as tables
from gpbench.errors import UserError, exit_status
from gpbench.places import Places, write_text
from gpbench.study import scoring
from gpbench.study.commands import fit_one
from gpbench.study.commands.progress import Watch
from gpbench.study.commands.sharing import Sharing
from gpbench.study.fitting import stopping
from gpbench.study.fitting.children import run_group
from gpbench.study.fitting.entries import entry
from gpbench.study.planning import identity
from gpbench.study.records import CONVERGENCE, Batch, FitRecord, Group, from_json
from gpbench.study.results import convergence
from gpbench.study.storage import remote
from gpbench.study.storage.store import Store

END_SECONDS = 120  # a job ends so long before it would be killed, or in the middle of its time if that is short


def run_groups(groups: tuple[Group, ...], where: Places, waits: bool = True) -> dict[str, dict[str, str]]:
    """Fit what is not in the store yet; fit_id -> {status, reason}. waits: for what others are at, too."""
    store = Store(where.store)
    store.require_writable()
    store.sweep()
    require_device(groups)
    store.move_damaged(fit.fit_id for group in groups for fit in group.fits)
    elsewhere = remote.fits()
    pending = [g for g in groups if not all(store.has(fit.fit_id) or fit.fit_id in elsewhere for fit in g.fits)]
    data = {group.address.dataset: str(group.what.data.md5) for group in pending}
    loaded = {name: tables.load(where.prepared_file(name), md5) for name, md5 in data.items()}
    for group in pending:
        config.require_module(where.conf, group.address.method, group.what.method.module)
        entry(group.what)
        with suppress(Exception):  # the child that fits it says why, and the other groups go on
            importlib.import_module(group.what.method.module)
        if changed := identity.changed(group.what):  # after the import: what is changed now is not used any more
            raise UserError(f"changed after planning: {', '.join(changed)}; nothing was fitted, run it again")
    gc.freeze()  # children share what is imported; the collector must not touch it
    watch, sharing = Watch(pending, where), Sharing(store, waits)

    def look(group: Group) -> None:
        watch.look(group)
        sharing.look(group)

    # what another process is at comes last: two that have the same groups share them
    while taken := sharing.next(pending):
        watch.begin(taken)
        table = splits.numbered_rows(taken.what.protocol.splits, loaded[taken.address.dataset])
        run_group(taken, table, where, look)
        _mix(store, taken)
        watch.end(taken)
        sharing.end(taken)
    return statuses(groups, store)


def _mix(store: Store, group: Group) -> None:
    """Judge how the chains of a split have mixed together, so that collecting, which waits for all jobs, need not do it
    (but for chains of one split in several groups, which mix there)."""
    done = [record for fit in group.fits if (record := store.done(fit.fit_id))]
    for split in dict.fromkeys(record.split for record in done):
        scoring.mixing(store, [record for record in done if record.split == split])


def statuses(groups: tuple[Group, ...], store: Store) -> dict[str, dict[str, str]]:
    """fit_id -> {status, reason}, as they are."""
    return {fit.fit_id: _status(store, fit.fit_id, group) for group in groups for fit in group.fits}


def run_words(where: Places, words: list[str], by_hand: bool = False) -> tuple[FitRecord, dict[str, Any]]:
    """Fit the cell of words such as method=dsvi dataset=boston split=0, unless it is in the store: its record, and what
    a user wants to know of it: identity, status, convergence, scores. by_hand: Ctrl-C leaves a checkpoint."""
    groups, (fit_id,) = fit_one.groups(where, words)
    store = Store(where.store)
    if groups:
        with stopping.by_hand() if by_hand else nullcontext():
            run_groups(groups, where)
        if stopping.is_requested() and not store.has(fit_id):
            raise KeyboardInterrupt
    if not remote.pull(store, fit_id):
        reasons = [why for status, why in map(store.unfinished, groups) if status == "stopped"]
        why = [*reasons, *(f"log: {store.work(group.group_id) / 'log.txt'}" for group in groups)][:1]
        raise UserError("; ".join([f"fit {fit_id} is not finished; run the same command again to resume it", *why]))
    record = store.record(fit_id)
    about = {"fit_id": fit_id, "status": record.status}
    about |= {"scored_on": "training rows"} if record.what.is_final else {}
    about |= {key: record.info[key] for key in ("tuned", "trials", *CONVERGENCE) if key in record.info}
    if mixed := scoring.mixing(store, [record]):
        judged = convergence.of_chains(mixed, convergence.LARGEST_R_HAT)
        about |= {key: value for key, value in judged.items() if key != "gate"}  # which a study's budget decides
    return record, about | scoring.scores(store, record) | mixed


def require_done(where: Places, record: FitRecord) -> None:
    """Raise UserError for a fit that ended otherwise."""
    if record.status != "done":
        log = Store(where.store).folder(record.fit_id) / "log.txt"
        raise UserError(f"fit {record.fit_id}: {record.status}: {record.reason}; log: {log}")


def require_device(groups: tuple[Group, ...]) -> None:
    """Refuse a missing GPU before any fit is begun; CUDA itself is not started, for children are forked."""
    if any(group.how.device == "cuda" for group in groups):
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        import torch

        if not torch.cuda.is_available():
            raise UserError("trainer.device is cuda, but no GPU is available here; use trainer=cpu")


def _status(store: Store, fit_id: str, group: Group) -> dict[str, str]:
    if store.has(fit_id):
        record = store.record(fit_id)
        status, reason = record.status, record.reason
    else:
        status, reason = ("done", "") if fit_id in remote.fits() else store.unfinished(group)
    return {"status": status, "reason": reason}


def run(source: Path, target: Path, only_statuses: bool = False, waits: bool = True) -> None:
    """Run the batch of a file and write its statuses to another; or only these, as the batch's jobs have died."""
    batch, where = from_json(Batch, source.read_bytes(), source), places.find()
    ended = statuses(batch.groups, Store(where.store)) if only_statuses else run_groups(batch.groups, where, waits)
    write_text(target, json.dumps(ended, indent=1))


def main() -> int:
    """Entry of a Snakemake job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--minutes", type=float, default=0.0, help="it is killed after so many, and ends before")
    parser.add_argument("--only-statuses", action="store_true", help="fit nothing")
    parser.add_argument("--no-wait", action="store_true", help="leave what other processes are at to them")
    words = parser.parse_args()
    stopping.listen(max(60 * words.minutes - END_SECONDS, 30 * words.minutes))
    return exit_status(lambda: run(words.source, words.target, words.only_statuses, not words.no_wait))


if __name__ == "__main__":
    sys.exit(main())
