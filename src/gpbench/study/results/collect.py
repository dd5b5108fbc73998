"""A study's view of the store: scores, traces, points and chains of its fits, in some tables and one JSON.

Fits by Markov chains are judged together, all chains (replicas) of a cell's split; those by gradients each for itself
(see `convergence`).
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gpbench import config
from gpbench.data.table import evenly
from gpbench.errors import UserError, count
from gpbench.places import Places, write_if_changed, write_text
from gpbench.study import scoring
from gpbench.study.planning import identity
from gpbench.study.records import JITTER, Cell, Fit, FitRecord, FrozenPlan, from_json
from gpbench.study.results import chain_file, convergence, curves, printed_splits
from gpbench.study.storage import arrays, challengers, committed, parquet, provenance, remote
from gpbench.study.storage.store import CERTIFICATE, FINAL, Store

if TYPE_CHECKING:
    import pandas as pd

CLASS_POINTS = ["row", "y", "log_density", "modal", "confidence", "p_true"]
NUMBER_POINTS = ["row", "output", "y", "mean", "sd", "log_density", "pit", "crps"]
TRACED_ROWS = 3
NOTED = ["staleness_mean", "restarts", "trials", "seconds_tuning", *JITTER]
"""What distributed fits note of themselves, those that were tuned, and those that needed jitter."""
CHUNK = 100_000  # rows that are in memory at a time while tables of all fits are written
Done = list[tuple[Cell, str]]
"""Cells and identities of done fits."""
Tables = Iterator[tuple[str, Iterator["pd.DataFrame"]]]
"""Name of a table and its rows, some at a time."""


def read_plan(where: Places, name: str) -> FrozenPlan:
    """The frozen plan of a study."""
    path = where.plans / f"{name}.json"
    if not path.is_file():
        raise UserError(f"{path} is missing; `snakemake --cores 2 --config study=...` plans and runs a study")
    return from_json(FrozenPlan, path.read_bytes(), path)


def seen(ended: Ended, plan: FrozenPlan) -> str:
    """What a collection depends on, as text: statuses, certificates, challengers, scoring code, limits of budgets."""
    states = {fit.fit_id: ended.status(cell, fit)[0] for cell, fit in plan.fits}
    limits = [(cell.r_hat, cell.gain) for cell in plan.cells]
    sound = filter(ended.stored, states)
    certified = sorted(fit_id for fit_id in sound if (ended.store.folder(fit_id) / CERTIFICATE).is_file())
    predictions = [challengers.about(ended.where, name).file for name in plan.study.challengers]
    basis = {"scoring": scoring.digest(), "states": states, "limits": limits, "certified": certified}
    return identity.canonical(basis | {"challengers": predictions})


def stamp(where: Places, name: str) -> Path:
    """File that tells Snakemake whether the collection is older than the store."""
    return where.plans / f"{name}.seen"


class Ended:
    """How the fits of a run ended: in the store or a remote one, else by a committed record. Where their files are
    `read`, too, each fit is fetched if need be and verified; a damaged one is named, moved aside, and missing."""

    def __init__(self, where: Places, name: str, read: bool = True) -> None:
        self.where, self.store = where, Store(where.store)
        self.damaged: dict[str, str] = {}
        self.elsewhere: set[str] = set() if read else remote.fits()
        self.begun = self.store.begun()
        self.recorded = committed.by_fit(where, name)

        @functools.cache
        def stored(fit_id: str) -> FitRecord | None:
            """The store's record of a fit, read once; None where it has none."""
            if not (remote.pull(self.store, fit_id) if read else self.store.has(fit_id)):
                return None
            try:
                return self.store.verified(fit_id) if read else self.store.record(fit_id)
            except UserError as error:  # damaged, of another edition, or moved aside by another process meanwhile
                self.damaged[fit_id] = str(error)
                if read:
                    print(f"gpbench: {error}", file=sys.stderr)
                return None

        self.stored: Callable[[str], FitRecord | None] = stored

    def status(self, cell: Cell, fit: Fit) -> tuple[str, str]:
        """(status, reason) of a fit, whether it ended, is under way, or cannot be."""
        if cell.skip:
            return "skipped", cell.skip
        if record := self.stored(fit.fit_id):
            return record.status, record.reason
        if fit.fit_id in self.elsewhere:
            return "done", ""
        if row := self.recorded.get(fit.fit_id):
            return row["status"], row["reason"]
        if group := self.begun.get(fit.fit_id):
            return self.store.unfinished(group)
        return "missing", self.damaged.get(fit.fit_id, "not run yet")


