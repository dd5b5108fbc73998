"""Samplers of (psi, f) against the same posterior means by brute-force quadrature, where n is 2 or 3.

Densities on the grids are SciPy's and the equations of filippone2013, nothing of `gpbench`. Chains start from exact
draws of the posterior (rejection), so that there is no burn-in to argue about, and go far enough to forget them: were
another law invariant, they would be on their way to it. They are independent, and an average over a chain is one
observation. A row of padding goes along.
"""

import functools
import itertools

import numpy as np
import pytest
import torch
from geweke import packed
from scipy import special, stats

from gpbench.gp import latent_likelihoods
from gpbench.sampling.latent import joint, latents, pseudo_marginal, schemes
from gpbench.sampling.latent.model import Model, Prior

F64 = torch.float64
X = np.array([[0.1, 0.9], [0.4, 0.3], [0.8, 0.6]])
Y = {
    "logit": [1, 0, 1],
    "probit": [1, 1, 0],
    "poisson": [0, 3, 1],
    "volatility": [0.4, -2.0, 0.9],
    "ordinal": [0, 2, 1],
}
EDGES = np.e * stats.norm.ppf(np.arange(4) / 3)
LENGTHSCALE, VARIANCE, INVERSE = Prior(4.0, 8.0), Prior(5.0, 5.0), Prior(6.0, 6.0, inverse=True)
PSI = np.array([-0.5, 0.7])
"""Where psi is known: log lengthscale and log variance."""
LEVEL = 0.01
"""Of all comparisons together."""

LOG_PROB = {
    "logit": lambda y, f: -np.logaddexp(0, (1 - 2 * y) * f),
    "probit": lambda y, f: special.log_ndtr((2 * y - 1) * f),
    "poisson": lambda y, f: y * f - np.exp(f) - special.gammaln(y + 1),
    "volatility": lambda y, f: -f - 0.5 * y**2 * np.exp(-2 * f) - 0.5 * np.log(2 * np.pi),
    "ordinal": lambda y, f: np.log(
        np.maximum(special.ndtr((EDGES[int(y) + 1] - f) / 0.5) - special.ndtr((EDGES[int(y)] - f) / 0.5), 1e-300)
    ),
}
LARGEST = {
    "logit": lambda y: 0.0,
    "probit": lambda y: 0.0,
    "poisson": lambda y: stats.poisson.logpmf(y, y),
    "volatility": lambda y: stats.norm.logpdf(y, 0, abs(y)),
    "ordinal": lambda y: 0.0,
}
"""The most that log p(y | f) can be, or a bound."""


def factor(psi, rows):
    """L `[..., n, n]` of K at psi `[..., 2]`."""
    squares = np.square(X[:rows, None] - X[:rows]).sum(-1)
    tau, sigma = (np.exp(part)[..., None, None] for part in (psi[..., 0], psi[..., 1]))
    return np.linalg.cholesky(sigma * (np.exp(-0.5 * squares / tau**2) + 1e-6 * np.eye(rows)))


def log_likelihood(name, f):
    """log p(y | f) of f `[..., n]`."""
    return sum(LOG_PROB[name](Y[name][i], f[..., i]) for i in range(f.shape[-1]))


def functions(f, ranks=None):
    """Bounded functions `[..., K]` of f `[..., n]`, and of `ranks` `[..., 2]` of psi."""
    t = np.tanh(f)
    parts = [*np.moveaxis(t, -1, 0), t[..., 0] * t[..., 1], t[..., 0] ** 2]
    if ranks is not None:
        parts += [ranks[..., 0], ranks[..., 1], ranks[..., 0] * ranks[..., 1]]
    return np.stack(np.broadcast_arrays(*parts), -1)


def ranks_of(psi, variance):
    """Distribution functions of exp(psi) `[..., 2]`, uniform a priori."""
    laws = _law(LENGTHSCALE), _law(variance)
    return np.stack([law.cdf(np.exp(psi[..., p])) for p, law in enumerate(laws)], -1)


def _law(prior):
    if prior.inverse:
        return stats.invgamma(prior.shape, scale=prior.rate)
    return stats.gamma(prior.shape, scale=1 / prior.rate)


