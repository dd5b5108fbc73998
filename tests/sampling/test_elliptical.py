"""Elliptical slice sampling against laws that are known, and chains side by side."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gpbench.sampling import diagnostics, elliptical

PRIOR_FACTOR = torch.linalg.cholesky(torch.tensor([[1.0, 0.8], [0.8, 2.0]], dtype=torch.float64))


def run(log_likelihood, chains: int, steps: int, seed: int = 0, size: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws `[chains, steps, size]` and tries `[chains, steps]` from f = 0 under N(0, L L^T) or N(0, I)."""
    generator = torch.Generator().manual_seed(seed)
    factor = PRIOR_FACTOR if size == 2 else torch.eye(size, dtype=torch.float64)
    f = torch.zeros(chains, size, dtype=torch.float64)
    value, draws, tries = log_likelihood(f), [], []
    for _ in range(steps):
        nu = torch.randn(f.shape, generator=generator, dtype=f.dtype) @ factor.T
        uniforms = torch.rand(chains, 1 + elliptical.MAX_TRIES, generator=generator, dtype=f.dtype)
        f, value, count = elliptical.step(f, log_likelihood, value, nu, uniforms)
        draws.append(f)
        tries.append(count)
    return torch.stack(draws, 1), torch.stack(tries, 1)


def test_a_constant_likelihood_returns_prior_samples():
    # every angle is accepted; successive draws are uncorrelated, as E[cos phi] = 0
    draws, tries = run(lambda f: f.new_zeros(len(f)), chains=4, steps=2500)
    assert (tries == 1).all()
    flat = draws.reshape(-1, 2).numpy()
    covariance = (PRIOR_FACTOR @ PRIOR_FACTOR.T).numpy()
    error = np.sqrt(np.diag(covariance) / len(flat))
    assert (np.abs(flat.mean(0)) < 4 * error).all()
    np.testing.assert_allclose(np.cov(flat.T), covariance, atol=4 * 2 * math.sqrt(2 / len(flat)))
    for column, variance in zip(flat.T, np.diag(covariance), strict=True):
        # every tenth: the KS test takes draws for independent, and their squares are not quite
        assert stats.kstest(column[::10] / math.sqrt(variance), "norm").pvalue > 0.01


def test_a_gaussian_likelihood_gives_the_analytic_posterior():
    y, noise = torch.tensor([1.0, -1.0], dtype=torch.float64), torch.tensor([0.5, 0.1], dtype=torch.float64)
    prior = PRIOR_FACTOR @ PRIOR_FACTOR.T
    gain = prior @ torch.linalg.inv(prior + noise.diag())
    mean, covariance = (gain @ y).numpy(), (prior - gain @ prior).numpy()
    draws, tries = run(lambda f: -0.5 * ((f - y).square() / noise).sum(-1), chains=8, steps=1500)
    kept = draws[:, 100:].numpy()
    assert tries.double().mean() > 1.5
    # standard errors from the effective sample sizes: sd / sqrt(ESS) of the mean of any quantity
    centred = kept - mean
    quantities = np.stack([*np.moveaxis(centred, -1, 0), centred[..., 0] ** 2, centred[..., 1] ** 2, centred.prod(-1)])
    expected = [0, 0, covariance[0, 0], covariance[1, 1], covariance[0, 1]]
    ess = diagnostics.summary(np.moveaxis(quantities, 0, -1))["ess_bulk"]
    error = quantities.reshape(5, -1).std(1) / np.sqrt(ess)
    assert (ess > 1000).all()
    assert (np.abs(quantities.mean((1, 2)) - expected) < 4 * error).all()


