"""Samplers of (psi, f) against posteriors by the No-U-Turn sampler of BlackJAX (`bench/reference.py` made the files).

Chains start from twice the posterior's spread of psi with f from its prior. They are independent, so that the spread of
their own means and variances gives the Monte Carlo errors, whatever the autocorrelation; the reference brings its own.
Differences of means and standard deviations may be 4 combined errors, and 5 % of a standard deviation more for what the
burn-in leaves of the start: it is at least three autocorrelation times (60 to 100 steps, 15 of pseudo-marginal
chains), and exp(-3) is 5 %.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gpbench.gp import latent_likelihoods
from gpbench.sampling.latent import joint, latents, pseudo_marginal, schemes
from gpbench.sampling.latent.model import Generator, Model, Prior
from gpbench.sampling.tuning import DualAveraging
from projects import REPOSITORY

F64 = torch.float64
FOLDER = Path(__file__).parent / "reference"
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


def draws(operator, quantities, burn_in, steps, seed):
    """`[chains, steps, psi and some f]` of chains that learn their step sizes in burn-in."""
    model, rng = operator.model, np.random.default_rng(seed)
    chains, rows = model.weight.shape
    parameters = [quantities[f"psi[{p}]"] for p in range(model.num_parameters)]
    psi = [part["mean"] + 2 * part["sd"] * rng.standard_normal(chains) for part in parameters]
    psi, nu = torch.tensor(np.stack(psi, 1)), torch.tensor(rng.standard_normal((chains, rows, 1)))
    state = operator.init(model.state(psi, (model.factor(psi) @ nu)[..., 0]))
    tuners = [DualAveraging(part.name, part.target, part.first_step) for part in operator.tuned]
    for tuner in tuners:
        state |= tuner.start(psi)
    kept = []
    for step in range(burn_in + steps):
        state |= {f"{tuner.name}.step_size": tuner.settings(state, step, burn_in)[0] for tuner in tuners}
        state["theta.tuning"] = torch.full((chains,), float(step < burn_in // 2), dtype=F64)
        noise = torch.tensor(rng.standard_normal((chains, operator.fixed + rows * operator.per_row)))
        state, info = operator.step(state, Generator(noise, rows, operator.per_row))
        for tuner in tuners:
            state |= tuner.learn(state, step, burn_in, info[f"{tuner.name}.acceptance"], psi)
        kept.append(torch.cat([state["psi"], state["f"][:, :ROWS_COMPARED]], 1))
    return torch.stack(kept[burn_in:], 1).numpy()


def scheme(name, latent, updates):
    return lambda m: schemes.scheme(name, m, latents.named(latent, m), "mh", updates)


LONGER, LONG, SHORT = (64, 300, 200), (64, 200, 200), (40, 50, 50)
"""Chains, steps of burn-in, steps kept."""
CASES = {
    "logit_50 aa hmc_v2": (scheme("aa", "hmc_v2", (1, 1)), LONG),
    "logit_100 aa hmc_v2": (scheme("aa", "hmc_v2", (1, 2)), LONGER),
    "logit_50 asis elliptical": (scheme("asis", "elliptical", (2, 1)), LONG),
    "logit_50 surr": (lambda m: joint.Surrogate(m, latents.named("elliptical", m), 2), LONG),
    "probit_50 pm ep": (lambda m: pseudo_marginal.PseudoMarginal(m, "ep", 4), SHORT),
    "poisson_50 aa hmc_v1": (scheme("aa", "hmc_v1", (1, 1)), LONG),
}


@pytest.mark.parametrize("case", CASES)
def test_the_posterior_is_that_of_an_independent_library(case):
    found, (make, (chains, burn_in, steps)) = json.loads((FOLDER / f"{case.split()[0]}.json").read_text()), CASES[case]
    operator, quantities = make(model(found, chains)), found["quantities"]
    seen = draws(operator, quantities, burn_in, steps, seed=3)
    names = [f"psi[{p}]" for p in range(operator.model.num_parameters)] + [f"f[{i}]" for i in range(ROWS_COMPARED)]
    mean, mean_error, sd, sd_error = (
        np.array([quantities[name][part] for name in names]) for part in ("mean", "mean_error", "sd", "sd_error")
    )
    ours, error = over_chains(seen.mean(1))
    assert (np.abs(ours - mean) < ERRORS * np.hypot(error, mean_error) + LEFT * sd).all(), (ours - mean) / sd
    square, error = over_chains(np.square(seen - mean).mean(1))
    ours, error = np.sqrt(square), error / (2 * np.sqrt(square))
    assert (np.abs(ours - sd) < ERRORS * np.hypot(error, sd_error) + LEFT * sd).all(), ours / sd


def over_chains(values):
    """Mean over chains `[chains, K]` and its standard error."""
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


DENSITIES = """
import json, sys
import reference
found = {}
for name, (psi, nu) in json.load(sys.stdin).items():
    problem = reference.PROBLEMS[name]
    x, y = reference.data(problem)
    log_density = reference.posterior(problem, x, y)
    positions = [{"psi": reference.jnp.array(p), "nu": reference.jnp.array(n)} for p, n in zip(psi, nu)]
    values = [float(log_density(position)) for position in positions]
    found[name] = {"x": x.tolist(), "y": y.tolist(), "problem": problem._asdict(), "values": values}
json.dump(found, sys.stdout)
"""


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
        ours = model(one, 4)
        state = ours.state(psi, (ours.factor(psi) @ nu[..., None])[..., 0])
        values = state["log_lik"] + ours.log_prior(psi) - 0.5 * nu.square().sum(1)
        # up to a constant
        np.testing.assert_allclose(np.diff(values.numpy()), np.diff(theirs["values"]), rtol=1e-7, atol=1e-7)
