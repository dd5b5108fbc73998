"""Benches follow the plan and the methods: they are run by hand, and would rot unseen."""

import importlib
import itertools
import subprocess
import sys

import pytest
import torch

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


def test_steps_are_timed_and_their_operations_counted(bench, monkeypatch, capsys):
    steps = bench("steps")
    for name, value in {"REPEATS": 1, "WARMUP": 0, "METHODS": {"SVGP": ("svgp", 200, {"batch_size": 50})}}.items():
        monkeypatch.setattr(steps, name, value)
    assert steps.counts(steps.our_step("SVGP", torch.float32)) == steps.counts(steps.our_step("SVGP", torch.float64))
    times = steps.interleaved({"ours": steps.our_step("SVGP", torch.float64)})
    assert times["ours"].shape == (1,)


def test_a_prediction_batched_over_states_is_that_of_one_by_one(bench, monkeypatch, capsys):
    sampler = bench("sampler")
    monkeypatch.setattr(importlib.import_module("bench"), "REPEATS", 1)
    monkeypatch.setattr(importlib.import_module("bench"), "WARMUP", 0)
    for name, value in {"STATES": 30, "TEST_ROWS": 600, "ROWS": (2000,), "STEPS_A_TURN": 2}.items():
        monkeypatch.setattr(sampler, name, value)
    sampler.main()
    assert capsys.readouterr().out.count("median") == 3


def test_operators_on_latent_values_are_timed():
    program = "import bench, latent; bench.REPEATS, bench.WARMUP, latent.CHAINS = 1, 0, 2; latent.bench_operators()"
    # apart from this process, which other tests fork: JAX has threads
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY / "bench", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" ms ") == 20


def test_a_study_is_made_up_without_fitting_and_its_stages_timed(bench, monkeypatch, tmp_path):
    size = bench("study_size")
    monkeypatch.setattr(size, "METHODS", ("svgp", "dnn"))
    where = size.project(tmp_path, 1, 2, 2)
    made = size.plan.make(where, "size")
    assert size.fill(made, where) == 8
    early = list(itertools.islice(size.stages(where), 4))
    for stage in early:
        stage.run()
    assert [stage.name for stage in early] == ["plan", "cost", "freeze", "collect, scoring all"]
    states = size.plan.make(where, "size").states
    assert {state for state, _ in states.values()} == {"done"}
    assert (where.results / "size" / "scores.parquet").is_file()
