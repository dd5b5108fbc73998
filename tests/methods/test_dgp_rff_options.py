"""Random-feature deep GP: what each option does."""

from itertools import product

import numpy as np
import pytest
import torch
from gp_cases import each, flat_loss, keys, loss_and_gradient, noise_for, noise_size, problem, train, training_set
from rff_cases import KERNELS, OPTIONS, TREATMENTS, method, named, start

from gpbench.methods import dgp_rff
from gpbench.methods.base import State


def certain_weights(state: State) -> State:
    """The means of q(W) tenfold, its variances as small as their clipping allows."""
    factor = {"weight_mean": 10, "weight_log_variance": 1e3}
    return State({k: factor.get(k.partition(".")[2], 1) * v for k, v in state.params.items()}, state.buffers)


def test_noise_starts_at_a_log_variance_of_minus_2_and_weights_at_their_variances():
    made = method(num_features=200, weight_mean_variance=0.01, weight_variance=0.04)
    params = made.start(training_set(*problem("regression")), keys(1)).params
    assert params["log_noise_variance"].item() == -2
    for name in ("layer1", "layer2"):
        assert params[f"{name}.weight_mean"].std().item() == pytest.approx(0.1, rel=0.1)
        np.testing.assert_allclose(params[f"{name}.weight_log_variance"].exp(), 0.04)


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_only_resampled_frequencies_vary_in_prediction(treatment):
    made = method(frequencies=treatment, samples_test=50)
    batch, state = start(made)
    hidden, f = made.functions(certain_weights(state), batch.x, keys(1)[0])
    assert (hidden.shape, f.shape) == ((50, 1, 40, 3), (50, 1, 40, 1))
    spread = torch.stack([hidden.std(0).mean(), f.std(0).mean()])
    assert (spread > 0.05).all() if treatment == "var_resampled" else (spread < 1e-3).all()


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_only_resampled_frequencies_take_noise_of_a_step(treatment):
    weights, frequencies = 16 * 3 + 16 * 1, 3 * 8 + 3 * 8
    made = method(frequencies=treatment, samples_train=2)
    batch, state = start(made)
    resampled = treatment == "var_resampled"
    assert noise_size(made, state, 40) == 2 * (weights + resampled * frequencies)
    assert {name for name in state.buffers} == (set() if resampled else {f"layer{i}.frequency_noise" for i in (1, 2)})
    noise = noise_for(made, state, [40]).requires_grad_()
    (gradient,) = torch.autograd.grad(flat_loss(made, state, batch, noise).sum(), noise)
    assert (gradient != 0).all()


def test_under_the_fixed_prior_the_frequencies_have_no_posterior():
    def parameters(treatment: str) -> set[str]:
        return set(start(method(frequencies=treatment))[1].params)

    of_posterior = {f"layer{i}.frequency_{part}" for i in (1, 2) for part in ("mean", "log_variance")}
    assert parameters("var_fixed") - parameters("prior_fixed") == of_posterior
    assert parameters("var_resampled") == parameters("var_fixed")


def test_treatments_start_from_the_same_weights():
    data = training_set(*problem("regression"))
    starts = [method(frequencies=treatment).start(data, keys(1)) for treatment in TREATMENTS]
    for name in ("layer1.weight_mean", "layer2.weight_mean"):
        assert all(torch.equal(starts[0].params[name], other.params[name]) for other in starts)
    assert torch.equal(starts[0].buffers["layer2.frequency_noise"], starts[1].buffers["layer2.frequency_noise"])


@pytest.mark.parametrize(("treatment", "freeze_frequencies"), list(product(TREATMENTS, [False, True])))
def test_what_is_frozen_for_the_first_part(treatment, freeze_frequencies):
    settings = {"frequencies": treatment, "hidden_layers": 2, "freeze_fraction": 0.25}
    made = method(**settings, freeze_frequencies=freeze_frequencies)
    frozen = ["log_lengthscale", "log_outputscale"]
    if freeze_frequencies and treatment != "prior_fixed":
        frozen += ["frequency_mean", "frequency_log_variance"]
    of_layers = {f"layer{i}.{name}" for i in (1, 2, 3) for name in frozen}
    assert made.frozen(24, 100) == of_layers | {"log_noise_variance"}
    trained = method(**settings, freeze_frequencies=freeze_frequencies, freeze_noise=False)
    assert trained.frozen(24, 100) == of_layers
    assert "log_noise_variance" not in method("binary", **settings).frozen(24, 100)
    assert made.frozen(0, 100) < set(start(made)[1].params)
    assert made.frozen(25, 100) == frozenset()


