"""Simulated data sets, by name; their numbers are the same on every machine, so that they have a checksum."""

from collections.abc import Callable
from functools import partial

import numpy as np

from gpbench.config.validate import require_known
from gpbench.data.simulated import latent_gp, mountain_car, posteriors, scans
from gpbench.data.simulated.reproducible import DIGITS, Draw, stream
from gpbench.errors import UserError

# of three classes
MEANS = np.array([[-1.0, -0.5], [1.0, 0.0], [0.0, 1.5]])
FACTORS = np.array([[[0.6, 0.0], [0.5, 0.9]], [[0.6, 0.0], [-0.5, 0.6]], [[1.4, 0.0], [0.0, 0.5]]])


def bump(x: np.ndarray) -> np.ndarray:
    """h(x) = 2 x exp(-x^2)."""
    return 2 * x * np.exp(-(x**2))


def composed_bumps() -> Draw:
    """y ~ N(h(h(x)), 0.01) (a variance) at x ~ U(-2, 2): 50 training rows, then 500 test rows.

    Source: cutajar2017, section on the comparison with MCMC; the distribution of x is not stated there."""
    rng = stream()
    x = rng.uniform(-2.0, 2.0, size=(550, 1))
    return x, bump(bump(x[:, 0])) + 0.1 * rng.standard_normal(550), ["x"]


def disc_and_square() -> Draw:
    """y ~ N(f(x), 0.05^2) at 500 x uniform in the unit square (urbainczyk2025, figure 1).

    f is 1 in a disc around (.3, .7) of radius .25 and in a square around (.7, .3) of side .4, else 0."""
    rng = stream(2025)
    x = rng.uniform(size=(500, 2))
    disc = (x[:, 0] - 0.3) ** 2 + (x[:, 1] - 0.7) ** 2 < 0.25**2
    square = (abs(x[:, 0] - 0.7) < 0.2) & (abs(x[:, 1] - 0.3) < 0.2)
    return x, np.where(disc | square, 1.0, 0.0) + 0.05 * rng.standard_normal(500), ["x0", "x1"]


def gaussians() -> Draw:
    """x ~ N(m_c, A_c A_c^T) in class c: 750 training rows, class after class, then 750 test rows (hensman2015mcmc).

    Covariances differ, so that boundaries bend, and classes overlap. The paper gives neither means nor covariances."""
    rng = stream(2015)
    y = np.tile(np.repeat(np.arange(len(MEANS)), 250), 2)
    z, factors = rng.standard_normal((len(y), 2)), FACTORS[y]
    x = MEANS[y] + factors[..., 0] * z[:, :1] + factors[..., 1] * z[:, 1:]
    return x, y, ["x0", "x1"]


GENERATORS: dict[str, Callable[[], Draw]] = {
    "composed_bumps": composed_bumps,
    "mountain_car": mountain_car.cost_to_go,
    "piecewise_constant": disc_and_square,
    "three_classes": gaussians,
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

    Raises UserError for an unknown name, and for arrays of other shapes or types."""
    require_known("simulated data set", [item], GENERATORS, "gpbench.data.simulated.generators")
    x, y, names = GENERATORS[item]()
    x, y = np.asarray(x), np.asarray(y)
    is_table = x.ndim == 2 and y.ndim in (1, 2) and len(x) == len(y) and len(names) == x.shape[1]
    if not is_table or x.dtype.kind not in "iuf" or y.dtype.kind not in "iuf":
        shapes = f"x {list(x.shape)}, y {list(y.shape)} and {len(names)} names"
        raise UserError(f"simulated data set {item!r}: numbers x [N, D], y [N] or [N, P] and D names, not {shapes}")
    return x.round(DIGITS), y.round(DIGITS), names
