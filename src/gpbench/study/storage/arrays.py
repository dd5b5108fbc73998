"""arrays.npz: the arrays that a fit leaves, in three parts; an array is called PART/NAME. No pickle.

    components    of the predictive mixture (see `gpbench.evaluation.pointwise.components`)
    chain         of a Markov chain (see `gpbench.study.fitting.chain_draws` and `chains_only`)
    trace         step, seconds, objective and more: an array a column

Fits of earlier editions have components.npz, chain.npz and trace.parquet in its place, which are read as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import numpy as np

from gpbench.study.storage import parquet

if TYPE_CHECKING:
    import pandas as pd

NAME = "arrays.npz"


def write(folder: Path, parts: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write the parts; no file where all are empty. Raises ValueError for arrays of objects."""
    if arrays := {f"{part}/{name}": values for part, content in parts.items() for name, values in content.items()}:
        np.savez(folder / NAME, allow_pickle=False, **arrays)


def has(folder: Path, part: str) -> bool:
    """Whether a fit left a part."""
    if not (folder / NAME).is_file():
        return any((folder / f"{part}.{ending}").is_file() for ending in ("npz", "parquet"))
    with ZipFile(folder / NAME) as archive:
        return any(name.startswith(f"{part}/") for name in archive.namelist())


def read(folder: Path, part: str, only: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of a part, or only some of them, by name; {} where there is none."""
    path, prefix = folder / NAME, f"{part}/"
    if not path.is_file():
        path, prefix = folder / f"{part}.npz", ""
        if not path.is_file():
            return {}
    with np.load(path) as arrays:
        there = [name.removeprefix(prefix) for name in arrays.files if name.startswith(prefix)]
        return {name: arrays[prefix + name] for name in there if not only or name in only}


def trace(folder: Path) -> pd.DataFrame:
    """The trace as a table; one without columns where there is none."""
    import pandas as pd

    old = folder / "trace.parquet"
    return parquet.read(old) if old.is_file() else pd.DataFrame(read(folder, "trace"))
