"""Cells become numbers, classes and indicators, or one line with file and line."""

import numpy as np
import pytest
from entries import entry

from gpbench.data.readers import read as sources
from gpbench.data.table import Table
from gpbench.errors import UserError


def read(folder, text: str | bytes, source: dict | None = None, **changes) -> Table:
    (folder / "file.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    return sources.read(entry(source, **changes), folder)


def test_numbers_without_header(tmp_path):
    made = read(tmp_path, "1, 2,3\n\n4,5, 6\n")
    assert made.inputs.tolist() == [[1, 2], [4, 5]]
    assert made.targets.tolist() == [[3], [6]]
    assert (made.input_names, made.target_names) == (["x0", "x1"], ["y"])
    assert made.inputs.dtype == made.targets.dtype == np.float64


def test_targets_first_several_and_named(tmp_path):
    made = read(tmp_path, "1,2,3,4\n", {"targets": ["a", "b"], "targets_first": True})
    assert (made.targets.tolist(), made.inputs.tolist()) == ([[1, 2]], [[3, 4]])
    assert made.input_names == ["x0", "x1"]
    made = read(tmp_path, "1,2,3\n", {"names": ["y", "p", "q"]})
    assert (made.targets.tolist(), made.input_names) == ([[1]], ["p", "q"])


def test_events_have_no_target(tmp_path):
    made = read(tmp_path, "1\n2\n", {"targets": []}, task="events")
    assert made.inputs.tolist() == [[1], [2]]
    assert made.targets.shape == (2, 0)


def test_header_quotes_and_classes(tmp_path):
    text = '"a; b";y;b\n1;no;2\n3;yes;"4"\n'
    made = read(tmp_path, text, {"header": "line", "separator": ";"}, classes=["no", "yes"], task="binary")
    assert made.inputs.tolist() == [[1, 2], [3, 4]]
    assert made.targets.tolist() == [[0], [1]]
    assert made.targets.dtype == np.int64
    assert made.input_names == ["a; b", "b"]


def test_labels_are_compared_as_text_and_as_numbers(tmp_path):
    labels = {"-1": "low", "1": "high", "2": "high"}
    made = read(tmp_path, "0,-1.0\n0,1\n0,2e0\n", {"labels": labels}, classes=["low", "high"], task="binary")
    assert made.targets.tolist() == [[0], [1], [1]]


def test_rows_of_other_labels_are_left_out_where_asked(tmp_path):
    made = read(tmp_path, "7,a\n8,b\n9,c\n", {"only_labels": True}, classes=["c", "a"], task="binary")
    assert made.inputs.tolist() == [[7], [9]]
    assert made.targets.tolist() == [[1], [0]]


def test_categories_become_indicators(tmp_path):
    categories = {"sex": ["M", "F", "I"], "old": ["no", "yes"]}
    made = read(tmp_path, "F,3,yes,1\nI,4,no,2\n", {"names": ["sex", "n", "old", "y"], "categories": categories})
    assert made.input_names == ["sex=M", "sex=F", "sex=I", "n", "old=yes"]
    assert made.inputs.tolist() == [[0, 1, 0, 3, 1], [0, 0, 1, 4, 0]]


def test_rows_that_are_left_out(tmp_path):
    text = "1,1\n?,2\n3,3\n4,4\n"
    assert read(tmp_path, text, {"missing": "?"}).targets.tolist() == [[1], [3], [4]]
    assert read(tmp_path, text, {"missing": "?", "leave_out": [0, 3]}).targets.tolist() == [[3]]
    with pytest.raises(UserError, match="'mine': leave_out lists row 4, but there are 4 rows"):
        read(tmp_path, text, {"missing": "?", "leave_out": [4]})


def test_a_value_that_a_dropped_column_lacks_leaves_out_no_row(tmp_path):
    made = read(tmp_path, "?,1,1\n2,?,2\n3,3,?\n4,4,4\n", {"missing": "?"}, drop=["x0"])
    assert (made.inputs.tolist(), made.targets.tolist()) == ([[1], [4]], [[1], [4]])


def test_a_column_is_dropped_by_name(tmp_path):
    assert read(tmp_path, "1,2,3\n", drop=["x0"]).inputs.tolist() == [[2]]


def test_several_files(tmp_path):
    (tmp_path / "more.csv").write_text("5,6\n")
    assert read(tmp_path, "1,2\n", {"files": ["file.csv", "more.csv"]}).targets.tolist() == [[2], [6]]
    beside = {"files": ["file.csv", "more.csv"], "beside": True}
    assert read(tmp_path, "1,2\n", beside).inputs.tolist() == [[1, 2, 5]]
    with pytest.raises(UserError, match=r"file\.csv, line 2: another file has fewer rows"):
        read(tmp_path, "1,2\n3,4\n", beside)
    (tmp_path / "more.csv").write_text("5,bad\n")
    with pytest.raises(UserError, match=r"file\.csv, line 1 and .*more\.csv, line 1, column 'y': 'bad' is not"):
        read(tmp_path, "1,2\n", beside)


@pytest.mark.parametrize(
    ("text", "source", "changes", "said"),
    [
        ("1,2,3\n4,five,6\n", {}, {}, r"file\.csv, line 2, column 'x1': 'five' is not a finite number; say how"),
        ("1,2,3\n4,nan,6\n", {}, {}, r"file\.csv, line 2, column 'x1': 'nan' is not a finite number"),
        ("1,2,3\n4,5,inf\n", {}, {}, r"file\.csv, line 2, column 'y': 'inf' is not a finite number"),
        ("1,2,3\n4,,6\n", {}, {}, r"file\.csv, line 2, column 'x1': '' is not a finite number"),
        ("1,2,3\n\n4,5\n", {}, {}, r"file\.csv, line 3: 2 columns, expected 3"),
        ("1,2,3\n4,5,6,7\n", {}, {}, r"file\.csv, line 2: 4 columns, expected 3"),
        ("", {}, {}, r"file\.csv has no rows"),
        ("a,y\n", {"header": "line"}, {}, r"file\.csv has no rows"),
        ("\xff".encode("latin-1") + b"\n", {}, {}, r"file\.csv, line 1: not UTF-8 \(.* at byte 0\)"),
        ("a,b\n1,2\n", {"header": "line"}, {}, r"unknown target 'y' in the columns of data set 'mine'"),
        ("1,2\n", {}, {"drop": ["X0"]}, r"unknown column 'X0' .* did you mean 'x0'\?"),
        ("1,maybe\n", {}, {"classes": ["no", "yes"]}, r"line 1, column 'y': 'maybe' is not one of \['no', 'yes'\]"),
        ("1,n\n", {"labels": {"n": "No"}}, {"classes": ["no"]}, r"unknown class 'No' in the labels .* 'no'\?"),
        ("X,1\n", {"categories": {"x0": ["A"]}}, {}, r"line 1, column 'x0': 'X' is not one of \['A'\]"),
        ("1,x\n", {"header": "attributes"}, {}, r"line 1: expected @attribute NAME, @data or a comment, got '1,x'"),
        ("@attribute\n@data\n", {"header": "attributes"}, {}, r"line 1: expected @attribute NAME, .* got '@attribute'"),
        ('"1",2\r3,4\n', {}, {}, r"file\.csv, line 1: new-line character seen in unquoted field"),
        ("@attribute a real\n", {"header": "attributes"}, {}, r"file\.csv has no line @data"),
    ],
)
def test_what_is_malformed_is_named_with_file_and_line(tmp_path, text, source, changes, said):
    with pytest.raises(UserError, match=said):
        read(tmp_path, text, source, **changes)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"file\.csv is missing; run `gpbench data fetch`"):
        sources.read(entry(), tmp_path)
