import deep_cases
import gp_cases as cases
import numpy as np
import pytest
import torch

from gpbench.gp import linalg, propagation
from gpbench.methods import dgp_meanfield, sgpr
from gpbench.methods.base import State

NO_NOISE = torch.empty(1, 0, dtype=torch.float64)
JITTER = 1e-8


def method(num_targets: int = 1, **settings) -> dgp_meanfield.Method:
    hyper = dgp_meanfield.Hyperparameters(**{"num_inducing": 5, "jitter": JITTER} | settings)
    return dgp_meanfield.Method(hyper, "regression", num_targets=num_targets)


def bound(ours: dgp_meanfield.Method, state: State) -> float:
    data = dgp_meanfield.Batch(state.buffers["x"], state.buffers["y"], state.buffers["mask"])
    return -ours.loss(state, data, NO_NOISE).item()


def fitted(ours: dgp_meanfield.Method, n: int = 12) -> State:
    """A state off its start, with gradients switched off."""
    return cases.perturbed(ours.start(cases.training_set(*cases.problem("regression", n=n)), cases.keys(1)))


def two_targets() -> cases.TrainingSet:
    x, y = cases.problem("regression")
    return cases.training_set(x, torch.cat([y, x[:, :1] ** 2], 1))


def test_with_one_layer_it_is_sgpr():
    settings = {"num_inducing": 6, "noise_variance": 0.1, "jitter": 1e-6}
    ours = method(2, layers=1, **settings)
    other = sgpr.Method(sgpr.Hyperparameters(**settings), "regression", num_targets=2)
    data, test = two_targets(), torch.linspace(-2, 2, 15).double().view(1, 5, 3)
    state, twin = ours.start(data, cases.keys(1)), other.start(data, cases.keys(1))
    assert float(ours.loss(state, data.full(), NO_NOISE)) == pytest.approx(
        float(other.loss(twin, data.full(), NO_NOISE)), rel=1e-10
    )
    one, another = (m.predict(s, test, cases.keys(1)[0]) for m, s in ((ours, state), (other, twin)))
    np.testing.assert_allclose(one.mean(), another.mean(), atol=1e-9)
    np.testing.assert_allclose(one.variance(), another.variance(), atol=1e-9)


def test_collapsed_bound_is_the_explicit_one_at_the_best_posteriors():
    ours = method(hidden_width=1, jitter=1e-5)
    state = fitted(ours)
    x, y = (state.buffers[name][0].numpy() for name in ("x", "y"))
    mean = state.buffers["components"][0].numpy() + deep_cases.one(state, "layer1.offset")
    variance = np.exp(deep_cases.one(state, "layer1.log_variance"))
    known = deep_cases.rbf(x, deep_cases.one(state, "layer1.inducing_inputs"), state, "layer1")
    first = known, np.einsum("nm,nl->nml", known, known)
    second = deep_cases.expectations(state, "layer2", mean[:, 0], variance[:, 0])
    expected = 0.5 * np.log(2 * np.pi * np.e * variance).sum()
    for name, psi, target, spread in (("layer1", first, mean, variance), ("layer2", second, y, np.zeros_like(y))):
        q = deep_cases.best_posterior(state, name, *psi, target, 1e-5)
        expected += deep_cases.uncollapsed(state, name, *psi, target, spread, q, 1e-5)
    assert bound(ours, state) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("steps", [0, 200])
@pytest.mark.slow
def test_bound_is_below_the_log_evidence(steps):
    x, y = torch.tensor([[-1.0], [-0.2], [0.4], [1.0]]).double(), torch.tensor([[0.5], [-0.4], [0.1], [0.9]]).double()
    ours = method(hidden_width=1, num_inducing=4, lengthscale=1.0)
    state, _ = cases.train(ours, cases.training_set(x, y), steps)
    evidence, error = deep_cases.log_evidence(state, x.numpy(), y[:, 0].numpy())
    assert error < 0.05
    assert bound(ours, state) < evidence - 5 * error
    # and it says something: a constant far below would pass too
    assert steps == 0 or bound(ours, state) > evidence - 3


def test_certain_hidden_variables_are_the_inputs_of_the_last_layer():
    ours = method(hidden_width=2, hidden_variance=1e-12)
    state = fitted(ours)
    state.params["layer1.log_variance"] = torch.full_like(state.params["layer1.log_variance"], np.log(1e-12))
    params, mask = state.params, state.buffers["mask"]
    *_, hidden, outputs = ours.variables(params, state.buffers)
    uncertain = ours.bound(params, "layer2", hidden, outputs, mask)
    certain = ours.bound(params, "layer2", (hidden[0], None), outputs, mask)
    torch.testing.assert_close(uncertain, certain, rtol=1e-6, atol=0)


