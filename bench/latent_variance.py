"""Which variance and which estimate do the efficiencies of filippone2013, table 2, belong to?
`python bench/latent_variance.py [2|10|SAMPLER]`, of two or ten inputs or one sampler alone

The paper states sigma = exp(2) for its simulated data, and of its effective sample sizes only that they are "as in
Robert and Casella". Here f | y, psi with 100 rows is sampled on data drawn with that variance, with 2.08, that of
filippone2014, and with 3.5, which was looked for; by elliptical slice sampling, which has nothing to tune, and by
Metropolis-Hastings of both versions, SMMALA and HMC of version 2, whose steps are learnt for an acceptance of 25, 57
and 70, 90 or 98 %. Printed: the least effective sample size over the latent values in % of 20,000 draws, mean (sd
over data sets, a chain each), by Geyer's estimate, which gpbench uses, and by that of an autoregression, as R's
package coda has it, beside the paper's numbers. Samplers and data are written here from the equations, in NumPy, and
share with `gpbench` nothing but Geyer's estimate.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array
from numpy.random import Generator

from gpbench.sampling.diagnostics import geyer_ess

ROWS, SETS, BURN_IN, DRAWS = 100, 10, 5000, 20_000
VARIANCES = {"exp(2)": math.exp(2), "2.08": 2.08, "3.5": 3.5}
PRINTED = {  # % of draws; version 1 of Metropolis-Hastings is simple to write where K is nearly diagonal
    ("logistic", 2): {"ELL-SS": 1.605, "MH v2": 1.02, "SMMALA": 3.78, "HMC v2": 20.02},
    ("logistic", 10): {"ELL-SS": 1.205, "MH v2": 0.755, "MH v1": 0.235, "SMMALA": 1.31, "HMC v2": 26.125},
    ("Poisson", 2): {"ELL-SS": 0.195, "MH v2": 0.115, "SMMALA": 1.085, "HMC v2": 1.27},
    ("Poisson", 10): {"ELL-SS": 0.055, "MH v2": 0.03, "MH v1": 0.03, "SMMALA": 0.195, "HMC v2": 0.94},
    ("volatility", 2): {"ELL-SS": 0.23, "MH v2": 0.155, "SMMALA": 2.12, "HMC v2": 2.09},
    ("volatility", 10): {"ELL-SS": 0.09, "MH v2": 0.06, "MH v1": 0.05, "SMMALA": 0.585, "HMC v2": 2.215},
}


class Likelihood(NamedTuple):
    """p(y | f) of a row: a draw of y, and of f the log density, its derivative and the Fisher information."""

    simulate: Callable[[Generator, Array], Array]
    log_density: Callable[[Array, Array], Array]
    derivative: Callable[[Array, Array], Array]
    information: Callable[[Array], Array]


def chance(f: Array) -> Array:
    return 1 / (1 + np.exp(-f))


LIKELIHOODS = {
    "logistic": Likelihood(
        lambda rng, f: rng.random(f.shape) < chance(f),
        lambda y, f: y * f - np.logaddexp(0, f),
        lambda y, f: y - chance(f),
        lambda f: chance(f) * chance(-f),
    ),
    "Poisson": Likelihood(
        lambda rng, f: rng.poisson(np.exp(f)), lambda y, f: y * f - np.exp(f), lambda y, f: y - np.exp(f), np.exp
    ),
    "volatility": Likelihood(
        lambda rng, f: np.exp(f) * rng.standard_normal(f.shape),
        lambda y, f: -f - y**2 * np.exp(-2 * f) / 2,
        lambda y, f: y**2 * np.exp(-2 * f) - 1,
        lambda f: np.full_like(f, 2.0),
    ),
}


class Target:
    """nu | y with f = L nu, for factors `[R, n, n]` and targets `[R, n]`."""

    def __init__(self, likelihood: Likelihood, factors: Array, y: Array) -> None:
        self.likelihood, self.factors, self.y = likelihood, factors, y

    def latent(self, nu: Array) -> Array:
        """f `[R, n]`."""
        return np.matmul(self.factors, nu[..., None])[..., 0]

    def density(self, nu: Array) -> Array:
        """log p(y | f) `[R]`; where f is out of all bounds, -inf."""
        return np.nan_to_num(self.likelihood.log_density(self.y, self.latent(nu)).sum(1), nan=-np.inf)

    def gradient(self, nu: Array) -> Array:
        """Of log p(y | f) - |nu|^2 / 2 `[R, n]`."""
        return np.matmul(self.likelihood.derivative(self.y, self.latent(nu))[:, None], self.factors)[:, 0] - nu

    def metric(self, nu: Array) -> Array:
        """I + L^T R(f) L `[R, n, n]`, R the Fisher information."""
        # of Poisson data it has no bound, and proposals from where a product with it overflows are not taken
        information = np.minimum(self.likelihood.information(self.latent(nu)), 1e8)
        weighted = information[..., None] * self.factors
        return np.eye(nu.shape[1]) + np.matmul(self.factors.swapaxes(1, 2), weighted)


def factor(rng: Generator, inputs: int, variance: float) -> Array:
    """L `[n, n]`, L L^T = K, of x ~ U[0, 1]^d and log tau ~ U[-3, -1]."""
    x, tau = rng.random((ROWS, inputs)), np.exp(rng.uniform(-3, -1, inputs))
    squares = (((x[:, None] - x) / tau) ** 2).sum(2)
    return np.linalg.cholesky(variance * (np.exp(-squares / 2) + 1e-6 * np.eye(ROWS)))


def elliptical(rng: Generator, nu: Array, target: Target) -> Iterator[Array]:
    """Draws of nu `[R, n]`, a priori N(0, I)."""
    while True:
        z, level = rng.standard_normal(nu.shape), target.density(nu) - rng.exponential(size=len(nu))
        angle = rng.uniform(0, 2 * np.pi, len(nu))
        low, high, new, todo = angle - 2 * np.pi, angle.copy(), nu.copy(), np.full(len(nu), True)
        while todo.any():
            proposed = nu * np.cos(angle)[:, None] + z * np.sin(angle)[:, None]
            found = todo & (target.density(proposed) > level)
            new[found], todo = proposed[found], todo & ~found
            low, high = np.where(angle < 0, angle, low), np.where(angle < 0, high, angle)
            angle = rng.uniform(low, high)
        nu = new
        yield nu


def metropolis(rng: Generator, nu: Array, target: Target) -> Iterator[Array]:
    """Version 2: nu' = sqrt(1 - a^2) nu + a z keeps the prior; a is learnt in burn-in."""
    log_size = np.full(len(nu), np.log(0.2))
    for t in count():
        size = np.exp(np.minimum(log_size, 0))[:, None]
        proposed = np.sqrt(1 - size**2) * nu + size * rng.standard_normal(nu.shape)
        chance = np.exp(np.minimum(target.density(proposed) - target.density(nu), 0))
        if t < BURN_IN:
            log_size += (chance - 0.25) / (t + 1) ** 0.6
        nu = np.where((rng.random(len(nu)) < chance)[:, None], proposed, nu)
        yield nu


