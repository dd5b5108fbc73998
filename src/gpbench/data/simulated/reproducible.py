"""Random numbers, exponentials and Gaussian vectors with the same bits on every machine.

Simulated data have a checksum, so that they must not depend on LAPACK, C library or number of threads: Cholesky factors
of a nearly singular matrix differ in the sixth digit. Sums, products, quotients and square roots are exactly rounded
(IEEE 754), so what is computed from them elementwise and in a fixed order is the same everywhere.
"""

import math

import numpy as np

SEED = 20170808
DIGITS = 9  # number of decimals, since logarithms in NumPy's generators may differ in the last bit
LN2 = math.log(2.0)
TERMS = 16  # of the series of exp on [-ln(2)/2, ln(2)/2]; further ones do not change it

Draw = tuple[np.ndarray, np.ndarray, list[str]]  # inputs, targets (and what they were drawn from), names of the inputs


def stream(*key: int) -> np.random.Generator:
    """An independent generator for each key, from the seed of the project."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(SEED, spawn_key=key)))


def exp(x: np.ndarray) -> np.ndarray:
    """e^x = 2^k e^r with r = x - k ln 2, e^r by Horner's rule; elementwise, relative error below 3e-16 (1 + |x|)."""
    power = np.rint(x / LN2)
    remainder, series = x - power * LN2, np.ones_like(x)
    for k in range(TERMS, 0, -1):
        series = 1.0 + remainder / k * series
    return np.ldexp(series, power.astype(int))


def gaussian(covariance: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """L z `[n]` with L L^T the covariance `[n, n]` and z standard normal `[n]`; Cholesky by columns, O(n^3)."""
    schur, f = covariance.copy(), np.zeros(len(normal))
    for j, z in enumerate(normal):
        column = schur[j:, j] / math.sqrt(schur[j, j])
        f[j:] += column * z
        schur[j:, j:] -= column[:, None] * column
    return f
