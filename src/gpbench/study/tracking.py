"""MLflow is a view of the store: fits leave their identity in a spool, one locked writer reads it.

A run a cell (method x data set x protocol x budget), in the experiment of its data set; nested runs a fit.
Reading the spool twice changes nothing, in whatever order. Of several fits of a place, all but the one that was begun
last are tagged `superseded` instead of deleted, for people annotate runs. `MLFLOW_TRACKING_URI` names a server; without
it, mlflow.db in the project.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpbench.config import schema
from gpbench.errors import UserError
from gpbench.places import Places, locked, share
from gpbench.study.planning import identity
from gpbench.study.records import Fit, FitRecord, Group, Progress, What
from gpbench.study.storage import arrays
from gpbench.study.storage.store import IDENTITY, Store, Unreadable

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACTS = "mlflow-artifacts:"
SQLITE = b"SQLite format 3\0"
USUAL = {field.name: field.default for field in fields(schema.Study)}
MOST = 10_000  # runs of one cell
MOST_AT_ONCE = 900  # metrics of one write, of which MLflow takes 1,000 with 100 parameters
COLUMNS = (  # what the preset of the user interface shows of a run
    *("params.`method`", "params.`split`", "tags.`gpbench.status`", "metrics.`mnll`", "metrics.`rmse`"),
    *("metrics.`error`", "attributes.`Duration`", "attributes.`Dataset`"),
)
VIEW = "gpbench"  # name of the preset, as `?viewStateShareKey=gpbench` asks for it
OF_EXPERIMENT = {  # tags that the user interface reads
    "mlflow.experimentKind": "custom_model_development",  # else it opens as one of generative models
    f"mlflow.sharedViewState.{VIEW}": json.dumps(
        {"selectedColumns": COLUMNS, "orderByKey": "metrics.`mnll`", "orderByAsc": True, "runsExpanded": {}}
    ),
    "mlflow.note.content": f"Columns of gpbench: add `?viewStateShareKey={VIEW}` to the address of the list of runs.",
}


def uri(where: Places) -> str:
    """The tracking server, or the project's own database; UserError where its path cannot be an address."""
    if not (server := os.environ.get("MLFLOW_TRACKING_URI")) and "?" in str(where.root):
        raise UserError(f"MLflow opens no database in {where.root}: it has a ?; rename it or set MLFLOW_TRACKING_URI")
    return server or f"sqlite:///{where.root}/mlflow.db"


def waiting(where: Places) -> list[str]:
    """Fits in the spool; what else lies there stays."""
    return sorted(path.name for path in (where.store / ".spool").glob("*") if IDENTITY.fullmatch(path.name))


def drain(where: Places, anew: bool = False) -> int:
    """Log the fits of the spool, once no other writer does; how many there are of them. anew: all fits of the store."""
    where.store.mkdir(parents=True, exist_ok=True)
    share(where.store)
    with locked(where.store / ".tracking.lock", "MLflow"):
        store = Store(where.store)
        for fit_id in store.ids() if anew else ():
            store.spool(fit_id)
        if not (todo := waiting(where)):
            return 0
        writer, read, logged = Writer(where), dict[Path, int](), 0
        with _answering(where):
            for fit_id in todo:
                request = where.store / ".spool" / fit_id
                requested_at = request.stat().st_mtime_ns
                try:
                    logged += writer.fit(fit_id)
                except UserError as error:  # damaged, of another edition, or moved aside meanwhile
                    print(f"gpbench: {error}", file=sys.stderr)
                    if isinstance(error, Unreadable):
                        continue
                read[request] = requested_at
            writer.cells()
        for request, requested_at in read.items():  # last, so that what a killed writer left is completed by the next
            if request.stat().st_mtime_ns == requested_at:  # else it was repeated meanwhile, and is read again
                request.unlink()
        return logged


