"""Carry evidence over to today's identities: `gpbench adopt RUN`.

Where numerical code was moved but not changed, finished fits keep their numbers and lose their names. For each method
and task of a run the cheapest of such fits are refitted; where every score agrees to `TOLERANCE`, all of the fits take
today's identities, with a note. What differs is named and stays stale.

Optimisers amplify rounding, so that fits made on another processor need not come out again. `--against CHECKOUT`
therefore names a checkout of the code that made them, with its own environment: it refits the same fits on this
machine, must give them the identities of the evidence, and its scores are what today's are compared with.
"""

import json
import math
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpbench import config
from gpbench.data.prepare import ensure
from gpbench.errors import UserError, count
from gpbench.places import Places
from gpbench.study import scoring
from gpbench.study.commands import fit_one, job
from gpbench.study.planning import batches
from gpbench.study.planning import plan as planning
from gpbench.study.records import Cell, Fit, FitRecord, to_json
from gpbench.study.storage import committed, provenance, remote
from gpbench.study.storage.store import Store

TOLERANCE = 1e-9  # largest relative difference of a score; committed records keep ten digits
MEASURED = ("second", "memory")  # parts of the names of scores that measure the machine


@dataclass(frozen=True)
class Evidence:
    """A finished fit under an earlier identity; scores: those that do not measure the machine."""

    cell: Cell
    fit: Fit
    source: committed.Row | FitRecord
    scores: dict[str, float]
    seconds: float
    commit: str


def adopt(where: Places, run: str, overrides: str, check: int, against: Path | None) -> list[str]:
    """Adopt what agrees; lines that say what was refitted, adopted and refused. UserError where nothing is stale."""
    if against and not against.is_dir():
        raise UserError(f"--against {against} is not a folder; give a checkout of gpbench")
    plan = planning.make(where, *planning.study_words(where, run, overrides))
    recorded = committed.folder(where, plan.name)
    facts = committed.facts(recorded) if (recorded / "scores.csv").is_file() else {}
    store, moved = Store(where.store), defaultdict[str, set[str]](set)
    stale: dict[tuple[str, str], list[Evidence]] = {}  # by method and task
    for item in (*_recorded(where, store, plan), *_stored(store, plan)):
        if reason := _moved(item):
            if _is_wanted(plan, item.fit):
                moved[f"{item.cell.method}: {reason}"].add(item.fit.fit_id)
        else:
            stale.setdefault((item.cell.method, item.cell.what.data.task), []).append(item)
    lines = [f"stays stale: {count(len(fits), 'fit')} of {reason}" for reason, fits in moved.items()]
    stale = {key: items for key, items in stale.items() if any(_is_wanted(plan, item.fit) for item in items)}
    if not stale:
        raise UserError("\n".join([*lines, f"{plan.name} has no fits whose code moved; nothing to adopt"]))
    adopted: list[tuple[Evidence, str]] = []
    here = provenance.commit(where.root)
    today = (here.commit[:7] or "no commit") + (" with changes" if here.dirty else "")
    for (method, task), items in stale.items():
        # of all, also those that today's code has fitted, so that a difference that was found once is found again
        each = {item.fit.fit_id: item for item in items}  # of a fit that is recorded and stored, the latter
        chosen = sorted(each.values(), key=lambda item: item.seconds)[:check]
        items = [item for item in items if _is_wanted(plan, item.fit)]
        number = count(len({item.fit.fit_id for item in items}), "fit")
        if differences := _check(where, store, chosen, against):
            lines += [f"stays stale: {method} ({task}, {number}): {text}" for text in differences]
        else:
            names = ", ".join(_name(item) for item in chosen)
            beside = " by both codes on one machine" if against else ""
            note = f"at {today} {names} refitted{beside} with equal scores"
            adopted += [(item, f"of commit {item.commit[:7]}; {note}") for item in items]
            for item in chosen:
                _certify(store, item)
            lines.append(f"adopted: {method} ({task}): {number}; refitted{beside}: {names}")
    _write(where, store, plan, adopted, facts)
    return lines