def nodes(rows, points):
    """Nodes `[points^n, n]` of a grid over nu, and their log weights under N(0, I)."""
    grid = np.linspace(-6.5, 6.5, points)
    nu = np.array(list(itertools.product(grid, repeat=rows)))
    return nu, -0.5 * np.square(nu).sum(1)


@functools.cache
def known(likelihood):
    """Posterior means of `functions` of f for n = 3, psi known."""
    nu, log_weight = nodes(3, 61)
    f = nu @ factor(PSI, 3).T
    weight = np.exp(log_weight + log_likelihood(likelihood, f))
    return weight @ functions(f) / weight.sum()


@functools.cache
def unknown(likelihood, variance, points=33):
    """Posterior means of `functions` of f and psi for n = 2."""
    nu, log_weight = nodes(2, points)
    psi = np.array(list(itertools.product(np.linspace(-3.5, 2.0, points), np.linspace(-4.0, 5.0, points))))
    laws = _law(LENGTHSCALE), _law(variance)
    log_prior = sum(law.logpdf(np.exp(psi[:, p])) + psi[:, p] for p, law in enumerate(laws))
    f = nu @ factor(psi, 2).mT  # [G, N, 2]
    weight = np.exp(log_weight + log_prior[:, None] + log_likelihood(likelihood, f))
    values = functions(f, ranks_of(psi, variance)[:, None])
    return np.einsum("gn,gnk->k", weight, values) / weight.sum()


def exact(likelihood, rows, chains, variance, rng):
    """Draws psi `[chains, 2]`, f `[chains, n]` of the posterior by rejection; variance None: psi is known."""
    most, kept = sum(LARGEST[likelihood](y) for y in Y[likelihood][:rows]), []
    while sum(len(psi) for psi, _ in kept) < chains:
        psi = np.broadcast_to(PSI, (50_000, 2))
        if variance is not None:
            psi = np.log([_law(prior).rvs(50_000, random_state=rng) for prior in (LENGTHSCALE, variance)]).T
        f = np.einsum("rij,rj->ri", factor(psi, rows), rng.standard_normal((50_000, rows)))
        chosen = rng.random(50_000) < np.exp(log_likelihood(likelihood, f) - most)
        kept.append((psi[chosen], f[chosen]))
    psi, f = (np.concatenate(part)[:chains] for part in zip(*kept, strict=True))
    return psi, f


def model(likelihood, rows, chains, variance):
    """The model of so many rows and one of padding."""
    x = torch.tensor(np.concatenate([X[:rows], np.zeros((1, 2))]), dtype=F64).expand(chains, -1, -1)
    y = torch.tensor([*Y[likelihood][:rows], 0.0], dtype=F64).expand(chains, -1)
    weight = torch.tensor([1.0] * rows + [0.0], dtype=F64).expand(chains, -1)
    return Model(x, y, weight, latent_likelihoods.named(likelihood, 3), LENGTHSCALE, variance)


