"""From a study to the fits that it needs: composed, checked, identified, and cut into batches. No torch.

    cell    {method, address, label, family, reported, rows, what, how, skip, fits: [{split, replica, fit_id}]}
    group   {group_id, address, label, family, what, how, fits}: fits that ride in one tensor batch
    batch   {batch_id, groups, seconds}: what one job runs

`what` is everything that is hashed (see `identity`), without split and replica; `address` is how people
call the cell; `how` is the trainer. Nothing here depends on the kind of fit but `ENTRY`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
from typing import Any

from gpbench import config, schema
from gpbench.config import MethodConfig
from gpbench.data import protocols
from gpbench.errors import UserError, unknown
from gpbench.evaluation.metrics import METRICS
from gpbench.places import Places, write_if_changed
from gpbench.study import identity
from gpbench.study.cost import Cost
from gpbench.study.store import Store

# (kind of fit, closed form?) -> its entry point, whose import closure is part of the identity
ENTRY = {("predict", True): "gpbench.study.closed_form", ("predict", False): "gpbench.study.training"}
# what an override may change of a study itself
STUDY_KEYS = tuple(f.name for f in dataclasses.fields(schema.Study) if f.name not in ("name", "title"))


def resolve(
    places: Places, study_name: str, overrides: str = ""
) -> tuple[schema.Study, list[dict[str, Any]], list[str]]:
    """The study, its cells, and remarks for the user; every name, key and value is checked."""
    words = config.split_overrides(overrides)
    own = tuple(f"{k.removeprefix('study.')}={v}" for k, v in words if k.removeprefix("study.") in STUDY_KEYS)
    study = config.compose(places.conf, "study", study_name, own)
    if not study.methods or not study.datasets:
        raise UserError(f"study {study_name!r} is empty: it needs methods and datasets")
    _check_names(places, study)
    rest = [(k, v) for k, v in words if k.removeprefix("study.") not in STUDY_KEYS]
    by_target = _by_target(places, study, rest)
    remarks = by_target.pop("remarks", [])
    protocol = config.compose(places.conf, "protocol", study.protocol, tuple(by_target.get("protocol", ())))
    _check_protocol(places, protocol)
    budget = config.compose(places.conf, "budget", study.budget, tuple(by_target.get("budget", ())))
    trainer = config.compose(places.conf, "trainer", study.trainer, tuple(by_target.get("trainer", ())))
    datasets = [config.compose(places.conf, "dataset", name) for name in study.datasets]
    shared = [f"{group}.{o}" for group in ("protocol", "budget") for o in by_target.get(group, [])]
    configured = functools.cache(lambda name, words: _method(places, name, budget, list(words)))
    cells = []
    for name in study.methods:
        for dataset in datasets:
            preset = study.presets.get(dataset.name, {}).get(name, name)
            words = by_target.get(name, []) + (by_target.get(preset, []) if preset != name else [])
            method = configured(preset, tuple(words))
            cell = _cell(study, method, dataset, protocol, budget, trainer, [*words, *shared])
            cells.append({"method": name} | cell)
    return study, cells, remarks


def _check_names(places: Places, study: schema.Study) -> None:
    """Refuse what is named twice, and a number of splits for a data set that is not there."""
    for kind, names in (("method", study.methods), ("dataset", study.datasets)):
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"study {study.name!r} names {kind} {name!r} twice; name it once")
    for key in ("splits_of", "presets"):
        for name in getattr(study, key):
            if name not in (available := config.options(places.conf, "dataset")):
                raise unknown("dataset", name, available, f"{key} of study {study.name!r}")
    for name in {name for by_method in study.presets.values() for name in by_method}:
        if name not in (available := config.options(places.conf, "method")):
            raise unknown("method", name, available, f"presets of study {study.name!r}")


def _check_protocol(places: Places, protocol: protocols.Protocol) -> None:
    """Refuse metrics that do not exist, and a number of test rows for a data set that is not there."""
    where = f"protocol {protocol.name!r}"
    for name in protocol.metrics:
        if name not in METRICS:
            raise unknown("metric", name, METRICS, f"metrics of {where}")
    for name in protocol.splits.test_rows:
        if name not in (available := config.options(places.conf, "dataset")):
            raise unknown("dataset", name, available, f"test_rows of {where}")


def _by_target(places: Places, study: schema.Study, words: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Overrides by what they are for: a method of the study (`*`: every), `protocol`, `budget`, `trainer`."""
    found: dict[str, list[str]] = {}
    presets = {preset for by_method in study.presets.values() for preset in by_method.values()}
    targets = [*study.methods, *sorted(presets), "protocol", "budget", "trainer"]
    available = config.options(places.conf, "method")
    for key, value in words:
        target, dot, leaf = key.partition(".")
        if not dot:
            raise unknown("override", key, [*STUDY_KEYS, *(f"{t}." for t in targets), "*."], f"study {study.name!r}")
        if target == "*":
            having = [m for m in study.methods if m in available and leaf in _hyper_keys(places, m)]
            if not having:
                every = {k for m in study.methods if m in available for k in _hyper_keys(places, m)}
                raise unknown("key", leaf, every, "the hyperparameters of any method of the study")
            without = [m for m in study.methods if m not in having]
            if without:
                found.setdefault("remarks", []).append(f"{key}: {', '.join(without)} have no {leaf!r}")
            for method in having:
                found.setdefault(method, []).append(f"{leaf}={value}")
        elif target in targets:
            found.setdefault(target, []).append(f"{leaf}={value}")
        else:
            raise unknown("method or group", target, targets, f"override {key!r} of study {study.name!r}")
    return found


