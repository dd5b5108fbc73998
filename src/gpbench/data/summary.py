"""Statistics of a prepared table, and their comparison with those that independent sources state."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from gpbench.config.compose import defaults
from gpbench.config.schema import Dataset, Expect
from gpbench.data.table import Table, chunks
from gpbench.errors import UserError


@dataclass(frozen=True)
class Statistics:
    """Statistics of a table, under the names of `schema.Expect`. The lists `target_*` have a value per target
    (regression, counts), `class_counts` has one per class (classification); they are empty for other tasks."""

    rows: int
    inputs: int
    targets: int
    target_mean: list[float]
    target_sd: list[float]
    target_min: list[float]
    target_max: list[float]
    input_min: list[float]
    input_max: list[float]
    class_counts: list[int]
    duplicate_rows: int
    duplicate_inputs: int
    constant_inputs: list[str]


def statistics(table: Table, dataset: Dataset) -> Statistics:
    """Statistics of a table without the columns of `truth`; standard deviations are of the population."""
    inputs, targets = table.inputs, table.targets
    values = targets[:, : 0 if dataset.classes else targets.shape[1] - len(dataset.truth)]
    low, high = inputs.min(0), inputs.max(0)
    return Statistics(
        rows=len(inputs),
        inputs=inputs.shape[1],
        targets=targets.shape[1] - len(dataset.truth),
        target_mean=values.mean(0).tolist(),
        target_sd=values.std(0).tolist(),
        target_min=values.min(0).tolist(),
        target_max=values.max(0).tolist(),
        input_min=low.tolist(),
        input_max=high.tolist(),
        class_counts=class_counts(table, dataset).tolist(),
        duplicate_rows=_repeats(inputs, targets[:, : targets.shape[1] - len(dataset.truth)]),
        duplicate_inputs=_repeats(inputs),
        constant_inputs=[name for name, same in zip(table.input_names, low == high, strict=True) if same],
    )


def class_counts(table: Table, dataset: Dataset) -> np.ndarray:
    """Number of rows of each class `[C]`, in the order of `classes`."""
    labels = table.targets[:, 0].astype(np.int64) if dataset.classes else np.zeros(0, np.int64)
    return np.bincount(labels, minlength=len(dataset.classes))


def check(computed: Statistics, dataset: Dataset) -> None:
    """Compare the statistics with those that the catalogue states under `expect`.

    Raises UserError if one differs in the digits given: 22.5328 stands for 22.5328 +- 0.00005, 5 for 5."""
    for key, unstated in defaults(Expect).items():
        value, expected = getattr(computed, key), getattr(dataset.expect, key)
        if expected != unstated and not _agree(value, expected):
            raise UserError(
                f"data set {dataset.name!r}: {key} is {_shown(value)}, but 'expect' in conf/dataset/{dataset.name}.yaml"
                f" says {_shown(expected)}; the source is not the one described there, or the stated value is wrong"
            )
    for low, high, (lower, upper) in zip(computed.input_min, computed.input_max, dataset.window, strict=False):
        if low < lower or high > upper:
            raise UserError(f"data set {dataset.name!r}: events lie outside the window {dataset.window}")


def columns(table: Table) -> list[tuple[str, float, float, float, float, int]]:
    """Name, mean, population sd, minimum, maximum and number of distinct values of each column, inputs first."""
    parts = ((table.inputs, table.input_names), (table.targets, table.target_names))
    named = ((name, array[:, j].astype(float)) for array, names in parts for j, name in enumerate(names))
    return [(n, float(v.mean()), float(v.std()), float(v.min()), float(v.max()), len(np.unique(v))) for n, v in named]


def _repeats(*arrays: np.ndarray) -> int:
    """Number of rows of arrays `[N, D]`, side by side, that repeat an earlier one; -0.0 and 0.0 count as equal.

    Rows are compared by 64-bit hashes; among 10 million, two different rows collide with probability 3e-6."""
    import pandas as pd
    from pandas.util import hash_pandas_object

    parts, done = [], 0
    for part in chunks(arrays[0]):
        rows = np.hstack([array[done : done + len(part)] for array in arrays]).astype(float) + 0.0
        parts.append(hash_pandas_object(pd.DataFrame(rows), index=False).to_numpy())
        done += len(part)
    hashes = np.concatenate(parts)
    return len(hashes) - len(np.unique(hashes))


def _agree(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(_agree, value, expected))
    exponent = expected.as_tuple().exponent if isinstance(expected, Decimal) else 0
    if isinstance(exponent, int) and exponent < 0:
        return abs(Decimal(value) - expected) <= Decimal((0, (5,), exponent - 1))
    return bool(value == expected)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
