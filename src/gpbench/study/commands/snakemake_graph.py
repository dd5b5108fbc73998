"""What the Snakefile needs to know of a study: its name and the batches that are still to be run."""

import atexit
import math
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gpbench import config
from gpbench.config import schema
from gpbench.config.method_source import source_path
from gpbench.errors import UserError
from gpbench.places import Places, require_writable, write_if_changed, write_text
from gpbench.study.planning import identity
from gpbench.study.planning import plan as planning
from gpbench.study.planning.cost import CostModel
from gpbench.study.records import Batch, from_json, to_json
from gpbench.study.results import collect
from gpbench.study.storage import snakemake_lock
from gpbench.study.storage.store import Store

GRAPH, RETRIES, STARTED = "GPBENCH_GRAPH", "GPBENCH_RETRIES", "GPBENCH_STARTED"
"""Variables that jobs inherit."""
PREPARE_MINUTES = 30  # what a job may take that prepares a data set, where jobs may take so long


@dataclass(frozen=True)
class Needs:
    """Resources of one batch, the data sets that it reads, and its predicted seconds."""

    datasets: list[str]
    threads: int
    mem_mb: int
    minutes: int
    gpu: int
    seconds: int  # predicted


@dataclass(frozen=True)
class DatasetFiles:
    """What a data set is prepared from: raw files and its file in conf/; the memory and the time that a job has."""

    raw: list[str]
    entry: str
    mem_mb: int
    minutes: int


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

    @property
    def file(self) -> str:
        """Where it lies below plans/: named by what it says, so that no later plan changes it while jobs wait."""
        return f"graphs/{identity.digest(to_json(self))}.json"


def hand_on(graph: Graph, retries: int = 0) -> None:
    """Tell jobs, which inherit the environment, what was planned, and how often they are tried again."""
    os.environ.update({GRAPH: graph.file, RETRIES: str(retries), STARTED: str(time.time())})


def is_last(attempt: int) -> bool:
    """Whether the attempt at a job is the last of several."""
    return attempt > max(1, int(os.environ[RETRIES]))


def read(where: Places) -> Graph:
    """What was planned: for Snakemake's jobs, which parse the Snakefile too."""
    file = os.environ[GRAPH]
    return from_json(Graph, (where.plans / file).read_bytes(), where.plans / file)


class StudyClock:
    """How far the study is that this job belongs to, and when it will end, by the predicted seconds of the batches that
    have ended since it began; nothing where Snakemake did not begin it."""

    def __init__(self, where: Places) -> None:
        self.where, self.started = where, float(os.environ.get(STARTED, 0))
        self.batches = read(where).batches if GRAPH in os.environ and self.started else {}

    def in_words(self) -> str:
        """'; study 35% done, about 6 min left', once a batch has ended."""
        files = {name: self.where.runs / f"{name}.json" for name in self.batches}
        ended = [n for n, file in files.items() if file.is_file() and file.stat().st_mtime >= self.started]
        done, total = (sum(self.batches[name].seconds for name in names) for names in (ended, self.batches))
        if not done:
            return ""
        left = (time.time() - self.started) * (total - done) / done
        return f"; study {done / total:.0%} done, about {math.ceil(left / 60)} min left"


def write(where: Places, graph: Graph, plan: planning.Plan, executing: bool) -> Places:
    """Write what jobs read and what tells Snakemake what to make again; where that is.

    Where nothing is executed (a dry run, say) it is a copy of plans/ that ends with this process."""
    if executing:
        Store(where.store).require_writable()
        prepared = (where.prepared_file(name) for name in graph.study.datasets)
        folders = {where.root / "logs", where.runs, where.results, *(p.parent for p in prepared if not p.is_file())}
        for folder in sorted(folders):  # else Snakemake's traceback tells
            require_writable(folder, f"cannot write to {folder}", "a run writes there: see its permissions")
        snakemake_lock.take(where.root, plan.name)
    else:
        where = replace(where, draft=_copy(where.plans))
    planning.freeze(plan, where)
    write_if_changed(collect.stamp(where, plan.name), collect.seen(collect.Ended(where, plan.name, read=False), plan))
    code, times, now = where.plans / "report.code", where.plans / "report.times", _times()
    if not (code.is_file() and times.is_file() and times.read_bytes() == now.encode()):
        write_if_changed(code, _report_code())
        write_text(times, now)
    write_if_changed(where.plans / graph.file, to_json(graph))
    return where


