"""Data that cannot be used: raw files, prepared files, tables to predict. One line each, nothing half-written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from refusals import call, listing

from gpbench import config, places
from gpbench.cli import main
from gpbench.data.prepare import prepare
from gpbench.data.splits import Shuffled
from gpbench.errors import UserError
from gpbench.study.commands import job, predict_csv
from gpbench.study.planning import plan as planning
from gpbench.study.storage.store import Store
from projects import copy_project, pin

# a text table of two inputs, three rows and classes, and how its catalogue entry or file can be wrong
SOURCE = {"kind": "table", "files": ["mine.csv"], "targets": ["y"]}
ENTRY = {
    "name": "mine",
    "title": "Mine",
    "task": "regression",
    "source": SOURCE,
    "rows": 3,
    "columns": 2,
    "md5": "00",
    "licence": "none",
    "citation": "none",
    "url": "none",
}
GOOD = "1,2,0\n3,4,1\n5,6,0\n"
RAW = {
    "raw file that is not there": (
        None,
        {},
        ["data/raw/mine.csv is missing and not pinned in data.dvc", "put it there or run `gpbench data pin NAME`"],
    ),
    "empty raw file": ("", {}, ["mine.csv has no rows"]),
    "not a number": ("1,2,0\n3,four,1\n5,6,0\n", {}, ["mine.csv, line 2, column 'x1': 'four' is not a finite number"]),
    "ragged row": ("1,2,0\n3,4,1\n5,6\n", {}, ["mine.csv, line 3: 2 columns, expected 3"]),
    "NaN": ("1,2,0\n3,nan,1\n5,6,0\n", {}, ["mine.csv, line 2, column 'x1': 'nan' is not a finite number"]),
    "infinite target": ("1,2,0\n3,4,inf\n5,6,0\n", {}, ["mine.csv, line 2, column 'y': 'inf' is not a finite number"]),
    "one row": ("1,2,0\n", {"rows": 1}, ["'mine' has 1 row(s)", "at least 2"]),
    "other rows": (GOOD, {"rows": 4}, ["'mine'", "(3, 2)", "the catalogue says (4, 2)"]),
    "other columns": (GOOD, {"columns": 3}, ["'mine'", "(3, 2)", "the catalogue says (3, 3)"]),
    "other arrays": (GOOD, {}, ["'mine': md5 of the arrays is", "the catalogue says 00"]),
    "no md5": (GOOD, {"md5": None}, ["'mine' is not pinned", "write md5: ", "conf/dataset/mine.yaml"]),
    "absent class": (
        GOOD,
        {"task": "multiclass", "classes": ["a", "b", "c"], "source": SOURCE | {"labels": {"0": "a", "1": "b"}}},
        ["'mine': class numbers are [0, 1]", "expected 0..2"],
    ),
    "class names": (
        "1,2,no\n3,4,yes\n5,6,maybe\n",
        {"task": "binary", "classes": ["no", "yes"]},
        ["line 3, column 'y': 'maybe' is not one of ['no', 'yes']"],
    ),
    "dropped target": (GOOD, {"drop": ["y"]}, ["'mine': 'y' of `drop` is a target"]),
    "unit of no column": (GOOD, {"units": {"z": "m"}}, ["unknown column 'z' in units of data set 'mine'"]),
    "three classes": (GOOD, {"task": "binary", "classes": ["0", "1", "2"]}, ["task binary does not go with 3 classes"]),
    "no target": (GOOD, {"source": SOURCE | {"targets": []}}, ["task regression does not go with 0 targets"]),
    "two targets of classes": (
        GOOD,
        {"task": "binary", "classes": ["0", "1"], "source": SOURCE | {"targets": ["x", "y"]}},
        ["task binary does not go with 2 targets; correct"],
    ),
    "no separator": (GOOD, {"source": SOURCE | {"separator": ""}}, ["`separator` must be one character"]),
    "underscores": ("1,2,0\n3,1_0,1\n5,6,0\n", {}, ["column 'x1': '1_0' is not a finite number"]),
    "no files": (None, {"source": SOURCE | {"files": []}}, ["a source of kind table needs `files`"]),
    "no item": (None, {"source": {"kind": "sklearn", "targets": ["y"]}}, ["a source of kind sklearn needs `item`"]),
    "unknown item": (
        None,
        {"source": {"kind": "sklearn", "item": "diabets", "targets": ["y"]}},
        ["unknown item 'diabets' in sklearn.datasets, data set 'mine'; did you mean 'diabetes'?"],
    ),
    "short IDX": ("\0\0\x08\3", {"source": SOURCE | {"kind": "idx", "files": ["mine.csv"] * 2}}, ["is truncated or"]),
    "one table of flights": (GOOD, {"source": SOURCE | {"kind": "airline"}}, ["kind airline are one .npz, or a table"]),
    "dropped column": (
        GOOD,
        {"drop": ["x9"]},
        ["unknown column 'x9' in the columns of data set 'mine'", "x0, x1, y"],
    ),
}


@pytest.mark.parametrize(("content", "changes", "said"), RAW.values(), ids=RAW)
def test_raw_files(project, refused, content, changes, said):
    (project / "conf/dataset/mine.yaml").write_text(yaml.safe_dump(ENTRY | changes))
    if content is not None:
        pin(project, "mine.csv", content)
    refused(("data", "prepare", "mine"), said)


def test_a_raw_file_that_is_not_the_pinned_one(project, refused):
    path = project / "data/raw/boston/housing.data"
    path.parent.mkdir(parents=True)
    path.write_text("1 2 3\n")
    refused(("data", "prepare", "boston_uci"), ["housing.data is not the pinned file (size is 6 bytes", "delete it"])


def test_a_raw_file_without_a_source(project, refused, monkeypatch):
    pins = project / "data.dvc"
    pins.write_text("".join(line for line in pins.read_text().splitlines(True) if "http" not in line))
    monkeypatch.setenv("GPBENCH_MIRROR", "/no/such/mirror")
    refused(
        ("data", "fetch", "boston_uci"), ["boston/housing.data could not be fetched", "/no/such/mirror", "No such file"]
    )


@pytest.fixture
def batch(project, monkeypatch, capfd):
    """Run the first batch of a small study as a job does; (exit status, standard error, files changed)."""
    where = places.find()
    plan = planning.make(where, "default", "methods=[constant] datasets=[wine] splits=1")
    planning.freeze(plan, where)
    source = where.plans / "batches" / f"{plan.batches[0].batch_id}.json"
    prepare(config.compose(where.conf, "dataset", "wine"), where)

    def start() -> tuple[int, str, set[str]]:
        monkeypatch.setattr(sys, "argv", ["run", str(source), str(where.runs / source.name)])
        before = listing(project)
        capfd.readouterr()
        code = job.main()
        changed = {name for name, _ in listing(project) ^ before}
        return code, capfd.readouterr().err, changed

    return start


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(flip, "wine.npz ", id="flipped byte"),
        pytest.param(lambda content: content[:1000], "wine.npz cannot be read", id="truncated"),
        pytest.param(lambda content: b"", "wine.npz cannot be read", id="empty"),
        pytest.param(None, "wine.npz is missing; run `gpbench data prepare wine`", id="missing"),
    ],
)
def test_prepared_files_are_checked_before_any_fit(project, batch, spoil, said):
    path = project / "data/prepared/wine.npz"
    content = path.read_bytes()
    path.unlink()
    if spoil:
        path.write_bytes(spoil(content))
    code, err, changed = batch()
    assert code == 1
    assert err.count("\n") == 1
    assert said in err
    assert "`gpbench data prepare wine`" in err
    assert changed <= {"store", "store/.tmp"}


def test_a_class_that_the_training_rows_lack(project, gpbench):
    """A result of the fit, not of the command: it is kept with its reason, and the command says so."""
    splits = Shuffled("permutation", 1, 36)  # of `common`
    only = splits.rows(40, 0)[1][0]  # the one row of its class is a test row
    pin(project, "mine.csv", "".join(f"{i},{i % 7},{int(i == only)}\n" for i in range(40)))
    source = SOURCE | {"labels": {"0": "no", "1": "yes"}}
    entry = ENTRY | {"task": "binary", "classes": ["no", "yes"], "rows": 40, "source": source}
    (project / "conf/dataset/mine.yaml").write_text(yaml.safe_dump(entry | {"md5": None}))
    md5 = gpbench("data", "prepare", "mine").err.split("write md5: ")[1].split()[0]
    (project / "conf/dataset/mine.yaml").write_text(yaml.safe_dump(entry | {"md5": md5}))
    done = call(project, "fit", "method=constant", "dataset=mine", "split=0")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "failed: split 0: no training row of class [1]; use another split or more rows" in done.stderr


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """A project with two finished fits, made by the command line."""
    root = copy_project(tmp_path_factory.mktemp("fitted") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPBENCH_ROOT", str(root))
        for name in ("GPBENCH_STORE", "GPBENCH_REMOTE"):
            patch.delenv(name, raising=False)
        for split in ("0", "1"):
            assert main.main(["fit", "method=constant", "dataset=wine", f"split={split}"]) == 0
    return root


NAMES = "alcohol,malic_acid,ash,alcalinity_of_ash,magnesium,total_phenols,flavanoids,nonflavanoid_phenols"
HEADER = f"{NAMES},proanthocyanins,color_intensity,hue,od280/od315_of_diluted_wines,proline"
ROW = ",".join(["1"] * 13)
TABLES = {
    "missing column": (f"{NAMES}\n{','.join(['1'] * 8)}\n", ["columns ['proanthocyanins', 'color_", "the model needs"]),
    "text": (f"{HEADER}\n{ROW}\n{ROW.replace('1', 'red', 1)}\n", ["row 2, column 'alcohol': 'red' is not a number"]),
    "hole": (f"{HEADER}\n{ROW[1:]}\n", ["row 1, column 'alcohol'", "is not a number"]),
    "empty": ("", ["is not a CSV table", "it is empty"]),
    "only a header": (f"{HEADER}\n", ["there are no rows to predict"]),
    "ragged": (f"{HEADER}\n{ROW}\n{ROW},1,1\n", ["line 3: 15 cells under a header of 13 names"]),
    # pandas takes the first column of such a table for an index and shifts all others
    "shifted": (f"{HEADER}\n{ROW},1\n{ROW},1\n", ["line 2: 14 cells under a header of 13 names"]),
    "short": (f"{HEADER}\n{ROW[2:]}\n", ["line 2: 12 cells under a header of 13 names"]),
    "twice": (f"{HEADER},alcohol\n{ROW},1\n", ["columns ['alcohol'] stand in the header more than once"]),
    "open quote": (f'{HEADER}\n"{ROW}\n', ["new.csv is not a CSV table"]),
    "not UTF-8": ("\udcff\udcfe", ["not UTF-8 (invalid start byte at byte 0); save it as a CSV in UTF-8"]),
    "missing": (None, ["No such file or directory", "give a CSV with the columns alcohol, malic_acid"]),
}


@pytest.mark.parametrize(("content", "said"), TABLES.values(), ids=TABLES)
def test_tables_to_predict(fitted, refused, monkeypatch, tmp_path, content, said):
    monkeypatch.setenv("GPBENCH_ROOT", str(fitted))
    path, fit_id = tmp_path / "new.csv", Store(fitted / "store").ids()[0]
    if content is not None:
        path.write_text(content, encoding="utf-8", errors="surrogateescape")
    refused(("predict", fit_id, str(path)), ["new.csv", *said], folder=fitted)


def test_a_table_to_predict_is_read_as_one_that_is_added(tmp_path):
    """Spaces beside separators are no part of a name or a cell."""
    (tmp_path / "new.csv").write_text('a, "b", c \n1.0, 2.0, red\n3, "4", blue \n')
    table = predict_csv.read_inputs(tmp_path / "new.csv", ["a", "b", "c=red"], {"c": ["blue", "red"]})
    assert table.tolist() == [[1, 2, 1], [3, 4, 0]]


@pytest.mark.parametrize("text", ["\na;b\n1;2\n", "a;b\n   \n1;2\n", '"a";b;"c, d, e";"f, g"\n1;2;3;4\n'])
def test_blank_lines_and_marks_within_quotes_separate_nothing(tmp_path, text):
    (tmp_path / "new.csv").write_text(text)
    assert predict_csv.read_inputs(tmp_path / "new.csv", ["a", "b"], {}).tolist() == [[1, 2]]


def test_a_line_of_empty_cells_is_no_blank_line(tmp_path):
    (tmp_path / "new.csv").write_text("a,b\n1,2\n,\n3,4\n")
    with pytest.raises(UserError, match="new.csv"):
        predict_csv.read_inputs(tmp_path / "new.csv", ["a", "b"], {})


def test_an_answer_that_cannot_be_written(fitted, refused, monkeypatch, tmp_path):
    monkeypatch.setenv("GPBENCH_ROOT", str(fitted))
    (tmp_path / "new.csv").write_text(f"{HEADER}\n{ROW}\n")
    words = ("predict", Store(fitted / "store").ids()[0], str(tmp_path / "new.csv"), "--out")
    refused((*words, str(tmp_path / "new.csv" / "out.csv")), ["cannot write", "out.csv: "], folder=fitted)
    (tmp_path / "link.csv").symlink_to("new.csv")
    for same in ("new.csv", "link.csv"):
        refused((*words, str(tmp_path / same)), [f"{same} is the table to predict, which it would"], folder=fitted)


def test_an_identity_that_two_fits_share(fitted, refused, monkeypatch):
    monkeypatch.setenv("GPBENCH_ROOT", str(fitted))
    shared = Store(fitted / "store").ids()[0][:1]
    if not Store(fitted / "store").ids()[1].startswith(shared):
        (fitted / "store" / shared.ljust(16, "0")).mkdir()
        (fitted / "store" / shared.ljust(16, "0") / "fit.json").touch()
    refused(("why", shared), [f"2 fits begin with {shared!r}", "give more of the identity"], folder=fitted)
    refused(("why", ""), ["'' is not the identity of a fit"], folder=fitted)