def converged(ended: Ended, plan: FrozenPlan) -> dict[str, committed.Row]:
    """fit_id -> columns of `convergence`, and of chains how those of its cell and split have mixed together."""
    by_fit: dict[str, committed.Row] = {}
    for cell in (cell for cell in plan.cells if not cell.skip):
        for split in dict.fromkeys(fit.split for fit in cell.fits):
            fits = {fit.fit_id: fit for fit in cell.fits if fit.split == split}
            chains = [r for i in fits if (r := ended.stored(i)) and scoring.has_chain(ended.store, i)]
            if chains:
                values = scoring.mixing(ended.store, chains)
                by_fit |= dict.fromkeys((r.fit_id for r in chains), values | convergence.of_chains(values, cell.r_hat))
            for fit_id in fits.keys() - by_fit.keys():
                record = ended.stored(fit_id)
                done = record if judged(ended, cell, fits[fit_id])[0] == "done" else None
                if done and "convergence" in done.info:
                    by_fit[fit_id] = convergence.of_optimised(done.info, cell.gain)
                elif done and cell.what.kind == "predict" and cell.what.steps:
                    by_fit[fit_id] = convergence.UNNOTED
                elif not record and (row := ended.recorded.get(fit_id)) and row["gate"]:
                    by_fit[fit_id] = row
    return by_fit


def collect(where: Places, name: str) -> dict[str, int]:
    """Write results/NAME/study.json, scores.parquet, traces.parquet and, of the kind `predict`, points.parquet and
    chains.parquet, of the kind `sample`, prefixes.parquet and draws.parquet, of the kind `solve`, systems.parquet;
    number of fits by status."""
    import pandas as pd

    plan = read_plan(where, name)
    ended = Ended(where, name)
    write_if_changed(stamp(where, name), seen(ended, plan))
    rows = score_rows(where, ended, plan)
    finished = [(cell, fit.fit_id) for cell, fit in plan.fits if not cell.skip and ended.stored(fit.fit_id)]
    all_traces = ((fit_id, arrays.trace(ended.store.folder(fit_id))) for _, fit_id in finished)
    traces = (trace.assign(fit_id=fit_id) for fit_id, trace in all_traces if not trace.empty)
    folder = where.results / name
    parquet.write(folder / "traces.parquet", _chunks(traces, committed.CURVES["traces"]))
    status = {row["fit_id"]: row["status"] for row in rows}
    done = [(cell, fit_id) for cell, fit_id in finished if status[fit_id] == "done"]
    others = challengers.folders(where, plan)
    tables = {"predict": _predicted, "sample": _sampled, "solve": _solved}[plan.study.kind](ended.store, done, others)
    for part, chunks in tables:
        parquet.write(folder / f"{part}.parquet", chunks)
    write_text(folder / "study.json", json.dumps(facts(where, plan, rows), indent=1))
    # last: its time of change marks the collection as complete
    scores = pd.DataFrame(rows)
    parquet.write(folder / "scores.parquet", [scores])
    return {str(name): int(number) for name, number in scores["status"].value_counts().items()}


