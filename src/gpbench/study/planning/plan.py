"""What of a study's cells is still to be run, against the store as it is. No torch."""

import dataclasses
import datetime
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gpbench import config
from gpbench.errors import UserError
from gpbench.places import Places, write_if_changed, write_text
from gpbench.study.planning import batches, identity
from gpbench.study.planning.cost import CostModel, learn
from gpbench.study.planning.resolve import Resolved, require_entry, resolve
from gpbench.study.records import (
    Address,
    Batch,
    Cell,
    Fit,
    FitRecord,
    FrozenPlan,
    What,
    convergence_in_words,
    from_json,
    to_json,
)
from gpbench.study.storage import committed, remote
from gpbench.study.storage.store import Store


class State(NamedTuple):
    """done, pending, failed, diverged or out-of-memory, and why; step: of the checkpoint that it resumes from."""

    name: str
    reason: str
    step: int = 0


class PlanRow(NamedTuple):
    """A planned fit, for people; minutes: expected, of one core, where it is pending."""

    fit_id: str
    method: str
    dataset: str
    split: int
    replica: int
    state: str
    reason: str
    minutes: float


@dataclasses.dataclass(frozen=True)
class Plan(FrozenPlan):
    """A study's cells and what of them is still to be run; states: by fit_id."""

    states: dict[str, State]
    batches: tuple[Batch, ...]
    remarks: list[str]
    cost: CostModel

    def rows(self) -> list[PlanRow]:
        """A row for every fit."""
        rows = []
        for cell, fit in ((each, fit) for each in self.cells for fit in each.fits):
            name, reason, step = self.states.get(fit.fit_id, State("skipped", cell.skip))
            minutes = self.cost.seconds(cell, step) * cell.cores / 60 if name == "pending" else 0.0
            place = (fit.fit_id, cell.method, cell.address.dataset, fit.split, fit.replica)
            rows.append(PlanRow(*place, name, reason, minutes))
        return rows


def make(places: Places, study_name: str, overrides: str = "", site: str = "") -> Plan:
    """Resolve a study, look at the store, and cut what is missing into batches; site: overrides that are no part of the
    run's name, and that the others may replace."""
    resolution = resolved(places, study_name, overrides, site)
    return build(places, run_name(study_name, overrides), snakemake_command(study_name, overrides), resolution)


def resolved(places: Places, study_name: str, overrides: str, site: str = "") -> Resolved:
    """What `resolve` finds; UserError also for a run that was planned here of a data set whose entry is gone since."""
    try:
        return resolve(places, study_name, overrides, site)
    except UserError:
        path = places.plans / f"{run_name(study_name, overrides)}.json"
        planned = from_json(FrozenPlan, path.read_bytes(), path).study.datasets if path.is_file() else []
        for name in planned:
            require_entry(places, name, f"run {path.stem!r}")
        raise


def study_words(places: Places, name: str, overrides: str = "") -> tuple[str, str]:
    """Study and overrides of the run of this name that was planned or recorded here, `overrides` after its own; any
    other name as it is. UserError where the file that tells is damaged."""
    if not (isinstance(name, str) and isinstance(overrides, str)):
        raise UserError(f"a study and its overrides must be text: 'default', 'splits=2', not {name!r}, {overrides!r}")
    if name in config.options(places.conf, "study") or Path(name).name != name:
        return name, overrides
    planned, recorded = places.plans / f"{name}.json", committed.folder(places, name)
    if planned.is_file():
        command = from_json(FrozenPlan, planned.read_bytes(), planned).command
    elif (recorded / "study.json").is_file():
        command = str(committed.facts(recorded)["command"])
    else:
        return name, overrides
    study, words = config.command_words(command)
    return study, f"{words} {overrides}".strip()


def snakemake_command(study_name: str, overrides: str) -> str:
    """What runs a study in a shell; sorted, as in the run's name: the order of overrides does not make another run."""
    words = config.joined(f"{key}={value}" for key, value in sorted(config.split_overrides(overrides)))
    return f"snakemake --cores 2 --config study={study_name}" + (f" overrides={shlex.quote(words)}" if words else "")


