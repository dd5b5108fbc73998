"""Parsers: from a source to a table. Row order is kept; nothing is scaled here."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.schema import Dataset

# names that the packages do not carry
MLXTEND_NAMES = {
    "boston_housing": ("CRIM ZN INDUS CHAS NOX RM AGE DIS RAD TAX PTRATIO B LSTAT", "MEDV"),
    "autompg": ("cylinders displacement horsepower weight acceleration model_year origin car_name", "mpg"),
}


def read(dataset: Dataset, raw: Path) -> Table:
    """The table of a data set; `raw` is the folder of fetched files."""
    table = {"sklearn": _sklearn, "mlxtend": _mlxtend, "table": _text_table}[dataset.source.kind](dataset, raw)
    missing = [name for name in dataset.drop if name not in table.input_names]
    if missing:
        raise UserError(f"data set {dataset.name!r}: cannot drop {missing}; inputs are {table.input_names}")
    keep = [i for i, name in enumerate(table.input_names) if name not in dataset.drop]
    names = [table.input_names[i] for i in keep]
    return Table(np.ascontiguousarray(table.inputs[:, keep]), table.targets, names, table.target_names)


def _sklearn(dataset: Dataset, raw: Path) -> Table:
    """One of scikit-learn's bundled sets, by the name of its loader (diabetes in its original units)."""
    from sklearn import datasets

    item = dataset.source.item
    bunch = getattr(datasets, f"load_{item}")(**({"scaled": False} if item == "diabetes" else {}))
    names = [str(name).replace(" ", "_") for name in bunch.feature_names]
    return Table(
        np.asarray(bunch.data, float), np.asarray(bunch.target, float)[:, None], names, [dataset.source.target]
    )


def _mlxtend(dataset: Dataset, raw: Path) -> Table:
    """One of mlxtend's bundled sets, by the name of its loader."""
    import mlxtend.data

    inputs, targets = getattr(mlxtend.data, f"{dataset.source.item}_data")()
    numbered = " ".join(f"x{i}" for i in range(inputs.shape[1]))
    names, target = MLXTEND_NAMES.get(dataset.source.item, (numbered, dataset.source.target))
    return Table(np.asarray(inputs, float), np.asarray(targets, float)[:, None], names.split(), [target])


def _text_table(dataset: Dataset, raw: Path) -> Table:
    """A text file of numbers, one row a line; the target column by name (with a header) or the last one.

    A target of classes may be text: its values are numbered in the order of `classes`."""
    path = raw / dataset.source.item
    lines = _lines(path, dataset.source.separator)
    if not lines:
        raise UserError(f"{path} is empty")
    if dataset.source.header:
        names, lines = [name.strip() for name in lines[0][1]], lines[1:]
    else:
        names = [f"x{i}" for i in range(len(lines[0][1]) - 1)] + [dataset.source.target]
    if dataset.source.target not in names:
        raise UserError(f"{path}: no column {dataset.source.target!r}; columns are {names}")
    target = names.index(dataset.source.target)
    values = np.empty((len(lines), len(names)))
    for i, (number, cells) in enumerate(lines):
        if len(cells) != len(names):
            raise UserError(f"{path}, line {number}: {len(cells)} columns, expected {len(names)}")
        for j, cell in enumerate(cells):
            labels = dataset.classes if j == target else []
            values[i, j] = _number(cell.strip(), labels, f"{path}, line {number}, column {names[j]!r}")
    inputs = np.delete(values, target, axis=1)
    return Table(inputs, values[:, [target]], [n for j, n in enumerate(names) if j != target], [names[target]])


def _lines(path: Path, separator: str) -> list[tuple[int, list[str]]]:
    """(line number, cells) of the lines that are not blank."""
    try:
        with path.open(newline="") as stream:
            if separator == "whitespace":
                rows = [(i, line.split()) for i, line in enumerate(stream, 1)]
            else:
                rows = list(enumerate(csv.reader(stream, delimiter=separator), 1))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run `gpbench fetch` for its data set") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text: {error.reason} at byte {error.start}") from error
    return [(number, cells) for number, cells in rows if cells]


def _number(cell: str, labels: list[str], where: str) -> float:
    if cell in labels:
        return float(labels.index(cell))
    try:
        return float(cell)
    except ValueError:
        expected = f"one of {labels}" if labels else "a number"
        raise UserError(f"{where}: {cell!r} is not {expected}") from None
