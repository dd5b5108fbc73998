"""What a job says of the study that it belongs to, and what it asks for."""

import os
from dataclasses import replace
from types import SimpleNamespace

from gpbench import places
from gpbench.cli import look
from gpbench.study.commands import snakemake_graph as graph
from gpbench.study.planning import batches
from gpbench.study.planning import plan as planning
from gpbench.study.records import Batch
from gpbench.study.storage.store import Store
from handmade import CELL, WHAT, planned

BATCHES = {"a": 60.0, "b": 60.0, "c": 120.0}


def test_a_job_says_how_far_its_study_is_and_when_it_will_end(project, monkeypatch):
    """By the batches that ended since it began; those of earlier runs do not count."""
    where = places.find()
    needs = {name: SimpleNamespace(seconds=seconds) for name, seconds in BATCHES.items()}
    monkeypatch.setattr(graph, "read", lambda _: SimpleNamespace(batches=needs))
    monkeypatch.setattr(graph.time, "time", lambda: 1000.0 + 150)
    assert graph.StudyClock(where).in_words() == ""  # Snakemake did not begin it
    monkeypatch.setenv(graph.GRAPH, "graphs/0.json")
    monkeypatch.setenv(graph.STARTED, "1000")
    clock = graph.StudyClock(where)
    assert clock.in_words() == ""
    where.runs.mkdir()
    for name, ended in (("a", 1100), ("c", 900)):
        (where.runs / f"{name}.json").touch()
        os.utime(where.runs / f"{name}.json", (ended, ended))
    assert clock.in_words() == "; study 25% done, about 8 min left"  # 60 of 240 s took 150


def test_a_group_that_has_just_begun_is_starting_and_one_without_steps_has_one(project):
    where = places.find()
    plan, store = planning.make(where, "default", "methods=[constant] datasets=[boston] splits=1"), Store(where.store)
    store.begin(group := plan.batches[0].groups[0])
    with store.locked([fit.fit_id for fit in group.fits]):
        (running,) = look._progress(plan).groups
    (left,) = look._progress(plan).groups
    assert (running["state"], running["progress"]) == ("running", "starting")
    assert (left["state"], left["progress"]) == ("interrupted", "resumes at step 0 of 1")


def test_a_job_asks_for_what_its_largest_group_needs(monkeypatch):
    group = batches.group_of(CELL, (planned(),), 9)
    how = replace(CELL.how, device="cuda", threads=2, job_minutes=30)
    apart = replace(group, how=how, what=replace(WHAT, trained_by="synchronous", workers=3))  # a GPU for each
    shared = replace(apart, how=replace(how, threads=1), what=replace(WHAT, trained_by="asynchronous", workers=3))
    cost = SimpleNamespace(memory_mb=lambda group: 100 * group.cores)
    needs = [graph._needs(Batch("b", (group, *more), 600.2), cost) for more in ((), (apart,), (shared,))]
    found = [(each.threads, each.mem_mb, each.minutes, each.gpu, each.seconds) for each in needs]
    assert found == [(1, 100, 41, 0, 601), (6, 600, 30, 3, 601), (3, 300, 30, 1, 601)]
    for retries, last in (("2", [False, False, True]), ("0", [False, True, True])):
        monkeypatch.setenv(graph.RETRIES, retries)
        assert [graph.is_last(attempt) for attempt in (1, 2, 3)] == last
