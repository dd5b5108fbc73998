"""Prepared files: what no method can use is not stored, and a damaged file is refused."""

import dataclasses

import numpy as np
import pytest

from gpbench.data import table as tables
from gpbench.data.table import Table, check, load, save
from gpbench.errors import UserError

GOOD = Table(np.arange(8.0).reshape(4, 2), np.array([[0.0], [1.0], [2.0], [1.0]]), ["a", "b"], ["y"])


def spoilt(array: np.ndarray, row: int, value: float) -> np.ndarray:
    copy = array.copy()
    copy[row, -1] = value
    return copy


def test_a_good_table_passes():
    check(GOOD, "mine", "multiclass", 3)
    check(GOOD, "mine", "regression", 0)


@pytest.mark.parametrize(
    ("changes", "task", "said"),
    [
        ({"inputs": spoilt(GOOD.inputs, 2, np.nan)}, "regression", "input 'b' is not a finite number in row 2"),
        ({"targets": spoilt(GOOD.targets, 1, np.inf)}, "regression", "target 'y' is not a finite number in row 1"),
        ({"inputs": GOOD.inputs[:1], "targets": GOOD.targets[:1]}, "regression", r"has 1 row\(s\); at least 2"),
        ({"input_names": ["a"]}, "regression", r"inputs have shape \(4, 2\) but 1 names"),
        ({"targets": GOOD.targets + 1}, "multiclass", r"class numbers are \[1.0, 2.0, 3.0\], expected 0..2"),
        ({"targets": GOOD.targets * 0}, "multiclass", r"class numbers are \[0.0\], expected 0..2; check 'classes'"),
        ({"targets": GOOD.targets / 2}, "multiclass", r"class numbers are \[0.0, 0.5, 1.0\]"),
    ],
)
def test_unusable_tables_are_refused(changes, task, said):
    with pytest.raises(UserError, match=said):
        check(dataclasses.replace(GOOD, **changes), "mine", task, 3)


def test_the_row_of_a_fault_counts_from_the_first_of_the_table(monkeypatch):
    monkeypatch.setattr(tables, "CHUNK", 4)  # two rows at a time
    with pytest.raises(UserError, match="input 'b' is not a finite number in row 3"):
        check(dataclasses.replace(GOOD, inputs=spoilt(GOOD.inputs, 3, np.nan)), "mine", "regression", 3)


def test_a_prepared_file_is_read_as_written(tmp_path):
    save(GOOD, tmp_path / "mine.npz", {})
    back = load(tmp_path / "mine.npz", GOOD.md5)
    assert (back.input_names, back.target_names) == (["a", "b"], ["y"])
    assert np.array_equal(back.inputs, GOOD.inputs)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.npz"]


def test_every_flipped_byte_is_detected(tmp_path):
    """In the arrays, and in the container around them."""
    path = tmp_path / "mine.npz"
    save(GOOD, path, {})
    content = path.read_bytes()
    start = content.index(GOOD.inputs.tobytes())
    for position in (start, start + 7, start + GOOD.inputs.nbytes - 1, 30, len(content) - 30):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        with pytest.raises(
            UserError, match=r"mine\.npz (is damaged|cannot be read).*delete it and run `gpbench data prep"
        ):
            load(path, GOOD.md5)


@pytest.mark.parametrize("kept", [0, 10, 200, -1])
def test_a_truncated_file(tmp_path, kept):
    path = tmp_path / "mine.npz"
    save(GOOD, path, {})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        UserError, match=r"mine\.npz cannot be read \(.*\); delete it and run `gpbench data prepare mine`"
    ):
        load(path, GOOD.md5)


def test_a_file_of_other_arrays_and_a_missing_one(tmp_path):
    save(GOOD, tmp_path / "mine.npz", {})
    with pytest.raises(UserError, match="md5 of its arrays is .*, expected 0000"):
        load(tmp_path / "mine.npz", "0000")
    with pytest.raises(UserError, match=r"other\.npz is missing; run `gpbench data prepare other`"):
        load(tmp_path / "other.npz", GOOD.md5)
