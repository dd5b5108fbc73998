"""Samplers of psi, of f and of both against posteriors by the No-U-Turn sampler of BlackJAX, which `bench/reference.py`
wrote to the files.

Chains start from twice the posterior's spread of psi with f from its prior. They are independent, so that the spread of
their own means and variances gives the Monte Carlo errors, whatever the autocorrelation; the reference brings its own.
Differences of means and standard deviations may be 4 combined errors, and 5 % of a standard deviation more for what the
burn-in leaves of the start: it is at least three autocorrelation times (15 steps of pseudo-marginal and KHR
chains, up to 100 of most; `mh`, `mh_v1` and `mh_v2` of f 3,000, 350 and 120, `sa` 4,000), and exp(-3) is 5 %.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from geweke import packed

from gpbench.data.simulated import posteriors
from gpbench.gp import latent_likelihoods
from gpbench.gp.linalg import half_log_det, multiply, solve
from gpbench.methods import gp_mh
from gpbench.methods.training_rows import Batch
from gpbench.sampling.latent import approximations, joint, latents, pseudo_marginal, schemes, whitened
from gpbench.sampling.latent.model import Model, Prior
from projects import REPOSITORY

F64 = torch.float64
FOLDER = posteriors.FOLDER
ROWS_COMPARED, ERRORS, LEFT = 5, 4.0, 0.05


def model(found, chains):
    """The model of a reference."""
    problem = found["settings"]["problem"]
    x, y = (torch.tensor(found[name], dtype=F64) for name in ("x", "y"))
    priors = [
        Prior(shape, rate, name != "gamma") for name, shape, rate in (problem["lengthscale"], problem["variance"])
    ]
    likelihood, ard = latent_likelihoods.named(problem["likelihood"]), len(problem["psi"]) > 2
    y = y.expand(chains, -1)
    return Model(x.expand(chains, -1, -1), y, torch.ones_like(y), likelihood, *priors, ard)


def start(operator, found, rng):
    """psi at twice its spread around its mean and nu of N(0, I), but for what is held: `[chains, ...]` psi and f."""
    model = operator.model
    chains, rows = model.weight.shape
    held = {name: torch.tensor(value, dtype=F64).expand(chains, -1) for name, value in found["held"].items()}
    psi = held.get("psi")
    if psi is None:
        parts = [found["quantities"][f"psi[{p}]"] for p in range(model.num_parameters)]
        psi = torch.tensor(np.stack([part["mean"] + 2 * part["sd"] * rng.standard_normal(chains) for part in parts], 1))
    nu, chol = held.get("nu", torch.tensor(rng.standard_normal((chains, rows)))), model.factor(psi)
    if isinstance(operator, joint.KHR):
        # far from its Gaussian the weight p/q of an f is so large that the chain would stay there
        nu = approximations.laplace(model, psi, chol).draw(nu[:, None])[:, 0]
    return model.state(psi, held.get("f", multiply(chol, nu)))


def draws(operator, found, burn_in, steps, seed):
    """`[chains, steps, P + 5]`: psi and f of five rows, of chains that learn their step sizes at first."""
    model, rng = operator.model, np.random.default_rng(seed)
    chains, rows = model.weight.shape
    state = operator.init(start(operator, found, rng))
    tuners = schemes.tuners(operator)
    for tuner in tuners:
        state |= tuner.start(state["psi"])
    kept = []
    tuning = burn_in // 4  # the law of a chain that learns is another one
    for step in range(burn_in + steps):
        state |= {f"{tuner.name}.step_size": tuner.settings(state, step, tuning)[0] for tuner in tuners}
        state["theta.tuning"] = torch.full((chains,), float(step < tuning), dtype=F64)
        noise = torch.tensor(rng.standard_normal((chains, operator.fixed + rows * operator.per_row)))
        state, info = operator.step(state, packed(noise, rows, operator.per_row))
        for tuner in tuners:
            position = state.get(f"{tuner.name}.position", state["psi"])
            state |= tuner.learn(state, step, tuning, info[f"{tuner.name}.acceptance"], position)
        kept.append(torch.cat([state["psi"], state["f"][:, :ROWS_COMPARED]], 1))
    return torch.stack(kept[burn_in:], 1).numpy()


def scheme(name, latent, updates):
    return lambda m: schemes.scheme(name, m, latents.named(latent, m), "mh", updates)


def alone(latent):
    return lambda m: latents.named(latent, m)


def scheme_of_psi(held, theta):
    return lambda m: schemes.scheme(f"theta_given_{held}", m, None, theta, (0, 1))


def surrogate(updates):
    return lambda m: schemes.Sequence(m, [latents.named("elliptical", m)] * updates + [joint.Surrogate(m)])


LONGER, LONG, SHORT, FEWER = (64, 300, 200), (64, 200, 200), (40, 50, 50), (32, 200, 150)
SHORTEST = (16, 100, 50)
"""Chains, steps of burn-in, steps kept."""
CASES = {
    "logit_50 aa hmc_v2": (scheme("aa", "hmc_v2", (1, 1)), FEWER),
    "logit_50 asis elliptical": (scheme("asis", "elliptical", (2, 1)), FEWER),
    "logit_50 surr": (surrogate(2), FEWER),
    "logit_50 hmc": (lambda m: whitened.Hamiltonian(m, 8), SHORTEST),
    "logit_100_given_psi mh_v1": (alone("mh_v1"), (32, 1200, 600)),
    "logit_100_given_psi mh_v2": (alone("mh_v2"), (32, 1200, 600)),
    "logit_100_given_psi elliptical": (alone("elliptical"), FEWER),
    "logit_100_given_psi hmc_v2": (alone("hmc_v2"), FEWER),
    "logit_50 nuts": (lambda m: whitened.NoUTurn(m, 4), SHORTEST),
    "probit_50 pm ep": (lambda m: pseudo_marginal.PseudoMarginal(m, "ep", 4), (20, 50, 30)),
    "poisson_50 aa hmc_v1": (scheme("aa", "hmc_v1", (1, 1)), FEWER),
    "logit_100_given_psi hmc_v1": (alone("hmc_v1"), FEWER),
    "logit_100 aa hmc_v2": (scheme("aa", "hmc_v2", (1, 2)), LONGER),
    "logit_100 sa": (scheme("sa", "hmc_v2", (1, 1)), (32, 16000, 16000)),
    "logit_100 asis": (scheme("asis", "elliptical", (4, 1)), LONGER),
    "logit_100 khr": (joint.KHR, LONGER),
    "logit_100 hmc": (lambda m: whitened.Hamiltonian(m, 10), FEWER),
    "poisson_50 nuts": (lambda m: whitened.NoUTurn(m, 6), FEWER),
    "logit_100 nuts": (lambda m: whitened.NoUTurn(m, 8), FEWER),
    "logit_100 surr": (surrogate(4), LONGER),
    "logit_100 pm laplace": (lambda m: pseudo_marginal.PseudoMarginal(m, "laplace", 16), LONGER),
    "probit_100 pm ep": (lambda m: pseudo_marginal.PseudoMarginal(m, "ep", 16), SHORT),
    "logit_100_given_psi mh": (alone("mh"), (64, 9000, 9000)),
    "logit_100_given_psi hmc": (alone("hmc"), (64, 1000, 1000)),
    "logit_100_given_psi smmala": (alone("smmala"), LONG),
    **{
        f"logit_100_given_{held} {theta}": (scheme_of_psi(held, theta), LONG if theta == "mh" else SHORT)
        for held in ("f", "nu")
        for theta in ("mh", "hmc", "smmala")
    },
}
"""Every operator and every scheme, most at n = 100."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_the_posterior_is_that_of_an_independent_library(case):
    found = json.loads((FOLDER / f"{case.split()[0]}.json").read_text())
    make, (chains, burn_in, steps) = CASES[case]
    operator, quantities = make(model(found, chains)), found["quantities"]
    names = [f"psi[{p}]" for p in range(operator.model.num_parameters)] + [f"f[{i}]" for i in range(ROWS_COMPARED)]
    unknown = [i for i, name in enumerate(names) if name in quantities]
    seen = draws(operator, found, burn_in, steps, seed=3)[:, :, unknown]
    mean, mean_error, sd, sd_error = (
        np.array([quantities[names[i]][part] for i in unknown]) for part in ("mean", "mean_error", "sd", "sd_error")
    )
    ours, error = over_chains(seen.mean(1))
    assert (np.abs(ours - mean) < ERRORS * np.hypot(error, mean_error) + LEFT * sd).all(), (ours - mean) / sd
    square, error = over_chains(np.square(seen - mean).mean(1))
    ours, error = np.sqrt(square), error / (2 * np.sqrt(square))
    assert (np.abs(ours - sd) < ERRORS * np.hypot(error, sd_error) + LEFT * sd).all(), ours / sd


