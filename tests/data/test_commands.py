"""`gpbench data ...` on a project of its own: one data set of a raw file, and those that ship inside packages."""

import csv
import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from gpbench.report.datasets import catalogue

RAW = b"1.5 2 10\n0.5 2 30\n1.5 2 10\n2.5 2 20\n"
ENTRY = """
name: mine
title: My own set
task: regression
source: {{kind: table, files: [mine/rows.txt], separator: whitespace, targets: [y], names: [a, b, y]{unpinned}}}
rows: 4
columns: 2
md5: '{md5}'
licence: none stated; mine
citation: harrison1978
url: https://example.org/mine
units: {{y: km}}
expect: {{target_mean: [{mean}], duplicate_rows: 1, constant_inputs: [b]}}
"""
ARRAYS = "08557e6f820b4d567d55eb75b1ab8abc"


def sums(content: bytes) -> tuple[str, str]:
    return hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest()


def describe(project: Path, md5: str = ARRAYS, mean: float = 17.5, unpinned: str = "") -> None:
    (project / "conf" / "dataset" / "mine.yaml").write_text(ENTRY.format(md5=md5, mean=mean, unpinned=unpinned))


@pytest.fixture
def mine(project: Path) -> Path:
    """A data set whose raw file is there and pinned; returns the file."""
    describe(project)
    md5, sha256 = sums(RAW)
    meta = f"{{sha256: {sha256}, licence: mine, urls: ['https://example.org/rows.txt']}}"
    pin = f"- {{path: mine/rows.txt, md5: '{md5}', size: {len(RAW)}, hash: md5, meta: {meta}}}"
    (project / "data.dvc").write_text(f"wdir: data/raw\nouts:\n{pin}\n")
    path = project / "data" / "raw" / "mine" / "rows.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(RAW)
    return path


def test_list(mine, gpbench):
    answer = gpbench("data", "list")
    assert answer.code == 0
    head, *rows = answer.out.split("\n\n")[0].splitlines()
    assert head.split()[:2] == ["NAME", "TASK"]
    names = [row.split()[0] for row in rows]
    assert names == sorted(path.stem for path in Path("conf/dataset").glob("*.yaml"))
    (row,) = (row for row in rows if row.startswith("mine "))
    assert row.split("  ")[-1] == "none stated"
    assert row.split()[1:9] == ["regression", "4", "x", "2", "(1)", "0.000", "have", "no"]
    assert any(row.startswith("boston ") and "bundled (mlxtend)" in row for row in rows)
    assert "unpinned: not in data.dvc, see `gpbench data pin`" in answer.out  # this data.dvc has one file


def test_the_state_of_a_data_set_is_the_worst_of_its_files(mine, gpbench):
    mine.unlink()
    assert " upstream " in gpbench("data", "list", "mine").out
    entry = Path("conf/dataset/mine.yaml")
    entry.write_text(entry.read_text().replace("[mine/rows.txt]", "[mine/rows.txt, mine/more.txt]"))
    row = gpbench("data", "list", "mine").out.splitlines()[1]
    assert row.split()[6:8] == ["-", "unpinned"]