def facts(where: Places, plan: FrozenPlan, rows: list[committed.Row]) -> dict[str, object]:
    """Content of study.json: what was requested, what made it, and where it was collected; rows: `score_rows`."""
    study, first, last = asdict(plan.study), plan.cells[0], plan.cells[-1]
    others = [*study["per_split"], *study["challengers"]]
    return {
        "name": plan.name,
        "command": plan.command,
        **{k: study[k] for k in ("title", "kind", "datasets", "protocol", "budget", "splits")},
        "methods": [*study["methods"], *others],
        "labels": {cell.method: cell.label for cell in plan.cells},
        "data": {cell.address.dataset: str(cell.what.data.md5) for cell in plan.cells},
        **{k: study[k] for k in ("figures", "tables", "pairs", "published")},
        "settings": {cell.method: cell.settings for cell in plan.cells} | {name: {} for name in others},
        "reported": asdict(first.reported),
        "r_hat": first.r_hat,
        "gain": first.gain,
        "expected": [[row["method"], row["dataset"], row["split"]] for row in rows],
        **asdict(provenance.commit(where.root)),
        "created": provenance.now(),
        "machine": asdict(provenance.machine()),
        "versions": first.what.versions | last.what.versions,
    }


def score_rows(where: Places, ended: Ended, plan: FrozenPlan) -> list[committed.Row]:
    """One row of scores.parquet for every fit that a study wants, and for every split of others beside them."""
    judged = converged(ended, plan)
    fitted = [_row(ended, cell, fit) | judged.get(fit.fit_id, {}) for cell, fit in plan.fits]
    return fitted + printed_splits.rows(where, plan) + challengers.rows(where, plan, scoring.of_challenger)


def doubts(where: Places, plan: FrozenPlan) -> list[str]:
    """Why others should not see what is to be recorded, which they could not make again."""
    ended = Ended(where, plan.name)
    done = [one for _, fit in plan.fits if (one := ended.stored(fit.fit_id)) and one.status == "done"]
    dirty = sum(one.provenance.dirty and not ended.recorded.get(one.fit_id, {}).get("dirty") for one in done)
    private = [name for name in plan.study.datasets if config.compose(where.conf, "dataset", name).private]
    reasons = ["budget smoke shows no method's worth"] if plan.study.budget == "smoke" else []
    reasons += [f"{count(dirty, 'fit')} had uncommitted changes"] if dirty else []
    return reasons + ([f"private data ({', '.join(private)})"] if private else [])


def record(where: Places, plan: FrozenPlan) -> tuple[int, int]:
    """Add the study's finished fits to its committed records, if there are any; (number of new ones, of all)."""
    import pandas as pd

    ended = Ended(where, plan.name)
    rows = score_rows(where, ended, plan)
    # what records alone hold stays: another process may have renewed it, and R-hat is of all chains of a split together
    alone = {row["fit_id"] for row in rows if row["fit_id"] in ended.recorded and not ended.stored(row["fit_id"])}
    apart = {committed.place(row)[:3] for row in rows if row["fit_id"] in alone and "chains" in row}
    new = [row for row in rows if row["fit_id"] not in alone]
    for at in sorted(apart & {committed.place(row)[:3] for row in new if "chains" in row}):
        new = [row for row in new if committed.place(row)[:3] != at]
        print("gpbench: {} on {}, split {}: no chain added, recorded ones are elsewhere".format(*at), file=sys.stderr)
    if not any(ended.stored(row["fit_id"]) for row in new):
        return 0, len(ended.recorded)
    ended_rows = (row for row in new if row["status"] in committed.RECORDED)
    final = [{key: value for key, value in row.items() if value != "" and not pd.isna(value)} for row in ended_rows]
    return committed.write(where, plan.name, final, facts(where, plan, rows), _curves(ended, plan))