def test_the_posterior_is_left_invariant_by_one_transition():
    # a likelihood with two far modes, exp(-(|f| - 2)^2 / 0.1): start from exact draws (by rejection), move once
    def log_likelihood(f):
        return -10 * (f[:, 0].abs() - 2).square()

    rng = np.random.default_rng(0)
    prior = rng.standard_normal(60_000)
    exact = prior[rng.random(60_000) < np.exp(-10 * (np.abs(prior) - 2) ** 2)]
    f = torch.from_numpy(exact)[:, None]
    nu, uniforms = torch.from_numpy(rng.standard_normal(f.shape)), torch.from_numpy(rng.random((len(f), 65)))
    moved, value, _ = elliptical.step(f, log_likelihood, log_likelihood(f), nu, uniforms)
    assert (moved != f).all()
    torch.testing.assert_close(value, log_likelihood(moved), rtol=0, atol=0)
    fresh = rng.standard_normal(60_000)
    other = fresh[rng.random(60_000) < np.exp(-10 * (np.abs(fresh) - 2) ** 2)]
    assert stats.ks_2samp(moved[:, 0].numpy(), other).pvalue > 0.01
    # both modes are reached in one transition, in both directions alike (detailed balance)
    up, down = (int(((f[:, 0] * sign < 0) & (moved[:, 0] * sign > 0)).sum()) for sign in (1, -1))
    assert up > 100
    assert abs(up - down) < 4 * math.sqrt(up + down)


def test_chains_do_not_depend_on_each_other():
    generator = torch.Generator().manual_seed(3)
    f, nu = (torch.randn(6, 3, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    uniforms = torch.rand(6, 1 + elliptical.MAX_TRIES, generator=generator, dtype=torch.float64)

    def log_likelihood(f):
        return -5 * (f - 1).square().sum((1, 2))

    together = elliptical.step(f, log_likelihood, log_likelihood(f), nu, uniforms)
    assert len(set(together[2].tolist())) > 2  # they need unlike numbers of tries
    for r in range(6):
        one = slice(r, r + 1)
        alone = elliptical.step(f[one], log_likelihood, log_likelihood(f[one]), nu[one], uniforms[one])
        for batched, looped in zip(together, alone, strict=True):
            torch.testing.assert_close(batched[one], looped, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chains_that_cannot_move_stay_and_end(dtype):
    # chain 0 has lost its likelihood, chain 1 meets NaN everywhere but where it stands, chain 2 is well
    f = torch.tensor([[1.0], [1.0], [1.0]], dtype=dtype)
    bad = torch.tensor([True, True, False])

    def log_likelihood(f):
        return torch.where(bad, torch.nan, -f[:, 0].square())

    value = torch.tensor([torch.nan, -1.0, -1.0], dtype=dtype)
    uniforms = torch.rand(3, 1 + elliptical.MAX_TRIES, generator=torch.Generator().manual_seed(0), dtype=dtype)
    moved, new_value, tries = elliptical.step(f, log_likelihood, value, torch.full_like(f, 0.3), uniforms)
    assert moved.dtype == dtype
    assert moved[:2].tolist() == [[1.0], [1.0]]
    assert new_value[0].isnan()
    assert new_value[1] == -1
    assert moved[2] != 1
    assert tries[0] == 0
    assert tries[1] == elliptical.MAX_TRIES


def test_after_rejections_the_bracket_closes_around_the_state():
    # nothing but f itself is good enough: by the last try the proposal is nowhere else
    seen = []

    def log_likelihood(f):
        seen.append(f)
        return torch.full_like(f[:, 0], -math.inf)

    f, nu = torch.ones(200, 1, dtype=torch.float64), torch.zeros(200, 1, dtype=torch.float64)
    uniforms = torch.rand(200, 1 + elliptical.MAX_TRIES, generator=torch.Generator().manual_seed(0), dtype=f.dtype)
    moved, value, tries = elliptical.step(f, log_likelihood, f.new_zeros(200), nu, uniforms)
    assert torch.equal(moved, f)
    assert (tries == elliptical.MAX_TRIES).all()
    assert (value == 0).all()
    assert len(seen) == elliptical.MAX_TRIES
    assert (seen[-1] - f).abs().max() < 1e-9
