"""Points of three Gaussians in the plane, one a class (hensman2015mcmc, figures 4 and 9)."""

from __future__ import annotations

import numpy as np

from gpbench.data.simulated.reproducible import Draw, stream

ROWS = 250  # of each class, in the training part and in the test part
MEANS = np.array([[-1.0, -0.5], [1.0, 0.0], [0.0, 1.5]])
FACTORS = np.array([[[0.6, 0.0], [0.5, 0.9]], [[0.6, 0.0], [-0.5, 0.6]], [[1.4, 0.0], [0.0, 0.5]]])


def gaussians() -> Draw:
    """x ~ N(m_c, A_c A_c^T) in class c: 750 training rows, class after class, then 750 test rows.

    Covariances differ, so that boundaries bend, and classes overlap. The paper gives neither means nor covariances."""
    rng = stream(2015)
    y = np.tile(np.repeat(np.arange(len(MEANS)), ROWS), 2)
    z, factors = rng.standard_normal((len(y), 2)), FACTORS[y]
    x = MEANS[y] + factors[..., 0] * z[:, :1] + factors[..., 1] * z[:, 1:]
    return x, y, ["x0", "x1"]
