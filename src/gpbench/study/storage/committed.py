"""Committed records of finished fits: docs/results/<run>/scores.csv, one line a fit; study.json and CURVES beside it.

A record is the fit's row of scores.parquet, about 1 kB, and what figures need of its curves, at most 2 kB. Where the
store lacks a fit, its record stands in for it: the fit counts as done and is not run again (its points and its model,
which only the store holds, are missing then). The record of a failed fit is shown, and the fit is run again.
"""

import contextlib
import csv
import datetime
import io
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from gpbench.errors import UserError
from gpbench.places import Places, locked, read_json, write_aside
from gpbench.study.storage.store import FINAL

Row = dict[str, Any]
"""A row of scores.csv: column -> text or number; numbers that it lacks are left out."""
PLACE = ("method", "dataset", "split", "replica")
"""What a run has one record of: a repeated fit replaces the earlier record."""
RECORDED = (*FINAL, "skipped")  # the statuses of a record
TEXTS = dict.fromkeys(
    (
        *("fit_id", "kind", "label", "family", "method", "preset", "dataset", "protocol", "budget", "overrides"),
        *("task", "status", "reason", "commit", "started", "ended", "gate", "adopted", "convergence"),
        *("not_judged_because", "jitter_matrices", "tuned", "processor", "gpu", "configuration"),
    ),
    "",
)
WHOLE = {
    *("split", "replica", "steps", "steps_done", "certificate_steps", "jitter_times", "n_train", "n_test"),
    *("seconds_shared_by", "chains", "draws", "trials"),
}
CURVES = {
    "traces": ["fit_id", "step", "seconds", "objective", "mnll", "rmse", "error"],
    "calibration": ["fit_id", "of", "count", "predicted", "happened"],
    "systems": ["fit_id", "measured", "values"],
}
"""CSV files beside scores.csv, with their columns (see `gpbench.study.results.curves`); records of before lack them."""
NAMES = ("fit_id", "of", "measured")  # columns of CURVES that hold text; the others hold numbers
FACTS: dict[str, type] = dict.fromkeys(("name", "title", "kind", "command", "protocol", "budget"), str)
FACTS |= dict.fromkeys(("methods", "datasets", "expected", "tables", "pairs"), list)
FACTS |= dict.fromkeys(("settings", "reported"), dict)
RESTORE = "restore it by `git checkout`"
CUT_SHORT = "the line is cut short"


def folder(where: Places, name: str) -> Path:
    """Where the records of a run are."""
    return where.root / "docs" / "results" / name


def read(path: Path) -> list[Row]:
    """The records of a scores.csv, without the numbers that they lack; none where there is no file. UserError for a
    file without any, and a line that is cut short, of no place or of that of another line, or of no such status."""
    if not path.is_file():
        return []
    rows = [TEXTS | row for row in _read(path, _kind)]
    if not rows:
        raise UserError(f"{path} holds no record; {RESTORE}")
    if any(not row["fit_id"] or key not in row for row in rows for key in PLACE):
        raise UserError(f"{path} has lines without fit_id, {', '.join(PLACE)}; it is not a record, {RESTORE}")
    if wrong := sorted({row["status"] for row in rows} - set(RECORDED)):
        raise UserError(f"{path}: a record has no status {wrong[0]!r}, it is one of {', '.join(RECORDED)}; {RESTORE}")
    if len(times := Counter(map(place, rows))) < len(rows):
        raise UserError(f"{path}: {max(times, key=times.__getitem__)} stands there more than once; leave one line")
    return rows


def facts(folder: Path, remedy: str = RESTORE, required: Collection[str] = ("command",)) -> dict[str, object]:
    """The study.json of a folder of records, or of results. UserError where it is damaged or lacks what is required."""
    content: Row = read_json(path := folder / "study.json", remedy)
    sound = isinstance(content, dict) and all(isinstance(content.get(key), FACTS[key]) for key in required)
    places = content["expected"] if sound and "expected" in required else []
    if not sound or not all(isinstance(at, list) and [*map(type, at)] == [str, str, int] for at in places):
        raise UserError(f"{path} is damaged (it describes no study); {remedy}")
    return content


def require_same_data(path: Path, data: Any) -> None:
    """Raise UserError where the study.json of a folder of records names other rows of a data set than `data`, which is
    data set -> md5; where one of both lacks it, as those of before do, nothing is known."""
    earlier: Any = (facts(path, required=()).get("data") if (path / "study.json").is_file() else None) or {}
    both = earlier.keys() & (data or {}).keys()
    if other := sorted(name for name in both if earlier[name] != data[name]):
        aside = "move that folder away, or give the new rows a name of their own"
        raise UserError(f"{path} has fits of other rows of data set {other[0]!r}, which are not comparable; {aside}")


