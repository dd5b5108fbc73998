"""Laplace's approximation and EP against scikit-learn, quadrature, and what defines them."""

import dataclasses
import math

import geweke
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from gpbench.errors import UserError
from gpbench.gp import latent_likelihoods
from gpbench.gp.jitter import DEFAULT_JITTER
from gpbench.gp.linalg import solve
from gpbench.sampling.latent import approximations
from gpbench.sampling.latent.approximations import ep, laplace
from gpbench.sampling.latent.model import Model, Prior

F64 = torch.float64
FIND = {"laplace": laplace, "ep": ep}
CASES = [("laplace", name) for name in latent_likelihoods.NAMED] + [("ep", "probit")]
GAMMA = Prior(1.0, 1.0)


def problem(name, chains=3, rows=12, seed=0, spread=1.0):
    """Chains at psi of their own, with data drawn there: model, psi, factor."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.random((chains, rows, 2)))
    ones = torch.ones(chains, rows, dtype=F64)
    model = Model(x, 0 * ones, ones, latent_likelihoods.named(name, 3), GAMMA, GAMMA)
    psi = torch.from_numpy(rng.normal([-1.0, spread], 0.3, (chains, 2)))
    chol = model.factor(psi)
    f = (chol @ torch.from_numpy(rng.standard_normal((chains, rows, 1))))[..., 0]
    return dataclasses.replace(model, y=geweke.observe(model, f, rng)), psi, chol


def exactly(monkeypatch):
    """Iterate to the fixed point."""
    monkeypatch.setattr(approximations, "TOLERANCE", 1e-22)


def test_laplace_is_that_of_scikit_learn(monkeypatch):
    model, psi, chol = problem("logit", rows=30)
    exactly(monkeypatch)
    q = laplace(model, psi, chol)
    new = torch.from_numpy(np.random.default_rng(1).random((3, 5, 2)))
    mean, variance = q.predict(chol, model.cross(psi, new), model.outputscale(psi)[:, None])
    for r in range(3):
        tau, sigma = psi[r].exp().tolist()
        kernel = ConstantKernel(sigma) * RBF(tau) + WhiteKernel(DEFAULT_JITTER * sigma)
        other = GaussianProcessClassifier(kernel, optimizer=None).fit(model.x[r].numpy(), model.y[r].numpy())
        assert q.log_evidence[r] == pytest.approx(other.log_marginal_likelihood(), abs=1e-6)
        # algorithm 3.2 of rasmussen2006 with what scikit-learn keeps of its fit
        base = other.base_estimator_
        cross = sigma * np.exp(-0.5 * np.square((model.x[r].numpy()[:, None] - new[r].numpy()) / tau).sum(-1))
        v = np.linalg.solve(base.L_, base.W_sr_[:, None] * cross)
        np.testing.assert_allclose(mean[r], cross.T @ (base.y_train_ - base.pi_), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance[r], sigma - np.square(v).sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", latent_likelihoods.NAMED)
def test_laplace_is_at_the_mode(name, monkeypatch):
    exactly(monkeypatch)
    # wide priors: Newton's method by itself would overshoot in counts and volatilities
    model, psi, chol = problem(name, chains=20, rows=8, spread=2.0)
    q = laplace(model, psi, chol)
    torch.testing.assert_close(q.weights, model.gradient(q.mean), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close((model.covariance(psi) @ q.weights[..., None])[..., 0], q.mean, rtol=1e-7, atol=1e-8)
    assert (q.iterations < approximations.MOST_STEPS).all()
    # a larger count than the first step of Newton survives
    if name == "poisson":
        large = dataclasses.replace(model, y=torch.full_like(model.y, 5000.0))
        assert ((laplace(large, psi, chol).mean - math.log(5000)).abs() < 0.01).all()


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_the_stopping_rule_is_close_enough(kind, name, monkeypatch):
    model, psi, chol = problem(name, chains=5, rows=20)
    early = FIND[kind](model, psi, chol)
    exactly(monkeypatch)
    late = FIND[kind](model, psi, chol)
    assert (early.iterations < late.iterations).all()
    # it stops where a latent moves by less than 0.01 in root mean square
    torch.testing.assert_close(early.log_evidence, late.log_evidence, rtol=0, atol=1e-2)


def test_newtons_method_ends_with_the_first_step_below_the_published_length(monkeypatch):
    """|change|^2 < n / 10^4 (filippone2014)."""
    model, psi, _ = problem("logit", chains=40, rows=20)
    _, found = approximations._mode(model, psi)
    before, expected = torch.zeros_like(model.y), torch.zeros(40, dtype=F64)
    monkeypatch.setattr(approximations, "TOLERANCE", 0.0)
    for steps in range(1, 9):
        monkeypatch.setattr(approximations, "MOST_STEPS", steps)
        mode, _ = approximations._mode(model, psi)
        ends = ((mode - before).square().sum(1) < 20 / 10**4) & (expected == 0)
        before, expected = mode, torch.where(ends, steps, expected)
    assert (expected > 0).all()
    assert torch.equal(found, expected)


def test_no_step_of_newtons_method_lowers_the_density(monkeypatch):
    """From f = 0 the first one, to the maximum of a parabola, would lead to e^f = e^19 where the count is 20."""
    model, psi, chol = problem("poisson", rows=8, spread=5.0)
    model = dataclasses.replace(model, y=torch.full_like(model.y, 20.0))
    values = [model.log_lik(torch.zeros_like(model.y))]
    for steps in range(1, 8):
        monkeypatch.setattr(approximations, "MOST_STEPS", steps)
        f, _ = approximations._mode(model, psi)
        values.append(model.log_lik(f) - 0.5 * solve(chol, f).square().sum(1))
    assert (torch.stack(values).diff(dim=0) > -2 * approximations.SLACK).all()


def test_ep_has_the_moments_of_its_tilted_factors(monkeypatch):
    exactly(monkeypatch)
    model, psi, chol = problem("probit", rows=6)
    q = ep(model, psi, chol)
    covariance = torch.linalg.inv(torch.linalg.inv(model.covariance(psi)) + torch.diag_embed(q.precision))
    site_linear = q.weights + q.precision * q.mean
    variance = covariance.diagonal(dim1=1, dim2=2)
    cavity = 1 / (1 / variance - q.precision)
    middle = cavity * (q.mean / variance - site_linear)
    # the factor times q without its site, on a grid
    f = middle + cavity.sqrt() * torch.linspace(-12, 12, 4001, dtype=F64)[:, None, None]
    weight = torch.special.ndtr((2 * model.y - 1) * f) * (-0.5 * (f - middle).square() / cavity).exp()
    mean = (weight * f).sum(0) / weight.sum(0)
    torch.testing.assert_close(q.mean, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(variance, (weight * (f - mean).square()).sum(0) / weight.sum(0), rtol=0, atol=1e-8)


def test_the_evidence_of_ep_for_two_rows():
    # exact for one row; orthant probabilities of SciPy for two: P(f + noise has the signs of y)
    model, psi, chol = problem("probit", chains=6, rows=2)
    found = ep(model, psi, chol).log_evidence
    sign = (2 * model.y - 1).numpy()
    for r in range(6):
        covariance = (model.covariance(psi)[r].numpy() + np.eye(2)) * sign[r][:, None] * sign[r]
        expected = stats.multivariate_normal(cov=covariance).cdf([0, 0])
        assert found[r].exp().item() == pytest.approx(expected, rel=5e-3)
    one = dataclasses.replace(model, x=model.x[:, :1], y=model.y[:, :1], weight=model.weight[:, :1])
    torch.testing.assert_close(ep(one, psi, one.factor(psi)).log_evidence.exp(), torch.full((6,), 0.5, dtype=F64))


def test_the_gradient_of_ep(monkeypatch):
    exactly(monkeypatch)
    model, psi, chol = problem("probit")
    slopes = model.derivatives(psi, model.covariance(psi))
    gradient = 0.5 * (ep(model, psi, chol).outer(chol)[:, None] * slopes).sum((2, 3))
    for p in range(2):
        step = torch.zeros_like(psi)
        step[:, p] = 1e-5
        ends = [ep(model, psi + sign * step, model.factor(psi + sign * step)).log_evidence for sign in (1, -1)]
        torch.testing.assert_close(gradient[:, p], (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_the_gaussian_equals_its_dense_formulas(kind, name):
    model, psi, chol = problem(name)
    q, covariance = FIND[kind](model, psi, chol), model.covariance(psi)
    precise = torch.linalg.inv(covariance) + torch.diag_embed(q.precision)
    torch.testing.assert_close((covariance @ q.weights[..., None])[..., 0], q.mean, rtol=1e-6, atol=1e-7)
    z = torch.eye(12, dtype=F64).expand(3, 12, 12)
    f = (chol @ (q.draw(z) - q.draw(0 * z)).mT).mT  # rows are those of a root of the covariance
    torch.testing.assert_close(f.mT @ f @ precise, z, rtol=0, atol=1e-5)
    torch.testing.assert_close(q.coordinates(q.draw(z)[:, 4]), z[:, 4])
    assert (q.half_log_det - 0.5 * torch.logdet(precise @ covariance)).abs().max() < 1e-6
    # prediction at the rows themselves gives q there, but for the jitter
    mean, variance = q.predict(chol, model.cross(psi, model.x), model.outputscale(psi)[:, None])
    torch.testing.assert_close(mean, q.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(variance, torch.linalg.inv(precise).diagonal(dim1=1, dim2=2), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_chains_do_not_depend_on_each_other_nor_on_padding(kind, name, dtype):
    model, psi, _ = problem(name, chains=5)
    psi[:, 1] += torch.linspace(-2, 2, 5)  # they stop at unlike times
    psi[2] = torch.nan
    data = {key: getattr(model, key).to(dtype) for key in ("x", "y", "weight")}
    model, psi = dataclasses.replace(model, **data), psi.to(dtype)
    together = FIND[kind](model, psi, model.factor(psi))
    assert len(set(together.iterations.tolist())) > 1
    assert together.log_evidence[2].isnan()
    tolerance = 1e-9 if dtype == F64 else 1e-3
    for r in (0, 1, 3, 4):
        one = slice(r, r + 1)
        padded = {"x": torch.nn.functional.pad(data["x"][one], (0, 0, 0, 2))}
        padded |= {key: torch.nn.functional.pad(data[key][one], (0, 2)) for key in ("y", "weight")}
        own = dataclasses.replace(model, **padded)
        alone = FIND[kind](own, psi[one], own.factor(psi[one]))
        assert alone.mean.dtype == dtype
        assert (alone.mean[:, -2:] == 0).all()
        for key in ("mean", "precision", "weights", "whitened"):
            expected = getattr(together, key)[one]
            torch.testing.assert_close(getattr(alone, key)[:, :-2], expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(alone.log_evidence, together.log_evidence[one], rtol=tolerance, atol=tolerance)
        assert alone.iterations == together.iterations[r]


def test_operations_are_counted():
    model, psi, chol = problem("probit", rows=20)
    newton, sweeps = laplace(model, psi, chol), ep(model, psi, chol)
    assert ((newton.iterations >= 3) & (newton.iterations <= 6)).all()
    assert ((sweeps.iterations >= 2) & (sweeps.iterations <= 4)).all()
    torch.testing.assert_close(newton.counts["cholesky"], newton.iterations + 1)
    torch.testing.assert_close(sweeps.counts["cholesky"], sweeps.iterations + 1)
    assert newton.counts["product"] == 1


def test_ep_refuses_other_likelihoods_than_probit():
    with pytest.raises(UserError, match="choose approximation=laplace"):
        ep(*problem("logit"))