def _hyper_keys(places: Places, method: str) -> set[str]:
    return {f.name for f in dataclasses.fields(config.compose(places.conf, "method", method).hyper)} | {"steps"}


def _method(places: Places, name: str, budget: schema.Budget, overrides: list[str]) -> MethodConfig:
    """The method with the hyperparameters that are part of the budget, then the user's."""
    plain = config.compose(places.conf, "method", name)
    given = [f"{k}={v}" for k, v in (budget.hyper.get(name) or budget.hyper.get(plain.family, {})).items()]
    return config.compose(places.conf, "method", name, (*given, *overrides)) if given or overrides else plain


def _cell(
    study, method: MethodConfig, dataset: schema.Dataset, protocol, budget, trainer, overrides: list[str]
) -> dict[str, Any]:
    """One cell; impossible ones carry the reason in `skip`."""
    if dataset.md5 is None:
        raise UserError(
            f"data set {dataset.name!r} has no md5 yet; run `gpbench data pin {dataset.name}`, then "
            f"`gpbench data prepare {dataset.name}`, which prints the one to write into its file"
        )
    frozen = protocols.freeze(protocol, dataset)
    train_rows, test_rows = protocols.sizes(frozen["splits"], dataset.rows)
    kind = "predict"
    entry = ENTRY[kind, method.header.closed_form]
    modules = (method.header.module, entry)
    what = {
        "kind": kind,
        "entry": entry,
        "method": {"module": method.header.module, **dataclasses.asdict(method.hyper)},
        "data": {"md5": dataset.md5, "task": dataset.task, "images": dataset.images, "classes": len(dataset.classes)},
        "protocol": frozen,
        "steps": _steps(method, budget, train_rows * dataset.columns),
        "dtype": study.dtype,
        "noise_block": study.noise_block,
        "code": identity.code(*modules),
        "versions": identity.versions(*modules),
    }
    return {
        "address": {
            "method": method.header.name,
            "dataset": dataset.name,
            "protocol": protocol.name,
            "budget": budget.name,
            "overrides": shlex.join(overrides),
        },
        "label": method.header.label,
        "family": method.family,
        "reported": {"metrics": protocol.metrics, "spread": protocol.spread},
        "rows": train_rows,
        "test_rows": test_rows,
        "what": what,
        "how": dataclasses.asdict(trainer),
        "skip": _impossible(method, dataset, train_rows, len(frozen["outputs"])),
        "fits": [
            {"split": s, "replica": r, "fit_id": identity.digest(what | {"split": s, "replica": r})}
            for s in _wanted(study, protocol, dataset)
            for r in range(study.replicas)
        ],
    }


