"""`gpbench data add`: a CSV of one's own becomes a private data set that can be fitted, or one line says why not."""

import csv
import gzip
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml

from gpbench import config
from gpbench.data import own, table

ROWS = [
    ("a b", 1.5, "red", 2.0),
    ("c", 2.5, "green", 3.5),
    ("a b", 0.5, "blue", 1.25),
    ("c", 1.0, "red", 7.0),
    ("c", 4.0, "blue", 4.0),
    ("a b", 3.0, "red", 6.5),
]
HEAD = ("kind", "size", "colour", "y")


def write(name: str, head=HEAD, rows=ROWS, delimiter: str = ",", start: str = "") -> str:
    with Path(name).open("w", newline="") as stream:
        stream.write(start)
        csv.writer(stream, delimiter=delimiter).writerows([head, *rows])
    return name


def existing() -> set[str]:
    return {str(p) for folder in ("conf", "data") for p in Path(folder).rglob("*") if p.is_file()}


@pytest.mark.parametrize(("delimiter", "start"), [(",", ""), (";", "\ufeff"), ("\t", ""), (";", "\n")])
def test_one_command_makes_a_data_set(gpbench, delimiter, start):
    before, pins = existing(), Path("data.dvc").read_text()
    write("My power.csv", delimiter=delimiter, start=start)
    answer = gpbench("data", "add", "My power.csv", "--target", "y", "--categorical", "kind", "colour")
    assert answer.code == 0, answer.err
    assert "my_power: regression, 6 rows x 5 inputs" in answer.out
    made = {"conf/dataset/my_power.yaml", "data/raw/my_power/My power.csv", "data/prepared/my_power.npz"}
    assert existing() - before == made
    assert Path("data.dvc").read_text() == pins
    entry = yaml.safe_load(Path("conf/dataset/my_power.yaml").read_text())
    loaded = table.load(Path("data/prepared/my_power.npz"), entry["md5"])
    assert loaded.input_names == ["kind=c", "size", "colour=blue", "colour=green", "colour=red"]
    np.testing.assert_array_equal(loaded.inputs[1], [1, 2.5, 0, 1, 0])
    np.testing.assert_array_equal(loaded.targets[:, 0], [2, 3.5, 1.25, 7, 4, 6.5])
    assert not {"licence", "citation", "url"} & entry.keys()
    assert "  0.000  have " in gpbench("data", "list", "my_power").out


@pytest.mark.parametrize(("file", "name"), [("plain.csv.gz", "plain"), ("A.b.csv", "a_b"), ("c.bz2", "c"), ("d", "d")])
def test_a_set_is_called_as_its_file_without_extensions(file, name):
    assert own.name_of(Path(file), "") == name


def test_a_compressed_table_is_called_as_the_table(gpbench):
    Path("Plain.csv.gz").write_bytes(gzip.compress(Path(write("Plain.csv")).read_bytes()))
    answer = gpbench("data", "add", "Plain.csv.gz", "--target", "y", "--categorical", "kind", "colour")
    assert answer.code == 0, answer.err
    shown = gpbench("data", "show", "plain", "--no-picture").out
    assert "plain: Plain\n" in shown
    assert f"plain/Plain.csv.gz, {Path('Plain.csv.gz').stat().st_size} bytes, have" in shown


def test_nothing_of_the_project_minds_a_set_without_licence_and_citation(gpbench):
    write("my_power.csv")
    gpbench("data", "add", "my_power.csv", "--target", "y", "--categorical", "kind", "colour")
    assert gpbench("data", "verify", "my_power").out.startswith("my_power: OK")
    assert "private" in gpbench("data", "list", "my_power").out
    assert gpbench("data", "show", "my_power", "--no-picture").code == 0
    cited = gpbench("cite", "--overrides", "methods=[linear] datasets=[my_power]")
    assert (cited.code, "my_power" in cited.out) == (0, False)
    assert gpbench("plan", "--overrides", "methods=[linear] datasets=[my_power] splits=1").code == 0