def _is_wanted(plan: planning.Plan, fit: Fit) -> bool:
    """Whether today's code has not fitted it yet."""
    return plan.states[fit.fit_id].name == "pending"


def _tells(store: Store, plan: planning.Plan, fit: Fit, earlier: str) -> bool:
    """Whether a fit under an earlier identity can be adopted, or compared with what today's code has fitted."""
    fitted = store.has(fit.fit_id) and not store.record(fit.fit_id).provenance.adopted
    return earlier != fit.fit_id and (fitted or _is_wanted(plan, fit))


def _recorded(where: Places, store: Store, plan: planning.Plan) -> Iterator[Evidence]:
    """Committed records under earlier identities, of fits that the study wants today."""
    wanted = {(c.method, c.address.dataset, f.split, f.replica): (c, f) for c in plan.cells for f in c.fits}
    for row in committed.by_fit(where, plan.name).values():
        cell, fit = wanted.get((row["method"], row["dataset"], row["split"], row["replica"]), (None, None))
        if cell and fit and not cell.skip and row["status"] == "done" and _tells(store, plan, fit, row["fit_id"]):
            scores = {k: v for k, v in row.items() if isinstance(v, float) and is_score(k)}
            yield Evidence(cell, fit, row, scores, row["seconds_train"] * row["seconds_shared_by"], row["commit"])


def _stored(store: Store, plan: planning.Plan) -> Iterator[Evidence]:
    """Stored fits under earlier identities, the latest of each place."""
    records = sorted(store.records()[0], key=lambda record: record.provenance.started)
    today = {fit.fit_id for _, fit in plan.fits}
    done = [record for record in records if record.status == "done" and record.fit_id not in today]
    earlier = {(record.address, record.split, record.replica): record.fit_id for record in done}
    for cell, fit in plan.fits:
        fit_id = earlier.get((cell.address, fit.split, fit.replica))
        if fit_id and not cell.skip and _tells(store, plan, fit, fit_id):
            old = store.record(fit_id)  # with its scores, which `records` leaves out
            scores = {k: v for k, v in scoring.scores(store, old).items() if is_score(k)}
            yield Evidence(cell, fit, old, scores, old.seconds.train * old.seconds.shared_by, old.provenance.commit)


def is_score(name: str) -> bool:
    """Whether a column of scores does not measure the machine."""
    return not any(part in name for part in MEASURED)


def _moved(item: Evidence) -> str:
    """What besides code has changed since; '' where nothing is known to have."""
    cell, fit, source = item.cell, item.fit, item.source
    if isinstance(source, FitRecord):
        lines = planning.moved(source.what, cell.what)
        return "; ".join(line for line in lines if not line.startswith(("code.", "versions.")))
    address = cell.address
    today: dict[str, object] = {"preset": address.method}
    today |= {key: getattr(address, key) for key in ("protocol", "budget", "overrides")}
    today |= {"steps": cell.what.steps, "n_train": fit.rows, "n_test": fit.test_rows}
    today |= {"configuration": cell.what.configuration} if source["configuration"] else {}
    moved = {key: new for key, new in today.items() if (source.get(key) or None) != (new or None)}
    return "; ".join(f"{key}: {source.get(key)} -> {new}" for key, new in moved.items())


def _check(where: Places, store: Store, chosen: list[Evidence], against: Path | None) -> list[str]:
    """Refit some fits, each by itself; what differs."""
    groups = tuple(batches.group_of(item.cell, (item.fit,), item.fit.rows) for item in chosen)
    for name in sorted({group.address.dataset for group in groups}):
        ensure(config.compose(where.conf, "dataset", name), where)
    job.run_groups(groups, where)
    return [text for item in chosen if (text := _difference(store, item, against))]