def _curves(ended: Ended, plan: FrozenPlan) -> dict[str, list[committed.Row]]:
    """Committed file -> its lines of the done fits that the store has."""
    lines: dict[str, list[committed.Row]] = {name: [] for name in committed.CURVES}
    for cell, fit in {fit.fit_id: (cell, fit) for cell, fit in plan.fits}.values():
        if ended.stored(fit.fit_id) is None or judged(ended, cell, fit)[0] != "done":
            continue
        folder = ended.store.folder(fit.fit_id)
        trace, points = arrays.trace(folder), folder / "points.parquet"
        if cell.what.kind == "solve":
            lines["systems"] += curves.system_lines(fit.fit_id, trace)
        elif not trace.empty:
            lines["traces"] += curves.trace_lines(fit.fit_id, trace)
        if points.is_file():
            lines["calibration"] += curves.calibration_lines(fit.fit_id, _points(points), cell.what.data.task)
    return lines


def _predicted(store: Store, done: Done, others: dict[str, Path]) -> Tables:
    """points, and of Markov chains chains, of the done fits of some cells; points of `others`, by folder, too."""
    folders = {fit_id: store.folder(fit_id) for _, fit_id in done}
    paths = {fit_id: path / "points.parquet" for fit_id, path in (folders | others).items()}
    foreign = (_classes(path / "points.parquet") for path in others.values())
    classes = max([0, *(cell.what.data.classes for cell, _ in done), *foreign])
    names = dict.fromkeys(["fit_id", *NUMBER_POINTS, *CLASS_POINTS, *(f"p{i}" for i in range(classes))])
    points = _chunks((_points(path).assign(fit_id=i) for i, path in paths.items()), list(names))
    # y is whole in classification: the first rows must not decide the type of all
    yield "points", (chunk.astype({"y": float}) for chunk in points)
    drawn = (_drawn(folders[i]).assign(fit_id=i) for i in folders if scoring.has_chain(store, i))
    yield "chains", _chunks(drawn, ["fit_id", "row", "draw", "mean"])


def _sampled(store: Store, done: Done, others: dict[str, Path]) -> Tables:
    """prefixes of the done fits of some cells, and draws of those of the first split of each cell."""
    paths = {fit_id: store.folder(fit_id) for _, fit_id in done}
    prefixes = (chain_file.prefixes(path).assign(fit_id=i) for i, path in paths.items())
    yield "prefixes", _chunks(prefixes, chain_file.PREFIX_COLUMNS)
    first = {fit.fit_id for cell, _ in done for fit in cell.fits if fit.split == cell.fits[0].split}
    drawn = (chain_file.draws(path).assign(fit_id=i) for i, path in paths.items() if i in first)
    yield "draws", _chunks(drawn, chain_file.DRAW_COLUMNS)


def _solved(store: Store, done: Done, others: dict[str, Path]) -> Tables:
    """systems, whose columns are those that the methods of some cells measure."""
    parts = [arrays.trace(store.folder(fit_id)).assign(fit_id=fit_id) for _, fit_id in done]
    yield "systems", _chunks(parts, list(dict.fromkeys(["fit_id", "step", *(name for part in parts for name in part)])))


def _row(ended: Ended, cell: Cell, fit: Fit) -> committed.Row:
    """One row of scores.parquet."""
    address, (status, reason) = asdict(cell.address), judged(ended, cell, fit)
    row = {
        "fit_id": fit.fit_id,
        "kind": cell.what.kind,
        "label": cell.label,
        "family": cell.family,
        "preset": address["method"],
        **address,
        "method": cell.method,
        "split": fit.split,
        "replica": fit.replica,
        "task": cell.what.data.task,
        "status": status,
        "reason": reason,
        "steps": cell.what.steps,
        "n_train": fit.rows,
        "n_test": fit.test_rows,
        "configuration": cell.what.configuration,
    }
    if status not in FINAL:
        return row
    record = ended.stored(fit.fit_id)
    if record is None:
        return ended.recorded[fit.fit_id] | row
    measured = {k: getattr(record.provenance, k) for k in ("commit", "dirty", "started", "ended", "processor")}
    measured |= {f"seconds_{k}": v for k, v in asdict(record.seconds).items()}
    measured |= {"peak_memory_mb": record.peak_memory_mb}
    measured |= {"gpu": record.provenance.gpu} if record.provenance.gpu else {}
    noted = {k: record.info[k] for k in NOTED if k in record.info}
    noted |= {"tuned": identity.canonical(record.info["tuned"])} if "tuned" in record.info else {}
    certificate = ended.store.certificate(fit.fit_id)
    scores = scoring.scores(ended.store, record) if status == "done" else {}
    if taken := row.keys() & scores:
        raise UserError(f"metric {min(taken)!r} is called as a column of the scores; rename it")
    return row | measured | noted | certificate | scores