def z_scores(make, likelihood, rows, variance, sizes, chains, steps, seed):
    """Of every function: its average over steps of chains, and quadrature; make: model -> operator."""
    rng = np.random.default_rng(seed)
    psi, f = exact(likelihood, rows, chains, variance, rng)
    operator = make(model(likelihood, rows, chains, variance or VARIANCE))
    state = operator.init(operator.model.state(torch.tensor(psi), torch.tensor(np.pad(f, ((0, 0), (0, 1))))))
    kept = {f"{name}.step_size": size for name, size in sizes.items()} | {"theta.tuning": 0.0}
    state |= {name: torch.full((chains,), value, dtype=F64) for name, value in kept.items()}
    seen = []
    for _ in range(steps):
        noise = rng.standard_normal((chains, operator.fixed + rows * operator.per_row))
        noise = torch.tensor(np.pad(noise, ((0, 0), (0, operator.per_row))))
        state, _ = operator.step(state, packed(noise, rows + 1, operator.per_row))
        moved = state["f"][:, :rows].numpy()
        seen.append(functions(moved, None if variance is None else ranks_of(state["psi"].numpy(), variance)))
    # f is on its way: it has not kept its place
    assert np.corrcoef(moved[:, 0], f[:, 0])[0, 1] < 0.8
    # pseudo-marginal chains start without their estimate: the first half is theirs to find it
    means = np.mean(seen[steps // 2 :], 0)
    expected = known(likelihood) if variance is None else unknown(likelihood, variance)
    return (means.mean(0) - expected) / (means.std(0) / np.sqrt(chains))


SIZES = {
    "mh": 0.7,
    "mh_v1": 0.8,
    "mh_v2": 0.7,
    "hmc": 0.6,
    "hmc_v1": 1.0,
    "hmc_v2": 1.0,
    "smmala": 1.0,
}
OF_F = [
    *((name, "logit") for name in (*SIZES, "elliptical")),
    ("hmc_v1", "poisson"),
    ("smmala", "poisson"),
    ("hmc_v2", "volatility"),
    ("smmala", "volatility"),
    ("mh_v2", "ordinal"),
    ("hmc_v1", "ordinal"),
    ("smmala", "probit"),
    ("hmc", "probit"),
]


@pytest.mark.parametrize(("name", "likelihood"), OF_F)
@pytest.mark.slow
def test_samplers_of_f(name, likelihood):
    sizes = {"latents": SIZES.get(name, 1.0)}
    z = z_scores(lambda m: latents.named(name, m, 3), likelihood, 3, None, sizes, chains=4000, steps=12, seed=1)
    assert np.abs(z).max() < LIMIT, z


def scheme(name, theta="mh", latent="elliptical"):
    return lambda m: schemes.scheme(name, m, latents.named(latent, m, 3), theta, (1, 1))


def surrogate(model):
    return schemes.Sequence(model, [latents.named("elliptical", model), joint.Surrogate(model)])


THETA = {"mh": 0.7, "hmc": 0.3, "smmala": 1.2}
JOINT = {
    "sa-mh": (scheme("sa", "mh"), "logit", INVERSE),
    "sa-hmc": (scheme("sa", "hmc"), "probit", VARIANCE),
    "sa-smmala": (scheme("sa", "smmala"), "poisson", INVERSE),
    "aa-mh": (scheme("aa", "mh", "hmc_v2"), "logit", INVERSE),
    "aa-hmc": (scheme("aa", "hmc"), "poisson", INVERSE),
    "aa-smmala": (scheme("aa", "smmala"), "volatility", VARIANCE),
    "asis-mh": (scheme("asis", "mh", "hmc_v1"), "ordinal", INVERSE),
    "asis-hmc": (scheme("asis", "hmc"), "probit", VARIANCE),
    "asis-smmala": (scheme("asis", "smmala", "smmala"), "logit", INVERSE),
    "khr": (joint.KHR, "logit", INVERSE),
    "surr": (surrogate, "ordinal", INVERSE),
    "pm-laplace": (lambda m: pseudo_marginal.PseudoMarginal(m, "laplace", 1), "poisson", INVERSE),
    "pm-ep": (lambda m: pseudo_marginal.PseudoMarginal(m, "ep", 4), "probit", VARIANCE),
}
COMPARISONS = len(OF_F) * functions(np.zeros(3)).size + len(JOINT) * functions(np.zeros(2), np.zeros(2)).size
LIMIT = stats.norm.isf(LEVEL / COMPARISONS / 2)


@pytest.mark.parametrize("name", JOINT)
@pytest.mark.slow
def test_samplers_of_psi_and_f(name):
    make, likelihood, variance = JOINT[name]
    theta = THETA.get(name.split("-")[-1], 0.7)
    sizes = {"theta": theta, "sufficient": theta, "latents": 0.6}
    chains = 1000 if name.endswith("hmc") else 2500  # what needs a factorisation a leapfrog step takes long
    z = z_scores(make, likelihood, 2, variance, sizes, chains, steps=12, seed=2)
    assert np.abs(z).max() < LIMIT, z


@pytest.mark.parametrize(("likelihood", "variance"), dict.fromkeys(case[1:] for case in JOINT.values()))
def test_the_grid_is_fine_enough(likelihood, variance):
    np.testing.assert_allclose(unknown(likelihood, variance), unknown(likelihood, variance, 25), atol=5e-4)
