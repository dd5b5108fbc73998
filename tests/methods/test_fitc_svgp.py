import gp_cases as cases
import numpy as np
import pytest
import torch

from gpbench.gp import kernels, linalg, lowrank
from gpbench.methods import fitc, fitc_svgp, svgp
from gpbench.methods.base import State

NO_NOISE = torch.empty(1, 0, dtype=torch.float64)
Q = ("layer1.whitened_mean", "layer1.whitened_chol")
# golden: closed forms of the toy, six decimals
OPTIMUM, FITC_PREDICTION = -5.531166, (0.311039, 0.156836)


def method(num_targets: int = 1, **settings) -> fitc_svgp.Method:
    hyper = fitc_svgp.Hyperparameters(**{"num_inducing": 6} | settings)
    return fitc_svgp.Method(hyper, "regression", num_targets=num_targets)


def best_q(ours: fitc_svgp.Method, state: State, x: torch.Tensor, y: torch.Tensor) -> tuple[State, float]:
    """The state with the q(v) that the docstring gives in closed form, and what it says of the bound there."""
    params = state.params
    kernel = kernels.read("rbf", params, "layer1.")
    a = lowrank.features(x[None], params["layer1.inducing_inputs"], kernel, ours.hyper.jitter, "layer1")
    unexplained = kernel.diagonal(x[None]) - a.square().sum(1)
    variance = unexplained + params["log_noise_variance"].exp()[:, None]
    mean, chol = lowrank.mean_and_chol(lowrank.condition(a, y[None], 1 / variance, "layer1"))
    evidence = torch.distributions.MultivariateNormal(
        torch.zeros(len(x)).double(), (a.mT @ a)[0] + variance[0].diag_embed()
    )
    bound = evidence.log_prob(y.T).sum() - 0.5 * y.shape[1] * (unexplained / variance).sum()
    return State(params | dict(zip(Q, (mean, chol.contiguous()), strict=True))), float(bound)


def toy(z: torch.Tensor = cases.Z) -> tuple[fitc_svgp.Method, State, float]:
    given = {"lengthscale": cases.LENGTHSCALE, "outputscale": cases.OUTPUTSCALE, "jitter": 1e-14}
    ours = method(num_inducing=len(z), noise_variance=cases.NOISE_VARIANCE, **given)
    start = ours.start(cases.training_set(cases.X, cases.Y), cases.keys(1))
    start.params["layer1.inducing_inputs"] = z[None].clone()
    return ours, *best_q(ours, start, cases.X, cases.Y)


def elbo(ours: fitc_svgp.Method, state: State, x: torch.Tensor, y: torch.Tensor) -> float:
    return -float(cases.flat_loss(ours, state, cases.training_set(x, y).full(), NO_NOISE))


def test_the_best_q_of_the_toy_reaches_the_published_optimum():
    ours, state, bound = toy()
    assert bound == pytest.approx(OPTIMUM, abs=1e-6)
    assert elbo(ours, state, cases.X, cases.Y) == pytest.approx(OPTIMUM, abs=1e-6)


def test_the_best_q_is_stationary_and_no_other_q_is_better():
    ours, state, bound = toy()
    batch = cases.training_set(cases.X, cases.Y).full()
    _, gradient = cases.loss_and_gradient(ours, state, batch, NO_NOISE)
    for name in Q:
        np.testing.assert_allclose(gradient[name].tril(), 0.0, atol=1e-8)
    for seed in range(3):
        other = dict(state.params)
        for name in Q:
            generator = torch.Generator().manual_seed(seed)
            other[name] = other[name] + 0.1 * torch.randn(other[name].shape, generator=generator, dtype=torch.float64)
        assert elbo(ours, State(other), cases.X, cases.Y) < bound


def test_predictions_at_the_best_q_are_those_of_fitc():
    ours, state, _ = toy()
    predictive = ours.predict(state, torch.full((1, 1, 1), 0.25).double(), cases.keys(1)[0])
    mean, variance = FITC_PREDICTION
    assert predictive.mean().item() == pytest.approx(mean, abs=1e-6)
    assert predictive.component_variance.item() == pytest.approx(variance + cases.NOISE_VARIANCE, abs=1e-6)


def test_with_all_inputs_inducing_it_is_svgp_and_the_optimum_is_the_evidence():
    ours, state, bound = toy(cases.X)
    assert bound == pytest.approx(cases.EVIDENCE, abs=1e-6)
    assert elbo(ours, state, cases.X, cases.Y) == pytest.approx(cases.EVIDENCE, abs=1e-6)
    svgp_method = svgp.Method(svgp.Hyperparameters(num_inducing=5, jitter=1e-14), "regression")
    moved = cases.perturbed(State({name: state.params[name] for name in Q})).params
    elsewhere = State(state.params | moved)
    expected = elbo(svgp_method, elsewhere, cases.X, cases.Y)
    assert elbo(ours, elsewhere, cases.X, cases.Y) == pytest.approx(expected, rel=1e-9)


def test_the_optimum_is_below_the_evidence_of_fitc_and_predicts_as_it_does_for_several_targets():
    x, y = cases.problem("regression", n=30)
    y = torch.cat([y, y.square()], 1)
    ours = method(2, jitter=1e-12)
    state, bound = best_q(ours, ours.start(cases.training_set(x, y), cases.keys(1)), x, y)
    assert elbo(ours, state, x, y) == pytest.approx(bound, rel=1e-9)
    collapsed = fitc.Method(fitc.Hyperparameters(num_inducing=6, jitter=1e-12), "regression", num_targets=2)
    whole = collapsed.start(cases.training_set(x, y), cases.keys(1))
    shared = {name.removeprefix("layer1."): value for name, value in state.params.items() if name not in Q}
    whole = State(whole.params | shared, whole.buffers)
    assert bound < elbo(collapsed, whole, x, y)
    test = x[None, :7] + 0.3
    ours_there, theirs = (m.predict(s, test, cases.keys(1)[0]) for m, s in ((ours, state), (collapsed, whole)))
    for one, other in zip(cases.arrays(ours_there), cases.arrays(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)


def test_minibatch_estimates_average_to_the_full_batch():
    x, y = cases.problem("regression")
    ours, data = method(), cases.training_set(x, y)
    state = cases.perturbed(ours.start(data, cases.keys(1)))
    parts = [ours.loss(state, data.take(torch.arange(40)[None, k::4]), NO_NOISE) for k in range(4)]
    torch.testing.assert_close(sum(parts) / 4, ours.loss(state, data.full(), NO_NOISE))


def test_batched_is_looped_and_padding_changes_nothing():
    cases.assert_batched_is_looped(method(), "regression")


def test_nan_stays_in_its_replica():
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(), "regression")
    linalg.events()


def test_gradient_agrees_with_finite_differences():
    ours, data = method(num_inducing=3), cases.training_set(*cases.problem("regression", n=6))
    state = cases.perturbed(ours.start(data, cases.keys(1)))
    names = list(state.params)

    def loss(*values):
        return ours.loss(State(dict(zip(names, values, strict=True))), data.full(), NO_NOISE)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()], atol=1e-4)
