"""What the Snakefile needs to know of a study: its name and the batches that are still to be run."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from typing import Any

from gpbench.config import source_path
from gpbench.places import Places, write_if_changed
from gpbench.study import collect, identity, owner
from gpbench.study import plan as planning


@dataclass(frozen=True)
class Graph:
    """Name of the results folder, and batch -> {datasets, threads, mem_mb, minutes, gpu}."""

    name: str
    batches: dict[str, dict[str, Any]]


def load(where: Places, study: str, overrides: str, main: bool) -> Graph:
    """Plan a study in Snakemake's main process; its jobs, which parse the Snakefile too, read what was planned."""
    name = planning.run_name(study, overrides)
    path = where.plans / f"{name}.graph.json"
    if not main:
        return Graph(**json.loads(path.read_text()))
    made = planning.make(where, study, overrides)
    for remark in made.remarks:
        print(f"gpbench: {remark}", file=sys.stderr)
    planning.freeze(made, where)
    owner.take(where.root)
    plan = collect.read_plan(where, name)
    write_if_changed(collect.stamp(where, name), collect.seen(where, plan))
    write_if_changed(where.plans / "report.code", _report_code())
    graph = Graph(name, {b["batch_id"]: _needs(b) for b in made.batches})
    write_if_changed(path, json.dumps({"name": graph.name, "batches": graph.batches}))
    return graph


def _report_code() -> str:
    """What figures, tables and page are made by: code, template and style."""
    folder = source_path("gpbench.report").parent
    assets = {
        p.name: identity.digest(p.read_text()) for p in sorted(folder.iterdir()) if p.suffix in (".html", ".mplstyle")
    }
    return identity.canonical(identity.code("gpbench.report.__main__") | assets)


def _needs(batch: dict[str, Any]) -> dict[str, Any]:
    """Resources of one batch."""
    return {
        "datasets": sorted({g["address"]["dataset"] for g in batch["groups"]}),
        "threads": max(g["how"]["threads"] for g in batch["groups"]),
        "mem_mb": 2000,
        "minutes": math.ceil(10 + 3 * batch["seconds"] / 60),
        "gpu": int(any(g["how"]["device"] == "cuda" for g in batch["groups"])),
    }
