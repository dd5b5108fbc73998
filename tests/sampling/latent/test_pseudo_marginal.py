"""Estimates of the evidence are unbiased, pseudo-marginal chains exact, and the others approximate as documented."""

import dataclasses
import math

import company
import geweke
import numpy as np
import pytest
import test_quadrature as quadrature
import torch
from geweke import packed

from gpbench.errors import UserError
from gpbench.gp import latent_likelihoods
from gpbench.gp.linalg import solve
from gpbench.sampling.latent import latents
from gpbench.sampling.latent import pseudo_marginal as pm
from gpbench.sampling.latent.approximations import Gaussian
from gpbench.sampling.latent.model import Model, Prior
from gpbench.sampling.latent.schemes import Sequence

F64 = torch.float64
LAWS = [quadrature._law(prior) for prior in (quadrature.LENGTHSCALE, quadrature.VARIANCE)]
CASES = [("laplace", name) for name in latent_likelihoods.NAMED] + [("ep", "probit")]


def log_evidence(name, rows, psi=quadrature.PSI):
    """log p(y | psi), by brute force."""
    nu, log_weight = quadrature.nodes(rows, 61)
    f = nu @ quadrature.factor(psi, rows).mT
    return np.logaddexp.reduce(log_weight + quadrature.log_likelihood(name, f)) - np.logaddexp.reduce(log_weight)


def estimates(kind, name, rows, count, num_importance, seed):
    """log p^ of independent draws at the psi known, `[count]`; the rows and one of padding."""
    model = quadrature.model(name, rows, 1, quadrature.VARIANCE)
    psi = torch.tensor(quadrature.PSI, dtype=F64)[None]
    chol = model.factor(psi)
    q = pm.APPROXIMATIONS[kind](model, psi, chol)
    shared = {field.name: getattr(q, field.name) for field in dataclasses.fields(Gaussian)}
    shared = Gaussian(**{name: part.expand(count, *part.shape[1:]) for name, part in shared.items()})
    normals = torch.from_numpy(np.random.default_rng(seed).standard_normal((count, num_importance, rows + 1)))
    normals[:, :, rows] = 0
    many = quadrature.model(name, rows, count, quadrature.VARIANCE)
    return pm.log_estimate(many, chol.expand(count, -1, -1), shared, normals).numpy()


