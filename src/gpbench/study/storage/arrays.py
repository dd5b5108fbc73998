"""arrays.npz: the arrays that a fit leaves, in three parts; an array is called PART/NAME. No pickle.

components    of the predictive mixture (see `gpbench.evaluation.pointwise.components`)
chain         of a Markov chain (see `gpbench.study.fitting.chain_draws` and `chains_only`)
trace         step, seconds, objective and more: an array a column
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

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
        return False
    with np.load(folder / NAME) as arrays:
        return any(name.startswith(f"{part}/") for name in arrays.files)


def read(folder: Path, part: str, only: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of a part, or only some of them, by name; {} where there is none."""
    if not (folder / NAME).is_file():
        return {}
    with np.load(folder / NAME) as arrays:
        names = [name.removeprefix(f"{part}/") for name in arrays.files if name.startswith(f"{part}/")]
        return {name: arrays[f"{part}/{name}"] for name in names if not only or name in only}


def trace(folder: Path) -> pd.DataFrame:
    """The trace as a table; one without columns where there is none."""
    import pandas as pd

    return pd.DataFrame(read(folder, "trace"))
