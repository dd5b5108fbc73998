import gp_cases as cases
import numpy as np
import pytest
import torch
from deep_cases import log_evidence

from gpbench.gp import linalg, sparse
from gpbench.gp.layers import init_layer, layer, mean_map
from gpbench.methods import base, dsvi, svgp
from gpbench.methods.base import State
from gpbench.methods.training_rows import Batch

CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}


def propagated(
    deep: dsvi.Method, state: State, batch: Batch, normals: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    layers, noise = deep.layers(state), cases.split(deep, state, batch, normals).per_row.permute(2, 0, 1, 3)
    return deep.propagate(state, layers, batch.x, sparse.conditional(batch.x[None], layers[0]), noise)


def method(task: str = "regression", **settings) -> dsvi.Method:
    small = {"num_inducing": 6, "hidden_width": 3, "samples_test": 4}
    return dsvi.Method(dsvi.Hyperparameters(**small | settings), task, CLASSES[task])


def start(ours: dsvi.Method, task: str = "regression"):
    data = cases.training_set(*cases.problem(task))
    return data.full(), cases.perturbed(ours.start(data, cases.keys(1)))


@pytest.mark.parametrize("options", [{}, {"separate": "all", "ard": False}], ids=["shared", "separate"])
@pytest.mark.parametrize(
    ("task", "multiclass"), [*((task, "robustmax") for task in CLASSES), ("multiclass", "softmax")]
)
def test_one_layer_is_svgp(task, multiclass, options):
    """To the last bit: loss, gradient, predictions and draws of functions."""
    options = options | {"num_inducing": 6, "samples_test": 4, "multiclass": multiclass}
    deep = dsvi.Method(dsvi.Hyperparameters(layers=1, **options), task, CLASSES[task])
    shallow = svgp.Method(svgp.Hyperparameters(**options), task, CLASSES[task])
    batch, state = start(deep, task)
    for one in (deep, shallow):
        assert cases.noise_size(one, state, 40) == (120 if multiclass == "softmax" else 0)
    noise = cases.noise_for(deep, state, [40])
    (loss, gradient), (expected, its_gradient) = (
        cases.loss_and_gradient(one, state, batch, noise) for one in (deep, shallow)
    )
    assert torch.equal(loss, expected)
    assert all(torch.equal(gradient[name], value) for name, value in its_gradient.items())
    x = batch.x[:, :5]
    ((ours,), (theirs,)) = (one.functions(state, x, cases.keys(1)[0]) for one in (deep, shallow))
    assert torch.equal(ours, theirs)
    ours, theirs = (one.predict(state, x, cases.keys(1)[0]) for one in (deep, shallow))
    for one, other in zip(cases.arrays(ours), cases.arrays(theirs), strict=True):
        assert len(one) == (4 if multiclass == "softmax" else 1)
        np.testing.assert_array_equal(one, other)


def test_order_of_the_inducing_inputs_changes_nothing():
    """The inducing inputs of both layers in another order, with the same q(u)."""
    deep = method(jitter=1e-10, lengthscale=1.0)
    batch, state = start(deep)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    moved = dict(state.params)
    for name, part in zip(deep.names, deep.layers(state), strict=True):
        moved[f"{name}.inducing_inputs"] = part.inducing_inputs[:, order]
        chol = layer(moved, name, 1e-10).chol_kzz
        mean = torch.linalg.solve_triangular(chol, (part.chol_kzz @ part.whitened_mean)[:, order], upper=False)
        # S of u is unchanged; a QR decomposition makes its root triangular without squaring it
        root = torch.linalg.qr((part.chol_kzz[:, None] @ part.whitened_chol)[:, :, order].mT).R.mT
        root = torch.linalg.solve_triangular(chol[:, None], root, upper=False)
        moved |= {f"{name}.whitened_mean": mean, f"{name}.whitened_chol": root}
    noise = cases.noise_for(deep, state, [40])
    expected = cases.flat_loss(deep, state, batch, noise)
    torch.testing.assert_close(
        cases.flat_loss(deep, State(moved, state.buffers), batch, noise), expected, rtol=1e-8, atol=0
    )


def test_hidden_layer_without_variance_is_the_identity():
    deep = method()
    batch, state = start(deep)
    one = state.params
    prior = init_layer("layer1", one["layer1.inducing_inputs"], 3, torch.ones(1).double(), 1e-24)
    state = State(one | prior | {"layer1.log_noise_variance": torch.tensor([-60.0]).double()}, state.buffers)
    shallow = svgp.Method(svgp.Hyperparameters(num_inducing=6), "regression")
    last = {k.replace("layer2", "layer1"): v for k, v in one.items() if not k.startswith("layer1")}
    expected = cases.flat_loss(shallow, State(last), batch, torch.empty(1, 0, dtype=torch.float64))
    torch.testing.assert_close(
        cases.flat_loss(deep, state, batch, cases.noise_for(deep, state, [40])), expected, rtol=1e-9, atol=0
    )


def test_prior_in_every_layer_has_no_kl_and_prior_moments():
    deep = method(inner_chol_factor=1.0)
    data = cases.training_set(*cases.problem("regression"))
    state = deep.start(data, cases.keys(1))
    batch = data.full()
    mean, variance = propagated(deep, state, batch, cases.noise_for(deep, state, [40]))
    torch.testing.assert_close(mean, torch.zeros_like(mean))
    torch.testing.assert_close(variance, torch.ones_like(variance))
    expected = deep.likelihood.expected_log_prob(batch.y, mean, variance, base.noise_variance(state.params)).sum()
    torch.testing.assert_close(-cases.flat_loss(deep, state, batch, cases.noise_for(deep, state, [40])).sum(), expected)


def test_layers_propagate_as_an_independent_loop_does():
    deep = method(layers=3, samples_train=2)
    batch, state = start(deep)
    noise = cases.noise_for(deep, state, [40])
    mean, _ = propagated(deep, state, batch, noise)
    eps = noise.view(40, 2, 2, 3)
    layers = deep.layers(state)
    for sample in range(2):
        f = batch.x[0]
        for number in range(2):
            chol, part = layers[number].chol_kzz[0], layers[number]
            scaled = (f[:, None] - part.inducing_inputs[0]) / part.kernel.lengthscale[0]
            kxz = part.kernel.outputscale[0] * torch.exp(-0.5 * scaled.square().sum(-1))
            a = torch.linalg.solve(chol, kxz.T)
            spread = part.kernel.outputscale[0] - a.square().sum(0)[:, None]
            spread = spread + torch.stack([(root.T @ a).square().sum(0) for root in part.whitened_chol[0]], -1)
            spread = spread + state.params[f"layer{number + 1}.log_noise_variance"].exp()
            f = f + a.T @ part.whitened_mean[0] + spread.sqrt() * eps[:, sample, number]
        expected, _ = sparse.conditional(f[None], layers[-1])
        torch.testing.assert_close(mean[sample], expected, rtol=1e-8, atol=1e-8)


def test_minibatch_estimates_average_to_the_full_batch_for_fixed_noise():
    deep = method()
    data = cases.training_set(*cases.problem("regression"))
    state = cases.perturbed(deep.start(data, cases.keys(1)))
    noise = cases.noise_for(deep, state, [40])
    rows = noise.view(1, 40, -1)
    parts = [
        cases.flat_loss(deep, state, data.take(torch.arange(40)[None, k::4]), rows[:, k::4].flatten(1))
        for k in range(4)
    ]
    torch.testing.assert_close(sum(parts) / 4, cases.flat_loss(deep, state, data.full(), noise))


def test_more_samples_are_the_average_of_single_ones():
    one, two = method(), method(samples_train=2)
    batch, state = start(one)
    noise = cases.noise_for(two, state, [40])
    single = [cases.flat_loss(one, state, batch, noise.view(1, 40, 2, 3)[:, :, s].flatten(1)) for s in range(2)]
    torch.testing.assert_close(cases.flat_loss(two, state, batch, noise), sum(single) / 2)


def test_the_bound_of_two_layers_is_below_the_evidence():
    """The bound on average over the noise; the evidence by draws of the hidden layer from its prior."""
    deep, data = method(num_inducing=5, samples_train=200), cases.training_set(cases.X, cases.Y)
    state, _ = cases.train(method(num_inducing=5, inner_chol_factor=0.5, noise_variance=0.2), data, 60)
    generator = torch.Generator().manual_seed(0)
    normals = torch.randn(20, 1, cases.noise_size(deep, state, 5), generator=generator, dtype=torch.float64)
    with torch.no_grad():
        bounds = -torch.stack([cases.flat_loss(deep, state, data.full(), part) for part in normals])
    whole = State(state.params | {"layer2.log_noise_variance": state.params["log_noise_variance"]})
    x, y = cases.X.numpy(), cases.Y[:, 0].numpy()
    evidence, error = log_evidence(whole, x, y, samples=20_000, mean=x[:, 0])
    margin = evidence - bounds.mean().item()
    assert 4 * np.hypot(error, bounds.std().item() / 20**0.5) < margin < 1.5


@pytest.mark.parametrize("options", [{"multiclass": "softmax"}, {"separate": "all"}], ids=["softmax", "separate"])
def test_estimates_of_options_are_unbiased_over_mini_batches_and_samples(options):
    one, two = method("multiclass", **options), method("multiclass", samples_train=2, **options)
    data = cases.training_set(*cases.problem("multiclass"))
    state = cases.perturbed(one.start(data, cases.keys(1)))
    noise = cases.noise_for(two, state, [40])
    expected, rows = cases.flat_loss(two, state, data.full(), noise), noise.view(1, 40, -1)
    parts = [
        cases.flat_loss(two, state, data.take(torch.arange(40)[None, k::4]), rows[:, k::4].flatten(1)) for k in range(4)
    ]
    torch.testing.assert_close(sum(parts) / 4, expected)
    samples = [cases.flat_loss(one, state, data.full(), part.flatten(1)) for part in rows.chunk(2, -1)]
    torch.testing.assert_close(sum(samples) / 2, expected)


def test_separate_layers_with_equal_parameters_are_as_shared_ones():
    shared, own = method("multiclass"), method("multiclass", separate="all")
    batch, state = start(shared, "multiclass")
    repeated = dict(state.params)
    for name in shared.names:
        for part in ("inducing_inputs", "log_lengthscale", "log_outputscale"):
            value = repeated[f"{name}.{part}"]
            repeated[f"{name}.{part}"] = value[:, None].repeat(1, 3, *(1 for _ in value.shape[1:]))
    noise = cases.noise_for(shared, state, [40])
    torch.testing.assert_close(
        cases.flat_loss(own, State(repeated, state.buffers), batch, noise),
        cases.flat_loss(shared, state, batch, noise),
        rtol=1e-10,
        atol=0,
    )


@pytest.mark.parametrize("separate", ["none", "all"])
@pytest.mark.slow
def test_functions_have_the_moments_of_every_layer(separate):
    """Over two inputs, replicas apart; of the last layer those of the predictive mixture."""
    draws = 1000
    deep = method(layers=3, hidden_width=2, samples_test=draws, separate=separate, lengthscale=1.0)
    data = cases.training_set(*cases.problem("regression", num_inputs=2), [list(range(30)), list(range(10, 40))])
    state, x = cases.perturbed(deep.start(data, cases.keys(2)), 0.3), data.full().x[:, :5]
    replicas = cases.each(deep.functions, state, x, cases.keys(2))
    *hidden, last = (torch.cat(layer, 1) for layer in zip(*replicas, strict=True))
    assert [f.shape for f in (*hidden, last)] == [(draws, 2, 5, 2), (draws, 2, 5, 2), (draws, 2, 5, 1)]
    mean, variance = sparse.conditional(x, deep.layers(state)[0])
    variance = variance + state.params["layer1.log_noise_variance"].exp()[:, None, None]
    assert ((hidden[0].mean(0) - x - mean).abs() < 4.5 * (variance / draws).sqrt()).all()
    torch.testing.assert_close(hidden[0].var(0), variance, rtol=0.25, atol=0)
    for r, predictive in enumerate(cases.each(deep.predict, state, x, cases.keys(2))):
        noise = state.params["log_noise_variance"][r].exp().item()
        variance = predictive.variance() - noise
        error = np.sqrt(2 * variance / draws)  # the predictive is made of as many draws
        assert (np.abs(last[:, r].mean(0).numpy() - predictive.mean()) < 4.5 * error).all()
        np.testing.assert_allclose(last[:, r].var(0).numpy(), variance, rtol=0.25)


@pytest.mark.parametrize(("hidden_width", "outputs"), [(2, 2), (5, 3)])
def test_hidden_layers_have_no_more_outputs_than_there_are_inputs(hidden_width, outputs):
    _, state = start(method(hidden_width=hidden_width))
    assert state.params["layer1.whitened_mean"].shape == (1, 6, outputs)
    assert state.params["layer2.inducing_inputs"].shape == (1, 6, outputs)


def test_hidden_layers_start_with_little_variance_and_an_outputscale_of_their_own():
    settings = {"inner_chol_factor": 1e-3, "inner_outputscale": 0.2, "outputscale": 3.0, "layer_noise_variance": 0.01}
    method = dsvi.Method(dsvi.Hyperparameters(num_inducing=4, **settings), "regression")
    params = method.start(cases.training_set(*cases.problem("regression")), cases.keys(1)).params
    eye = torch.eye(4, dtype=torch.float64).expand(1, 3, 4, 4)
    torch.testing.assert_close(params["layer1.whitened_chol"], 1e-3 * eye)
    torch.testing.assert_close(params["layer2.whitened_chol"], eye[:, :1])
    scales = [params[name].exp().item() for name in ("layer1.log_outputscale", "layer2.log_outputscale")]
    assert scales == pytest.approx([0.2, 3.0])
    assert params["layer1.log_noise_variance"].exp().item() == pytest.approx(0.01)


def test_a_draw_is_one_function_whatever_the_rows():
    deep = method(layer_noise_variance=1e-20)
    batch, state = start(deep)
    state.params["layer1.log_noise_variance"] = torch.tensor([-60.0]).double()
    whole = deep.functions(state, batch.x, cases.keys(1)[0])
    for ours, expected in zip(deep.functions(state, batch.x[:, 10:13], cases.keys(1)[0]), whole, strict=True):
        torch.testing.assert_close(ours, expected[:, :, 10:13], rtol=1e-8, atol=1e-8)


def test_a_hidden_layer_without_amplitude_passes_on_its_inputs_on_singular_vectors():
    deep = method(layer_noise_variance=0.0, hidden_width=2)
    batch, state = start(deep)
    state.params["layer1.log_outputscale"] = torch.full((1,), -60.0).double()
    hidden, _ = deep.functions(state, batch.x, cases.keys(1)[0])
    passed_on = batch.x @ mean_map(batch.x, 2)
    torch.testing.assert_close(hidden, passed_on.expand_as(hidden), rtol=0, atol=1e-9)


def test_mean_map_keeps_pads_or_projects_on_the_singular_vectors():
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(2, 50, 4)))
    identity = torch.eye(4, dtype=torch.float64)
    assert torch.equal(mean_map(x, 4)[1], identity)
    assert torch.equal(mean_map(x, 6)[1], torch.cat([identity, torch.zeros(4, 2)], 1))
    narrow = mean_map(x, 2)
    for r in range(2):
        right = np.linalg.svd(x[r].numpy())[2][:2].T
        np.testing.assert_allclose(np.abs(right.T @ narrow[r].numpy()), np.eye(2), atol=1e-10)


