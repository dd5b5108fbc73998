"""Where inducing inputs start."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.cluster.vq import kmeans2

MAX_ROWS = 20_000
REPEAT_SCALE = 1e-2


def kmeans(x: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """Centres `[num, D]` of k-means on the rows of x `[N, D]`, started at distinct random rows.

    At most 20,000 rows, drawn at random, take part. With fewer than `num` distinct rows every one is a
    centre, and the rest are rows drawn again and moved by 1e-2 standard deviations (equal centres would make
    K_ZZ singular). Same rng, same centres.
    """
    x = np.asarray(x, dtype=np.float64)
    if len(x) > MAX_ROWS:
        x = x[rng.choice(len(x), MAX_ROWS, replace=False)]
    distinct = np.unique(x, axis=0)
    if len(distinct) <= num:
        again = distinct[rng.integers(len(distinct), size=num - len(distinct))]
        step = REPEAT_SCALE * np.where(x.std(0) > 0, x.std(0), 1.0)
        return np.concatenate([distinct, again + step * rng.standard_normal(again.shape)])
    start = distinct[rng.choice(len(distinct), num, replace=False)]
    with warnings.catch_warnings():
        # a cluster that loses all its rows keeps its last centre, which is still a fair inducing input
        warnings.filterwarnings("ignore", message="One of the clusters is empty")
        return kmeans2(x, start, minit="matrix")[0]
