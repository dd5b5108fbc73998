"""A study's view of the store: scores, traces, points and chains of its fits, in some tables and one JSON.

Fits by Markov chains are judged together, all chains (replicas) of a cell's split, by the R-hat that the study's budget
allows: column `gate` of the scores says passed or failed, and nothing where there is no chain or no limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpbench.errors import UserError
from gpbench.places import Places, write_aside, write_if_changed, write_text
from gpbench.study import identity, provenance, sampled, scoring
from gpbench.study.store import FINAL, Store

CLASS_POINTS = ["row", "y", "log_density", "modal", "confidence", "p_true"]
TRACE_COLUMNS = ["fit_id", "step", "seconds", "objective", "mnll", "rmse", "error"]
NUMBER_POINTS = ["row", "output", "y", "mean", "sd", "log_density", "pit", "crps"]
TRACED_ROWS = 3
# what distributed fits note of themselves
DISTRIBUTED = ["staleness_mean", "restarts"]


def read_plan(where: Places, name: str) -> dict[str, Any]:
    """The frozen plan of a study."""
    path = where.plans / f"{name}.json"
    if not path.is_file():
        raise UserError(f"{path} is missing; run `gpbench plan` for this study first")
    return json.loads(path.read_text())


def fits(plan: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(cell, fit) of everything a study wants."""
    return [(cell, fit) for cell in plan["cells"] for fit in cell["fits"]]


def seen(where: Places, plan: dict[str, Any]) -> str:
    """What a collection depends on, as text: the status of every fit, the scoring code, and the limits of R-hat."""
    store = Store(where.store)
    begun = store.begun()
    states = {fit["fit_id"]: _status(store, begun, cell, fit)[0] for cell, fit in fits(plan)}
    limits = [cell["r_hat"] for cell in plan["cells"]]
    return identity.canonical({"scoring": scoring.digest(), "states": states, "r_hat": limits})


def stamp(where: Places, name: str) -> Path:
    """File that tells Snakemake whether the collection is older than the store."""
    return where.plans / f"{name}.seen"


def _status(store: Store, begun: dict[str, dict], cell: dict[str, Any], fit: dict[str, Any]) -> tuple[str, str]:
    """(status, reason) of a fit, whether it ended, is under way (in a group of `begun`), or cannot be."""
    if cell["skip"]:
        return "skipped", cell["skip"]
    if store.has(fit["fit_id"]):
        record = store.record(fit["fit_id"])
        return record["status"], record["reason"]
    group = begun.get(fit["fit_id"])
    if group is None:
        return "missing", "not run yet"
    note = store.work(group["group_id"]) / "stopped.txt"
    step = f"at step {store.checkpoint(group['group_id'])} of {group['what']['steps']}"
    return ("stopped", note.read_text()) if note.is_file() else ("missing", f"interrupted {step}")


