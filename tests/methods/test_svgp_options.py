"""What svgp's options do: lengthscales, kernels of the outputs, softmax, counts; and data that are awkward."""

import gp_cases as cases
import numpy as np
import pytest
import torch
from scipy import stats

from gpbench.gp import kernels, sparse
from gpbench.methods import svgp
from gpbench.methods.base import State
from gpbench.methods.training_rows import Batch

CLASSES = {"regression": 0, "binary": 2, "multiclass": 3, "counts": 0}
NO_NOISE = torch.empty(2, 0, dtype=torch.float64)


def method(task: str = "regression", **settings) -> svgp.Method:
    return svgp.Method(svgp.Hyperparameters(**{"num_inducing": 6} | settings), task, CLASSES[task])


def start(ours: svgp.Method, task: str = "regression") -> tuple[Batch, State]:
    """Two replicas off their start."""
    data = cases.training_set(*cases.problem(task), [list(range(30)), list(range(10, 40))])
    return data.full(), cases.perturbed(ours.start(data, cases.keys(2)))


def test_one_lengthscale_is_as_many_equal_ones():
    isotropic, ard = method(ard=False), method()
    batch, state = start(isotropic)
    assert state.params["layer1.log_lengthscale"].shape == (2, 1)
    equal = {"layer1.log_lengthscale": state.params["layer1.log_lengthscale"].repeat(1, 3)}
    loss, gradient = cases.loss_and_gradient(isotropic, state, batch, NO_NOISE)
    expected, by_input = cases.loss_and_gradient(ard, State(state.params | equal), batch, NO_NOISE)
    torch.testing.assert_close(loss, expected)
    own = by_input.pop("layer1.log_lengthscale").sum(1, keepdim=True)
    torch.testing.assert_close(gradient.pop("layer1.log_lengthscale"), own)
    for name, value in by_input.items():
        torch.testing.assert_close(gradient[name], value)


@pytest.mark.parametrize("separate", ["kernels", "all"])
def test_outputs_with_equal_parameters_of_their_own_are_as_those_that_share_them(separate):
    shared, own = method("multiclass"), method("multiclass", separate=separate)
    batch, state = start(shared, "multiclass")
    repeated = dict(state.params)
    for name in ("log_lengthscale", "log_outputscale", *(["inducing_inputs"] if separate == "all" else [])):
        value = state.params[f"layer1.{name}"]
        repeated[f"layer1.{name}"] = value[:, None].repeat(1, 3, *(1 for _ in value.shape[1:]))
    fresh = start(own, "multiclass")[1].params
    assert {name: value.shape for name, value in repeated.items()} == {n: v.shape for n, v in fresh.items()}
    loss, gradient = cases.loss_and_gradient(own, State(repeated), batch, NO_NOISE)
    expected, together = cases.loss_and_gradient(shared, state, batch, NO_NOISE)
    torch.testing.assert_close(loss, expected)
    for name, value in together.items():
        summed = gradient[name] if gradient[name].ndim == value.ndim else gradient[name].sum(1)
        torch.testing.assert_close(summed, value, rtol=1e-8, atol=1e-8)
    x = batch.x[:, :7]
    predictives = [
        cases.each(one.predict, State(of), x, cases.keys(2)) for one, of in ((own, repeated), (shared, state.params))
    ]
    for ours, theirs in zip(*predictives, strict=True):
        np.testing.assert_allclose(ours.component_probs, theirs.component_probs, rtol=1e-10)


def test_outputs_of_their_own_are_svgps_of_one_target_each():
    x, y = cases.problem("regression")
    y = torch.cat([y, y.square() - x[:, 1:2]], 1)
    own = svgp.Method(svgp.Hyperparameters(num_inducing=6, separate="all"), "regression", num_targets=2)
    data = cases.training_set(x, y)
    state = cases.perturbed(own.start(data, cases.keys(1)))
    losses = []
    for q in range(2):
        one = {name: value[:, q] if value.ndim > 1 else value for name, value in state.params.items()}
        one["layer1.whitened_mean"] = state.params["layer1.whitened_mean"][..., q : q + 1]
        one["layer1.whitened_chol"] = state.params["layer1.whitened_chol"][:, q : q + 1]
        losses.append(
            cases.flat_loss(method(), State(one), cases.training_set(x, y[:, q : q + 1]).full(), NO_NOISE[:1])
        )
    torch.testing.assert_close(cases.flat_loss(own, state, data.full(), NO_NOISE[:1]), sum(losses))


