"""mcmc_gp: what of simulated data a sampler is told, what it keeps and reports, adaptation in burn-in alone, errors."""

import dataclasses

import numpy as np
import pytest
import torch
from gp_cases import noise_size, replica, split
from scipy import special, stats
from sklearn.gaussian_process.kernels import RBF, Matern

from gpbench.errors import UserError
from gpbench.gp import latent_likelihoods
from gpbench.gp.jitter import DEFAULT_JITTER
from gpbench.methods import mcmc_gp
from gpbench.methods.mcmc_gp import Hyperparameters, Method
from gpbench.methods.training_rows import TrainingSet
from gpbench.sampling import tuning
from gpbench.sampling.latent import approximations
from gpbench.sampling.latent.model import Model, Prior
from gpbench.streams import Key

F64 = torch.float64
CHAINS, ROWS, BURN_IN, STEPS = 3, 25, 20, 30
LEARNING = 5
PSI = [-0.7, 0.2, 1.0]
"""log lengthscales and log variance of the data."""
TASKS = {
    "logit": ("binary", 2),
    "poisson": ("counts", 0),
    "volatility": ("regression", 0),
    "ordinal": ("multiclass", 5),
}
OF_LENGTHSCALES = {"lengthscale_shape": 2.0, "lengthscale_rate": 3.0}
OF_VARIANCE = {"variance_shape": 4.0, "variance_rate": 5.0}


