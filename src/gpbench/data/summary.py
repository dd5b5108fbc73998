"""What a prepared table holds, in figures that can be held against those of independent sources."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from gpbench.config.schema import Dataset, Expect
from gpbench.data.table import Table, chunks
from gpbench.errors import UserError


def statistics(table: Table, dataset: Dataset) -> dict[str, Any]:
    """Figures of a whole table; their names are those of `schema.Expect`, and `rows`, `inputs`, `targets`.

    Mean, population standard deviation, minimum and maximum of every target (regression, counts), without the columns
    of `truth`, or the counts of the classes in the order of `classes`, whichever the task has; the other lists are
    empty."""
    inputs, targets = table.inputs, table.targets
    values = targets[:, : 0 if dataset.classes else targets.shape[1] - len(dataset.truth)]
    low, high = inputs.min(0), inputs.max(0)
    return {
        "rows": len(inputs),
        "inputs": inputs.shape[1],
        "targets": targets.shape[1] - len(dataset.truth),
        "target_mean": values.mean(0).tolist(),
        "target_sd": values.std(0).tolist(),
        "target_min": values.min(0).tolist(),
        "target_max": values.max(0).tolist(),
        "input_min": low.tolist(),
        "input_max": high.tolist(),
        "class_counts": class_counts(table, dataset).tolist(),
        "duplicate_rows": _repeats(inputs, targets),
        "duplicate_inputs": _repeats(inputs),
        "constant_inputs": [name for name, same in zip(table.input_names, low == high, strict=True) if same],
    }


def class_counts(table: Table, dataset: Dataset) -> np.ndarray:
    """Rows of every class `[C]`, in the order of `classes`."""
    labels = table.targets[:, 0].astype(np.int64) if dataset.classes else np.zeros(0, np.int64)
    return np.bincount(labels, minlength=len(dataset.classes))


def check(found: dict[str, Any], dataset: Dataset) -> None:
    """Hold `statistics` against the figures that the catalogue states; a figure that is not stated passes.

    Raises UserError where one differs in the digits given: 22.5328 stands for 22.5328 +- 0.00005, 5 for 5."""
    silent = Expect()
    for key, expected in vars(dataset.expect).items():
        if expected != getattr(silent, key) and not _agree(found[key], expected):
            raise UserError(
                f"data set {dataset.name!r}: {key} is {_shown(found[key])}, 'expect' in "
                f"conf/dataset/{dataset.name}.yaml says {_shown(expected)}; "
                "the source is not the one described there, or the figure is wrong"
            )
    for axis, (lower, upper) in enumerate(dataset.window):
        if found["input_min"][axis] < lower or found["input_max"][axis] > upper:
            raise UserError(f"data set {dataset.name!r}: events lie outside of its window, {dataset.window}")


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


def _repeats(*arrays: np.ndarray) -> int:
    """Rows of arrays `[N, D]`, side by side, that repeat an earlier one; -0.0 and 0.0 count as equal.

    Rows are known by 64-bit hashes: among 10 million, two different ones collide with probability 3e-6."""
    import pandas as pd
    from pandas.util import hash_pandas_object

    hashes, done = [], 0
    for part in chunks(arrays[0]):
        rows = np.hstack([array[done : done + len(part)] for array in arrays]).astype(float) + 0.0
        hashes.append(hash_pandas_object(pd.DataFrame(rows), index=False).to_numpy())
        done += len(part)
    hashes = np.concatenate(hashes)
    return len(hashes) - len(np.unique(hashes))


def _agree(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(_agree, found, expected))
    if isinstance(expected, Decimal) and expected.as_tuple().exponent < 0:
        return abs(Decimal(found) - expected) <= Decimal((0, (5,), expected.as_tuple().exponent - 1))
    return found == expected


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
