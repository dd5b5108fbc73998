"""`gpbench adopt`: evidence keeps its numbers where code was moved and not changed, and only there."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict, replace

import pytest

from gpbench import places
from gpbench.study.commands import adopt, job
from gpbench.study.planning import identity
from gpbench.study.planning import plan as planning
from gpbench.study.records import identify
from gpbench.study.results import collect
from gpbench.study.storage import committed, remote
from gpbench.study.storage.store import Store
from handmade import finish
from projects import prepared_project

STUDY = "methods=[constant,linear] datasets=[boston,wine] splits=2"
NAME = planning.run_name("default", STUDY)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A project with a study that was fitted and recorded."""
    where = prepared_project(tmp_path_factory.mktemp("recorded") / "project", "boston", "wine")
    plan = planning.make(where, "default", STUDY)
    job.run_groups(tuple(group for batch in plan.batches for group in batch.groups), where)
    assert collect.record(where, plan) == (8, 8)
    return where.root


@pytest.fixture
def study(project, recorded, monkeypatch):
    """A copy of it that was then given other identities by moved code; its store."""
    shutil.copytree(recorded, project, dirs_exist_ok=True)
    code = identity.code
    monkeypatch.setattr(identity, "code", lambda *modules: code(*modules) | {"moved": "elsewhere"})
    return Store(places.find().store)


def lose(store: Store) -> None:
    """Leave the records alone to tell of the fits."""
    store.clear(store.ids())


def states() -> list[str]:
    return [state.name for state in planning.make(places.find(), "default", STUDY).states.values()]


def test_reproduced_records_are_adopted_with_a_note(study, gpbench):
    lose(study)
    path = committed.folder(places.find(), NAME) / "scores.csv"
    rows = [row | {"certificate_steps": 400, "certificate_mnll": 0.25} for row in committed.read(path)]
    committed.write(places.find(), NAME, rows, committed.facts(path.parent))
    before = committed.by_fit(places.find(), NAME)
    assert states() == ["pending"] * 8
    answer = gpbench("adopt", NAME)
    assert answer.code == 0, answer.err
    assert "adopted: linear (regression): 2 fits; refitted: linear on boston, split " in answer.out
    assert len(study.ids()) == 4  # one of each method and task was refitted
    certificates = [study.certificate(fit_id) for fit_id in study.ids()]
    assert certificates == [{"certificate_steps": 400, "certificate_mnll": 0.25}] * 4
    assert states() == ["done"] * 8
    after = committed.by_fit(places.find(), NAME)
    assert not before.keys() & after.keys()
    numbers = ("method", "dataset", "split", "mnll", "commit", "started")
    assert [[row.get(k) for k in numbers] for row in after.values()] == [
        [row.get(k) for k in numbers] for row in before.values()
    ]
    assert all("refitted with equal scores" in row["adopted"] for row in after.values())
    bins = committed.lines(committed.folder(places.find(), NAME) / "calibration.csv")
    assert {line["fit_id"] for line in bins} == after.keys()
    assert "has no fits whose code moved" in gpbench("adopt", NAME).err


def test_fits_of_another_setting_stay_stale_in_one_line(study, gpbench):
    lose(study)
    where = places.find()
    path = committed.folder(where, NAME) / "scores.csv"
    rows = committed.read(path)
    for row in rows:
        if (row["method"], row["dataset"]) == ("linear", "boston"):
            row["budget"] = "paper"
    path.unlink()
    committed.write(where, NAME, rows, {"command": f"snakemake --cores 2 --config study=default overrides='{STUDY}'"})
    answer = gpbench("adopt", NAME)
    assert answer.code == 1
    (line,) = (line for line in answer.out.splitlines() if line.startswith("stays stale"))
    assert line == "stays stale: 2 fits of linear: budget: paper -> quick"


