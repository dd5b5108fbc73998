"""Whether finished fits have converged: those by gradients by what more steps would gain, Markov chains by R-hat and
effective sample sizes, whatever the budget.

Columns of the scores: convergence (converged, still improving, not converged or not judged), gain (nats a datum,
predicted for as many steps again), not_judged_because, steps_done; and gate, whether the limits of the study's budget
hold: passed or failed, with the reason, and nothing where there is no limit.
"""

import math
from collections.abc import Mapping
from typing import Any

from gpbench.sampling.diagnostics import FEWEST_DRAWS
from gpbench.study.fitting.convergence import CONVERGED, IMPROVING, LARGEST_GAIN, LBFGS, NOT_JUDGED
from gpbench.study.records import CONVERGENCE, convergence_in_words
from gpbench.study.storage.committed import Row

NOT_CONVERGED = "not converged"
LARGEST_R_HAT, FEWEST_EFFECTIVE = 1.05, 100
"""At which chains count as converged where the budget sets no limit of its own for R-hat; with 100 effective draws in
all the Monte Carlo error of a mean is a tenth of the posterior's standard deviation."""
UNNOTED = {"convergence": NOT_JUDGED, "not_judged_because": "its training measures none", "gate": ""}
"""Of a fit with steps that notes nothing of it and keeps no draws."""


def of_optimised(info: dict[str, Any], limit: float | None) -> Row:
    """Of a fit that notes how it has converged, which passes by the rule that ends fits; one that still improves passes
    below a `limit` of the predicted gain that is larger than the rule's."""
    noted = {key: info[key] for key in CONVERGENCE if key in info}
    if limit is None:
        return noted | {"gate": ""}
    below = noted["convergence"] == IMPROVING and noted["gain"] < limit
    if noted["convergence"] == CONVERGED or (below and limit > LARGEST_GAIN):
        return noted | {"gate": "passed"}
    of_rule = LBFGS.gain if below else limit
    return noted | {"gate": "failed", "reason": f"{convergence_in_words(noted)}; the limit is {of_rule:g} nats"}


def of_chains(mixing: Mapping[str, float], limit: float | None) -> Row:
    """Of the chains of a cell and split, judged together; chains too short for an R-hat fail."""
    fault = unmixed(mixing, limit)
    if math.isnan(mixing["r_hat"]):
        few = mixing["draws"] < FEWEST_DRAWS
        why = "too few draws for an R-hat" if few else "no chain moved, or a draw is no number"
        noted = {"convergence": NOT_JUDGED, "not_judged_because": why}
    else:
        noted = {"convergence": NOT_CONVERGED if fault else CONVERGED}
    if limit is None:
        return noted | {"gate": ""}
    return noted | ({"gate": "failed", "reason": fault} if fault else {"gate": "passed"})


def unmixed(mixing: Mapping[str, float], limit: float | None) -> str:
    """Why chains do not count as converged; '' where they do. Records made before it was measured lack `ess_every`."""
    limit, chains = limit or LARGEST_R_HAT, mixing["chains"]
    drawn = f"({chains:g} chain{'s' * (chains != 1)} of {mixing['draws']:g} draws)"
    if math.isnan(mixing["r_hat"]):
        return f"no R-hat {drawn}"
    if mixing["r_hat"] > limit:
        return f"R-hat {mixing['r_hat']:.5g} exceeds {limit:g} {drawn}"
    sizes = (mixing.get(name, math.nan) for name in ("ess_bulk", "ess_tail", "ess_every"))
    fewest = min((size for size in sizes if not math.isnan(size)), default=math.inf)
    return f"{fewest:.3g} effective draws, of which {FEWEST_EFFECTIVE} are needed {drawn}" * (fewest < FEWEST_EFFECTIVE)
