"""Whether finished fits have converged: those by gradients by what more steps would gain, Markov chains by R-hat.

Columns of the scores: convergence (converged, still improving, not converged or not judged), gain (nats a datum,
predicted for as many steps again), not_judged_because, steps_done; and gate, whether the limits of the study's budget
hold: passed or failed, with the reason, and nothing where there is no limit.
"""

from __future__ import annotations

import math
from typing import Any

from gpbench.study.fitting.convergence import CONVERGED, NOT_JUDGED
from gpbench.study.records import CONVERGENCE, convergence_in_words
from gpbench.study.storage.committed import Row

NOT_CONVERGED = "not converged"
LARGEST_R_HAT = 1.05
"""At which chains count as converged where the budget sets no limit."""


def of_optimised(info: dict[str, Any], limit: float | None) -> Row:
    """Of a fit that notes how it has converged; `limit`: of the predicted gain."""
    noted = {key: info[key] for key in CONVERGENCE if key in info}
    if limit is None:
        return noted | {"gate": ""}
    if noted["convergence"] != NOT_JUDGED and noted["gain"] < limit:
        return noted | {"gate": "passed"}
    return noted | {"gate": "failed", "reason": f"{convergence_in_words(noted)}; the limit is {limit:g} nats"}


def of_chains(mixing: dict[str, float], limit: float | None) -> Row:
    """Of the chains of a cell and split, judged together; chains too short for an R-hat fail."""
    r_hat = mixing["r_hat"]
    if math.isnan(r_hat):
        noted = {"convergence": NOT_JUDGED, "not_judged_because": "too few draws for an R-hat"}
    else:
        noted = {"convergence": CONVERGED if r_hat <= (limit or LARGEST_R_HAT) else NOT_CONVERGED}
    if limit is None:
        return noted | {"gate": ""}
    if r_hat <= limit:
        return noted | {"gate": "passed"}
    drawn = f"{mixing['chains']} chains of {mixing['draws']} draws"
    return noted | {"gate": "failed", "reason": f"R-hat {r_hat:.5g} exceeds {limit:g} ({drawn})"}
