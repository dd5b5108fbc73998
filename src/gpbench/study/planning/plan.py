"""What of a study's cells is still to be run, cut into batches. No torch.

group   {group_id, address, label, family, rows, what, how, fits}: fits that ride in one tensor batch
batch   {batch_id, groups, seconds}: what one job runs
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

from gpbench import config
from gpbench.config import schema
from gpbench.places import Places, write_if_changed
from gpbench.study.planning import identity
from gpbench.study.planning import resolve as resolving
from gpbench.study.planning.cost import Cost, learn
from gpbench.study.storage import committed as recorded
from gpbench.study.storage.store import Store


@dataclasses.dataclass
class Plan:
    """A study's cells and what of them is still to be run."""

    name: str
    command: str
    """what makes this study again"""
    study: schema.Study
    cells: list[dict[str, Any]]
    states: dict[str, tuple[str, str]]
    """fit_id -> (state, reason): done, pending, failed, diverged, out-of-memory"""
    batches: list[dict[str, Any]]
    remarks: list[str]
    cost: Cost

    @property
    def datasets(self) -> list[str]:
        return sorted({g["address"]["dataset"] for b in self.batches for g in b["groups"]})


def make(places: Places, study_name: str, overrides: str = "") -> Plan:
    """Resolve a study, look at the store, and cut what is missing into batches."""
    study, cells, remarks = resolving.resolve(places, study_name, overrides)
    # in one order, as in the run's name: the same study by other words is not planned anew
    words = " ".join(_word(f"{key}={value}") for key, value in sorted(config.split_overrides(overrides)))
    command = f"snakemake --cores 2 --config study={study_name}" + (f" overrides={shlex.quote(words)}" if words else "")
    return build(places, run_name(study_name, overrides), command, study, cells, remarks)


def _word(text: str) -> str:
    """A word that `config.split_overrides` reads as it is; quoted only where it must be."""
    return shlex.quote(text) if any(c.isspace() or c in "'\"\\" for c in text) else text


def run_name(study_name: str, overrides: str) -> str:
    """Name of the results folder: a study with overrides has its own."""
    words = sorted(config.split_overrides(overrides))
    return f"{study_name}-{identity.digest(words, 6)}" if words else study_name


def build(
    places: Places, name: str, command: str, study: schema.Study, cells: list[dict[str, Any]], remarks: list[str]
) -> Plan:
    """The plan of some cells against the store as it is."""
    store = Store(places.store)
    records = [store.record(fit_id) for fit_id in store.ids() if store.has(fit_id)]
    cost = learn(places, records, cells)
    states = _states(store, cells, records, recorded.by_fit(places, name))
    todo = {fit_id for fit_id, (state, _) in states.items() if state == "pending"}
    groups = _groups(store, cells, todo)
    return Plan(name, command, study, cells, states, _batches(groups, cost), remarks, cost)


def _states(
    store: Store, cells: list[dict[str, Any]], records: list[dict[str, Any]], committed: dict[str, dict[str, Any]]
) -> dict[str, tuple[str, str]]:
    finished = {r["fit_id"]: r for r in records}
    earlier: dict[tuple, dict] = {}
    for r in sorted(records, key=lambda r: r["provenance"]["started"]):
        place = _place(r["address"], r)
        earlier[place] = earlier[*place, r["address"]["overrides"]] = r
    begun = store.begun()
    states = {}
    for cell in cells:
        if cell["skip"]:
            continue
        for fit in cell["fits"]:
            fit_id = fit["fit_id"]
            if fit_id in finished:
                states[fit_id] = (finished[fit_id]["status"], finished[fit_id]["reason"])
            elif committed.get(fit_id, {}).get("status") == "done":
                states[fit_id] = ("done", f"record of commit {committed[fit_id]['commit'][:7]}")
            elif fit_id in begun:
                states[fit_id] = ("pending", f"resumes at step {store.checkpoint(begun[fit_id]['group_id'])}")
            else:
                place = _place(cell["address"], fit)
                old = earlier.get((*place, cell["address"]["overrides"]) if cell.get("settings") else place)
                states[fit_id] = ("pending", why(old, cell["what"]) if old else "new")
    return states


def _place(address: dict[str, Any], fit: dict[str, Any]) -> tuple:
    return (*(address[k] for k in ("method", "dataset", "protocol")), fit["split"], fit["replica"])