def lines(path: Path) -> list[Row]:
    """The lines of one of the CURVES as text, without what is empty; each cell but NAMES holds as many numbers."""
    rows, names = _read(path, lambda column: str if column in NAMES else _numbers), {*NAMES} & {*CURVES[path.stem]}
    sizes = [{len(text.split()) for name, text in line.items() if name not in NAMES} for line in rows]
    if any(names - line.keys() or len(size) > 1 for line, size in zip(rows, sizes, strict=True)):
        raise UserError(f"{path} has lines without {', '.join(sorted(names))} or of unequal numbers; {RESTORE}")
    return rows


def curves(folder: Path, fits: Collection[str]) -> dict[str, list[Row]]:
    """The lines of some fits in each of the CURVES of a folder of records."""
    return {name: [line for line in lines(folder / f"{name}.csv") if line["fit_id"] in fits] for name in CURVES}


def _read(path: Path, kind: Callable[[str], Callable[[str], Any]]) -> list[Row]:
    """The lines of a CSV, without what is empty; kind: column -> what makes a value of its texts."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        try:
            columns = [(column, kind(column)) for column in next(reader, [])]
            rows = [_row(columns, line) for line in reader if line]
            if rows and not path.read_bytes().endswith(b"\n"):
                raise ValueError(CUT_SHORT)
            return rows
        except (ValueError, csv.Error) as error:
            raise UserError(f"{path}, line {reader.line_num} is not a record ({error}); {RESTORE}") from error


def by_fit(where: Places, name: str) -> dict[str, Row]:
    """fit_id -> record of a run."""
    return {row["fit_id"]: row for row in read(folder(where, name) / "scores.csv") if row["status"] != "skipped"}


def write(
    where: Places, name: str, rows: list[Row], facts: dict[str, object], curves: Mapping[str, list[Row]] | None = None
) -> tuple[int, int]:
    """Add rows to the records of a run, their curves, and what is known of the study; (number of new fits, of all).

    A fit that is done gives its place only to one that was trained to an end, done or diverged."""
    with locked(where.runs / ".locks" / f"record-{name}", f"the records of {name}"):
        path = folder(where, name) / "scores.csv"
        require_same_data(path.parent, facts.get("data"))
        for half in path.parent.glob(".?*.????????.*"):  # of a writer that was killed
            half.unlink(missing_ok=True)
        recorded = {place(row): row for row in read(path)}
        done = {at for at, row in recorded.items() if row["status"] == "done"}
        ended = [row for row in rows if row["status"] in ("done", "diverged") or place(row) not in done]
        merged = recorded | {place(row): row for row in ended}
        ordered = sorted(merged.values(), key=lambda row: [str(row[k]).rjust(6) for k in PLACE])
        fits = {row["fit_id"] for row in ordered if row["status"] != "skipped"}
        joined = {file: _joined(path.with_name(f"{file}.csv"), new, fits) for file, new in (curves or {}).items()}
        texts = {path.with_name("study.json"): json.dumps(facts, indent=1) + "\n"}
        texts[path] = _csv(dict.fromkeys(key for row in ordered for key in row), ordered)
        texts |= {path.with_name(f"{f}.csv"): _csv(CURVES[f], content) for f, content in joined.items() if content}
        with contextlib.ExitStack() as stack:  # all or none on a full disk; the last, curves, take their places first
            for target, text in texts.items():
                stack.enter_context(write_aside(target)).write_text(text, encoding="utf-8")
    return len(fits - {row["fit_id"] for row in recorded.values()}), len(fits)


def _joined(path: Path, new: list[Row], fits: set[str]) -> list[Row]:
    """The lines of a file, others in the place of those of the same fits, by identity; lines of none of `fits` go."""
    fits = fits - {line["fit_id"] for line in new}
    kept = [line for line in lines(path) if line["fit_id"] in fits]
    return sorted([*kept, *new], key=lambda line: line["fit_id"])


def _csv(columns: Collection[str], rows: list[Row]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _text(value) for key, value in row.items()} for row in rows)
    return stream.getvalue()


def place(row: Row) -> tuple[str | int, ...]:
    """What a run has one record of."""
    return tuple(row[key] for key in PLACE)


def _row(columns: list[tuple[str, Callable[[str], Any]]], texts: list[str]) -> Row:
    if len(texts) != len(columns):
        raise ValueError(CUT_SHORT if len(texts) < len(columns) else "it has more cells than the header")
    return {column: kind(text) for (column, kind), text in zip(columns, texts, strict=True) if text}


def _kind(column: str) -> Callable[[str], Any]:
    if column in ("started", "ended"):
        return lambda text: datetime.datetime.fromisoformat(text) and text  # ValueError where a spreadsheet wrote it
    if column in TEXTS:
        return str
    return "True".__eq__ if column == "dirty" else int if column in WHOLE else float


def _numbers(text: str) -> str:
    """A text of numbers. ValueError for another one."""
    list(map(float, text.split()))
    return text


def _text(value: Any) -> str:
    """Ten digits of a number: more than any score is known to."""
    return "" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
