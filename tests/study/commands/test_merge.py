"""Committed records of another machine beside ours."""

from __future__ import annotations

import json
import shutil

import pytest

from gpbench import places
from gpbench.errors import UserError
from gpbench.study.commands import merge
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from gpbench.study.storage import committed
from gpbench.study.storage.store import Store
from handmade import finish
from projects import copy_project

STUDY = "methods=[constant] datasets=[boston] splits=3"


def recorded(root, splits: tuple[int, ...], status: str = "done") -> str:
    """Record some splits of the study in a project; the name of the run."""
    where = places.Places(root, root / "store")
    plan, store = planning.make(where, "default", STUDY), Store(where.store)
    for fit in plan.cells[0].fits:
        if fit.split in splits:
            finish(store, plan.cells[0], fit, status)
    collect.record(where, plan)
    return plan.name


@pytest.fixture
def other(project, tmp_path):
    """The checkout of another machine: it has splits 1 and 2, ours 0 and 1."""
    root = copy_project(tmp_path / "other")
    recorded(root, (1, 2))
    recorded(project, (0, 1))
    return root


def splits(where, name: str) -> list[int]:
    return [row["split"] for row in committed.read(committed.folder(where, name) / "scores.csv")]


def test_records_of_two_machines_are_one_run(other, gpbench):
    where = places.find()
    (name,) = [path.name for path in (where.root / "docs/results").iterdir()]
    answer = gpbench("record", "--merge", str(other))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{name}: 1 fit added, 3 in docs/results/{name}/scores.csv\n"
    assert splits(where, name) == [0, 1, 2]
    traces = committed.lines(committed.folder(where, name) / "traces.csv")
    assert {line["fit_id"] for line in traces} == set(committed.by_fit(where, name))
    again = gpbench("record", "--merge", str(other / "docs/results"))
    assert again.out == "1 run with nothing new\n"


def test_a_fit_with_other_scores_is_refused_under_any_name_of_its_run(other, refused):
    (folder,) = (other / "docs/results").iterdir()
    shutil.move(folder, folder.with_name("another_run"))
    scores = folder.with_name("another_run") / "scores.csv"
    head, first, second = scores.read_text().splitlines()
    column = head.split(",").index("mnll")
    cells = first.split(",")
    cells[column] = "0.5"
    scores.write_text("\n".join([head, ",".join(cells), second, ""]))
    said = ["nothing is merged: constant on boston, split 1", "mnll ", " -> 0.5 in default-", "in another_run there"]
    refused(("record", "--merge", str(other)), said)


def test_a_status_that_no_record_has_is_refused(other, refused):
    (folder,) = (other / "docs/results").iterdir()
    scores = folder / "scores.csv"
    scores.write_text(scores.read_text().replace(",done,", ",doen,", 1))
    refused(("record", "--merge", str(other)), ["scores.csv: a record has no status 'doen', it is one of done, "])


def test_runs_there_that_contradict_each_other_are_refused(other, refused):
    (folder,) = (other / "docs/results").iterdir()
    again = folder.with_name("another_run")
    shutil.copytree(folder, again)
    shutil.rmtree(places.find().root / "docs/results" / folder.name)
    head, *rows = (again / "scores.csv").read_text().splitlines()
    column = head.split(",").index("mnll")
    rows = [",".join("0.5" if at == column else cell for at, cell in enumerate(row.split(","))) for row in rows]
    (again / "scores.csv").write_text("\n".join([head, *rows, ""]))
    said = ["nothing is merged: constant on boston, split 1", "mnll 0.5 -> ", "in another_run there -> in default-"]
    refused(("record", "--merge", str(other)), said)


def test_fits_of_other_rows_of_a_data_set_are_no_records_of_the_same_run(other, refused):
    (folder,) = (other / "docs/results").iterdir()
    facts = committed.facts(folder)
    (folder / "study.json").write_text(json.dumps(facts | {"data": {"boston": "0" * 32}}))
    said = ["has fits of other rows of data set 'boston', which are not comparable; move that folder away"]
    refused(("record", "--merge", str(other)), said)
    theirs = places.Places(other, other / "store")
    with pytest.raises(UserError, match=said[0]):
        committed.write(theirs, folder.name, committed.read(folder / "scores.csv"), facts)


def test_what_is_replaced_is_said(other, gpbench):
    """Where a place has another fit there, the one that began later is kept."""
    (folder,) = (other / "docs/results").iterdir()
    rows = committed.read(folder / "scores.csv")
    later = [row | {"fit_id": "f" * 15 + str(row["split"]), "started": "2999-01-01"} for row in rows]
    committed.write(places.Places(other, other / "store"), folder.name, later, committed.facts(folder))
    answer = gpbench("record", "--merge", str(other))
    assert ": 2 fits added, 1 of them in place of other code or settings, which began earlier or failed" in answer.out


