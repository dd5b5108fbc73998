"""EP's maximum likelihood: the gradient by finite differences, the evidence by quadrature, limits and corners."""

import gp_cases as cases
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from gpbench.methods import ep_gp
from gpbench.methods.training_rows import Batch
from gpbench.sampling.latent import approximations

NO_NOISE = torch.empty(1, 0, dtype=torch.float64)


def method(**settings) -> ep_gp.Method:
    return ep_gp.Method(ep_gp.Hyperparameters(**settings), "binary", 2)


def start(one: ep_gp.Method, n: int, replicas: int = 1):
    data = cases.training_set(*cases.problem("binary", n), [list(range(n - r)) for r in range(replicas)])
    return data, cases.perturbed(one.start(data, cases.keys(replicas)), 0.3)


@pytest.mark.parametrize("ard", [False, True])
def test_gradient_agrees_with_finite_differences(ard, monkeypatch):
    monkeypatch.setattr(approximations, "TOLERANCE", 1e-20)  # log Z is stationary in the sites at the fixed point
    one = method(ard=ard)
    data, state = start(one, 12, replicas=2)
    names = list(state.params)

    def loss(*values):
        moved = ep_gp.State(dict(zip(names, values, strict=True)))
        return one.loss(moved, data.full(), NO_NOISE)

    assert state.params["log_lengthscale"].shape == (2, 3 if ard else 1)
    values = [value.requires_grad_() for value in state.params.values()]
    assert torch.autograd.gradcheck(loss, values, eps=1e-4, atol=1e-5)


def test_the_papers_stopping_rule_leaves_little_of_the_gradient(monkeypatch):
    one = method()
    data, state = start(one, 30)
    loss, gradient = cases.loss_and_gradient(one, state, data.full(), NO_NOISE)
    monkeypatch.setattr(approximations, "TOLERANCE", 1e-20)
    exact, exact_gradient = cases.loss_and_gradient(one, state, data.full(), NO_NOISE)
    torch.testing.assert_close(loss, exact, rtol=0, atol=1e-3)
    for name, value in gradient.items():
        torch.testing.assert_close(value, exact_gradient[name], rtol=0.05, atol=0.05)


def test_evidence_and_prediction_are_nearly_exact_for_two_rows():
    """EP of two probit factors against the orthant probability: Phi_2 of u = f + N(0, 1), and its conditional."""
    x, y = torch.tensor([[0.0], [0.7]], dtype=torch.float64), torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    data, one = cases.training_set(x, y), method(lengthscale=1.0, outputscale=2.0)
    state = one.start(data, cases.keys(1))

    def orthant(points, sign):
        distance = points[:, None] - points
        covariance = 2.0 * np.exp(-0.5 * distance**2) + np.eye(len(points))
        return multivariate_normal(cov=covariance * np.outer(sign, sign)).cdf(np.zeros(len(points)))

    evidence = orthant(np.array([0.0, 0.7]), np.array([1.0, -1.0]))
    assert -float(one.loss(state, data.full(), NO_NOISE)) == pytest.approx(np.log(evidence), abs=0.01)
    new = -0.3
    predictive = one.predict(state, torch.full((1, 1, 1), new, dtype=torch.float64), cases.keys(1)[0])
    joint = orthant(np.array([0.0, 0.7, new]), np.array([1.0, -1.0, 1.0]))
    assert predictive.probabilities()[0, 1] == pytest.approx(joint / evidence, abs=0.01)


def test_one_row_is_exact():
    x, y = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    data, one = cases.training_set(x, y), method(lengthscale=1.0, outputscale=3.0)
    state = one.start(data, cases.keys(1))
    assert float(one.loss(state, data.full(), NO_NOISE)) == pytest.approx(np.log(2), abs=1e-6)
    # f given y = 1 has mean sqrt(2 / pi) s^2 / sqrt(1 + s^2), s^2 = 3 (rasmussen2006, eq. 3.85)
    far = one.predict(state, torch.full((1, 1, 1), 50.0, dtype=torch.float64), cases.keys(1)[0])
    assert far.probabilities()[0, 1] == pytest.approx(0.5)
    mean = np.sqrt(2 / np.pi) * 3 / np.sqrt(4)
    variance = 3 - mean**2
    here = one.predict(state, x[None], cases.keys(1)[0])
    assert here.probabilities()[0, 1] == pytest.approx(norm.cdf(mean / np.sqrt(1 + variance)), abs=1e-5)


def test_batched_is_looped_and_padding_changes_nothing():
    cases.assert_batched_is_looped(method(), "binary")


def test_nan_stays_in_its_replica():
    cases.assert_nan_stays_in_its_replica(method(), "binary")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.slow
def test_training_raises_the_evidence_and_separates_the_classes(dtype):
    x, y = cases.problem("binary", dtype=dtype)
    state, losses = cases.train(method(), cases.training_set(x, y), 30)
    assert losses[-1] < losses[0] - 1
    assert state.params["log_lengthscale"].dtype == dtype
    predictive = method().predict(state, x[None], cases.keys(1)[0])
    assert (predictive.modal() == y[:, 0].numpy()).mean() > 0.9


def test_relabelling_the_classes_mirrors_the_probabilities():
    x, y = cases.problem("binary")
    data, mirrored = cases.training_set(x, y), cases.training_set(x, 1 - y)
    one = method()
    p, q = (one.predict(one.start(d, cases.keys(1)), x[None], cases.keys(1)[0]) for d in (data, mirrored))
    np.testing.assert_allclose(p.probabilities()[:, 1], q.probabilities()[:, 0], atol=1e-9)


def test_one_class_alone_and_repeated_rows_are_no_obstacle():
    x, y = cases.problem("binary", n=10)
    data = cases.training_set(torch.cat([x, x]), torch.ones(20, 1, dtype=torch.float64))
    state, losses = cases.train(method(), data, 30)
    assert np.isfinite(losses).all()
    predictive = method().predict(state, x[None], cases.keys(1)[0])
    assert (predictive.probabilities()[:, 1] > 0.5).all()


def test_the_order_of_the_rows_changes_no_digit():
    one = method()
    data, state = start(one, 12)
    batch, order = data.full(), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    moved = Batch(batch.x[:, order], batch.y[:, order], batch.weight)
    assert torch.equal(one.loss(state, moved, NO_NOISE), one.loss(state, batch, NO_NOISE))
