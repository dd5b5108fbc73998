"""`gpbench record --merge FOLDER`: the committed records of another machine beside ours.

A fit is known by its identity, whatever the run that lists it is called. What both have must have the same scores.
"""

from collections.abc import Iterator
from pathlib import Path

from gpbench.errors import UserError, count
from gpbench.places import Places
from gpbench.study.commands.adopt import agree, is_score
from gpbench.study.storage import committed
from gpbench.study.storage.committed import Row, place

OF_ALL_CHAINS = ("r_hat", "ess_")
"""Beginnings of the scores that a fit has of all chains of its split together, however many there were."""


def merge(where: Places, source: Path) -> list[str]:
    """Add the records of a folder of runs, or of a checkout with docs/results; a line for each run with new ones.

    Raises UserError, and writes nothing, where the same fit has other scores there than here, a run has no study.json,
    or its data sets hold other rows than ours."""
    folder = source / "docs" / "results" if (source / "docs" / "results").is_dir() else source
    theirs = _runs(folder)
    if not theirs:
        raise UserError(f"{source} has no docs/results, and no records (RUN/scores.csv) itself")
    ours = _runs(where.root / "docs" / "results")
    if absent := [path for name in theirs if not (path := folder / name / "study.json").is_file() and name not in ours]:
        raise UserError(f"nothing is merged: {absent[0]} is missing; copy it there from where the run was recorded")
    if unlike := list(_unlike(ours, theirs)):
        others = f" (and {count(len(unlike) - 1, 'other fit')})" if len(unlike) > 1 else ""
        raise UserError(f"nothing is merged: {unlike[0]}{others}; find out which is right, and remove the other line")
    for name in ours.keys() & theirs.keys():
        if (folder / name / "study.json").is_file():
            committed.require_same_data(committed.folder(where, name), committed.facts(folder / name).get("data"))
    facts = {name: committed.facts(committed.folder(where, name) if name in ours else folder / name) for name in theirs}
    added = [_add(where, name, ours.get(name, []), rows, folder / name, facts[name]) for name, rows in theirs.items()]
    return [*filter(None, added), *([f"{count(added.count(''), 'run')} with nothing new"] if "" in added else [])]


def _runs(folder: Path) -> dict[str, list[Row]]:
    """Run -> its records."""
    return {path.parent.name: committed.read(path) for path in sorted(folder.glob("*/scores.csv"))}


def _unlike(ours: dict[str, list[Row]], theirs: dict[str, list[Row]]) -> Iterator[str]:
    """A line for each fit that has other scores there than in our run of that name, or in the last of our runs."""
    done = [(name, row) for name, rows in ours.items() for row in rows if row["status"] == "done"]
    known = {key: (f"{run} here", row) for run, row in done for key in (row["fit_id"], (run, row["fit_id"]))}
    for name, rows in theirs.items():
        for new in (row for row in rows if row["status"] == "done"):
            key = (name, new["fit_id"]) if (name, new["fit_id"]) in known else new["fit_id"]
            run, old = known.setdefault(key, (f"{name} there", new))
            if scores := _differing(old, new):
                fit = f"{new['method']} on {new['dataset']}, split {new['split']} ({new['fit_id']})"
                yield f"{fit} has {scores} in {run} -> in {name} there"


def _differing(old: Row, new: Row) -> str:
    """The first score that two records of one fit disagree on; '' where there is none."""
    alike = old.get("chains") == new.get("chains")
    for name in (name for name in old if isinstance(old[name], float) and name in new and is_score(name)):
        if not agree(old[name], new[name]) and (alike or not name.startswith(OF_ALL_CHAINS)):
            return f"{name} {old[name]:.10g} -> {new[name]:.10g}"
    return ""


def _add(where: Places, name: str, ours: list[Row], theirs: list[Row], source: Path, facts: dict[str, object]) -> str:
    """Add to a run what is new, or done at last, or began later at the same place; '' where there is nothing."""
    known = {place(row): row for row in ours}
    chosen = [row for row in theirs if _is_better(row, known.get(place(row)))]
    if not chosen:
        return ""
    curves = committed.curves(source, {row["fit_id"] for row in chosen})
    new, total = committed.write(where, name, chosen, facts, curves)
    replaced = sum(place(row) in known and row["fit_id"] != known[place(row)]["fit_id"] for row in chosen)
    instead = f", {replaced} of them in place of other code or settings, which began earlier or failed" * bool(replaced)
    return f"{name}: {count(new, 'fit')} added{instead}, {total} in docs/results/{name}/scores.csv"


def _is_better(new: Row, old: Row | None) -> bool:
    if old is None:
        return True
    if new["fit_id"] == old["fit_id"]:
        return bool(new["status"] == "done" != old["status"])
    return bool((new["status"] == "done", new["started"]) > (old["status"] == "done", old["started"]))
