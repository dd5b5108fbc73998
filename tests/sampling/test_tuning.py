"""Tuners: a step size of the acceptance asked for, settings of long jumps, and nothing learnt after burn-in."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gpbench.sampling import hmc
from gpbench.sampling.tuning import FIRST, LOG_STEP_SIZES, RUNS, DualAveraging, ExpectedJump, StepAndScale

F64 = torch.float64


def gaussian(scale: torch.Tensor):
    """N(0, scale^2 I) `[R]`."""
    variance = scale.square()
    return lambda w: hmc.Point(w, -0.5 * w.square().sum(1) / variance, -w / variance[:, None])


def run(tuner, steps: int, burn_in: int, scale, memory=None, first: int = 0, chain: int = 0):
    """Memory and mean probability of acceptance after burn-in `[R]`; the randomness belongs to (step, chain)."""
    scale = torch.tensor(scale, dtype=F64)
    density, w = gaussian(scale), torch.zeros(len(scale), 5, dtype=F64)
    memory = tuner.start(w) if memory is None else memory
    after = []
    for step in range(first, steps):
        rngs = [np.random.default_rng((step, chain + r)) for r in range(len(scale))]
        momentum = torch.from_numpy(np.stack([rng.standard_normal(5) for rng in rngs]))
        uniforms = torch.from_numpy(np.stack([rng.random(2) for rng in rngs], 1))
        size, most = tuner.settings(memory, step, burn_in)
        leapfrogs = hmc.draw_leapfrogs(uniforms[0], most)
        start = density(w)
        end, probability = hmc.step(start, density, momentum, uniforms[1], size, leapfrogs)
        memory = memory | tuner.learn(memory, step, burn_in, probability, end.position - start.position)
        w = end.position
        after += [probability] if step >= burn_in else []
    return memory, torch.stack(after).mean(0)


def test_dual_averaging_finds_the_step_size_of_every_chain():
    tuner = DualAveraging("hmc", 0.8, 0.05, leapfrogs=5)
    memory, accepted = run(tuner, 600, 300, [0.01, 1.0, 100.0])
    assert (accepted - 0.8).abs().max() < 0.08
    size, _ = tuner.settings(memory, 300, 300)
    np.testing.assert_allclose(size / torch.tensor([0.01, 1.0, 100.0], dtype=F64), size[1], rtol=0.15)
    assert tuner.learn(memory, 300, 300, accepted, accepted[:, None]) == {}


def test_scales_are_the_standard_deviations_of_each_chain_and_the_step_is_relative_to_them():
    sd = torch.tensor([[0.3, 1.0, 3.0], [2.0, 0.5, 1.0]], dtype=F64)
    tuner, w = StepAndScale("hmc", 0.8, 0.1, size=3), 0 * sd
    memory, rng, before = tuner.start(w), np.random.default_rng(0), []
    for step in range(480):
        scale, (size, _) = memory["hmc.scale"], tuner.settings(memory, step, 400)
        before.append(scale)
        density = hmc.differentiated(lambda z, s=scale: -0.5 * (z * s / sd).square().sum(1))
        momentum, uniform = torch.from_numpy(rng.standard_normal((2, 3))), torch.from_numpy(rng.random(2))
        start = density(w / scale)
        end, probability = hmc.step(start, density, momentum, uniform, size, torch.full((2,), 8))
        w = end.position * scale
        memory |= tuner.learn(memory, step, 400, probability, w)
    changes = [step for step in range(1, 480) if not torch.equal(before[step], before[step - 1])]
    assert changes == [100, 200, 350]
    assert (memory["hmc.scale"] / sd - 1).abs().max() < 0.4
    assert (tuner.settings(memory, 400, 400)[0] > 0.5).all()


def test_a_window_ends_with_shrunk_variances_and_a_step_size_learnt_anew():
    """Of 80 transitions the first windows are 0 to 9, 10 to 19 and 20 to 39; five draws of variance 1 are added."""
    tuner, rng = StepAndScale("hmc", 0.8, 0.1, size=2), np.random.default_rng(0)
    memory, seen = tuner.start(torch.zeros(1, 3, dtype=F64)), 0.02 * torch.from_numpy(rng.standard_normal((21, 1, 3)))
    for step in range(20):
        accepted = torch.tensor([rng.random()], dtype=F64)
        memory |= tuner.learn(memory, step, 80, accepted, seen[step])
    squares = (seen[10:20, :, :2] - seen[10:20, :, :2].mean(0)).square().sum(0)
    torch.testing.assert_close(memory["hmc.scale"], ((squares + 5) / 15).sqrt(), rtol=1e-9, atol=0)
    # hoffman2014 from the start, around ten times the step size so far
    known = float(tuner.settings(memory, 20, 80)[0])
    memory |= tuner.learn(memory, 20, 80, torch.tensor([0.3], dtype=F64), seen[20])
    expected = math.log(10 * known) - math.sqrt(1) / 0.05 * (0.8 - 0.3) / (1 + 10)
    assert float(tuner.settings(memory, 21, 80)[0]) == pytest.approx(math.exp(expected))


def test_dense_scales_are_a_factor_of_the_shrunk_covariance():
    tuner, rng = StepAndScale("walk", 0.25, 0.1, size=2, dense=True), np.random.default_rng(0)
    memory = tuner.start(torch.zeros(1, 3, dtype=F64))
    seen = torch.from_numpy(rng.standard_normal((20, 1, 3)) @ [[1.0, 0.8, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 1.0]])
    for step in range(20):
        memory |= tuner.learn(memory, step, 80, torch.ones(1, dtype=F64), seen[step])
    scale = memory["walk.scale"][0]
    expected = (9 * np.cov(seen[10:, 0, :2].T) + 5 * np.eye(2)) / 15
    np.testing.assert_allclose(scale @ scale.mT, expected)
    assert scale[0, 1] == 0


def test_transitions_beyond_runs_of_equal_length_change_nothing():
    """Of 40 in burn-in 30 are runs."""
    tuner = ExpectedJump("hmc", 6)
    memory, accepted = run(tuner, 41, 40, [1.0])
    for step in range(30, 40):
        assert tuner.learn(memory, step, 40, accepted, torch.ones(1, 5, dtype=F64)) == {}


def test_dual_averaging_follows_the_published_recursion():
    # hoffman2014, algorithm 5: gamma 0.05, t0 10, kappa 0.75, mu = log(10 e_0)
    tuner, rng = DualAveraging("hmc", 0.8, 0.3), np.random.default_rng(0)
    memory, error, averaged = tuner.start(torch.zeros(1, dtype=F64)), 0.0, math.log(0.3)
    for step in range(20):
        accepted = rng.random()
        t = step + 1
        error = (1 - 1 / (t + 10)) * error + (0.8 - accepted) / (t + 10)
        log_step = math.log(3.0) - math.sqrt(t) / 0.05 * error
        averaged = t**-0.75 * log_step + (1 - t**-0.75) * averaged
        memory = tuner.learn(memory, step, 20, torch.tensor([accepted], dtype=F64), torch.zeros(1, 1, dtype=F64))
        if step < 19:
            assert float(tuner.settings(memory, t, 20)[0]) == pytest.approx(math.exp(log_step))
    assert float(tuner.settings(memory, 20, 20)[0]) == pytest.approx(math.exp(averaged))


def test_long_jumps_are_found():
    # of N(0, 0.01^2) a step of 0.01 is long and one of 0.1 refused; of N(0, 1) the longest step tried is best
    tuner = ExpectedJump("hmc", 10)
    memory, accepted = run(tuner, 400, 300, [0.01, 1.0])
    size, most = tuner.settings(memory, 300, 300)
    assert 0.003 < size[0] < 0.02
    assert size[1] > 0.1
    assert (accepted > 0.3).all()
    trials = memory["hmc.trials"].numpy()
    assert (trials[:, :, 2] > 0).any(1).all()
    assert ((trials[:, :, 1] >= 1) & (trials[:, :, 1] <= 10)).all()
    for chain in range(2):  # one of the best stays, and is better than all of the spread
        kept = (trials[chain, :, :2] == memory["hmc.settings"][chain].numpy()).all(1)
        assert kept.any()
        assert trials[chain, kept, 2].mean() > 1.2 * trials[chain, :FIRST, 2].max()


def test_the_objective_of_a_run_is_its_mean_squared_jump_over_the_root_of_its_steps():
    """wang2013; of 60 transitions in runs of two, whose first have at most 1 and 5 steps."""
    tuner, jumps = ExpectedJump("hmc", 9), torch.from_numpy(np.random.default_rng(0).standard_normal((4, 1, 5)))
    memory, most = tuner.start(jumps[0]), []
    for step in range(4):
        most.append(float(tuner.settings(memory, step, 60)[1]))
        memory |= tuner.learn(memory, step, 60, torch.ones(1), jumps[step])
    assert most == [1, 1, 5, 5]
    squares = jumps.square().sum((1, 2)).reshape(2, 2).mean(1)
    torch.testing.assert_close(memory["hmc.trials"][0, :2, 2], squares / torch.tensor([1.0, 5.0]).double().sqrt())


@pytest.mark.parametrize("count", [5, 12])
def test_after_the_spread_the_largest_expected_improvement_is_tried(count):
    """E[max(y - best, 0)] under the GP, by quantiles of y."""
    tuner, rng = ExpectedJump("hmc", 3), np.random.default_rng(count)
    tried = np.stack([rng.choice(LOG_STEP_SIZES, count), rng.integers(1, 4, count)], 1)
    objective = np.exp(-np.square(tried[:, 0] + 2)) * tried[:, 1] + 0.1 * rng.standard_normal(count)
    grid = np.array([(size, steps) for size in LOG_STEP_SIZES for steps in (1.0, 2.0, 3.0)])
    unit = tuner._unit(grid)
    assert (unit.min(0).tolist(), unit.max(0).tolist()) == ([0, 0], [1, 1])
    mean, sd = tuner._surrogate(tried, objective).predict(unit, return_std=True)
    quantiles = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    gain = np.maximum(mean[:, None] + sd[:, None] * quantiles - objective.max(), 0).mean(1)
    for values in (objective, 100 + 50 * objective):  # in whatever unit
        assert tuner._choose(np.column_stack([tried, values]), last=False) == tuple(grid[gain.argmax()])


@pytest.mark.parametrize(("burn_in", "scaled"), [(39, False), (40, True)])
def test_scales_are_learnt_in_forty_transitions_or_more(burn_in, scaled):
    tuner = StepAndScale("hmc", 0.8, 0.1, size=1)
    memory = tuner.start(torch.zeros(1, 1, dtype=F64))
    for step in range(burn_in):
        memory |= tuner.learn(
            memory, step, burn_in, torch.ones(1, dtype=F64), torch.tensor([[9.0 * (step % 2)]]).double()
        )
    assert bool(memory["hmc.scale"] != 1) is scaled


def test_a_lucky_trial_does_not_stay():
    """Ten step sizes, each tried three times: the objective is best at the sixth, one run of the first was lucky."""
    tuner, rng = ExpectedJump("hmc", 1), np.random.default_rng(0)
    sizes = np.tile(np.linspace(-4, -0.5, 10), 3)
    objective = 1 - np.square(sizes - sizes[5]) + 0.05 * rng.standard_normal(30)
    objective[0] = objective.max() + 0.1
    chosen, _ = tuner._choose(np.stack([sizes, np.ones(30), objective], 1), last=True)
    assert abs(chosen - sizes[5]) < 0.5


def test_what_was_learnt_stays():
    tuner = ExpectedJump("hmc", 10)
    memory, accepted = run(tuner, 400, 300, [0.01, 1.0])
    assert tuner.learn(memory, 300, 300, accepted, accepted[:, None]) == {}


def test_the_first_runs_are_spread():
    tuner = ExpectedJump("hmc", 10)
    memory, _ = run(tuner, RUNS + 1, RUNS, [1.0])  # runs of one transition
    first = memory["hmc.trials"][0, :FIRST].numpy()
    assert np.ptp(first[:, 0]) > 0.7 * np.ptp(LOG_STEP_SIZES)
    assert sorted(first[:, 1]) == [1, 3, 5, 7, 10]


def test_chains_are_tuned_independently_and_resume():
    tuner, scale = ExpectedJump("hmc", 6), [0.1, 1.0]
    together, _ = run(tuner, 91, 90, scale)
    for r in range(2):
        alone, _ = run(tuner, 91, 90, scale[r : r + 1], chain=r)
        for name, value in alone.items():
            torch.testing.assert_close(value, together[name][r : r + 1], rtol=1e-9, atol=1e-12)
    trials = together["hmc.trials"][:1].numpy()[0]
    again = [tuner._choose(trials[:count], last=False) for count in (10, 20, 20)]
    assert [tuple(trials[10, :2]), tuple(trials[20, :2])] == again[:2]  # of the trials alone, whatever happened since
    assert again[1] == again[2]


def test_a_short_burn_in_has_fewer_runs():
    tuner = ExpectedJump("hmc", 6)
    memory, _ = run(tuner, 5, 3, [1.0])
    assert int((memory["hmc.trials"][0, :, 1] > 0).sum()) == 3
    unlearnt, _ = run(tuner, 2, 0, [1.0])
    torch.testing.assert_close(unlearnt["hmc.settings"], tuner.start(torch.zeros(1, 5, dtype=F64))["hmc.settings"])