@pytest.mark.parametrize(
    ("target", "words", "task", "classes"),
    [
        ("kind", [], "binary", ["a b", "c"]),
        ("colour", [], "multiclass", ["blue", "green", "red"]),
        ("flag", [], "binary", ["0", "10"]),
        ("flag", ["--task", "regression"], "regression", []),
        ("flag", ["--task", "counts"], "counts", []),
    ],
)
def test_the_task_follows_from_the_target(gpbench, target, words, task, classes):
    write("mine.csv", (*HEAD, "flag"), [(*row, 10 * (i % 2)) for i, row in enumerate(ROWS)])
    named = [name for name in ("kind", "colour") if name != target and name not in words]
    answer = gpbench("data", "add", "mine.csv", "--target", target, *words, "--categorical", *named)
    assert answer.code == 0, answer.err
    entry = yaml.safe_load(Path("conf/dataset/mine.yaml").read_text())
    assert (entry["task"], entry.get("classes", [])) == (task, classes)


def test_rows_with_a_missing_cell_are_left_out_on_request(gpbench):
    write("mine.csv", ("x", "y"), [(1, 2), ("", 3), (4, 5), (6, 8)])
    refused = gpbench("data", "add", "mine.csv", "--target", "y")
    assert (refused.code, "--missing empty" in refused.err) == (1, True)
    answer = gpbench("data", "add", "mine.csv", "--target", "y", "--missing", "empty")
    assert "mine: regression, 3 rows x 1 inputs" in answer.out
    assert answer.out.startswith("1 of 4 rows left out (empty cell)\n")
    assert answer.out.endswith(" split=all\n"), "of one target"


def test_a_number_that_stands_for_a_missing_value_may_be_written_in_other_ways(gpbench):
    """pandas writes -999 in a column of whole numbers and -999.0 in another."""
    write(
        "mine.csv",
        ("x", "z", "y"),
        [(1, 2.5, 2), (-999, 3.5, 3), (4, "-999.0", 5), (6, 7.5, "-9.99e2"), (7, 1, 8), (8, 2, 9)],
    )
    answer = gpbench("data", "add", "mine.csv", "--target", "y", "--missing", "-999")
    assert answer.out.startswith("3 of 6 rows left out (-999 cell)\nmine: regression, 3 rows x 2 inputs"), answer.err


def test_a_category_is_a_name_even_if_it_is_written_as_a_number(gpbench):
    """Agent 007 is not agent 7, whose rows are left out; 7.0 in a column of numbers is 7."""
    write("mine.csv", ("agent", "x", "y"), [("007", 1, 2), ("7", 2, 3), ("8", "7.0", 5), ("8", 3, 4), ("9", 1, 6)])
    answer = gpbench("data", "add", "mine.csv", "--target", "y", "--categorical", "agent", "--missing", "7")
    assert answer.out.startswith("2 of 5 rows left out (7 cell)\nmine: regression, 3 rows x 4 inputs"), answer.err
    source = yaml.safe_load(Path("conf/dataset/mine.yaml").read_text())["source"]
    assert source["categories"] == {"agent": ["007", "8", "9"]}


def test_classes_are_neither_empty_nor_one_number_in_two_ways(gpbench):
    """Whether the task is given or not; nor is a category empty."""
    words = ("data", "add", "mine.csv", "--target", "y", "--task", "multiclass")
    write("mine.csv", ("x", "y"), [(1, 1), (2, 2), (3, 3), (4, ""), (5, 1)])
    assert "empty cells in y; --drop a column, or --missing empty" in gpbench(*words).err
    write("mine.csv", ("x", "y"), [(1, 1), (2, 2), (3, 3), (4, "1.0"), (5, 1)])
    assert "target 'y' writes 3 numbers in 4 ways: 1, 1.0, 2, 3" in gpbench(*words).err
    write("mine.csv", ("x", "y"), [("a", 1), ("", 2), ("b", 3.5), ("a", 4)])
    assert "empty cells in x; --drop" in gpbench(*words[:5], "--categorical", "x").err


def test_a_missing_cell_of_a_dropped_column_costs_no_row(gpbench):
    write("mine.csv", ("x", "note", "y"), [(1, "", 2), (2, "", ""), (4, "a", 5), ("", "b", 7), (6, "", 8)])
    answer = gpbench("data", "add", "mine.csv", "--target", "y", "--drop", "note", "--missing", "empty")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("2 of 5 rows left out (empty cell)\nmine: regression, 3 rows x 1 inputs")


def test_a_second_word_for_missing_cells_is_not_advised(gpbench):
    write("mine.csv", ("x", "y"), [(1, 2), ("?", 3), (4, 5), ("NA", 8), (6, "NA")])
    for missing in ([], ["--missing", "?"]):
        answer = gpbench("data", "add", "mine.csv", "--target", "y", *missing)
        assert answer.code == 1
        alike = "write all missing cells alike, as --missing takes one ('NA' for these)"
        assert (alike in answer.err) == bool(missing)
        assert ("--missing 'NA' to leave out such rows" in answer.err) != bool(missing)


