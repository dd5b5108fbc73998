"""Predictive distributions from numbers that somebody else printed: mean and sd, quantiles, samples, probabilities.

All become distributions of `gpbench.predictive`, or answer as they do, so that the same metrics score them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from gpbench.predictive.distributions import Categorical, GaussianMixture, Predictive

NODES = 64
"""Gauss-Legendre nodes a segment for what has no closed form (mean, variance, CRPS)."""


class Quantiles:
    """Quantiles q_1 < ... < q_L of Y `[N]` at `levels` `[L]`, q `[L, N]`, joined by pieces of Gaussians.

    With z = Phi^-1(level), y is linear in z between neighbours and, with the slope of the last piece, beyond them; so
    P(Y <= y) = Phi(z(y)) and p(y) = phi(z(y)) z'(y). Quantiles of a Gaussian give that Gaussian. Targets and answers
    are `[N, 1]`. Raises ValueError for fewer than two levels, and for quantiles that do not increase."""

    def __init__(self, levels: ArrayLike, values: ArrayLike) -> None:
        self.levels, self.values = np.asarray(levels, float), np.asarray(values, float)
        if len(self.levels) < 2 or np.any(np.diff(self.levels) <= 0) or not 0 < self.levels[0] < self.levels[-1] < 1:
            raise ValueError(f"levels must increase within (0, 1), at least two of them; got {self.levels.tolist()}")
        if np.any(np.diff(self.values, axis=0) <= 0):
            raise ValueError("quantiles must increase with their level")
        self.z = ndtri(self.levels)
        self.slopes = np.diff(self.values, axis=0) / np.diff(self.z)[:, None]

    def is_finite(self) -> bool:
        """Whether every quantile is finite."""
        return bool(np.isfinite(self.values).all())

    def affine(self, scale: ArrayLike, shift: ArrayLike) -> Quantiles:
        """Predictive of shift + scale y; scale > 0."""
        return Quantiles(self.levels, self.values * np.ravel(scale) + np.ravel(shift))

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log phi(z(y)) - log dy/dz."""
        z, slope = self._z(np.asarray(y, float)[:, 0])
        return (-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - np.log(slope))[:, None]

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """Phi(z(y))."""
        return ndtr(self._z(np.asarray(y, float)[:, 0])[0])[:, None]

    def quantile(self, levels: ArrayLike) -> np.ndarray:
        """Quantiles `[K, N, 1]` at levels `[K]`."""
        return self._at(ndtri(np.atleast_1d(levels)))[:, :, None]

    def mean(self) -> np.ndarray:
        """Integral of the quantile function, by quadrature."""
        y, weights = self._nodes()
        return (weights @ y)[:, None]

    def variance(self) -> np.ndarray:
        """Integral of the squared deviation, by quadrature."""
        y, weights = self._nodes()
        return (weights @ (y - weights @ y) ** 2)[:, None]

    def crps(self, y: ArrayLike) -> np.ndarray:
        """E|Y - y| - E|Y - Y'|/2 = y (2 F(y) - 1) + E Y - 2 E Y [Y <= y] - E Y (2 F(Y) - 1); the last by quadrature."""
        (nodes, weights), y = self._nodes(), np.asarray(y, float)[:, 0]
        z = self._z(y)[0]
        distance = y * (2 * ndtr(z) - 1) + weights @ nodes - 2 * self._below(z)
        return (distance - (weights * (2 * ndtr(self._grid()[0]) - 1)) @ nodes)[:, None]

    def _below(self, z: np.ndarray) -> np.ndarray:
        """E Y [Z <= z] `[N]`: a (Phi(v) - Phi(u)) + b (phi(u) - phi(v)) of each piece y = a + b z from u to v."""
        ends = np.concatenate([[-np.inf], self.z[1:-1], [np.inf]])[:, None]
        low, high = ends[:-1], np.clip(z, ends[:-1], ends[1:])
        start = self.values[:-1] - self.slopes * self.z[:-1, None]
        tilt = (np.exp(-0.5 * low**2) - np.exp(-0.5 * high**2)) / np.sqrt(2 * np.pi)
        return (start * (ndtr(high) - ndtr(low)) + self.slopes * tilt).sum(0)

    def _piece(self, places: np.ndarray) -> np.ndarray:
        """Numbers of the pieces, the outer ones also beyond the quantiles."""
        return np.clip(places, 0, len(self.slopes) - 1)

    def _z(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """z(y) and dy/dz there, each `[N]`."""
        piece, row = self._piece((self.values <= y).sum(0) - 1), np.arange(len(y))
        slope = self.slopes[piece, row]
        return self.z[piece] + (y - self.values[piece, row]) / slope, slope

    def _at(self, z: np.ndarray) -> np.ndarray:
        """y at standard normal scores z `[K]`: `[K, N]`."""
        piece = self._piece(np.searchsorted(self.z, z, side="right") - 1)
        return self.values[piece] + self.slopes[piece] * (z - self.z[piece])[:, None]

    def _grid(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes z and weights of integrals under the standard normal, piece by piece, to 9 sds."""
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        ends = np.concatenate([[-9.0], self.z, [9.0]])
        half = np.diff(ends)[:, None] / 2
        z = (ends[:-1, None] + half + half * nodes).ravel()
        mass = (half * weights).ravel() * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        return z, mass / mass.sum()

    def _nodes(self) -> tuple[np.ndarray, np.ndarray]:
        z, weights = self._grid()
        return self._at(z), weights


def gaussian(mean: np.ndarray, sd: np.ndarray) -> GaussianMixture:
    """N(mean, sd^2) of each row; mean, sd `[N]`. Raises ValueError where an sd is not positive."""
    if np.any(sd <= 0):
        raise ValueError(f"sd must be positive; the smallest is {sd.min():g}")
    return GaussianMixture(mean[None, :, None], sd[None, :, None] ** 2)


def samples(values: np.ndarray) -> GaussianMixture:
    """The kernel density of S samples a row, values `[N, S]`, with the samples' own mean and variance.

    Bandwidth h = (4 / 3S)^(1/5) sds (Silverman 1986, eq. 3.28), kernels around samples shrunk by 1 / sqrt(1 + h^2)
    towards their mean (his section 6.4.1), which keeps the variance. Raises ValueError where the samples of a row are
    all the same."""
    mean, sd = values.mean(1, keepdims=True), values.std(1, keepdims=True)
    if np.any(sd <= 0):
        raise ValueError("the samples of a row are all the same")
    h = (4 / (3 * values.shape[1])) ** 0.2
    shrunk = mean + (values - mean) / np.sqrt(1 + h**2)
    variance = np.broadcast_to(h**2 / (1 + h**2) * sd**2, shrunk.shape)
    return GaussianMixture(shrunk.T[:, :, None], variance.T[:, :, None])


def classes(probabilities: np.ndarray) -> Predictive:
    """Class probabilities `[N, C]`."""
    return Categorical(probabilities[None])
