import numpy as np
import pytest
import torch

from gpbench.gp import linalg, natural

R, M, Q, RATE = 2, 4, 3, 0.3
RATES = torch.full((R,), RATE, dtype=torch.float64)


def start(dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and lower triangular factors; some diagonals are negative, which leaves the covariance as it is."""
    rng = np.random.default_rng(0)
    mean, chol = rng.normal(size=(R, M, Q)), np.tril(rng.normal(size=(R, Q, M, M)))
    return torch.as_tensor(mean, dtype=dtype), torch.as_tensor(chol, dtype=dtype)


def loss(mean: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """Of means `[R, Q, M]`; the KL divergence from N(0, I) and a convex function of both moments."""
    slopes = torch.linspace(-1, 1, M, dtype=mean.dtype)
    trace = covariance.diagonal(dim1=-2, dim2=-1)
    kl = 0.5 * (trace.sum() + mean.square().sum() - torch.logdet(covariance).sum())
    return kl + ((mean @ slopes).exp() + (covariance @ slopes @ slopes).square()).sum()


def gradients(mean: torch.Tensor, chol: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, chol = mean.clone().requires_grad_(), chol.clone().requires_grad_()
    lower = chol.tril()
    return torch.autograd.grad(loss(mean.mT, lower @ lower.mT), [mean, chol])


def test_it_is_a_gradient_step_of_the_natural_parameters():
    """theta <- theta - rate d loss / d eta, with eta = (m, S + m m^T) as the variables of autograd."""
    mean, chol = start()
    first = mean.mT.clone().requires_grad_()
    covariance = chol @ chol.mT
    second = (covariance + mean.mT[..., None] * mean.mT[..., None, :]).requires_grad_()
    value = loss(first, second - first[..., None] * first[..., None, :])
    by_first, by_second = torch.autograd.grad(value, [first, second])
    precision = torch.linalg.inv(covariance)
    natural_mean = (precision @ mean.mT[..., None])[..., 0] - RATE * by_first
    natural_precision = -0.5 * precision - RATE * by_second
    expected = torch.linalg.inv(-2 * natural_precision)
    new_mean, new_chol = natural.step(mean, chol, *gradients(mean, chol), RATES, "test")
    assert torch.equal(new_chol, new_chol.tril())
    torch.testing.assert_close(new_chol @ new_chol.mT, expected)
    torch.testing.assert_close(new_mean.mT, (expected @ natural_mean[..., None])[..., 0])


def test_steps_lead_to_a_stationary_point():
    mean, chol = start()
    for _ in range(500):
        mean, chol = natural.step(mean, chol, *gradients(mean, chol), torch.full((R,), 0.2), "test")
    for gradient in gradients(mean, chol):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_gradient_that_is_not_finite_is_named_and_stays_in_its_replica(dtype):
    mean, chol = start(dtype)
    by_mean, by_chol = gradients(mean, chol)
    expected = natural.step(mean, chol, by_mean, by_chol, RATES.to(dtype), "test")
    by_chol[1, 2] = torch.nan
    linalg.events()
    new_mean, new_chol = natural.step(mean, chol, by_mean, by_chol, RATES.to(dtype), "the last layer")
    assert new_chol[1, 2].isnan().any()
    assert new_mean[1, :, 2].isnan().all()
    torch.testing.assert_close(new_mean[0], expected[0][0], rtol=1e-12, atol=1e-12)
    assert [(e["name"], e["replica"], e["failed"]) for e in linalg.events()] == [("the last layer", 1, True)]


def test_a_step_that_leaves_a_precision_indefinite_is_halved_in_its_replica_alone():
    mean, chol = start()
    by_mean, by_chol = gradients(mean, chol)
    expected = natural.step(mean, chol, by_mean, by_chol, RATES, "test")
    # L^T dL = -10 I: S'^-1 = (1 - 10 rate) S^-1, definite below 0.1; 0.3 / 4 is, and is halved once more
    by_chol[1] = -10 * torch.linalg.inv(chol[1]).mT.tril().diagonal(dim1=-2, dim2=-1).diag_embed()
    new_mean, new_chol = natural.step(mean, chol, by_mean, by_chol, RATES, "test")
    torch.testing.assert_close((new_mean[0], new_chol[0]), (expected[0][0], expected[1][0]), rtol=1e-12, atol=1e-12)
    shorter = natural.step(mean[1:], chol[1:], by_mean[1:], by_chol[1:], RATES[1:] / 8, "test")
    torch.testing.assert_close((new_mean[1:], new_chol[1:]), shorter, rtol=1e-12, atol=1e-12)
    assert linalg.events() == []
