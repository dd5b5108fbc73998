"""Conjugate gradients and ULISSE on systems drawn from a prior (filippone2015, figures 1 to 4).

System     K s = y, K_ij = sigma exp(-tau |x_i - x_j|^2) + lambda delta_ij; sigma, tau, lambda ~ Gamma(shape, rate)
Solver     conjugate gradients, double or single precision, until |y - K s| <= 1e-8 or for 10 n iterations; those with
           the preconditioner K + delta I, solved by inner ones; ULISSE from residual q sqrt(n) on, w_r = exp(beta r)
Gradient   g_i = -1/2 tr(K^-1 dK/dtheta_i) + 1/2 y^T K^-1 dK/dtheta_i K^-1 y, estimated with one probe r of signs,
           -1/2 (K^-1 r)^T dK/dtheta_i r + 1/2 a_1^T dK/dtheta_i a_2, by two independent estimates a_1, a_2 of K^-1 y
Measured   kappa, the largest eigenvalue over the smallest; iterations for y, and inner ones; error |s - s_Cholesky|;
           over repetitions the mean standard deviation of an element of s, and the mean of log10 |g - g~|^2 / |g|^2
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.errors import UserError
from gpbench.gp import kernels
from gpbench.hyper import NonNegativeInt, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods.systems import SolveMethod, Stored, capped, some_rows
from gpbench.solvers import preconditioners, ulisse
from gpbench.solvers.conjugate_gradients import solve
from gpbench.solvers.quadrature import rademacher
from gpbench.streams import Key

TOLERANCE = 1e-8
SOLVABLE, MOST_DRAWS = (1e1, 1e10), 100
"""Condition numbers of systems that are solved, and draws of the prior among which there must be one."""


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """solver: none draws condition numbers only; draws: systems; repetitions: of ULISSE's random numbers and of the
    gradient's probe, 0 measures neither; cap_per_row: iterations; subset: so many random rows, null for all."""

    solver: Literal["none", "cg", "regularised", "ulisse"] = "cg"
    precision: Literal["double", "single"] = "double"
    q: PositiveFloat = 1.0
    beta: PositiveFloat = 1.0
    shape: PositiveFloat = 1.0
    rate: PositiveFloat = 1.0
    draws: PositiveInt = 200
    repetitions: NonNegativeInt = 100
    cap_per_row: PositiveInt = 10
    subset: PositiveInt | None = None

    def impossible(self, task: str) -> str:
        return "solver ulisse needs repetitions" if self.solver == "ulisse" and not self.repetitions else ""