def test_listing_imports_little(project):
    program = (
        "import sys; from gpbench.cli import main as cli; cli.main(['data', 'list'])\n"
        "heavy = {'hydra', 'torch', 'pandas', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("action", ["list", "show", "verify", "fetch", "prepare", "pin"])
def test_an_unknown_name_is_one_line(gpbench, action):
    answer = gpbench("data", action, "bosten")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "gpbench: unknown dataset 'bosten'; did you mean 'boston'?\n"


def test_show_before_it_is_prepared(mine, gpbench):
    answer = gpbench("data", "show", "mine")
    assert answer.code == 0
    for text in ("mine: My own set", "y [km]", *sums(RAW), "https://example.org/rows.txt", "Rubinfeld", "have"):
        assert text in answer.out
    assert answer.out.splitlines()[-1] == "  not prepared; run `gpbench data prepare mine`"
    assert not Path("results").exists()


def test_show_what_is_prepared(mine, gpbench):
    assert gpbench("data", "prepare", "mine").out == f"mine: md5 of the arrays {ARRAYS}\n"
    answer = gpbench("data", "show", "mine")
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["a", "1.5", "0.7071068", "0.5", "2.5", "3"] in lines
    assert ["y", "17.5", "8.291562", "10", "30", "3"] in lines
    assert ["repeated", "1", "rows;", "1", "in", "their", "inputs", "alone"] in lines
    assert ["constant", "b"] in lines
    assert lines[-1][0] == "picture"
    with Image.open(lines[-1][1]) as image:
        assert image.width == 1200


def test_show_classes_without_a_picture(gpbench):
    gpbench("data", "prepare", "wdbc")
    answer = gpbench("data", "show", "wdbc", "--no-picture")
    assert "malignant: 212; benign: 357" in answer.out
    assert not Path("results").exists()


def test_a_missing_citation(mine, gpbench):
    entry = Path("conf/dataset/mine.yaml")
    entry.write_text(entry.read_text().replace("harrison1978", "nobody2099"))
    assert "nobody2099 (not in conf/references.bib)" in gpbench("data", "show", "mine").out


def test_the_rows_of_an_official_split_add_up(gpbench):
    shown = gpbench("data", "show", "usps", "--no-picture").out
    assert "9,298 rows x 256 inputs" in shown
    assert "official: the first 7,291 rows train, 2,007 test" in shown


@pytest.mark.parametrize(("files", "size"), [([2_000_000, 500_000], "2.500"), ([2_000_000, 0], "-"), ([], "-")])
def test_the_size_of_a_data_set_is_that_of_all_its_files_if_known(monkeypatch, files, size):
    monkeypatch.setattr(catalogue, "_known", lambda item, *_: ({}, item))
    dataset = SimpleNamespace(source=SimpleNamespace(files=files))
    assert catalogue._megabytes(dataset, None) == size


def test_verify_existing_files(mine, gpbench):
    gpbench("data", "prepare", "mine")
    answer = gpbench("data", "verify")
    assert (answer.code, answer.err) == (0, "")
    lines = dict(line.split(": ", 1) for line in answer.out.splitlines())
    assert lines["mine"] == "OK: 1 of 1 raw files, prepared arrays and their statistics"
    assert lines["boston"] == "neither fetched nor prepared"


def spoil_raw(mine: Path) -> None:
    mine.write_bytes(RAW.replace(b"30", b"31"))


def spoil_prepared(mine: Path) -> None:
    path = Path("data/prepared/mine.npz")
    path.write_bytes(path.read_bytes()[:-40])


def spoil_expectation(mine: Path) -> None:
    describe(Path(), mean=17.6)


def spoil_units(mine: Path) -> None:
    entry = Path("conf/dataset/mine.yaml")
    entry.write_text(entry.read_text().replace("units: {y: km}", "units: {y: miles}"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_units, "mine.yaml changed; run `gpbench data prepare mine`"),
        (spoil_raw, "mine: WRONG: data/raw/mine/rows.txt: "),
        (spoil_prepared, "mine.npz cannot be read"),
        (spoil_expectation, "mine: WRONG: data set 'mine': target_mean is [17.5]"),
    ],
)
def test_verify_wrong_files(mine, gpbench, spoil, said):
    gpbench("data", "prepare", "mine")
    spoil(mine)
    answer = gpbench("data", "verify", "mine", "boston")
    assert answer.code == 1
    assert said in answer.out
    assert len(answer.out.splitlines()) == 2
    assert answer.err == "gpbench: 1 of 2 data sets are wrong: mine; see the lines above\n"


