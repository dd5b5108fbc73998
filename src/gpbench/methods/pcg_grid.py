"""Preconditioned conjugate gradients on a grid of lengthscales and noise variances (cutajar2016, figure 1).

System     K_y z = y, K_y = K + lambda I, K_ij = sigma^2 exp(-1/2 |x_i - x_j|^2 / l^2), one for each pair (l, lambda)
Solver     conjugate gradients with a preconditioner P, until |y - K_y z| <= epsilon, epsilon^2 = 1e-10 n, or the cap
Measured   iterations, those of solvers within P (`inner`), products of K_y with a vector (P's own too), seconds of the
           processor to set P up and to solve, the residual per row |y - K_y z| / sqrt(n), and whether it was stopped

Inducing points are random rows, drawn anew for each system. Of at most `most_stored` rows K_y is kept, as in the
paper's runs; of more, products are matrix-free.
"""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import kernels
from gpbench.hyper import PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods.systems import SolveMethod, Stored, capped, some_rows
from gpbench.solvers import preconditioners
from gpbench.solvers.conjugate_gradients import solve
from gpbench.solvers.preconditioners import Preconditioner
from gpbench.solvers.products import KernelProduct
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """rank: of the preconditioner, null is sqrt(n); lengthscale_low, lengthscale_high, noise_low, noise_high: ends of
    the grid, powers of 10, in units of scaled inputs and targets; accuracy: epsilon / sqrt(n); cap: of the iterations,
    inner ones too; subset: so many random rows, null for all; most_stored: rows of which all of K_y is kept, 8 n^2
    bytes (faster on a GPU)."""

    preconditioner: Literal[
        Literal["none", "nystrom", "fitc", "pitc", "spectral", "partial_svd"],
        Literal["pivoted_cholesky", "ski", "block_jacobi", "regularised"],
    ] = "none"
    rank: PositiveInt | None = None
    outputscale: PositiveFloat = 1.0
    lengthscale_low: float = -3.0
    lengthscale_high: float = 2.0
    lengthscale_points: PositiveInt = 6
    noise_low: float = -6.0
    noise_high: float = 0.0
    noise_points: PositiveInt = 7
    accuracy: PositiveFloat = 1e-5
    cap: PositiveInt = 100_000
    subset: PositiveInt | None = None
    most_stored: PositiveInt = 5_000

    def impossible(self, task: str) -> str:
        if self.lengthscale_low > self.lengthscale_high or self.noise_low > self.noise_high:
            return "the grid needs lengthscale_low <= lengthscale_high and noise_low <= noise_high"
        return ""


class Method(SolveMethod):
    hyper: Hyperparameters

    def grid(self) -> list[tuple[float, float]]:
        """(l, lambda) of every system."""
        hyper = self.hyper
        lengthscales = np.logspace(hyper.lengthscale_low, hyper.lengthscale_high, hyper.lengthscale_points)
        noises = np.logspace(hyper.noise_low, hyper.noise_high, hyper.noise_points)
        return [(float(lengthscale), float(noise)) for lengthscale in lengthscales for noise in noises]

    def count(self) -> int:
        return len(self.grid())

    def measure(self, x: Tensor, y: Tensor, number: int, key: Key) -> dict[str, float]:
        hyper, (lengthscale, noise) = self.hyper, self.grid()[number]
        x, y = some_rows(x, y, hyper.subset, key)
        values = {"lengthscale": x.new_full((1,), lengthscale), "outputscale": x.new_tensor(hyper.outputscale)}
        n, kept = len(x), len(x) <= hyper.most_stored
        product = (Stored if kept else KernelProduct)(kernels.Kernel("rbf", values), x, noise)
        started = time.process_time()
        precondition = self.preconditioner(product, streams.generator(key, "init", 1 + number, x.device))
        ready = time.process_time()
        solution = solve(
            product,
            y[:, None],
            precondition=precondition,
            tolerance=hyper.accuracy * n**0.5,
            cap=hyper.cap,
            flexible=precondition is not None and precondition.flexible,
            watch=capped(precondition, hyper.cap),
        )
        return {
            "lengthscale": lengthscale,
            "noise": noise,
            "rows": n,
            "iterations": int(solution.iterations),
            "inner": precondition.inner if precondition else 0,
            "products": product.products,
            "setup_seconds": ready - started,
            "solve_seconds": time.process_time() - ready,
            "residual": float(solution.residual) / n**0.5,
            "stopped": int(not solution.converged),
        }

    def preconditioner(self, product: KernelProduct, generator: torch.Generator) -> Preconditioner | None:
        hyper = self.hyper
        if hyper.preconditioner == "none":
            return None
        return preconditioners.build(hyper.preconditioner, product, hyper.rank or round(product.n**0.5), generator)