def connect(where: Places) -> MlflowClient:
    """A client of the tracking store; an unreachable one is a one-line error and the spool is kept."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import logging

    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow import MlflowClient

    database = Path(uri(where).removeprefix("sqlite:///"))
    if database.is_file() and database.stat().st_size:
        with database.open("rb") as stream:
            if stream.read(len(SQLITE)) != SQLITE:  # MLflow would try it for 20 seconds
                raise UserError(f"{database} is not an SQLite database; move it away, then run `gpbench track --anew`")
    with _answering(where):
        client = MlflowClient(uri(where))
        client.search_experiments(max_results=1)
    return client


@contextlib.contextmanager
def _answering(where: Places) -> Iterator[None]:
    """One line for whatever MLflow or its database refuses."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"MLflow at {uri(where)} does not answer ({first}); the spool is kept") from error


class Writer:
    """The one process that writes to MLflow."""

    def __init__(self, where: Places) -> None:
        self.where, self.store, self.client = where, Store(where.store), connect(where)
        self.local = uri(where).startswith("sqlite:")
        self.experiments: dict[str, str] = {}
        self.touched: dict[str, str] = {}
        default = self.client.get_experiment_by_name("Default")  # MLflow makes it with its database
        if self.local and default and default.lifecycle_stage == "active" and not self.find(default.experiment_id):
            self.client.delete_experiment(default.experiment_id)

    def experiment(self, name: str) -> str:
        """Identity of an experiment, created where it is new."""
        if name not in self.experiments:
            known = self.client.get_experiment_by_name(name)
            if known and known.lifecycle_stage == "deleted":  # in the pages of MLflow
                self.client.restore_experiment(known.experiment_id)
            # by scheme, not by path: `make ui` serves the folder mlartifacts, and the project can be moved
            location = f"{ARTIFACTS}/{name}" if self.local else None
            self.experiments[name] = (
                known.experiment_id if known else self.client.create_experiment(name, location, OF_EXPERIMENT)
            )
        return self.experiments[name]

    def find(self, experiment: str, deleted: bool = False, **tags: str) -> list[Any]:
        """The runs of an experiment that have some tags, or those of them that were deleted in the pages of MLflow."""
        from mlflow.entities import ViewType

        words = " and ".join(f"tags.`gpbench.{k}` = '{v}'" for k, v in tags.items())
        view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
        return list(self.client.search_runs([experiment], words, view, max_results=MOST))

    def cell(self, record: FitRecord) -> tuple[str, str]:
        """(experiment, run) of the fit's cell, created where it is new, completed where a killed writer left it."""
        address, kind = record.address, record.what.kind
        experiment = self.experiment(address.dataset)
        key = identity.digest([*astuple(address), record.what.configuration])
        tags = {"gpbench.cell": key, "gpbench.kind": kind, "mlflow.runName": _cell_name(record)}
        started, runs = _milliseconds(record.provenance.started), self.find(experiment, cell=key)
        if not runs:  # its fits would name a run that is deleted, and be logged again below another one
            runs = self.find(experiment, deleted=True, cell=key)[:1]
            for run in runs:
                self.client.restore_run(run.info.run_id)
        cell: Any = runs[0] if runs else self.client.create_run(experiment, started, tags)
        run_id = cell.info.run_id
        self._log(run_id, {k: v for k, v in _params(record).items() if k not in cell.data.params}, [])
        if not cell.inputs.dataset_inputs:
            self._data(run_id, record)
        self.touched[run_id] = experiment
        return experiment, run_id

    def fit(self, fit_id: str) -> bool:
        """Log one fit unless it is logged; whether there is one."""
        if not self.store.has(fit_id):
            return False  # cleared by `gpbench retry` before it was read
        record = self.store.verified(fit_id)
        experiment, parent = self.cell(record)
        place = f"{parent} split={record.split} replica={record.replica}"
        known = self.find(experiment, place=place)
        # a fit that was retried has the same identity, but began at another time
        same = {"fit": fit_id, "started": record.provenance.started, "complete": "yes"}
        if any(all(run.data.tags.get(f"gpbench.{k}") == v for k, v in same.items()) for run in known):
            return True
        for old in known:
            if "gpbench.complete" not in old.data.tags:
                self.client.delete_run(old.info.run_id)  # begun by a writer that was killed
        tags = {
            "gpbench.fit": fit_id,
            "gpbench.place": place,
            "gpbench.status": record.status,
            "mlflow.parentRunId": parent,
            "mlflow.runName": f"{_cell_name(record)} split {record.split}",
            **{f"gpbench.{k}": str(v) for k, v in asdict(record.provenance).items()},
            **({"gpbench.reason": record.reason} if record.reason else {}),
        }
        run = self.client.create_run(experiment, _milliseconds(record.provenance.started), tags).info.run_id
        self._values(run, record)
        self._artifacts(run, record)
        self._data(run, record)
        ended = _milliseconds(record.provenance.ended)
        self.client.set_terminated(run, "FINISHED" if record.status == "done" else "FAILED", ended)
        self.client.set_tag(run, "gpbench.complete", "yes")
        return True

    def _values(self, run: str, record: FitRecord) -> None:
        """Parameters, final scores, how the fit's own chain has mixed, and the trace over steps."""
        from gpbench.study.scoring import Undefined, mixing, scores

        chain = {f"chain.{k}": float(v) for k, v in mixing(self.store, [record]).items()}
        try:
            values = scores(self.store, record)
        except Undefined:
            values = {}  # the collection says why
        if record.what.is_final:  # there are no others
            values = {f"train.{k}": v for k, v in values.items()}
        final = [(0, k, v) for k, v in (values | chain).items() if math.isfinite(v)]
        trace = [(step, f"trace.{k}", v) for step, k, v in _trace(self.store.folder(record.fit_id))]
        split = "all" if record.what.is_final else record.split
        self._log(run, _params(record) | {"split": split, "replica": record.replica}, final + trace)

    def _log(self, run: str, params: dict[str, object], values: list[tuple[int, str, float]]) -> None:
        """Parameters, and (step, name, value) of metrics, in as few writes as MLflow allows."""
        from mlflow.entities import Metric, Param

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for step, name, value in values]
        self.client.log_batch(run, metrics[:MOST_AT_ONCE], [Param(k, str(v)[:6000]) for k, v in params.items()])
        for i in range(MOST_AT_ONCE, len(metrics), MOST_AT_ONCE):
            self.client.log_batch(run, metrics[i : i + MOST_AT_ONCE])

    def _artifacts(self, run: str, record: FitRecord) -> None:
        """The fit's record and log; without a server they are copied to where `make ui` looks for them."""
        folder = self.store.folder(record.fit_id)
        for path in (p for p in (folder / "fit.json", folder / "log.txt") if p.is_file() and p.stat().st_size):
            if self.local:
                target = self.where.root / "mlartifacts" / record.address.dataset / run / "artifacts"
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
            else:
                self.client.log_artifact(run, str(path))

    def _data(self, run: str, record: FitRecord) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        data = record.what.data
        source = json.dumps({"uri": f"data/prepared/{record.address.dataset}.npz"})
        dataset = Dataset(record.address.dataset, str(data.md5), "local", source)
        self.client.log_inputs(run, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def cells(self) -> None:
        """Of each cell that was touched, which fits are superseded by later ones, mean and spread over the others."""
        for run, experiment in self.touched.items():
            children = self.client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run}'", max_results=MOST)
            current = self._current([c for c in children if "gpbench.place" in c.data.tags])
            done = [c for c in current if c.data.tags.get("gpbench.status") == "done"]
            self.client.set_tag(run, "gpbench.done", f"{len(done)} of {len(current)}")
            summary: list[tuple[int, str, float]] = []
            for name in sorted({k for c in done for k in c.data.metrics if not k.startswith(("trace.", "chain."))}):
                values = [c.data.metrics[name] for c in done if name in c.data.metrics]
                summary.append((0, name, statistics.fmean(values)))
                if len(values) > 1:
                    summary.append((0, f"{name}.sd", statistics.stdev(values)))
            gone = self.client.get_run(run).data.metrics.keys() - {name for _, name, _ in summary}
            self._log(run, {}, summary + [(0, name, math.nan) for name in gone])  # MLflow deletes none
            ended = max((c.info.end_time or 0 for c in children), default=None)
            self.client.set_terminated(run, "FINISHED" if done else "FAILED", ended)

    def _current(self, runs: list[Any]) -> list[Any]:
        """The runs that were begun last of their place; the others are tagged by the fits of these."""
        # a copy under another identity, which was begun with its original, comes after it
        age = ("gpbench.started", "gpbench.adopted")
        ordered = sorted(runs, key=lambda run: [run.data.tags.get(tag, "") for tag in age])
        last = {run.data.tags["gpbench.place"]: run for run in ordered}
        for run in runs:
            by = last[run.data.tags["gpbench.place"]]
            if run is not by:
                self.client.set_tag(run.info.run_id, "gpbench.superseded", by.data.tags["gpbench.fit"])
            elif "gpbench.superseded" in run.data.tags:
                self.client.delete_tag(run.info.run_id, "gpbench.superseded")
        return list(last.values())


