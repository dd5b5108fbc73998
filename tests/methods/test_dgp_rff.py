"""Random-feature deep GP: the bound against closed forms, replicas, prediction."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from gpbench.gp import features
from gpbench.methods.base import State, TrainingSet
from gpbench.methods.dgp_rff import Hyperparameters, Method, gaussian_kl
from gpbench.streams import Key

KEYS = [Key("toy", "common", split) for split in range(3)]


def training_set(task: str = "regression", counts=(40, 39, 40), dtype=torch.float64) -> TrainingSet:
    """sin(2 x_1) + x_2 / 2 with noise, cut at quantiles into classes; replica r takes the first counts[r] rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 2))
    y = np.sin(2 * x[:, :1]) + 0.5 * x[:, 1:] + 0.1 * rng.standard_normal((40, 1))
    if task != "regression":
        y = np.digitize(y, np.quantile(y, [0.5] if task == "binary" else [0.3, 0.6]))
    rows = torch.arange(40).repeat(len(counts), 1)
    count = torch.tensor(counts)
    rows = torch.where(rows < count[:, None], rows, 0)
    zero, one = torch.zeros(len(counts), 2, dtype=dtype), torch.ones(len(counts), 2, dtype=dtype)
    return TrainingSet(
        torch.tensor(x, dtype=dtype),
        torch.tensor(y, dtype=dtype),
        rows,
        count,
        zero,
        one,
        zero[:, :1],
        one[:, :1],
    )


def replica(data: TrainingSet, r: int) -> TrainingSet:
    one = slice(r, r + 1)
    n = int(data.count[r])
    scaling = (t[one] for t in (data.x_shift, data.x_scale, data.y_shift, data.y_scale))
    return TrainingSet(data.inputs, data.targets, data.rows[one, :n], data.count[one], *scaling)


def method(task: str = "regression", **hyper) -> Method:
    classes = {"regression": 0, "binary": 2, "multiclass": 3}[task]
    return Method(Hyperparameters(**({"num_features": 8} | hyper)), task, classes)


def noise_for(m: Method, replicas: int, rows: int, dtype=torch.float64) -> torch.Tensor:
    size = m.noise_size(rows)
    return torch.stack([torch.randn(size, generator=torch.Generator().manual_seed(r)) for r in range(replicas)]).to(
        dtype
    )


def train(m: Method, data: TrainingSet, keys, steps: int) -> State:
    state = m.init(data, keys)
    for value in state.params.values():
        value.requires_grad_()
    optimiser = torch.optim.Adam(state.params.values(), lr=m.hyper.learning_rate)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        noise = torch.randn(len(keys), m.noise_size(40), generator=generator).to(data.inputs)
        optimiser.zero_grad()
        m.loss(state, data.full(), noise).sum().backward()
        optimiser.step()
    return state


def test_optimal_mean_field_bound_misses_the_linear_evidence_by_its_kl():
    # one layer at fixed Omega is Bayesian linear regression on Phi with posterior precision A; the best factorised q
    # has precisions A_ii, and log evidence - bound = KL[q || posterior] = (sum_i log A_ii - log det A) / 2
    size = 16
    m = method(layers=1, samples_train=2 * size)
    data = training_set(counts=(40,))
    batch, state = data.full(), m.init(data, KEYS[:1])
    noise_variance = state.params["log_noise_variance"].exp().item()
    omega = state.buffers["layer1.frequency_noise"] / state.params["layer1.log_lengthscale"].exp()[..., None]
    phi = features.fourier(batch.x, omega, torch.ones(1, dtype=torch.float64))[0]
    precision = torch.eye(size, dtype=torch.float64) + phi.T @ phi / noise_variance
    mean = torch.linalg.solve(precision, phi.T @ batch.y[0] / noise_variance)
    state.params["layer1.weight_mean"] = mean[None]
    state.params["layer1.weight_log_variance"] = -precision.diagonal().log()[None, :, None]
    # +- sqrt(K) unit vectors have the moments of standard normals, which is all a quadratic needs
    corners = size**0.5 * torch.eye(size, dtype=torch.float64)
    loss = m.loss(state, batch, torch.cat([corners, -corners]).reshape(1, -1))

    covariance = phi @ phi.T + noise_variance * torch.eye(40, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(40).double(), covariance).log_prob(batch.y[0, :, 0])
    gap = 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision))
    assert gap > 0.1
    torch.testing.assert_close(-loss[0], evidence - gap, rtol=1e-10, atol=1e-10)