def test_wide_inputs_pass_through_the_mean_map():
    deep = method(hidden_width=2, layers=3)
    _, state = start(deep)
    assert state.params["layer1.inducing_inputs"].shape == (1, 6, 3)
    assert state.params["layer2.inducing_inputs"].shape == state.params["layer3.inducing_inputs"].shape == (1, 6, 2)
    fresh = deep.start(cases.training_set(*cases.problem("regression")), cases.keys(1))
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
    state = cases.perturbed(deep.start(data, cases.keys(1)))
    names, noise = list(state.params), cases.noise_for(deep, state, [5])

    def loss(*values):
        return cases.flat_loss(deep, State(dict(zip(names, values, strict=True)), state.buffers), data.full(), noise)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()], atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.slow
def test_training_beats_the_constant_predictor(task, dtype):
    x, y = cases.problem(task, n=80, dtype=dtype)
    deep = method(task)
    state, losses = cases.train(deep, cases.training_set(x, y), 100)
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    predictive = deep.predict(state, x[None], cases.keys(1)[0])
    assert predictive.is_finite()
    if task == "regression":
        assert predictive.component_mean.shape == (4, 80, 1)
        assert np.mean((predictive.mean() - y.numpy()) ** 2) < 0.5 * np.var(y.numpy())
    else:
        modal = float(y.flatten().mode().values)
        assert np.mean(predictive.modal() == y[:, 0].numpy()) > (y == modal).double().mean() + 0.1


