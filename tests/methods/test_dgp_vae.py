import gp_cases as cases
import numpy as np
import pytest
import torch

from gpbench.gp import linalg, propagation
from gpbench.methods import dgp_meanfield, dgp_vae
from gpbench.methods.base import State

NO_NOISE = torch.empty(1, 0, dtype=torch.float64)
SETTINGS = {"num_inducing": 6, "hidden_width": 2, "jitter": 1e-5}


def method(num_targets: int = 1, **settings) -> dgp_vae.Method:
    return dgp_vae.Method(dgp_vae.Hyperparameters(**SETTINGS | settings), "regression", num_targets=num_targets)


def twins() -> tuple[dgp_meanfield.Method, State, dgp_vae.Method, State, cases.TrainingSet]:
    """A mean-field deep GP with two targets, and another whose networks say the same and whose q(u) are its best."""
    x, y = cases.problem("regression")
    data = cases.training_set(x, torch.cat([y, x[:, :1] ** 2], 1))
    local = dgp_meanfield.Method(dgp_meanfield.Hyperparameters(layers=3, **SETTINGS), "regression", num_targets=2)
    ours = method(2, layers=3)
    state, twin = cases.perturbed(local.start(data, cases.keys(1))), ours.start(data, cases.keys(1))
    for name in ("layer1", "layer2"):
        variance = state.params[f"{name}.log_variance"]
        variance[:] = variance[:, :1]  # of a unit, alike in every row
    twin.params |= {name: value for name, value in state.params.items() if name in twin.params}
    for name in ("layer1", "layer2"):
        twin.params[f"{name}.log_variance"] = state.params[f"{name}.log_variance"][:, 0]
    for name, layer in zip(ours.names, local.layers(state), strict=True):
        twin.params[f"{name}.whitened_mean"] = layer.whitened_mean
        twin.params[f"{name}.whitened_chol"] = layer.whitened_chol
    means = {name: state.buffers["components"] + state.params[f"{name}.offset"] for name in ("layer1", "layer2")}
    ours.recognise = lambda params, name, x: means[name]
    return local, state, ours, twin, data


def test_bound_is_the_mean_field_one_where_networks_agree_and_posteriors_are_best():
    local, state, ours, twin, data = twins()
    expected = local.loss(state, data.full(), NO_NOISE)
    torch.testing.assert_close(ours.loss(twin, data.full(), NO_NOISE), expected, rtol=1e-8, atol=0)
    test = torch.linspace(-2, 2, 15).double().view(1, 5, 3)
    one, another = (m.predict(s, test, cases.keys(1)[0]) for m, s in ((local, state), (ours, twin)))
    np.testing.assert_allclose(one.mean(), another.mean(), atol=1e-9)
    np.testing.assert_allclose(one.variance(), another.variance(), atol=1e-9)


def test_best_posteriors_are_stationary_and_others_are_worse():
    _, _, ours, twin, data = twins()
    best = ours.loss(twin, data.full(), NO_NOISE)
    for name in [name for name in twin.params if "whitened" in name]:
        value = twin.params[name].clone().requires_grad_()
        moved = ours.loss(State(twin.params | {name: value}, twin.buffers), data.full(), NO_NOISE)
        np.testing.assert_allclose(*torch.autograd.grad(moved.sum(), value), 0.0, atol=1e-5, err_msg=name)
        moved = State(twin.params | {name: twin.params[name] + 0.05}, twin.buffers)
        assert ours.loss(moved, data.full(), NO_NOISE) > best


def test_minibatch_estimates_average_to_the_full_batch():
    ours, data = method(layers=3), cases.training_set(*cases.problem("regression"))
    state = cases.perturbed(ours.start(data, cases.keys(1)))
    parts = [ours.loss(state, data.take(torch.arange(40)[None, k::4]), NO_NOISE) for k in range(4)]
    torch.testing.assert_close(sum(parts) / 4, ours.loss(state, data.full(), NO_NOISE))


def test_networks_have_the_authors_sizes_and_agree_with_numpy():
    weights = dgp_vae.start_network(13, 3, np.random.default_rng(0))
    assert [weight.shape for weight in weights] == [(14, 10), (11, 5), (6, 3)]
    weights = [np.random.default_rng(k).normal(size=weight.shape) for k, weight in enumerate(weights)]
    x = np.random.default_rng(9).normal(size=(4, 13))
    hidden = np.tanh(x @ weights[0][:-1] + weights[0][-1])
    expected = np.tanh(hidden @ weights[1][:-1] + weights[1][-1]) @ weights[2][:-1] + weights[2][-1]
    ours = dgp_vae.perceptron(torch.as_tensor(x)[None], [torch.as_tensor(weight)[None] for weight in weights])
    np.testing.assert_allclose(ours[0], expected, rtol=1e-12)


def test_weights_start_uniform_in_the_bounds_of_their_layer():
    for weight, width in zip(dgp_vae.start_network(60, 40, np.random.default_rng(0)), (126, 99, 73), strict=True):
        assert np.abs(weight[:-1]).max() == pytest.approx((6 / width) ** 0.5, rel=0.01)
        assert weight[:-1].std() == pytest.approx((2 / width) ** 0.5, rel=0.05)
        assert not weight[-1].any()


def test_functions_start_at_the_networks():
    ours, data = method(num_inducing=6, jitter=1e-8), cases.training_set(*cases.problem("regression"))
    state = ours.start(data, cases.keys(1))
    z = state.params["layer1.inducing_inputs"]
    mean, variance = propagation.moments(ours.layers(state)[0], z)
    torch.testing.assert_close(mean, ours.recognise(state.params, "layer1", z), rtol=1e-5, atol=1e-5)
    # a tenth of the standard deviation of the prior, whose outputscale is 1
    torch.testing.assert_close(variance.sqrt(), torch.full_like(variance, 0.1), rtol=1e-5, atol=0)


@pytest.mark.slow
def test_gradient_agrees_with_finite_differences():
    ours = method(num_inducing=3, layers=3)
    data = cases.training_set(*cases.problem("regression", n=6), [list(range(6)), list(range(5))])
    state = cases.perturbed(ours.start(data, cases.keys(2)))
    names = list(state.params)

    def loss(*values):
        return ours.loss(State(dict(zip(names, values, strict=True))), data.full(), NO_NOISE)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()], atol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_batched_is_looped_and_padding_changes_nothing(layers):
    cases.assert_batched_is_looped(method(layers=layers), "regression")


def test_nan_stays_in_its_replica():
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(), "regression")
    assert {(e["replica"], e["failed"]) for e in linalg.events()} == {(1, True)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_training_beats_the_constant_predictor(dtype):
    x, y = cases.problem("regression", n=60, dtype=dtype)
    ours = method(num_inducing=15, jitter=1e-3)
    state, losses = cases.train(ours, cases.training_set(x, y), 100)
    assert losses[-1] < losses[0]
    assert {value.dtype for value in state.params.values()} == {dtype}
    predictive = ours.predict(state, x[None], cases.keys(1)[0])
    assert np.mean((predictive.mean() - y.numpy()) ** 2) < 0.5 * np.var(y.numpy())
