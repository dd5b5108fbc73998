"""Benches follow the plan and the methods: they are run by hand, and would rot unseen."""

import functools
import importlib
import itertools
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.signal
import torch

from gpbench.data.simulated import latent_gp
from gpbench.sampling.latent.latents import Hamiltonian
from gpbench.study.storage import arrays
from projects import REPOSITORY, prepared_project


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


def test_a_batch_is_timed_beside_fits_alone(bench, monkeypatch, capsys):
    batches, timing = bench("batches"), bench("timing")
    monkeypatch.setattr(timing, "REPEATS", 2)
    monkeypatch.setattr(batches, "WORKS", dict(list(batches.WORKS.items())[:1]))
    batches.main()
    (line,) = capsys.readouterr().out.splitlines()
    assert 0 < float(line.removeprefix("SVGP, 20 x 100").split()[0]) < 50


def test_steps_are_timed_and_their_operations_counted(bench, monkeypatch, capsys):
    steps, timing = bench("steps"), bench("timing")
    monkeypatch.setattr(timing, "REPEATS", 1)
    monkeypatch.setattr(timing, "WARMUP", 0)
    small = {"batch_size": 50, "num_inducing": 5}
    work = steps.Work("svgp", small, rows=200)
    assert steps.counts(steps.our_step(work, torch.float32)) == steps.counts(steps.our_step(work, torch.float64))
    monkeypatch.setattr(steps, "WORKS", {"DSVI-2": steps.Work("dsvi", small | {"hidden_width": 2}, rows=200)})
    steps.bench_operations()
    assert re.search(r"DSVI-2 +[\d.]+ \[[\d., ]+\] +\d+ \(1\)  \d+ \(1\)", capsys.readouterr().out)


def test_steps_are_timed_beside_those_of_peers(bench, monkeypatch, capsys, tmp_path):
    steps, timing = bench("steps"), bench("timing")
    monkeypatch.setattr(timing, "REPEATS", 1)
    monkeypatch.setattr(timing, "WARMUP", 0)
    answering = tmp_path / "python"
    answering.write_text("#!/bin/sh\nwhile read -r line; do echo 1000.0; done\n")
    answering.chmod(0o755)
    rows = steps.gpytorch_steps(torch.float64)
    monkeypatch.setattr(steps, "gpytorch_steps", lambda dtype: {"SVGP": rows["SVGP"]})
    for peers, said in ((answering, r"GPflow +\d{3,}"), (tmp_path / "nothing", "GPflow +not built: make peers")):
        monkeypatch.setattr(steps, "PEERS", peers)
        steps.bench_peers(torch.float64)
        printed = capsys.readouterr().out
        assert re.search(r"SVGP +GPyTorch +[\d.]+ \[", printed)
        assert re.search(said, printed)


@pytest.mark.slow
def test_a_prediction_batched_over_states_is_that_of_one_by_one(bench, monkeypatch, capsys):
    sampler = bench("sampler")
    monkeypatch.setattr(importlib.import_module("timing"), "REPEATS", 1)
    monkeypatch.setattr(importlib.import_module("timing"), "WARMUP", 0)
    for name, value in {"STATES": 30, "TEST_ROWS": 600, "ROWS": (2000,), "STEPS_A_TURN": 2}.items():
        monkeypatch.setattr(sampler, name, value)
    sampler.main()
    assert capsys.readouterr().out.count("median") == 3


@pytest.mark.slow
def test_operators_on_latent_values_are_timed():
    program = "import timing, latent; timing.REPEATS, timing.WARMUP, latent.CHAINS = 1, 0, 2; latent.bench_operators()"
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
    early = list(itertools.islice(size.stages(where).items(), 5))
    for _, run in early:
        run()
    assert [name for name, _ in early] == ["plan and freeze", "plan again", "verify", "cost", "collect"]
    states = size.plan.make(where, "size").states
    assert {state.name for state in states.values()} == {"done"}
    assert (where.results / "size" / "scores.parquet").is_file()


def test_chains_on_all_rows_have_the_posterior_and_those_on_mini_batches_are_wider_as_predicted(bench):
    bias = bench("sghmc_bias")
    known = bias.problem()
    for batch_size in (None, 10):
        chains = bias.run(known, batch_size, 0.03, burn_in=500, steps=1500)
        (mean, half), (shift, shift_half) = bias.interval(chains.variance), bias.interval(chains.mean)
        # 0.1: h / (2 (2 - b)) where a step is long, and what the prediction leaves out
        assert abs(mean / chains.predicted - 1) < 0.1 + 2 * half / mean
        assert abs(shift) < 2 * shift_half
    assert chains.predicted > 2


