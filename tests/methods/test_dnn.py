"""Network with dropout: its size, its plain network against torch.nn, its masks."""

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
    training_set,
)
from scipy import special

from gpbench.methods.base import Shapes, State
from gpbench.methods.dnn import Hyperparameters, Method, forward, matched_units

CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}
TASKS = list(CLASSES)


def method(task: str, **hyper) -> Method:
    return Method(Hyperparameters(**({"match_basis": 10} | hyper)), task, CLASSES[task])


@pytest.mark.parametrize(
    ("num_inputs", "num_outputs", "rbf", "arc_cosine"),
    [(4, 1, 160, 80), (9, 1, 80, 40), (14, 2, 62, 31), (57, 2, 17, 8)],
    ids=["powerplant", "protein", "eeg", "spam"],
)
def test_units_are_those_of_the_sheet_of_cutajar2017(num_inputs, num_outputs, rbf, arc_cosine):
    assert matched_units(num_inputs, num_outputs, 1, 200, 3) == rbf
    assert matched_units(num_inputs, num_outputs, 1, 100, 3) == arc_cosine


@pytest.mark.parametrize("hidden_layers", [1, 2, 5])
def test_no_other_number_of_units_comes_closer_to_the_weights_of_the_deep_gp(hidden_layers):
    def weights(units):
        return 4 * units + (hidden_layers - 1) * units**2 + units

    deep_gp = hidden_layers * 200 * 3 + 200 * 1
    units = matched_units(4, 1, hidden_layers, 200, 3)
    assert abs(weights(units) - deep_gp) == min(abs(weights(other) - deep_gp) for other in range(1, 400))


def test_a_tiny_deep_gp_leaves_one_unit():
    assert matched_units(500, 1, 1, 1, 1) == 1


def plain_network(state, names: list[str]) -> torch.nn.Sequential:
    """The weights of the first replica in torch's own layers."""
    modules = []
    for name in names:
        weight = state.params[f"{name}.weight"][0]
        linear = torch.nn.Linear(len(weight) - 1, weight.shape[1], dtype=weight.dtype)
        linear.weight.data, linear.bias.data = weight[:-1].T, weight[-1]
        modules += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


