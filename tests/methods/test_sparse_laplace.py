"""Laplace in the FITC and PITC models by dense algebra: that of `gp_cholesky` whose covariance is Q + Lambda."""

import math

import numpy as np
import pytest
import torch
from gp_cases import assert_batched_is_looped, flat_loss, keys, loss_and_gradient, perturbed, problem, training_set

from gpbench.methods import gp_cholesky, sparse_laplace
from gpbench.methods.base import State
from gpbench.solvers import blocks

NONE = torch.zeros(1, 0)
DENSE = gp_cholesky.Method(gp_cholesky.Hyperparameters(), "binary")
both = pytest.mark.parametrize("name", ["fitc", "pitc"])


def made(name: str, n: int = 60):
    """A method, a state off its start, and the rows; some targets contradict their neighbours."""
    x, y = problem("binary", n)
    y[::7] = 1 - y[::7]
    method = sparse_laplace.Method(
        sparse_laplace.Hyperparameters(num_inducing=8, training_conditional=name), "binary", num_classes=2
    )
    data = training_set(x, y)
    return method, perturbed(method.start(data, keys(1))), data.full()


def dense(method, params, x, name):
    """Q + Lambda, and A, of one replica at rows x `[1, n, D]`."""
    a = method.features(params, x)[0]
    left = method.kernel(params).covariance(x, x)[0] - a.mT @ a
    n, among = len(x[0]), torch.zeros_like(left)
    for rows in blocks.partition(x[0], n if name == "fitc" else math.isqrt(n)):
        rows = rows[rows < n]
        among[rows[:, None], rows] = 1.0
    return a.mT @ a + among * left, a


@both
def test_the_evidence_and_its_gradient(name):
    method, state, batch = made(name)
    loss, gradient = loss_and_gradient(method, state, batch, NONE)
    params = {key: value.clone().requires_grad_() for key, value in state.params.items()}
    truth = -DENSE.log_evidence(dense(method, params, batch.x, name)[0], batch.y[0, :, 0])
    assert loss.item() == pytest.approx(truth.item(), rel=1e-10)
    for key, expected in zip(params, torch.autograd.grad(truth, list(params.values())), strict=True):
        torch.testing.assert_close(gradient[key], expected, rtol=1e-6, atol=1e-8)


@both
def test_gradient_is_that_of_differences(name):
    method, state, batch = made(name)
    _, gradient = loss_and_gradient(method, state, batch, NONE)
    for key, value in state.params.items():
        step = torch.zeros_like(value)
        step.view(-1)[0] = 1e-4
        up, down = (
            flat_loss(method, State(state.params | {key: value + sign * step}, {}), batch, NONE) for sign in (1, -1)
        )
        assert gradient[key].flatten()[0].item() == pytest.approx(((up - down) / 2e-4).item(), rel=1e-4, abs=1e-6)


@both
def test_predictions_condition_on_the_targets(name):
    """Covariances with test rows are those of Q, their own that of K."""
    method, state, batch = made(name)
    covariance, a = dense(method, state.params, batch.x, name)
    at, chol = DENSE.mode(covariance, batch.y[0, :, 0])
    x = torch.linspace(-1, 1, 7, dtype=torch.float64)[None, :, None].expand(1, 7, 3)
    cross = a.mT @ method.features(state.params, x)[0]
    known = torch.linalg.solve_triangular(chol, at.root[:, None] * cross, upper=False)
    variance = method.kernel(state.params).diagonal(x)[0] - known.square().sum(0)
    truth = torch.special.ndtr((at.a @ cross) / (1 + variance).sqrt())
    predicted = method.predict(state, x, keys(1)[0]).probabilities()[:, 1]
    np.testing.assert_allclose(predicted, truth, atol=1e-6)


def test_an_inducing_input_a_row_is_the_dense_gp():
    method, state, batch = made("fitc")
    params = state.params | {"inducing_inputs": batch.x}
    covariance = method.kernel(params).covariance(batch.x, batch.x)[0]
    truth = -DENSE.log_evidence(covariance, batch.y[0, :, 0])
    assert flat_loss(method, State(params, {}), batch, NONE).item() == pytest.approx(truth.item(), rel=1e-4)


@both
def test_batched_is_looped(name):
    assert_batched_is_looped(made(name)[0], "binary")


@both
def test_one_row(name):
    method, _, _ = made(name)
    x, y = torch.zeros(1, 3).double(), torch.ones(1, 1).double()
    state = method.start(training_set(x, y), keys(1))
    p = method.predict(state, x[None], keys(1)[0]).probabilities()[0, 1]
    assert 0.5 < p < 1
