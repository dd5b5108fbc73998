"""pCN: the prior alone, its exact invariance, the linear-Gaussian posterior, step sizes."""

import pytest
import torch

from gpbench.sampling import pcn


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(log_likelihood, start, size, steps, seed=1):
    """Positions `[steps, R, S, k, w]` and the mean acceptance of a chain of one tensor."""
    generator = torch.Generator().manual_seed(seed)
    position, value = [start], log_likelihood([start])
    kept, accepted = [], []
    for _ in range(steps):
        z = torch.randn(start.shape, generator=generator, dtype=start.dtype)
        uniform = torch.rand(start.shape[:2], generator=generator, dtype=start.dtype)
        position, value, moved = pcn.step(position, value, log_likelihood, [z], uniform, size)
        kept.append(position[0])
        accepted.append(moved)
    return torch.stack(kept), torch.stack(accepted).double().mean()


def flat(position):
    return torch.zeros(position[0].shape[:2], dtype=position[0].dtype)


def test_without_a_likelihood_every_step_is_accepted_and_the_prior_stays():
    beta, start = 0.5, normals(1, 2000, 1, 1)
    draws, accepted = run(flat, start, torch.full((1, 2000), beta, dtype=start.dtype), 60)
    assert accepted == 1
    later = draws[-1].flatten()
    assert abs(later.mean().item()) < 4 / 2000**0.5
    assert abs(later.var().item() - 1) < 4 * (2 / 2000) ** 0.5
    lag = (draws[1:] * draws[:-1]).mean().item()
    assert lag == pytest.approx((1 - beta**2) ** 0.5, abs=0.02)


def test_steps_of_one_are_draws_from_the_prior():
    start, z = normals(1, 3, 4, 2), normals(1, 3, 4, 2, seed=5)
    one = torch.ones(1, 3, dtype=start.dtype)
    (moved,), _, _ = pcn.step([start], one * 0, flat, [z], one / 2, one)
    assert torch.equal(moved, z)


def test_a_gaussian_posterior_is_found():
    """y = u + e with u = C xi scalar per row: mean and variance of the exact GP."""
    x = torch.linspace(-1, 1, 4, dtype=torch.float64)
    k = torch.exp(-0.5 * (x[:, None] - x).square() / 0.25)
    c, y, noise = torch.linalg.cholesky(k), torch.tensor([1.0, 0.2, -0.5, 0.3], dtype=torch.float64), 0.3

    def log_likelihood(position):
        return -0.5 * (y - (c @ position[0])[..., 0]).square().sum(-1) / noise

    start = normals(1, 400, 4, 1)
    draws, _ = run(log_likelihood, start, torch.full((1, 400), 0.6, dtype=start.dtype), 500)
    u = (c @ draws[100:])[..., 0]
    gain = k @ torch.linalg.inv(k + noise * torch.eye(4))
    torch.testing.assert_close(u.mean((0, 1, 2)), gain @ y, rtol=0, atol=0.02)
    torch.testing.assert_close(u.var((0, 1, 2)), (k - gain @ k).diagonal(), rtol=0.05, atol=0)


def test_chains_batched_are_chains_alone():
    y = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64)

    def log_likelihood(position):
        return -((y - position[0][..., 0]) ** 2).sum(-1)

    start, z, uniform = normals(2, 3, 3, 1), normals(2, 3, 3, 1, seed=2), torch.rand(2, 3, dtype=torch.float64)
    size = torch.tensor([[0.1, 0.5, 0.9], [0.3, 0.7, 1.0]], dtype=torch.float64)
    (both,), value, _ = pcn.step([start], log_likelihood([start]), log_likelihood, [z], uniform, size)
    for r in range(2):
        for s in range(3):
            one = (slice(r, r + 1), slice(s, s + 1))
            (alone,), alone_value, _ = pcn.step(
                [start[one]], log_likelihood([start[one]]), log_likelihood, [z[one]], uniform[one], size[one]
            )
            assert torch.equal(alone, both[one])
            assert torch.equal(alone_value, value[one])


def test_a_proposal_of_nan_is_rejected():
    start = normals(1, 1, 2, 1)
    one = torch.ones(1, 1, dtype=start.dtype)
    (moved,), value, accepted = pcn.step([start], one, lambda p: one * torch.nan, [start], one / 2, one / 2)
    assert torch.equal(moved, start)
    assert (value.item(), accepted.item()) == (1.0, False)


def test_step_sizes_follow_the_acceptance_up_to_one():
    size = torch.tensor([0.1, 0.1, 0.9], dtype=torch.float64)
    found = pcn.adapt(size, torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64))
    assert found.tolist() == pytest.approx([0.125, 0.08, 1.0])
