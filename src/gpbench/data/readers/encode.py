"""Encode rows of cells as a table: cells become numbers, classes and indicators."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gpbench.config.schema import Dataset, Source
from gpbench.config.validate import require_known
from gpbench.data.table import Table
from gpbench.errors import UserError

Cell = Any  # text, or a number where the file has types
Row = tuple[str, Sequence[Cell]]  # file and line for messages, and cells


def build(dataset: Dataset, names: list[str], rows: Iterable[Row]) -> Table:
    """The table of a data set from the rows of its files, in their order.

    Rows listed in `leave_out`, rows with a missing value and (with `only_labels`) rows of other labels are left out.
    Raises UserError with file and line for too many or too few cells, a cell that is not finite, an unknown label."""
    source, name = dataset.source, f"data set {dataset.name!r}"
    columns = _Columns(dataset, names)
    inputs, targets, count = array("d"), array("d"), 0
    for where, cells in rows:
        if len(cells) != len(names):
            raise UserError(f"{where}: {len(cells)} columns, expected {len(names)}")
        count += 1
        if count - 1 in source.leave_out or has_missing(source, cells, columns.used, columns.named):
            continue
        target = columns.target(where, cells)
        if target is not None:
            targets.extend(target)
            inputs.extend(columns.inputs(where, cells))
    if count <= max(source.leave_out, default=-1):
        raise UserError(f"{name}: leave_out lists row {max(source.leave_out)}, but there are {count} rows")
    if not inputs:
        raise UserError(f"{name}: all {count} rows are left out")
    x = np.frombuffer(inputs).reshape(-1, len(columns.input_names))
    y = np.array(targets).reshape(len(x), len(source.targets))
    return Table(x, y.astype(np.int64) if columns.classes else y, columns.input_names, list(source.targets))


def has_missing(source: Source, cells: Sequence[Cell], used: Iterable[int], named: Iterable[int]) -> bool:
    """Whether a row has, at one of the places `used`, a cell that stands for a missing value: -999.0 for -999, too, but
    not 007 for 7 at those whose cells are `named` values and no numbers."""
    if not source.missing:
        return False
    word = "" if source.missing == "empty" else source.missing
    value = number(word)
    return any(cells[i] == word or (value is not None and i not in named and number(cells[i]) == value) for i in used)


def indicated(categories: list[str]) -> list[str]:
    """Values of a text column that get an indicator; of two values, the second is enough."""
    return categories[1:] if len(categories) == 2 else categories


@dataclass(frozen=True)
class _Input:
    """An input column: plain, or a text column that becomes an indicator for each of `values`."""

    place: int
    name: str
    values: list[str]

    @property
    def names(self) -> list[str]:
        """Of the inputs that it becomes."""
        return [f"{self.name}={value}" for value in indicated(self.values)] or [self.name]


class _Columns:
    """The columns of a file: which are inputs and targets, and how their cells are encoded."""

    def __init__(self, dataset: Dataset, names: list[str]) -> None:
        source = dataset.source
        self.names, self.only_labels = names, source.only_labels
        for kind, named in (("target", source.targets), ("column", [*dataset.drop, *source.categories])):
            require_known(kind, named, names, f"the columns of data set {dataset.name!r}")
        self.targets = [names.index(name) for name in source.targets]
        skip = {*source.targets, *dataset.drop}
        self.kept = [_Input(i, n, source.categories.get(n, [])) for i, n in enumerate(names) if n not in skip]
        self.named = [column.place for column in self.kept if column.values]
        self.places = [column.place for column in self.kept]
        self.used = [*self.targets, *self.places]
        self.input_names = [name for column in self.kept for name in column.names]
        self.classes = {name: number for number, name in enumerate(dataset.classes)}
        self.labels = {name: name for name in dataset.classes} | source.labels
        require_known("class", source.labels.values(), self.classes, f"the labels of data set {dataset.name!r}")

    def target(self, where: str, cells: Sequence[Cell]) -> list[float] | None:
        """Targets of a row (a class number in classification); None if the row is left out."""
        if not self.classes:
            return [self._number(where, i, cells[i]) for i in self.targets]
        cell = cells[self.targets[0]]
        for text in (str(cell).strip(), _plain(cell)):
            if text in self.labels:
                return [self.classes[self.labels[text]]]
        if self.only_labels:
            return None
        name = self.names[self.targets[0]]
        raise UserError(f"{where}, column {name!r}: {str(cell).strip()!r} is not one of {list(self.labels)}")

    def inputs(self, where: str, cells: Sequence[Cell]) -> list[float]:
        if not self.named:
            numbers = [number(cells[i]) for i in self.places]
            if None not in numbers:
                return cast(list[float], numbers)  # what is none is reported below, with the column
        values = []
        for column in self.kept:
            cell = cells[column.place]
            if not column.values:
                values.append(self._number(where, column.place, cell))
            elif (text := str(cell).strip()) in column.values:
                values += [float(text == value) for value in indicated(column.values)]
            else:
                raise UserError(f"{where}, column {column.name!r}: {text!r} is not one of {column.values}")
        return values

    def _number(self, where: str, place: int, cell: Cell) -> float:
        if (value := number(cell)) is None:
            fault = f"{str(cell).strip()!r} is not a finite number; say how to treat it by `missing` or `categories`"
            raise UserError(f"{where}, column {self.names[place]!r}: {fault}")
        return value


def number(cell: Cell) -> float | None:
    """The finite number that a cell holds; `1_0` and digits of other scripts, numbers to Python, are none."""
    if isinstance(cell, str) and ("_" in cell or not cell.isascii()):
        return None
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def is_odd_number(cell: str) -> bool:
    """Whether Python takes a cell for a number, and we do not: infinity, NaN, `1_0`."""
    try:
        float(cell)
    except ValueError:
        return False
    return number(cell) is None


def _plain(cell: Cell) -> str:
    """A number in its shortest form: '1.0' and 1.0 are the label '1'."""
    try:
        return f"{float(cell):g}"
    except (TypeError, ValueError):
        return ""
