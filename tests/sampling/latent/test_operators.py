"""Every transition of f, of psi and of both leaves the posterior invariant (the joint-distribution test of geweke2004);
gradients and metrics by finite differences and Monte Carlo; chains side by side do not see each other."""

import dataclasses

import geweke
import numpy as np
import pytest
import torch
from geweke import packed

from gpbench.sampling.latent import latents, parameters, schemes
from gpbench.sampling.latent.model import Prior

F64 = torch.float64
LATENTS = {
    "mh": 0.7,
    "mh_v1": 0.7,
    "mh_v2": 0.7,
    "elliptical": None,
    "hmc": 0.15,
    "hmc_v1": 0.6,
    "hmc_v2": 0.4,
    "smmala": 1.0,
}
"""Operator -> a step size with which some proposals are refused."""
THETA = {"mh": 0.7, "hmc": 0.25, "smmala": 1.0}


def of_f(name):
    return lambda model: latents.named(name, model, leapfrogs=5)


def joint(name, latent="elliptical", theta="mh", repeats=(1, 1)):
    return lambda model: schemes.scheme(name, model, latents.named(latent, model, leapfrogs=5), theta, repeats)


def sizes(latent, theta=0.5):
    return {"theta": theta, "sufficient": theta} | ({} if LATENTS[latent] is None else {"latents": LATENTS[latent]})


@pytest.mark.parametrize("name", LATENTS)
@pytest.mark.slow
def test_transitions_of_f(name):
    geweke.check(of_f(name), geweke.model(), sizes(name))


@pytest.mark.parametrize("likelihood", ["probit", "poisson", "volatility", "ordinal"])
@pytest.mark.parametrize("name", ["hmc_v1", "smmala"])
@pytest.mark.slow
def test_transitions_of_f_with_other_likelihoods(name, likelihood):
    geweke.check(of_f(name), geweke.model(likelihood), {"latents": 0.3 if name == "hmc_v1" else 0.8})


@pytest.mark.parametrize("theta", THETA)
@pytest.mark.parametrize("scheme", ["sa", "aa"])
@pytest.mark.slow
def test_transitions_of_psi(scheme, theta):
    geweke.check(joint(scheme, theta=theta), geweke.model(chains=2000), sizes("elliptical", THETA[theta]))


@pytest.mark.parametrize("theta", THETA)
@pytest.mark.slow
def test_transitions_of_lengthscales_and_exact_draws_of_the_variance(theta):
    model = geweke.model(chains=2000, variance=geweke.INVERSE)
    geweke.check(joint("sa", theta=theta), model, sizes("elliptical", THETA[theta]))


@pytest.mark.parametrize("variance", [geweke.VARIANCE, geweke.INVERSE])
def test_interweaving(variance):
    geweke.check(joint("asis", "hmc_v2"), geweke.model(variance=variance, ard=False), sizes("hmc_v2"))


@pytest.mark.parametrize("scheme", ["sa", "aa", "asis"])
def test_the_factor_of_a_state_is_that_of_its_psi(scheme):
    """Also after an exact draw of the variance, whose factor is the old one scaled."""
    model, rng = geweke.model(chains=50, variance=geweke.INVERSE), np.random.default_rng(0)
    psi, f, y = geweke.joint_draw(model, rng)
    operator = joint(scheme)(dataclasses.replace(model, y=y))
    state = geweke.start(operator, psi, f, sizes("elliptical"))
    for _ in range(3):
        state, _ = geweke.advance(operator, state, rng)
        torch.testing.assert_close(state["chol"], model.factor(state["psi"]), rtol=1e-9, atol=1e-12)
    assert (state["psi"] != psi).any(0).all()


def test_operators_that_store_something_of_k_follow_psi():
    for latent in ("hmc_v1", "smmala"):
        geweke.check(joint("aa", latent, repeats=(2, 2)), geweke.model(chains=2000), sizes(latent), rounds=6)


def test_wrong_transitions_fail_the_joint_distribution_test():
    class Biased(latents.PriorReversible):
        def step(self, state, generator):
            state, info = super().step(state, generator)
            f = state["f"] * 0.97
            return state | {"f": f, "log_lik": self.model.log_lik(f)}, info

    class NoJacobian(parameters.Ancillary):
        def value(self, state):
            return super().value(state) - 0.3 * state["psi"].sum(1)

    geweke.fails(Biased, geweke.model(), sizes("mh_v2"))

    def wrong(model):
        part = parameters.ParameterWalk(NoJacobian(model))
        return schemes.Sequence(model, [latents.EllipticalSlice(model), part])

    geweke.fails(wrong, geweke.model(), sizes("elliptical"))


