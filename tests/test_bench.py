"""Benches follow the plan and the methods: they are run by hand, and would rot unseen."""

import importlib

import pytest

from projects import REPOSITORY


@pytest.fixture
def bench(monkeypatch):
    """Import a bench by name."""
    monkeypatch.syspath_prepend(REPOSITORY / "bench")
    monkeypatch.chdir(REPOSITORY)
    return importlib.import_module


def test_the_loop_is_timed_with_and_without_lightning(bench, monkeypatch):
    loop = bench("loop")
    monkeypatch.setattr(loop, "STEPS", 3)
    data = loop.table()
    assert loop.lightning_seconds(data) > 0
    assert loop.bare_seconds(data) > 0


def test_a_prediction_batched_over_states_is_that_of_one_by_one(bench, monkeypatch, capsys):
    sampler = bench("sampler")
    monkeypatch.setattr(importlib.import_module("bench"), "REPEATS", 1)
    monkeypatch.setattr(importlib.import_module("bench"), "WARMUP", 0)
    for name, value in {"STATES": 30, "TEST_ROWS": 600, "ROWS": (2000,), "STEPS_A_TURN": 2}.items():
        monkeypatch.setattr(sampler, name, value)
    sampler.main()
    assert capsys.readouterr().out.count("median") == 3
