"""Tables of a study: columns by name, and damage that is an error and not another number."""

import struct

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from gpbench.study.storage import parquet

NUMBERS = np.random.default_rng(0).standard_normal(500)


@pytest.fixture
def path(tmp_path):
    parquet.write(path := tmp_path / "table.parquet", [pd.DataFrame({"a": NUMBERS, "b": 1, "c": -NUMBERS})])
    return path


def test_columns_are_those_that_were_asked_for_in_the_order_of_the_file(path):
    assert [*parquet.read(path)] == ["a", "b", "c"]
    assert [*parquet.read(path, without=["b"])] == ["a", "c"]
    assert [*parquet.read(path, ["c", "another", "a"])] == ["a", "c"]


def test_another_number_is_an_error(path):
    content = bytearray(path.read_bytes())
    content[content.index(struct.pack("<d", NUMBERS[7]))] ^= 1
    path.write_bytes(content)
    with pytest.raises((pa.ArrowException, OSError), match="(?i)crc"):
        parquet.read(path)


def test_another_type_is_an_error(path):
    """That of text to which numbers were changed, say."""
    checksum = parquet._checksum(pa.schema([("a", pa.string())]))
    write_table(pa.table({"a": [1.0]}).replace_schema_metadata({parquet.NAMES: checksum}), path)
    with pytest.raises(ValueError, match="the names or types of its columns have changed"):
        parquet.read(path)
