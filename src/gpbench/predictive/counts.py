"""Predictive of counts: a mixture of Poisson distributions."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, pdtr, xlogy

from gpbench.predictive.distributions import SUM_TOLERANCE, of_shape

LARGEST = 2**53  # larger quantiles are not resolved: above it a float64 does not hold every integer


class Counts:
    """p(y) = sum_s weights_s Poisson(y; rate_s), y = 0, 1, ...; rate `[S, *R, N, P]`, weights `[S]`.

    Raises ValueError for shapes that do not fit, for a rate below 0, and for weights that are negative or do not sum
    to 1 within 1e-6; NaN and infinity are allowed in a rate, because a diverged fit must be reported (`is_finite`)."""

    def __init__(self, rate: ArrayLike, weights: ArrayLike) -> None:
        self.component_rate = np.asarray(rate, dtype=np.float64)
        self.weights = np.asarray(weights, dtype=np.float64)
        if self.component_rate.ndim < 3 or self.weights.shape != self.component_rate.shape[:1]:
            raise ValueError(
                f"rate must be [S, *R, N, P] and weights [S], not {self.component_rate.shape} and {self.weights.shape}"
            )
        if np.any(self.component_rate < 0):
            raise ValueError(f"rate must not be negative; the smallest is {np.nanmin(self.component_rate):g}")
        total = self.weights.sum()
        if np.any(self.weights < 0) or not abs(total - 1) <= SUM_TOLERANCE:
            raise ValueError(f"weights must not be negative and sum to 1 within {SUM_TOLERANCE:g}, not to {total:g}")
        self.weights = self.weights / total

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape `[*R, N, P]` of y."""
        return self.component_rate.shape[1:]

    def is_finite(self) -> bool:
        """Whether every rate is finite."""
        return bool(np.isfinite(self.component_rate).all())

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log sum_s weights_s rate_s^y e^(-rate_s) / y! `[*R, N, P]`, in nats; ValueError where y is no count."""
        y = self._counts(y)
        with np.errstate(divide="ignore"):  # a weight or a rate may be 0
            log = xlogy(y, self.component_rate) - self.component_rate + self._spread(np.log(self.weights))
        top = log.max(axis=0)
        # -inf where every component forbids y
        with np.errstate(divide="ignore"):
            inner = np.log(np.exp(log - np.where(np.isfinite(top), top, 0.0)).sum(axis=0))
        return np.where(np.isfinite(top), top, 0.0) + inner - gammaln(y + 1)

    def mean(self) -> np.ndarray:
        """sum_s weights_s rate_s `[*R, N, P]`."""
        return self._average(self.component_rate)

    def variance(self) -> np.ndarray:
        """Mean plus variance of the rates `[*R, N, P]`."""
        mean = self.mean()
        return mean + self._average((self.component_rate - mean) ** 2)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(Y <= y) `[*R, N, P]`; ValueError where y is no count."""
        return self._cdf(self._counts(y))

    def quantile(self, levels: ArrayLike) -> np.ndarray:
        """Smallest count q with P(Y <= q) >= level: `[L, *R, N, P]` for levels `[L]` in (0, 1) (else ValueError)."""
        levels = np.atleast_1d(np.asarray(levels, np.float64))
        if not np.all((levels > 0) & (levels < 1)):
            raise ValueError(f"quantile levels must lie strictly between 0 and 1: {levels}")
        return np.stack([self._quantile(level) for level in levels])

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n draws `[n, *R, N, P]`; the P targets of a row come from one component."""
        component = rng.choice(len(self.weights), size=(n, *self.shape[:-1], 1), p=self.weights)
        return rng.poisson(np.take_along_axis(self.component_rate, component, axis=0)).astype(np.float64)

    def _quantile(self, level: float) -> np.ndarray:
        """Bisection between two counts; the upper one comes from doubling."""
        low, high = np.full(self.shape, -1.0), np.ceil(self.mean())
        while (short := (self._cdf(high) < level) & (high < LARGEST)).any():
            low, high = np.where(short, high, low), np.where(short, 2 * high + 1, high)
        while (high - low > 1).any():
            middle = np.floor((low + high) / 2)
            reached = self._cdf(middle) >= level
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return high

    def _cdf(self, y: np.ndarray) -> np.ndarray:
        return self._average(np.where(y < 0, 0.0, pdtr(np.maximum(y, 0), self.component_rate)))

    def _average(self, values: np.ndarray) -> np.ndarray:
        return np.tensordot(self.weights, values, axes=1)

    def _spread(self, values: np.ndarray) -> np.ndarray:
        """Values `[S]` beside the rates."""
        return values.reshape(-1, *[1] * len(self.shape))

    def _counts(self, y: ArrayLike) -> np.ndarray:
        y = of_shape(y, self.shape).astype(np.float64)
        if not np.all((y >= 0) & (y == np.floor(y))):
            raise ValueError("y must hold counts 0, 1, ...")
        return y
