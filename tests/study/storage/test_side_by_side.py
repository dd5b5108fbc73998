"""Several processes at once: at the records of a study, at a fit that runs, at a store that two projects share."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import call, listing

from gpbench import places
from gpbench.cli.main import main
from gpbench.places import Places
from gpbench.study.fitting import closed_form
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from gpbench.study.storage import committed
from gpbench.study.storage.store import Store
from handmade import CELL, finish, planned
from projects import copy_project

FORK = multiprocessing.get_context("fork")
STUDY = "methods=[constant] datasets=[boston,wine] splits=10"


def at_once(*works: Callable[[], object]) -> list[int | None]:
    """Exit codes of processes that begin together."""
    gate = FORK.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        gate.wait()
        work()

    processes = [FORK.Process(target=run, args=(work,)) for work in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


@pytest.mark.parametrize("stores", [("store", "store"), ("store", "scratch")], ids=["one store", "a store each"])
def test_two_that_record_at_once_lose_no_fit_and_no_reader_sees_half_a_file(project, stores):
    """Each has half of the fits, and adds them one by one."""
    where = places.find()
    plan = planning.make(where, "default", STUDY)
    for cell, fit in plan.fits:
        finish(Store(where.store), cell, fit)
    ended = collect.Ended(where, plan.name)
    rows, curves = collect.score_rows(where, ended, plan), collect._curves(ended, plan)
    wanted = {row["fit_id"] for row in rows}

    def add(number: int) -> None:
        for row in rows[number::2]:
            own = {name: [line for line in lines if line["fit_id"] == row["fit_id"]] for name, lines in curves.items()}
            committed.write(Places(project, project / stores[number]), plan.name, [row], {}, own)

    def read() -> None:
        found, deadline = set[str](), time.monotonic() + 50
        while found < wanted:
            assert time.monotonic() < deadline
            now = set(committed.by_fit(where, plan.name))  # refuses a line that is cut short
            assert found <= now, "a fit is gone"
            found = now
            for name in committed.CURVES:
                committed.lines(committed.folder(where, plan.name) / f"{name}.csv")

    assert at_once(lambda: add(0), lambda: add(1), read) == [0, 0, 0]
    assert set(committed.by_fit(where, plan.name)) == wanted
    folder = committed.folder(where, plan.name)
    assert {line["fit_id"] for line in committed.lines(folder / "traces.csv")} == wanted
    assert {path.name for path in folder.iterdir()} == {"scores.csv", "study.json", "traces.csv", "calibration.csv"}


def test_retry_in_the_middle_of_a_fit_leaves_its_work_alone(project, gpbench, monkeypatch):
    """It is asked from within the fit's own process, so that the fit goes on while it runs."""
    store, went_on = Store(project / "store"), project / "went_on"
    finish(store, CELL, planned(), "failed", "ValueError: no")
    as_it_was = closed_form.run

    def run(*words: object) -> object:
        of_the_run = [store.root / ".work", store.root / ".locks"]
        before = [listing(folder) for folder in of_the_run]
        done = call(project, "retry")
        assert done.stdout.startswith("1 fit cleared"), done.stderr
        assert [listing(folder) for folder in of_the_run] == before
        (group,) = store.groups()
        assert "no fit begins with" in call(project, "retry", group.fits[0].fit_id).stderr
        assert store.busy(group.fits[0].fit_id)
        went_on.touch()
        return as_it_was(*words)

    monkeypatch.setattr(closed_form, "run", run)
    answer = gpbench("fit", "method=constant", "dataset=wine")
    assert answer.code == 0, answer.out + answer.err
    assert went_on.is_file()
    assert [store.verified(fit_id).status for fit_id in store.ids()] == ["done"]
    assert [path.name[:16] for path in store.cleared.iterdir()] == [planned().fit_id]


def test_two_projects_that_share_a_store_make_a_fit_once(project, tmp_path, monkeypatch):
    other = copy_project(tmp_path / "other")
    monkeypatch.setenv("GPBENCH_STORE", str(tmp_path / "shared"))
    diary = tmp_path / "diary"
    as_it_was = closed_form.run

    def run(*words: object) -> object:
        with diary.open("a") as stream:
            stream.write("begun\n")
        time.sleep(0.5)  # until the other is there
        return as_it_was(*words)

    def fit(root: Path) -> None:
        monkeypatch.setenv("GPBENCH_ROOT", str(root))
        assert main(["fit", "method=constant", "dataset=wine"]) == 0

    monkeypatch.setattr(closed_form, "run", run)
    assert at_once(lambda: fit(project), lambda: fit(other)) == [0, 0]
    assert diary.read_text() == "begun\n"
    shared = tmp_path / "shared"
    (fit_id,) = Store(shared).ids()
    assert Store(shared).verified(fit_id).status == "done"
    for root in (project, other):
        plan = planning.make(Places(root, shared), "default", "methods=[constant] datasets=[wine] splits=1")
        assert [state.name for state in plan.states.values()] == ["done"]
