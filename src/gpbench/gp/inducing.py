"""Where inducing inputs start: k-means centres, random rows, or the rows that tell most of the function."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scipy.cluster.vq import kmeans2

from gpbench.gp.kernels import Kernel

MAX_ROWS = 20_000
REPEAT_SCALE = 1e-2
LEAST_VARIANCE = 1e-10
"""Of the largest prior variance: below it a row is known from those chosen, but for rounding."""


def kmeans(x: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """Centres `[num, D]` of k-means on the rows of x `[N, D]`, started at distinct random rows.

    At most 20,000 rows, drawn at random, take part. With fewer than `num` distinct rows every one is a
    centre, and the rest are rows drawn again and moved by 1e-2 standard deviations (equal centres would make
    K_ZZ singular). Same rng, same centres."""
    x, distinct = _rows(x, rng)
    if len(distinct) <= num:
        return _filled(distinct, x, num, rng)
    start = distinct[rng.choice(len(distinct), num, replace=False)]
    with warnings.catch_warnings():
        # a cluster that loses all its rows keeps its last centre, which is still a fair inducing input
        warnings.filterwarnings("ignore", message="One of the clusters is empty")
        return kmeans2(x, start, minit="matrix")[0]


def rows(x: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """Distinct random rows `[num, D]` of x `[N, D]`; where there are too few, as in `kmeans`."""
    x, distinct = _rows(x, rng)
    return _filled(distinct[rng.permutation(len(distinct))[:num]], x, num, rng)


def greedy(x: np.ndarray, num: int, rng: np.random.Generator, kernel: Kernel) -> np.ndarray:
    """Rows `[num, D]` of x `[N, D]`, each that of the largest variance of f given those before it (burt2020).

    A pivoted Cholesky factor C of K, O(N num^2): with d = diag(K), i = argmax d, c = (k_i - C^T C_i) / sqrt(d_i),
    d <- d - c^2. Where no variance is left, or rows are too few, the rest as in `kmeans`; many rows are thinned as
    there. kernel: of one replica."""
    x, distinct = _rows(x, rng)
    points = torch.from_numpy(distinct)[None]
    left = kernel.diagonal(points)[0].expand(len(distinct)).clone()
    least, chol, chosen = LEAST_VARIANCE * left.max(), left.new_zeros(num, len(left)), list[int]()
    while len(chosen) < num and left.max() > least:
        i, known = int(left.argmax()), chol[: len(chosen)]
        column = kernel.covariance(points[:, i : i + 1], points)[0, 0] - known[:, i] @ known
        chol[len(chosen)] = column / left[i].sqrt()
        left = left - chol[len(chosen)].square()
        left[i] = 0.0
        chosen.append(i)
    return _filled(distinct[chosen], x, num, rng)


def _rows(x: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """At most `MAX_ROWS` of the rows x, drawn at random, and the distinct ones of these, sorted."""
    x = np.asarray(x, dtype=np.float64)
    if len(x) > MAX_ROWS:
        x = x[rng.choice(len(x), MAX_ROWS, replace=False)]
    return x, np.unique(x, axis=0)


def _filled(chosen: np.ndarray, x: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """The rows chosen and, up to num, some of them again, moved by 1e-2 standard deviations of x."""
    again = chosen[rng.integers(len(chosen), size=num - len(chosen))]
    step = REPEAT_SCALE * np.where(x.std(0) > 0, x.std(0), 1.0)
    return np.concatenate([chosen, again + step * rng.standard_normal(again.shape)])