def test_the_softmax_estimate_is_brute_force_monte_carlo():
    """With many samples a row its mean is that of numpy's normals, gradients by mean and variance included."""
    ours = method("multiclass", multiclass="softmax", samples_train=20_000)
    batch, state = start(ours, "multiclass")
    batch = Batch(*(part[:, :3] for part in (batch.x, batch.y, batch.weight)))
    mean, variance = sparse.conditional(batch.x[None], ours.layers(state)[0])
    rng = np.random.default_rng(0)
    f = mean.numpy() + np.sqrt(variance.numpy()) * rng.normal(size=(200_000, 1, 1, 3))
    log_prob = torch.from_numpy(f).log_softmax(-1).numpy()
    label = np.broadcast_to(batch.y.long().numpy(), (200_000, *batch.y.shape))
    drawn = np.take_along_axis(log_prob, label, -1)[..., 0]
    expected, error = drawn.mean(0).sum(-1), np.sqrt((drawn.var(0) * (1 / 200_000 + 1 / 20_000)).sum(-1))
    kl = sparse.kl_whitened(*ours.layers(state)[0][2:4])
    noise = torch.randn(
        2, cases.noise_size(ours, state, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    estimate = (kl - cases.flat_loss(ours, state, batch, noise)).numpy()
    assert (np.abs(estimate - expected) < 4 * error).all()
    assert (error < 0.02).all()


def test_the_softmax_gradient_is_that_of_the_estimate():
    ours = method("multiclass", multiclass="softmax", samples_train=2, num_inducing=3)
    data = cases.training_set(*cases.problem("multiclass", n=5))
    state = cases.perturbed(ours.start(data, cases.keys(1)))
    noise = cases.noise_for(ours, state, [5])
    names = list(state.params)

    def loss(*values):
        return cases.flat_loss(ours, State(dict(zip(names, values, strict=True))), data.full(), noise)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()], atol=1e-4)


def test_softmax_predicts_the_mean_over_samples_of_f():
    ours = method("multiclass", multiclass="softmax", samples_test=5000)
    batch, state = start(ours, "multiclass")
    with torch.no_grad():
        mean, variance = sparse.conditional(batch.x[:, :4][None], ours.layers(state)[0])
    f = mean.numpy() + np.sqrt(variance.numpy()) * np.random.default_rng(0).normal(size=(50_000, 1, 1, 3))
    probs = np.exp(f - f.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    for r, predictive in enumerate(cases.each(ours.predict, state, batch.x[:, :4], cases.keys(2))):
        drawn = predictive.component_probs
        assert drawn.shape == (5000, 4, 3)
        assert (np.abs(drawn.mean(0) - probs[:, r].mean(0)) < 4.5 * drawn.std(0) / np.sqrt(5000)).all()


@pytest.mark.parametrize(("task", "said"), [("regression", "not regression"), ("binary", "not binary")])
def test_softmax_is_for_classes(task, said):
    hyper = svgp.Hyperparameters(multiclass="softmax")
    assert hyper.impossible(task) == f"multiclass: softmax is for multiclass data, {said}"
    assert hyper.impossible("multiclass") == svgp.Hyperparameters().impossible(task) == ""


def test_counts_are_poisson_with_the_exposure():
    x, f = cases.problem("regression")
    y = torch.as_tensor(np.random.default_rng(0).poisson(2.5 * f.exp().numpy())).double()
    ours = method("counts", exposure=2.5)
    data = cases.training_set(x, y)
    state = cases.perturbed(ours.start(data, cases.keys(1)))
    mean, variance = ours.marginals(state, data.full().x, cases.keys(1)[0])
    mean, sd = mean.detach().numpy().ravel(), variance.sqrt().detach().numpy().ravel()
    draws = np.random.default_rng(1).normal(mean, sd, size=(20_000, 40))
    log_prob = stats.poisson.logpmf(y.numpy().ravel(), 2.5 * np.exp(draws))
    kl = sparse.kl_whitened(*ours.layers(state)[0][2:4])
    bound = -float(cases.flat_loss(ours, state, data.full(), NO_NOISE[:1]) - kl)
    assert bound == pytest.approx(log_prob.mean(0).sum(), abs=4 * np.sqrt(log_prob.var(0).sum() / 20_000))
    trained, losses = cases.train(ours, data, 100)
    predictive = ours.predict(trained, x[None], cases.keys(1)[0])
    assert losses[-1] < losses[0]
    assert predictive.log_prob(y.numpy()).mean() > stats.poisson.logpmf(y.numpy(), y.mean().item()).mean()


AWKWARD = {
    "fewer rows than inducing inputs": lambda x: x[:4],
    "a constant column": lambda x: torch.cat([x, torch.full_like(x[:, :1], 3.0)], 1),
    "duplicated rows": lambda x: x[:10].repeat(4, 1),
}


@pytest.mark.parametrize("change", AWKWARD.values(), ids=AWKWARD.keys())
@pytest.mark.parametrize("separate", ["none", "all"])
def test_awkward_data_train_below_the_evidence(change, separate):
    x = change(cases.problem("regression")[0])
    y = torch.sin(x.sum(-1, keepdim=True))
    ours, data = method(separate=separate), cases.training_set(x, y)
    state, losses = cases.train(ours, data, 60)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    given = {name: value.detach() for name, value in state.params.items()}
    scales = [given[f"layer1.{name}"].exp().reshape(1, -1) for name in ("log_lengthscale", "log_outputscale")]
    kernel = kernels.rbf(x[None], x[None], scales[0], scales[1][:, 0])[0]
    noise = given["log_noise_variance"].exp() * torch.eye(len(x)).double()
    evidence = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), kernel + noise).log_prob(y[:, 0])
    assert -cases.flat_loss(ours, state, data.full(), NO_NOISE[:1]) < evidence


def test_only_robust_max_with_one_kernel_cannot_see_the_outputscale():
    scale = "layer1.log_outputscale"
    assert scale in method("multiclass").frozen(0, 1)
    for settings in ({"separate": "kernels"}, {"multiclass": "softmax"}):
        assert scale not in method("multiclass", **settings).frozen(0, 1)
    assert not method("regression").frozen(0, 1)