def random_walk(rng: Generator, nu: Array, target: Target) -> Iterator[Array]:
    """Version 1 where K is nearly diagonal, as with ten inputs: nu' = nu + a z; a is learnt in burn-in."""
    log_size = np.full(len(nu), np.log(0.1))
    for t in count():
        proposed = nu + np.exp(log_size)[:, None] * rng.standard_normal(nu.shape)
        prior = ((nu**2).sum(1) - (proposed**2).sum(1)) / 2
        chance = np.exp(np.minimum(target.density(proposed) - target.density(nu) + prior, 0))
        if t < BURN_IN:
            log_size += (chance - 0.25) / (t + 1) ** 0.6
        nu = np.where((rng.random(len(nu)) < chance)[:, None], proposed, nu)
        yield nu


def hamiltonian(rng: Generator, nu: Array, target: Target, accept: float) -> Iterator[Array]:
    """Version 2, unit mass on nu: 1 to 10 leapfrog steps, whose size is learnt in burn-in for an acceptance."""
    log_size, gradient, density = np.full(len(nu), np.log(0.1)), target.gradient(nu), target.density(nu)
    for t in count():
        size, momentum = np.exp(log_size)[:, None], rng.standard_normal(nu.shape)
        energy = density - ((nu**2).sum(1) + (momentum**2).sum(1)) / 2
        proposed, slope = nu, gradient
        for _ in range(rng.integers(1, 11)):
            momentum = momentum + size / 2 * slope
            proposed = proposed + size * momentum
            slope = target.gradient(proposed)
            momentum = momentum + size / 2 * slope
        there = target.density(proposed)
        found = there - ((proposed**2).sum(1) + (momentum**2).sum(1)) / 2
        probability = np.exp(np.minimum(np.nan_to_num(found - energy, nan=-np.inf), 0))
        if t < BURN_IN:
            log_size += (probability - accept) / (t + 1) ** 0.6
        taken = rng.random(len(nu)) < probability
        nu, gradient = (np.where(taken[:, None], *pair) for pair in ((proposed, nu), (slope, gradient)))
        density = np.where(taken, there, density)
        yield nu