def test_marginals_of_chains_are_compared_with_the_reference(bench, capsys):
    marginals = bench("sgld_marginals")
    normal = np.random.default_rng(0).standard_normal
    reference, other = 2 * normal((4, 4000, 1)), 2 * normal((4, 4000, 1)) + 1  # moved by half a standard deviation
    marginals.compare(["log sigma"], {"gp_mh": reference, "sgld_ulisse": other})
    printed = capsys.readouterr().out
    halves, moved = map(float, re.findall(r"W1/sd ([\d.]+)", printed))
    assert halves < 0.05
    assert moved == pytest.approx(0.5, abs=0.05)
    assert [float(ess) for ess in re.findall(r"ESS (\d+)", printed)] == pytest.approx([16_000, 16_000], rel=0.1)
    assert printed.count("R-hat median 1.000") == 2


def test_checkouts_are_compared_by_every_number_of_a_fit_but_seconds(bench, tmp_path):
    compare = bench("compare_checkouts")
    parts = {name: {"mean": np.arange(3.0), "seconds": np.ones(3)} for name in ("components", "chain", "trace")}
    arrays.write(tmp_path, parts)
    np.savez(tmp_path / "model.npz", mean=np.zeros(2))
    pd.DataFrame({"mean": [1.0], "seconds": [2.0]}).to_parquet(tmp_path / "points.parquet")
    before = compare.digest(tmp_path)
    assert before.keys() == {*parts, "model", "points"}
    for name in parts:
        other = parts[name] | {"mean": np.nextafter(np.arange(3.0), 9)}
        arrays.write(tmp_path, parts | {name: other})
        after = compare.digest(tmp_path)
        assert [part for part in before if before[part] != after[part]] == [name]
        arrays.write(tmp_path, parts | {name: parts[name] | {"seconds": np.zeros(3)}})
        assert compare.digest(tmp_path) == before