def why(old: dict[str, Any], what: dict[str, Any]) -> str:
    """Which components moved since an earlier fit of the same place, in one line."""
    before = {k: v for k, v in old["what"].items() if k not in ("split", "replica")}
    return "; ".join(identity.moved(before, what)) or "unchanged"


def _groups(store: Store, cells: list[dict[str, Any]], todo: set[str]) -> list[dict[str, Any]]:
    """Groups that were begun come first and as they were, so that they resume bit for bit; then the rest."""
    groups, covered = [], set()
    how = {f["fit_id"]: cell["how"] for cell in cells for f in cell["fits"]}
    for group in store.groups():
        ids = {f["fit_id"] for f in group["fits"]}
        if ids & todo and not ids & covered:
            groups.append(group | {"how": how[min(ids & todo)]})  # a time cap, say, is of today
            covered |= ids
    for cell in cells:
        fits = [f for f in cell["fits"] if f["fit_id"] in todo and f["fit_id"] not in covered]
        for alike in _alike(fits, cell["what"]["kind"]):
            rows = alike[0]["rows"]
            size = _replicas(cell, rows)
            for part in (alike[i : i + size] for i in range(0, len(alike), size)):
                group = {k: cell[k] for k in ("address", "label", "family", "what", "how")} | {"rows": rows}
                groups.append(group | {"fits": part, "group_id": identity.digest([f["fit_id"] for f in part])})
                covered |= {f["fit_id"] for f in part}
    return groups


def _alike(fits: list[dict[str, Any]], kind: str) -> list[list[dict[str, Any]]]:
    """Fits by their number of training rows, which in folds may differ by one; not so where each row is sampled."""
    most, parts = int(kind == "predict"), []
    for fit in sorted(fits, key=lambda fit: fit["rows"]):
        if not parts or fit["rows"] - parts[-1][0]["rows"] > most:
            parts.append([])
        parts[-1].append(fit)
    return parts


def _replicas(cell: dict[str, Any], rows: int) -> int:
    """How many fits of a cell with so many training rows ride in one tensor batch: many where a step is small, else
    one; if more than all chains of a split, then whole splits."""
    what, how, hyper = cell["what"], cell["how"], cell["what"]["method"]
    if what["steps"] is None or "distributed" in what:
        return 1
    chains = max(fit["replica"] for fit in cell["fits"]) + 1
    size, batch = hyper.get("num_inducing") or hyper.get("num_features"), min(hyper.get("batch_size") or rows, rows)
    if size is not None:
        most = how["replicas"] if size * batch <= how["small"] else 1
    elif cell["sampler"]:
        most = min(max(how["replicas"], chains), how["square"] // rows**2)
    else:
        return 1
    return max(most - most % chains if most > chains else most, 1)


def _batches(groups: list[dict[str, Any]], cost: Cost) -> list[dict[str, Any]]:
    """Consecutive groups up to `batch_minutes`, but small enough that a short study still fills some cores."""
    seconds = [cost.seconds(g) * len(g["fits"]) for g in groups]
    even = max(sum(seconds) / 8, 15.0)
    batches: list[dict[str, Any]] = []
    for group, predicted in zip(groups, seconds, strict=True):
        cap = min(group["how"]["batch_minutes"] * 60, even)
        last = batches[-1] if batches else None
        same = last and last["groups"][-1]["how"]["device"] == group["how"]["device"]
        if not same or last["seconds"] + predicted > cap:
            batches.append({"groups": [], "seconds": 0.0})
        batches[-1]["groups"].append(group)
        batches[-1]["seconds"] += predicted
    for batch in batches:
        batch["batch_id"] = identity.digest([f["fit_id"] for g in batch["groups"] for f in g["fits"]])
    return batches


def content(plan: Plan) -> dict[str, Any]:
    """What of a plan is frozen: name, command, study, cells."""
    return {"name": plan.name, "command": plan.command, "study": dataclasses.asdict(plan.study), "cells": plan.cells}


def freeze(plan: Plan, places: Places) -> None:
    """Write the plan and its batches, each only if it changed."""
    write_if_changed(places.plans / f"{plan.name}.json", json.dumps(content(plan), indent=1))
    for batch in plan.batches:
        write_if_changed(places.plans / "batches" / f"{batch['batch_id']}.json", json.dumps(batch, indent=1))
