"""Which variance do the efficiencies of filippone2013, table 2, belong to? `python bench/latent_variance.py`

The paper states sigma = exp(2) for its simulated data. Here f | y, psi with 100 rows is sampled on data drawn with that
variance and with 2.08, that of filippone2014, by elliptical slice sampling, which has nothing to tune, and by
Metropolis-Hastings of version 2, whose step is learnt for an acceptance of 25 %. Printed: the least effective sample
size over the latent values in % of 20,000 draws, mean (sd over data sets, a chain each), beside the paper's numbers.
Samplers and data are written here from the equations, in NumPy, and share with `gpbench` nothing but Geyer's estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count, islice

import numpy as np
from numpy import ndarray as Array
from numpy.random import Generator

from gpbench.sampling.diagnostics import geyer_ess

ROWS, SETS, BURN_IN, DRAWS = 100, 10, 5000, 20_000
VARIANCES = {"exp(2)": math.exp(2), "2.08": 2.08}
LIKELIHOODS: dict[str, tuple[Callable[[Generator, Array], Array], Callable[[Array, Array], Array]]] = {
    "logistic": (lambda rng, f: rng.random(f.shape) < 1 / (1 + np.exp(-f)), lambda y, f: y * f - np.logaddexp(0, f)),
    "Poisson": (lambda rng, f: rng.poisson(np.exp(f)), lambda y, f: y * f - np.exp(f)),
    "volatility": (
        lambda rng, f: np.exp(f) * rng.standard_normal(f.shape),
        lambda y, f: -f - y**2 * np.exp(-2 * f) / 2,
    ),
}
PRINTED = {  # % of draws: elliptical slice sampling, Metropolis-Hastings of version 2
    ("logistic", 2): (1.605, 1.02),
    ("logistic", 10): (1.205, 0.755),
    ("Poisson", 2): (0.195, 0.115),
    ("Poisson", 10): (0.055, 0.03),
    ("volatility", 2): (0.23, 0.155),
    ("volatility", 10): (0.09, 0.06),
}


def factor(rng: Generator, inputs: int, variance: float) -> Array:
    """L `[n, n]`, L L^T = K, of x ~ U[0, 1]^d and log tau ~ U[-3, -1]."""
    x, tau = rng.random((ROWS, inputs)), np.exp(rng.uniform(-3, -1, inputs))
    squares = (((x[:, None] - x) / tau) ** 2).sum(2)
    return np.linalg.cholesky(variance * (np.exp(-squares / 2) + 1e-6 * np.eye(ROWS)))


def elliptical(rng: Generator, nu: Array, density: Callable[[Array], Array]) -> Iterator[Array]:
    """Draws of nu `[R, n]`, a priori N(0, I)."""
    while True:
        z, level = rng.standard_normal(nu.shape), density(nu) - rng.exponential(size=len(nu))
        angle = rng.uniform(0, 2 * np.pi, len(nu))
        low, high, new, todo = angle - 2 * np.pi, angle.copy(), nu.copy(), np.full(len(nu), True)
        while todo.any():
            proposed = nu * np.cos(angle)[:, None] + z * np.sin(angle)[:, None]
            found = todo & (density(proposed) > level)
            new[found], todo = proposed[found], todo & ~found
            low, high = np.where(angle < 0, angle, low), np.where(angle < 0, high, angle)
            angle = rng.uniform(low, high)
        nu = new
        yield nu


def metropolis(rng: Generator, nu: Array, density: Callable[[Array], Array]) -> Iterator[Array]:
    """Version 2: nu' = sqrt(1 - a^2) nu + a z keeps the prior; a is learnt in burn-in."""
    log_size = np.full(len(nu), np.log(0.2))
    for t in count():
        size = np.exp(np.minimum(log_size, 0))[:, None]
        proposed = np.sqrt(1 - size**2) * nu + size * rng.standard_normal(nu.shape)
        chance = np.exp(np.minimum(density(proposed) - density(nu), 0))
        if t < BURN_IN:
            log_size += (chance - 0.25) / (t + 1) ** 0.6
        nu = np.where((rng.random(len(nu)) < chance)[:, None], proposed, nu)
        yield nu


def efficiency(sampler: Callable, likelihood: str, inputs: int, variance: float) -> Array:
    """The least effective sample size of a chain on each of `SETS` simulated data sets, in % of draws."""
    rng = np.random.default_rng([inputs, round(100 * variance)])
    simulate, log_density = LIKELIHOODS[likelihood]
    factors = np.stack([factor(rng, inputs, variance) for _ in range(SETS)])

    def latent(nu: Array) -> Array:
        return np.matmul(factors, nu[..., None])[..., 0]

    y = simulate(rng, latent(rng.standard_normal((SETS, ROWS))))
    chains = sampler(rng, rng.standard_normal((SETS, ROWS)), lambda nu: log_density(y, latent(nu)).sum(1))
    draws = np.stack([latent(nu) for nu in islice(chains, BURN_IN, BURN_IN + DRAWS)])
    return 100 * np.array([geyer_ess(draws[:, r]).min() for r in range(SETS)]) / DRAWS


def main() -> None:
    print(f"least ESS of f, % of {DRAWS} draws; mean (sd) over {SETS} data sets of {ROWS} rows\n")
    for (likelihood, inputs), printed in PRINTED.items():
        for name, sampler, known in zip(("ELL-SS", "MH v2"), (elliptical, metropolis), printed, strict=True):
            found = {name: efficiency(sampler, likelihood, inputs, v) for name, v in VARIANCES.items()}
            ours = ", ".join(f"{found[v].mean():.3f} ({found[v].std(ddof=1):.3f}) at {v}" for v in VARIANCES)
            print(f"{likelihood:>10}, {inputs:2} inputs, {name:6}: printed {known:.3f}; {ours}", flush=True)


if __name__ == "__main__":
    main()
