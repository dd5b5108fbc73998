"""Committed records stand in for fits that the store lacks."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pandas as pd
import pytest

from gpbench import places
from gpbench.errors import UserError
from gpbench.report.view import View
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from gpbench.study.storage import committed
from gpbench.study.storage.store import Store
from handmade import finish

CURVES = ("traces", "calibration")
"""Of `committed.CURVES`, those of predictions."""
STUDY = "methods=[constant,exact_gp,svgp] datasets=[boston,wine] splits=2"


@pytest.fixture
def study(project):
    """A study recorded and then lost: constant is done, svgp diverged once and has not run on wine."""
    where = places.find()
    plan, store = planning.make(where, "default", STUDY), Store(where.store)
    for cell in plan.cells:
        place = cell.method, cell.address.dataset
        for fit in cell.fits:
            if place[0] == "constant":
                finish(store, cell, fit)
            elif place == ("svgp", "boston"):
                finish(store, cell, fit, *(("diverged", "step 7") if fit.split else ("done", "")))
    assert collect.record(where, plan) == (6, 6)
    planning.freeze(plan, where)
    collect.collect(where, plan.name)
    before = pd.read_parquet(where.results / plan.name / "scores.parquet")
    store.clear(store.ids())
    return where, plan.name, before


def test_recorded_fits_are_done_and_failed_ones_run_again(study):
    where, _, _ = study
    made = planning.make(where, "default", STUDY)
    states = {
        (cell.method, cell.address.dataset, fit.split): made.states[fit.fit_id][0]
        for cell in made.cells
        for fit in cell.fits
        if fit.fit_id in made.states
    }
    assert {place for place, state in states.items() if state == "done"} == {
        *(("constant", dataset, split) for dataset in ("boston", "wine") for split in (0, 1)),
        ("svgp", "boston", 0),
    }
    assert states["svgp", "boston", 1] == "pending"
    reasons = {row[1:4]: row.reason for row in made.rows() if row.state == "pending"}
    assert reasons["svgp", "boston", 1] == "its record says diverged"
    assert reasons["svgp", "wine", 0] == "new"
    other = planning.make(where, "default", STUDY + " svgp.num_inducing=7")
    assert {state.name for state in other.states.values()} == {"pending"}


def test_a_record_of_other_code_is_named_as_such(study):
    where, name, _ = study
    path = committed.folder(where, name) / "scores.csv"
    wanted = {row.fit_id for row in planning.make(where, "default", STUDY).rows() if row.method == "constant"}
    for fit_id in wanted:
        path.write_text(path.read_text().replace(fit_id, fit_id[::-1]))
    rows = [row for row in planning.make(where, "default", STUDY).rows() if row.method == "constant"]
    assert all("is of other code or settings" in row.reason for row in rows)
    assert len(rows) == 4


def test_a_run_is_named_where_a_study_is(study, gpbench):
    where, name, _ = study
    by_words = gpbench("plan", "default", "--overrides", STUDY)
    assert gpbench("plan", name).out == by_words.out
    (where.plans / f"{name}.json").unlink()  # its committed records tell, too
    assert gpbench("plan", name).out == by_words.out
    longer = gpbench("plan", name, "--set", "budget=smoke").out
    assert longer == gpbench("plan", "default", "--overrides", f"{STUDY} budget=smoke").out
    assert "@article" in gpbench("cite", name).out
    (where.plans / f"{name}.json").write_text("{")
    answer = gpbench("plan", name)
    assert answer.code == 1
    assert answer.err.count("\n") == 1
    assert f"{name}.json" in answer.err


def test_records_are_collected_as_the_store_was(study):
    where, name, before = study
    counts = collect.collect(where, name)
    after = pd.read_parquet(where.results / name / "scores.parquet")
    empty = {"convergence": "", "not_judged_because": "", "gate": ""}  # of closed forms, as in a file of text
    pd.testing.assert_frame_equal(after[before.columns].fillna(empty), before.fillna(empty), rtol=1e-9)
    assert counts == before["status"].value_counts().to_dict()
    assert len(collect.not_done(where, name)) == 5


def test_records_with_two_lines_of_a_place_are_no_mean_of_both(tmp_path):
    """As a merge of two branches leaves them."""
    path, line = tmp_path / "scores.csv", "{},predict,svgp,boston,0,0,done,{}\n"
    head = "fit_id,kind,method,dataset,split,replica,status,mnll\n"
    path.write_text(head + line.format("0" * 16, 1.0) + line.format("1" * 16, 3.0))
    with pytest.raises(UserError, match=r"scores\.csv: \('svgp', 'boston', 0, 0\) stands there more than once"):
        committed.read(path)


def finish_one(where) -> None:
    """A fit that the records lack: without one nothing is written."""
    cells = planning.make(where, "default", STUDY).cells
    cell = next(cell for cell in cells if (cell.method, cell.address.dataset) == ("svgp", "wine"))
    finish(Store(where.store), cell, cell.fits[0])


def test_without_fits_of_the_store_the_records_stay_as_they_are(study):
    where, name, _ = study
    folder = committed.folder(where, name)
    (folder / "study.json").write_text("{}")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert collect.record(where, planning.make(where, "default", STUDY)) == (0, 6)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_what_another_process_recorded_meanwhile_stays(study, monkeypatch):
    """Rows that this one only read are not written back."""
    where, name, _ = study
    finish_one(where)
    plan = planning.make(where, "default", STUDY)
    path = committed.folder(where, name) / "scores.csv"
    facts, rows = collect.facts, committed.read(path)
    renewed = [row | {"mnll": 123.0} for row in rows if row["status"] == "done"]

    def meanwhile(*arguments):
        committed.write(where, name, renewed, {})
        return facts(*arguments)

    monkeypatch.setattr(collect, "facts", meanwhile)
    collect.record(where, plan)
    theirs = {row["fit_id"] for row in renewed}
    assert {row["mnll"] for row in committed.read(path) if row["fit_id"] in theirs} == {123.0}


def test_a_folder_of_records_can_be_viewed(study):
    where, name, _ = study
    view = View(committed.folder(where, name))
    cells = view.cells("mnll").set_index(["method", "dataset"])
    assert cells.loc[("constant", "wine"), ["n", "complete"]].tolist() == [2, True]
    assert cells.loc[("svgp", "boston"), "statuses"] == "1 diverged"
    assert cells.loc[("exact_gp", "wine"), "statuses"] == "skipped: regression only"
    assert view.points.empty
    assert view.traces.groupby("fit_id")["objective"].agg(list).tolist() == [[-2.0, -1.0]] * 5
    assert set(view.calibration["fit_id"]) == set(view.done["fit_id"])


def test_curves_of_fits_that_the_store_has_lost_stay_and_those_of_replaced_ones_go(study):
    where, name, _ = study
    made = planning.make(where, "default", STUDY)
    files = [committed.folder(where, name) / f"{file}.csv" for file in CURVES]
    before = [path.read_text() for path in files]
    cell, fit = next((cell, fit) for cell in made.cells for fit in cell.fits if cell.method == "svgp" and fit.split)
    finish(Store(where.store), cell, fit)
    assert collect.record(where, made) == (0, 6)
    after = [path.read_text() for path in files]
    assert all(set(old.splitlines()) < set(new.splitlines()) for old, new in zip(before, after, strict=True))
    assert all(
        [line[:16] for line in text.splitlines()[1:]] == sorted(line[:16] for line in text.splitlines()[1:])
        for text in after
    )
    row = committed.by_fit(where, name)[fit.fit_id]
    renewed = {file: committed.lines(path)[:1] for file, path in zip(CURVES, files, strict=True)}
    new = {file: [line | {"fit_id": "f" * 16} for line in lines] for file, lines in renewed.items()}
    committed.write(where, name, [row | {"fit_id": "f" * 16}], {}, new)
    assert all(fit.fit_id not in path.read_text() and "f" * 16 in path.read_text() for path in files)


def test_what_was_skipped_is_no_recorded_fit(study):
    where, name, _ = study
    rows = committed.read(committed.folder(where, name) / "scores.csv")
    assert {row["status"] for row in rows} == {"done", "diverged", "skipped"}
    assert {row["status"] for row in committed.by_fit(where, name).values()} == {"done", "diverged"}


def test_curves_that_are_recorded_again_stand_there_once_and_numbers_have_ten_digits(study):
    where, name, _ = study
    path = committed.folder(where, name) / "traces.csv"
    row = next(row for row in committed.by_fit(where, name).values() if row["status"] == "done")
    before, own = committed.lines(path), [line for line in committed.lines(path) if line["fit_id"] == row["fit_id"]]
    for _ in range(2):
        committed.write(where, name, [row | {"mnll": 1.23456789012345}], {}, {"traces": own})
    assert committed.lines(path) == before
    assert committed.by_fit(where, name)[row["fit_id"]]["mnll"] == 1.234567890


@pytest.mark.parametrize("file", CURVES)
def test_a_truncated_curve_is_refused_and_nothing_is_written(study, file):
    where, name, _ = study
    path = committed.folder(where, name) / f"{file}.csv"
    path.write_text(path.read_text()[:-10])
    before = {path: path.read_bytes() for path in path.parent.iterdir()}
    finish_one(where)
    with pytest.raises(UserError, match=rf"{file}.csv, line \d+ is not a record .the line is cut short.; restore it"):
        collect.record(where, planning.make(where, "default", STUDY))
    assert before == {path: path.read_bytes() for path in path.parent.iterdir()}


def test_on_a_full_disk_records_stay_as_they_were(study):
    """Curves, which fit, are not written where scores, which do not, are not."""
    where, name, _ = study
    path = committed.folder(where, name) / "scores.csv"
    before = {path: path.read_bytes() for path in path.parent.iterdir()}
    (row, *_) = committed.by_fit(where, name).values()
    line = committed.lines(path.with_name("traces.csv"))[0]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[path]) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=re.escape(str(path))):
            committed.write(where, name, [row | {"fit_id": "f" * 16}], {}, {"traces": [line | {"fit_id": "f" * 16}]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert before == {path: path.read_bytes() for path in path.parent.iterdir()}


def test_a_repeated_fit_replaces_its_record(study):
    where, name, _ = study
    (old,) = (row for row in committed.by_fit(where, name).values() if row["status"] == "diverged")
    new = old | {"fit_id": "f" * 16, "status": "done"}
    assert committed.write(where, name, [new], {}) == (1, 6)
    assert old["fit_id"] not in committed.by_fit(where, name)
    assert committed.by_fit(where, name)["f" * 16]["status"] == "done"
    diverged = new | {"fit_id": "e" * 16, "status": "diverged"}  # as it was trained to its end
    assert committed.write(where, name, [diverged], {}) == (1, 6)
    assert committed.by_fit(where, name)["e" * 16]["status"] == "diverged"


def test_records_are_in_the_order_of_their_numbers_and_what_was_half_written_goes(study):
    where, name, _ = study
    path = committed.folder(where, name) / "scores.csv"
    old = next(row for row in committed.read(path) if row["method"] == "svgp" and row["status"] == "done")
    half = [path.with_name(f".{file.stem}.abcd_123{file.suffix}") for file in path.parent.iterdir()]
    for each in half:
        each.touch()
    committed.write(where, name, [old | {"fit_id": str(split) * 8, "split": split} for split in (10, 90)], {})
    splits = [row["split"] for row in committed.read(path) if (row["method"], row["dataset"]) == ("svgp", "boston")]
    assert splits == [0, 1, 10, 90]
    committed.write(where, name, [old | {"fit_id": "2" * 16, "split": 2}], {})
    splits = [row["split"] for row in committed.read(path) if (row["method"], row["dataset"]) == ("svgp", "boston")]
    assert splits == [0, 1, 2, 10, 90]
    assert not any(each.exists() for each in half)


@pytest.mark.parametrize("status", ["skipped", "failed", "out-of-memory"])
def test_a_done_fit_stays_recorded_where_a_later_one_was_not_trained_to_its_end(study, status):
    where, name, _ = study
    before = committed.by_fit(where, name)
    old = next(row for row in before.values() if row["status"] == "done")
    assert committed.write(where, name, [old | {"fit_id": "f" * 16, "status": status}], {}) == (0, 6)
    assert committed.by_fit(where, name) == before


@pytest.mark.parametrize("left", [40, -1], ids=["within the line", "within its last cell"])
def test_a_truncated_line_is_refused_with_its_number(study, left):
    where, name, _ = study
    path = committed.folder(where, name) / "scores.csv"
    text = path.read_text().splitlines()
    path.write_text("\n".join([*text[:-1], text[-1][:left]]))
    with pytest.raises(UserError, match=rf"scores.csv, line {len(text)} is not a record .the line is cut short"):
        committed.by_fit(where, name)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: "", " holds no record; "),
        (lambda text: text.rstrip() + ",7\n", r", line \d+ is not a record .it has more cells than the header"),
        (lambda text: text + 'f,"' + "x," * 70_000 + "\n", r", line \d+ is not a record .field larger than"),
        (lambda text: text.replace(",split,", ",part,", 1), " has lines without fit_id, method, dataset, split, "),
        (lambda text: text.replace("fit_id,", "tuned,", 1), " has lines without fit_id, method, dataset"),
        (
            lambda text: re.sub(r"20\d\d-(\d\d)-(\d\d)T", r"\2/\1/", text, count=1),
            r", line 2 is not a record .Invalid iso",
        ),
    ],
)
def test_damaged_records_are_one_line(study, gpbench, damage, said):
    where, name, _ = study
    path = committed.folder(where, name) / "scores.csv"
    path.write_text(damage(path.read_text()))
    with pytest.raises(UserError, match=f"scores.csv{said}.*restore it by `git checkout`"):
        committed.by_fit(where, name)
    answer = gpbench("verify")
    assert (answer.code, "1 damaged one" in answer.out, "Traceback" in answer.err) == (1, True, False)
    assert (answer.err.count("\n"), answer.err.startswith(str(path))) == (2, True)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text(path.read_text()[:50])])
@pytest.mark.parametrize("file", ["scores.csv", "study.json", "calibration.csv"])
def test_a_file_that_is_cut_is_found_and_so_is_one_that_is_gone(study, gpbench, file, damage):
    where, name, _ = study
    path = committed.folder(where, name) / file
    damage(path)
    answer = gpbench("verify")
    if (file, damage) == ("calibration.csv", Path.unlink):  # records of before have none
        assert answer.code == 0
        return
    assert (answer.code, "1 damaged one" in answer.out, answer.err.count("\n")) == (1, True, 2)
    assert answer.err.startswith(str(path))
    assert "restore it by `git checkout`" in answer.err
    assert (f"`gpbench record {name}` writes it" in answer.err) == (damage == Path.unlink)


def test_a_run_with_several_faults_is_one_damaged_run(study, gpbench):
    where, name, _ = study
    path = committed.folder(where, name) / "scores.csv"
    first, *_, last = (row["fit_id"] for row in committed.read(path))
    path.write_text(path.read_text().replace(first, "thesis").replace(last, "paper"))
    answer = gpbench("verify")
    assert (answer.code, "1 run, 1 damaged one" in answer.out) == (1, True)
    assert answer.err.startswith(f"{path}: 'paper' is not an identity\n{path}: 'thesis' is not an identity\n")


def test_a_file_that_another_process_begins_meanwhile_is_no_damaged_one(tmp_path, monkeypatch):
    path, read = tmp_path / "scores.csv", committed._read

    def begun_meanwhile(*words):
        rows = read(*words)
        path.write_text("fit_id\n")
        return rows

    monkeypatch.setattr(committed, "_read", begun_meanwhile)
    assert committed.read(path) == []
