"""Simulated data sets, by name; their numbers are the same on every machine, so that they have a checksum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gpbench.data.simulated import latent_gp, mountain_car, piecewise, posteriors, scans, three_classes
from gpbench.data.simulated.reproducible import DIGITS, Draw, stream
from gpbench.errors import unknown


def bump(x: np.ndarray) -> np.ndarray:
    """h(x) = 2 x exp(-x^2)."""
    return 2 * x * np.exp(-(x**2))


def composed_bumps() -> Draw:
    """y ~ N(h(h(x)), 0.01) (a variance) at x ~ U(-2, 2): 50 training rows, then 500 test rows.

    Source: cutajar2017, section on the comparison with MCMC; the distribution of x is not stated there."""
    rng = stream()
    x = rng.uniform(-2.0, 2.0, size=(550, 1))
    y = bump(bump(x[:, 0])) + 0.1 * rng.standard_normal(550)
    return x, y, ["x"]


GENERATORS: dict[str, Callable[[], Draw]] = {
    "composed_bumps": composed_bumps,
    "mountain_car": mountain_car.cost_to_go,
    "piecewise_constant": piecewise.disc_and_square,
    "three_classes": three_classes.gaussians,
    "modalities": partial(scans.subjects, scans.MODALITIES),
    "regions": partial(scans.subjects, scans.REGIONS),
    **{
        f"{likelihood}_{n}_{d}": partial(latent_gp.strategies, likelihood, n, d)
        for likelihood in latent_gp.LIKELIHOODS
        for n in (100, 400)
        for d in (2, 10)
    },
    **{f"{posteriors.PREFIX}{name}": partial(posteriors.draw, name) for name in posteriors.whole()},
    **{f"probit_{n}_{d}": partial(latent_gp.balanced_probit, n, d) for n in (50, 200) for d in (2, 10)},
}


def draw(item: str) -> Draw:
    """Inputs `[N, D]`, targets `[N]` (or `[N, P]`, followed by what they were drawn from), and names of the inputs.

    Raises UserError for an unknown name."""
    if item not in GENERATORS:
        raise unknown("simulated data set", item, list(GENERATORS), "gpbench.data.simulated.generators")
    x, y, names = GENERATORS[item]()
    return x.round(DIGITS), y.round(DIGITS), names