class Method(SolveMethod):
    hyper: Hyperparameters

    def count(self) -> int:
        return self.hyper.draws

    @torch.no_grad()
    def measure(self, x: Tensor, y: Tensor, number: int, key: Key) -> dict[str, float]:
        hyper, rng = self.hyper, streams.rng(key, "init", 1 + number)
        x, y = some_rows(x, y, hyper.subset, key)
        product, k, found = self.draw(x, rng)
        if hyper.solver == "none":
            return found | {"iterations": 0, "stopped": 0}
        exact = torch.cholesky_solve(y[:, None], torch.linalg.cholesky(k))
        uniform = torch.as_tensor(rng.random((3, hyper.repetitions))).to(x)
        of_y, counted = self.estimate(product, y[:, None], uniform[:2].flatten())
        found |= counted | {"error": float((of_y - exact).norm(dim=0).mean())}
        if hyper.repetitions == 0:
            return found
        probes = rademacher(len(x), hyper.repetitions, streams.generator(key, "noise", 1 + number, x.device)).to(x)
        of_probes, _ = self.estimate(product, probes, uniform[2])
        of_y = of_y.expand(-1, 2 * hyper.repetitions)  # two independent ones a repetition
        slopes = derivatives(k, x, found["sigma"], found["lambda"])
        gradient = -0.5 * traces(k, slopes)[:, None] + 0.5 * forms(exact, slopes, exact)
        first, second = of_y.chunk(2, 1)
        estimated = -0.5 * forms(of_probes, slopes, probes) + 0.5 * forms(first, slopes, second)
        relative = (estimated - gradient).square().sum(0) / gradient.square().sum()  # |g - g~|^2 / |g|^2
        return found | {"sd": float(of_y.std(1).mean()), "gradient_error": float(relative.log10().mean())}

    def draw(self, x: Tensor, rng: np.random.Generator) -> tuple[Stored, Tensor, dict[str, float]]:
        """Product with a K of the prior, K `[n, n]`, its numbers; for a solver `SOLVABLE`, UserError if none is."""
        hyper, dtype = self.hyper, torch.float32 if self.hyper.precision == "single" else torch.float64
        for _ in range(MOST_DRAWS):
            sigma, tau, noise = rng.gamma(hyper.shape, 1 / hyper.rate, 3)
            values = {"lengthscale": x.new_full((1,), (2 * tau) ** -0.5), "outputscale": x.new_tensor(sigma)}
            product = Stored(kernels.Kernel("rbf", values), x, noise, dtype)
            k = product.rows(slice(None))
            eigenvalues = torch.linalg.eigvalsh(k)
            # rounding may leave one below the noise, which is the least
            kappa = float(eigenvalues[-1] / eigenvalues[0].clamp_min(noise))
            if hyper.solver == "none" or SOLVABLE[0] <= kappa <= SOLVABLE[1]:
                return product, k, {"sigma": sigma, "tau": tau, "lambda": noise, "kappa": kappa}
        few = f"no system of {len(x)} rows in {MOST_DRAWS} draws has a condition number in {SOLVABLE}"
        raise UserError(f"cg_prior: {few}; take more rows or another prior")

    def estimate(self, product: Stored, b: Tensor, uniform: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Solutions of K s = b `[n, c]` by the solver, of ULISSE an estimate for each number of `uniform` `[a]` (all of
        a single b, or one of each), and the iterations of all of them for the first b."""
        hyper, cap = self.hyper, self.hyper.cap_per_row * len(b)
        if hyper.solver == "ulisse":
            columns = torch.arange(len(uniform)).to(b.device).clamp_max(b.shape[1] - 1)
            weight, threshold = ulisse.exponential(hyper.beta), hyper.q * len(b) ** 0.5
            estimator = ulisse.Ulisse(weight, threshold, uniform, columns, torch.zeros_like(b))
            solution = solve(product, b, watch=estimator, tolerance=TOLERANCE, cap=cap)
            iterations = int(solution.iterations[0])
            return estimator.estimates, {"iterations": iterations, "inner": 0, "stopped": int(iterations == cap)}
        within = preconditioners.Regularised(product) if hyper.solver == "regularised" else None
        watch, flexible = capped(within, cap), within is not None
        solution = solve(product, b, precondition=within, tolerance=TOLERANCE, cap=cap, flexible=flexible, watch=watch)
        iterations, stopped = int(solution.iterations[0]), int(not solution.converged[0])
        return solution.x, {"iterations": iterations, "inner": within.inner if within else 0, "stopped": stopped}


def derivatives(k: Tensor, x: Tensor, sigma: float, noise: float) -> list[Tensor]:
    """dK/d(sigma, tau, lambda) `[n, n]` each: E, -sigma D o E and I, D of squared distances (the paper's sign of tau in
    K = sigma E + lambda I is a misprint)."""
    identity = torch.eye(len(k)).to(k)
    smooth = k - noise * identity
    return [smooth / sigma, -torch.cdist(x, x).square() * smooth, identity]


def forms(left: Tensor, slopes: list[Tensor], right: Tensor) -> Tensor:
    """left_c^T dK/dtheta_i right_c `[3, c]`."""
    return torch.stack([(left * (slope @ right)).sum(0) for slope in slopes])


def traces(k: Tensor, slopes: list[Tensor]) -> Tensor:
    """tr(K^-1 dK/dtheta_i) `[3]`."""
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(k))
    return torch.stack([(inverse * slope).sum() for slope in slopes])
