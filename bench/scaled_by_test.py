"""By which part of the data did ashman2020 scale its sparse GPs? `python bench/scaled_by_test.py [DATASET ...]`

The paper standardises by the training part; the authors' program takes the means of the training part and the
standard deviations of the test part. With one lengthscale for all inputs the scales of inputs matter, most where the
test part is small. Here the collapsed bound with M = 100 inducing inputs is maximised (L-BFGS, from k-means centres
and a lengthscale, variance and noise of 1, 1 and .05) with either scaling on ten of the authors' splits. Printed:
root mean squares of ours minus theirs (`published/per_split/ashman2020_sgp_100.csv`) and correlations over splits, of
negative log likelihoods (nats) and RMSE in original units. The bound is written here from the equations and shares
with `gpbench` the data alone.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy import ndarray as Array
from scipy.cluster.vq import kmeans2
from scipy.optimize import minimize
from torch import Tensor

from gpbench import config, places
from gpbench.data import prepare
from gpbench.data.table import load

SPLITS, INDUCING, ITERATIONS, JITTER = 10, 100, 1000, 1e-6
RELEASED = Path(__file__).parents[1] / "published/per_split/ashman2020_sgp_100.csv"


def rows(name: str) -> tuple[Array, Array]:
    """Inputs and targets of a data set, fetched if need be."""
    where = places.find()
    dataset = config.compose(where.conf, "dataset", name)
    prepare.ensure(dataset, where)
    table = load(where.prepared_file(name), str(dataset.md5))
    return table.inputs, table.targets


def covariance(a: Tensor, b: Tensor, log: Tensor) -> Tensor:
    """k(a, b) = exp(log_1 - |a - b|^2 / (2 exp(2 log_0)))"""
    squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return torch.exp(log[1] - 0.5 * squares * torch.exp(-2 * log[0]))


def factors(x: Tensor, y: Tensor, z: Tensor, log: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L of K_ZZ, A = L^-1 K_ZX / sigma, the factor of B = I + A A^T and c = L_B^-1 A y / sigma."""
    noise = log[2].exp()
    chol = torch.linalg.cholesky(covariance(z, z, log) + JITTER * torch.eye(len(z)))
    a = torch.linalg.solve_triangular(chol, covariance(z, x, log), upper=False) / noise.sqrt()
    inner = torch.linalg.cholesky(torch.eye(len(z)) + a @ a.T)
    return chol, a, inner, torch.linalg.solve_triangular(inner, a @ y[:, None], upper=False) / noise.sqrt()


def negative_bound(x: Tensor, y: Tensor, z: Tensor, log: Tensor) -> Tensor:
    """Minus the bound of Titsias (2009), log N(y; 0, Q + sigma^2 I) - tr(K - Q) / (2 sigma^2)."""
    _, a, inner, c = factors(x, y, z, log)
    noise, n = log[2].exp(), len(x)
    fit = 0.5 * (n * (math.log(2 * math.pi) + log[2]) + y.square().sum() / noise - c.square().sum())
    return fit + inner.diagonal().log().sum() + 0.5 * (n * log[1].exp() / noise - a.square().sum())


def fitted(x: Tensor, y: Tensor, start: Array) -> tuple[Tensor, Tensor]:
    """Inducing inputs and logarithms of lengthscale, variance and noise at the optimum."""
    shape = start.shape

    def value(flat: Array) -> tuple[float, Array]:
        theta = torch.tensor(flat, requires_grad=True)
        bound = negative_bound(x, y, theta[3:].view(shape), theta[:3])
        bound.backward()
        return bound.item(), theta.grad.numpy()

    begin = np.concatenate([[0.0, 0.0, math.log(0.05)], start.ravel()])
    best = torch.tensor(minimize(value, begin, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}).x)
    return best[3:].view(shape), best[:3]


def scores(x: Array, y: Array, split: int, by_test: bool) -> tuple[float, float]:
    """Negative log likelihood and RMSE of a test row, in original units."""
    order = np.random.RandomState(split).permutation(len(x))
    train, test = np.split(order, [int(0.9 * len(x))])
    scaled = []
    for values in (x, y[:, None]):
        scale = values[test if by_test else train].std(0) + 1e-6
        scaled.append(((values - values[train].mean(0)) / scale, scale))
    (inputs, _), (targets, (scale,)) = scaled
    start = kmeans2(inputs[train], INDUCING, minit="points", seed=split)[0]
    xs, ys = torch.tensor(inputs[train]), torch.tensor(targets[train, 0])
    z, log = fitted(xs, ys, start)
    with torch.no_grad():
        chol, _, inner, c = factors(xs, ys, z, log)
        row = torch.linalg.solve_triangular(chol, covariance(z, torch.tensor(inputs[test]), log), upper=False)
        half = torch.linalg.solve_triangular(inner, row, upper=False)
        mean = (half.T @ c)[:, 0].numpy()
        variance = (log[1].exp() + log[2].exp() - row.square().sum(0) + half.square().sum(0)).numpy()
    error = targets[test, 0] - mean
    nll = 0.5 * (np.log(2 * math.pi * variance) + error**2 / variance) + math.log(scale)
    return float(nll.mean()), float(scale * np.sqrt(np.mean(error**2)))


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    released = pd.read_csv(RELEASED).set_index(["dataset", "split"])
    print("scaled by, rms of ours - theirs and correlation: nll (nats), RMSE")
    for name in sys.argv[1:] or ["boston", "concrete"]:
        theirs = released.loc[name].loc[: SPLITS - 1].dropna()
        x, y = rows(name)
        for by_test in (False, True):
            ours = np.array([scores(x, y[:, 0], split, by_test) for split in theirs.index])
            line = [
                f"{np.sqrt(np.mean((mine - other) ** 2)):.3f} {np.corrcoef(mine, other)[0, 1]:.2f}"
                for mine, other in zip(ours.T, theirs[["mnll", "rmse"]].to_numpy().T, strict=True)
            ]
            print(f"{name:10s} {'test' if by_test else 'training'} part  {line[0]}  {line[1]}", flush=True)


if __name__ == "__main__":
    main()