@pytest.mark.parametrize("task", TASKS)
def test_without_dropout_the_loss_is_that_of_a_plain_network(task):
    m, (x, y) = method(task, hidden_layers=2, dropout=0.0), problem(task)
    data = training_set(x, y)
    state = perturbed(m.start(data, keys(1)))
    f = plain_network(state, m.names)(x)
    if task == "regression":
        noise_variance = state.params["log_noise_variance"].exp().expand(len(x), 1)
        expected = torch.nn.functional.gaussian_nll_loss(f, y, noise_variance, full=True, reduction="sum")
    else:
        expected = torch.nn.functional.cross_entropy(f, y[:, 0].long(), reduction="sum")
    torch.testing.assert_close(
        flat_loss(m, state, data.full(), noise_for(m, state, [len(x)]))[0], expected, rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("task", TASKS)
def test_predictions_leave_dropout_out(task, monkeypatch):
    monkeypatch.setattr("gpbench.methods.dnn.CHUNK_ELEMENTS", 50)  # several chunks of rows
    m, (x, y) = method(task), problem(task)
    state = perturbed(m.start(training_set(x, y), keys(1)))
    f, predictive = plain_network(state, m.names)(x).detach(), m.predict(state, x[None], keys(1)[0])
    if task == "regression":
        np.testing.assert_allclose(predictive.component_mean[0], f, rtol=1e-10)
        np.testing.assert_allclose(predictive.component_variance, state.params["log_noise_variance"].exp().item())
    else:
        np.testing.assert_allclose(predictive.component_probs[0], f.softmax(-1), rtol=1e-10)
    assert len(predictive.mean()) == len(x)


def test_masks_keep_units_with_the_stated_probability_and_leave_the_mean_of_a_linear_layer():
    m, draws = method("regression", dropout=0.3, hidden_layers=2), 20_000
    noise = torch.randn(1, draws, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    masks = m.masks(noise)
    assert [mask.shape for mask in masks] == [(1, draws, 6)] * 2
    kept = (torch.cat(masks) > 0).double()
    assert abs(kept.mean() - 0.7) < 4 * math.sqrt(0.3 * 0.7 / kept.numel())
    torch.testing.assert_close(torch.cat(masks), kept / 0.7)

    x = torch.linspace(0.1, 1.0, 3, dtype=torch.float64).expand(1, draws, 3)
    generator = torch.Generator().manual_seed(1)
    hidden, last = (torch.rand(1, *shape, generator=generator, dtype=torch.float64) for shape in [(4, 6), (7, 2)])
    masked, plain = forward(x, [hidden, last], masks[:1])[0], forward(x[:, :1], [hidden, last])[0, 0]
    error = masked.std(0) / math.sqrt(draws)
    assert (masked.std(0) > 0.1).all()
    assert ((masked.mean(0) - plain).abs() < 4 * error).all()


def test_noise_lies_row_by_row():
    m, (x, y) = method("regression", hidden_layers=2), problem("regression")
    data = training_set(x, y)
    state = m.start(data, keys(1))
    units = 2 * state.params["layer1.weight"].shape[-1]
    assert m.noise_shapes(state, 7, 0, 1) == Shapes(per_row=(units,))
    noise = noise_for(m, state, [len(x)])
    other = noise.clone()
    other[:, 3 * units : 4 * units] *= -1  # keeps what was left out and leaves out what was kept
    one, two = (forward(x[None], m.weights(state), m.masks(n.view(1, len(x), -1)))[0, :, 0] for n in (noise, other))
    assert (one != two).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("task", TASKS)
def test_mini_batches_are_unbiased_at_the_same_masks(task):
    m, (x, y) = method(task), problem(task)
    data = training_set(x, y)
    state = perturbed(m.start(data, keys(1)))
    noise = noise_for(m, state, [len(x)]).view(1, 4, -1)
    parts = [flat_loss(m, state, data.take(torch.arange(10 * p, 10 * p + 10)[None]), noise[:, p]) for p in range(4)]
    whole = flat_loss(m, state, data.full(), noise.view(1, -1))
    torch.testing.assert_close(torch.stack(parts).mean(0), whole, rtol=1e-12, atol=0)


def test_weights_start_with_the_variance_of_he2015_and_without_bias():
    m, (x, y) = method("regression", units=300, hidden_layers=2), problem("regression")
    params = m.start(training_set(x, y), keys(1)).params
    for name, num_inputs in [("layer1", 3), ("layer2", 300)]:
        weight = params[f"{name}.weight"][0]
        assert weight.shape == (num_inputs + 1, 300)
        # relative standard error of a variance from K normals: sqrt(2 / K)
        assert abs(weight[:-1].square().mean() * num_inputs / 2 - 1) < 4 * math.sqrt(2 / (num_inputs * 300))
        assert weight[-1].abs().max() == 0


def test_several_targets_have_an_output_each():
    m, (x, y) = Method(Hyperparameters(match_basis=10), "regression", 0, 2), problem("regression")
    data = training_set(x, torch.cat([y, -y], 1))
    state = m.start(data, keys(1))
    assert flat_loss(m, state, data.full(), noise_for(m, state, [len(x)])).isfinite().all()
    assert m.predict(state, x[None, :5], keys(1)[0]).mean().shape == (5, 2)


@pytest.mark.parametrize("task", TASKS)
def test_batched_replicas_equal_one_at_a_time(task):
    assert_batched_is_looped(method(task, hidden_layers=2), task)


@pytest.mark.parametrize("task", TASKS)
def test_nan_stays_in_its_replica(task):
    assert_nan_stays_in_its_replica(method(task), task)


def test_the_masks_of_a_prediction_have_the_mean_and_variance_of_one_hidden_layer():
    """f = sum_j d_j a_j w_j + b: mean that of no masks, variance p / (1 - p) sum_j (a_j w_j)^2."""
    dropout, samples = 0.2, 4000
    m, (x, y) = method("regression", dropout=dropout, samples_test=samples), problem("regression")
    state = perturbed(m.start(training_set(x, y), keys(1)))
    predictive = m.predict(state, x[None, :5], keys(1)[0])
    first, last = (weight[0] for weight in m.weights(state))
    a = (x[:5] @ first[:-1] + first[-1]).relu()
    mean, variance = a @ last[:-1] + last[-1], dropout / (1 - dropout) * a.square() @ last[:-1].square()
    found, error = predictive.component_mean, (variance / samples).sqrt()
    assert found.shape == (samples, 5, 1)
    assert (np.abs(found.mean(0) - mean.numpy()) < 5 * error.numpy()).all()
    np.testing.assert_allclose(found.var(0), variance, rtol=0.15)
    np.testing.assert_allclose(predictive.component_variance, state.params["log_noise_variance"].exp().item())


@pytest.mark.parametrize("task", TASKS)
def test_a_prediction_without_dropout_has_alike_components(task):
    m, (x, y) = method(task, dropout=0.0, samples_test=3, input_dropout=True), problem(task)
    state = perturbed(m.start(training_set(x, y), keys(1)))
    plain = method(task).predict(state, x[None], keys(1)[0])
    predictive = m.predict(state, x[None], keys(1)[0])
    name = "component_mean" if task == "regression" else "component_probs"
    one, three = (getattr(made, name) for made in (plain, predictive))
    np.testing.assert_allclose(three, np.repeat(one, 3, 0), rtol=1e-12)


def test_the_loss_of_mc_dropout_is_that_of_its_program():
    """n precision / 2 times its loss: mean squared error + l^2 (1 - p) / (2 n precision) sum ||W||^2, and constants."""
    settings = {"dropout": 0.3, "input_dropout": True, "prior_lengthscale": 2.0, "precision": 5.0}
    m, (x, y) = method("regression", **settings), problem("regression")
    data = training_set(x, y)
    state = m.start(data, keys(1))
    assert m.frozen(0, 10) == {"log_noise_variance"}
    assert state.params["log_noise_variance"].exp().item() == pytest.approx(0.2)
    state = State(perturbed(state).params | {"log_noise_variance": state.params["log_noise_variance"]}, state.buffers)
    units = x.shape[1] + state.params["layer1.weight"].shape[-1]
    assert m.noise_shapes(state, len(x), 0, 1) == Shapes(per_row=(units,))
    noise = noise_for(m, state, [len(x)])
    masks = (noise.view(len(x), units) > special.ndtri(0.3)).double() / 0.7
    first, last = (weight[0] for weight in m.weights(state))
    inputs, hidden = masks.split([x.shape[1], units - x.shape[1]], -1)
    f = (((x * inputs) @ first[:-1] + first[-1]).relu() * hidden) @ last[:-1] + last[-1]
    n, decay = len(x), sum(weight[:-1].square().sum() for weight in (first, last))
    theirs = (y - f).square().mean() + 2.0**2 * 0.7 / (2 * n * 5.0) * decay
    expected = n * 5.0 / 2 * theirs + n / 2 * math.log(2 * math.pi / 5.0)
    torch.testing.assert_close(flat_loss(m, state, data.full(), noise)[0], expected, rtol=1e-10, atol=0)


def test_a_precision_is_for_regression():
    assert Hyperparameters(precision=2.0).impossible("regression") == ""
    assert Hyperparameters(precision=2.0).impossible("binary") == "precision is for regression, not binary"
