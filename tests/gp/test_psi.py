"""Psi statistics against Monte Carlo, their limits and one another."""

import numpy as np
import pytest
import torch

from gpbench.gp import kernels, psi

MEAN, VARIANCE = torch.tensor([[[0.3, -0.4]]]).double(), torch.tensor([[[0.2, 0.5]]]).double()
INDUCING = torch.tensor([[[0.0, 0.0], [1.0, -1.0]]]).double()
LENGTHSCALE, OUTPUTSCALE = torch.tensor([[0.8, 1.5]]).double(), torch.tensor([1.7]).double()
WEIGHTS = torch.tensor([[[0.5], [-1.0]]]).double()
ARGUMENTS = (MEAN, VARIANCE, INDUCING, LENGTHSCALE, OUTPUTSCALE)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape))


def problem(replicas: int = 2, rows: int = 5, num_inputs: int = 3, num_inducing: int = 4, outputs: int = 2):
    """mean, variance, inducing_inputs, lengthscale, outputscale, a, b, weights"""
    shapes = [(rows, num_inputs), (rows, num_inputs), (num_inducing, num_inputs), (num_inputs,), ()]
    mean, variance, z, lengthscale, outputscale = (random(replicas, *s, seed=k) for k, s in enumerate(shapes))
    a, root = random(replicas, num_inducing, outputs, seed=5), random(replicas, outputs, num_inducing, 3, seed=6)
    b = 0.1 * root @ root.mT + a.mT[..., None] * a.mT[..., None, :]
    positive = variance.square(), lengthscale.square() + 0.5, outputscale.square() + 0.5
    return mean, positive[0], z, positive[1], positive[2], a, b, random(replicas, num_inputs, outputs, seed=7)


def samples(count: int = 400_000) -> tuple[np.ndarray, np.ndarray]:
    """x `[S, 2]` of the example, and k(x, Z) `[S, 2]`, by NumPy."""
    x = MEAN[0, 0].numpy() + VARIANCE[0, 0].sqrt().numpy() * np.random.default_rng(0).normal(size=(count, 2))
    scaled = (x[:, None] - INDUCING[0].numpy()) / LENGTHSCALE[0].numpy()
    return x, 1.7 * np.exp(-0.5 * (scaled**2).sum(-1))


def assert_within_error(value: torch.Tensor, draws: np.ndarray) -> None:
    """To five standard errors of the mean of draws `[S, ...]`."""
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(value.numpy() - draws.mean(0)) < 5 * error).all()


def test_statistics_of_the_example():
    # golden: closed forms evaluated apart from this program and checked there by 4e6 Monte Carlo samples, six decimals
    np.testing.assert_allclose(psi.psi1(*ARGUMENTS)[0, 0], [1.235732, 0.939136], atol=1e-6)
    expected = [[1.646861, 1.095670], [1.095670, 1.054131]]
    np.testing.assert_allclose(psi.psi2(*ARGUMENTS)[0, 0], expected, atol=1e-6)
    np.testing.assert_allclose(psi.psi3(MEAN, VARIANCE, WEIGHTS), 0.8525, atol=1e-12)
    np.testing.assert_allclose(psi.psi4(*ARGUMENTS, WEIGHTS)[0, 0, :, 0], [0.545648, 0.697237], atol=1e-6)


def test_statistics_are_expectations():
    x, k = samples()
    linear = x @ WEIGHTS[0].numpy()
    assert_within_error(psi.psi1(*ARGUMENTS)[0, 0], k)
    assert_within_error(psi.psi2(*ARGUMENTS)[0, 0], k[:, :, None] * k[:, None])
    assert_within_error(psi.psi3(MEAN, VARIANCE, WEIGHTS)[0, 0], linear**2)
    assert_within_error(psi.psi4(*ARGUMENTS, WEIGHTS)[0, 0], k[:, :, None] * linear[:, None])


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_moments_are_those_of_draws_through_a_layer(weights):
    """u ~ N(m, S); f given u and x is N(w^T x + k^T K^-1 u, k(x, x) - k^T K^-1 k)."""
    rng = np.random.default_rng(1)
    x, k = samples()
    kzz = kernels.rbf(INDUCING, INDUCING, LENGTHSCALE, OUTPUTSCALE)[0].numpy()
    m, root = np.array([0.7, -1.1]), np.array([[0.5, 0.0], [0.2, 0.3]])
    u = m + rng.normal(size=x.shape) @ root.T
    solved = np.linalg.solve(kzz, k.T).T
    f = (solved * u).sum(-1) + np.sqrt(1.7 - (solved * k).sum(-1)) * rng.normal(size=len(x))
    f = f if weights is None else f + x @ weights[0, :, 0].numpy()
    inverse = np.linalg.inv(kzz)
    a = inverse @ m
    b = inverse @ (root @ root.T - kzz) @ inverse + np.outer(a, a)
    mean, variance = psi.moments(*ARGUMENTS, *map(torch.as_tensor, (a[None, :, None], b[None, None])), weights)
    assert_within_error(mean[0, 0], f[:, None])
    assert_within_error(variance[0, 0], (f[:, None] - f.mean()) ** 2)