def test_predicted_moments_are_those_of_samples_through_the_layers():
    ours = method(2, hidden_width=2)
    state = cases.perturbed(ours.start(two_targets(), cases.keys(1)))
    first, last = ours.layers(state)
    test = torch.linspace(-2, 2, 9).double().view(1, 3, 3)
    mean, variance = propagation.moments(first, test)
    std = (variance + ours.noise_variance(state, "layer1")).sqrt()
    normals = torch.randn(1, 40_000, 3, 2, generator=torch.Generator().manual_seed(0)).double()
    sampled = propagation.moments(last, (mean[:, None] + std[:, None] * normals).flatten(1, 2))
    means, variances = (part.view(40_000, 3, 2) for part in sampled)
    ours_mean, ours_variance = ours.marginals(state, test)
    error = means.std(0) / 200
    assert ((ours_mean[0] - means.mean(0)).abs() < 5 * error).all()
    np.testing.assert_allclose(ours_variance[0], variances.mean(0) + means.var(0), rtol=0.03)


def test_gradient_agrees_with_finite_differences():
    ours = method(num_inducing=3, hidden_width=2, layers=3, jitter=1e-4)
    data = cases.training_set(*cases.problem("regression", n=6), [list(range(6)), list(range(5))])
    state = cases.perturbed(ours.start(data, cases.keys(2)))
    names = list(state.params)

    def loss(*values):
        return ours.loss(State(dict(zip(names, values, strict=True)), state.buffers), data.full(), NO_NOISE)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()], atol=1e-4)


def test_batched_is_looped_and_padding_changes_nothing():
    ours, (x, y) = method(hidden_width=2, jitter=1e-5), cases.problem("regression")
    rows = [list(range(30)), list(range(5, 34))]
    batched = cases.training_set(x, y, rows)
    state, test = cases.perturbed(ours.start(batched, cases.keys(2))), x[None, :6].repeat(2, 1, 1)
    loss, gradient = cases.loss_and_gradient(ours, state, batched.full(), NO_NOISE)
    predictions = cases.each(ours.predict, state, test, cases.keys(2))
    for r, n in enumerate(map(len, rows)):
        alone = cases.training_set(x, y, [rows[r]])
        single = cases.replica(state, r)
        for tensors in (single.params, single.buffers):
            tensors |= {name: value[:, :n] for name, value in tensors.items() if value.shape[1:2] == (30,)}
        start = ours.start(alone, cases.keys(2)[r : r + 1])
        assert {name: value.shape for name, value in start.params.items()} == {
            name: value.shape for name, value in single.params.items()
        }
        for name, value in start.buffers.items():
            torch.testing.assert_close(single.buffers[name], value, rtol=1e-12, atol=1e-12)
        alone_loss, alone_gradient = cases.loss_and_gradient(ours, single, alone.full(), NO_NOISE)
        torch.testing.assert_close(loss[r : r + 1], alone_loss, rtol=1e-9, atol=0)
        scale = max(float(value.abs().max()) for value in alone_gradient.values())
        for name, value in alone_gradient.items():
            ours_gradient = gradient[name][r : r + 1]
            if ours_gradient.shape != value.shape:
                assert not ours_gradient[:, n:].any()
                ours_gradient = ours_gradient[:, :n]
            torch.testing.assert_close(ours_gradient, value, rtol=1e-9, atol=1e-9 * scale, msg=name)
        prediction = ours.predict(single, test[:1], cases.keys(1)[0])
        np.testing.assert_allclose(predictions[r].mean(), prediction.mean(), rtol=1e-9, atol=1e-9)


def test_nan_stays_in_its_replica():
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(), "regression")
    assert {(e["replica"], e["failed"]) for e in linalg.events()} == {(1, True)}


@pytest.mark.parametrize("width", [2, 3, 5])
def test_hidden_variables_start_at_principal_components_of_unit_size(width):
    x = torch.randn(1, 30, 3, generator=torch.Generator().manual_seed(0)).double() * torch.tensor([3.0, 1.0, 0.2])
    sizes = (x @ dgp_meanfield.principal_map(x, width)).square().mean(1)
    torch.testing.assert_close(sizes, torch.tensor([[1.0, 1, 1, 0, 0]]).double()[:, :width])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_training_beats_the_constant_predictor(dtype):
    x, y = cases.problem("regression", n=60, dtype=dtype)
    ours = method(num_inducing=15, jitter=1e-3)
    state, losses = cases.train(ours, cases.training_set(x, y), 60)
    assert losses[-1] < losses[0]
    assert {value.dtype for value in state.params.values()} == {dtype}
    predictive = ours.predict(state, x[None], cases.keys(1)[0])
    assert np.mean((predictive.mean() - y.numpy()) ** 2) < 0.2 * np.var(y.numpy())


def test_noises_and_hidden_variables_start_where_they_are_set():
    settings = {"layers": 3, "layer_noise_variance": 0.2, "noise_variance": 0.03, "hidden_variance": 0.4}
    ours = dgp_meanfield.Method(dgp_meanfield.Hyperparameters(num_inducing=4, **settings), "regression")
    params = ours.start(cases.training_set(*cases.problem("regression")), cases.keys(1)).params
    noises = [params[f"layer{number}.log_noise_variance"].exp().item() for number in (1, 2, 3)]
    assert noises == pytest.approx([0.2, 0.2, 0.03])
    for name in ("layer1", "layer2"):
        np.testing.assert_allclose(params[f"{name}.log_variance"].exp(), 0.4)
