"""Do chains of `sgld_ulisse` have the marginals that Metropolis-Hastings finds? Figure 5 of filippone2015, in numbers.

    python bench/sgld_marginals.py RUN      of a run of filippone2015_sgld whose fits the store has, such as that of
                                            overrides="budget=paper only=[gp_mh,sgld_ulisse] datasets=[concrete]"

Printed are, of each parameter over all draws after burn-in, the 1-Wasserstein distance to the reference `gp_mh` in
standard deviations of it (of the reference: between halves of its chains, which is what its length resolves), effective
sample sizes, the distance that as many independent draws of the reference have on average, and the median and 97.5 %
quantile over parameters of R-hat of Gelman and Rubin.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
from scipy import stats

from gpbench import places
from gpbench.report.view import View
from gpbench.sampling import diagnostics
from gpbench.study.storage import arrays

REFERENCE, REPEATS = "gp_mh", 100


def read(run: str) -> tuple[list[str], dict[str, np.ndarray]]:
    """Names of the parameters `[P]`, and of each method the draws of its finished chains `[chains, draws, P]`."""
    where, names, found = places.find(), [], {}
    for method, fits in View(where.results / run).done.groupby("method"):
        chains = [arrays.read(where.store / fit, "chain") for fit in fits["fit_id"]]
        names = list(chains[0]["names"][chains[0]["watched"]])
        found[str(method)] = np.array([chain["draws"] for chain in chains], float)
    return names, found


def compare(names: list[str], found: dict[str, np.ndarray]) -> None:
    """A line for each method and parameter, from draws `[chains, draws, P]`."""
    reference = found[REFERENCE]
    every, rng = np.concatenate(reference), np.random.default_rng(0)
    halves = [np.concatenate(half) for half in np.array_split(reference, 2, axis=1)]
    for method, draws in found.items():
        print(f"{method}: {len(draws)} chains of {draws.shape[1]} draws")
        pooled = np.concatenate(draws)
        one, other = halves if method == REFERENCE else (pooled, every)
        ess = np.sum([diagnostics.geyer_ess(chain) for chain in draws], 0)
        r_hat = diagnostics.gelman_rubin(draws.mean(1), draws.var(1, ddof=1), draws.shape[1])
        for k, name in enumerate(names):
            distance = stats.wasserstein_distance(one[:, k], other[:, k]) / every[:, k].std()
            draw = partial(rng.choice, every[:, k], round(ess[k]))
            alone = [stats.wasserstein_distance(draw(), every[:, k]) for _ in range(REPEATS)]
            expected = np.mean(alone) / every[:, k].std()
            moments = f"mean {pooled[:, k].mean():+.3f}, sd {pooled[:, k].std():.3f}, ESS {ess[k]:.0f}"
            print(f"  {name:11s} {moments}, W1/sd {distance:.3f} (independent {expected:.3f})")
        print(f"  R-hat median {np.median(r_hat):.3f}, 97.5 % {np.quantile(r_hat, 0.975):.3f}")


if __name__ == "__main__":
    compare(*read(sys.argv[1]))
