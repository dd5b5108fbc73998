"""Calibration: whether stated probabilities come true, as tables of curves and bins with intervals.

pandas is imported where a table is made, because planning needs the names of metrics only and must be fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

if TYPE_CHECKING:
    import pandas as pd


def wilson_interval(successes: ArrayLike, count: ArrayLike, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Interval for a binomial proportion, (NaN, NaN) where count is 0.

    (p + z^2/2n -+ z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n). Source: Wilson (1927)."""
    successes, count = np.asarray(successes, float), np.asarray(count, float)
    count = np.where(count > 0, count, np.nan)
    fraction, ratio = successes / count, ndtri(0.5 + level / 2) ** 2 / count
    centre = fraction + ratio / 2
    half = np.sqrt(ratio * fraction * (1 - fraction) + ratio**2 / 4)
    # the clip only removes rounding: the interval lies in [0, 1] by construction
    return np.clip((centre - half) / (1 + ratio), 0, 1), np.clip((centre + half) / (1 + ratio), 0, 1)


def pit_histogram(pit: ArrayLike, bins: int = 10, level: float = 0.95) -> pd.DataFrame:
    """Histogram of probability integral transforms with a simultaneous band under uniformity.

    Columns left, right, count, expected, lower, upper (counts), one row a bin. Each count is Binomial(n, 1/bins) if
    the predictive is right; the band splits 1 - level evenly over the bins (Bonferroni), so that all bins lie inside
    it together with probability at least `level`."""
    import pandas as pd
    from scipy.stats import binom

    edges = np.linspace(0, 1, bins + 1)
    count = np.bincount(_bin_of(pit, bins), minlength=bins)
    tail = (1 - level) / (2 * bins)
    lower, upper = binom.ppf([tail, 1 - tail], count.sum(), 1 / bins)
    band = {"expected": count.sum() / bins, "lower": lower, "upper": upper}
    return pd.DataFrame({"left": edges[:-1], "right": edges[1:], "count": count, **band})


def coverage(pit: ArrayLike, level: float) -> float:
    """Fraction of targets inside the central interval of probability `level`: |pit - 1/2| <= level/2."""
    return float(np.mean(np.abs(np.asarray(pit) - 0.5) <= level / 2))


def coverage_curve(pit: ArrayLike, levels: ArrayLike | None = None, level: float = 0.95) -> pd.DataFrame:
    """Observed against nominal coverage of central intervals: columns nominal, empirical, lower, upper (Wilson).

    levels: nominal probabilities, 0.05 to 0.95 by default; level: of the pointwise interval."""
    import pandas as pd

    pit = np.asarray(pit, float)
    nominal = np.linspace(0.05, 0.95, 19) if levels is None else np.asarray(levels, float)
    empirical = np.array([coverage(pit, probability) for probability in nominal])
    lower, upper = wilson_interval(empirical * len(pit), len(pit), level)
    return pd.DataFrame({"nominal": nominal, "empirical": empirical, "lower": lower, "upper": upper})


def reliability_curve(confidence: ArrayLike, correct: ArrayLike, bins: int = 15, level: float = 0.95) -> pd.DataFrame:
    """Stated confidence against fraction correct in equal-width bins of confidence over [0, 1].

    confidence `[N]`: probability of the predicted class; correct `[N]`: whether it was right. Columns left, right,
    confidence (mean), fraction, count, lower, upper (Wilson); NaN in empty bins."""
    import pandas as pd

    confidence, correct = np.asarray(confidence, float), np.asarray(correct, float)
    edges, index = np.linspace(0, 1, bins + 1), _bin_of(confidence, bins)
    count, stated, right = (np.bincount(index, weights, bins) for weights in (None, confidence, correct))
    filled = np.where(count > 0, count, np.nan)
    lower, upper = wilson_interval(right, count, level)
    curve = {"left": edges[:-1], "right": edges[1:], "confidence": stated / filled, "fraction": right / filled}
    return pd.DataFrame({**curve, "count": count.astype(int), "lower": lower, "upper": upper})


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """sum_b n_b/N |fraction correct_b - mean confidence_b| over the bins of `reliability_curve` (Guo et al. 2017)."""
    curve = reliability_curve(confidence, correct, bins)
    gap = (curve["fraction"] - curve["confidence"]).abs().fillna(0.0)
    return float((gap * curve["count"]).sum() / curve["count"].sum())


def _bin_of(values: ArrayLike, bins: int) -> np.ndarray:
    """Number of the equal-width bin of [0, 1] that holds each value; 1 belongs to the last."""
    values = np.asarray(values, float)
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError("probabilities must lie in [0, 1]")
    return np.minimum((values * bins).astype(int), bins - 1)