def test_a_name_that_another_process_takes_meanwhile_stays_theirs(gpbench, monkeypatch):
    write("mine.csv", ("x", "y"), [(1, 2), (3, 3), (4, 5)])
    entry, build = Path("conf/dataset/mine.yaml"), own.encode.build

    def meanwhile(*arguments):
        entry.write_text("theirs")
        return build(*arguments)

    monkeypatch.setattr(own.encode, "build", meanwhile)
    answer = gpbench("data", "add", "mine.csv", "--target", "y")
    assert (answer.code, answer.out, "data set 'mine' exists" in answer.err) == (1, "", True)
    assert entry.read_text() == "theirs"
    assert not Path("data/raw/mine").exists()


def test_a_raw_file_without_an_entry_is_replaced_by_no_other_and_stays_where_adding_fails(gpbench, monkeypatch):
    write("mine.csv", ("x", "y"), [(1, 2), (3, 3), (4, 5)])
    raw, command = Path("data/raw/mine/mine.csv"), ("data", "add", "mine.csv", "--target", "y")
    for _ in range(2):  # of the same content, it may be added again
        assert gpbench(*command).code == 0
        Path("conf/dataset/mine.yaml").unlink()
    held = raw.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(own, "write_text", lambda *_: Path("/dev/full").write_text("x"))
        assert "No space left on device" in gpbench(*command).err
        assert (raw.read_bytes(), Path("data/prepared/mine.npz").exists()) == (held, False)
        assert gpbench(*command, "--name", "other").code == 1
        assert not Path("data/raw/other/mine.csv").exists(), "this one is new"
    write("mine.csv", ("x", "y"), [(1, 2), (3, 3), (4, 6)])
    answer = gpbench(*command)
    assert (answer.code, answer.err.count("\n"), "mine.csv holds other data" in answer.err) == (1, 1, True)
    assert raw.read_bytes() == held


def test_a_set_whose_adding_was_killed_is_added_again(gpbench):
    """Before the raw file, the arrays or the entry is written."""
    write("mine.csv", ("x", "y"), [(1, 2), (3, 3), (4, 5)])
    command = ("data", "add", "mine.csv", "--target", "y")
    for step in ("write_aside", "prepare.prepare", "write_text"):
        if (child := os.fork()) == 0:
            try:
                pytest.MonkeyPatch().setattr(
                    f"gpbench.data.own.{step}", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
                )
                gpbench(*command)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert not Path("conf/dataset/mine.yaml").exists()
    Path("conf/dataset/.mine.a1b2c3d4.yaml").touch()  # what a kill in the middle of writing it leaves
    assert gpbench("list", "datasets").code == 0
    assert gpbench(*command).code == 0
    assert gpbench("data", "verify", "mine").out.startswith("mine: OK: 1 of 1 raw files, prepared arrays")


def test_a_raw_file_that_changed_is_wrong(gpbench):
    write("mine.csv", ("x", "y"), [(1, 2), (3, 3), (4, 5)])
    gpbench("data", "add", "mine.csv", "--target", "y")
    assert gpbench("data", "verify", "mine").out.startswith("mine: OK: 1 of 1 raw files, prepared arrays")
    write("data/raw/mine/mine.csv", ("x", "y"), [(1, 2), (3, 3), (4, 6)])
    answer = gpbench("data", "verify", "mine")
    assert answer.code == 1
    assert answer.out.startswith("mine: WRONG: mine/mine.csv holds other data than was added")


REFUSED = {
    "text columns, all at once": (["--target", "y"], ["kind ('a b'), colour ('red')", "--categorical kind colour"]),
    "unknown target": (["--target", "Y2"], ["unknown target 'Y2' in the columns of mine.csv", "did you mean 'y'?"]),
    "unknown column": (["--target", "y", "--drop", "kinds"], ["unknown column 'kinds'", "'kind'"]),
    "no input": (["--target", "y", "--drop", "kind", "size", "colour"], ["no column besides targets"]),
    "not a class": (["--target", "y", "--drop", "kind", "colour", "--task", "binary"], ["'y' has 6 values", "--task"]),
    "taken name": (["--target", "y", "--name", "boston"], ["data set 'boston' exists", "--name"]),
    "not a name": (["--target", "y", "--name", "../x"], ["'../x' is not a name of a data set"]),
    "a word of YAML": (["--target", "y", "--name", "nan"], ["'nan' is not a name of", "no value such as on or null"]),
    "dropped target": (["--target", "y", "--drop", "y"], ["'y' is named twice in --target, --categorical and --drop"]),
    "target and category": (["--target", "y", "--categorical", "y", "kind"], ["'y' is named twice in --target"]),
    "dropped category": (["--target", "y", "--categorical", "kind", "--drop", "kind"], ["'kind' is named twice"]),
    "two classes": (["--target", "kind", "y", "--drop", "colour"], ["a task of classes has one target, not 2"]),
    "text target": (["--target", "kind", "--task", "regression", "--drop", "colour"], ["target 'kind' holds 'a b'"]),
}


def test_labels_and_names_that_look_like_numbers_stay_texts(gpbench):
    Path("mine.csv").write_text("1e3,.5,y\n1,2E7,1e-05\n2,1e-05,1.0\n3,2E7,1.0\n4,2E7,1e-05\n")
    answer = gpbench("data", "add", "mine.csv", "--target", "y", "--categorical", ".5", "--task", "binary")
    assert answer.code == 0, answer.err
    described = config.compose(Path("conf"), "dataset", "mine")
    assert described.classes == ["1e-05", "1.0"]
    assert described.source.categories == {".5": ["1e-05", "2E7"]}
    (loaded,) = (table.load(path, described.md5) for path in Path("data/prepared").glob("mine.npz"))
    assert loaded.input_names == ["1e3", ".5=2E7"]


def test_splits_list_a_target_of_their_own_name_apart(gpbench):
    write("mine.csv", ("part", "row"), [(i, i * i % 7) for i in range(20)])
    assert gpbench("data", "add", "mine.csv", "--target", "row").code == 0
    listed = gpbench("data", "splits", "mine", "--split", "0", "0").out.splitlines()
    assert listed[0] == "dataset,split,part,row,part_input,row_target"
    assert len(listed) == 21


@pytest.mark.parametrize(("cells", "code"), [("01 1", 1), ("1 1.0", 1), ("01 2", 0), ("01 1 a", 0)])
def test_categories_that_a_data_frame_would_not_tell_apart_are_refused(gpbench, cells, code):
    write("mine.csv", ("d", "y"), [(cell, i / 2) for i, cell in enumerate(cells.split() * 3)])
    answer = gpbench("data", "add", "mine.csv", "--target", "y", "--categorical", "d")
    ways = f"mine.csv: column 'd' writes 1 number in 2 ways: {cells.replace(' ', ', ')}; take one way for each, or see"
    assert (answer.code, ways in answer.err) == (code, bool(code))


@pytest.mark.parametrize("unit", [0.0, 1e-200])
def test_a_target_that_is_not_scaled_is_warned_of(gpbench, unit):
    write("mine.csv", ("x", "y", "z"), [(i, unit * i, i % 3) for i in range(6)])
    assert gpbench("data", "add", "mine.csv", "--target", "z", "x", "--name", "varies").err == ""
    said = "gpbench: data set 'mine': target 'y' does not vary, or too little to be scaled: the sds of its predictions"
    assert gpbench("data", "add", "mine.csv", "--target", "z", "y", "--task", "regression").err.startswith(said)
    Path("data/prepared/mine.npz").unlink()
    fitted = gpbench("fit", "method=linear", "dataset=mine", "protocol=common_all", "budget=smoke")
    assert (fitted.code, fitted.err.startswith(said)) == (0, True)


