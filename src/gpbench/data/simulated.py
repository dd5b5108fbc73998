"""Data sets that papers draw from a formula: the same numbers everywhere, so that they have a checksum like others."""

from __future__ import annotations

import numpy as np

from gpbench.data import mountain_car
from gpbench.errors import unknown

SEED = 20170808
DIGITS = 9
"""decimals kept: exp may differ in its last bit from one machine to another, and checksums must not"""


def bump(x: np.ndarray) -> np.ndarray:
    """h(x) = 2 x exp(-x^2)."""
    return 2 * x * np.exp(-(x**2))


def composed_bumps(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """y ~ N(h(h(x)), 0.01) (a variance) at x ~ U(-2, 2): 50 training rows, then 500 test rows.

    Source: cutajar2017, section on the comparison with MCMC; the law of x is not stated there.
    """
    x = rng.uniform(-2.0, 2.0, size=(550, 1))
    y = bump(bump(x[:, 0])) + 0.1 * rng.standard_normal(550)
    return x, y, ["x"]


GENERATORS = {"composed_bumps": composed_bumps, "mountain_car": mountain_car.cost_to_go}


def draw(item: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Inputs `[N, D]`, target `[N]` and the names of the inputs; UserError for a name that is not in `GENERATORS`."""
    if item not in GENERATORS:
        raise unknown("simulated data set", item, list(GENERATORS), "gpbench.data.simulated")
    x, y, names = GENERATORS[item](np.random.Generator(np.random.PCG64(SEED)))
    return x.round(DIGITS), y.round(DIGITS), names
