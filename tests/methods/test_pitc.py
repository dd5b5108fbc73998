"""PITC by dense algebra."""

import math

import numpy as np
import pytest
import torch
from gp_cases import assert_batched_is_looped, flat_loss, keys, loss_and_gradient, perturbed, problem, training_set

from gpbench.methods import exact_gp, fitc, pitc
from gpbench.methods.base import State
from gpbench.solvers import blocks

NONE = torch.zeros(1, 0)


def made(n: int = 60):
    x, y = problem("regression", n)
    y = torch.cat([y, y.cos()], 1)
    method = pitc.Method(pitc.Hyperparameters(num_inducing=8), "regression", num_targets=2)
    data = training_set(x, y)
    return method, perturbed(method.start(data, keys(1))), data.full()


def dense(method, state, batch):
    """Q + Lambda, and A, of one replica."""
    x = batch.x[0]
    a = method.features(state.params, batch.x)[0]
    left = method.kernel(state.params).covariance(batch.x, batch.x)[0] - a.mT @ a
    block = torch.zeros_like(left)
    for rows in blocks.partition(x, math.isqrt(len(x))):
        rows = rows[rows < len(x)]
        block[rows[:, None], rows] = left[rows[:, None], rows]
    return a.mT @ a + block + state.params["log_noise_variance"].exp() * torch.eye(len(x)), a


def test_objective_is_the_density_of_the_targets():
    method, state, batch = made()
    covariance, _ = dense(method, state, batch)
    normal = torch.distributions.MultivariateNormal(torch.zeros(60).double(), covariance)
    truth = -normal.log_prob(batch.y[0].mT).sum()
    assert flat_loss(method, state, batch, NONE).item() == pytest.approx(truth.item(), rel=1e-10)


def test_gradient_is_that_of_differences():
    method, state, batch = made()
    _, gradient = loss_and_gradient(method, state, batch, NONE)
    for name, value in state.params.items():
        step = torch.zeros_like(value)
        step.view(-1)[0] = 1e-5
        up, down = (
            flat_loss(method, State(state.params | {name: value + sign * step}, {}), batch, NONE) for sign in (1, -1)
        )
        assert gradient[name].flatten()[0].item() == pytest.approx(((up - down) / 2e-5).item(), rel=1e-5)


def test_predictions_condition_on_the_targets():
    """Covariances with test rows are those of Q, their own that of K."""
    method, state, batch = made()
    covariance, a = dense(method, state, batch)
    x = torch.linspace(-1, 1, 7, dtype=torch.float64)[None, :, None].expand(1, 7, 3)
    at = method.features(state.params, x)[0]
    cross = at.mT @ a
    mean, variance = method.marginals(state, x)
    torch.testing.assert_close(mean[0], cross @ torch.linalg.solve(covariance, batch.y[0]), rtol=1e-6, atol=1e-8)
    left = (cross * torch.linalg.solve(covariance, cross.mT).mT).sum(1)
    truth = method.kernel(state.params).diagonal(x)[0] - left
    torch.testing.assert_close(variance[0, :, 0], truth.expand(7), rtol=1e-6, atol=1e-8)


def test_three_rows_are_one_block_which_is_the_exact_gp():
    method, _, _ = made()
    x, y = problem("regression", 3)
    batch = training_set(x, y).full()
    state = perturbed(method.start(training_set(x, y), keys(1)))
    exact = exact_gp.Method(exact_gp.Hyperparameters(jitter=1e-12), "regression")
    assert flat_loss(method, state, batch, NONE).item() == pytest.approx(
        flat_loss(exact, state, batch, NONE).item(), rel=1e-6
    )


def test_it_lies_between_fitc_and_the_exact_gp():
    """In the divergence of its joint covariance from the exact one, at the same parameters."""
    method, state, batch = made()
    near = fitc.Method(fitc.Hyperparameters(num_inducing=8), "regression", num_targets=2)
    covariance, a = dense(method, state, batch)
    noise = state.params["log_noise_variance"].exp()
    exact = method.kernel(state.params).covariance(batch.x, batch.x)[0] + noise * torch.eye(60)
    diagonal = a.mT @ a + near.variance(state.params, near.rows(state.params, batch.x)[1])[0].diag()

    def divergence(other):
        ratio = torch.linalg.solve(other, exact)
        return 0.5 * (ratio.diagonal().sum() - 60 - torch.logdet(ratio))

    assert 0 < divergence(covariance) < divergence(diagonal)


def test_batched_is_looped():
    assert_batched_is_looped(pitc.Method(pitc.Hyperparameters(num_inducing=8), "regression"), "regression")


def test_one_row():
    method, _, _ = made()
    x, y = torch.zeros(1, 3).double(), torch.ones(1, 2).double()
    state = method.start(training_set(x, y), keys(1))
    assert np.isfinite(method.predict(state, x[None], keys(1)[0]).mean()).all()