def places(target, ard, variance, seed=0):
    """Some chains, the target, and its place there."""
    rng = np.random.default_rng(seed)
    model = geweke.model("logit", 6, ard=ard, variance=variance)
    psi, f, y = geweke.joint_draw(model, rng)
    model = dataclasses.replace(model, y=y)
    state = model.state(psi, f)
    other = psi + 0.1 * torch.from_numpy(rng.standard_normal(psi.shape))
    return target(model), state, other


@pytest.mark.parametrize("target", [parameters.Sufficient, parameters.Ancillary])
@pytest.mark.parametrize("ard", [True, False])
@pytest.mark.parametrize("variance", [geweke.VARIANCE, 2.0])
def test_gradients_of_psi(target, ard, variance):
    conditional, state, psi = places(target, ard, variance)
    gradient = conditional.at(state, psi, gradient=True).gradient
    for p in range(psi.shape[1]):
        step = torch.zeros_like(psi)
        step[:, p] = 1e-5
        difference = (conditional.at(state, psi + step).value - conditional.at(state, psi - step).value) / 2e-5
        torch.testing.assert_close(gradient[:, p], difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ard", [True, False])
@pytest.mark.parametrize("variance", [geweke.VARIANCE, 2.0])
def test_the_gradient_given_nu_is_the_same_forwards_and_in_reverse(ard, variance):
    conditional, state, psi = places(parameters.Ancillary, ard, variance)
    reverse = conditional.at(state, psi, gradient=True).gradient
    torch.testing.assert_close(conditional.at(state, psi, True, metric=True).gradient, reverse, rtol=1e-9, atol=1e-11)


def test_the_metric_given_f_is_the_information_of_psi():
    conditional, state, psi = places(parameters.Sufficient, True, geweke.VARIANCE)
    model, draws = conditional.model, 20_000
    metric = conditional.at(state, psi, gradient=True, metric=True).metric
    prior = torch.diag_embed(model.prior_curvature(psi))
    data = {key: getattr(model, key)[:1] for key in ("x", "y", "weight")}
    one = dataclasses.replace(model, **{key: part.expand(draws, *part.shape[1:]) for key, part in data.items()})
    psi = psi[:1].expand(draws, -1)
    f = (one.factor(psi) @ torch.from_numpy(np.random.default_rng(1).standard_normal((draws, 4, 1))))[..., 0]
    score = parameters.Sufficient(one).at({"f": f}, psi, gradient=True).gradient - one.prior_gradient(psi)
    products = score[:, :, None] * score[:, None, :]
    error = products.std(0) / draws**0.5
    assert ((products.mean(0) - (metric - prior)[0]).abs() < 4.5 * error).all()


def test_the_metric_given_nu_is_that_of_f():
    conditional, state, psi = places(parameters.Ancillary, True, geweke.VARIANCE)
    model = conditional.model
    metric = conditional.at(state, psi, gradient=True, metric=True).metric
    slopes = []
    for p in range(psi.shape[1]):
        step = torch.zeros_like(psi)
        step[:, p] = 1e-5
        ends = [conditional.at(state, psi + sign * step).state["f"] for sign in (1, -1)]
        slopes.append((ends[0] - ends[1]) / 2e-5)
    slopes = torch.stack(slopes, 1)
    information = model.information(conditional.at(state, psi).state["f"])
    expected = (slopes * information[:, None]) @ slopes.mT + torch.diag_embed(model.prior_curvature(psi))
    torch.testing.assert_close(metric, expected, rtol=1e-5, atol=1e-7)


def test_a_step_of_more_than_one_that_keeps_the_prior_is_a_draw_from_it():
    """sqrt(1 - a^2) f + a z is z at a = 1, beyond which there is no such step."""
    model = geweke.model(chains=20)
    psi, f, y = geweke.joint_draw(model, np.random.default_rng(0))
    operator = latents.PriorReversible(dataclasses.replace(model, y=y))
    for size in (1.0, 3.0):
        state = geweke.start(operator, psi, f, {"latents": size})
        moved, info = geweke.advance(operator, state, np.random.default_rng(1))
        z = torch.from_numpy(np.random.default_rng(1).standard_normal((20, operator.fixed + 4)))
        drawn = (state["chol"] @ packed(z, 4, 1).latent()[..., None])[..., 0]
        accepted = (moved["f"] != f).any(1)
        assert 5 < accepted.sum() < 20
        torch.testing.assert_close(moved["f"][accepted], drawn[accepted], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("inverse", [False, True])
def test_priors(inverse):
    prior = Prior(2.5, 1.5, inverse)
    psi = torch.linspace(-3, 3, 2001, dtype=F64)
    step = 1e-4
    difference = (prior.log_density(psi + step) - prior.log_density(psi - step)) / (2 * step)
    torch.testing.assert_close(prior.gradient(psi), difference, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        prior.curvature(psi),
        -(prior.gradient(psi + step) - prior.gradient(psi - step)) / (2 * step),
        rtol=1e-6,
        atol=1e-6,
    )
    # the quantile of the middle has as much mass below as above
    wide = torch.linspace(-14, 14, 200_001, dtype=F64)
    mass = prior.log_density(wide).exp()
    below = mass[wide < prior.quantile(torch.tensor([0.3], dtype=F64))].sum() / mass.sum()
    assert float(below) == pytest.approx(0.3, abs=1e-3)


def pad(values, count=1):
    """Zeros behind the last axis."""
    return torch.nn.functional.pad(values, (0, count))


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("scheme", ["sa", "aa", "asis"])
def test_chains_do_not_depend_on_each_other_nor_on_padding(scheme, latent):
    rng = np.random.default_rng(3)
    model = geweke.model(chains=5, variance=geweke.INVERSE)
    psi, f, y = geweke.joint_draw(model, rng)
    model = dataclasses.replace(model, y=y)
    make, theta = joint(scheme, latent, "hmc" if latent == "hmc" else "mh"), sizes(latent)
    operator = make(model)
    noise = torch.from_numpy(rng.standard_normal((5, operator.fixed + 4 * operator.per_row)))
    together, info = operator.step(geweke.start(operator, psi, f, theta), packed(noise, 4, operator.per_row))
    for r in range(5):
        one = slice(r, r + 1)
        data = {"x": pad(model.x[one].mT).mT, "y": pad(model.y[one]), "weight": pad(model.weight[one])}
        operator = make(dataclasses.replace(model, **data))
        state = geweke.start(operator, psi[one], pad(f[one]), theta)
        own = pad(noise[one], operator.per_row)
        alone, told = operator.step(state, packed(own, 5, operator.per_row))
        for key in ("psi", "f", "log_lik"):
            expected = pad(together[key][one]) if key == "f" else together[key][one]
            torch.testing.assert_close(alone[key], expected, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(told["latents.acceptance"], info["latents.acceptance"][one], rtol=1e-8, atol=0)


def test_a_nan_chain_does_not_change_the_others():
    model = geweke.model(chains=3)
    psi, f, y = geweke.joint_draw(model, np.random.default_rng(0))
    psi[1], model = torch.nan, dataclasses.replace(model, y=y)
    for latent in LATENTS:
        operator = joint("aa", latent)(model)
        noise = torch.from_numpy(np.random.default_rng(1).standard_normal((3, operator.fixed + 4 * operator.per_row)))
        state, _ = operator.step(geweke.start(operator, psi, f, sizes(latent)), packed(noise, 4, operator.per_row))
        assert state["f"][[0, 2]].isfinite().all()
        assert state["psi"][[0, 2]].isfinite().all()


@pytest.mark.parametrize(("scheme", "inversions"), [("sa", 1), ("aa", 2)])
def test_a_trajectory_of_psi_counts_its_gradients(scheme, inversions):
    """One at the start and one a step, then a place without: 2 inversions given nu, whatever the number of
    parameters."""
    model = geweke.model(chains=50)
    psi, f, y = geweke.joint_draw(model, np.random.default_rng(0))
    part = schemes.scheme(scheme, dataclasses.replace(model, y=y), None, "hmc", (1, 1))
    _, info = geweke.advance(part, geweke.start(part, psi, f, sizes("elliptical")), np.random.default_rng(1))
    assert info["cholesky"].min() == 3
    assert info["cholesky"].max() == 12
    torch.testing.assert_close(info["inverse"], inversions * (info["cholesky"] - 1.0), check_dtype=False)


def test_more_random_numbers_than_declared_are_refused():
    generator = packed(torch.zeros(2, 7), 3, 2)
    generator.normal(1)
    generator.latents(2)
    with pytest.raises(ValueError, match="more than the 1 random numbers"):
        generator.normal(1)
    with pytest.raises(ValueError, match="more than the 2 numbers per row"):
        generator.latent()