def test_several_targets_say_how_all_are_predicted(gpbench):
    write("mine.csv")
    said = gpbench("data", "add", "mine.csv", "--target", "y", "size", "--categorical", "kind", "colour").out
    assert "split=all protocol=common_all\n" in said
    assert "the first target alone is predicted, y." in said
    answer = gpbench("data", "pin", "mine")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "mine is your own and data.dvc public" in answer.err


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_request_is_one_line_and_writes_nothing(gpbench, words, said):
    write("mine.csv")
    before = existing()
    answer = gpbench("data", "add", "mine.csv", *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert [part for part in said if part not in answer.err] == []
    assert existing() == before


FILES = {
    "index without a name": (",x,y\n0,1,2\n1,2,3\n", "column 1 has no name"),
    "a name twice": ("x,x,y\n0,1,2\n1,2,3\n", "['x'] stand in the header more than once"),
    "ragged": ("x,y\n0,1\n1,2,3\n", "mine.csv, line 3: 3 columns, expected 2"),
    "no rows": ("x,y\n", "no complete rows"),
    "empty": ("", "mine.csv is empty; give a CSV whose first line names its columns"),
    "empty target": ("x,y\n1,2\n2,\n3,4\n4,5\n", "empty cells in y; --drop a column, or --missing empty to leave"),
    "target with a word": (
        "x,y\n1,2\n2,NA\n3,4\n",
        "target 'y' holds 'NA', which is not a number; take --task multiclass, or --missing 'NA' to leave out such "
        "rows",
    ),
    "decimal commas": (
        "x;y\n1,5;1\n2;2,5\n3;3\n",
        "numbers with commas, blanks, % or a currency in x, y; write them",
    ),
    "commas in all targets": (
        "x;y\n1;1,5\n2;2,5\n3;3,5\n",
        "numbers with commas, blanks, % or a currency in y; write them",
    ),
    "thousands": ('x,y\n1,"1,234,560"\n2,"2,000"\n3,"2,000"\n', "numbers with commas, blanks, % or a currency in y"),
    "percent and currency": (
        "x,z,y\n1,$3,1\n2,$4,2\n3,5,7\n",
        "numbers with commas, blanks, % or a currency in z; write",
    ),
    "dates": ("x,y\n1,2024-01-01\n2,2024-01-02\n3,2024-01-03\n", "another text in every row ('2024-01-01', ...)"),
    "an index that pandas named": ("Unnamed: 0,x,y\n0,1,2\n1,2,3\n", "'Unnamed: 0' is what pandas calls a column"),
    "open quote": (
        'x,y\n1,2\n2,"4\n3,5\n',
        "mine.csv, line 3: unexpected end of data; a quoted cell must end on its line",
    ),
    "quoted line break": (
        'x,y\n1,2\n"l\n2",4\n',
        "mine.csv, line 3: unexpected end of data; a quoted cell must end on",
    ),
    "a class in two ways": (
        "x,y\n1,0\n2,1\n3,1.0\n4,0\n",
        "writes 2 numbers in 3 ways: 0, 1, 1.0; take one way",
    ),
    "line ends of a carriage return": ("x,y\r1,2\r2,3\r", "its lines end by a carriage return alone"),
    "a class with an interpolation": ("x,y\n1,${a}\n2,b\n3,b\n", "'${a}' has ${ or a control character, which"),
    "an interpolation": ("x,y,${b}\n1,2,3\n2,3,4\n", "'${b}' has ${ or a control character, which no"),
    "a name that colours a terminal": ("x,y,\x1b[31mb\n1,2,3\n2,3,4\n", "'\\x1b[31mb' has ${ or a control character"),
    "too large": ("x,y\n1,1e307\n2,3.5\n3,2.5\n", "target 'y' is beyond 1e+150 in row 0"),
    "beyond floating point": ("x,y\n1,2\n1e400,3\n3,4\n", "columns with what is not a finite number: x ('1e400'); add"),
    "a name with a blank": ("b mass,y\n1,2\na,3\nb,4\n", "--categorical 'b mass', --drop"),
    "not text": ("x,y\n\xff\xfe,1\n", "line 2: not UTF-8 (invalid start byte at byte 0); save it as a CSV in UTF-8"),
    "one class": ("x,y\n1,a\n2,a\n3,a\n", "target 'y' has 1 value: not multiclass; see --task"),
}


@pytest.mark.parametrize(("content", "said"), FILES.values(), ids=FILES)
def test_a_table_that_cannot_be_used_is_one_line(gpbench, content, said):
    Path("mine.csv").write_bytes(content.encode("latin-1"))
    before = existing()
    answer = gpbench("data", "add", "mine.csv", "--target", "y")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert said in answer.err
    assert existing() == before


def test_a_public_set_needs_licence_citation_and_page(gpbench):
    write("mine.csv", ("x", "y"), [(1, 2), (3, 3), (4, 5)])
    gpbench("data", "add", "mine.csv", "--target", "y")
    entry = Path("conf/dataset/mine.yaml")
    entry.write_text(entry.read_text().replace("private: true\n", "licence: CC0\n"))
    answer = gpbench("data", "prepare", "mine")
    assert answer.code == 1
    assert "citation, url missing; write them, or `private: true`" in answer.err
