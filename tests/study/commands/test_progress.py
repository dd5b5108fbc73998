"""What a job says of the study that it belongs to."""

import os
from types import SimpleNamespace

from gpbench import places
from gpbench.study.commands import snakemake_graph as graph

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