def test_without_noise_between_layers_it_is_the_limit_of_little_noise_and_draws_are_functions():
    ours = method(layer_noise_variance=0.0, layers=3)
    batch, state = start(ours)
    assert [name for name in state.params if name.endswith("log_noise_variance")] == ["log_noise_variance"]
    little = State(dict(state.params), state.buffers)
    for name in ours.names[:-1]:
        little.params[f"{name}.log_noise_variance"] = torch.full((1,), -60.0, dtype=torch.float64)
    noise = cases.noise_for(ours, state, [40])
    (loss, gradient), (expected, its_gradient) = (
        cases.loss_and_gradient(ours, one, batch, noise) for one in (state, little)
    )
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for name, value in gradient.items():
        torch.testing.assert_close(value, its_gradient[name], rtol=1e-8, atol=1e-10)
    twice = torch.cat([batch.x[:, :1], batch.x[:, :1]], 1)
    for values in ours.functions(state, twice, cases.keys(1)[0]):
        torch.testing.assert_close(values[:, :, 0], values[:, :, 1], rtol=1e-12, atol=1e-12)


def test_functions_that_are_drawn_take_the_last_normals_of_a_row():
    """Those before are of the hidden layer; f = mean + sd * normal, mean and sd given that layer."""
    deep = method("multiclass", multiclass="softmax")
    batch, state = start(deep, "multiclass")
    layers, first = deep.layers(state), sparse.conditional(batch.x[None], deep.layers(state)[0])
    normals = torch.randn(1, 1, 40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f, _ = deep.functions_at(state, layers, batch.x, first, normals)
    mean, variance = deep.propagate(state, layers, batch.x, first, normals)
    torch.testing.assert_close(f, mean + variance.sqrt() * normals[..., 3:])


def test_functions_of_a_hidden_layer_have_its_noise():
    """One row 4,000 times: within a draw of the function its values differ by the noise alone."""
    ours = method(layer_noise_variance=0.09)
    _, state = start(ours)
    noise_variance = state.params["layer1.log_noise_variance"].exp()
    same = state.params["layer1.inducing_inputs"][:, :1].repeat(1, 4000, 1)
    hidden = ours.functions(state, same, cases.keys(1)[0])[0][:, 0]  # [S, T, width]
    # 12 times 4,000 normals: within five standard errors
    spread = hidden.var(1).mean()
    assert abs(spread / noise_variance - 1) < 5 * (2 / hidden.numel()) ** 0.5