def test_what_stride_costs_is_measured(bench, monkeypatch, capsys):
    stride, timing = bench("stride"), bench("timing")
    for module, name, value in (
        (timing, "REPEATS", 1),
        (timing, "WARMUP", 0),
        (stride, "ROWS", (60, 90)),
        (stride, "TURNS", 1),
        (stride, "ROWS_LARGE", 200),
        (stride, "LARGE", stride.LARGE | {"num_inducing": 10, "particles": 2, "rank": 10}),
        (stride, "energy", lambda: (*stride.normal(70), stride.normal(10)[0])),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(stride, "chains", functools.partial(small_chains, stride.chains))
    for name in ("cost", "particles", "standard", "peak"):
        stride.BENCHES[name]()
    printed = capsys.readouterr().out
    assert re.search(r"aca +power of the rows .*\nsparse +power of the rows", printed)
    assert re.search(r"looped +[\d.]+ \[", printed)
    assert printed.count("standard") == 2
    assert "peak memory" in printed


def small_chains(chains, x, y, *module, **settings):
    small = {"num_inducing": 5, "rank": 5} | settings | {"particles": 50 if x.shape[1] == 700 else 2}
    return chains(x[:, :200], y[:, :200], *module, **small)


def test_what_solvers_cost_is_measured(bench, monkeypatch, capsys, tmp_path):
    solvers, timing = bench("solvers"), bench("timing")
    for module, name, value in (
        (timing, "REPEATS", 1),
        (timing, "WARMUP", 0),
        (solvers, "ROWS", 100),
        (solvers, "TURNS", 1),
        (solvers, "GRADIENT_ROWS", 120),
        (solvers, "GRADIENT_TURNS", 1),
        (solvers, "RANK", 10),
        (solvers, "SIZES", {"power": (100, 4)}),
    ):
        monkeypatch.setattr(module, name, value)
    prepared_project(tmp_path / "project", "diabetes")
    monkeypatch.setenv("GPBENCH_ROOT", str(tmp_path / "project"))
    for name, *words in (("product",), ("gradient",), ("gradient", "diabetes"), ("peak",)):
        solvers.BENCHES[name](*words)
    printed = capsys.readouterr().out
    assert re.search(r"of their rate\n.*GPyTorch.*gp_pcg.*Cholesky.*peak memory", printed, re.DOTALL)
    assert "gradient, 120 rows of 9 columns: ms" in printed
    assert "gradient, 120 rows of diabetes: ms" in printed


@pytest.mark.parametrize(
    ("name", "setting"),
    [("ELL-SS", 0), ("MH v2", 0), ("MH v1", 0), ("SMMALA", 0), ("HMC v2", 0), ("HMC v2", 1)],
)
def test_samplers_of_another_program_keep_the_prior_and_a_normal_posterior(bench, monkeypatch, name, setting):
    variance = bench("latent_variance")
    monkeypatch.setattr(variance, "BURN_IN", 200)
    rng = np.random.default_rng(0)
    # y = 1 with noise 1: N(1/2, 1/2) in every coordinate
    normal = variance.Likelihood(None, lambda y, f: -0.5 * (y - f) ** 2, lambda y, f: y - f, np.ones_like)
    target = variance.Target(normal, np.broadcast_to(np.eye(2), (200, 2, 2)), np.ones((200, 2)))
    _, sampler = variance.SAMPLERS[name][setting]
    chains = sampler(rng, rng.standard_normal((200, 2)), target)
    draws = np.stack([*itertools.islice(chains, 200, 700)])
    np.testing.assert_allclose(draws.mean((0, 1)), 0.5, atol=0.02)
    np.testing.assert_allclose(draws.var((0, 1)), 0.5, atol=0.02)


def test_the_other_estimate_is_that_of_the_autoregression_that_was_drawn(bench):
    """ESS = T (1 - a) / (1 + a) of x_t = a x_(t-1) + noise."""
    noise, a = np.random.default_rng(0).standard_normal(200_000), 0.9
    found = bench("latent_variance").autoregressive_ess(scipy.signal.lfilter([1.0], [1.0, -a], noise))
    np.testing.assert_allclose(found, len(noise) * (1 - a) / (1 + a), rtol=0.05)


def test_our_samplers_run_on_data_of_the_other_variance(bench, monkeypatch, capsys):
    variance = bench("printed_variance")
    latents = variance.simulated("lrg_100_2").targets[:, 1]
    np.testing.assert_allclose(variance.simulated("lrg_100_2").targets[:, -1], np.log(2.08))
    stated, *_ = latent_gp.strategies("lrg", 100, 2)[1].T[1:2]
    np.testing.assert_allclose(latents, stated * np.sqrt(2.08 / np.exp(2)), atol=1e-3)
    monkeypatch.setattr(variance, "RUN", "budget=smoke splits=1 replicas=2")
    monkeypatch.setattr(variance, "METHODS", {"filippone2013_latents": "elliptical"})
    variance.main(["lrg_100_2"])
    assert re.fullmatch(
        r" *lrg_100_2 +latents elliptical printed 1.605; [\d.]+ .*, R-hat [\d.]+\n", capsys.readouterr().out
    )


def test_hmc_is_tuned_to_the_acceptance_that_is_asked_for(bench, monkeypatch, capsys):
    acceptance = bench("hmc_acceptance")
    monkeypatch.setattr(acceptance, "RUN", "budget=smoke splits=1 replicas=2 only=[hmc_v2]")
    monkeypatch.setattr(acceptance, "TARGETS", (0.5, 0.99))
    asked = []

    def efficiency(cell, table):
        asked.append(Hamiltonian.target)
        return np.array([1.0, 2.0]), 1.0

    monkeypatch.setattr(acceptance, "efficiency", efficiency)
    acceptance.main(["lrg_100_2"])
    assert asked == [0.5, 0.99] * 2
    line = r" *lrg_100_2, variance [\w.()]+ *, acceptance 0\.(50|99): 1\.50 \(0\.71\), printed 20\.02\n"
    assert re.fullmatch(f"({line}){{4}}", capsys.readouterr().out)


def test_the_bound_of_the_scaled_sparse_gps_is_the_evidence_where_every_row_induces(bench):
    module, rng = bench("scaled_by_test"), np.random.default_rng(0)
    x, y, log = (torch.tensor(rng.normal(size=size)) for size in ((20, 2), 20, 3))
    covariance = module.covariance(x, x, log) + log[2].exp() * torch.eye(20, dtype=x.dtype)
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    with torch.no_grad():
        assert -module.negative_bound(x, y, x, log).item() == pytest.approx(evidence.item(), abs=1e-3)
        assert module.negative_bound(x, y, x[:5], log) > module.negative_bound(x, y, x, log)
