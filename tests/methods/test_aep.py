import aep_cases as toy
import gp_cases as cases
import numpy as np
import pytest
import torch

from gpbench.gp import linalg
from gpbench.methods import aep
from gpbench.methods.base import State

CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}
NO_NOISE = torch.empty(1, 0)
VARIANTS = {
    "default": {},
    "separate": {"separate": "all"},
    "kernels": {"separate": "kernels", "mean_function": "linear"},
    "linear": {"mean_function": "linear", "layers": 3},
    "power": {"power": 0.5, "ard": False},
}


def method(task: str = "regression", **settings) -> aep.Method:
    return aep.Method(aep.Hyperparameters(**{"num_inducing": 6} | settings), task, CLASSES[task])


def start(ours: aep.Method, **sizes):
    data = cases.training_set(*cases.problem(ours.task, **sizes))
    return data, cases.perturbed(ours.start(data, cases.keys(1)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.slow
def test_gradient_agrees_with_finite_differences(variant):
    # a large jitter: finite differences of the moments magnify their rounding by 1 / jitter
    ours = method(num_inducing=3, jitter=1e-2, **VARIANTS[variant])
    data, state = start(ours, n=5, num_inputs=2)
    names = list(state.params)

    def loss(*values):
        return ours.loss(State(dict(zip(names, values, strict=True)), state.buffers), data.full(), NO_NOISE)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.slow
def test_batched_is_looped_and_padding_changes_nothing(task, variant):
    cases.assert_batched_is_looped(method(task, **VARIANTS[variant]), task)


def test_nan_stays_in_its_replica():
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(), "regression")
    assert {(e["name"], e["replica"]) for e in linalg.events()} == {("layer1", 1), ("layer2", 1)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_minibatch_energies_average_to_the_full_batch(variant):
    ours = method(**VARIANTS[variant])
    data, state = start(ours)
    parts = [ours.loss(state, data.take(torch.arange(40)[None, k::4]), NO_NOISE) for k in range(4)]
    torch.testing.assert_close(sum(parts) / 4, ours.loss(state, data.full(), NO_NOISE))


@pytest.mark.parametrize("separate", ["kernels", "all"])
@pytest.mark.parametrize("mean_function", ["zero", "linear"])
def test_outputs_with_equal_kernels_of_their_own_are_outputs_that_share_one(separate, mean_function):
    shared = method("multiclass", mean_function=mean_function)
    data, state = start(shared)
    own = dict(state.params)
    for name, outputs in (("layer1", 2), ("layer2", 3)):
        parts = ("log_lengthscale", "log_outputscale", *(["inducing_inputs"] if separate == "all" else []))
        for key in (f"{name}.{part}" for part in parts):
            own[key] = own[key][:, None].repeat(1, outputs, *(1 for _ in own[key].shape[1:]))
    apart = method("multiclass", mean_function=mean_function, separate=separate)
    assert {k: v.shape for k, v in apart.start(data, cases.keys(1)).params.items()} == {
        k: v.shape for k, v in own.items()
    }
    values = [m.loss(State(p, state.buffers), data.full(), NO_NOISE) for m, p in ((shared, state.params), (apart, own))]
    torch.testing.assert_close(*values, rtol=1e-9, atol=0)


def test_hidden_layers_have_at_least_their_noise_and_predictions_at_least_that_of_the_targets():
    ours = method(layers=3)
    _, state = start(ours)
    predictive = ours.predict(state, 5 * cases.problem("regression")[0][None], cases.keys(1)[0])
    assert predictive.component_variance.min() >= float(state.params["log_noise_variance"].exp())


def test_predictions_are_moments_of_the_posterior_sampled_layer_by_layer():
    """Draws of h^1 and then of f at each; the hidden units are independent given x, so that draws are exact."""
    sites = toy.exact_sites()
    state = toy.state(toy.layer("layer1", sites), toy.layer("layer2", sites))
    at, rng = np.array([0.25]), np.random.default_rng(0)
    hidden_mean, hidden_variance = toy.moments(toy.state(toy.layer("layer1", sites)), at)
    hidden = hidden_mean + np.sqrt(hidden_variance + 0.01) * rng.normal(size=200_000)
    mean, variance = toy.moments(toy.state(toy.layer("layer1", sites)), hidden)
    f = mean + np.sqrt(variance) * rng.normal(size=len(hidden))
    ours = toy.moments(state, at)
    assert abs(ours[0][0] - f.mean()) < 5 * f.std() / np.sqrt(len(f))
    assert abs(ours[1][0] - f.var()) < 5 * ((f - f.mean()) ** 2).std() / np.sqrt(len(f))


def test_where_layers_start():
    x, y = cases.problem("regression", n=60)
    data = cases.training_set(x, y)
    ours = method(num_inducing=5, outputscale=0.3, hidden_outputscale=1.7, hidden_lengthscale=2.2)
    params = ours.start(data, cases.keys(1)).params
    scales = [params[f"layer{number}.log_outputscale"].exp().item() for number in (1, 2)]
    assert [*scales, params["layer2.log_lengthscale"].exp().mean().item()] == pytest.approx([0.3, 1.7, 2.2])
    distances = torch.pdist(x).sort().values
    np.testing.assert_allclose(params["layer1.log_lengthscale"].exp(), 0.5 * np.median(distances))
    np.testing.assert_allclose(params["layer2.inducing_inputs"][0], np.linspace([-1, -1], [1, 1], 5))
    # the sites of u have precision diag(1 / d), d in (0, 0.5), and means from -1 to 1
    for name in ours.names:
        state = State(params)
        factor, shift = ours.sites(state, name)
        layer = ours.layer(state, name, aep.posterior(factor, shift, name))
        inverse = torch.linalg.inv(layer.chol_kzz)
        precision = inverse.mT @ (factor @ factor.mT)[:, 0] @ inverse
        diagonal = precision.diagonal(dim1=1, dim2=2)
        torch.testing.assert_close(precision, torch.diag_embed(diagonal), rtol=1e-6, atol=1e-6)
        assert float(diagonal.min()) >= 2
        mean = (inverse.mT @ shift[:, 0, :, None])[..., 0] / diagonal
        np.testing.assert_allclose(mean, np.linspace(-1, 1, 5)[None].repeat(len(mean), 0), atol=1e-6)


@pytest.mark.parametrize("rows", [3, 10_000])
def test_gradient_of_the_cavity_is_that_of_differences(rows):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 5, 5), (2, 3, 5), (2, 3, 5), (2, 3, 5, 5), (3,)  # [Q, R, M, M], [Q, R, M] and [R]
    factor, shift, *weights = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    fraction = torch.tensor([1.0, 0.5, 0.9], dtype=torch.float64) / rows

    def weighted(factor, shift):
        q, energy = aep.cavity(aep.posterior(factor, shift, "layer"), shift, fraction, "layer")
        return sum((part * weight).sum() for part, weight in zip((q.mean, q.root, energy), weights, strict=True))

    sites = factor.triu().requires_grad_(), shift.requires_grad_()
    assert torch.autograd.gradcheck(weighted, sites, rtol=1e-5, atol=1e-5)


def test_linear_mean_pushes_the_inducing_inputs_on():
    ours = method(mean_function="linear")
    state = ours.start(cases.training_set(*cases.problem("regression")), cases.keys(1))
    pushed = state.params["layer1.inducing_inputs"] @ state.buffers["layer1.mean_map"]
    torch.testing.assert_close(state.params["layer2.inducing_inputs"], pushed)


@pytest.mark.parametrize(("rows", "median", "within"), [(3, 0.5, 1e-12), (1500, 1 - np.sqrt(0.5), 0.02)])
def test_median_distance_of_few_and_many_rows(rows, median, within):
    """Of rows evenly on the unit interval: distance r has density 2 (1 - r)."""
    x = np.linspace(0, 1, rows)[:, None]
    assert aep.median_distance(x, np.random.default_rng(0)) == pytest.approx(median, abs=within)


def test_median_distance_of_equal_rows_is_one():
    assert aep.median_distance(np.ones((5, 2)), np.random.default_rng(0)) == 1.0


def test_common_scale_of_the_classes_is_not_trained():
    ours = method("multiclass")
    data, state = start(ours)
    _, gradient = cases.loss_and_gradient(ours, state, data.full(), NO_NOISE)
    (name,) = ours.frozen(0, 10)
    largest = max(float(value.abs().max()) for value in gradient.values())
    assert float(gradient[name].abs().max()) < 1e-9 * largest
    assert not method("regression").frozen(0, 10)
    assert not method("multiclass", separate="all").frozen(0, 10)


@pytest.mark.parametrize(
    ("task", "dtype"),
    [("regression", torch.float32), ("binary", torch.float64), ("multiclass", torch.float32)],
)
@pytest.mark.slow
def test_training_beats_the_constant_predictor(task, dtype):
    x, y = cases.problem(task, n=80, dtype=dtype)
    ours = method(task, num_inducing=20)
    state, losses = cases.train(ours, cases.training_set(x, y), 150)
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    assert {value.dtype for value in state.params.values()} == {dtype}
    predictive = ours.predict(state, x[None], cases.keys(1)[0])
    assert predictive.is_finite()
    if task == "regression":
        assert np.mean((predictive.mean() - y.numpy()) ** 2) < 0.5 * np.var(y.numpy())
    else:
        modal = float(y.flatten().mode().values)
        assert np.mean(predictive.modal() == y[:, 0].numpy()) > (y == modal).double().mean() + 0.1


@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.slow
def test_powers_of_the_classification_likelihoods_learn(task):
    x, y = cases.problem(task, n=80)
    ours = method(task, num_inducing=20, power=0.5)
    state, losses = cases.train(ours, cases.training_set(x, y), 150)
    predictive = ours.predict(state, x[None], cases.keys(1)[0])
    assert losses[-1] < losses[0]
    assert (
        np.mean(predictive.modal() == y[:, 0].numpy()) > (y == float(y.flatten().mode().values)).double().mean() + 0.1
    )
