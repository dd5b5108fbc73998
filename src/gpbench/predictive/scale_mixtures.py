"""Predictive of targets whose noise variance is uncertain: normals with one mean, mixed over their variance."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, logsumexp, ndtr, ndtri

from gpbench.predictive.distributions import SUM_TOLERANCE, of_shape

BLOCK = 2**17
ITERATIONS, TOLERANCE = 60, 1e-12
"""Of the search for a quantile: most steps, and the relative error of its tail probability that ends it."""


class ScaleMixture:
    """p(y) = sum_k weights_k N(y; mean, variance_k); mean `[*R, N, P]`, variance `[K, *R, N, P]`, weights `[K]`.

    It is symmetric about its mean. Raises ValueError for shapes that do not fit, for a variance that is not positive,
    and for weights that are negative or do not sum to 1 within 1e-6; NaN and infinity are allowed in mean and variance,
    because a diverged fit must be reported (`is_finite`)."""

    def __init__(self, mean: ArrayLike, variance: ArrayLike, weights: ArrayLike) -> None:
        self.component_mean = np.asarray(mean, np.float64)
        self.component_variance = np.asarray(variance, np.float64)
        self.weights = np.asarray(weights, np.float64)
        if self.component_variance.shape != (*self.weights.shape, *self.shape):
            shapes = self.component_mean.shape, self.component_variance.shape, self.weights.shape
            raise ValueError(
                "mean must be [*R, N, P], variance [K, *R, N, P], weights [K], not {}, {}, {}".format(*shapes)
            )
        if np.any(self.component_variance <= 0):
            raise ValueError(f"variance must be positive; the smallest is {np.nanmin(self.component_variance):g}")
        total = self.weights.sum()
        if np.any(self.weights < 0) or not abs(total - 1) <= SUM_TOLERANCE:
            raise ValueError(f"weights must not be negative and sum to 1 within {SUM_TOLERANCE:g}, not to {total:g}")
        self.weights = self.weights / total

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape `[*R, N, P]` of y."""
        return self.component_mean.shape

    def is_finite(self) -> bool:
        """Whether every mean and variance is finite."""
        return bool(np.isfinite(self.component_mean).all() and np.isfinite(self.component_variance).all())

    def affine(self, scale: ArrayLike, shift: ArrayLike) -> "ScaleMixture":
        """Predictive of shift + scale y; scale > 0 (else ValueError) and shift broadcast against `[*R, N, P]`."""
        scale, shift = np.asarray(scale, np.float64), np.asarray(shift, np.float64)
        if not np.all(scale > 0):
            raise ValueError(f"scale must be positive: {scale}")
        return ScaleMixture(self.component_mean * scale + shift, self.component_variance * scale**2, self.weights)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log sum_k weights_k N(y; mean, variance_k) `[*R, N, P]`, in nats per unit of y."""
        with np.errstate(divide="ignore"):  # a weight may be 0
            log_weights = np.log(self.weights)[:, None]

        def log_density(gap: np.ndarray, sd: np.ndarray) -> np.ndarray:
            return np.asarray(logsumexp(log_weights - 0.5 * (gap / sd) ** 2 - np.log(sd), axis=0))

        return self._each(log_density, self._gap(y)) - 0.5 * np.log(2 * np.pi)

    def mean(self) -> np.ndarray:
        """The mean `[*R, N, P]`."""
        return self.component_mean

    def variance(self) -> np.ndarray:
        """sum_k weights_k variance_k `[*R, N, P]`."""
        return np.tensordot(self.weights, self.component_variance, axes=1)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """sum_k weights_k Phi((y - mean) / sd_k) `[*R, N, P]`."""
        return self._each(lambda gap, sd: self.weights @ ndtr(gap / sd), self._gap(y))

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score E|Y - y| - E|Y - Y'|/2 `[*R, N, P]` in the units of y, lower is better.

        With g = y - mean: sum_k w_k [g erf(g / (sqrt(2) sd_k)) + sqrt(2/pi) sd_k exp(-g^2 / (2 variance_k))]
        - sum_kl w_k w_l sqrt((variance_k + variance_l) / (2 pi)).  Time O(K^2) a target."""

        def score(gap: np.ndarray, sd: np.ndarray) -> np.ndarray:
            ratio, variance = gap / (np.sqrt(2) * sd), sd**2
            to_target = self.weights @ (gap * erf(ratio) + np.sqrt(2 / np.pi) * sd * np.exp(-(ratio**2)))
            pairs = zip(self.weights, variance, strict=True)
            spread = sum(weight * (self.weights @ np.sqrt(variance + one)) for weight, one in pairs)
            return np.asarray(to_target - spread / np.sqrt(2 * np.pi))

        return self._each(score, self._gap(y))

    def quantile(self, levels: ArrayLike) -> np.ndarray:
        """Quantiles `[L, *R, N, P]` for levels `[L]` strictly between 0 and 1 (else ValueError)."""
        levels = np.atleast_1d(np.asarray(levels, np.float64))
        if not np.all((levels > 0) & (levels < 1)):
            raise ValueError(f"quantile levels must lie strictly between 0 and 1: {levels}")
        scores = ndtri(levels)
        distances = {z: self._distance(z) for z in {abs(float(score)) for score in scores}}
        return np.stack([self.component_mean + np.sign(z) * distances[abs(float(z))] for z in scores])

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n draws `[n, *R, N, P]`, those of every target from a component of its own."""
        component = rng.choice(len(self.weights), size=(n, *self.shape), p=self.weights)
        variance = np.take_along_axis(self.component_variance, component, axis=0)
        return self.component_mean + np.sqrt(variance) * rng.standard_normal(component.shape)

    def _distance(self, z: float) -> np.ndarray:
        """Distance from the mean beyond which, on one side, lies the mass Phi(-z), z >= 0; `[*R, N, P]`.

        Newton's method on the probit of that mass, which is linear in the distance for one component, between z times
        the smallest and the largest sd; a step that leaves the bracket is replaced by its geometric mean."""
        target = ndtr(-z)

        def search(_: np.ndarray, sd: np.ndarray) -> np.ndarray:
            low, high = z * sd.min(axis=0), z * sd.max(axis=0)
            x = z * np.exp(self.weights @ np.log(sd))
            for _step in range(ITERATIONS):
                mass = self.weights @ ndtr(-x / sd)
                if np.all(np.abs(mass - target) <= TOLERANCE * target):
                    break
                low, high = np.where(mass > target, x, low), np.where(mass > target, high, x)
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    probit = -ndtri(mass)
                    slope = self.weights @ (np.exp(-0.5 * (x / sd) ** 2) / sd) * np.exp(0.5 * probit**2)
                    proposal = x + (z - probit) / slope
                x = np.where((proposal > low) & (proposal < high), proposal, np.sqrt(low * high))
            return x

        return self._each(search, np.zeros(self.shape))

    def _gap(self, y: ArrayLike) -> np.ndarray:
        return of_shape(y, self.shape).astype(np.float64) - self.component_mean

    def _each(self, function: Callable[[np.ndarray, np.ndarray], np.ndarray], gap: np.ndarray) -> np.ndarray:
        """function(gap `[B]`, sd `[K, B]`) -> `[B]`, joined over blocks of targets; gap `[*R, N, P]`."""
        flat, sd = gap.reshape(-1), np.sqrt(self.component_variance).reshape(len(self.weights), -1)
        result = np.empty(flat.shape)
        for some in _blocks(len(flat), len(sd)):
            result[some] = function(flat[some], sd[:, some])
        return result.reshape(self.shape)


def _blocks(count: int, numbers_each: int) -> Iterator[slice]:
    """Slices of range(count) that hold about `BLOCK` numbers, at least one item each."""
    length = max(1, BLOCK // numbers_each)
    return (slice(start, start + length) for start in range(0, count, length))
