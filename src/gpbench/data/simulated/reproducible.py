"""Random numbers, exponentials and Gaussian vectors with the same bits on every machine.

Data that are drawn from a formula have a checksum, so that it must not matter which LAPACK, C library or number of
threads computes them: a Cholesky factor of a nearly singular matrix differs from one to another in the sixth digit.
Sums, products, quotients and square roots are exactly rounded (IEEE 754), so what is made of them elementwise and in a
fixed order is the same everywhere.
"""

from __future__ import annotations

import math

import numpy as np

SEED = 20170808
DIGITS = 9
"""decimals kept: logarithms in NumPy's generators may differ in the last bit, and checksums must not"""
LN2 = math.log(2.0)
TERMS = 16
"""of the series of exp on [-ln(2)/2, ln(2)/2], beyond which it is exact to the last bit or two"""


def stream(*key: int) -> np.random.Generator:
    """Generator of the project's seed; a stream of its own for every key."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(SEED, spawn_key=key)))


def exp(x: np.ndarray) -> np.ndarray:
    """e^x = 2^k e^r with r = x - k ln 2, e^r by Horner's rule; elementwise, relative error below 3e-16 (1 + |x|)."""
    power = np.rint(x / LN2)
    rest, series = x - power * LN2, np.ones_like(x)
    for k in range(TERMS, 0, -1):
        series = 1.0 + rest / k * series
    return np.ldexp(series, power.astype(int))


def gaussian(covariance: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """L z `[n]` with L L^T the covariance `[n, n]` and z standard normal `[n]`; Cholesky by columns, O(n^3)."""
    rest, f = covariance.copy(), np.zeros(len(normal))
    for j, z in enumerate(normal):
        column = rest[j:, j] / math.sqrt(rest[j, j])
        f[j:] += column * z
        rest[j:, j:] -= column[:, None] * column
    return f
