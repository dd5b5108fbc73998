"""KHR and surrogate data: the joint-distribution test, and what they are made of."""

import company
import geweke
import numpy as np
import pytest
import torch

from gpbench.gp import latent_likelihoods
from gpbench.gp.linalg import solve
from gpbench.sampling.latent import joint, latents
from gpbench.sampling.latent.approximations import laplace
from gpbench.sampling.latent.schemes import Sequence, adapt, scheme

F64 = torch.float64


def surrogate(latent="elliptical", repeats=(1, 1), update=joint.Surrogate):
    """Updates of f, then of psi."""

    def make(model):
        return Sequence(model, [latents.named(latent, model)] * repeats[0] + [update(model)] * repeats[1])

    return make


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("logit", joint.KHR),
        ("volatility", lambda model: Sequence(model, [joint.KHR(model)] * 2)),
        ("logit", surrogate("hmc_v1", (2, 2))),
        ("poisson", surrogate("mh_v2")),
        ("ordinal", surrogate(repeats=(1, 4))),
    ],
)
def test_the_joint_distribution(name, make):
    geweke.check(make, geweke.model(name, chains=1500), {"theta": 0.7, "latents": 0.4}, rounds=6)


@pytest.mark.parametrize(
    "make", [joint.KHR, surrogate(), lambda m: scheme("aa", m, latents.named("hmc_v2", m), "mh", (1, 2))]
)
def test_walks_along_a_covariance_keep_the_joint_distribution(make):
    factor = torch.tensor([[0.9, 0.0, 0.0], [-0.6, 0.3, 0.0], [0.4, 0.5, 0.7]], dtype=F64)

    def adapted(model):
        operator = adapt(make(model))
        init = operator.init
        operator.init = lambda state: init(state) | {"theta.scale": factor.expand(len(state["psi"]), 3, 3)}
        return operator

    geweke.check(adapted, geweke.model("logit", chains=1500), {"theta": 0.9, "latents": 0.4}, rounds=6)


@pytest.mark.slow
def test_surrogate_data_without_their_density_in_the_acceptance_fail_the_test():
    class Wrong(joint.Surrogate):
        def value(self, state, q, data):
            return state["log_lik"] + self.model.log_prior(state["psi"])

    wrong = surrogate(repeats=(1, 4), update=Wrong)
    geweke.fails(wrong, geweke.model("ordinal", chains=3000), {"theta": 0.7}, rounds=6)


def test_khr_is_accepted_by_densities_under_the_approximation():
    # dense formulas at both ends of a proposal that is sure to be taken
    model, psi, f = company.chains("logit", 40)
    operator = joint.KHR(model)

    def log_ratio(psi, f):
        covariance, q = model.covariance(psi), laplace(model, psi, model.factor(psi))
        normal = torch.distributions.MultivariateNormal
        prior = normal(torch.zeros_like(f), covariance).log_prob(f)
        precise = torch.linalg.inv(covariance) + torch.diag_embed(q.precision)
        return model.log_lik(f) + prior - normal(q.mean, precision_matrix=precise).log_prob(f)

    state = operator.init(model.state(psi, f))
    torch.testing.assert_close(state["theta.log_estimate"], log_ratio(psi, f), rtol=1e-6, atol=1e-6)
    state["theta.step_size"] = torch.full((40,), 0.2, dtype=F64)
    state, info = geweke.advance(operator, state, np.random.default_rng(0))
    moved = (state["psi"] != psi).any(1)
    assert moved.any()
    torch.testing.assert_close(state["theta.log_estimate"], log_ratio(state["psi"], state["f"]), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(info["cholesky"], laplace(model, psi, state["chol"]).iterations + 2, atol=2, rtol=0)
    assert info["product"] == 1


@pytest.mark.parametrize("name", latent_likelihoods.NAMED)
def test_surrogate_data_are_as_wide_as_the_likelihood(name):
    model, psi, f = company.chains(name, 20)
    operator = joint.Surrogate(model)
    noise, sigma = operator.noise(psi), model.outputscale(psi)[:, None]
    # 1 / S is the information at the mode of the one-dimensional posterior, where the slope is 0
    grid = torch.linspace(-8, 8, 16_001, dtype=F64)[:, None, None]
    density = model.likelihood.log_prob(model.y.expand(16_001, -1, -1), grid.expand(-1, 20, 4)) - grid**2 / (2 * sigma)
    mode = grid.flatten()[density.argmax(0)]
    torch.testing.assert_close(1 / noise, model.information(mode), rtol=2e-3, atol=1e-6)


def test_given_surrogate_data_f_is_gaussian():
    model, psi, f = company.chains("logit", 6)
    operator = joint.Surrogate(model)
    state, data = operator.init(model.state(psi, f)), 1.5 * f + 0.3
    q, noise, covariance = operator.given(state, data), operator.noise(psi), model.covariance(psi)
    total = covariance + torch.diag_embed(noise)
    gain = torch.linalg.solve(total, covariance).mT
    torch.testing.assert_close(q.mean, (gain @ data[..., None])[..., 0], rtol=1e-6, atol=1e-7)
    root = state["chol"] @ torch.linalg.inv(q.root).mT
    torch.testing.assert_close(root @ root.mT, covariance - gain @ covariance, rtol=1e-6, atol=1e-7)
    expected = torch.distributions.MultivariateNormal(torch.zeros_like(f), total).log_prob(data)
    constant = 0.5 * f.shape[1] * np.log(2 * np.pi)
    found = operator.value(state, q, data) - state["log_lik"] - model.log_prior(psi) - constant
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(q.draw(q.coordinates(solve(state["chol"], f))[:, None])[:, 0], solve(state["chol"], f))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(
    ("name", "make"),
    [("ordinal", joint.KHR), ("logit", surrogate("smmala", (1, 2))), ("poisson", surrogate("elliptical", (2, 1)))],
)
def test_chains_do_not_depend_on_each_other(name, make, dtype):
    company.check(make, name, {"theta.step_size": 0.5, "latents.step_size": 0.5}, dtype)


def test_surrogate_data_take_three_operations():
    model, psi, f = company.chains("logit", 2)
    operator = surrogate(repeats=(2, 3))(model)
    _, info = geweke.advance(operator, operator.init(model.state(psi, f)), np.random.default_rng(0))
    assert info["cholesky"] + info["product"] == 9
    assert [part.name for part in operator.tuned] == ["theta"]