def smmala(rng: Generator, nu: Array, target: Target, accept: float = 0.57) -> Iterator[Array]:
    """nu' ~ N(nu + e^2 / 2 G^-1 grad, e^2 G^-1), G the metric at nu, without its derivatives."""
    log_size = np.full(len(nu), np.log(0.5))

    def place(nu: Array) -> tuple[Array, ...]:
        root = np.linalg.cholesky(target.metric(nu))
        drift = np.linalg.solve(root.swapaxes(1, 2), np.linalg.solve(root, target.gradient(nu)[..., None]))[..., 0]
        log_density = target.density(nu) - (nu**2).sum(1) / 2
        return nu, root, drift, log_density, np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)

    def moved(start: tuple[Array, ...], end: Array, size: Array) -> Array:
        nu, root, drift, _, log_root = start
        step = (end - nu - size[:, None] ** 2 / 2 * drift) / size[:, None]
        return log_root - (np.matmul(step[:, None], root)[:, 0] ** 2).sum(1) / 2

    here = place(nu)
    for t in count():
        size = np.exp(log_size)
        noise = np.linalg.solve(here[1].swapaxes(1, 2), rng.standard_normal((*here[0].shape, 1)))[..., 0]
        proposed = here[0] + size[:, None] ** 2 / 2 * here[2] + size[:, None] * noise
        there = place(proposed)
        ratio = there[3] + moved(there, here[0], size) - here[3] - moved(here, proposed, size)
        probability = np.exp(np.minimum(np.nan_to_num(ratio, nan=-np.inf), 0))
        if t < BURN_IN:
            log_size += (probability - accept) / (t + 1) ** 0.6
        taken = rng.random(len(nu)) < probability
        here = tuple(np.where(taken.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(here, there, strict=True))
        yield here[0]


SAMPLERS: dict[str, list[tuple[str, Callable[..., Iterator[Array]]]]] = {
    "ELL-SS": [("", elliptical)],
    "MH v2": [("", metropolis)],
    "MH v1": [("", random_walk)],
    "SMMALA": [("", smmala)],
    "HMC v2": [(f" accepting {rate}", partial(hamiltonian, accept=rate)) for rate in (0.7, 0.9, 0.98)],
}


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
    factors = np.stack([factor(rng, inputs, variance) for _ in range(SETS)])
    target = Target(LIKELIHOODS[likelihood], factors, np.zeros((SETS, ROWS)))
    target.y = target.likelihood.simulate(rng, target.latent(rng.standard_normal((SETS, ROWS))))
    chains = sampler(rng, rng.standard_normal((SETS, ROWS)), target)
    draws = np.stack([target.latent(nu) for nu in islice(chains, BURN_IN, BURN_IN + DRAWS)])
    by_geyer = [geyer_ess(draws[:, r]).min() for r in range(SETS)]
    by_regression = [min(map(autoregressive_ess, draws[:, r].T)) for r in range(SETS)]
    return 100 * np.array([by_geyer, by_regression]) / DRAWS


def main() -> None:
    wanted = set(sys.argv[1:])
    np.seterr(over="ignore", invalid="ignore")  # of proposals out of all bounds, which are not taken
    print(f"least ESS of f, % of {DRAWS} draws; mean (sd) over {SETS} data sets of {ROWS} rows\n")
    for (likelihood, inputs), printed in PRINTED.items():
        for name, known in printed.items():
            if not wanted or str(inputs) in wanted or name in wanted:
                print(f"{likelihood:>10}, {inputs:2} inputs, {name:6}: printed {known:.3f}", flush=True)
                for setting, sampler in SAMPLERS[name]:
                    for variance, value in VARIANCES.items():
                        parts = efficiency(sampler, likelihood, inputs, value)
                        found = [f"{part.mean():.3f} ({part.std(ddof=1):.3f})" for part in parts]
                        print(
                            f"{'at ' + variance + setting:>30}: Geyer {found[0]}, autoregression {found[1]}", flush=True
                        )


if __name__ == "__main__":
    main()