@pytest.mark.parametrize("num_importance", [1, 64])
@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.slow
def test_estimates_are_unbiased(kind, name, rows, num_importance):
    ratio = np.exp(estimates(kind, name, rows, 64_000 // num_importance, num_importance, 0) - log_evidence(name, rows))
    error = ratio.std(ddof=1) / math.sqrt(len(ratio))
    assert abs(ratio.mean() - 1) < 3 * error
    assert error < 0.01


def test_an_estimate_is_the_mean_of_its_weights():
    rng = np.random.default_rng(0)
    weights = rng.gamma(0.5, size=(3, 7))
    np.testing.assert_allclose(pm.log_mean(torch.from_numpy(np.log(weights))), np.log(weights.mean(1)))
    # of several draws in the fast suite too: without bias, which the mean of the logarithms has
    ratio = np.exp(estimates("laplace", "volatility", 2, 4000, 8, 0) - log_evidence("volatility", 2))
    error = ratio.std(ddof=1) / math.sqrt(len(ratio))
    assert abs(ratio.mean() - 1) < 3 * error < 0.03


def test_estimates_spread_as_little_as_those_of_the_stable_form():
    """Of 200 rows as filippone2014 simulate them. Another program, on data of its own, has sds of log p^ by Laplace of
    .07 to .09 with 64 draws and .5 to .6 with one; .85 with 64 where the covariance of q comes from K^-1."""
    rng, sets, psi = np.random.default_rng(0), 6, torch.full((6, 1), math.log(0.35), dtype=F64)
    x, y = (torch.from_numpy(rng.random(shape)) for shape in ((sets, 200, 2), (sets, 200)))
    model = Model(x, y, torch.ones_like(y), latent_likelihoods.Probit(), Prior(1.0, 1.0), 2.08)
    chol = model.factor(psi)
    f = chol @ torch.from_numpy(rng.standard_normal((sets, 200, 1)))
    model = dataclasses.replace(model, y=(y < torch.special.ndtr(f[..., 0])).to(F64))
    z, sds = torch.from_numpy(rng.standard_normal((sets, 1920, 200))), {}
    for kind, least, most in (("laplace", 3, 5), ("ep", 2, 3)):
        q = pm.APPROXIMATIONS[kind](model, psi, chol)
        assert least <= q.iterations.min() <= q.iterations.max() <= most
        log_weights = pm.weigh(model, chol, q, z)[1]
        sds[kind] = log_weights.std(1), pm.log_mean(log_weights.unflatten(1, (64, -1))).std(1)
    one, many = sds["laplace"]
    assert 0.4 < one.mean() < 0.7
    assert 0.04 < many.mean() < 0.1
    assert (sds["ep"][1] < many).all()


SHARE = 0.1


def test_a_defensive_mixture_bounds_the_weights_and_is_unbiased():
    """Under the volatility likelihood Laplace's approximation has lighter tails than the posterior: a weight reaches
    hundreds of times the evidence. That of the mixture is at most max p(y | f) / share."""
    count, rows, rng = 100_000, 2, np.random.default_rng(0)
    model = quadrature.model("volatility", rows, 1, quadrature.VARIANCE)
    psi = torch.tensor(quadrature.PSI, dtype=F64)[None]
    chol = model.factor(psi)
    q = pm.APPROXIMATIONS["laplace"](model, psi, chol)
    z = torch.from_numpy(rng.standard_normal((1, count, rows + 1)))
    z[..., rows] = 0
    both = pm.weigh(model, chol, q, z), pm.defended(model, chol, q, z, torch.from_numpy(rng.random((1, count))), SHARE)
    evidence = log_evidence("volatility", rows)
    plain, defended = ((log_weight[0] - evidence).exp() for _, log_weight in both)
    # p(y | f) is largest where the variance e^f is y^2
    highest = -0.5 * (1 + math.log(2 * math.pi) + model.y[0, :rows].square().log()).sum()
    assert defended.max() <= (highest - evidence).exp() / SHARE < 0.5 * plain.max()
    assert defended.std() < 0.5 * plain.std()
    assert abs(defended.mean() - 1) < 4 * defended.std() / math.sqrt(count)


def sampler(kind="laplace", num_importance=1, latent=None, repeats=(1, 1), share=0.0):
    """Updates of psi, then of f."""

    def make(model):
        of_f = [latents.named(latent, model)] * repeats[0] if latent else []
        return Sequence(model, [pm.PseudoMarginal(model, kind, num_importance, share)] * repeats[1] + of_f)

    return make


def transition(keep):
    """A step of a chain with an estimate that goes with its f, as in the long run; keep=False: with any estimate."""

    def advance(operator, state, rng):
        chains, rows = operator.model.weight.shape
        walk = operator.parts[0]
        q = walk.approximate(operator.model, state["psi"], state["chol"])
        z = torch.from_numpy(rng.standard_normal((chains, walk.per_row, rows)))
        if keep:
            z[:, 0] = q.coordinates(solve(state["chol"], state["f"]))
        estimate = pm.log_estimate(operator.model, state["chol"], q, z)
        if walk.share:
            # none of them is from the prior but in law: a weight depends on f alone
            parts = torch.from_numpy(rng.random(z.shape[:2]))
            parts[:, 0] = 1.0
            weights = pm.defended(operator.model, state["chol"], q, z, parts, walk.share)[1]
            estimate = pm.log_mean(weights)
        known = {"theta.log_estimate": estimate, "theta.tuning": 0 * estimate, "theta.estimated": 0 * estimate + 1}
        return geweke.advance(operator, state | known, rng)

    return advance


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("probit", sampler("laplace", 1)),
        ("probit", sampler("ep", 1, "hmc_v2")),
        ("probit", sampler("ep", 8, "elliptical", (2, 2))),
        ("ordinal", sampler("laplace", 8)),
        ("volatility", sampler("laplace", 2, "smmala")),
        ("ordinal", sampler("laplace", 2, "elliptical", share=SHARE)),
    ],
)
def test_the_joint_distribution(name, make):
    model = geweke.model(name, chains=1500)
    geweke.check(make, model, {"theta": 0.7, "latents": 0.6}, rounds=6, transition=transition(keep=True))