def rows(likelihood="logit"):
    """x, y, f and psi as simulated data sets hold them."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.random((1, ROWS, 2)))
    law = latent_likelihoods.named(likelihood, 5)
    model = Model(x, 0 * x[..., 0], 1 + 0 * x[..., 0], law, Prior(1, 1), Prior(1, 1), ard=True)
    f = (model.factor(torch.tensor([PSI], dtype=F64)) @ torch.from_numpy(rng.standard_normal((1, ROWS, 1))))[0]
    y = law.sample(f, torch.from_numpy(rng.random((ROWS, 1))))
    return x[0], torch.cat([y, f, torch.tensor([PSI], dtype=F64).expand(ROWS, -1)], 1)


def training_set(x, y, chains=CHAINS):
    zero, one = torch.zeros(chains, 1, dtype=F64), torch.ones(chains, 1, dtype=F64)
    index = torch.arange(len(x)).expand(chains, -1)
    count = torch.full((chains,), len(x))
    return TrainingSet(
        x,
        y,
        index,
        count,
        zero.expand(-1, 2),
        one.expand(-1, 2),
        zero.expand(-1, y.shape[1]),
        one.expand(-1, y.shape[1]),
    )


def keys(chains=CHAINS):
    return [Key("data", "protocol", 0, r) for r in range(chains)]


def run(likelihood="logit", known=False, steps=STEPS, chains=slice(0, CHAINS), **settings):
    """A method after some steps, its state, and the states on the way with what steps returned."""
    x, y = rows(likelihood)
    hyper = Hyperparameters(likelihood=likelihood, burn_in=BURN_IN / STEPS, **settings)
    method = Method(hyper, *TASKS["logit" if likelihood == "probit" else likelihood])
    own = keys()[chains]
    data = training_set(x, y if known else y[:, :1], len(own))
    state, batch, history = method.start(data, own), data.full(), []
    size = noise_size(method, state, ROWS)
    for step in range(steps):
        noise = np.random.default_rng(step).standard_normal((CHAINS, size))[chains]
        objective = method.step(state, batch, split(method, state, batch, torch.from_numpy(noise)), step, STEPS)
        assert objective.isfinite().all()
        history.append(state.memory | {"objective": objective})
    return method, state, history


@pytest.mark.parametrize("likelihood", TASKS)
def test_f_given_the_psi_of_the_data(likelihood):
    _, state, history = run(likelihood, known=True, sampler="latents", ard=True)
    assert list(state.params) == ["f"]
    torch.testing.assert_close(history[-1]["psi"], torch.tensor([PSI] * CHAINS, dtype=F64))
    assert (state.params["f"][0] != state.params["f"][1]).any()


@pytest.mark.parametrize("theta", ["mh", "hmc", "smmala"])
def test_psi_given_the_f_of_the_data(theta):
    _, state, history = run(known=True, sampler="theta_given_f", latents="none", theta=theta, ard=True)
    assert {name: value.shape for name, value in state.params.items()} == {"psi": (CHAINS, 2)}
    f = rows()[1][:, 1]
    assert (history[-1]["f"] == f).all()
    # sigma is held at that of the data
    corner = history[-1]["chol"][:, 0, 0].square()
    torch.testing.assert_close(corner, torch.full_like(corner, np.exp(PSI[2]) * (1 + 1e-6)))


def test_psi_given_the_whitened_f_of_the_data():
    method, state, history = run(known=True, sampler="theta_given_nu", latents="none", ard=True)
    assert state.params["psi"].shape == (CHAINS, 3)
    truth = torch.tensor([PSI], dtype=F64)
    first = dataclasses.replace(
        method.operator.model, x=method.operator.model.x[:1], weight=torch.ones(1, ROWS).to(F64)
    )
    nu = torch.linalg.solve_triangular(first.factor(truth), rows()[1][None, :, 1:2], upper=False)[..., 0]
    now = torch.linalg.solve_triangular(history[-1]["chol"], history[-1]["f"][..., None], upper=False)[..., 0]
    torch.testing.assert_close(now, nu.expand(CHAINS, -1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sampler", ["latents", "theta_given_f", "theta_given_nu"])
def test_data_without_the_truth_are_refused(sampler):
    with pytest.raises(UserError, match="needs the true f"):
        run(sampler=sampler, ard=True)


def test_several_lengthscales_are_not_taken_for_one():
    with pytest.raises(UserError, match="set ard=true"):
        run(known=True, sampler="latents")


def test_step_sizes_change_in_the_first_quarter_of_burn_in_alone(monkeypatch):
    monkeypatch.setattr(mcmc_gp, "FEWEST", LEARNING)
    _, _, history = run(latents="hmc_v1")
    for name in ("latents.step_size", "theta.step_size"):
        sizes = torch.stack([chain[name] for chain in history])
        assert (sizes[1:LEARNING] != sizes[: LEARNING - 1]).any(0).all()
        assert (sizes[LEARNING:] == sizes[LEARNING]).all()


@pytest.mark.parametrize("sampler", ["aa", "asis", "surr", "khr", "pm", "theta_given_f"])
@pytest.mark.slow
def test_walks_of_psi_follow_its_covariance_as_found_in_the_first_quarter_of_burn_in(sampler, monkeypatch):
    monkeypatch.setattr(mcmc_gp, "FEWEST", 16)
    monkeypatch.setattr(tuning, "SHORTEST", 16)
    known = sampler == "theta_given_f"
    latents = "none" if sampler in ("khr", "pm", "theta_given_f") else "elliptical"
    _, state, history = run(known=known, sampler=sampler, latents=latents, walk="adapted", ard=True)
    names = ["theta", "sufficient"] if sampler == "asis" else ["theta"]
    for name in names:
        scales = torch.stack([chain[f"{name}.scale"] for chain in history])
        size = 2 if known or name == "sufficient" else 3
        assert scales.shape[1:] == (CHAINS, size, size)
        changed = [step for step in range(1, STEPS) if (scales[step] != scales[step - 1]).any()]
        assert changed == [3, 7, 13]
        assert (scales[:3] == torch.eye(size)).all()
        # the window of 6 draws, 5 of unit covariance added, about its mean
        psi = torch.stack([chain["psi"] for chain in history])[8:14, :, :size]
        deviations = psi - psi.mean(0)
        expected = (torch.einsum("sri,srj->rij", deviations, deviations) + 5 * torch.eye(size)) / 11
        torch.testing.assert_close(scales[13] @ scales[13].mT, expected.to(F64))


@pytest.mark.parametrize("sampler", ["hmc", "nuts"])
def test_scales_change_in_the_first_quarter_of_burn_in_alone(sampler, monkeypatch):
    monkeypatch.setattr(mcmc_gp, "FEWEST", 16)
    monkeypatch.setattr(tuning, "SHORTEST", 16)
    method, state, history = run(sampler=sampler, leapfrogs=3, doublings=3)
    scales = torch.stack([chain["theta.scale"] for chain in history])
    changed = [step for step in range(1, STEPS) if (scales[step] != scales[step - 1]).any()]
    assert changed == [3, 7, 13]  # the state kept of a step has what was learnt in it
    assert (scales[:3] == 1).all()
    assert "chol" not in state.memory
    assert ((method.report(state)["divergent"] >= 0) & (method.report(state)["divergent"] <= 1)).all()


def test_the_estimate_is_the_evidence_of_the_approximation_while_step_sizes_are_learnt(monkeypatch):
    monkeypatch.setattr(mcmc_gp, "FEWEST", LEARNING)
    _, _, history = run(sampler="pm", latents="none", num_importance=2)
    assert all((chain["theta.estimated"] == 0).all() for chain in history[:LEARNING])
    assert all((chain["theta.estimated"] == 1).all() for chain in history[LEARNING:])


@pytest.mark.parametrize(("sampler", "factors"), [("sa", 1.0), ("aa", 1.0), ("asis", 2.0)])
def test_an_iteration_takes_the_factors_of_the_published_table(sampler, factors):
    """filippone2013, table 1: of transitions by Metropolis-Hastings; f by HMC in whitened coordinates takes none."""
    method, state, _ = run(sampler=sampler, latents="hmc_v2", theta_updates=1)
    told = method.report(state)
    counts = {"cholesky": factors, "inverse": 0.0, "product": 0.0}
    assert {name: told[name].tolist() for name in counts} == {name: [n] * CHAINS for name, n in counts.items()}


def test_the_report_counts_what_comes_after_burn_in():
    method, state, _ = run(sampler="asis", latents="hmc_v2", theta_updates=1)
    told = method.report(state)
    assert ((told["acceptance_latents"] > 0) & (told["acceptance_latents"] <= 1)).all()
    assert (state.memory["count.steps"] == STEPS - BURN_IN).all()
    assert method.variables("psi", 2) == ["log lengthscale", "log variance"]
    assert Method(Hyperparameters(ard=True), "binary", 2).variables("psi", 3)[:2] == [
        "log lengthscale 1",
        "log lengthscale 2",
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": "aa", "theta": "hmc", "latents": "hmc", "theta_updates": 1},
        {"sampler": "sa", "theta": "hmc", "latents": "smmala", "ard": True},
        {"sampler": "theta_given_nu", "theta": "hmc", "latents": "none", "known": True, "ard": True},
        {"sampler": "pm", "likelihood": "probit", "approximation": "ep", "latents": "elliptical"},
        {"sampler": "hmc", "ard": True},
        {"sampler": "nuts", "doublings": 4},
    ],
    ids=lambda settings: settings["sampler"],
)
def test_chains_with_as_many_rows_are_the_same_alone(settings):
    # few steps and short lengthscales: trajectories of psi amplify rounding, and the more so the worse K is conditioned
    settings = settings | {"start": "uniform", "steps": 3, "lengthscale_rate": 10.0}
    _, together, _ = run(**settings)
    for r in range(CHAINS):
        _, alone, _ = run(chains=slice(r, r + 1), **settings)
        for name, value in alone.params.items():
            torch.testing.assert_close(value, together.params[name][r : r + 1], rtol=1e-9, atol=1e-9)


def test_estimates_on_a_grid():
    settings = {"likelihood": "probit", "sampler": "estimator", "outputscale": 2.0, "grid_points": 4}
    _, state, history = run(approximation="ep", num_importance=8, **settings)
    assert state.params["log_estimate"].shape == (CHAINS, 4)
    drawn = torch.stack([chain["log_estimate"] for chain in history])
    assert (drawn[1:] != drawn[:-1]).all()
    assert drawn.std(0).max() < 1
    with pytest.raises(UserError, match="set outputscale"):
        run(likelihood="probit", sampler="estimator")


def ranks(start, variance_prior):
    """Of 200 chains at their start: distribution functions of the priors at tau and sigma, log tau, and L^-1 f."""
    (x, y), chains = rows(), 200
    settings = OF_LENGTHSCALES | OF_VARIANCE | {"start": start, "variance_prior": variance_prior}
    method = Method(Hyperparameters(**settings), "binary", 2)
    state = method.start(training_set(x, y[:, :1], chains), keys(chains))
    tau, sigma = state.params["psi"].exp().T.numpy()
    law = stats.gamma(4, scale=1 / 5) if variance_prior == "gamma" else stats.invgamma(4, scale=5)
    nu = torch.linalg.solve_triangular(state.memory["chol"], state.params["f"][..., None], upper=False)
    return stats.gamma(2, scale=1 / 3).cdf(tau), law.cdf(sigma), np.log(tau), nu.flatten()


@pytest.mark.parametrize("variance_prior", ["inverse_gamma", "gamma"])
def test_starts(variance_prior):
    of_tau, of_sigma, _, nu = ranks("prior", variance_prior)
    assert stats.kstest(of_tau, "uniform").pvalue > 1e-4
    assert stats.kstest(of_sigma, "uniform").pvalue > 1e-4
    assert stats.kstest(nu, "norm").pvalue > 1e-4
    _, of_sigma, log_tau, _ = ranks("uniform", variance_prior)
    assert stats.kstest(log_tau, "uniform", args=(-3, 2)).pvalue > 1e-4
    assert stats.kstest(of_sigma, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    ("settings", "tau", "sigma", "kernel"),
    [
        (OF_LENGTHSCALES | OF_VARIANCE, Prior(2.0, 3.0), Prior(4.0, 5.0, inverse=True), RBF),
        (
            {"lengthscale_shape": 1.5, "lengthscale_rate": None, "variance_prior": "gamma", "variance_shape": 2.5}
            | {"variance_rate": 0.5, "ard": True, "kernel": "matern32"},
            Prior(1.5, 2**-0.5),
            Prior(2.5, 0.5),
            Matern,
        ),
    ],
    ids=["rbf", "matern32"],
)
def test_priors_and_kernel_are_those_set(settings, tau, sigma, kernel):
    method, state, _ = run(steps=0, **settings)
    model, psi = method.operator.model, state.params["psi"]
    assert (model.lengthscale, model.variance) == (tau, sigma)
    assert psi.shape == (CHAINS, 3 if settings.get("ard") else 2)
    x = rows()[0].numpy()
    for chol, (*scales, variance) in zip(state.memory["chol"], psi.exp().numpy(), strict=True):
        expected = variance * (kernel(scales)(x) + DEFAULT_JITTER * np.eye(ROWS))
        np.testing.assert_allclose(chol @ chol.mT, expected, rtol=1e-9)


@pytest.mark.parametrize("approximation", ["laplace", "ep"])
def test_the_approximation_is_the_one_set(approximation):
    settings = {"likelihood": "probit", "approximation": approximation, "steps": 0}
    for sampler in ("marginal", "pm"):
        method, state, _ = run(sampler=sampler, latents="none", **settings)
        model, psi = method.operator.model, state.params["psi"]
        q, other = (find(model, psi, model.factor(psi)) for find in (approximations.laplace, approximations.ep))
        assert ((q.log_evidence - other.log_evidence).abs() > 1e-3).any()
        q = q if approximation == "laplace" else other
        torch.testing.assert_close(state.memory["theta.log_estimate"], q.log_evidence)
        if sampler == "marginal":
            x = torch.from_numpy(np.random.default_rng(5).random((1, 4, 2)))
            cross = model.cross(psi, x.expand(CHAINS, -1, -1))
            mean, variance = q.predict(model.factor(psi), cross, psi[:, -1:].exp())
            found = method.predict(replica(state, 1), x, keys()[1]).probabilities()[:, 1]
            np.testing.assert_allclose(found, torch.special.ndtr(mean[1] / (1 + variance[1]).sqrt()), rtol=1e-6)
    method, state, _ = run(sampler="estimator", outputscale=2.0, grid_points=3, **settings)
    model, middle = method.operator.model, torch.full((CHAINS, 1), -1.0, dtype=F64)
    q = getattr(approximations, approximation)(model, middle, model.factor(middle))
    torch.testing.assert_close(state.params["log_estimate"][:, 1], q.log_evidence)


LOG_PROB = {
    "logit": lambda y, f: stats.bernoulli.logpmf(y, special.expit(f)),
    "poisson": lambda y, f: stats.poisson.logpmf(y, np.exp(f)),
    "volatility": lambda y, f: stats.norm.logpdf(y, 0, np.exp(f)),
}


@pytest.mark.parametrize(
    ("likelihood", "settings", "of_sigma"),
    [
        ("logit", {}, stats.invgamma(4, scale=5)),
        ("poisson", {"sampler": "surr", "kernel": "matern52", "ard": True}, stats.invgamma(4, scale=5)),
        ("volatility", {"sampler": "nuts", "doublings": 3, "variance_prior": "gamma"}, stats.gamma(4, scale=1 / 5)),
    ],
)
def test_a_step_returns_the_log_density_of_the_state_it_leaves(likelihood, settings, of_sigma):
    _, state, history = run(likelihood, steps=6, **OF_LENGTHSCALES, **OF_VARIANCE, **settings)
    assert torch.equal(history[-1]["psi"], state.params["psi"])
    y, constants, expected = rows(likelihood)[1][:, 0].numpy(), [], []
    for chain in history:
        psi, f = chain["psi"].numpy(), chain["f"].numpy()
        of_tau = stats.gamma(2, scale=1 / 3).logpdf(np.exp(psi[:, :-1])).sum(1)
        prior = of_tau + of_sigma.logpdf(np.exp(psi[:, -1])) + psi.sum(1)
        expected.append(-LOG_PROB[likelihood](y, f).sum(1) - prior)
        constants.append(chain["objective"].numpy() - expected[-1])
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(constants, constants[0][0], rtol=0, atol=1e-8)


def test_joint_updates_start_where_they_can_leave():
    # far from the mode the weight of f is so large that hardly any proposal is accepted
    _, state, history = run(sampler="khr", latents="none", start="uniform")
    moved = [(after["psi"] != before["psi"]).any(1) for before, after in zip(history, history[1:], strict=False)]
    assert torch.stack(moved).any(0).all()


def test_a_chain_without_f_predicts_nothing():
    method, state, _ = run(keep_latents=False)
    assert list(state.params) == ["psi"]
    with pytest.raises(UserError, match="set keep_latents=true"):
        method.predict(state, torch.zeros(1, 2, 2, dtype=F64), keys()[0])


@pytest.mark.parametrize(
    ("task", "settings", "reason"),
    [
        ("multiclass", {}, "likelihood logit is for binary data"),
        ("binary", {"likelihood": "ordinal"}, "likelihood ordinal is for multiclass data"),
        ("counts", {"likelihood": "poisson"}, ""),
        ("binary", {"sampler": "pm", "approximation": "ep"}, "is for the probit likelihood, not logit"),
        ("binary", {"latents": "none"}, "needs an operator of f"),
        ("binary", {"latents": "none", "sampler": "khr"}, ""),
        ("binary", {"sampler": "theta_given_nu", "outputscale": 1.0}, "takes the variance of simulated data"),
        ("binary", {"sampler": "nuts", "walk": "adapted"}, "is for random walks of psi, not theta mh of sampler nuts"),
        ("binary", {"theta": "hmc", "walk": "adapted"}, "is for random walks of psi, not theta hmc of sampler aa"),
        ("binary", {"sampler": "khr", "walk": "adapted"}, ""),
        ("binary", {"sampler": "estimator"}, "outputscale must be set"),
        ("binary", {"sampler": "estimator", "outputscale": 1.0, "grid_low": 2.0}, "needs grid_low < grid_high"),
        ("binary", {"sampler": "estimator", "outputscale": 1.0, "grid_points": 41}, "2 to 40 grid_points"),
        ("binary", {"sampler": "estimator", "outputscale": 1.0, "num_samples": 501}, "500 repetitions at most"),
    ],
)
def test_impossible_settings(task, settings, reason):
    said = Hyperparameters(**settings).impossible(task)
    assert reason in said if reason else said == ""


def test_the_predictive_mixes_over_kept_states():
    method, state, _ = run()
    x = torch.from_numpy(np.random.default_rng(5).random((1, 4, 2)))
    params = state.params
    state.samples = {name: [value, value + 0.3] for name, value in params.items()}
    mixed = method.predict(replica(state, 0), x, keys()[0]).probabilities()
    parts = []
    for shift in (0.0, 0.3):
        state.samples = {name: [value + shift] for name, value in params.items()}
        parts.append(method.predict(replica(state, 0), x, keys()[0]).probabilities())
    np.testing.assert_allclose(mixed, np.mean(parts, 0), rtol=1e-12)
