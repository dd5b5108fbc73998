"""What the Snakefile needs to know of a study: its name and the batches that are still to be run."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpbench import config
from gpbench.config import schema
from gpbench.config.compose import source_path
from gpbench.places import Places, write_if_changed
from gpbench.study.planning import identity
from gpbench.study.planning import plan as planning
from gpbench.study.planning.cost import Cost
from gpbench.study.results import collect
from gpbench.study.storage import snakemake_lock
from gpbench.study.storage.store import Store


@dataclass(frozen=True)
class Graph:
    """Name of the results folder, the study, batch -> {datasets, threads, mem_mb, minutes, gpu}, data set -> {raw,
    entry, mem_mb}, who needs them -> raw files that are not there, and the data sets that `snakemake data` makes."""

    name: str
    study: dict[str, Any]
    batches: dict[str, dict[str, Any]]
    datasets: dict[str, dict[str, Any]]
    absent: dict[str, list[str]]
    catalogue: list[str]


def read(where: Places, name: str) -> Graph:
    """What was planned: for Snakemake's jobs, which parse the Snakefile too."""
    return Graph(**json.loads(_path(where, name).read_text()))


def _path(where: Places, name: str) -> Path:
    return where.plans / f"{name}.graph.json"


def load(where: Places, study_name: str, overrides: str) -> Graph:
    """Plan a study, in Snakemake's main process."""
    name = planning.run_name(study_name, overrides)
    store = Store(where.store)
    made = planning.make(where, study_name, overrides)
    for remark in made.remarks:
        print(f"gpbench: {remark}", file=sys.stderr)
    store.require_writable()
    planning.freeze(made, where)
    for batch in made.batches:  # it has fits to run, so a note that it ran is of another time
        (where.runs / f"{batch['batch_id']}.json").unlink(missing_ok=True)
    snakemake_lock.take(where.root)
    plan = collect.read_plan(where, name)
    write_if_changed(collect.stamp(where, name), collect.seen(where, plan))
    write_if_changed(where.plans / "report.code", _report_code())
    entries = config.options(where.conf, "dataset")
    every = {n: config.compose(where.conf, "dataset", n) for n in entries}
    catalogue = [n for n, dataset in every.items() if not dataset.on_request]
    datasets = {n: _sources(every[n], entries[n]) for n in sorted({*catalogue, *made.study.datasets})}
    batches = {b["batch_id"]: _needs(b, made.cost) for b in made.batches}
    study = dataclasses.asdict(made.study)
    graph = Graph(name, study, batches, datasets, _absent(where, datasets), catalogue)
    write_if_changed(_path(where, name), json.dumps(dataclasses.asdict(graph)))
    return graph


def _sources(dataset: schema.Dataset, entry: Path) -> dict[str, Any]:
    """What a data set is prepared from, and the memory that takes: up to three copies, of bytes or of numbers."""
    copies = 3 * (1 if dataset.source.kind in ("idx", "svmlight") else 8)
    mem_mb = 500 + copies * dataset.rows * (dataset.columns + 1) // 1_000_000
    return {"raw": dataset.source.files, "entry": str(entry), "mem_mb": mem_mb}


def _absent(where: Places, datasets: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """The raw files that are not there, grouped by the data sets that need them."""
    groups: dict[str, list[str]] = {}
    for item in sorted({item for one in datasets.values() for item in one["raw"]}):
        if not (where.raw / item).is_file():
            groups.setdefault("_and_".join(n for n, one in datasets.items() if item in one["raw"]), []).append(item)
    return groups


def _report_code() -> str:
    """What figures, tables and page are made by: code, template and style."""
    folder = source_path("gpbench.report").parent
    kinds = (".html", ".css", ".js", ".mplstyle")
    assets = {p.name: identity.digest(p.read_text()) for p in sorted(folder.rglob("*")) if p.suffix in kinds}
    # all modules: the registry names those of figures and tables by text, which no import shows
    paths = [path.relative_to(folder.parent) for path in sorted(folder.rglob("*.py")) if path.stem != "__init__"]
    modules = [".".join(("gpbench", *path.with_suffix("").parts)) for path in paths]
    return identity.canonical(identity.code(*modules) | assets)


def _workers(group: dict[str, Any]) -> int:
    return group["what"].get("distributed", {"workers": 1})["workers"]


def _needs(batch: dict[str, Any], cost: Cost) -> dict[str, Any]:
    """Resources of one batch."""
    return {
        "datasets": sorted({g["address"]["dataset"] for g in batch["groups"]}),
        "threads": max(g["how"]["threads"] * _workers(g) for g in batch["groups"]),
        "mem_mb": max(cost.memory_mb(g) for g in batch["groups"]),
        "minutes": math.ceil(10 + 3 * batch["seconds"] / 60),
        "gpu": int(any(g["how"]["device"] == "cuda" for g in batch["groups"])),
    }