def test_samples_are_more_from_half_of_the_updates_on():
    made = method(samples_train=1, samples_late=7)
    _, state = start(made)
    one = noise_size(made, state, 40, 0, 11)
    for steps, few in ((11, 6), (10, 5)):
        samples = [noise_size(made, state, 40, step, steps) // one for step in range(steps)]
        assert samples == [1] * few + [7] * (steps - few)
    assert method().samples(10, 11) == 1


@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_many_samples_in_chunks_are_as_in_one_piece(options, monkeypatch):
    made = method(samples_train=5, **options)
    batch, state = start(made, replicas=2)
    noise, x = noise_for(made, state, [40, 40]), batch.x
    loss, gradient = loss_and_gradient(made, state, batch, noise)
    whole = each(made.predict, state, x, keys(2))
    calls = counted(monkeypatch, "_log_prob")
    monkeypatch.setattr(dgp_rff, "CHUNK_ELEMENTS", 2 * 2 * 40 * made.num_weights)
    chunked_loss, chunked = loss_and_gradient(made, state, batch, noise)
    assert len(calls) == 3 * 2  # forward, and again in the backward pass
    torch.testing.assert_close(chunked_loss, loss, rtol=1e-12, atol=0)
    for name, value in gradient.items():
        torch.testing.assert_close(chunked[name], value, rtol=1e-10, atol=1e-10 * float(value.abs().max()), msg=name)
    for ours, theirs in zip(each(made.predict, state, x, keys(2)), whole, strict=True):
        np.testing.assert_allclose(ours.component_mean, theirs.component_mean, rtol=1e-12, atol=1e-14)


def counted(monkeypatch, name: str) -> list[str]:
    """Grows with every call of a function of the method."""
    calls, function = [], getattr(dgp_rff.Method, name)

    def counting(*arguments):
        calls.append(name)
        return function(*arguments)

    monkeypatch.setattr(dgp_rff.Method, name, counting)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("treatment", TREATMENTS)
def test_local_noise_has_the_same_expected_bound_and_a_smaller_gradient_variance(treatment):
    bounds, variances, draws = [], [], 3000
    for local in (False, True):
        made = method(frequencies=treatment, local_reparameterisation=local)
        batch, state = start(made, replicas=draws)  # a draw a replica
        for name, value in state.params.items():
            # weights with a tenth of the prior's variance; less of resampled frequencies, whose noise both share
            value -= 2.0 * name.endswith("weight_log_variance") + 8.0 * name.endswith("frequency_log_variance")
        noise = torch.randn(
            draws, noise_size(made, state, 40), generator=torch.Generator().manual_seed(2 + local)
        ).double()
        bound, gradient = loss_and_gradient(made, State(first_of(state.params), first_of(state.buffers)), batch, noise)
        bounds.append(bound)
        variances.append(gradient["layer2.weight_mean"].var(0).sum())
    error = (sum(bound.var() for bound in bounds) / draws).sqrt()
    assert error < 1e-4 * bounds[0].mean().abs()
    assert abs(bounds[0].mean() - bounds[1].mean()) < 4 * error
    assert variances[1] < 0.2 * variances[0]


def first_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The first replica in the place of all."""
    return {name: value[:1].expand_as(value) for name, value in tensors.items()}


@pytest.mark.parametrize("kernel", KERNELS)
def test_local_noise_gives_one_layer_the_mean_and_variance_of_its_weights(kernel):
    """A Gaussian likelihood sees these alone; +- sqrt(K) unit vectors and +- 1 have the moments of normals."""
    local = method(hidden_layers=0, kernel=kernel, samples_train=2, local_reparameterisation=True)
    size = local.num_weights
    weights = method(hidden_layers=0, kernel=kernel, samples_train=2 * size)
    batch, state = start(weights)
    corners = size**0.5 * torch.eye(size).double()
    expected = flat_loss(weights, state, batch, torch.cat([corners, -corners]).reshape(1, -1))
    ours = flat_loss(local, state, batch, torch.tensor([1.0, -1.0]).double().repeat(1, 40))
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=0)


def test_local_noise_is_one_draw_a_row_and_output():
    made = method(local_reparameterisation=True, frequencies="var_resampled", samples_train=2)
    _, state = start(made)
    assert noise_size(made, state, 40) == 2 * (48 + 40 * (3 + 1))


def test_two_classes_by_softmax_have_two_outputs():
    made = method("binary", likelihood="softmax", num_features=30, samples_test=20)
    x, y = problem("binary", n=200)
    state, _ = train(made, training_set(x, y), 200)
    assert state.params["layer2.weight_mean"].shape == (1, 60, 2)
    assert "log_noise_variance" not in state.params
    f = made.functions(state, x[None], keys(1)[0])[-1][:, 0]
    predictive = made.predict(state, x[None], keys(1)[0])
    expected = (f[..., 1] - f[..., 0]).sigmoid().mean(0)
    np.testing.assert_allclose(np.exp(predictive.log_prob(np.ones(200))), expected, rtol=1e-9)
    assert predictive.log_prob(y[:, 0].numpy()).mean() > np.log(0.5) + 0.2


@pytest.mark.parametrize("hidden_layers", [1, 2, 30])
def test_inputs_fed_forward_add_their_rows_to_the_frequencies_of_every_layer_but_the_first(hidden_layers):
    shapes = []
    for feed_forward in (False, True):
        made = method(hidden_layers=hidden_layers, hidden_width=2, feed_forward=feed_forward)
        params = start(made)[1].params
        names = [f"layer{i}" for i in range(1, hidden_layers + 2)]
        assert all(len(params[f"{n}.log_lengthscale"][0]) == params[f"{n}.frequency_mean"].shape[1] for n in names)
        shapes.append([tuple(params[f"{name}.frequency_mean"].shape[1:]) for name in names])
    assert shapes[0] == [(3, 8)] + [(2, 8)] * hidden_layers
    assert shapes[1] == [(3, 8)] + [(2 + 3, 8)] * hidden_layers


def test_inputs_fed_forward_are_seen_by_every_layer():
    """Where the hidden functions are zero, only what is appended can tell rows apart."""
    for feed_forward in (False, True):
        made = method(hidden_layers=2, feed_forward=feed_forward)
        batch, state = start(made)
        for i in (1, 2):
            state.params[f"layer{i}.weight_mean"] = torch.zeros_like(state.params[f"layer{i}.weight_mean"])
        _, hidden, f = made.functions(certain_weights(state), batch.x, keys(1)[0])
        assert hidden.abs().max() < 1e-3
        assert (f.std(2).min() > 0.01) == feed_forward


@pytest.mark.parametrize(("num_inputs", "dtype"), [(3, torch.float64), (200, torch.float32)])
@pytest.mark.slow
def test_thirty_layers_train(num_inputs, dtype):
    made = method(hidden_layers=30, feed_forward=True, num_features=20)
    x, y = problem("regression", num_inputs=num_inputs, dtype=dtype)
    state, losses = train(made, training_set(x, y), 25)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert all(value.isfinite().all() and value.dtype == dtype for value in state.params.values())
    assert made.predict(state, x[None], keys(1)[0]).is_finite()


def test_lengthscales_start_at_the_root_of_the_total_variance_of_their_inputs():
    x, y = problem("regression")
    made = method(hidden_layers=1, hidden_width=4, feed_forward=True)
    params = made.start(training_set(3 * x, y), keys(1)).params
    total = 9 * x.var(0, correction=0).sum()
    torch.testing.assert_close(params["layer1.log_lengthscale"].exp(), total.sqrt().expand(1, 3))
    torch.testing.assert_close(params["layer2.log_lengthscale"].exp(), (4 + total).sqrt().expand(1, 7))
    given = method(hidden_width=4, feed_forward=True, lengthscale=0.5).start(training_set(3 * x, y), keys(1)).params
    torch.testing.assert_close(given["layer1.log_lengthscale"].exp(), torch.full((1, 3), 0.5).double())
    assert torch.equal(given["layer2.log_lengthscale"], params["layer2.log_lengthscale"])


def test_weights_start_with_the_variances_that_are_set():
    made = method(num_features=5000, weight_mean_variance=0.04, weight_variance=0.25)
    params = made.start(training_set(*problem("regression")), keys(1)).params
    assert params["layer1.weight_mean"].std() == pytest.approx(0.2, rel=0.03)
    torch.testing.assert_close(params["layer1.weight_log_variance"].exp().unique(), torch.tensor([0.25]).double())
