"""Proposals and acceptances of the transitions of f and of psi, against dense formulas at both ends of a move."""

import dataclasses

import company
import geweke
import numpy as np
import pytest
import torch
from geweke import packed
from scipy import stats
from torch.distributions import MultivariateNormal

from gpbench.sampling import hmc
from gpbench.sampling.latent import latents, parameters
from gpbench.sampling.latent.model import Prior

F64 = torch.float64
CHAINS, SIZE = 3000, 0.6


@pytest.fixture
def gains(monkeypatch):
    """The logarithms of the ratios by which proposals would have been accepted; all are."""
    seen = []
    monkeypatch.setattr(hmc, "acceptance", lambda gain: torch.ones_like(seen.append(gain) or gain))
    return seen


def normal(mean, precision):
    return MultivariateNormal(mean, precision_matrix=precision)


def prior(model, psi, f):
    """log N(f; 0, K) `[R]`."""
    return MultivariateNormal(torch.zeros_like(f), model.covariance(psi)).log_prob(f)


def latent_proposal(name, model, psi, f):
    """The law of f' given f."""
    precise = torch.linalg.inv(model.covariance(psi))
    if name == "mh":
        return normal(f, torch.eye(f.shape[1], dtype=F64).expand_as(precise) / SIZE**2)
    if name in ("mh_v1", "mh_v2"):
        return normal((1 if name == "mh_v1" else (1 - SIZE**2) ** 0.5) * f, precise / SIZE**2)
    metric = precise + torch.diag_embed(model.information(f))
    slope = model.gradient(f) - (precise @ f[..., None])[..., 0]
    return normal(f + 0.5 * SIZE**2 * torch.linalg.solve(metric, slope), metric / SIZE**2)


def assert_standard(moved, law):
    """Whether draws `[R, K]` have these normal laws, by their whitened residuals."""
    z = torch.linalg.solve_triangular(law.scale_tril, (moved - law.mean)[..., None], upper=False)[..., 0]
    assert (z.mean(0).abs() < 4.5 / len(z) ** 0.5).all()
    assert ((z.mT @ z / len(z) - torch.eye(z.shape[1])).abs() < 4.5 * (2 / len(z)) ** 0.5).all()


@pytest.mark.parametrize("name", ["mh", "mh_v1", "mh_v2", "smmala"])
def test_moves_of_f(name, gains):
    model, psi, f = company.chains("logit", CHAINS)
    operator = latents.named(name, model)
    state = geweke.start(operator, psi, f, {"latents": SIZE})
    moved = geweke.advance(operator, state, np.random.default_rng(0))[0]["f"]
    there, back = latent_proposal(name, model, psi, f), latent_proposal(name, model, psi, moved)
    assert_standard(moved, there)
    value = [model.log_lik(at) + prior(model, psi, at) for at in (f, moved)]
    expected = value[1] - value[0] + back.log_prob(f) - there.log_prob(moved)
    torch.testing.assert_close(gains[0], expected, rtol=1e-5, atol=1e-5)


def conditional(target, model, state, psi):
    """log p(psi | f) or log p(psi | y, nu) `[R]`."""
    if target is parameters.Sufficient:
        return prior(model, psi, state["f"]) + model.log_prior(psi)
    nu = torch.linalg.solve_triangular(state["chol"], state["f"][..., None], upper=False)
    return model.log_lik((torch.linalg.cholesky(model.covariance(psi)) @ nu)[..., 0]) + model.log_prior(psi)


def psi_proposal(name, target, model, state, psi):
    """The law of psi' given psi, with gradients and metrics that other tests have seen to be right."""
    if name == "mh":
        return normal(psi, torch.eye(psi.shape[1], dtype=F64).expand(len(psi), -1, -1) / SIZE**2)
    place = target(model).at(state, psi, gradient=True, metric=True)
    drift = 0.5 * SIZE**2 * torch.linalg.solve(place.metric, place.gradient)
    return normal(psi + drift, place.metric / SIZE**2)


@pytest.mark.parametrize("target", [parameters.Sufficient, parameters.Ancillary])
@pytest.mark.parametrize("name", ["mh", "smmala"])
def test_moves_of_psi(name, target, gains):
    model, psi, f = company.chains("logit", CHAINS)
    operator = parameters.named(name, target(model))
    state = geweke.start(operator, psi, f, {"theta": SIZE})
    after = geweke.advance(operator, state, np.random.default_rng(0))[0]
    there, back = (psi_proposal(name, target, model, state, at) for at in (psi, after["psi"]))
    assert_standard(after["psi"], there)
    value = [conditional(target, model, state, at) for at in (psi, after["psi"])]
    expected = value[1] - value[0] + back.log_prob(psi) - there.log_prob(after["psi"])
    torch.testing.assert_close(gains[0], expected, rtol=1e-5, atol=1e-5)


