"""Committed score records of finished fits: docs/results/<run>/scores.csv, one line a fit, and study.json beside it.

A record is the fit's row of scores.parquet, about 1 kB. Where the store lacks a fit, its record stands in for it: the
fit counts as done and is not run again (its points and its model, which only the store holds, are missing then). The
record of a failed fit is shown, and the fit is run again.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from gpbench.errors import UserError
from gpbench.places import Places, write_text

Row = dict[str, Any]
"""A row of scores.csv: column -> text or number; numbers that it lacks are left out."""
PLACE = ("method", "dataset", "split", "replica")
"""What a run has one record of: a repeated fit replaces the earlier record."""
TEXTS = dict.fromkeys(
    (
        *("fit_id", "kind", "label", "family", "method", "preset", "dataset", "protocol", "budget", "overrides"),
        *(
            "task",
            "status",
            "reason",
            "commit",
            "started",
            "ended",
            "gate",
            "adopted",
            "convergence",
            "not_judged_because",
            "jitter_matrices",
        ),
    ),
    "",
)
WHOLE = {
    "split",
    "replica",
    "steps",
    "steps_done",
    "certificate_steps",
    "jitter_times",
    "n_train",
    "n_test",
    "seconds_shared_by",
    "chains",
    "draws",
}


def folder(where: Places, name: str) -> Path:
    """Where the records of a run are."""
    return where.root / "docs" / "results" / name


def read(path: Path) -> list[Row]:
    """The records of a scores.csv, without the numbers that they lack; none where there is no file. UserError for a
    line that is cut short."""
    if not path.is_file():
        return []
    with path.open(newline="") as stream:
        lines = csv.DictReader(stream, restval=None)
        try:
            return [TEXTS | {key: _value(key, text) for key, text in line.items() if text != ""} for line in lines]
        except ValueError as error:
            raise UserError(
                f"{path}, line {lines.line_num} is not a record ({error}); restore it by `git checkout`"
            ) from error


def by_fit(where: Places, name: str) -> dict[str, Row]:
    """fit_id -> record of a run."""
    return {row["fit_id"]: row for row in read(folder(where, name) / "scores.csv") if row["status"] != "skipped"}


def write(where: Places, name: str, rows: list[Row], facts: dict[str, object]) -> tuple[int, int]:
    """Add rows to the records of a run, and what is known of the study; (number of new fits, of all)."""
    path = folder(where, name) / "scores.csv"
    recorded = {_place(row): row for row in read(path)}
    known = {row["fit_id"] for row in recorded.values()}
    merged = recorded | {_place(row): row for row in rows}
    ordered = sorted(merged.values(), key=lambda row: [str(row[k]).rjust(6) for k in PLACE])
    columns = dict.fromkeys(key for row in ordered for key in row)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _text(value) for key, value in row.items()} for row in ordered)
    write_text(path, stream.getvalue())
    write_text(path.with_name("study.json"), json.dumps(facts, indent=1) + "\n")
    fits = {row["fit_id"] for row in ordered if row["status"] != "skipped"}
    return len(fits - known), len(fits)


def _place(row: Row) -> tuple[str | int, ...]:
    return tuple(row[key] for key in PLACE)


def _value(key: str, text: str | None) -> Any:
    if text is None:
        raise ValueError("the line is cut short")
    if key in TEXTS:
        return text
    if key == "dirty":
        return text == "True"
    return int(text) if key in WHOLE else float(text)


def _text(value: Any) -> str:
    """Ten digits of a number: more than any score is known to."""
    return "" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
