"""The two-layer deep GP whose noise variance is sampled: its law by Geweke's test and on a grid, its predictions."""

import math

import numpy as np
import pytest
import torch
from gp_cases import keys, noise_size, split
from mcmc_cases import bumps, chains, method, run
from scipy import stats

from gpbench.methods import dgp_mcmc
from gpbench.methods.base import State
from gpbench.sampling import diagnostics
from gpbench.sampling.elliptical import MAX_TRIES

NOISE = dgp_mcmc.NOISE
CHAINS, ROWS = 3000, 3


def drawn_y(state: State, rng: np.random.Generator) -> torch.Tensor:
    """y ~ N(0, K2 + noise_variance I) given F1 and the noise variance, `[R, n]`."""
    chol, _ = dgp_mcmc.top_posterior(state.params["v"], state.buffers | state.params)
    normal = torch.from_numpy(rng.standard_normal(state.params["v"].shape))
    return (chol @ normal[..., None])[..., 0]


def largest_z(m, steps: int) -> float:
    """geweke2004: a transition given y, then y anew; chains start from exact draws, so that v stays N(0, I) and the
    noise variance Gamma(1, 1). The largest error of averages over chains, in standard errors, over test functions."""
    rng, data = np.random.default_rng(1), bumps(ROWS, [list(range(ROWS))] * CHAINS)
    batch, state = data.full(), chains(data, noise="sampled")
    state.params["v"] = torch.from_numpy(rng.standard_normal((CHAINS, ROWS)))
    state.params[NOISE] = torch.from_numpy(np.log(rng.gamma(1.0, size=CHAINS)))
    seen = []
    for step in range(steps):
        state.buffers["y"] = drawn_y(state, rng)
        state.memory["log_likelihood"] = dgp_mcmc.log_likelihood(state.params["v"], state.buffers | state.params)
        noise = torch.from_numpy(rng.standard_normal((CHAINS, noise_size(m, state, ROWS))))
        m.step(state, batch, split(m, state, batch, noise), step, steps)
        u, w = -torch.expm1(-state.params[NOISE].exp()), torch.special.ndtr(state.params["v"])
        seen.append(torch.stack([u, u**2, w[:, 0], w[:, 2], w[:, 1] ** 2, u * w[:, 0] ** 2, w[:, 0] * w[:, 1]]))
    averages = torch.stack(seen).mean(0)  # [functions, chains]
    expected = torch.tensor([1 / 2, 1 / 3, 1 / 2, 1 / 2, 1 / 3, 1 / 6, 1 / 4])  # of independent uniforms
    return float(((averages.mean(1) - expected).abs() / averages.std(1) * math.sqrt(CHAINS)).max())


def test_getting_it_right():
    limit = stats.norm.isf(0.005 / 7)
    assert largest_z(method(noise="sampled", noise_step=1.0), 12) < limit


def test_getting_it_right_finds_a_prior_without_its_jacobian(monkeypatch):
    monkeypatch.setattr(dgp_mcmc, "log_prior", lambda log_noise: -log_noise.exp())
    assert largest_z(method(noise="sampled", noise_step=1.0), 12) > 6


@pytest.mark.slow
def test_the_chain_samples_the_posterior_of_a_grid():
    # two rows, so that p(v, log noise_variance | y) can be summed over a grid
    m = method(noise="sampled", noise_step=1.5, num_samples=3000, burn_in=0.05)
    data = bumps(2, [[0, 1]] * 32)
    state = chains(data, noise="sampled")
    run(m, data, state, 1000)
    v, log_noise = (torch.stack(state.samples[name], 1) for name in ("v", NOISE))
    side, logs = torch.linspace(-5, 5, 61, dtype=torch.float64), torch.linspace(-12, 3, 91, dtype=torch.float64)
    points = torch.cartesian_prod(side, side, logs)
    one = {name: value[:1].expand(len(points), *value.shape[1:]) for name, value in state.buffers.items()}
    value = dgp_mcmc.log_likelihood(points[:, :2], one | {NOISE: points[:, 2]})
    prior = stats.loggamma(1.0).logpdf(points[:, 2].numpy())  # the logarithm of Gamma(1, 1)
    weight = (value - 0.5 * points[:, :2].square().sum(1) + torch.from_numpy(prior)).softmax(0)
    for function in (
        lambda v, log_noise: log_noise,
        lambda v, log_noise: log_noise.exp(),
        lambda v, log_noise: v[..., 1] ** 2,
        lambda v, log_noise: log_noise * v.prod(-1),
    ):
        expected = (weight * function(points[:, :2], points[:, 2])).sum().item()
        values = function(v, log_noise).numpy()
        error = values.std() / np.sqrt(diagnostics.summary(values)["ess_bulk"])
        assert abs(values.mean() - expected) < 4 * error


def test_what_the_chain_keeps_of_its_density_is_the_density():
    data, m = bumps(), method(noise="sampled")
    state = chains(data, noise="sampled")
    objective = run(m, data, state, 30)[0, -1]
    value = dgp_mcmc.log_likelihood(state.params["v"], state.buffers | state.params)
    torch.testing.assert_close(state.memory["log_likelihood"], value, rtol=1e-10, atol=1e-10)
    log_noise = state.params[NOISE][0]
    expected = value[0] - 0.5 * state.params["v"].square().sum() + log_noise - log_noise.exp()
    torch.testing.assert_close(-objective, expected, rtol=1e-10, atol=1e-10)


def test_each_kept_state_predicts_with_its_own_noise():
    data, m = bumps(), method(noise="sampled")
    state = chains(data, noise="sampled")
    v = state.params["v"]
    state.samples = {"v": [v, v], NOISE: [torch.tensor([-1.0]).double(), torch.tensor([-4.0]).double()]}
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)[None, :, None]
    together = m.predict(state, x, keys(1)[0])
    fixed = chains(data, noise_variance=math.exp(-1.0))
    fixed.samples = {"v": [v]}
    alone = method().predict(fixed, x, keys(1)[0])
    np.testing.assert_allclose(together.component_mean[0], alone.component_mean[0])
    np.testing.assert_allclose(together.component_variance[0], alone.component_variance[0])
    assert (together.component_variance[1] < together.component_variance[0]).all()


def test_the_walk_of_the_noise_has_its_step():
    state = chains(bumps(), noise="sampled")
    before = state.params[NOISE].clone()
    jump, accepted = torch.tensor([2.0]).double(), torch.tensor([-10.0]).double()
    method(noise="sampled", noise_step=0.05).step_noise(state, jump, accepted)
    torch.testing.assert_close(state.params[NOISE], before + 0.1)


@pytest.mark.parametrize(("noise", "normals"), [("fixed", 1 + MAX_TRIES), ("sampled", 3 + MAX_TRIES)])
def test_a_fixed_noise_takes_no_further_random_numbers(noise, normals):
    state = chains(bumps(), noise=noise)
    assert method(noise=noise).noise_shapes(state, 12, 0, 1).fixed == (normals,)
    assert (NOISE in state.params) is (noise == "sampled")