def over_chains(values):
    """Mean over chains `[chains, K]` and its standard error."""
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


def regression(found, psi):
    """log p(y | psi) + log p(psi) `[R]` by the chains of regression."""
    method = gp_mh.Method(gp_mh.Hyperparameters(ard=True, jitter=1e-12), "regression")
    x, y = (torch.tensor(found[part], dtype=F64) for part in ("x", "y"))
    batch = Batch(x[None], y[None, :, None], torch.ones_like(y[None]))
    return torch.cat([method.log_joint(place[None], batch) for place in psi]).numpy()


DENSITIES = """
import json, sys
import reference
found = {}
for name, (psi, nu) in json.load(sys.stdin).items():
    problem = reference.PROBLEMS[name]
    x, y, known = reference.data(problem)
    log_density = reference.posterior(problem, x, y, known)
    positions = [{"psi": reference.jnp.array(p), "nu": reference.jnp.array(n)} for p, n in zip(psi, nu)]
    positions = [{part: p[part] for part in reference.unknown(problem)} for p in positions]
    values = [float(log_density(position)) for position in positions]
    found[name] = {"x": x.tolist(), "y": y.tolist(), "problem": problem._asdict(), "values": values}
json.dump(found, sys.stdout)
"""


@pytest.mark.slow
def test_data_and_log_densities_are_those_of_the_reference():
    rng, found = np.random.default_rng(0), {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    places = {}
    for name, one in found.items():
        size, rows = len(one["settings"]["problem"]["psi"]), len(one["y"])
        places[name] = rng.uniform(-1, 1, (4, size)), rng.standard_normal((4, rows))
    # apart from this process, which other tests fork: JAX has threads
    done = subprocess.run(
        [sys.executable, "-c", DENSITIES],
        cwd=REPOSITORY / "bench",
        input=json.dumps({name: [part.tolist() for part in both] for name, both in places.items()}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for name, theirs in json.loads(done.stdout).items():
        one, (psi, nu) = found[name], (torch.tensor(part) for part in places[name])
        assert (one["x"], one["y"], one["settings"]["problem"]) == (theirs["x"], theirs["y"], theirs["problem"])
        if one["settings"]["problem"]["likelihood"] == "gaussian":
            values = regression(one, psi)
            np.testing.assert_allclose(np.diff(values), np.diff(theirs["values"]), rtol=1e-6, atol=1e-6)
            continue
        ours, held = model(one, 4), {part: torch.tensor(value, dtype=F64) for part, value in one["held"].items()}
        psi, nu = held.get("psi", psi).expand(4, -1), held.get("nu", nu).expand(4, -1)
        f = held.get("f", multiply(ours.factor(psi), nu))
        state = ours.state(psi, f.expand(4, -1))
        if "f" in held:
            values = -0.5 * solve(state["chol"], state["f"]).square().sum(1) - half_log_det(state["chol"])
        else:
            values = state["log_lik"] - 0.5 * nu.square().sum(1)
        values = values + ours.log_prior(psi)
        # up to a constant
        np.testing.assert_allclose(np.diff(values.numpy()), np.diff(theirs["values"]), rtol=1e-7, atol=1e-7)
