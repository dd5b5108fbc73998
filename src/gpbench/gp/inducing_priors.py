"""Priors p(Z) of inducing inputs, up to their constants (rossi2021, section 3).

    normal     -1/2 ||Z||_F^2
    uniform    0
    dpp        log |K_ZZ|                                    determinantal point process
    strauss    log(gamma) #{pairs with ||z - z'|| < r}       gamma = r = 0.5

All but the normal are improper on R^D, and so is the posterior under them: a likelihood does not vanish where an
inducing input runs off. Starting from the data, chains of ordinary length stay near them, but nothing holds them there.

The Strauss term is piecewise constant: **its gradient is zero** almost everywhere. A sampler that follows gradients and
has no Metropolis test (SGHMC) does not see it, so under it the chain is that under `uniform`; what rossi2021 print for
the two differs by the noise of sampling alone. The determinant of `dpp` needs the jitter of K_ZZ to have a finite
gradient, and its normaliser depends on the covariance parameters, which is ignored as in the paper: the term acts on
them too.
"""

from __future__ import annotations

import math

from torch import Tensor

STRAUSS_GAMMA, STRAUSS_RADIUS = 0.5, 0.5


def log_prior(name: str, z: Tensor, chol_kzz: Tensor) -> Tensor:
    """log p(Z) `[R]` without its constant; z `[R, M, D]`, chol_kzz the factor of K_ZZ `[R, M, M]`."""
    return {"normal": _normal, "uniform": _uniform, "dpp": _dpp, "strauss": _strauss}[name](z, chol_kzz)


def _normal(z: Tensor, chol_kzz: Tensor) -> Tensor:
    return -0.5 * z.square().sum((1, 2))


def _uniform(z: Tensor, chol_kzz: Tensor) -> Tensor:
    return z.new_zeros(len(z))


def _dpp(z: Tensor, chol_kzz: Tensor) -> Tensor:
    return 2 * chol_kzz.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _strauss(z: Tensor, chol_kzz: Tensor) -> Tensor:
    squares = (z.detach()[:, :, None] - z.detach()[:, None]).square().sum(-1)
    close = (squares < STRAUSS_RADIUS**2).to(z).triu(diagonal=1)
    return math.log(STRAUSS_GAMMA) * close.sum((1, 2))