def judged(ended: Ended, cell: Cell, fit: Fit) -> tuple[str, str]:
    """(status, reason) of a fit; one that is done, but whose predictions have no score, has diverged."""
    status, reason = ended.status(cell, fit)
    record = ended.stored(fit.fit_id) if status == "done" else None
    try:
        if record:
            scoring.scores(ended.store, record)
    except scoring.Undefined as error:
        return "diverged", str(error)
    return status, reason


def _points(path: Path) -> pd.DataFrame:
    """The columns that figures need."""
    points = parquet.read(path, NUMBER_POINTS)
    if "mean" in points:
        return points
    points = parquet.read(path)
    probabilities = points.filter(regex=r"^p\d+$")
    rows, values = range(len(points)), probabilities.to_numpy()
    named = points.assign(confidence=values[rows, points["modal"]], p_true=values[rows, points["y"].astype(int)])
    return named[[*CLASS_POINTS, *probabilities]]


def _drawn(folder: Path) -> pd.DataFrame:
    """The predictive mean of a chain's draws at three of its rows, of the first target."""
    chain = arrays.read(folder, "chain", only=("rows", "mean"))
    places = evenly(len(chain["rows"]), TRACED_ROWS)
    mean = chain["mean"][:, places, 0].T
    return parquet.long_table(("row", "draw"), mean.shape, row=chain["rows"][places, None], mean=mean)


def _classes(path: Path) -> int:
    """How many classes a fit's points have probabilities of; 0 in regression."""
    from pyarrow.parquet import read_schema

    return sum(name[0] == "p" and name[1:].isdigit() for name in read_schema(path).names)


def _chunks(parts: Iterable[pd.DataFrame], columns: list[str]) -> Iterator[pd.DataFrame]:
    """All parts with the same columns, some CHUNK rows at a time, to save memory; at least one table."""
    import pandas as pd

    waiting: list[pd.DataFrame] = []
    rows = 0
    for part in parts:
        waiting.append(part)
        rows += len(part)
        if rows >= CHUNK:
            yield pd.concat(waiting, ignore_index=True).reindex(columns=columns)
            waiting, rows = [], 0
    rest = pd.concat(waiting, ignore_index=True) if waiting else pd.DataFrame({"fit_id": pd.Series(dtype=str)})
    yield rest.reindex(columns=columns)


def not_done(where: Places, name: str) -> list[str]:
    """One line for every fit that failed, diverged, ran out of memory, was stopped or is missing."""
    plan, ended = read_plan(where, name), Ended(where, name)
    states = ((cell, fit, *judged(ended, cell, fit)) for cell, fit in plan.fits)
    return [
        f"{status}: {_place(cell, fit)} ({fit.fit_id}): {reason}"
        for cell, fit, status, reason in states
        if status not in ("done", "skipped")
    ]


def not_converged(where: Places, name: str) -> list[str]:
    """One line for every cell and split that fails the gate of the study's budget."""
    plan = read_plan(where, name)
    mixed = converged(Ended(where, name), plan)
    failed = ((cell, fit) for cell, fit in plan.fits if mixed.get(fit.fit_id, {}).get("gate") == "failed")
    lines = [f"not converged: {_place(cell, fit)}: {mixed[fit.fit_id]['reason']}" for cell, fit in failed]
    return list(dict.fromkeys(lines))


def _place(cell: Cell, fit: Fit) -> str:
    return f"{cell.method} on {cell.address.dataset}, split {fit.split}"
