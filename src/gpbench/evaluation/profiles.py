"""How far methods lie from the best of each data set, and what that costs.

A table of losses has one row a data set and one column a method, without missing cells.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from gpbench.evaluation.practical import ROPES


def excess(losses: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Loss of each method minus that of the best of the data set, on the scale of the metric's ROPE.

    For RMSE that is the logarithm of the ratio to the best, which dolan2002 takes; MNLL and error rate may be 0 or
    negative and have no ratio. ValueError for missing cells."""
    if losses.isna().to_numpy().any():
        raise ValueError("losses must have no missing cells")
    scaled = ROPES[metric].scale(losses.to_numpy(float))
    return pd.DataFrame(scaled - scaled.min(axis=1, keepdims=True), index=losses.index, columns=losses.columns)


def profile(distances: pd.DataFrame) -> pd.DataFrame:
    """Share of the data sets `[n]` on which a method lies within a distance of the best: its distribution function.

    Rows: n a method, at its sorted distances; columns method, distance, share = 1/n, ..., 1. Source: dolan2002."""
    n, methods = distances.shape
    in_order = np.sort(distances.to_numpy(), axis=0).ravel(order="F")
    share = np.tile(np.arange(1, n + 1) / n, methods)
    return pd.DataFrame({"method": np.repeat(distances.columns, n), "distance": in_order, "share": share})


def resampled(share: ArrayLike, n: int, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Interval of a share when the n data sets are drawn again with replacement: quantiles of Binomial(n, share) / n.

    share `[k]` gives two arrays `[k]`."""
    from scipy.stats import binom  # scipy.stats costs a second to import

    tails = (1 - level) / 2, (1 + level) / 2
    low, high = (binom.ppf(tail, n, np.asarray(share, float)) / n for tail in tails)
    return low, high


def pareto_front(cost: pd.Series, loss: pd.Series) -> list[str]:
    """Names by rising cost that no other name dominates; to dominate is to be no worse in both and better in one."""
    no_worse = {name: (cost <= cost[name]) & (loss <= loss[name]) for name in cost.sort_values(kind="stable").index}
    better = {name: (cost < cost[name]) | (loss < loss[name]) for name in no_worse}
    return [name for name in no_worse if not (no_worse[name] & better[name]).any()]
