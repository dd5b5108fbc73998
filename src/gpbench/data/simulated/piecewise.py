"""A piecewise constant function of two inputs, as a target for layers that must bend (urbainczyk2025, figure 1)."""

from __future__ import annotations

import numpy as np

from gpbench.data.simulated.reproducible import Draw, stream

ROWS, NOISE = 500, 0.05


def disc_and_square() -> Draw:
    """y ~ N(f(x), 0.05^2) at x uniform in the unit square.

    f is 1 in a disc around (.3, .7) of radius .25 and in a square around (.7, .3) of side .4, else 0."""
    rng = stream(2025)
    x = rng.uniform(size=(ROWS, 2))
    disc = (x[:, 0] - 0.3) ** 2 + (x[:, 1] - 0.7) ** 2 < 0.25**2
    square = (abs(x[:, 0] - 0.7) < 0.2) & (abs(x[:, 1] - 0.3) < 0.2)
    return x, np.where(disc | square, 1.0, 0.0) + NOISE * rng.standard_normal(ROWS), ["x0", "x1"]