def dynamics(position, momentum, gradient, inverse_mass, steps, size=0.3):
    """Position and momentum after each chain's number of leapfrog steps."""
    for number in range(int(steps.max())):
        goes = (steps > number)[:, None]
        half = momentum + 0.5 * size * gradient(position)
        new = position + size * (inverse_mass @ half[..., None])[..., 0]
        position, momentum = (
            torch.where(goes, *both) for both in ((new, position), (half + 0.5 * size * gradient(new), momentum))
        )
    return position, momentum


@pytest.mark.parametrize("name", ["hmc", "hmc_v1", "hmc_v2"])
def test_trajectories_of_f_have_the_mass_of_their_name(name, gains):
    """I; K^-1 + C, C the information at f = 0; K^-1: of momenta that have these covariances."""
    model, psi, f = company.chains("logit", 20)
    operator, rng = latents.named(name, model, leapfrogs=4), np.random.default_rng(0)
    noise = torch.from_numpy(rng.standard_normal((20, operator.fixed + f.shape[1])))
    state = geweke.start(operator, psi, f, {"latents": 0.3})
    after, info = operator.step(state, packed(noise, f.shape[1], 1))
    same, k, chol = packed(noise, f.shape[1], 1), model.covariance(psi), state["chol"]
    precise, eye = torch.linalg.inv(k), torch.eye(f.shape[1], dtype=F64).expand_as(k)
    information = torch.diag_embed(model.information(0 * f))
    if name == "hmc":
        root = eye
    else:  # L^-T, or L^-T L_B with L_B L_B^T = I + L^T C L
        root = torch.linalg.inv(chol).mT
        root = root if name == "hmc_v2" else root @ torch.linalg.cholesky(eye + chol.mT @ information @ chol)
    mass = {"hmc": eye, "hmc_v1": precise + information, "hmc_v2": precise}[name]
    torch.testing.assert_close(root @ root.mT, mass, rtol=1e-6, atol=1e-6)
    steps, momentum = 1 + (4 * same.uniforms(2)[:, 1]).long(), (root @ same.latent()[..., None])[..., 0]

    def gradient(at):
        return model.gradient(at) - (precise @ at[..., None])[..., 0]

    end, final = dynamics(f, momentum, gradient, torch.linalg.inv(mass), steps)
    torch.testing.assert_close(after["f"], end, rtol=1e-6, atol=1e-6)
    energies = [
        0.5 * torch.einsum("ri,rij,rj->r", p, torch.linalg.inv(mass), p) - model.log_lik(at) - prior(model, psi, at)
        for at, p in ((f, momentum), (end, final))
    ]
    torch.testing.assert_close(gains[0], energies[0] - energies[1], rtol=1e-6, atol=1e-6)
    each = 4 if name == "hmc_v1" else 2  # products of a matrix with a vector, at every gradient
    assert info["quadratic"].tolist() == (each * (steps + 1) + 2).tolist()


@pytest.mark.parametrize("target", [parameters.Sufficient, parameters.Ancillary])
def test_trajectories_of_psi_have_unit_mass(target, gains):
    model, psi, f = company.chains("logit", 20)
    operator, rng = parameters.named("hmc", target(model)), np.random.default_rng(0)
    noise = torch.from_numpy(rng.standard_normal((20, operator.fixed)))
    state = geweke.start(operator, psi, f, {"theta": 0.1})
    after, _ = operator.step(state, packed(noise, f.shape[1], 0))
    same = packed(noise, f.shape[1], 0)
    momentum, steps = same.normal(psi.shape[1]), 1 + (10 * same.uniforms(2)[:, 1]).long()

    def gradient(at):
        return target(model).at(state, at, gradient=True).gradient

    eye = torch.eye(psi.shape[1], dtype=F64).expand(20, -1, -1)
    end, final = dynamics(psi, momentum, gradient, eye, steps, 0.1)
    torch.testing.assert_close(after["psi"], end, rtol=1e-6, atol=1e-6)
    change = conditional(target, model, state, end) - conditional(target, model, state, psi)
    expected = change + 0.5 * (momentum.square() - final.square()).sum(1)
    torch.testing.assert_close(gains[0], expected, rtol=1e-5, atol=1e-6)


def test_an_exact_draw_of_the_variance_is_that_of_scipy():
    """sigma | f ~ inverse Gamma(a + n/2, b + 1/2 f^T (K / sigma)^-1 f), of rows without padding."""
    model, psi, f = company.chains("logit", 5, variance=Prior(2.5, 1.5, inverse=True))
    model, n = dataclasses.replace(model, weight=torch.tensor([1.0, 1.0, 1.0, 0.0]).double().expand(5, -1)), 3
    normals, f = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 1))), f * model.weight
    after, _ = parameters.GibbsVariance(model).step(model.state(psi, f), packed(normals, 4, 0))
    unscaled = model.covariance(psi)[:, :n, :n] / psi[:, -1].exp()[:, None, None]
    quadratic = torch.einsum("ri,rij,rj->r", f[:, :n], torch.linalg.inv(unscaled), f[:, :n])
    expected = stats.invgamma(2.5 + n / 2, scale=1.5 + 0.5 * quadratic).ppf(stats.norm.sf(normals[:, 0]))
    np.testing.assert_allclose(after["psi"][:, -1].exp(), expected, rtol=1e-6)