def test_our_own_runs_may_differ_on_a_fit_as_long_as_theirs_have_the_same(other, gpbench):
    """As two machines round unlike, chains that both made are unlike in two runs; a copy of both is no conflict."""
    (folder,) = (other / "docs/results").iterdir()
    scores = shutil.copytree(folder, folder.with_name("another_run")) / "scores.csv"
    head, first, *rest = scores.read_text().splitlines()
    cells = dict(zip(head.split(","), first.split(","), strict=True)) | {"mnll": "0.5"}
    scores.write_text("\n".join([head, ",".join(cells.values()), *rest, ""]))
    ours = places.find().root / "docs/results"
    for run in (folder.name, "another_run"):
        shutil.copytree(folder.with_name(run), ours / run, dirs_exist_ok=True)
    answer = gpbench("record", "--merge", str(other))
    assert (answer.code, answer.err, answer.out) == (0, "", "2 runs with nothing new\n")


def test_a_fit_that_failed_here_and_is_done_there_is_done(other, gpbench, tmp_path):
    where = places.find()
    (name,) = [path.name for path in (where.root / "docs/results").iterdir()]
    third = copy_project(tmp_path / "third")
    recorded(third, (0, 2), "failed")
    assert gpbench("record", "--merge", str(third)).code == 0
    statuses = {row["split"]: row["status"] for row in committed.by_fit(where, name).values()}
    assert statuses == {0: "done", 1: "done", 2: "failed"}
    answer = gpbench("record", "--merge", str(other))
    assert (answer.code, "in place of other code" in answer.out) == (0, False), "it is the same fit"
    assert {row["status"] for row in committed.by_fit(where, name).values()} == {"done"}


def test_a_later_fit_that_failed_does_not_replace_one_that_is_done(other, gpbench):
    (ours,) = committed.folder(places.find(), "").iterdir()
    before = committed.read(ours / "scores.csv")
    scores = other / "docs/results" / ours.name / "scores.csv"
    later = [row | {"fit_id": "f" * 16, "status": "failed", "started": "2100-01-01"} for row in before[:1]]
    scores.unlink()
    committed.write(places.Places(other, other / "store"), ours.name, later, {"command": "snakemake"})
    assert gpbench("record", "--merge", str(other)).code == 0
    assert committed.read(ours / "scores.csv") == before


def test_a_done_fit_is_better_than_a_later_one_that_failed_whoever_merges():
    done, failed = ({"fit_id": s, "status": s, "started": year} for s, year in (("done", "2025"), ("failed", "2026")))
    assert (merge._is_better(done, failed), merge._is_better(failed, done)) == (True, False)


@pytest.mark.parametrize("text", ['{"name": ', "[]", "{}"])
def test_a_damaged_description_of_a_run_is_one_line_and_no_run_is_merged(other, refused, text):
    (folder,) = (other / "docs/results").iterdir()
    shutil.copytree(folder, folder.with_name("zzz_last"))
    (folder.with_name("zzz_last") / "study.json").write_text(text)
    refused(("record", "--merge", str(other)), ["zzz_last/study.json is damaged (", "restore it by `git checkout`"])


def test_a_run_without_its_description_is_named_and_no_run_is_merged(other, refused):
    (folder,) = (other / "docs/results").iterdir()
    shutil.copytree(folder, folder.with_name("zzz_last"))
    missing = folder.with_name("zzz_last") / "study.json"
    missing.unlink()
    refused(("record", "--merge", str(other)), [f"nothing is merged: {missing} is missing; copy it there from where"])


def test_a_run_of_ours_is_described_here_already(other, gpbench):
    (folder,) = (other / "docs/results").iterdir()
    (folder / "study.json").unlink()
    answer = gpbench("record", "--merge", str(other))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"{folder.name}: 1 fit added, 3 in ")


def test_of_a_fit_times_may_differ_and_what_is_of_all_chains_where_their_numbers_do():
    old = {"chains": 2, "mnll": 0.5, "r_hat": 1.01, "ess_bulk": 90.0, "ess_tail": 80.0, "seconds_train": 1.0}
    new = old | {"chains": 4, "r_hat": 1.2, "ess_bulk": 190.0, "ess_tail": 180.0, "seconds_train": 2.0, "rmse": 1.0}
    assert merge._differing(old, new) == ""
    assert merge._differing(old, new | {"chains": 2}) == "r_hat 1.01 -> 1.2"
    assert merge._differing(old, new | {"mnll": 0.6}) == "mnll 0.5 -> 0.6"


def test_a_folder_without_records_is_refused(project, refused, tmp_path):
    refused(("record", "--merge", str(tmp_path)), ["has no docs/results, and no records"])
    for words in (("uci_common",), ("--set", "splits=2"), ("--overrides", "splits=2")):
        refused(("record", *words, "--merge", str(tmp_path)), ["--merge adds every run of that folder; leave out"])