def test_fits_that_another_machine_refitted_are_fetched(study, gpbench, monkeypatch, tmp_path):
    run_groups = job.run_groups

    def elsewhere(groups, where):
        run_groups(groups, where)
        remote._of.cache_clear()  # which lists fits once a process
        lose(study)

    lose(study)
    monkeypatch.setenv("GPBENCH_REMOTE", f"file://{tmp_path}/remote")
    monkeypatch.setattr(job, "run_groups", elsewhere)
    answer = gpbench("adopt", NAME, "--check", "2")
    assert (answer.code, answer.out.count("adopted: ")) == (0, 4), answer.out
    assert answer.out.count("linear on boston, split ") == 2


def test_a_score_that_differs_keeps_its_method_and_task_stale(study, gpbench):
    lose(study)
    where = places.find()
    path = committed.folder(where, NAME) / "scores.csv"
    rows = committed.read(path)
    of_linear = [row for row in rows if (row["method"], row["dataset"]) == ("linear", "boston")]
    min(of_linear, key=lambda row: row["seconds_train"] * row["seconds_shared_by"])["mnll"] *= 1 + 1e-8
    path.unlink()
    committed.write(where, NAME, rows, {"command": f"snakemake --cores 2 --config study=default overrides='{STUDY}'"})
    answer = gpbench("adopt", NAME)
    assert answer.code == 1
    assert "stays stale: linear (regression, 2 fits): linear on boston, split " in answer.out
    assert "mnll " in answer.out
    assert sorted(states()) == ["done"] * 7 + ["pending"]  # one of the two was refitted, and is what today's code gives
    assert "1 line of 4 above: not adopted" in answer.err
    for words in ([], ["--check", "2"]):  # what is like its evidence is not looked for until it is found
        answer = gpbench("adopt", NAME, *words)
        assert (answer.code, "stays stale: linear (regression, 1 fit): linear on boston, split " in answer.out) == (
            1,
            True,
        )


def test_settings_that_changed_are_named(study, gpbench):
    lose(study)
    where = places.find()
    path = committed.folder(where, NAME) / "scores.csv"
    path.write_text(path.read_text().replace(",quick,", ",check,"))
    answer = gpbench("adopt", NAME)
    assert answer.code == 1
    assert "budget: check -> quick" in answer.err
    assert states() == ["pending"] * 8


def test_records_of_another_configuration_stay_stale(study, gpbench):
    lose(study)
    path = committed.folder(places.find(), NAME) / "scores.csv"
    rows = committed.read(path)
    (used,) = {row["configuration"] for row in rows if (row["method"], row["dataset"]) == ("linear", "wine")}
    path.write_text(path.read_text().replace(used, "0" * 16))
    answer = gpbench("adopt", NAME)
    assert f"stays stale: 2 fits of linear: configuration: {'0' * 16} -> {used}" in answer.out + answer.err
    assert sorted(states()) == ["done"] * 6 + ["pending"] * 2


def test_stored_fits_are_copied_to_todays_identities(study, gpbench):
    path = committed.folder(places.find(), NAME) / "scores.csv"
    path.write_text(re.sub(r".*,boston,.*\n", "", path.read_text()))  # those of wine are recorded, too
    for fit_id in study.ids():
        study.certify(fit_id, {"certificate_steps": 400})
    answer = gpbench("adopt", "default", "--overrides", STUDY, "--check", "1")
    assert answer.code == 0, answer.err
    assert answer.out.count("regression): 2 fits;") == answer.out.count("multiclass): 2 fits;") == 2
    assert states() == ["done"] * 8
    assert [study.certificate(fit_id) for fit_id in study.ids()] == [{"certificate_steps": 400}] * 16
    records = {record.fit_id: record for record in study.records()[0]}
    assert len(records) == 16  # the old ones stay
    notes = [record.provenance.adopted for record in records.values() if record.what.code.get("moved")]
    assert len(notes) == 8


def made_here():
    """A store, and a cell of one fit."""
    where = places.find()
    (cell,) = planning.make(where, "default", "methods=[constant] datasets=[boston] splits=1").cells
    return Store(where.store), cell, cell.fits[0]