def _milliseconds(when: str) -> int:
    """A time of a record, as MLflow counts it."""
    return round(datetime.datetime.fromisoformat(when).timestamp() * 1000)


def _apart(what: What) -> list[str]:
    """What tells fits of one address apart: settings of their study that are not the usual ones."""
    tune = len(what.tune.candidates) if what.tune else None
    chosen = {"tune": tune, "dtype": what.dtype, "noise_block": what.noise_block}
    return [f"{key}={value}" for key, value in chosen.items() if value not in (None, USUAL[key])]


def _cell_name(of: FitRecord | Group) -> str:
    return " ".join([*filter(None, astuple(of.address)), *_apart(of.what)])


def _params(record: FitRecord) -> dict[str, object]:
    """The hyperparameters under their own names, and what else was chosen."""
    chosen = {k: v for k, v in asdict(record.address).items() if k != "overrides"}
    return chosen | record.fitted.method.hyper | {"steps": record.what.steps, "dtype": record.what.dtype}


def _trace(folder: Path) -> list[tuple[int, str, float]]:
    """(step, name, value) of the trace's finite entries."""
    trace = arrays.trace(folder)
    if trace.empty:
        return []
    entries = trace.melt("step").itertuples(index=False)
    return [(int(step), name, float(value)) for step, name, value in entries if math.isfinite(value)]


