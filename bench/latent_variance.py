"""Which variance and which estimate do the efficiencies of filippone2013, table 2, belong to?
`python bench/latent_variance.py [2|10]`, of two or ten inputs alone

The paper states sigma = exp(2) for its simulated data, and of its effective sample sizes only that they are "as in
Robert and Casella". Here f | y, psi with 100 rows is sampled on data drawn with that variance, with 2.08, that of
filippone2014, and with 3.5, which was looked for; by elliptical slice sampling, which has nothing to tune, and by
Metropolis-Hastings of both versions, whose steps are learnt for an acceptance of 25 %. Printed: the least effective
sample size over the latent values in % of 20,000 draws, mean (sd over data sets, a chain each), by Geyer's estimate,
which gpbench uses, and by that of an autoregression, as R's package coda has it, beside the paper's numbers. Samplers
and data are written here from the equations, in NumPy, and share with `gpbench` nothing but Geyer's estimate.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from itertools import count, islice

import numpy as np
from numpy import ndarray as Array
from numpy.random import Generator

from gpbench.sampling.diagnostics import geyer_ess

ROWS, SETS, BURN_IN, DRAWS = 100, 10, 5000, 20_000
VARIANCES = {"exp(2)": math.exp(2), "2.08": 2.08, "3.5": 3.5}
LIKELIHOODS: dict[str, tuple[Callable[[Generator, Array], Array], Callable[[Array, Array], Array]]] = {
    "logistic": (lambda rng, f: rng.random(f.shape) < 1 / (1 + np.exp(-f)), lambda y, f: y * f - np.logaddexp(0, f)),
    "Poisson": (lambda rng, f: rng.poisson(np.exp(f)), lambda y, f: y * f - np.exp(f)),
    "volatility": (
        lambda rng, f: np.exp(f) * rng.standard_normal(f.shape),
        lambda y, f: -f - y**2 * np.exp(-2 * f) / 2,
    ),
}
PRINTED = {  # % of draws: elliptical slice sampling, Metropolis-Hastings of version 2; of ten inputs version 1, too
    ("logistic", 2): (1.605, 1.02),
    ("logistic", 10): (1.205, 0.755, 0.235),
    ("Poisson", 2): (0.195, 0.115),
    ("Poisson", 10): (0.055, 0.03, 0.03),
    ("volatility", 2): (0.23, 0.155),
    ("volatility", 10): (0.09, 0.06, 0.05),
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


def random_walk(rng: Generator, nu: Array, density: Callable[[Array], Array]) -> Iterator[Array]:
    """Version 1 where K is nearly diagonal, as with ten inputs: nu' = nu + a z; a is learnt in burn-in."""
    log_size = np.full(len(nu), np.log(0.1))
    for t in count():
        proposed = nu + np.exp(log_size)[:, None] * rng.standard_normal(nu.shape)
        prior = ((nu**2).sum(1) - (proposed**2).sum(1)) / 2
        chance = np.exp(np.minimum(density(proposed) - density(nu) + prior, 0))
        if t < BURN_IN:
            log_size += (chance - 0.25) / (t + 1) ** 0.6
        nu = np.where((rng.random(len(nu)) < chance)[:, None], proposed, nu)
        yield nu


SAMPLERS = {"ELL-SS": elliptical, "MH v2": metropolis, "MH v1": random_walk}


def autoregressive_ess(x: Array) -> float:
    """T var(x) / spectrum of x `[T]` at 0, of the autoregression (Yule-Walker, order by AIC up to 10 log10 T) that
    `effectiveSize` of R's coda fits. Source: Plummer et al. (2006)."""
    size, centred = len(x), x - x.mean()
    spectrum = np.abs(np.fft.rfft(centred, 2 ** (2 * size - 1).bit_length())) ** 2
    covariance = np.fft.irfft(spectrum)[:size] / size
    noise, weights = covariance[0], np.zeros(0)
    best = (size * np.log(noise), noise, 0.0, 0)
    for order in range(1, int(10 * np.log10(size)) + 1):  # Levinson's recursion
        partial = (covariance[order] - weights @ covariance[order - 1 : 0 : -1]) / noise
        weights, noise = np.append(weights - partial * weights[::-1], partial), noise * (1 - partial**2)
        best = min(best, (size * np.log(noise) + 2 * order, noise, weights.sum(), order))
    _, noise, total, order = best
    return size**2 / (size - 1) * covariance[0] * (1 - total) ** 2 * (size - order - 1) / (size * noise)


def efficiency(sampler: Callable, likelihood: str, inputs: int, variance: float) -> Array:
    """The least effective sample size of a chain on each of `SETS` simulated data sets, in % of draws, `[2, SETS]`: by
    Geyer's estimate and by that of an autoregression."""
    rng = np.random.default_rng([inputs, round(100 * variance)])
    simulate, log_density = LIKELIHOODS[likelihood]
    factors = np.stack([factor(rng, inputs, variance) for _ in range(SETS)])

    def latent(nu: Array) -> Array:
        return np.matmul(factors, nu[..., None])[..., 0]

    y = simulate(rng, latent(rng.standard_normal((SETS, ROWS))))
    chains = sampler(rng, rng.standard_normal((SETS, ROWS)), lambda nu: log_density(y, latent(nu)).sum(1))
    draws = np.stack([latent(nu) for nu in islice(chains, BURN_IN, BURN_IN + DRAWS)])
    by_geyer = [geyer_ess(draws[:, r]).min() for r in range(SETS)]
    by_regression = [min(map(autoregressive_ess, draws[:, r].T)) for r in range(SETS)]
    return 100 * np.array([by_geyer, by_regression]) / DRAWS


def main() -> None:
    wanted = [int(word) for word in sys.argv[1:]] or [2, 10]
    print(f"least ESS of f, % of {DRAWS} draws; mean (sd) over {SETS} data sets of {ROWS} rows\n")
    for (likelihood, inputs), printed in PRINTED.items():
        for name, sampler, known in zip(SAMPLERS, SAMPLERS.values(), printed, strict=False):
            if inputs in wanted:
                print(f"{likelihood:>10}, {inputs:2} inputs, {name:6}: printed {known:.3f}", flush=True)
                for variance, value in VARIANCES.items():
                    geyer, regression = efficiency(sampler, likelihood, inputs, value)
                    found = [f"{part.mean():.3f} ({part.std(ddof=1):.3f})" for part in (geyer, regression)]
                    print(f"{'at ' + variance:>20}: Geyer {found[0]}, autoregression {found[1]}", flush=True)


if __name__ == "__main__":
    main()