def _wanted(study: schema.Study, protocol: protocols.Protocol, dataset: schema.Dataset) -> range:
    """The splits that a study wants of a data set; the one official split where there is one, however many it asks."""
    first, available = study.first_split, protocols.num_splits(protocol, dataset)
    wanted = range(first, first + study.splits_of.get(dataset.name, study.splits))
    if first == 0 and protocols.official(protocol, dataset):
        return range(1)
    if wanted[-1] >= available:
        raise UserError(
            f"study {study.name!r} wants splits {wanted[0]} to {wanted[-1]} of {dataset.name!r}; "
            f"protocol {protocol.name!r} has 0 to {available - 1}"
        )
    return wanted


def _steps(method: MethodConfig, budget: schema.Budget, values: int) -> int | None:
    if method.header.closed_form:
        return None
    if method.header.steps:
        return method.header.steps
    sizes = budget.steps.get(method.family) or budget.steps.get("default")
    if sizes is None:
        raise UserError(f"budget {budget.name!r} has no steps for {method.family!r} and no default")
    return sizes.steps(values)


def _impossible(method: MethodConfig, dataset: schema.Dataset, rows: int, outputs: int) -> str:
    """Why a method cannot be fitted to a data set; empty where it can."""
    if dataset.task not in method.header.tasks:
        return f"{' and '.join(method.header.tasks)} only"
    limit = method.header.max_rows
    if limit is not None and rows > limit:
        return f"{rows} training rows, at most {limit}"
    limit = method.header.max_outputs
    if limit is not None and outputs > limit:
        return f"{outputs} targets, at most {limit}"
    return ""


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
    study, cells, remarks = resolve(places, study_name, overrides)
    command = f"snakemake --cores 2 --config study={study_name}" + (
        f" overrides={shlex.quote(overrides)}" if overrides else ""
    )
    return build(places, run_name(study_name, overrides), command, study, cells, remarks)


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
    cost = Cost(records)
    states = _states(store, cells, records)
    todo = {fit_id for fit_id, (state, _) in states.items() if state == "pending"}
    groups = _groups(store, cells, todo)
    return Plan(name, command, study, cells, states, _batches(groups, cost), remarks, cost)


def _states(store: Store, cells: list[dict[str, Any]], records: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    finished = {r["fit_id"]: r for r in records}
    earlier: dict[tuple, dict] = {}
    for r in sorted(records, key=lambda r: r["provenance"]["started"]):
        earlier[_place(r["address"], r)] = r
    begun = store.begun()
    states = {}
    for cell in cells:
        if cell["skip"]:
            continue
        for fit in cell["fits"]:
            fit_id = fit["fit_id"]
            if fit_id in finished:
                states[fit_id] = (finished[fit_id]["status"], finished[fit_id]["reason"])
            elif fit_id in begun:
                states[fit_id] = ("pending", f"resumes at step {store.checkpoint(begun[fit_id]['group_id'])}")
            else:
                old = earlier.get(_place(cell["address"], fit))
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
        size = _replicas(cell)
        for i in range(0, len(fits), size):
            part = fits[i : i + size]
            group = {k: cell[k] for k in ("address", "label", "family", "rows", "what", "how")}
            groups.append(group | {"fits": part, "group_id": identity.digest([f["fit_id"] for f in part])})
            covered |= {f["fit_id"] for f in part}
    return groups


def _replicas(cell: dict[str, Any]) -> int:
    """How many fits of a cell ride in one tensor batch: many where a step is small, else one."""
    hyper = cell["what"]["method"]
    size = hyper.get("num_inducing") or hyper.get("num_features")
    if size is None or cell["what"]["steps"] is None:
        return 1
    batch = min(hyper.get("batch_size") or cell["rows"], cell["rows"])
    return cell["how"]["replicas"] if size * batch <= cell["how"]["small"] else 1


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


def freeze(plan: Plan, places: Places) -> None:
    """Write the plan and its batches, each only if it changed."""
    content = {"name": plan.name, "command": plan.command, "study": dataclasses.asdict(plan.study), "cells": plan.cells}
    write_if_changed(places.plans / f"{plan.name}.json", json.dumps(content, indent=1))
    for batch in plan.batches:
        write_if_changed(places.plans / "batches" / f"{batch['batch_id']}.json", json.dumps(batch, indent=1))