@pytest.mark.parametrize("isotropic", [False, True])
def test_moments_agree_with_the_statistics(isotropic):
    mean, variance, z, lengthscale, outputscale, a, b, weights = problem()
    lengthscale = lengthscale[:, :1] if isotropic else lengthscale
    layer = (mean, variance, z, lengthscale, outputscale)
    first = mean @ weights + psi.psi1(*layer) @ a
    second = outputscale[:, None, None] + psi.psi3(mean, variance, weights)
    second = second + 2 * torch.einsum("rbmq,rmq->rbq", psi.psi4(*layer, weights), a)
    second = second + torch.einsum("rbmn,rqmn->rbq", psi.psi2(*layer), b)
    ours = psi.moments(*layer, a, b, weights)
    torch.testing.assert_close(ours, (first, (second - first.square()).clamp_min(0)), rtol=1e-11, atol=1e-11)


def test_one_lengthscale_is_as_many_equal_ones():
    mean, variance, z, _, outputscale, *_ = problem()
    lengthscale = torch.tensor([[0.7], [1.3]]).double()
    for statistic in (psi.psi1, psi.psi2):
        one = statistic(mean, variance, z, lengthscale, outputscale)
        torch.testing.assert_close(one, statistic(mean, variance, z, lengthscale.expand(2, 3), outputscale))


def test_known_inputs_give_the_kernel():
    mean, variance, z, lengthscale, outputscale, *_, weights = problem()
    layer = (mean, torch.zeros_like(variance), z, lengthscale, outputscale)
    k = kernels.rbf(mean, z, lengthscale, outputscale)
    torch.testing.assert_close(psi.psi1(*layer), k)
    torch.testing.assert_close(psi.psi2(*layer), k[..., None] * k[:, :, None])
    torch.testing.assert_close(psi.psi4(*layer, weights), k[..., None] * (mean @ weights)[:, :, None])


def test_covariance_of_the_kernel_is_not_negative():
    mean, variance, z, lengthscale, outputscale, *_ = problem(rows=20)
    first = psi.psi1(mean, variance, z, lengthscale, outputscale)
    covariance = psi.psi2(mean, variance, z, lengthscale, outputscale) - first[..., None] * first[:, :, None]
    assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-12


def test_blocks_of_rows_change_nothing(monkeypatch):
    arguments = [value.requires_grad_() for value in problem(rows=7)]

    def value_and_gradient():
        value = torch.cat(psi.moments(*arguments))
        return value, *torch.autograd.grad(value.square().sum(), arguments)

    whole = value_and_gradient()
    monkeypatch.setattr(psi, "CHUNK_ROWS", 2)
    monkeypatch.setattr(psi, "CHUNK_ELEMENTS", 6)  # two rows of three pairs
    torch.testing.assert_close(value_and_gradient(), whole, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("linear", [False, True])
def test_gradient_agrees_with_finite_differences(linear):
    *arguments, weights = [value.requires_grad_() for value in problem()]
    assert torch.autograd.gradcheck(psi.moments, [*arguments, weights if linear else None])


def test_replicas_do_not_mix():
    arguments = problem(replicas=3)
    together = torch.stack(psi.moments(*arguments))
    for r in range(3):
        alone = torch.stack(psi.moments(*(value[r : r + 1] for value in arguments)))
        assert torch.equal(together[:, r : r + 1], alone)


def test_psi2_sum_is_the_weighted_sum_of_psi2():
    *arguments, _, _, _ = problem()
    weight = random(2, 5, seed=8).square()
    weight[1, -1] = 0  # padding
    expected = (psi.psi2(*arguments) * weight[..., None, None]).sum(1)
    torch.testing.assert_close(psi.psi2_sum(*arguments, weight), expected, rtol=1e-12, atol=1e-12)
    leaves = [part.requires_grad_() for part in (*arguments, weight)]
    assert torch.autograd.gradcheck(psi.psi2_sum, leaves)
