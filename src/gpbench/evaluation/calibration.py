"""Calibration: whether stated probabilities come true, as tables of curves and bins.

pandas and SciPy are imported where they are used, because planning needs the names of metrics only and must be fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-9
"""A sum of rounded terms may pass its bound by a few units in the last place."""
PIT_BINS = 40
"""Whose edges are those of a histogram of ten bins and of the central intervals of 5 %, 10 %, ..., 95 %."""


def binned(probability: ArrayLike, happened: ArrayLike, bins: int = 15) -> pd.DataFrame:
    """What equal-width bins of [0, 1] hold, a row each: their count, and how many events were predicted and happened.

    probability `[N]`: of N events, of which `happened` says whether they came true; predicted is its sum in the bin.
    Rows of like bins add up: a union of points has the sum of their tables."""
    import pandas as pd

    index, happened = _bin_of(probability, bins), np.asarray(happened, float)
    count, stated, right = (np.bincount(index, weights, bins) for weights in (None, np.asarray(probability), happened))
    return pd.DataFrame({"count": count, "predicted": stated, "happened": right.astype(int)})


def histograms(points: pd.DataFrame, task: str) -> dict[str, pd.DataFrame]:
    """All that figures of calibration draw of a fit, from its points (see `gpbench.study.results.collect`).

    Regression: `pit`, a count for each of 40 bins. Classification: `confidence`, the probability of the predicted class
    in ten bins, and `classes`, of two classes that of class 1 in 15 bins, of more those of all classes in ten. Counts:
    nothing, for their intervals are not exact."""
    import pandas as pd

    if task == "regression":
        return {"pit": pd.DataFrame({"count": np.bincount(_bin_of(points["pit"], PIT_BINS), minlength=PIT_BINS)})}
    if task == "counts":
        return {}
    binary = task == "binary"
    stated = points[["p1"]] if binary else points.filter(regex=r"^p\d+$").dropna(axis="columns")
    right = points["y"].to_numpy()[:, None] == stated.columns.str.removeprefix("p").astype(int).to_numpy()
    return {
        "confidence": binned(points["confidence"], points["modal"] == points["y"], 10),
        "classes": binned(stated.to_numpy().ravel(), right.ravel(), 15 if binary else 10),
    }


def pit_histogram(count: ArrayLike, bins: int = 10, level: float = 0.95) -> pd.DataFrame:
    """Histogram of probability integral transforms with a simultaneous band under uniformity.

    count: of equal-width bins of [0, 1], a multiple of `bins`. Columns left, count, expected, lower, upper
    (counts), one row a bin. Each count is Binomial(n, 1/bins) if the predictive is right; the band splits 1 - level
    evenly over the bins (Bonferroni), so that all bins lie inside it together with probability at least `level`."""
    import pandas as pd
    from scipy.stats import binom

    edges = np.linspace(0, 1, bins + 1)
    merged = np.asarray(count).reshape(bins, -1).sum(axis=1)
    tail = (1 - level) / (2 * bins)
    lower, upper = binom.ppf([tail, 1 - tail], merged.sum(), 1 / bins)
    band = {"expected": merged.sum() / bins, "lower": lower, "upper": upper}
    return pd.DataFrame({"left": edges[:-1], "count": merged, **band})


def coverage(pit: ArrayLike, level: float) -> float:
    """Fraction of targets inside the central interval of probability `level`: |pit - 1/2| <= level/2."""
    return float(np.mean(np.abs(np.asarray(pit) - 0.5) <= level / 2))


def coverage_curve(count: ArrayLike) -> pd.DataFrame:
    """Observed against nominal coverage of central intervals: columns nominal, empirical.

    count `[2 K]`: of equal-width bins of the PIT; nominal: 1/K, ..., 1 - 1/K, whose intervals end where bins do."""
    import pandas as pd

    count = np.asarray(count)
    half = len(count) // 2
    inside = np.cumsum(count[half:] + count[half - 1 :: -1])[:-1]
    return pd.DataFrame({"nominal": np.arange(1, half) / half, "empirical": inside / count.sum()})


def reliability_curve(bins: pd.DataFrame) -> pd.DataFrame:
    """Predicted probability against the fraction that came true, from the rows of `binned`.

    Columns confidence (mean probability), fraction, count; NaN in empty bins."""
    filled = bins["count"].where(bins["count"] > 0)
    confidence, fraction = bins["predicted"] / filled, bins["happened"] / filled
    return bins[["count"]].assign(confidence=confidence, fraction=fraction)


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """sum_b n_b/N |fraction correct_b - mean confidence_b| over the bins of `reliability_curve` (Guo et al. 2017)."""
    table = binned(confidence, correct, bins)
    return float((table["happened"] - table["predicted"]).abs().sum() / table["count"].sum())


def _bin_of(values: ArrayLike, bins: int) -> np.ndarray:
    """Number of the equal-width bin of [0, 1] that holds each value; 1 belongs to the last."""
    values = np.asarray(values, float)
    if not np.all((values >= 0) & (values <= 1 + ROUNDING)):
        raise ValueError("probabilities must lie in [0, 1]")
    return np.minimum((values * bins).astype(int), bins - 1)
