"""What a prepared table holds, in figures that can be held against those of independent sources."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from gpbench.data.table import Table, chunks
from gpbench.errors import UserError
from gpbench.schema import Dataset, Expect


def statistics(table: Table, dataset: Dataset) -> dict[str, Any]:
    """Figures of a whole table; their names are those of `schema.Expect`, and `rows`, `inputs`, `targets`.

    Mean, population standard deviation, minimum and maximum of every target (regression) or the counts of the
    classes in the order of `classes`, whichever the task has; the other lists are empty."""
    inputs, targets = table.inputs, table.targets
    values = targets if dataset.task == "regression" else targets[:, :0]
    x = _digests(inputs, np.zeros(len(inputs), np.uint64))
    constant = inputs.min(0) == inputs.max(0)
    return {
        "rows": len(inputs),
        "inputs": inputs.shape[1],
        "targets": targets.shape[1],
        "target_mean": values.mean(0).tolist(),
        "target_sd": values.std(0).tolist(),
        "target_min": values.min(0).tolist(),
        "target_max": values.max(0).tolist(),
        "class_counts": class_counts(table, dataset).tolist(),
        "duplicate_rows": _repeats(_digests(targets, x)),
        "duplicate_inputs": _repeats(x),
        "constant_inputs": [name for name, same in zip(table.input_names, constant, strict=True) if same],
    }


def class_counts(table: Table, dataset: Dataset) -> np.ndarray:
    """Rows of every class `[C]`, in the order of `classes`."""
    labels = table.targets[:, 0].astype(np.int64) if dataset.classes else np.zeros(0, np.int64)
    return np.bincount(labels, minlength=len(dataset.classes))


def check(found: dict[str, Any], dataset: Dataset) -> None:
    """Hold `statistics` against the figures that the catalogue states; a figure that is not stated passes.

    Raises UserError where one differs in the digits given: 22.5328 stands for 22.5328 +- 0.00005."""
    silent = Expect()
    for key, expected in vars(dataset.expect).items():
        if expected != getattr(silent, key) and not _agree(found[key], expected):
            raise UserError(
                f"data set {dataset.name!r}: {key} is {_shown(found[key])}, 'expect' in "
                f"conf/dataset/{dataset.name}.yaml says {_shown(expected)}; "
                "the source is not the one described there, or the figure is wrong"
            )


class Column(NamedTuple):
    """One input or target: population standard deviation, number of distinct values."""

    name: str
    mean: float
    sd: float
    min: float
    max: float
    distinct: int


def columns(table: Table) -> list[Column]:
    """Figures of every column, inputs first, in original units."""
    rows = []
    for array, names in ((table.inputs, table.input_names), (table.targets, table.target_names)):
        for j, name in enumerate(names):
            values = array[:, j].astype(float)
            low, high = float(values.min()), float(values.max())
            rows.append(Column(name, float(values.mean()), float(values.std()), low, high, len(np.unique(array[:, j]))))
    return rows


def _digests(array: np.ndarray, start: np.ndarray) -> np.ndarray:
    """64-bit digests `[N]` of the rows of `[N, D]`, continuing those in `start`; -0.0 and 0.0 count as equal.

    Among 10 million rows two different ones collide with probability 3e-6."""
    digests, done = start.copy(), 0
    for part in chunks(array):
        here = digests[done : done + len(part)]
        done += len(part)
        for values in np.ascontiguousarray(part.T, dtype=float):
            values += 0.0  # turns -0.0 into 0.0
            here ^= values.view(np.uint64)
            _mix(here)
    return digests


def _mix(state: np.ndarray) -> None:
    """The step of the generator SplitMix64 on every element, in place: every bit in moves half the bits out."""
    state += np.uint64(0x9E3779B97F4A7C15)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)


def _repeats(digests: np.ndarray) -> int:
    """Rows that repeat an earlier one."""
    ordered = np.sort(digests)
    return int(np.count_nonzero(ordered[1:] == ordered[:-1]))


def _agree(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(_agree, found, expected))
    if isinstance(expected, float):
        stated = Decimal(repr(expected))
        return abs(Decimal(found) - stated) <= Decimal((0, (5,), stated.as_tuple().exponent - 1))
    return found == expected


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
