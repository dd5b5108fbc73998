"""Draws of GP models with the latent values and covariance parameters they were drawn from.

    x ~ U[0, 1]^d,  f ~ N(0, K),  K_ij = v exp(-1/2 sum_r (x_ir - x_jr)^2 / l_r^2) + 1e-6 v [i = j],  y_i ~ p(. | f_i)

filippone2013: v = e^2, log l_r ~ U[-3, -1], and four likelihoods that share x, l and f:
    lrg  y ~ Bernoulli(1 / (1 + e^-f))
    lcx  y ~ Poisson(e^f)
    vlt  y ~ N(0, e^2f)
    ord  y = s where b_s < f + 0.5 z <= b_s+1, z ~ N(0, 1), s = 0..4, b_s = e Phi^-1(s / 5)
    The categories, thresholds and noise of ord are not stated there.
filippone2014: l_r = 0.35 sqrt(d / 2), v = 2.08, y ~ Bernoulli(Phi(f)), the first n/2 rows of each class among 4 n.
    The paper does not describe how classes are balanced, and states parameters of an example, d = 2. A draw with few
    rows of a class is repeated.

A data set consists of `BLOCKS` independent draws of n rows, one after the other.
"""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from gpbench.data.simulated.reproducible import DIGITS, Draw, exp, gaussian, stream

BLOCKS = 10
JITTER = 1e-6
CATEGORIES, ORDINAL_NOISE = 5, 0.5
LOG_VARIANCE_2013 = 2.0
LOG_VARIANCE_2014 = round(math.log(2.08), DIGITS)
POOL = 4  # rows drawn per row that is kept, if classes are balanced


def covariance(x: np.ndarray, log_lengthscales: np.ndarray, log_variance: float) -> np.ndarray:
    """K `[n, n]` at inputs `[n, d]`."""
    distances = np.zeros((len(x), len(x)))
    for column, log_lengthscale in zip(x.T, log_lengthscales, strict=True):
        distances += (column[:, None] - column) ** 2 * exp(-2 * log_lengthscale)
    correlation = exp(-0.5 * distances)
    correlation[np.diag_indices(len(x))] += JITTER
    return exp(np.array(log_variance)) * correlation


def latents(
    rng: np.random.Generator, n: int, log_lengthscales: np.ndarray, log_variance: float
) -> tuple[np.ndarray, np.ndarray]:
    """x ~ U[0, 1]^d `[n, d]` and f ~ N(0, K) `[n]`, rounded."""
    x = rng.uniform(size=(n, len(log_lengthscales))).round(DIGITS)
    normal = rng.standard_normal(n).round(DIGITS)
    return x, gaussian(covariance(x, log_lengthscales, log_variance), normal).round(DIGITS)


def ordinal(rng: np.random.Generator, f: np.ndarray) -> np.ndarray:
    inner = [NormalDist().inv_cdf(s / CATEGORIES) for s in range(1, CATEGORIES)]
    thresholds = exp(np.array(LOG_VARIANCE_2013 / 2)) * np.array(inner)
    return np.searchsorted(thresholds, f + ORDINAL_NOISE * rng.standard_normal(len(f)))


LIKELIHOODS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "lrg": lambda rng, f: rng.uniform(size=len(f)) * (1 + exp(-f)) < 1,
    "lcx": lambda rng, f: rng.poisson(exp(f)),
    "vlt": lambda rng, f: exp(f) * rng.standard_normal(len(f)),
    "ord": ordinal,
}


def strategies(likelihood: str, n: int, d: int) -> Draw:
    """The simulated data of filippone2013, `BLOCKS` of n rows."""
    blocks = []
    for block in range(BLOCKS):
        rng = stream(2013, n, d, block)
        log_lengthscales = rng.uniform(-3.0, -1.0, d).round(DIGITS)
        x, f = latents(rng, n, log_lengthscales, LOG_VARIANCE_2013)
        y = LIKELIHOODS[likelihood](rng, f)
        blocks.append((x, _columns(y, f, log_lengthscales, LOG_VARIANCE_2013)))
    return _stacked(blocks)


def balanced_probit(n: int, d: int) -> Draw:
    """The simulated data of filippone2014, `BLOCKS` of n rows, n/2 of each class."""
    return _stacked([_balanced_probit(stream(2014, n, d, block), n, d) for block in range(BLOCKS)])


def _balanced_probit(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    log_lengthscales = np.full(d, round(math.log(0.35 * math.sqrt(d / 2)), DIGITS))
    kept = np.zeros(0, int)
    while len(kept) < n:
        x, f = latents(rng, POOL * n, log_lengthscales, LOG_VARIANCE_2014)
        y = f + rng.standard_normal(len(f)) > 0
        kept = np.sort(np.concatenate([np.flatnonzero(y == label)[: n // 2] for label in (False, True)]))
    return x[kept], _columns(y[kept], f[kept], log_lengthscales, LOG_VARIANCE_2014)


def _columns(y: np.ndarray, f: np.ndarray, log_lengthscales: np.ndarray, log_variance: float) -> np.ndarray:
    """y, f, log l_1..d, log v side by side `[n, d + 3]`."""
    return np.column_stack([y, f, np.tile([*log_lengthscales, log_variance], (len(f), 1))])


def _stacked(blocks: list[tuple[np.ndarray, np.ndarray]]) -> Draw:
    """One block after the other, and the names of the inputs."""
    x, targets = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return x, targets, [f"x{r + 1}" for r in range(x.shape[1])]
