"""Efficiency of HMC on latent values by the acceptance to which its step size is tuned:
`python bench/hmc_acceptance.py [DATASET ...]`

filippone2013 does not say to which acceptance HMC was tuned (ours: `gpbench.sampling.tuning`). Printed for each data
set, at the stated variance exp(2) and at 2.08 (see `bench/printed_variance.py`): the least effective sample size of
version 2 in % of draws, mean (sd over four chains of 4,000 draws after 1,000 of burn-in), beside the paper's mean.
"""

from __future__ import annotations

import sys
from unittest import mock

from printed_variance import efficiency, simulated

from gpbench import places
from gpbench.report.scorecard.published import read_published
from gpbench.sampling.latent.latents import Hamiltonian
from gpbench.study.planning.resolve import resolve

RUN = "budget=paper splits=1 replicas=4 only=[hmc_v2] mcmc_gp.steps=5000"
TARGETS = (0.4, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99)


def main(datasets: list[str]) -> None:
    where = places.find()
    printed = read_published(where.root / "published")
    printed = printed[(printed["source"] == "filippone2013") & (printed["ours_metric"] == "ess_percent")]
    for dataset in datasets:
        (cell,) = resolve(where, "filippone2013_latents", f"{RUN} datasets=[{dataset}]").cells
        row = printed.query("dataset == @dataset and ours_method == 'hmc_v2'").iloc[0]
        for variance, table in (("exp(2)", simulated(dataset, 2.0)), ("2.08", simulated(dataset))):
            for target in TARGETS:
                with mock.patch.object(Hamiltonian, "target", target):
                    ess, _ = efficiency(cell, table)
                print(
                    f"{dataset:>10}, variance {variance:6}, acceptance {target:.2f}: {ess.mean():.2f} "
                    f"({ess.std(ddof=1):.2f}), printed {row.factor * row.value:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:] or ["lrg_100_2", "lrg_100_10", "ord_100_2", "ord_100_10", "vlt_100_2", "vlt_100_10"])
