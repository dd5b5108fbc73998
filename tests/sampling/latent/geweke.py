"""The joint-distribution test of samplers (geweke2004), with many chains side by side instead of a long one.

Every chain starts from a draw of p(psi) p(f | psi) p(y | f), so from stationarity; then a transition given y and a new
y ~ p(y | f) take turns. At the end chains are still independent draws of the joint law, if and only if the transition
leaves p(psi, f | y) invariant: means of bounded functions of (psi, f, y) are compared with those of fresh draws, by a
z-test at a level corrected for the number of functions and of tests.
"""

import dataclasses

import numpy as np
import torch
from scipy import stats

from gpbench.gp import latent_likelihoods
from gpbench.methods.base import Shapes
from gpbench.sampling.latent.model import Generator, Model, Prior

F64 = torch.float64
LEVEL, TESTS = 0.01, 60
"""Of all joint-distribution tests together, and no fewer than there are."""
INPUTS = torch.tensor([[0.1, 0.9], [0.4, 0.3], [0.7, 0.8], [0.9, 0.1]], dtype=F64)
LENGTHSCALE, VARIANCE = Prior(4.0, 8.0), Prior(5.0, 5.0)
INVERSE = Prior(6.0, 6.0, inverse=True)
"""Light tails, unlike the inverse Gamma(1, 1) of the papers, which has no mean."""


def packed(normals: torch.Tensor, rows: int, per_row: int) -> Generator:
    """The random numbers of a step in one vector a chain: those of the rows, row by row, at its end."""
    return Generator(*Shapes((normals.shape[1] - rows * per_row,), (per_row,)).split(normals, rows))


def model(name="logit", chains=2000, rows=4, ard=True, variance=VARIANCE, lengthscale=LENGTHSCALE):
    """A model of `rows` <= 4 rows in two dimensions; y is yet to come."""
    x = INPUTS[:rows].expand(chains, -1, -1)
    ones = torch.ones(chains, rows, dtype=F64)
    return Model(x, 0 * ones, ones, latent_likelihoods.named(name, 3), lengthscale, variance, ard)


def joint_draw(model, rng):
    """Independent draws of (psi, f, y), one a chain."""
    chains, rows = model.weight.shape
    parts = [torch.from_numpy(rng.random((chains, k))) for k in (model.num_lengthscales, 1)]
    priors = [model.lengthscale, *([model.variance] if isinstance(model.variance, Prior) else [])]
    psi = torch.cat([prior.quantile(part) for prior, part in zip(priors, parts, strict=False)], 1)
    f = (model.factor(psi) @ torch.from_numpy(rng.standard_normal((chains, rows, 1))))[..., 0]
    return psi, f, observe(model, f, rng)


def observe(model, f, rng):
    return model.likelihood.sample(f, torch.from_numpy(rng.random(f.shape)))


def start(operator, psi, f, step_sizes):
    """Chains of an operator at psi and f, with step sizes by the name of what has one."""
    state = operator.init(operator.model.state(psi, f))
    return state | {f"{name}.step_size": torch.full_like(psi[:, 0], size) for name, size in step_sizes.items()}


def advance(operator, state, rng):
    """One transition."""
    chains, rows = operator.model.weight.shape
    noise = torch.from_numpy(rng.standard_normal((chains, operator.fixed + rows * operator.per_row)))
    state, info = operator.step(state, packed(noise, rows, operator.per_row))
    return state, info


def functions(model, psi, f, y):
    """Bounded functions of the joint law `[chains, functions]`."""
    priors = [model.lengthscale] * model.num_lengthscales
    priors += [model.variance] if isinstance(model.variance, Prior) else []
    ranks = [_rank(prior, psi[:, p]) for p, prior in enumerate(priors)]
    t, seen = torch.tanh(f / 2), torch.tanh(y / 2)
    of_psi = [part for rank in ranks for part in (rank, rank**2, rank * t[:, 0] ** 2)]
    of_f = [t, t**2, t[:, :1] * t[:, 1:], t[:, :1] * seen[:, :1], seen]
    fit = torch.tanh(dataclasses.replace(model, y=y).log_lik(f) / 4)
    return torch.cat([*of_f, *(part[:, None] for part in of_psi), fit[:, None]], 1)


def _rank(prior, psi):
    """Distribution function of exp(psi) at psi, uniform a priori."""
    gamma = stats.gamma(prior.shape, scale=1 / prior.rate)
    value = gamma.sf(torch.exp(-psi).numpy()) if prior.inverse else gamma.cdf(psi.exp().numpy())
    return torch.from_numpy(value)


def z_scores(make, model, step_sizes, seed, rounds=12, transition=advance):
    """Of every function; make: model -> operator."""
    rng = np.random.default_rng(seed)
    psi, f, y = joint_draw(model, rng)
    for _ in range(rounds):
        operator = make(dataclasses.replace(model, y=y))
        state, _ = transition(operator, start(operator, psi, f, step_sizes), rng)
        psi, f = state["psi"], state["f"]
        y = observe(model, f, rng)
    ours = functions(model, psi, f, y)
    fresh = torch.cat([functions(model, *joint_draw(model, rng)) for _ in range(8)])
    error = (ours.var(0) / len(ours) + fresh.var(0) / len(fresh)).sqrt()
    return (ours.mean(0) - fresh.mean(0)) / error.clamp_min(1e-12)


def limit(model):
    """The largest |z| that chance allows."""
    count = len(functions(model, *joint_draw(model, np.random.default_rng(0)))[0])
    return float(stats.norm.isf(LEVEL / TESTS / count / 2))


def check(make, model, step_sizes, seed=1, **settings):
    """Assert that a transition leaves the posterior invariant."""
    worst = float(z_scores(make, model, step_sizes, seed, **settings).abs().max())
    assert worst < limit(model), f"|z| = {worst:.2f}, at most {limit(model):.2f}"


def fails(make, model, step_sizes, seed=1, **settings):
    """Assert that a wrong transition is found out."""
    worst = float(z_scores(make, model, step_sizes, seed, **settings).abs().max())
    assert worst > limit(model), f"|z| = {worst:.2f}, more than {limit(model):.2f} was due"