@pytest.mark.parametrize("latent", ["hmc_v1", "smmala"])
def test_what_an_operator_of_f_keeps_of_k_follows_psi(latent):
    model, rng = geweke.model("volatility", chains=50), np.random.default_rng(0)
    psi, f, y = geweke.joint_draw(model, rng)
    operator = sampler("laplace", 1, latent)(dataclasses.replace(model, y=y))
    state = geweke.start(operator, psi, f, {"theta": 0.7, "latents": 0.6})
    for _ in range(3):
        state, _ = geweke.advance(operator, state, rng)
        fresh, _ = operator.parts[-1].refresh(state)
        torch.testing.assert_close(state["latents.root"], fresh["latents.root"], rtol=1e-9, atol=1e-12)


def test_an_estimate_that_does_not_belong_to_the_state_fails_the_test():
    model = geweke.model("volatility", chains=3000)
    geweke.fails(sampler("laplace", 1), model, {"theta": 0.7}, rounds=6, transition=transition(keep=False))


def test_the_approximate_posterior_is_that_of_the_approximate_evidence():
    count, rng = 4000, np.random.default_rng(0)
    model = quadrature.model("poisson", 3, count, quadrature.VARIANCE)
    psi = torch.from_numpy(np.log([law.rvs(count, random_state=rng) for law in LAWS]).T)
    operator = pm.Marginal(model)
    state = operator.init(model.state(psi, torch.zeros_like(model.weight)))
    state["theta.step_size"] = torch.full((count,), 0.9, dtype=F64)
    for _ in range(30):
        state, _ = geweke.advance(operator, state, rng)
    found = quadrature.ranks_of(state["psi"].numpy(), quadrature.VARIANCE)
    ranks = (np.arange(30) + 0.5) / 30
    psi = np.log([law.ppf(ranks) for law in LAWS])
    grid = torch.from_numpy(np.stack(np.meshgrid(*psi, indexing="ij"), -1).reshape(-1, 2))
    on_grid = quadrature.model("poisson", 3, len(grid), quadrature.VARIANCE)
    weight = pm.APPROXIMATIONS["laplace"](on_grid, grid, on_grid.factor(grid)).log_evidence.exp().numpy()
    expected = weight @ quadrature.ranks_of(grid.numpy(), quadrature.VARIANCE) / weight.sum()
    assert (np.abs(found.mean(0) - expected) < 3 * found.std(0) / math.sqrt(count)).all()
    # y tells something: the prior has mean 1/2
    assert (np.abs(expected - 0.5) > 6 * found.std(0) / math.sqrt(count)).any()


def test_burn_in_uses_the_approximate_evidence_and_sampling_keeps_its_estimate():
    model, psi, f = company.chains("probit", 50)
    operator = sampler("ep", 4)(model)
    state = operator.init(model.state(psi, f)) | {"theta.step_size": torch.full((50,), 0.7, dtype=F64)}
    rng = np.random.default_rng(0)

    def evidence(state):
        return pm.APPROXIMATIONS["ep"](model, state["psi"], state["chol"]).log_evidence

    for _ in range(3):
        state, info = geweke.advance(operator, state, rng)
        torch.testing.assert_close(state["theta.log_estimate"], evidence(state), rtol=1e-9, atol=1e-9)
    # the first step after it finds the estimate of where the chain is, and stays there
    psi = state["psi"]
    state, info = geweke.advance(operator, state | {"theta.tuning": torch.zeros(50, dtype=F64)}, rng)
    assert torch.equal(state["psi"], psi)
    assert (info["theta.acceptance"] == 1).all()
    gap = state["theta.log_estimate"] - evidence(state)
    assert ((gap != 0) & (gap.abs() < 1)).all()
    for _ in range(3):
        before = state
        state, _ = geweke.advance(operator, state, rng)
        moved = (state["psi"] != before["psi"]).any(1)
        assert moved.any()
        assert not moved.all()
        same = state["theta.log_estimate"] == before["theta.log_estimate"]
        assert torch.equal(same, ~moved)
        assert torch.equal((state["f"] == before["f"]).all(1), ~moved)