def test_statistics_as_a_table(mine, gpbench):
    gpbench("data", "prepare", "mine", "wdbc")
    answer = gpbench("data", "verify", "wdbc", "mine", "digits", "--statistics", "out/sets.csv")
    assert answer.code == 0
    with Path("out/sets.csv").open(newline="") as stream:
        first, second = csv.DictReader(stream)
    assert (first["name"], first["rows"], first["target_mean"], first["target_sd"]) == ("mine", "4", "17.5", "8.29156")
    assert (first["duplicate_rows"], first["constant_inputs"], first["md5"]) == ("1", "b", ARRAYS)
    assert (second["name"], second["classes"]) == ("wdbc", "malignant: 212; benign: 357")
    assert "| mine | My own set | regression | 4 | 2 | 1 |" in Path("out/sets.md").read_text()
    assert sorted(path.name for path in Path("out").iterdir()) == ["sets.csv", "sets.md"]


def test_statistics_of_what_is_wrong_are_left_out(mine, gpbench):
    gpbench("data", "prepare", "mine", "wdbc")
    spoil_expectation(mine)
    assert gpbench("data", "verify", "wdbc", "mine", "--statistics", "sets.csv").code == 1
    with Path("sets.csv").open(newline="") as stream:
        assert [row["name"] for row in csv.DictReader(stream)] == ["wdbc"]


@pytest.mark.parametrize(
    ("name", "said"), [("sets.txt", "the name must end in .csv"), ("sets.csv", "none of these data sets is prepared")]
)
def test_statistics_that_cannot_be_written(gpbench, name, said):
    answer = gpbench("data", "verify", "boston", "--statistics", name)
    assert answer.code == 1
    assert said in answer.err
    assert not Path(name).exists()


def test_fetch_by_name_and_by_file(mine, gpbench):
    path = str(mine.resolve())
    assert gpbench("data", "fetch", "mine", "boston").out.splitlines() == [
        "boston: ships inside a package, no raw files",
        f"mine: {path}",
    ]
    assert gpbench("data", "fetch", "--files", "mine/rows.txt").out == f"{path}\n"


def test_prepare_fetches_what_is_missing(mine, gpbench, monkeypatch):
    Path("data/raw").rename("mirror")
    monkeypatch.setenv("GPBENCH_MIRROR", "mirror")
    assert gpbench("data", "prepare", "mine").out == f"mine: md5 of the arrays {ARRAYS}\n"
    assert mine.read_bytes() == RAW


def test_fetch_a_missing_file(mine, gpbench):
    mine.write_bytes(b"something else")
    answer = gpbench("data", "fetch", "mine")
    assert answer.code == 1
    assert "delete it to fetch it again" in answer.err
    assert mine.read_bytes() == b"something else"
    assert "nothing to fetch; name data sets" in gpbench("data", "fetch").err
    assert "gpbench data pin" in gpbench("data", "fetch", "--files", "mine/nowhere.txt").err


def test_prepare_refuses_other_arrays_and_writes_nothing(mine, gpbench):
    describe(Path(), md5="0" * 32)
    answer = gpbench("data", "prepare", "mine")
    assert answer.code == 1
    assert f"md5 of the arrays is {ARRAYS}" in answer.err
    assert not Path("data/prepared/mine.npz").exists()


def test_pin_a_file_of_ones_own(mine, gpbench):
    """A file in data/raw that data.dvc does not have yet; verify finds it pinned afterwards."""
    pins = Path("data.dvc")
    pins.write_text(pins.read_text().replace("mine/rows.txt,", "mine/others.txt,"))
    describe(Path(), unpinned=f", unpinned: {{mine/rows.txt: {{urls: [], sha256: {sums(RAW)[1]}}}}}")
    assert gpbench("data", "verify", "mine").code == 1
    answer = gpbench("data", "pin", "mine", "boston")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "boston: ships inside a package, no raw files",
        f"mine: mine/rows.txt: md5 {sums(RAW)[0]}, {len(RAW)} bytes pinned in data.dvc",
    ]
    assert gpbench("data", "verify", "mine").out == "mine: OK: 1 of 1 raw files\n"