def mixing(store: Store, plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """fit_id -> how the chains of its cell and split have mixed together: numbers, `gate`, and the reason if failed."""
    found: dict[str, dict[str, Any]] = {}
    for cell in (cell for cell in plan["cells"] if not cell["skip"]):
        for split in dict.fromkeys(fit["split"] for fit in cell["fits"]):
            ids = [fit["fit_id"] for fit in cell["fits"] if fit["split"] == split]
            ids = [fit_id for fit_id in ids if scoring.has_chain(store, fit_id)]
            if ids:
                values = scoring.mixing(store, ids)
                found |= dict.fromkeys(ids, values | _judged(values, cell["r_hat"]))
    return found


def _judged(mixing: dict[str, float], limit: float | None) -> dict[str, Any]:
    """gate and, where it failed, reason; chains too short for an R-hat fail."""
    if limit is None:
        return {"gate": ""}
    if mixing["r_hat"] <= limit:
        return {"gate": "passed"}
    drawn = f"of {mixing['chains']} x {mixing['draws']} draws"
    return {"gate": "failed", "reason": f"R-hat {mixing['r_hat']:.5g} {drawn}, at most {limit:g}"}


def collect(where: Places, name: str) -> dict[str, int]:
    """Write results/NAME/study.json, scores.parquet, traces.parquet and, of the kind `predict`, points.parquet and
    chains.parquet, of the kind `sample`, prefixes.parquet and draws.parquet; number of fits by status."""
    import pandas as pd

    plan, store = read_plan(where, name), Store(where.store)
    write_if_changed(stamp(where, name), seen(where, plan))
    rows, traces, begun = [], [], store.begun()
    mixed = mixing(store, plan)
    for cell, fit in fits(plan):
        status, reason = _status(store, begun, cell, fit)
        rows.append(_row(store, cell, fit, status, reason) | mixed.get(fit["fit_id"], {}))
        if status in FINAL and (path := store.folder(fit["fit_id"]) / "trace.parquet").is_file():
            traces.append(pd.read_parquet(path).assign(fit_id=fit["fit_id"]))
    folder, study = where.results / name, plan["study"]
    _write(folder / "traces.parquet", _table(traces, TRACE_COLUMNS))
    done = [(cell, fit["fit_id"]) for (cell, fit), row in zip(fits(plan), rows, strict=True) if row["status"] == "done"]
    for part, table in {"predict": _predicted, "sample": _sampled}[study["kind"]](store, done):
        _write(folder / f"{part}.parquet", table)
    facts = {
        "name": name,
        "command": plan["command"],
        **{k: study[k] for k in ("title", "kind", "datasets", "methods", "protocol", "budget", "splits")},
        **{k: study[k] for k in ("figures", "tables", "pairs", "published")},
        "settings": {cell["method"]: cell["settings"] for cell in plan["cells"]},
        "reported": plan["cells"][0]["reported"],
        "r_hat": plan["cells"][0]["r_hat"],
        "expected": [[cell["method"], cell["address"]["dataset"], fit["split"]] for cell, fit in fits(plan)],
        **provenance.commit(where.root),
        "created": provenance.now(),
        "machine": provenance.machine(),
        "versions": plan["cells"][0]["what"]["versions"] | plan["cells"][-1]["what"]["versions"],
    }
    write_text(folder / "study.json", json.dumps(facts, indent=1))
    # last: its time says that all of them are there
    scores = pd.DataFrame(rows)
    _write(folder / "scores.parquet", scores)
    return scores["status"].value_counts().to_dict()


def _predicted(store: Store, done: list[tuple[dict, str]]) -> Iterator[tuple[str, Any]]:
    """points, and of Markov chains chains, of the done fits of some cells."""
    import pandas as pd

    folders = {fit_id: store.folder(fit_id) for _, fit_id in done}
    points = [_points(pd.read_parquet(path / "points.parquet")).assign(fit_id=i) for i, path in folders.items()]
    names = ["fit_id", *NUMBER_POINTS, *CLASS_POINTS, *(name for part in points for name in part)]
    yield "points", _table(points, list(dict.fromkeys(names)))
    drawn = [_drawn(folders[i] / "chain.npz").assign(fit_id=i) for i in folders if scoring.has_chain(store, i)]
    yield "chains", _table(drawn, ["fit_id", "row", "draw", "mean"])


def _sampled(store: Store, done: list[tuple[dict, str]]) -> Iterator[tuple[str, Any]]:
    """prefixes of the done fits of some cells, and draws of those of the first split of each cell."""
    paths = {fit_id: store.folder(fit_id) / "chain.npz" for _, fit_id in done}
    prefixes = [sampled.prefixes(path).assign(fit_id=i) for i, path in paths.items()]
    yield "prefixes", _table(prefixes, sampled.PREFIX_COLUMNS)
    first = {fit["fit_id"] for cell, _ in done for fit in cell["fits"] if fit["split"] == cell["fits"][0]["split"]}
    drawn = [sampled.draws(path).assign(fit_id=i) for i, path in paths.items() if i in first]
    yield "draws", _table(drawn, sampled.DRAW_COLUMNS)


def _row(store: Store, cell: dict, fit: dict, status: str, reason: str) -> dict[str, Any]:
    """One row of scores.parquet."""
    address = cell["address"]
    row = {
        "fit_id": fit["fit_id"],
        "kind": cell["what"]["kind"],
        "label": cell["label"],
        "family": cell["family"],
        "method": cell["method"],
        "preset": address["method"],
        **{k: address[k] for k in ("dataset", "protocol", "budget", "overrides")},
        "split": fit["split"],
        "replica": fit["replica"],
        "task": cell["what"]["data"]["task"],
        "status": status,
        "reason": reason,
        "steps": cell["what"]["steps"],
        "n_train": fit["rows"],
        "n_test": fit["test_rows"],
    }
    if status not in FINAL:
        return row
    record = store.record(fit["fit_id"])
    known = {k: record["provenance"][k] for k in ("commit", "dirty", "started", "ended")}
    seconds = {f"seconds_{k}": record["seconds"][k] for k in ("train", "predict", "shared_by")}
    noted = {k: record["info"][k] for k in DISTRIBUTED if k in record["info"]}
    return row | known | seconds | {"peak_memory_mb": record["peak_memory_mb"]} | noted | scoring.scores(store, record)


def _points(points: Any) -> Any:
    """The columns that figures need."""
    if "mean" in points:
        return points.reindex(columns=NUMBER_POINTS)  # counts have no CRPS
    probabilities = points.filter(regex=r"^p\d+$")
    every, values = range(len(points)), probabilities.to_numpy()
    named = points.assign(confidence=values[every, points["modal"]], p_true=values[every, points["y"].astype(int)])
    return named[[*CLASS_POINTS, *probabilities]]


def _drawn(path: Path) -> Any:
    """The predictive mean of a chain's draws at three of its rows, of the first target."""
    import numpy as np
    import pandas as pd

    chain = np.load(path)
    places = np.unique(np.linspace(0, len(chain["rows"]) - 1, TRACED_ROWS).round().astype(int))
    mean = pd.DataFrame(chain["mean"][:, places, 0], columns=chain["rows"][places])
    return mean.rename_axis("draw").reset_index().melt("draw", var_name="row", value_name="mean")


def _table(parts: list[Any], columns: list[str]) -> Any:
    """All parts in one table with the same columns always."""
    import pandas as pd

    return pd.concat(parts, ignore_index=True).reindex(columns=columns) if parts else pd.DataFrame(columns=columns)


def _write(path: Path, table: Any) -> None:
    with write_aside(path) as temporary:
        table.to_parquet(temporary, index=False)


def verdict(where: Places, name: str) -> list[str]:
    """One line for every fit that failed, diverged, ran out of memory, was stopped or is missing."""
    plan, store = read_plan(where, name), Store(where.store)
    lines, begun = [], store.begun()
    for cell, fit in fits(plan):
        status, reason = _status(store, begun, cell, fit)
        if status not in ("done", "skipped"):
            lines.append(f"{status}: {_place(cell, fit)} ({fit['fit_id']}): {reason}")
    return lines


def unmixed(where: Places, name: str) -> list[str]:
    """One line for every cell and split whose chains fail the gate of the study's budget."""
    plan, store = read_plan(where, name), Store(where.store)
    found = mixing(store, plan)
    failed = {
        f"not converged: {_place(cell, fit)}: {found[fit['fit_id']]['reason']}": None
        for cell, fit in fits(plan)
        if found.get(fit["fit_id"], {}).get("gate") == "failed"
    }
    return list(failed)


def _place(cell: dict[str, Any], fit: dict[str, Any]) -> str:
    return f"{cell['method']} on {cell['address']['dataset']}, split {fit['split']}"