def test_what_moved_besides_code_and_versions(project):
    store, cell, fit = made_here()
    row = {key: getattr(cell.address, key) for key in ("protocol", "budget")} | {"preset": "constant"}
    row |= {"overrides": None, "steps": None, "n_train": fit.rows, "n_test": fit.test_rows, "configuration": None}
    finish(store, cell, fit)
    record = store.record(fit.fit_id)

    def moved(source):
        return adopt._moved(adopt.Evidence(cell, fit, source, {}, 1.0, "0" * 40))

    assert moved(row) == moved(record) == ""
    assert moved(row | {"n_train": 1, "n_test": 2}) == f"n_train: 1 -> {fit.rows}; n_test: 2 -> {fit.test_rows}"
    assert moved(replace(record, what=replace(cell.what, versions={"torch": "1"}, code={"moved": "here"}))) == ""
    assert "steps: 7 -> " in moved(replace(record, what=replace(cell.what, steps=7)))


def test_a_refitted_fit_that_failed_or_has_no_score_of_its_evidence_is_unlike_it(project):
    store, cell, fit = made_here()
    evidence = adopt.Evidence(cell, fit, {}, {"mnll": 0.5}, 1.0, "0" * 40)
    name = "constant on boston, split 0"
    finish(store, cell, fit, "failed", "no memory")
    assert adopt._difference(store, evidence, None) == f"{name} failed when it was refitted: no memory"
    store.clear([fit.fit_id])
    finish(store, cell, fit)
    assert adopt._difference(store, evidence, None).startswith(f"{name}: mnll 0.5 -> ")
    assert adopt._difference(store, replace(evidence, scores={}), None) == f"{name} has no score to compare"


def test_scores_agree_to_nine_digits_and_none_with_none():
    nan, score = float("nan"), 0.5
    assert adopt.agree(score, score * (1 + 1e-10))
    assert adopt.agree(nan, nan)
    assert not any(adopt.agree(score, other) for other in (score * (1 + 1e-8), -score, nan))


def test_of_several_stored_fits_of_a_place_the_last_that_is_done_is_adopted(project):
    store, cell, fit = made_here()
    whats = [replace(cell.what, code={"moved": text}) for text in ("here", "there", "nowhere")]
    fits = {identify(asdict(what), fit.split, fit.replica): what for what in whats}
    in_time = sorted(fits, reverse=True)  # not in the order of the store
    for fit_id, status in zip(in_time, ("done", "done", "failed"), strict=True):
        finish(store, replace(cell, what=fits[fit_id]), replace(fit, fit_id=fit_id), status)
    plan = planning.make(places.find(), "default", "methods=[constant] datasets=[boston] splits=1")
    assert [item.source.fit_id for item in adopt._stored(store, plan)] == [in_time[1]]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("kill -9 $$", ": exit status -9, and no message"),
        (f"""echo '{{"fit_id": "{"0" * 16}"}}'""", " has another code or configuration than "),
    ],
    ids=["dies", "other code"],
)
def test_a_checkout_that_dies_without_a_word_or_has_other_code_is_one_line(study, gpbench, tmp_path, program, message):
    python = tmp_path / "checkout/.venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    answer = gpbench("adopt", NAME, "--check", "1", "--against", str(tmp_path / "checkout"))
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert message in answer.err


def test_a_damaged_description_of_a_run_is_one_line_before_anything_is_refitted(study, gpbench):
    lose(study)
    (committed.folder(places.find(), NAME) / "study.json").write_text("{")
    for words in ((NAME,), ("default", "--overrides", STUDY)):
        answer = gpbench("adopt", *words)
        assert (answer.code, answer.err.count("\n")) == (1, 1)
        assert "study.json is damaged (" in answer.err
    assert study.ids() == []


def test_refusals(project, gpbench):
    assert "--check must be a positive integer, got 0" in gpbench("adopt", "default", "--check", "0").err
    assert "unknown study 'nothing'" in gpbench("adopt", "nothing").err
    assert "default has no fits whose code moved; nothing to adopt" in gpbench("adopt", "default").err