def _copy(plans: Path) -> Path:
    copy = Path(tempfile.mkdtemp(prefix="gpbench-plans-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    if plans.is_dir():
        shutil.copytree(plans, copy, dirs_exist_ok=True)
    return copy


def load(where: Places, study_name: str, overrides: str, site: str = "") -> tuple[Graph, planning.Plan]:
    """Plan a study in Snakemake's main process, writing nothing; site: overrides of the trainer, of the same run."""
    if others := [key for key, _ in config.split_overrides(site) if key.split(".")[0] != "trainer"]:
        raise UserError(f"site= is for settings of the trainer, not {others[0]!r}; give it in overrides=")
    plan = planning.make(where, study_name, overrides, site)
    for remark in plan.remarks:
        print(f"gpbench: {remark}", file=sys.stderr)
    entries = config.options(where.conf, "dataset")
    all_datasets = {n: config.compose(where.conf, "dataset", n) for n in entries}
    catalogue = [n for n, dataset in all_datasets.items() if not dataset.on_request]
    minutes = min([PREPARE_MINUTES, *(cap for batch in plan.batches for cap in _caps(batch))])
    chosen = sorted({*catalogue, *plan.study.datasets})
    datasets = {name: _files(where, all_datasets[name], entries[name], minutes) for name in chosen}
    batches = {batch.batch_id: _needs(batch, plan.cost) for batch in plan.batches}
    return Graph(plan.name, plan.study, batches, datasets, _absent(where, datasets), catalogue), plan


def _files(where: Places, dataset: schema.Dataset, entry: Path, minutes: int) -> DatasetFiles:
    """What a data set is prepared from, and the memory that takes: up to three copies, of bytes or of numbers."""
    copies = 3 * (1 if dataset.source.kind in ("idx", "svmlight") else 8)
    mem_mb = 500 + copies * dataset.rows * (dataset.columns + 1) // 1_000_000
    inside = entry.relative_to(where.root) if entry.is_relative_to(where.root) else entry  # else a package's
    return DatasetFiles(dataset.source.files, str(inside), mem_mb, minutes)


def _absent(where: Places, datasets: dict[str, DatasetFiles]) -> dict[str, list[str]]:
    """The missing raw files, grouped by the data sets that need them."""
    groups: dict[str, list[str]] = {}
    for item in sorted({item for files in datasets.values() for item in files.raw}):
        if not (where.raw / item).is_file():
            users = "_and_".join(name for name, files in datasets.items() if item in files.raw)
            groups.setdefault(users, []).append(item)
    return groups


def _times() -> str:
    """When each file of the package was changed last: syntax trees of all take .9 s of a start."""
    files = sorted(source_path("gpbench").parent.rglob("*.*"))
    return identity.canonical({str(path): path.stat().st_mtime_ns for path in files if path.suffix != ".pyc"})


def _report_code() -> str:
    """What figures, tables and page are made by: code, template and style."""
    folder = source_path("gpbench.report").parent
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".html", ".css", ".js", ".mplstyle")]
    assets = {path.name: identity.digest(path.read_text(encoding="utf-8")) for path in files}
    # all modules: the registry names those of figures and tables by text, which no import shows
    paths = [path.relative_to(folder.parent) for path in sorted(folder.rglob("*.py")) if path.stem != "__init__"]
    modules = [".".join(("gpbench", *path.with_suffix("").parts)) for path in paths]
    return identity.canonical(identity.whole_code(*modules) | assets)


def _needs(batch: Batch, cost: CostModel) -> Needs:
    """Resources of one batch. Synchronous workers have a GPU each; those of other fits share one."""
    on_gpu = [group for group in batch.groups if group.how.device == "cuda"]
    return Needs(
        datasets=sorted({group.address.dataset for group in batch.groups}),
        threads=max(group.cores for group in batch.groups),
        mem_mb=max(cost.memory_mb(group) for group in batch.groups),
        minutes=min([math.ceil(10 + 3 * batch.seconds / 60), *_caps(batch)]),
        gpu=max([g.what.workers if g.what.trained_by == "synchronous" else 1 for g in on_gpu], default=0),
        seconds=math.ceil(batch.seconds),
    )


def _caps(batch: Batch) -> list[int]:
    """The limits that were set to the minutes of a job."""
    return [group.how.job_minutes for group in batch.groups if group.how.job_minutes is not None]
