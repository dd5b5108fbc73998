"""Is the variational bound (VFE) the better objective of a sampler? One-sided signed-rank tests by depth (rossi2021).

The hypothesis is that VFE has the lower MNLL, the alternative that FITC has; a small p rejects VFE. Two versions:

- paired: the differences FITC - VFE of the splits that both have, exact; p is at least 2^-n for n splits;
- unpaired: the public code draws FOLDS folds with replacement, separately for each objective, and tests the differences
  of the drawn scores, RESAMPLES times. Folds differ in difficulty, which these differences do not cancel, so that its
  p-values are noisier; their median and middle 90 % are given.
"""

import numpy as np
import pandas as pd

from gpbench.evaluation.compare import signed_rank_less
from gpbench.report.tables.by_setting import side_by_side
from gpbench.report.tables.render import Table, number
from gpbench.report.view import View

FOLDS, RESAMPLES = 7, 100
PLACE = ["dataset", "layers", "fitc", "vfe"]
COLUMNS = [*PLACE, "n", "difference", "p_paired", "p_unpaired", "p_unpaired_low", "p_unpaired_high"]


def p_values(view: View) -> pd.DataFrame:
    """A row for each data set and pair of one depth: methods, n splits, mean FITC - VFE in nats, p-values."""
    rows: list[list[object]] = []
    for dataset in view.datasets:
        scores = view.per_split("mnll", dataset)
        for layers, names in side_by_side(view, "objective", "layers"):
            if names.keys() >= {"fitc", "vfe"}:
                both = scores[[names["fitc"], names["vfe"]]].dropna()
                if len(both):
                    rows.append([dataset, layers, *both.columns, *_tests(*both.to_numpy().T)])
    return pd.DataFrame(rows, columns=COLUMNS)


def _tests(fitc: np.ndarray, vfe: np.ndarray) -> list[float]:
    """COLUMNS from `n` on; MNLL of each objective `[n]`, paired; of one split, which all drawn folds would be, no p."""
    if len(fitc) < 2:
        return [len(fitc), float(fitc[0] - vfe[0]), *[np.nan] * 4]
    drawn = np.random.default_rng(0).integers(len(fitc), size=(2, RESAMPLES, FOLDS))
    unpaired = [float(signed_rank_less(difference)) for difference in fitc[drawn[0]] - vfe[drawn[1]]]
    difference, quantiles = fitc - vfe, np.quantile(unpaired, [0.5, 0.05, 0.95])
    return [len(fitc), difference.mean(), float(signed_rank_less(difference)), *quantiles]


def table(view: View) -> Table:
    """The p-values of both tests, side by side."""
    data = p_values(view)
    ranges = data["p_unpaired_low"].map(number) + " to " + data["p_unpaired_high"].map(number)
    shown = {
        "data set": data["dataset"],
        "layers": data["layers"],
        "FITC": data["fitc"].map(view.labels),
        "VFE": data["vfe"].map(view.labels),
        "splits": data["n"],
        "FITC − VFE": [f"{value:+.4f}" for value in data["difference"]],
        "p, paired": data["p_paired"].map(number),
        "smallest possible p": (0.5 ** data["n"].where(data["n"] > 1)).map(number),
        "p, unpaired": data["p_unpaired"].map(number),
        "middle 90 % of p, unpaired": ranges.replace("- to -", "-"),
    }
    note = (
        "Test MNLL in nats; below zero FITC is better. One-sided Wilcoxon signed-rank tests of the hypothesis that VFE "
        "is better: a small p rejects it. Paired: exact, over the splits as if independent. Unpaired, as the public "
        f"code of rossi2021: {FOLDS} folds drawn with replacement for each objective, {RESAMPLES} times; median p. One "
        "split allows no test. Of several of one objective and depth the first are compared, then the second ones."
    )
    return Table(data, pd.DataFrame(shown), "Is VFE the better objective of the sampler?", note)