def run_name(study_name: str, overrides: str) -> str:
    """Name of the results folder: a study with overrides has another one."""
    words = sorted(config.split_overrides(overrides))
    return f"{study_name}-{identity.digest(words, 6)}" if words else study_name


def build(places: Places, name: str, command: str, resolution: Resolved) -> Plan:
    """The plan of some cells against the store as it is."""
    store, cells = Store(places.store), resolution.cells
    records, damaged, others = store.records()
    cost = learn(places, records, cells)
    states = _states(store, cells, records, committed.by_fit(places, name))
    pending = {fit_id for fit_id, state in states.items() if state.name == "pending"}
    planned = batches.batches(store, batches.groups(store, cells, pending), cost)
    return Plan(name, command, resolution.study, cells, states, planned, resolution.remarks + damaged + others, cost)


def _states(
    store: Store, cells: Iterable[Cell], records: list[FitRecord], recorded: dict[str, committed.Row]
) -> dict[str, State]:
    finished = {record.fit_id: record for record in records}
    # the last fit of a place, with whatever overrides and with these
    earlier: dict[tuple[str | int, ...], FitRecord] = {}
    for record in sorted(records, key=lambda record: record.provenance.started):
        place = _place(record.address, record.what, record)
        earlier[place] = earlier[*place, record.address.overrides] = record
    by_place = {committed.place(row): row for row in recorded.values()}
    begun, elsewhere = store.begun(), remote.fits()
    states = {}
    for cell, fit in ((each, fit) for each in cells if not each.skip for fit in each.fits):
        if ended := finished.get(fit.fit_id):
            words = filter(None, (ended.reason, convergence_in_words(ended.info)))
            states[fit.fit_id] = State(ended.status, "; ".join(words))
        elif fit.fit_id in elsewhere:
            states[fit.fit_id] = State("done", "in GPBENCH_REMOTE")
        elif (row := recorded.get(fit.fit_id)) and row["status"] == "done":
            words = filter(None, (f"record of commit {row['commit'][:7]}", convergence_in_words(row)))
            states[fit.fit_id] = State("done", "; ".join(words))
        elif group := begun.get(fit.fit_id):
            step = store.checkpoint(group.group_id)
            states[fit.fit_id] = State("pending", f"resumes at step {step}", step)
        else:
            place = _place(cell.address, cell.what, fit)
            if old := earlier.get((*place, cell.address.overrides) if cell.settings else place):
                reason = "; ".join(moved(old.what, cell.what)) or "unchanged"
            else:
                reason = _of_record(by_place.get((cell.method, cell.address.dataset, fit.split, fit.replica)), fit)
            states[fit.fit_id] = State("pending", reason)
    return states


def _of_record(row: committed.Row | None, fit: Fit) -> str:
    """Why a fit is run although its place has a record, or 'new'."""
    if row is None:
        return "new"
    if row["fit_id"] == fit.fit_id:
        return f"its record says {row['status']}"
    return f"its record, of commit {row['commit'][:7]}, is of other code or settings"


def _place(address: Address, what: What, fit: Fit | FitRecord) -> tuple[str | int, ...]:
    """Where a later fit succeeds an earlier one; a final model, of all rows, succeeds no split."""
    return address.method, address.dataset, address.protocol, what.is_final, fit.split, fit.replica


def moved(old: What, new: What) -> list[str]:
    """What differs, one line a component."""
    return identity.moved(dataclasses.asdict(old), dataclasses.asdict(new))


def freeze(plan: Plan, places: Places) -> None:
    """Write the plan, if it changed, and its batches: these have fits to run, so that statuses of an earlier run must
    be older than they are, and of another content, for Snakemake takes a file of the same checksum for unchanged."""
    frozen = FrozenPlan(plan.name, plan.command, plan.study, plan.cells)
    write_if_changed(places.plans / f"{plan.name}.json", to_json(frozen))
    now = datetime.datetime.now(datetime.UTC).isoformat()
    for batch in plan.batches:
        stamped = dataclasses.replace(batch, requested=now)
        write_text(places.plans / "batches" / f"{batch.batch_id}.json", to_json(stamped))
