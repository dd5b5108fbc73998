"""Whether all fits of the store are what was written, and the committed records can be read: `gpbench verify`."""

from collections.abc import Iterator
from pathlib import Path

from gpbench.errors import UserError, count
from gpbench.places import Places
from gpbench.study.records import OtherEdition
from gpbench.study.storage import committed, seals
from gpbench.study.storage.store import IDENTITY, Store, Unreadable


def verify(where: Places) -> tuple[list[str], list[str]]:
    """(lines about what is damaged or cannot be read, a summary line each of the store and the records)."""
    store = Store(where.store)
    words = [_of_fit(store, fit_id) for fit_id in store.ids()]
    runs = {path: list(_of_records(path)) for path in sorted((where.root / "docs" / "results").glob("*/"))}
    damaged = [line for line in words if line not in ("sealed", "of another edition")]
    summary = [f"{name} {words.count(name)}" for name in ("sealed", "of another edition")]
    lines = [
        f"{store.root}: {count(len(words), 'fit')}: {', '.join(summary)}, damaged or unreadable {len(damaged)}",
        f"docs/results: {count(len(runs), 'run')}, {count(sum(map(bool, runs.values())), 'damaged one')}",
    ]
    return damaged + [line for faults in runs.values() for line in faults], lines


def _of_fit(store: Store, fit_id: str) -> str:
    """sealed, of another edition, or what is damaged or cannot be read."""
    try:
        if fault := store.fault(fit_id):
            return f"{fault}; `gpbench retry {fit_id}` moves it aside"
    except OtherEdition:
        return "of another edition"
    except Unreadable as error:
        return str(error)
    for path in filter(lambda path: seals.LATER.fullmatch(path.name), store.folder(fit_id).iterdir()):
        if seals.read(path) is None:
            return f"{path} is damaged; it is not used, and computed again where it is needed"
    return "sealed"


def _of_records(folder: Path) -> Iterator[str]:
    """What is wrong with the records of a run."""
    path = folder / "scores.csv"
    try:
        for part in (folder / "study.json", path):
            if not part.is_file():
                again = f"if it was never committed, `gpbench record {folder.name}` writes it"
                raise UserError(f"{part} is missing; {committed.RESTORE}, or {again}")
        committed.facts(folder, required=committed.FACTS)
        fits = {row["fit_id"] for row in committed.read(path)}
        # what is not ours is named by its source, data set and split
        unknown = {fit_id for fit_id in fits if not IDENTITY.fullmatch(fit_id) and fit_id.count("/") != 2}
        yield from (f"{path}: {fit_id!r} is not an identity" for fit_id in sorted(unknown))
        for name in committed.CURVES:
            if others := {line["fit_id"] for line in committed.lines(path.with_name(f"{name}.csv"))} - fits:
                yield f"{path.with_name(f'{name}.csv')}: fits {sorted(others)} have no record"
    except UserError as error:  # it names its file
        yield str(error)
