"""Random-feature deep GP: the bound against closed forms, replicas, prediction. (What each option does: _options.)"""

from itertools import product

import numpy as np
import pytest
import torch
from gp_cases import (
    assert_batched_is_looped,
    assert_nan_stays_in_its_replica,
    flat_loss,
    keys,
    loss_and_gradient,
    noise_for,
    noise_size,
    problem,
    train,
    training_set,
)
from rff_cases import KERNELS, OPTIONS, TASKS, TREATMENTS, method, named, start
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from cases import CONF
from gpbench import config
from gpbench.data.readers import read
from gpbench.gp import features, kernels
from gpbench.gp.mean_field import kl as mean_field_kl
from gpbench.methods.base import State
from gpbench.methods.training_rows import Batch
from rates import exponent


class Linear:
    """One layer at fixed Omega is Bayesian linear regression on Phi: y ~ N(Phi W, noise), W ~ N(0, I)."""

    def __init__(self, kernel: str) -> None:
        width = 8 * features.FEATURES_PER_FREQUENCY[kernel]
        settings = {"samples_train": 2 * width, "samples_test": 2 * width}
        self.method = method(hidden_layers=0, kernel=kernel, frequencies="prior_fixed", **settings)
        self.batch, self.state = start(self.method)
        self.noise_variance = self.state.params["log_noise_variance"].exp()
        self.phi, self.y = self.features(self.batch.x), self.batch.y[0]
        self.precision = torch.eye(width).double() + self.phi.T @ self.phi / self.noise_variance
        self.covariance = torch.linalg.inv(self.precision)
        self.mean = self.covariance @ self.phi.T @ self.y / self.noise_variance
        self.state.params["layer1.weight_mean"] = self.mean[None]

    def features(self, x: torch.Tensor) -> torch.Tensor:
        omega = self.state.buffers["layer1.frequency_noise"] / self.state.params["layer1.log_lengthscale"].exp().mT
        outputscale = self.state.params["layer1.log_outputscale"].exp()
        return features.random_features(self.method.hyper.kernel, x, omega, outputscale)[0]

    def evidence(self) -> torch.Tensor:
        covariance = self.phi @ self.phi.T + self.noise_variance * torch.eye(len(self.y)).double()
        return MultivariateNormal(torch.zeros(len(self.y)).double(), covariance).log_prob(self.y[:, 0])

    def noise(self, root: torch.Tensor) -> torch.Tensor:
        """Noise `[S, R, size]` whose weights m + s eps have the mean m and the covariance root root^T: eps is
        +- sqrt(K) times the columns of root / s, which have the moments of normals, and a quadratic sees no more."""
        s = (0.5 * self.state.params["layer1.weight_log_variance"][0]).exp()
        columns = (len(root) ** 0.5 * root / s).T
        return torch.cat([columns, -columns])[:, None]

    def bound(self, root: torch.Tensor, kl: torch.Tensor) -> torch.Tensor:
        """Bound with q(W) = N(m, root root^T) of a given divergence from the prior."""
        loss = flat_loss(self.method, self.state, self.batch, self.noise(root).reshape(1, -1))
        return (self.method.kl(self.state) - loss)[0] - kl


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_optimal_bound_is_the_evidence_of_the_linear_model(kernel):
    linear = Linear(kernel)
    prior = MultivariateNormal(torch.zeros_like(linear.mean[:, 0]), torch.eye(len(linear.mean)).double())
    kl = kl_divergence(MultivariateNormal(linear.mean[:, 0], linear.covariance), prior)
    bound = linear.bound(torch.linalg.cholesky(linear.covariance), kl)
    torch.testing.assert_close(bound, linear.evidence(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_optimal_mean_field_bound_misses_the_evidence_by_its_kl(kernel):
    # the best factorised q has the precisions A_ii of the posterior's precision A, and
    # log evidence - bound = KL[q || posterior] = (sum_i log A_ii - log det A) / 2
    linear = Linear(kernel)
    diagonal = linear.precision.diagonal()
    linear.state.params["layer1.weight_log_variance"] = -diagonal.log()[None, :, None]
    bound = linear.bound(diagonal.rsqrt().diag(), linear.method.kl(linear.state)[0])
    gap = 0.5 * (diagonal.log().sum() - torch.logdet(linear.precision))
    assert gap > 0.1
    torch.testing.assert_close(bound, linear.evidence() - gap, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_with_the_posterior_of_all_weights_it_predicts_as_the_gp_of_its_features(kernel, monkeypatch):
    linear = Linear(kernel)
    x = torch.randn(1, 9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = linear.noise(torch.linalg.cholesky(linear.covariance))
    monkeypatch.setattr(linear.method, "_test_noise", lambda key, x: drawn)
    ours = linear.method.predict(linear.state, x, keys(1)[0])
    phi = linear.features(x)
    mean, variance = gp_prediction(linear.phi, phi, linear.y, linear.noise_variance)
    np.testing.assert_allclose(ours.mean(), mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(ours.variance(), (variance + linear.noise_variance)[:, None], rtol=1e-8)


def gp_prediction(train: torch.Tensor, test: torch.Tensor, y: torch.Tensor, noise: torch.Tensor):
    """Mean and variance of f at test rows in function space, with the kernel Phi Phi^T."""
    covariance = train @ train.T + noise * torch.eye(len(y)).double()
    cross = test @ train.T
    variance = test.square().sum(1) - (cross @ torch.linalg.solve(covariance, cross.T)).diagonal()
    return cross @ torch.linalg.solve(covariance, y), variance


@pytest.mark.slow
def test_on_boston_it_tends_to_the_exact_gp_as_one_over_the_root_of_the_number_of_features():
    table = read.read(config.compose(CONF, "dataset", "boston"), CONF)
    x, y = (torch.as_tensor((a - a.mean(0)) / a.std(0)) for a in (table.inputs, table.targets))
    data, draws, noise = training_set(x[::2], y[::2]), 12, torch.tensor(0.1).double()
    counts = np.array([100, 400, 1600, 6400])
    lengthscale = torch.full((1, 13), 13**0.5).double()
    exact = torch.linalg.cholesky(kernels.rbf(x, x, lengthscale, torch.ones(1).double())[0] + 1e-10 * torch.eye(len(x)))
    mean, _ = gp_prediction(exact[::2], exact[1::2], y[::2], noise)
    distance = np.empty((len(counts), draws))
    for i, count in enumerate(counts):
        made = method(hidden_layers=0, num_features=int(count), frequencies="prior_fixed", lengthscale=13**0.5)
        for r, key in enumerate(keys(draws)):
            omega = made.start(data, [key]).buffers["layer1.frequency_noise"] / lengthscale.mT
            phi = features.fourier(x[None], omega, torch.ones(1).double())[0]
            ours, _ = gp_prediction(phi[::2], phi[1::2], y[::2], noise)
            distance[i, r] = (ours - mean).square().mean()
    slope, error = exponent(counts, distance)
    assert error < 0.03
    assert abs(slope + 0.5) < 4 * error


def test_kl_is_that_of_torch_distributions():
    mean, log_variance = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    prior = torch.randn(3, 4, 1, dtype=torch.float64)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0 * mean, (0.5 * prior).exp()))
    torch.testing.assert_close(mean_field_kl(mean, log_variance, prior), expected.sum((1, 2)))


@pytest.mark.parametrize(("treatment", "feed_forward"), list(product(TREATMENTS, [False, True])))
def test_the_kl_of_all_layers_is_that_of_torch_distributions(treatment, feed_forward):
    made = method(hidden_layers=2, frequencies=treatment, feed_forward=feed_forward)
    _, state = start(made, replicas=2)
    params, expected = state.params, 0.0
    for name in made.names:
        w = Normal(params[f"{name}.weight_mean"], (0.5 * params[f"{name}.weight_log_variance"]).exp())
        expected += kl_divergence(w, Normal(torch.zeros(1).double(), 1.0)).sum((1, 2))
        if treatment != "prior_fixed":
            omega = Normal(params[f"{name}.frequency_mean"], (0.5 * params[f"{name}.frequency_log_variance"]).exp())
            prior = Normal(torch.zeros(1).double(), 1 / params[f"{name}.log_lengthscale"].exp()[..., None])
            expected += kl_divergence(omega, prior).sum((1, 2))
    torch.testing.assert_close(made.kl(state), expected, rtol=1e-12, atol=0)


def test_kl_of_the_start_is_that_of_the_weights():
    made, x = method(), problem("regression")
    params = made.start(training_set(*x), keys(1)).params
    weights = [(params[f"{name}.weight_mean"], params[f"{name}.weight_log_variance"]) for name in made.names]
    expected = sum(mean_field_kl(mean, log, torch.zeros_like(log)) for mean, log in weights)
    torch.testing.assert_close(made.kl(State(params)), expected)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_mini_batches_are_unbiased(options, task):
    """At fixed noise, which follows its row where rows have their own."""
    made = method(task, samples_train=2, **options)
    batch, state = start(made, task)
    noise = noise_for(made, state, [40])
    shared = noise.shape[1] - 40 * (noise_size(made, state, 2) - noise_size(made, state, 1))
    of_rows = noise[:, shared:].reshape(40, -1)
    bounds = []
    for rows in torch.randperm(40, generator=torch.Generator().manual_seed(0)).split(10):
        part = Batch(batch.x[:, rows], batch.y[:, rows], torch.full((1, 10), 4.0).double())
        part_noise = torch.cat([noise[:, :shared], of_rows[rows].reshape(1, -1)], 1)
        bounds.append(flat_loss(made, state, part, part_noise))
    full = flat_loss(made, state, batch, noise)
    assert torch.stack(bounds).std() > 1e-3
    torch.testing.assert_close(torch.stack(bounds).mean(0), full, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=named)
@pytest.mark.slow
def test_gradient_agrees_with_finite_differences(options):
    made = method(num_features=3, hidden_width=2, **options)
    batch, state = start(made)
    noise, names = noise_for(made, state, [40]), list(state.params)

    def loss(*values):
        return flat_loss(made, State(dict(zip(names, values, strict=True)), state.buffers), batch, noise)

    assert torch.autograd.gradcheck(loss, [state.params[name].clone().requires_grad_() for name in names])


def test_lengthscales_move_fixed_frequencies_under_the_prior_and_only_the_kl_under_a_posterior():
    for treatment in TREATMENTS:
        made = method(frequencies=treatment)
        batch, state = start(made)
        lengthscale = state.params["layer1.log_lengthscale"].requires_grad_()
        (of_loss,) = torch.autograd.grad(flat_loss(made, state, batch, noise_for(made, state, [40])).sum(), lengthscale)
        if treatment == "prior_fixed":
            assert (of_loss.abs() > 1e-3).all()
        else:
            (of_kl,) = torch.autograd.grad(made.kl(state).sum(), lengthscale)
            torch.testing.assert_close(of_loss, of_kl, rtol=1e-12, atol=0)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("options", OPTIONS, ids=named)
@pytest.mark.slow
def test_batched_replicas_equal_one_at_a_time(options, task):
    """Loss, gradient and prediction."""
    assert_batched_is_looped(method(task, samples_train=2, **options), task)


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_a_replica_that_is_not_a_number_stays_alone(treatment):
    assert_nan_stays_in_its_replica(method(frequencies=treatment, samples_train=2), "regression")


def test_rows_are_predicted_with_the_same_weights():
    made = method(samples_test=4)
    _, state = start(made)
    x = torch.randn(1, 9, 3, dtype=torch.float64)
    whole, part = made.predict(state, x, keys(1)[0]), made.predict(state, x[:, 3:5], keys(1)[0])
    np.testing.assert_allclose(whole.mean()[3:5], part.mean(), rtol=1e-12)


@pytest.mark.parametrize(("kernel", "dtype"), [("rbf", torch.float32), ("arc_cosine", torch.float64)])
@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.slow
def test_learning_beats_the_constant_predictor_in_both_precisions(treatment, kernel, dtype):
    made = method(num_features=30, samples_test=20, frequencies=treatment, kernel=kernel)
    x, y = problem("regression", n=200, dtype=dtype)
    state, losses = train(made, training_set(x, y), 300)
    assert all(value.dtype == dtype for value in state.params.values())
    assert losses[-1] < losses[0]
    predictive = made.predict(state, x[None], keys(1)[0])
    constant = -0.5 * np.log(2 * np.pi * np.e * float(y.var()))
    assert predictive.log_prob(y.double().numpy()).mean() > constant + 0.2


def test_the_loss_of_several_samples_is_the_mean_of_theirs():
    for options in OPTIONS:
        one, three = method(**options), method(samples_train=3, **options)
        batch, state = start(three)
        one.start(training_set(batch.x[0], batch.y[0]), keys(1))
        noise = noise_for(three, state, [40])
        shared = noise_size(three, state, 0)
        of_samples = noise[:, :shared].reshape(3, -1)
        of_rows = noise[:, shared:].reshape(40, 3, -1)
        losses = [
            flat_loss(one, state, batch, torch.cat([of_samples[s], of_rows[:, s].reshape(-1)])[None]) for s in range(3)
        ]
        together, _ = loss_and_gradient(three, state, batch, noise)
        torch.testing.assert_close(together, torch.stack(losses).mean(0), rtol=1e-12, atol=0)
