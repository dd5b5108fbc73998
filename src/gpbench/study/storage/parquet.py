"""Parquet files: small ones, of which a fit that predicts has one, and the tables of a study.

Pages of the tables, and the names and types of their columns, have checksums (CRC-32), so that a damaged table is an
error and not another number; files of fits are sealed as a whole (`gpbench.study.storage.seals`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from gpbench.places import write_aside

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

NAMES = b"crc32 of names and types"


def read(path: Path, columns: Collection[str] | None = None, without: Collection[str] = ()) -> pd.DataFrame:
    """Those of the columns that a file has; default: all but some. pyarrow's errors (ArrowException, OSError) and
    ValueError where a checksum fails.

    pandas' own reader takes three times as long, and threads wait for their turns."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, page_checksum_verification=True) as file:
        schema = file.schema_arrow
        if (schema.metadata or {}).get(NAMES, b"") not in (b"", _checksum(schema)):
            raise ValueError("the names or types of its columns have changed")
        names = [name for name in schema.names if name not in without]
        chosen = names if columns is None else [name for name in names if name in columns]
        return file.read(columns=chosen, use_threads=False).to_pandas(use_threads=False, ignore_metadata=True)


def write(path: Path, chunks: Iterable[pd.DataFrame]) -> None:
    """Write tables one below the other, at least one; what the later ones lack is null."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    waiting = iter(chunks)
    first = pa.Table.from_pandas(next(waiting), preserve_index=False)
    schema = first.schema.with_metadata({NAMES: _checksum(first.schema)})
    with write_aside(path) as temporary, ParquetWriter(temporary, schema, write_page_checksum=True) as writer:
        writer.write_table(first)
        for chunk in waiting:
            writer.write_table(pa.Table.from_pandas(chunk, schema, preserve_index=False))


def long_table(axes: tuple[str, ...], shape: tuple[int, ...], **values: Any) -> pd.DataFrame:
    """A row for each entry of values that broadcast to `shape`, its indices (or values) under the axes' names."""
    import pandas as pd

    columns = dict(zip(axes, np.indices(shape, sparse=True), strict=True)) | values
    return pd.DataFrame({name: np.broadcast_to(column, shape).reshape(-1) for name, column in columns.items()})


def _checksum(schema: pa.Schema) -> bytes:
    return b"%08x" % crc32("\n".join(f"{field.name} {field.type}" for field in schema).encode())