def _difference(store: Store, item: Evidence, against: Path | None) -> str:
    """How a refitted fit differs from its evidence; '' where every score agrees."""
    fit_id = item.fit.fit_id
    if not remote.pull(store, fit_id):
        return f"{_name(item)} did not finish when it was refitted"
    record = store.record(fit_id)
    if record.status != "done":
        return f"{_name(item)} {record.status} when it was refitted: {record.reason}"
    today = scoring.scores(store, record)
    evidence = _refitted_by(against, item) if against else item.scores
    both = {name: (value, today[name]) for name, value in evidence.items() if name in today}
    if not both:
        return f"{_name(item)} has no score to compare"
    unlike = [f"{name} {old:.10g} -> {new:.10g}" for name, (old, new) in both.items() if not agree(old, new)]
    return f"{_name(item)}: {', '.join(unlike)}" if unlike else ""


def _refitted_by(checkout: Path, item: Evidence) -> dict[str, float]:
    """Scores of a fit by the code that made the evidence, on this machine."""
    words = fit_one.settings(item.cell.address, item.cell.what, item.fit.split, item.fit.replica)
    python = checkout / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory() as store:
        # a PYTHONPATH would lead to another checkout
        places = {"GPBENCH_ROOT": str(checkout), "GPBENCH_STORE": store, "CI": "1", "PYTHONPATH": ""}
        command = [str(python), "-m", "gpbench.cli", "fit", *words]
        try:
            done = subprocess.run(command, cwd=checkout, env=os.environ | places, capture_output=True, check=False)
        except OSError as error:
            raise UserError(f"{python} cannot be run ({error.strerror}); `make .venv/.ok` in {checkout}") from error
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}, and no message"
        raise UserError(f"{checkout} cannot refit {_name(item)}: {message.splitlines()[-1]}")
    result = json.loads(done.stdout)
    made_by = item.source.fit_id if isinstance(item.source, FitRecord) else item.source["fit_id"]
    if result["fit_id"] != made_by:
        raise UserError(
            f"{checkout} has another code or configuration than {_name(item)} was made by; check out {item.commit[:7]}"
        )
    return {name: value for name, value in result.items() if isinstance(value, float) and is_score(name)}


def _certify(store: Store, item: Evidence) -> None:
    """Give the certificate of the evidence to the fit that was refitted with equal scores, which has none."""
    if isinstance(item.source, FitRecord):
        certificate = store.certificate(item.source.fit_id)
    else:
        certificate = {key: value for key, value in item.source.items() if key.startswith("certificate_")}
    if certificate and not store.certificate(item.fit.fit_id):
        store.certify(item.fit.fit_id, certificate)


def agree(old: float, new: float) -> bool:
    """Whether two values of a score are one."""
    return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=1e-300) or (math.isnan(old) and math.isnan(new))


def _name(item: Evidence) -> str:
    replica = f", chain {item.fit.replica}" if item.cell.fits[-1].replica else ""
    return f"{item.cell.method} on {item.cell.address.dataset}, split {item.fit.split}{replica}"


def _write(
    where: Places, store: Store, plan: planning.Plan, adopted: list[tuple[Evidence, str]], facts: dict[str, object]
) -> None:
    """Give today's identities to records and to copies of stored fits."""
    rows, renamed = [], {}
    for item, note in adopted:
        if isinstance(item.source, FitRecord):
            if not store.has(item.fit.fit_id):
                origin = replace(item.source.provenance, adopted=note)
                record = replace(item.source, fit_id=item.fit.fit_id, what=item.cell.what, provenance=origin)
                store.copy(item.source.fit_id, item.fit.fit_id, to_json(record))
        else:
            rows.append(item.source | {"fit_id": item.fit.fit_id, "adopted": note})
            renamed[item.source["fit_id"]] = item.fit.fit_id
    if rows:
        kept = committed.curves(committed.folder(where, plan.name), renamed)
        curves = {n: [line | {"fit_id": renamed[line["fit_id"]]} for line in kept[n]] for n in kept}
        committed.write(where, plan.name, rows, facts, curves)
