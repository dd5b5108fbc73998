"""Small parquet files, of which a study has two a fit."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def read(path: Path, columns: Collection[str] | None = None, without: Collection[str] = ()) -> pd.DataFrame:
    """Those of the columns that a file has; default: all but some.

    pandas' own reader takes three times as long, and threads wait for their turns."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        there = [name for name in file.schema_arrow.names if name not in without]
        chosen = there if columns is None else [name for name in there if name in columns]
        return file.read(columns=chosen, use_threads=False).to_pandas(use_threads=False)
