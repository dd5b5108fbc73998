"""What every method's `predict` returns: a predictive distribution of each test row (of counts: `counts`).

An axis S of components (Monte Carlo draws, equal weights 1/S) comes first; *R are axes of replicas, usually none.
Arrays are kept in float64; whatever `np.asarray` accepts is accepted, detached CPU tensors too.
"""

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from gpbench.predictive import mixtures

SUM_TOLERANCE = 1e-6


class Predictive(Protocol):
    """Predictive distribution of targets y `[*R, N, P]` (or class numbers `[*R, N]`), each on its own."""

    def is_finite(self) -> bool:
        """Whether every number in it is finite; if not, the fit has diverged and must be reported as such."""
        ...

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log density (or log probability) of y, in the shape of y, in nats."""
        ...

    def mean(self) -> np.ndarray:
        """Mean, in the shape of y."""
        ...

    def variance(self) -> np.ndarray:
        """Variance, in the shape of y."""
        ...

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(Y <= y), in the shape of y."""
        ...

    def quantile(self, levels: ArrayLike) -> np.ndarray:
        """Smallest q with P(Y <= q) >= level: `[L, *shape of y]` for levels `[L]` in (0, 1)."""
        ...

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n draws `[n, *shape of y]`, independent between rows."""
        ...


class GaussianMixture:
    """p(y) = 1/S sum_s N(y; mean_s, variance_s), noise included; mean, variance `[S, *R, N, P]`.

    Log densities, distribution functions and quantiles are marginal to each of the P targets.
    Raises ValueError for unequal shapes and for a variance that is not positive; NaN and infinity are
    allowed, because a diverged fit must be reported (`is_finite`), not crash."""

    def __init__(self, mean: ArrayLike, variance: ArrayLike) -> None:
        self.component_mean = np.asarray(mean, dtype=np.float64)
        self.component_variance = np.asarray(variance, dtype=np.float64)
        if self.component_mean.shape != self.component_variance.shape:
            raise ValueError(
                f"mean {self.component_mean.shape} and variance {self.component_variance.shape} differ in shape"
            )
        if self.component_mean.ndim < 3 or len(self.component_mean) == 0:
            raise ValueError(f"mean must be [S, *R, N, P] with S >= 1, got {self.component_mean.shape}")
        if np.any(self.component_variance <= 0):
            raise ValueError(f"variance must be positive; the smallest is {np.nanmin(self.component_variance):g}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape `[*R, N, P]` of y."""
        return self.component_mean.shape[1:]

    def is_finite(self) -> bool:
        """Whether every mean and variance is finite."""
        return bool(np.isfinite(self.component_mean).all() and np.isfinite(self.component_variance).all())

    def affine(self, scale: ArrayLike, shift: ArrayLike) -> "GaussianMixture":
        """Predictive of shift + scale y; scale > 0 (else ValueError) and shift broadcast against `[*R, N, P]`."""
        scale, shift = np.asarray(scale, np.float64), np.asarray(shift, np.float64)
        if not np.all(scale > 0):
            raise ValueError(f"scale must be positive: {scale}")
        return GaussianMixture(self.component_mean * scale + shift, self.component_variance * scale**2)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log 1/S sum_s N(y; mean_s, variance_s) `[*R, N, P]`, in nats per unit of y."""
        return self._each(mixtures.log_density, y)

    def mean(self) -> np.ndarray:
        """1/S sum_s mean_s `[*R, N, P]`."""
        return self.component_mean.mean(axis=0)

    def variance(self) -> np.ndarray:
        """Mean of the variances plus variance of the means `[*R, N, P]`."""
        return self.component_variance.mean(axis=0) + self.component_mean.var(axis=0)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """1/S sum_s Phi((y - mean_s) / sd_s) `[*R, N, P]`."""
        return self._each(mixtures.cdf, y)

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score `[*R, N, P]` in the units of y, lower is better."""
        return self._each(mixtures.crps, y)

    def quantile(self, levels: ArrayLike) -> np.ndarray:
        """Quantiles `[L, *R, N, P]` for levels `[L]` strictly between 0 and 1 (else ValueError)."""
        levels = np.atleast_1d(np.asarray(levels, np.float64))
        return mixtures.quantile(*self._flat(), levels).reshape(len(levels), *self.shape)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n draws `[n, *R, N, P]`; the P targets of a row come from one component."""
        component = rng.integers(len(self.component_mean), size=(n, *self.shape[:-1], 1))
        mean = np.take_along_axis(self.component_mean, component, axis=0)
        variance = np.take_along_axis(self.component_variance, component, axis=0)
        return mean + np.sqrt(variance) * rng.standard_normal(mean.shape)

    def _flat(self) -> tuple[np.ndarray, np.ndarray]:
        """Component means and standard deviations `[S, T]`."""
        size = len(self.component_mean)
        return self.component_mean.reshape(size, -1), np.sqrt(self.component_variance).reshape(size, -1)

    def _each(self, function: mixtures.Statistic, y: ArrayLike) -> np.ndarray:
        y = of_shape(y, self.shape).astype(np.float64)
        return function(*self._flat(), y.ravel()).reshape(self.shape)


class Categorical:
    """P(y = c) = 1/S sum_s probs_sc for classes c = 0..C-1; probs `[S, *R, N, C]`.

    `mean`, `variance`, `cdf` and `quantile` are those of the class number: they are meaningful for two classes
    and for ordered ones. Raises ValueError where probabilities leave [0, 1] or do not sum to 1 within 1e-6
    (float32 rounding is divided out); NaN is allowed, see `is_finite`."""

    def __init__(self, probs: ArrayLike) -> None:
        self.component_probs = np.asarray(probs, dtype=np.float64)
        if self.component_probs.ndim < 3 or self.component_probs.shape[-1] < 2 or len(self.component_probs) == 0:
            raise ValueError(f"probs must be [S, *R, N, C] with S >= 1, C >= 2, got {self.component_probs.shape}")
        if np.any((self.component_probs < 0) | (self.component_probs > 1 + SUM_TOLERANCE)):
            low, high = np.nanmin(self.component_probs), np.nanmax(self.component_probs)
            raise ValueError(f"probs must lie in [0, 1], got values from {low:g} to {high:g}")
        total = self.component_probs.sum(axis=-1, keepdims=True)
        if np.any(np.abs(total - 1) > SUM_TOLERANCE):
            raise ValueError(f"probs must sum to 1 within {SUM_TOLERANCE:g}; off by {np.nanmax(np.abs(total - 1)):g}")
        self.component_probs = self.component_probs / total

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape `[*R, N]` of the class numbers."""
        return self.component_probs.shape[1:-1]

    def is_finite(self) -> bool:
        """Whether every probability is finite."""
        return bool(np.isfinite(self.component_probs).all())

    def probabilities(self) -> np.ndarray:
        """Probabilities averaged over the components `[*R, N, C]`."""
        return self.component_probs.mean(axis=0)

    def modal(self) -> np.ndarray:
        """Class number of largest averaged probability `[*R, N]`, the lowest number on ties."""
        return self.probabilities().argmax(axis=-1)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log 1/S sum_s probs_sy `[*R, N]`; -inf where the probability is 0."""
        with np.errstate(divide="ignore"):
            return np.log(np.take_along_axis(self.probabilities(), self._classes(y)[..., None], axis=-1)[..., 0])

    def mean(self) -> np.ndarray:
        """Mean class number `[*R, N]`, P(y = 1) for two classes."""
        return self.probabilities() @ np.arange(self.component_probs.shape[-1])

    def variance(self) -> np.ndarray:
        """Variance of the class number `[*R, N]`."""
        number = np.arange(self.component_probs.shape[-1])
        return (self.probabilities() * (number - self.mean()[..., None]) ** 2).sum(axis=-1)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(Y <= y) of the class number `[*R, N]`."""
        return np.take_along_axis(self._cumulative(), self._classes(y)[..., None], axis=-1)[..., 0]

    def quantile(self, levels: ArrayLike) -> np.ndarray:
        """Smallest class number c with P(Y <= c) >= level: `[L, *R, N]` for levels `[L]`."""
        levels = np.atleast_1d(np.asarray(levels, np.float64))
        return np.stack([(self._cumulative() >= level).argmax(axis=-1) for level in levels])

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n draws of class numbers `[n, *R, N]`, by inversion."""
        level = rng.random((n, *self.shape, 1))
        return (self._cumulative() > level).argmax(axis=-1)

    def _cumulative(self) -> np.ndarray:
        cumulative = self.probabilities().cumsum(axis=-1)
        cumulative[..., -1] = 1.0  # exactly, so that every level below 1 finds a class
        return cumulative

    def _classes(self, y: ArrayLike) -> np.ndarray:
        y, count = of_shape(y, self.shape), self.component_probs.shape[-1]
        if not np.all((y >= 0) & (y < count) & (y == np.floor(y))):
            raise ValueError(f"y must hold class numbers 0..{count - 1}")
        return y.astype(np.int64)


def of_shape(y: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """y as an array; ValueError where it is not of the predictive's shape."""
    y = np.asarray(y)
    if y.shape != shape:
        raise ValueError(f"y {y.shape} does not match the predictive {shape}")
    return y