def test_kl_is_that_of_torch_distributions():
    mean, log_variance = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    prior = torch.randn(3, 4, 1, dtype=torch.float64)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0 * mean, (0.5 * prior).exp()))
    torch.testing.assert_close(gaussian_kl(mean, log_variance, prior), expected.sum((1, 2)))


def test_kl_of_the_start_is_that_of_the_weights():
    m = method()
    state = m.init(training_set(), KEYS)
    weights = [(state.params[f"{name}.weight_mean"], state.params[f"{name}.weight_log_variance"]) for name in m.names]
    expected = sum(gaussian_kl(mean, log, torch.zeros_like(log)) for mean, log in weights)
    torch.testing.assert_close(m.kl(state), expected)


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_mini_batches_are_unbiased(task):
    m, data = method(task), training_set(task, counts=(40, 40))
    state = m.init(data, KEYS[:2])
    noise = noise_for(m, 2, 10)
    parts = [
        m.loss(state, data.take(torch.arange(start, start + 10).repeat(2, 1)), noise) for start in range(0, 40, 10)
    ]
    torch.testing.assert_close(torch.stack(parts).mean(0), m.loss(state, data.full(), noise), rtol=1e-12, atol=1e-12)


def test_gradient_agrees_with_finite_differences():
    m, data = method(num_features=2, hidden_width=2), training_set(counts=(40,))
    state, noise = m.init(data, KEYS[:1]), noise_for(m, 1, 40)
    names = list(state.params)

    def loss(*values):
        return m.loss(State(dict(zip(names, values, strict=True)), state.buffers), data.full(), noise)

    assert torch.autograd.gradcheck(loss, [state.params[name].clone().requires_grad_() for name in names])


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_batched_replicas_equal_one_at_a_time(task):
    m, data = method(task, samples_train=2, samples_test=5), training_set(task)
    together = train(m, data, KEYS, 3)
    noise, x = noise_for(m, 3, 40), torch.randn(3, 7, 2, dtype=torch.float64)
    loss, predictives = m.loss(together, data.full(), noise), m.predict(together, x, KEYS)
    for r, key in enumerate(KEYS):
        own = replica(data, r)
        start = m.init(own, [key])
        for name, value in m.init(data, KEYS).params.items():
            torch.testing.assert_close(start.params[name][0], value[r], rtol=1e-12, atol=1e-12)
        alone = State(*({k: v[r : r + 1] for k, v in part.items()} for part in (together.params, together.buffers)))
        torch.testing.assert_close(m.loss(alone, own.full(), noise[r : r + 1])[0], loss[r], rtol=1e-9, atol=0)
        predictive = m.predict(alone, x[r : r + 1], [key])[0]
        np.testing.assert_allclose(predictive.mean(), predictives[r].mean(), rtol=1e-9)


def test_gradients_do_not_mix_replicas():
    m, data = method(), training_set()
    state, noise = m.init(data, KEYS), noise_for(m, 3, 40)
    mean = state.params["layer1.frequency_mean"].requires_grad_()
    (gradient,) = torch.autograd.grad(m.loss(state, data.full(), noise)[1], mean)
    assert gradient[1].abs().max() > 0
    assert gradient[[0, 2]].abs().max() == 0


def test_rows_are_predicted_with_the_same_weights():
    m, data = method(samples_test=4), training_set(counts=(40,))
    state, x = m.init(data, KEYS[:1]), torch.randn(1, 9, 2, dtype=torch.float64)
    whole, part = m.predict(state, x, KEYS[:1])[0], m.predict(state, x[:, 3:5], KEYS[:1])[0]
    np.testing.assert_allclose(whole.mean()[3:5], part.mean(), rtol=1e-12)


def test_covariance_parameters_are_frozen_for_the_first_part():
    m = method(layers=3, freeze_fraction=0.25)
    frozen = m.frozen(24, 100)
    assert len(frozen) == 6
    assert frozen < set(m.init(training_set(), KEYS).params)
    assert m.frozen(25, 100) == frozenset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_learning_beats_the_constant_predictor(dtype):
    m, data = method(num_features=30, samples_test=20, learning_rate=0.03), training_set(counts=(40,), dtype=dtype)
    state = train(m, data, KEYS[:1], 300)
    assert all(value.dtype == dtype for value in state.params.values())
    predictive = m.predict(state, data.full().x, KEYS[:1])[0]
    y = data.targets.double().numpy()
    constant = -0.5 * np.log(2 * np.pi * np.e * y.var())
    assert predictive.log_prob(y).mean() > constant + 0.3
