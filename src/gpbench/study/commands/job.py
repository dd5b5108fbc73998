"""Run one Snakemake job, a batch of fits: everything is imported once, then each group of fits gets a child process.

The job exits 0 and writes the statuses of its fits; failed fits are listed at the end of the study.

    python -m gpbench.study.commands.job plans/batches/ID.json runs/ID.json
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from pathlib import Path

from gpbench import config, places
from gpbench.data import splits
from gpbench.data import table as tables
from gpbench.errors import UserError, exit_status
from gpbench.places import Places, write_text
from gpbench.study import tracking
from gpbench.study.commands.progress import Watch
from gpbench.study.fitting.children import run_group
from gpbench.study.fitting.entries import entry
from gpbench.study.records import Batch, Group, from_json
from gpbench.study.storage.store import Store


def run_groups(groups: tuple[Group, ...], where: Places) -> dict[str, dict[str, str]]:
    """Fit what is not in the store yet; fit_id -> {status, reason}."""
    store = Store(where.store)
    store.require_writable()
    require_device(groups)
    store.move_damaged(fit.fit_id for group in groups for fit in group.fits)
    pending = [group for group in groups if not all(store.has(fit.fit_id) for fit in group.fits)]
    data = {group.address.dataset: str(group.what.data.md5) for group in pending}
    loaded = {name: tables.load(where.prepared_file(name), md5) for name, md5 in data.items()}
    for group in pending:
        config.require_module(where.conf, group.address.method, group.what.method.module)
        entry(group.what)
        importlib.import_module(group.what.method.module)
    gc.freeze()  # children share what is imported; the collector must not touch it
    watch = Watch(pending, where)
    while pending:
        # what another process is at comes last: two that have the same groups share them
        group = next(filter(store.is_free, pending), pending[0])
        pending.remove(group)
        watch.begin(group)
        table = splits.numbered_rows(group.what.protocol.splits, loaded[group.address.dataset])
        run_group(group, table, where, watch.look)
        watch.end(group)
        tracking.drain_soon(where)
    return {fit.fit_id: _status(store, fit.fit_id, group) for group in groups for fit in group.fits}


def require_device(groups: tuple[Group, ...]) -> None:
    """Refuse a missing GPU before any fit is begun; CUDA itself is not started, for children are forked."""
    if any(group.how.device == "cuda" for group in groups):
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        import torch

        if not torch.cuda.is_available():
            raise UserError("trainer.device is cuda, but no GPU is available here; use trainer=cpu")


def _status(store: Store, fit_id: str, group: Group) -> dict[str, str]:
    record = store.record(fit_id) if store.has(fit_id) else None
    status, reason = (record.status, record.reason) if record else store.unfinished(group)
    return {"status": status, "reason": reason}


def run(source: Path, target: Path) -> None:
    """Run the batch of a file and write its statuses to another."""
    batch = from_json(Batch, source.read_text(), source)
    write_text(target, json.dumps(run_groups(batch.groups, places.find()), indent=1))


def main() -> int:
    """Entry of a Snakemake job."""
    source, target = map(Path, sys.argv[1:3])
    return exit_status(lambda: run(source, target))


if __name__ == "__main__":
    sys.exit(main())
