"""A prepared data set: typed arrays with names, stored in one file, identified by the md5 of its arrays."""

import contextlib
import hashlib
import json
import tokenize
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpbench.errors import UserError
from gpbench.places import write_aside

# what NumPy and zipfile raise for damaged files, depending on which bytes changed
DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, RuntimeError, tokenize.TokenError)
LARGEST = 1e150  # of a value: squares must be finite
CHUNK = 1 << 20  # values processed at once, so that large sets need no second copy
UNVARYING = "does not vary, or too little to be scaled: the sds of its predictions mean nothing"


@dataclass(frozen=True)
class Table:
    """inputs `[N, D]` and targets `[N, P]` in original units.

    Inputs are float64, or of the integer type of their source (pixels: uint8). Targets are float64 (regression,
    counts), class numbers 0..C-1 in int64, or absent (P = 0, events). Simulated targets may be followed by columns of
    what they were drawn from; then all are float64."""

    inputs: np.ndarray
    targets: np.ndarray
    input_names: list[str]
    target_names: list[str]

    @property
    def md5(self) -> str:
        """md5 of shapes and little-endian float64 bytes: equal for the same data from different sources."""
        digest = hashlib.md5(usedforsecurity=False)
        for array in (self.inputs, self.targets):
            digest.update(repr(array.shape).encode())
            for part in chunks(array):
                digest.update(np.ascontiguousarray(part, dtype="<f8").tobytes())
        return digest.hexdigest()


def chunks(array: np.ndarray) -> list[np.ndarray]:
    """Views of consecutive rows of an array `[N, D]`, about `CHUNK` values each."""
    step = max(1, CHUNK // max(array.shape[1], 1))
    return [array[i : i + step] for i in range(0, len(array), step)]


@np.errstate(over="ignore")
def unvarying(targets: np.ndarray) -> list[int]:
    """Numbers of the columns whose scale scaling leaves at 1, as their sd is 0, up to rounding or underflow."""
    return np.flatnonzero(targets.std(0) <= 1e-12 * np.abs(targets).max(0)).tolist()


def evenly(count: int, most: int) -> np.ndarray:
    """Numbers of at most `most` of `count` rows, evenly spaced from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def check(table: Table, name: str, task: str, classes: int, truth: int = 0) -> None:
    """Raise UserError for non-finite values, too few rows, and class numbers or counts that do not fit the task.

    truth: number of columns after the targets that only need to be finite."""
    parts = (("input", table.inputs, table.input_names), ("target", table.targets, table.target_names))
    for kind, array, names in parts:
        if array.ndim != 2 or array.shape[1] != len(names):
            raise UserError(f"data set {name!r}: {kind}s have shape {array.shape} but {len(names)} names")
        if repeated := sorted({n for n in names if names.count(n) > 1}):
            raise UserError(f"data set {name!r}: {kind} names {repeated} are used more than once")
        seen = 0
        for part in chunks(array):
            if len(bad := np.argwhere(~(np.abs(part) < LARGEST))):
                row, column = bad[0]
                fault = f"beyond {LARGEST:g}" if np.isfinite(part[row, column]) else "not a finite number"
                problem = f"{kind} {names[column]!r} is {fault} in row {seen + row}"
                raise UserError(f"data set {name!r}: {problem}; correct the value, or leave out its row or column")
            seen += len(part)
    if len(table.inputs) < 2:
        raise UserError(f"data set {name!r} has {len(table.inputs)} row(s); at least 2 are needed to train and test")
    targets = table.targets[:, : table.targets.shape[1] - truth]
    if task == "counts" and len(bad := np.argwhere((targets < 0) | (targets != np.floor(targets)))):
        (row, column), names = bad[0], table.target_names
        problem = f"target {names[column]!r} is {targets[row, column]:g} in row {row}, not a count 0, 1, ..."
        raise UserError(f"data set {name!r}: {problem}; correct the value, or choose another task")
    if task in ("binary", "multiclass"):
        numbers = np.unique(targets)
        if targets.shape[1] != 1 or not np.array_equal(numbers, np.arange(classes)):
            problem = f"class numbers are {numbers.tolist()[:5]}, expected 0..{classes - 1}"
            raise UserError(f"data set {name!r}: {problem}; check 'classes' in conf/dataset/{name}.yaml")


def save(table: Table, path: Path, about: dict[str, object]) -> None:
    """Write the prepared file; about: what a reader without the catalogue needs to know."""
    header = json.dumps({"inputs": table.input_names, "targets": table.target_names} | about)
    with write_aside(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, inputs=table.inputs, targets=table.targets, header=np.array(header))


def load(path: Path, md5: str | None) -> Table:
    """Read a prepared file; UserError if it is missing, damaged, or has another md5."""
    with _opened(path) as stored:
        names = json.loads(str(stored["header"]))
        table = Table(stored["inputs"], stored["targets"], names["inputs"], names["targets"])
    if (actual := table.md5) != md5:
        problem = f"is damaged or belongs to another catalogue entry: md5 of its arrays is {actual}, expected {md5}"
        raise UserError(f"{path} {problem}; {_remedy(path)}")
    return table


def header(path: Path) -> dict[str, object]:
    """Names, and whatever else was saved beside the arrays of a prepared file."""
    with _opened(path) as stored:
        return json.loads(str(stored["header"]))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            yield stored
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run `gpbench data prepare {path.stem}`") from None
    except DAMAGED as error:
        raise UserError(f"{path} cannot be read ({error}); {_remedy(path)}") from error


def _remedy(path: Path) -> str:
    return f"delete it and run `gpbench data prepare {path.stem}`"