class Live:
    """Streams the objective of running fits to a server, for long fits; the writer's own run takes its place later."""

    def __init__(self, where: Places) -> None:
        self.writer = Writer(where)
        self.client = self.writer.client
        self.runs: dict[str, str] = {}
        self.last = -1

    def see(self, group: Group, progress: Progress) -> None:
        """Log what is new in a group's progress."""
        if progress.step <= self.last:
            return
        self.last = progress.step
        for fit, value in zip(group.fits, progress.objective, strict=True):
            self.client.log_metric(self._run(group, fit), "live.objective", value, step=progress.step)

    def end(self, group: Group) -> None:
        """The fits have ended: their live runs are superseded."""
        for fit in group.fits:
            if run := self.runs.pop(fit.fit_id, None):
                self.client.set_terminated(run)
                self.client.set_tag(run, "gpbench.superseded", fit.fit_id)
        self.last = -1

    def _run(self, group: Group, fit: Fit) -> str:
        if fit.fit_id not in self.runs:
            name = f"live: {_cell_name(group)} split {fit.split}"
            experiment = self.writer.experiment(group.address.dataset)
            tags = {"mlflow.runName": name, "gpbench.live": fit.fit_id}
            self.runs[fit.fit_id] = self.client.create_run(experiment, tags=tags).info.run_id
        return self.runs[fit.fit_id]
