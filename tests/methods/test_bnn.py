"""Mean-field Bayesian network: KL, local reparameterisation against sampled weights, replicas."""

import math

import numpy as np
import pytest
import torch
from gp_cases import (
    assert_batched_is_looped,
    assert_nan_stays_in_its_replica,
    flat_loss,
    keys,
    noise_for,
    perturbed,
    problem,
    train,
    training_set,
)
from torch.distributions import Normal, kl_divergence

from gpbench.methods import base, dnn
from gpbench.methods.base import State
from gpbench.methods.bnn import Hyperparameters, Method, sampled_affine

CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}
TASKS = list(CLASSES)


def method(task: str, **hyper) -> Method:
    return Method(Hyperparameters(**({"match_basis": 10, "samples_test": 5} | hyper)), task, CLASSES[task])


def started(m: Method, task: str) -> tuple[State, torch.Tensor, torch.Tensor]:
    """A state off its start, and the data it is for."""
    x, y = problem(task)
    return perturbed(m.start(training_set(x, y), keys(1))), x, y


def test_units_are_those_of_the_network_with_dropout():
    assert Method(Hyperparameters(), "regression").layer_widths(4) == [160, 1]
    assert Method(Hyperparameters(units=7, hidden_layers=2), "multiclass", 3).layer_widths(4) == [7, 7, 3]


def test_kl_is_that_of_torch_distributions():
    m = method("regression", prior_variance=0.4, hidden_layers=2)
    state, *_ = started(m, "regression")
    prior = Normal(torch.zeros((), dtype=torch.float64), math.sqrt(0.4))
    expected = sum(
        kl_divergence(Normal(mean[0], variance[0].sqrt()), prior).sum()
        for mean, variance in zip(m.weights(state), m.variances(state), strict=True)
    )
    torch.testing.assert_close(m.kl(state)[0], expected)


def test_kl_is_zero_at_the_prior():
    m = method("regression", prior_variance=0.4, weight_variance=0.4)
    state, *_ = started(m, "regression")
    for name in m.names:
        state.params[f"{name}.weight"].zero_()
        state.params[f"{name}.log_variance"].fill_(math.log(0.4))
    assert abs(m.kl(state).item()) < 1e-10


def test_sampled_pre_activations_have_the_moments_of_sampled_weights():
    draws, generator = 40_000, torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, mean, variance = normal(1, 1, 3), normal(1, 4, 2), normal(1, 4, 2).exp()
    local = sampled_affine(x.expand(1, draws, 3), mean, variance, normal(1, draws, 2))[0]
    weights = mean + variance.sqrt() * normal(draws, 4, 2)
    sampled = dnn.affine(x.expand(draws, 1, 3), weights)[:, 0]
    spread = (sampled.var(0) / draws).sqrt()
    # two independent estimates; a variance of K normals has relative standard error sqrt(2 / K)
    assert ((local.mean(0) - sampled.mean(0)).abs() < 4 * math.sqrt(2) * spread).all()
    assert ((local.var(0) / sampled.var(0) - 1).abs() < 4 * math.sqrt(2) * math.sqrt(2 / draws)).all()


def test_expected_log_likelihood_of_one_layer_of_units_is_that_of_sampled_weights():
    # rows are dependent under shared weights and independent under local noise; the sum over rows has one mean
    task, samples = "regression", 4000
    m = method(task, samples_train=samples, samples_test=samples, weight_variance=0.05, units=6)
    state, x, y = started(m, task)
    local = m.sample_outputs(state, x[None], noise_for(m, state, [len(x)]))[:, 0]
    shared = torch.stack([dnn.outputs(x[None], weights)[0] for weights in m.predictive_weights(state, keys(1)[0])])
    noise_variance = base.noise_variance(state.params)
    one, other = (m.likelihood.log_prob(y, f[:, None], noise_variance).sum((1, 2)) for f in (local, shared))
    error = math.sqrt((one.var() + other.var()) / samples)
    assert abs(one.mean() - other.mean()) < 4 * error
    assert error < 0.05 * abs(one.mean())


@pytest.mark.parametrize("task", TASKS)
def test_without_variance_it_is_the_network_with_no_dropout(task):
    m = method(task, weight_variance=1e-30, samples_train=2)
    x, y = problem(task)
    data, plain = training_set(x, y), dnn.Method(dnn.Hyperparameters(match_basis=10, dropout=0.0), task, CLASSES[task])
    state, start = m.start(data, keys(1)), plain.start(data, keys(1))
    expected = flat_loss(plain, start, data.full(), noise_for(plain, start, [len(x)]))
    loss = flat_loss(m, state, data.full(), noise_for(m, state, [len(x)]))
    torch.testing.assert_close(loss - m.kl(state), expected, rtol=1e-9, atol=1e-9)
    ours, theirs = m.predict(state, x[None], keys(1)[0]), plain.predict(start, x[None], keys(1)[0])
    np.testing.assert_allclose(ours.mean(), theirs.mean(), rtol=1e-9, atol=1e-9)


def test_a_prediction_is_a_mixture_over_weights_that_rows_share():
    m = method("regression", samples_test=7)
    state, x, _ = started(m, "regression")
    whole, part = m.predict(state, x[None], keys(1)[0]), m.predict(state, x[None, 3:5], keys(1)[0])
    assert len(whole.component_mean) == 7
    assert whole.component_mean.std(0).min() > 0
    np.testing.assert_allclose(whole.component_mean[:, 3:5], part.component_mean, rtol=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_mini_batches_are_unbiased_at_the_same_noise(task):
    m = method(task, samples_train=3)
    state, x, y = started(m, task)
    data, noise = training_set(x, y), noise_for(m, state, [len(x)]).view(1, 4, -1)
    parts = [flat_loss(m, state, data.take(torch.arange(10 * p, 10 * p + 10)[None]), noise[:, p]) for p in range(4)]
    whole = flat_loss(m, state, data.full(), noise.view(1, -1))
    torch.testing.assert_close(torch.stack(parts).mean(0), whole, rtol=1e-12, atol=0)


def test_gradient_agrees_with_finite_differences():
    m = method("multiclass", samples_train=2, units=3)
    state, x, y = started(m, "multiclass")
    data, names, noise = training_set(x, y), list(state.params), noise_for(m, state, [len(x)])

    def loss(*values):
        return flat_loss(m, State(dict(zip(names, values, strict=True))), data.full(), noise)

    assert torch.autograd.gradcheck(loss, [state.params[name].requires_grad_() for name in names])


def test_the_posterior_widens_where_there_are_no_data():
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    m = Method(Hyperparameters(units=20, samples_test=50), "regression")
    state, losses = train(m, training_set(x, torch.sin(3 * x)), 300)
    assert losses[-1] < losses[0]
    near, far = (
        m.predict(state, torch.full((1, 1, 1), at, dtype=torch.float64), keys(1)[0]).component_mean.std()
        for at in (0.0, 10.0)
    )
    assert far > 2 * near


@pytest.mark.parametrize("task", TASKS)
def test_batched_replicas_equal_one_at_a_time(task):
    assert_batched_is_looped(method(task, samples_train=2, hidden_layers=2), task)


@pytest.mark.parametrize("task", TASKS)
def test_nan_stays_in_its_replica(task):
    assert_nan_stays_in_its_replica(method(task), task)
