"""Have the chains mixed, and what are their draws worth? The rank-normalised diagnostics of vehtari2021, by ArviZ."""

from __future__ import annotations

import warnings

import numpy as np

from gpbench.errors import UserError

FEWEST_DRAWS = 4


def summary(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Split R-hat and effective sample sizes of every quantity, each `[*quantities]`.

    draws `[chains, draws, *quantities]`. `r_hat` (near 1 where the chains agree; NaN for a single chain), `ess_bulk`
    (of the location) and `ess_tail` (of the 5 % and 95 % quantiles) in draws, summed over chains. NaN where a draw is
    NaN. Raises UserError for fewer than 4 draws a chain. Source: vehtari2021.
    """
    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim < 2 or draws.shape[1] < FEWEST_DRAWS:
        raise UserError(
            f"chains of shape {draws.shape} (chains, draws, ...) are too short for R-hat and ESS; "
            f"keep at least {FEWEST_DRAWS} draws a chain"
        )
    arviz = _arviz()
    chains = arviz.convert_to_dataset({"x": draws})
    return {
        "r_hat": arviz.rhat(chains, method="rank")["x"].values,
        "ess_bulk": arviz.ess(chains, method="bulk")["x"].values,
        "ess_tail": arviz.ess(chains, method="tail")["x"].values,
    }


def _arviz():
    """ArviZ, which is slow to import and greets with advice on its next version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz
