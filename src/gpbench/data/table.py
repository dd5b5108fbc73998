"""A prepared data set: typed arrays with names, stored in one file, known by the md5 of its arrays."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpbench.errors import UserError
from gpbench.places import write_aside


@dataclass(frozen=True)
class Table:
    """inputs `[N, D]` and targets `[N, P]` in original units (class numbers 0..C-1 for classification)."""

    inputs: np.ndarray
    targets: np.ndarray
    input_names: list[str]
    target_names: list[str]

    @property
    def md5(self) -> str:
        """md5 over shapes and little-endian float64 bytes, so that the same data from two sources are the same."""
        digest = hashlib.md5(usedforsecurity=False)
        for array in (self.inputs, self.targets):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        return digest.hexdigest()


def check(table: Table, name: str, task: str, classes: int) -> None:
    """Refuse what no method can use: non-finite values, too few rows, class numbers that do not fit."""
    for kind, array, names in (
        ("input", table.inputs, table.input_names),
        ("target", table.targets, table.target_names),
    ):
        if array.ndim != 2 or array.shape[1] != len(names):
            raise UserError(f"data set {name!r}: {kind}s have shape {array.shape} but {len(names)} names")
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            row, column = bad[0]
            raise UserError(
                f"data set {name!r}: {kind} {names[column]!r} is not a finite number in row {row} "
                f"({len(bad)} such values); mend the source or drop the column in conf/dataset/{name}.yaml"
            )
    if len(table.inputs) < 2:
        raise UserError(f"data set {name!r} has {len(table.inputs)} row(s); at least 2 are needed to train and test")
    if task != "regression":
        numbers = np.unique(table.targets)
        if not np.array_equal(numbers, np.arange(classes)):
            raise UserError(
                f"data set {name!r}: class numbers are {numbers.tolist()[:5]}, expected 0..{classes - 1}; "
                f"check 'classes' in conf/dataset/{name}.yaml"
            )


def save(table: Table, path: Path) -> None:
    """Write the prepared file (aside, then renamed)."""
    names = json.dumps({"inputs": table.input_names, "targets": table.target_names})
    with write_aside(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, inputs=table.inputs, targets=table.targets, names=np.array(names))


def load(path: Path, md5: str) -> Table:
    """Read a prepared file; a missing, truncated or altered one is a one-line error."""
    mend = f"delete it and run `gpbench prepare {path.stem}`"
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = json.loads(str(stored["names"]))
            table = Table(stored["inputs"], stored["targets"], names["inputs"], names["targets"])
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run `gpbench prepare {path.stem}`") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error}); {mend}") from error
    if table.md5 != md5:
        raise UserError(f"{path} is corrupted: md5 of its arrays is {table.md5}, catalogue says {md5}; {mend}")
    return table
