"""HMC against laws that are known: reversible, volume-preserving, second order; its chains side by side; Geweke."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gpbench.sampling import hmc

F64 = torch.float64


banana = hmc.differentiated(
    lambda w: -0.5 * w[:, 0].square() - 2 * (w[:, 1] - w[:, 0].square()).square() - w[:, 2].cosh()
)
"""Neither Gaussian nor the same along every coordinate."""


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def test_the_leapfrog_is_reversible():
    start, momentum = banana(normals(6, 3)), normals(6, 3, seed=1)
    size = torch.tensor([0.01, 0.02, 0.05, 0.1, 0.1, 0.05], dtype=F64)
    leapfrogs = torch.tensor([1, 7, 20, 13, 5, 2])
    end, final = hmc.integrate(start, momentum, banana, size, leapfrogs)
    assert ((end.position - start.position).abs().amax(1) > 1e-3).all()
    back, reversed_momentum = hmc.integrate(end, -final, banana, size, leapfrogs)
    torch.testing.assert_close(back.position, start.position, rtol=0, atol=1e-10)
    torch.testing.assert_close(reversed_momentum, -momentum, rtol=0, atol=1e-10)


def test_the_leapfrog_keeps_volumes():
    def flow(state):
        # value and gradient written out, as the flow itself is differentiated
        def at(w):
            gradient = torch.stack([-w[:, 0] - 4 * w[:, 0] * w[:, 1].square(), -4 * w[:, 0].square() * w[:, 1]], 1)
            return hmc.Point(w, w[:, 0], gradient)

        position, momentum = state[None, :2], state[None, 2:]
        size, leapfrogs = torch.tensor([0.3], dtype=F64), torch.tensor([5])
        end, final = hmc.integrate(at(position), momentum, at, size, leapfrogs)
        return torch.cat([end.position, final], 1)[0]

    jacobian = torch.autograd.functional.jacobian(flow, normals(4))
    assert (jacobian - torch.eye(4, dtype=F64)).abs().max() > 0.5
    assert float(torch.linalg.det(jacobian)) == pytest.approx(1, abs=1e-12)


def test_the_energy_error_falls_with_the_square_of_the_step():
    start, momentum = banana(0.5 * normals(1, 3)), normals(1, 3, seed=1)

    def energy(point, momentum):
        return float(0.5 * momentum.square().sum() - point.value)

    errors = []
    for steps in (20, 40, 80, 160):
        size, leapfrogs = torch.tensor([1.0 / steps], dtype=F64), torch.tensor([steps])
        errors.append(energy(*hmc.integrate(start, momentum, banana, size, leapfrogs)) - energy(start, momentum))
    assert abs(errors[0]) > 1e-5
    ratios = np.array(errors[:-1]) / np.array(errors[1:])
    np.testing.assert_allclose(ratios, 4, rtol=0.1)
    assert ratios[-1] == pytest.approx(4, rel=0.01)


def test_a_gaussian_has_its_moments():
    # 2,000 independent chains from far away; at the end independent draws, but for the bias of 60 transitions
    factor = torch.linalg.cholesky(torch.tensor([[1.0, 0.8], [0.8, 2.0]], dtype=F64))
    covariance = factor @ factor.T
    gaussian = hmc.differentiated(lambda w: -0.5 * (w @ torch.linalg.inv(covariance) * w).sum(1))
    rng, chains = np.random.default_rng(0), 2000
    point = gaussian(torch.full((chains, 2), 3.0, dtype=F64))
    size, accepted = torch.full((chains,), 0.7, dtype=F64), []
    for _ in range(60):
        momentum, uniforms = (
            torch.from_numpy(rng.standard_normal((chains, 2))),
            torch.from_numpy(rng.random((2, chains))),
        )
        leapfrogs = hmc.draw_leapfrogs(uniforms[0], torch.full((chains,), 4.0))
        point, probability = hmc.step(point, gaussian, momentum, uniforms[1], size, leapfrogs)
        accepted.append(float(probability.mean()))
    assert 0.5 < np.mean(accepted) < 0.98  # the test is at work
    draws = point.position.numpy()
    assert (np.abs(draws.mean(0)) < 4 * np.sqrt(np.diag(covariance) / chains)).all()
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=4 * 2 * math.sqrt(2 / chains))


def two_modes(w):
    return -10 * (w[:, 0].abs() - 1).square()


def exact_draws(rng, count):
    """Draws of exp(-10 (|w| - 1)^2) by rejection from N(+-1, 1/20)."""
    w = 1 + rng.standard_normal(count) / math.sqrt(20)
    return (w[w > 0] * rng.choice([-1, 1], (w > 0).sum()))[:, None]


def test_exact_draws_stay_exact_and_moves_balance():
    # a step so long that half of the proposals are refused: without the Metropolis test the law would change
    rng = np.random.default_rng(0)
    start = torch.from_numpy(exact_draws(rng, 40_000))
    point, chains = hmc.differentiated(two_modes)(start), len(start)
    size = torch.full((chains,), 0.4, dtype=F64)
    momentum, uniforms = torch.from_numpy(rng.standard_normal((chains, 1))), torch.from_numpy(rng.random((2, chains)))
    leapfrogs = hmc.draw_leapfrogs(uniforms[0], torch.full((chains,), 3.0))
    moved, probability = hmc.step(point, hmc.differentiated(two_modes), momentum, uniforms[1], size, leapfrogs)
    assert 0.3 < float(probability.mean()) < 0.8
    torch.testing.assert_close(moved.value, two_modes(moved.position), rtol=0, atol=0)
    assert stats.ks_2samp(moved.position[:, 0].numpy(), exact_draws(rng, 40_000)[:, 0]).pvalue > 0.01
    # detailed balance: as many go from bin i to bin j as from j to i
    edges = [-1.3, -1.0, -0.7, 0, 0.7, 1.0, 1.3]
    before, after = (np.digitize(w[:, 0].numpy(), edges) for w in (start, moved.position))
    flows = np.zeros((8, 8))
    np.add.at(flows, (before, after), 1)
    pairs = [(flows[i, j], flows[j, i]) for i in range(8) for j in range(i) if flows[i, j] + flows[j, i] > 25]
    assert len(pairs) > 10
    statistic = sum((a - b) ** 2 / (a + b) for a, b in pairs)
    assert stats.chi2.sf(statistic, len(pairs)) > 0.01


def test_a_random_walk_leaves_exact_draws_exact():
    rng = np.random.default_rng(1)
    start = torch.from_numpy(exact_draws(rng, 40_000))
    jump, uniform = torch.from_numpy(0.7 * rng.standard_normal(start.shape)), torch.from_numpy(rng.random(len(start)))
    moved, value, probability = hmc.random_walk(start, two_modes(start), two_modes, jump, uniform)
    assert 0.2 < float(probability.mean()) < 0.8
    torch.testing.assert_close(value, two_modes(moved), rtol=0, atol=0)
    assert stats.ks_2samp(moved[:, 0].numpy(), exact_draws(rng, 40_000)[:, 0]).pvalue > 0.01


def test_chains_do_not_depend_on_each_other():
    start, momentum = normals(5, 3), normals(5, 3, seed=1)
    uniform = torch.tensor([0.1, 0.9, 0.5, 0.2, 0.7], dtype=F64)
    size, leapfrogs = torch.tensor([0.05, 0.3, 0.9, 0.2, 0.1], dtype=F64), torch.tensor([3, 9, 1, 12, 5])
    together, probabilities = hmc.step(banana(start), banana, momentum, uniform, size, leapfrogs)
    assert 0 < int((together.position == start).all(1).sum()) < 5  # some are refused, some are not
    for r in range(5):
        one = slice(r, r + 1)
        alone, probability = hmc.step(
            banana(start[one]), banana, momentum[one], uniform[one], size[one], leapfrogs[one]
        )
        torch.testing.assert_close(probabilities[one], probability, rtol=1e-12, atol=1e-12)
        for batched, looped in zip(together, alone, strict=True):
            torch.testing.assert_close(batched[one], looped, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_trajectory_that_diverges_is_rejected(dtype):
    # a log density of NaN to the right of 1; chain 1 gets there, chain 2 is lost from the beginning
    beyond = hmc.differentiated(lambda w: torch.where(w[:, 0] > 1, torch.nan, -0.5 * w[:, 0].square()))
    position = torch.tensor([[0.0], [0.0], [torch.nan]], dtype=dtype)
    momentum = torch.tensor([[0.1], [5.0], [0.0]], dtype=dtype)
    ones = torch.ones(3, dtype=dtype)
    point, probability = hmc.step(beyond(position), beyond, momentum, 0.5 * ones, 0.5 * ones, torch.tensor([4, 4, 4]))
    assert point.position.dtype == dtype
    assert point.position[0] != 0
    assert point.position[1] == point.value[1] == 0
    assert point.position[2].isnan()
    assert probability[1:].tolist() == [0, 0]


def test_numbers_of_steps_are_uniform():
    uniform = (torch.arange(1000, dtype=F64) + 0.5) / 1000
    drawn = hmc.draw_leapfrogs(uniform, torch.full((1000,), 4.0))
    assert torch.bincount(drawn).tolist() == [0, 250, 250, 250, 250]
    assert hmc.draw_leapfrogs(torch.ones(1), torch.full((1,), 4.0)).tolist() == [4]  # a normal of 6 in single precision


def test_getting_it_right():
    """geweke2004: theta ~ N(0, 1), f ~ N(0, e^theta), y ~ N(f, 1); a transition given y, then y anew. Chains start from
    exact draws and are independent, so each average over a chain is one observation, however correlated within."""
    rng, chains, steps = np.random.default_rng(0), 3000, 12
    theta, f = rng.standard_normal((2, chains))
    f = f * np.exp(theta / 2)
    w = torch.from_numpy(np.stack([theta, f], 1))
    size, seen = torch.full((chains,), 0.6, dtype=F64), []
    for _ in range(steps):
        y = w[:, 1] + torch.from_numpy(rng.standard_normal(chains))
        seen.append(bounded(w[:, 0], w[:, 1], y))

        @hmc.differentiated
        def posterior(w, y=y):
            theta, f = w.unbind(1)
            return -0.5 * (theta.square() + f.square() / theta.exp() + theta + (y - f).square())

        uniforms = torch.from_numpy(rng.random((2, chains)))
        leapfrogs = hmc.draw_leapfrogs(uniforms[0], torch.full((chains,), 3.0))
        momentum = torch.from_numpy(rng.standard_normal((chains, 2)))
        point, _ = hmc.step(posterior(w), posterior, momentum, uniforms[1], size, leapfrogs)
        w = point.position
    simulated = torch.stack(seen[1:]).mean(0)  # [functions, chains]
    theta, f, noise = rng.standard_normal((3, 200_000))
    f = f * np.exp(theta / 2)
    direct = bounded(*(torch.from_numpy(part) for part in (theta, f, f + noise)))
    error = (simulated.var(1) / chains + direct.var(1) / direct.shape[1]).sqrt()
    z = ((simulated.mean(1) - direct.mean(1)) / error).abs()
    assert float(z.max()) < stats.norm.isf(0.005 / len(z)), z


def bounded(theta, f, y):
    """Test functions of the joint law, none of which has a tail `[functions, R]`."""
    u, h = torch.special.ndtr(theta), torch.tanh(f)
    return torch.stack([u, u.square(), h, h.square(), torch.tanh(y), u * h.square(), h * torch.tanh(y), y.abs().tanh()])
