"""What the Snakefile needs to know of a study: its name and the batches that are still to be run."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from gpbench import config
from gpbench.config import schema
from gpbench.config.method_source import source_path
from gpbench.places import Places, write_if_changed
from gpbench.study.planning import identity
from gpbench.study.planning import plan as planning
from gpbench.study.planning.cost import CostModel
from gpbench.study.records import Batch, from_json, to_json
from gpbench.study.results import collect
from gpbench.study.storage import snakemake_lock
from gpbench.study.storage.store import Store


@dataclass(frozen=True)
class Needs:
    """Resources of one batch, and the data sets that it reads."""

    datasets: list[str]
    threads: int
    mem_mb: int
    minutes: int
    gpu: int


@dataclass(frozen=True)
class DatasetFiles:
    """What a data set is prepared from: raw files and its file in conf/; and the memory that takes."""

    raw: list[str]
    entry: str
    mem_mb: int


@dataclass(frozen=True)
class Graph:
    """Name of the results folder, the study, batch -> what it needs, data set -> its files, data sets that need them
    (joined by `_and_`) -> missing raw files, and the data sets that `snakemake data` makes."""

    name: str
    study: schema.Study
    batches: dict[str, Needs]
    datasets: dict[str, DatasetFiles]
    absent: dict[str, list[str]]
    catalogue: list[str]


def read(where: Places, name: str) -> Graph:
    """What was planned: for Snakemake's jobs, which parse the Snakefile too."""
    return from_json(Graph, _path(where, name).read_text(), _path(where, name))


def _path(where: Places, name: str) -> Path:
    return where.plans / f"{name}.graph.json"


def load(where: Places, study_name: str, overrides: str) -> Graph:
    """Plan a study, in Snakemake's main process."""
    name = planning.run_name(study_name, overrides)
    store = Store(where.store)
    plan = planning.make(where, study_name, overrides)
    for remark in plan.remarks:
        print(f"gpbench: {remark}", file=sys.stderr)
    store.require_writable()
    planning.freeze(plan, where)
    for batch in plan.batches:  # it has fits to run, so that statuses of an earlier run are outdated
        (where.runs / f"{batch.batch_id}.json").unlink(missing_ok=True)
    snakemake_lock.take(where.root)
    write_if_changed(collect.stamp(where, name), collect.seen(collect.Ended(where, name, read=False), plan))
    write_if_changed(where.plans / "report.code", _report_code())
    entries = config.options(where.conf, "dataset")
    all_datasets = {n: config.compose(where.conf, "dataset", n) for n in entries}
    catalogue = [n for n, dataset in all_datasets.items() if not dataset.on_request]
    datasets = {n: _files(all_datasets[n], entries[n]) for n in sorted({*catalogue, *plan.study.datasets})}
    batches = {batch.batch_id: _needs(batch, plan.cost) for batch in plan.batches}
    graph = Graph(name, plan.study, batches, datasets, _absent(where, datasets), catalogue)
    write_if_changed(_path(where, name), to_json(graph))
    return graph


def _files(dataset: schema.Dataset, entry: Path) -> DatasetFiles:
    """What a data set is prepared from, and the memory that takes: up to three copies, of bytes or of numbers."""
    copies = 3 * (1 if dataset.source.kind in ("idx", "svmlight") else 8)
    mem_mb = 500 + copies * dataset.rows * (dataset.columns + 1) // 1_000_000
    return DatasetFiles(dataset.source.files, str(entry), mem_mb)


def _absent(where: Places, datasets: dict[str, DatasetFiles]) -> dict[str, list[str]]:
    """The missing raw files, grouped by the data sets that need them."""
    groups: dict[str, list[str]] = {}
    for item in sorted({item for files in datasets.values() for item in files.raw}):
        if not (where.raw / item).is_file():
            users = "_and_".join(name for name, files in datasets.items() if item in files.raw)
            groups.setdefault(users, []).append(item)
    return groups


def _report_code() -> str:
    """What figures, tables and page are made by: code, template and style."""
    folder = source_path("gpbench.report").parent
    suffixes = (".html", ".css", ".js", ".mplstyle")
    assets = {p.name: identity.digest(p.read_text()) for p in sorted(folder.rglob("*")) if p.suffix in suffixes}
    # all modules: the registry names those of figures and tables by text, which no import shows
    paths = [path.relative_to(folder.parent) for path in sorted(folder.rglob("*.py")) if path.stem != "__init__"]
    modules = [".".join(("gpbench", *path.with_suffix("").parts)) for path in paths]
    return identity.canonical(identity.whole_code(*modules) | assets)


def _needs(batch: Batch, cost: CostModel) -> Needs:
    """Resources of one batch."""
    return Needs(
        datasets=sorted({group.address.dataset for group in batch.groups}),
        threads=max(group.how.threads * group.what.workers for group in batch.groups),
        mem_mb=max(cost.memory_mb(group) for group in batch.groups),
        minutes=math.ceil(10 + 3 * batch.seconds / 60),
        gpu=int(any(group.how.device == "cuda" for group in batch.groups)),
    )
