import gp_cases as cases
import numpy as np
import pytest
import torch

from gpbench.gp import linalg
from gpbench.methods import dsvi, svgp
from gpbench.methods.base import State

CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}


def method(task: str = "regression", **settings) -> dsvi.Method:
    small = {"num_inducing": 6, "hidden_width": 3, "samples_test": 4}
    return dsvi.Method(dsvi.Hyperparameters(**small | settings), task, CLASSES[task])


def start(ours: dsvi.Method, task: str = "regression"):
    data = cases.training_set(*cases.problem(task))
    return data.full(), cases.perturbed(ours.init(data, cases.keys(1)))


def test_one_layer_is_svgp():
    batch, state = start(method(layers=1))
    shallow = svgp.Method(svgp.Hyperparameters(num_inducing=6), "regression")
    nothing = torch.empty(1, 0, dtype=torch.float64)
    assert method(layers=1).noise_size(40) == 0
    assert torch.equal(method(layers=1).loss(state, batch, nothing), shallow.loss(state, batch, nothing))


def test_hidden_layer_without_variance_is_the_identity():
    deep = method()
    batch, state = start(deep)
    one = state.params
    prior = svgp.init_layer("layer1", one["layer1.inducing_inputs"], 3, torch.ones(1).double(), 1e-14)
    state = State(one | prior | {"layer1.log_noise_variance": torch.tensor([-40.0]).double()}, state.buffers)
    shallow = svgp.Method(svgp.Hyperparameters(num_inducing=6), "regression")
    last = {k.replace("layer2", "layer1"): v for k, v in one.items() if not k.startswith("layer1")}
    expected = shallow.loss(State(last), batch, torch.empty(1, 0, dtype=torch.float64))
    torch.testing.assert_close(deep.loss(state, batch, cases.noise_for(deep, [40])), expected, rtol=1e-5, atol=0)


def test_prior_in_every_layer_has_no_kl_and_prior_moments():
    deep = method(inner_chol_factor=1.0)
    data = cases.training_set(*cases.problem("regression"))
    state = deep.init(data, cases.keys(1))
    batch = data.full()
    mean, variance = deep.propagate(state, deep.layers(state), batch.x, cases.noise_for(deep, [40]))
    torch.testing.assert_close(mean, torch.zeros_like(mean))
    torch.testing.assert_close(variance, torch.ones_like(variance))
    expected = deep.likelihood.expected_log_prob(batch.y, mean, variance, deep.noise_variance(state)).sum()
    torch.testing.assert_close(-deep.loss(state, batch, cases.noise_for(deep, [40])).sum(), expected)


def test_layers_propagate_as_an_independent_loop_does():
    deep = method(layers=3, samples_train=2)
    batch, state = start(deep)
    noise = cases.noise_for(deep, [40])
    mean, _ = deep.propagate(state, deep.layers(state), batch.x, noise)
    eps = noise.view(40, 2, 2, 3)
    layers = deep.layers(state)
    for sample in range(2):
        f = batch.x[0]
        for number in range(2):
            chol, part = layers[number].chol_kzz[0], layers[number]
            scaled = (f[:, None] - part.inducing_inputs[0]) / part.lengthscale[0]
            kxz = part.outputscale[0] * torch.exp(-0.5 * scaled.square().sum(-1))
            a = torch.linalg.solve(chol, kxz.T)
            spread = part.outputscale[0] - a.square().sum(0)[:, None]
            spread = spread + torch.stack([(root.T @ a).square().sum(0) for root in part.whitened_chol[0]], -1)
            spread = spread + state.params[f"layer{number + 1}.log_noise_variance"].exp()
            f = f + a.T @ part.whitened_mean[0] + spread.sqrt() * eps[:, sample, number]
        expected, _ = svgp.sparse.conditional(f[None], *layers[-1])
        torch.testing.assert_close(mean[sample], expected, rtol=1e-8, atol=1e-8)


def test_minibatch_estimates_average_to_the_full_batch_for_fixed_noise():
    deep = method()
    data = cases.training_set(*cases.problem("regression"))
    state = cases.perturbed(deep.init(data, cases.keys(1)))
    noise = cases.noise_for(deep, [40])
    rows = noise.view(1, 40, -1)
    parts = [deep.loss(state, data.take(torch.arange(40)[None, k::4]), rows[:, k::4].flatten(1)) for k in range(4)]
    torch.testing.assert_close(sum(parts) / 4, deep.loss(state, data.full(), noise))


def test_more_samples_are_the_average_of_single_ones():
    one, two = method(), method(samples_train=2)
    batch, state = start(one)
    noise = cases.noise_for(two, [40])
    single = [one.loss(state, batch, noise.view(1, 40, 2, 3)[:, :, s].flatten(1)) for s in range(2)]
    torch.testing.assert_close(two.loss(state, batch, noise), sum(single) / 2)


def test_mean_map_keeps_pads_or_projects_on_the_singular_vectors():
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(2, 50, 4)))
    identity = torch.eye(4, dtype=torch.float64)
    assert torch.equal(dsvi.mean_map(x, 4)[1], identity)
    assert torch.equal(dsvi.mean_map(x, 6)[1], torch.cat([identity, torch.zeros(4, 2)], 1))
    narrow = dsvi.mean_map(x, 2)
    for r in range(2):
        right = np.linalg.svd(x[r].numpy())[2][:2].T
        np.testing.assert_allclose(np.abs(right.T @ narrow[r].numpy()), np.eye(2), atol=1e-10)


def test_wide_inputs_pass_through_the_mean_map():
    deep = method(hidden_width=2, layers=3)
    _, state = start(deep)
    assert state.params["layer1.inducing_inputs"].shape == (1, 6, 3)
    assert state.params["layer2.inducing_inputs"].shape == state.params["layer3.inducing_inputs"].shape == (1, 6, 2)
    fresh = deep.init(cases.training_set(*cases.problem("regression")), cases.keys(1))
    z = fresh.params["layer1.inducing_inputs"] @ fresh.buffers["layer1.mean_map"]
    torch.testing.assert_close(fresh.params["layer2.inducing_inputs"], z)


@pytest.mark.parametrize("task", CLASSES)
def test_batched_is_looped_and_padding_changes_nothing(task):
    cases.assert_batched_is_looped(method(task, samples_train=2), task)


def test_nan_stays_in_its_replica():
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(), "regression")
    assert {(e["name"], e["replica"]) for e in linalg.events()} == {("layer1", 1), ("layer2", 1)}


def test_gradient_agrees_with_finite_differences():
    deep = method(num_inducing=3)
    data = cases.training_set(*cases.problem("regression", n=5, num_inputs=2))
    state = cases.perturbed(deep.init(data, cases.keys(1)))
    names, noise = list(state.params), cases.noise_for(deep, [5])

    def loss(*values):
        return deep.loss(State(dict(zip(names, values, strict=True)), state.buffers), data.full(), noise)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()], atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("task", CLASSES)
def test_training_beats_the_constant_predictor(task, dtype):
    x, y = cases.problem(task, n=80, dtype=dtype)
    deep = method(task)
    state, losses = cases.train(deep, cases.training_set(x, y), 100)
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    (predictive,) = deep.predict(state, x[None], cases.keys(1))
    assert predictive.is_finite()
    if task == "regression":
        assert predictive.component_mean.shape == (4, 80, 1)
        assert np.mean((predictive.mean() - y.numpy()) ** 2) < 0.5 * np.var(y.numpy())
    else:
        modal = float(y.flatten().mode().values)
        assert np.mean(predictive.modal() == y[:, 0].numpy()) > (y == modal).double().mean() + 0.1