def test_an_estimate_that_is_no_number_is_of_no_likelihood_so_that_its_chain_can_leave():
    model, psi, f = company.chains("probit", 3)
    state, chol = model.state(psi, f) | {"theta.tuning": torch.zeros(3, dtype=F64)}, model.factor(psi)
    q = pm.APPROXIMATIONS["laplace"](model, psi, chol)
    chol[1] = torch.nan
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 1 + 4)))
    found = pm.PseudoMarginal(model).estimate(state, chol, q, packed(noise, 4, 1))["theta.log_estimate"]
    assert found[1] == -torch.inf
    assert found[[0, 2]].isfinite().all()


def test_a_grid_of_estimates():
    model, psi, f = company.chains("probit", 3, ard=False, variance=2.0)
    grid = torch.tensor([-2.0, -1.0, 0.5], dtype=F64)
    operator = pm.Estimator(model, grid, "ep", num_importance=5)
    state = operator.init(model.state(psi, f))
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 4 * operator.per_row)))
    found = operator.step(state, packed(noise, 4, operator.per_row))[0]["log_estimate"]
    same = packed(noise, 4, operator.per_row)
    for g, log_tau in enumerate(grid):
        at = torch.full((3, 1), log_tau, dtype=F64)
        chol = model.factor(at)
        expected = pm.log_estimate(model, chol, pm.APPROXIMATIONS["ep"](model, at, chol), same.latents(5))
        torch.testing.assert_close(found[:, g], expected)
    assert (found - state["log_estimate"]).abs().max() < 1  # at first it is the approximate evidence
    with pytest.raises(UserError, match="set outputscale"):
        pm.Estimator(geweke.model(), grid)


def test_operations_are_counted():
    model, psi, f = company.chains("probit", 4)
    kinds = ("laplace", lambda steps: steps + 3, 5), ("ep", lambda sweeps: 4 * sweeps + 3, 1)
    for kind, cubic, products in kinds:
        operator = sampler(kind, 2, "elliptical", (3, 2))(model)
        state = operator.init(model.state(psi, f)) | {"theta.step_size": torch.zeros(4, dtype=F64)}
        _, info = geweke.advance(operator, state, np.random.default_rng(0))
        iterations = pm.APPROXIMATIONS[kind](model, psi, state["chol"]).iterations
        found = info["cholesky"] + info["product"] + info.get("inverse", 0.0)
        torch.testing.assert_close(found, 2 * cubic(iterations))
        # of an approximation some an iteration and four, two for each of two draws of f, one for an ellipse
        torch.testing.assert_close(info["quadratic"], 2 * (products * iterations + 4 + 2 * 2) + 3)
        assert (info["theta.acceptance"] == 1).all()
        assert info["latents.acceptance"].shape == (4,)


def grid_of(model):
    return pm.Estimator(model, torch.tensor([-1.0, 0.0]).to(model.x), num_importance=3)


MOVING = {"theta.step_size": 0.5, "theta.tuning": 0.0, "latents.step_size": 0.3}


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(
    ("name", "make", "settings"),
    [
        ("probit", sampler("ep", 3, "hmc_v1", (2, 2)), MOVING),
        ("poisson", sampler("laplace", 1), MOVING),
        ("logit", sampler("laplace", 3, "elliptical"), MOVING | {"theta.tuning": 1.0}),
        ("probit", lambda model: Sequence(model, [pm.Marginal(model, "ep")] * 2), MOVING),
    ],
)
@pytest.mark.slow
def test_chains_do_not_depend_on_each_other(name, make, settings, dtype):
    company.check(make, name, settings, dtype)


def test_estimates_do_not_depend_on_each_other():
    company.check(grid_of, "ordinal", {}, ard=False, variance=2.0)
