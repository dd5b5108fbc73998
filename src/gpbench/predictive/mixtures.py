"""Equal-weight mixtures of univariate Gaussians, T of them at once: density, distribution, quantiles, CRPS.

Arrays are `[S, T]`, components first: mixture t is F_t(y) = 1/S sum_s Phi((y_t - mean_st) / sd_st).
Work runs in blocks of mixtures, so temporaries stay near `BLOCK` numbers whatever S and T are.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, ndtr, ndtri

BLOCK = 2**17
NEWTON_STEPS, BISECTIONS = 10, 60
RELATIVE_TOLERANCE = 1e-11

# `[T]` of means `[S, T]`, standard deviations `[S, T]` and y `[T]`
Statistic = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def log_density(mean: np.ndarray, sd: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log 1/S sum_s N(y_t; mean_st, sd_st^2) `[T]`, by log-mean-exp, so it is finite far from every component."""

    def block(mean: np.ndarray, sd: np.ndarray, y: np.ndarray) -> np.ndarray:
        log = -0.5 * ((y - mean) / sd) ** 2 - np.log(sd)
        top = log.max(axis=0)
        return top + np.log(np.exp(log - top).mean(axis=0)) - 0.5 * np.log(2 * np.pi)

    return _in_blocks(block, mean, sd, y)


def cdf(mean: np.ndarray, sd: np.ndarray, y: np.ndarray) -> np.ndarray:
    """F_t(y_t) `[T]`."""
    return _in_blocks(lambda mean, sd, y: ndtr((y - mean) / sd).mean(axis=0), mean, sd, y)


def crps(mean: np.ndarray, sd: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Continuous ranked probability score E|Y - y| - E|Y - Y'|/2 `[T]`, in the units of y, lower is better.

    1/S sum_s A(y - mean_s, sd_s^2) - 1/(2 S^2) sum_rs A(mean_r - mean_s, sd_r^2 + sd_s^2), A(m, v) = E|m + sqrt(v) Z|.
    Time O(S^2 T). Source: Grimit, Gneiting, Berrocal and Johnson (2006)."""

    def block(mean: np.ndarray, sd: np.ndarray, y: np.ndarray) -> np.ndarray:
        size, twice_variance = len(mean), 2 * sd**2
        to_target = _mean_absolute(y - mean, twice_variance).mean(axis=0)
        # the pairs (s, s + lag) and (s + lag, s) are equal, hence no factor 1/2 for lag > 0
        spread = 0.5 * _mean_absolute(np.zeros_like(mean), 2 * twice_variance).sum(axis=0)
        for lag in range(1, size):
            gap, scale = mean[lag:] - mean[:-lag], twice_variance[lag:] + twice_variance[:-lag]
            spread += _mean_absolute(gap, scale).sum(axis=0)
        return to_target - spread / size**2

    return _in_blocks(block, mean, sd, y)


def quantile(mean: np.ndarray, sd: np.ndarray, levels: ArrayLike) -> np.ndarray:
    """F_t^-1(level) `[L, T]` for levels `[L]` strictly between 0 and 1 (else ValueError).

    Newton on Phi^-1(F(x)) = Phi^-1(level), which is linear for one component, kept inside a bracket; levels that have
    not converged after a few steps (mass between far modes) are bisected. The smallest and largest quantile of the
    components bracket the quantile of the mixture."""
    size, count = mean.shape
    levels = np.asarray(levels, float)
    if not np.all((levels > 0) & (levels < 1)):
        raise ValueError(f"quantile levels must lie strictly between 0 and 1: {levels}")
    score = ndtri(levels)
    centre = mean.mean(axis=0)
    spread = np.sqrt((sd**2).mean(axis=0) + mean.var(axis=0))
    result = np.empty((len(levels), count))
    for columns in _blocks(count, len(levels) * size):
        mu, sigma = mean[:, columns], sd[:, columns]
        ends = mu + score[:, None, None] * sigma
        start = centre[columns] + score[:, None] * spread[columns]
        low, high = ends.min(axis=1).ravel(), ends.max(axis=1).ravel()
        which = np.tile(np.arange(mu.shape[1]), len(levels))
        level = np.repeat(levels, mu.shape[1])
        result[:, columns] = _solve(mu, sigma, which, level, low, high, start.ravel()).reshape(len(levels), -1)
    return result


def _solve(
    mean: np.ndarray,
    sd: np.ndarray,
    which: np.ndarray,
    level: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
) -> np.ndarray:
    """Roots of F_which(x) = level `[K]` inside the brackets [low, high]; every array but mean and sd is `[K]`."""
    x = np.clip(start, low, high)
    active = np.arange(len(x))
    for step in range(NEWTON_STEPS + BISECTIONS):
        z = (x[active] - mean[:, which[active]]) / sd[:, which[active]]
        value, target = ndtr(z).mean(axis=0), level[active]
        below = value < target
        low[active] = np.where(below, x[active], low[active])
        high[active] = np.where(below, high[active], x[active])
        width = high[active] - low[active]
        # F itself is rounded to about one part in 1e16, which is all that is left of 1 - F in the upper tail
        tolerance = RELATIVE_TOLERANCE * np.minimum(target, 1 - target) + 1e-15 * target
        unsolved = (np.abs(value - target) > tolerance) & (width > 4 * np.spacing(np.abs(x[active])))
        if not unsolved.any():
            break
        active, z, value, target = active[unsolved], z[:, unsolved], value[unsolved], target[unsolved]
        middle = 0.5 * (low[active] + high[active])
        if step < NEWTON_STEPS:
            proposal = x[active] + _newton(z, sd[:, which[active]], value, target)
            inside = (proposal > low[active]) & (proposal < high[active])
            middle = np.where(inside, proposal, middle)
        x[active] = middle
    return x


def _newton(z: np.ndarray, sd: np.ndarray, value: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Newton step in the probit of F; not finite (so refused by the bracket) where F rounds to 0 or 1."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        probit = ndtri(value)
        density = (np.exp(-0.5 * z**2) / sd).mean(axis=0)
        return (ndtri(level) - probit) * np.exp(-0.5 * probit**2) / density


def _mean_absolute(gap: np.ndarray, twice_variance: np.ndarray) -> np.ndarray:
    """E|m + sqrt(v) Z| = m erf(m / sqrt(2 v)) + sqrt(2 v / pi) exp(-m^2 / (2 v)), m = gap."""
    scale = np.sqrt(twice_variance)
    ratio = gap / scale
    return gap * erf(ratio) + scale * np.exp(-(ratio**2)) / np.sqrt(np.pi)


def _in_blocks(function: Statistic, mean: np.ndarray, sd: np.ndarray, y: np.ndarray) -> np.ndarray:
    """function(mean `[S, B]`, sd `[S, B]`, y `[B]`) -> `[B]`, joined over blocks of mixtures."""
    result = np.empty(mean.shape[1])
    for columns in _blocks(mean.shape[1], len(mean)):
        result[columns] = function(mean[:, columns], sd[:, columns], y[columns])
    return result


def _blocks(count: int, numbers_each: int) -> Iterator[slice]:
    """Slices of range(count) that hold about `BLOCK` numbers, at least one item each."""
    length = max(1, BLOCK // numbers_each)
    return (slice(start, start + length) for start in range(0, count, length))
