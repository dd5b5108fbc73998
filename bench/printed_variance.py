"""Our samplers on data with the variance that filippone2013 seems to have used:
`python bench/printed_variance.py [lrg_100_2|lrg_100_10|vlt_100_10]`

`bench/latent_variance.py` finds, by two samplers of its own, that table 2 of filippone2013 fits 2.08, the variance of
filippone2014, and not the stated exp(2). Here the samplers of `gpbench` run at the published settings (ten chains of
20,000 draws) on our first simulated data set of a kind, drawn with that variance. Printed for each method: the least
effective sample size in % of draws, mean (sd over chains) and the largest R-hat, beside the mean in the paper. What
they give at exp(2) is in docs/results/filippone2013_*.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

from gpbench import config, places
from gpbench.data.simulated import latent_gp
from gpbench.data.table import Table
from gpbench.report.scorecard.published import read_published
from gpbench.sampling.diagnostics import gelman_rubin
from gpbench.study.fitting import chains_only
from gpbench.study.planning.batches import group_of
from gpbench.study.planning.resolve import resolve
from gpbench.study.records import Cell

RUN = "budget=paper splits=1"
METHODS = {
    "filippone2013_latents": "mh_v1,mh_v2,smmala,elliptical,hmc_v1,hmc_v2",
    "filippone2013_theta": "aa_mh",
    "filippone2013_parameterisations": "aa,khr",
}
ONLY = {"vlt_100_10": {"filippone2013_latents": METHODS["filippone2013_latents"]}}
"""Data sets for which not all studies are asked."""


def simulated(dataset: str, log_variance: float = math.log(2.08)) -> Table:
    """The draws of a data set, with the variance 2.08 or another."""
    likelihood, n, d = dataset.split("_")
    with mock.patch.object(latent_gp, "LOG_VARIANCE_2013", log_variance):
        x, targets, names = latent_gp.strategies(likelihood, int(n), int(d))
    return Table(x, targets, names, ["y", *config.compose(places.find().conf, "dataset", dataset).truth])


def efficiency(cell: Cell, table: Table) -> tuple[np.ndarray, float]:
    """Of each chain of a cell the least effective sample size in % of draws; and the largest R-hat of them."""
    with tempfile.TemporaryDirectory() as work:
        chains = [end.chain for end in chains_only.run(group_of(cell, cell.fits, cell.rows), table, Path(work))]
    draws = chains[0]["iterations"][-1]
    r_hat = gelman_rubin(*(np.stack([chain[key][-1] for chain in chains]) for key in ("mean", "variance")), draws)
    return np.array([100 * chain["ess"].min() / draws for chain in chains]), float(np.nanmax(r_hat))


def main(datasets: list[str]) -> None:
    printed = read_published(places.find().root / "published")
    printed = printed[(printed["source"] == "filippone2013") & (printed["ours_metric"] == "ess_percent")]
    for dataset in datasets:
        table = simulated(dataset)
        for study, methods in ONLY.get(dataset, METHODS).items():
            words = f"{RUN} datasets=[{dataset}] only=[{methods}]"
            for cell in resolve(places.find(), study, words).cells:
                row = printed.query("study == @study and dataset == @dataset and ours_method == @cell.method").iloc[0]
                ess, r_hat = efficiency(cell, table)
                ours = f"{ess.mean():.3f} ({ess.std(ddof=1):.3f}), R-hat {r_hat:.3f}"
                print(
                    f"{dataset:>10} {study[14:]:>17} {cell.method:10} printed {row.factor * row.value:.3f}; {ours}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:] or ["lrg_100_2", "lrg_100_10", "vlt_100_10"])
