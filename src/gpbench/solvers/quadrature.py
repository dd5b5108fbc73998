"""Stochastic estimates of traces and log determinants (Hutchinson; Golub and Meurant's quadrature by Lanczos).

    tr M        = E[r^T M r],  r of independent signs
    log |A|     = E[z^T log(A) z],  z^T log(A) z ~ |z|^2 sum_k tau_k^2 log theta_k

theta and tau: eigenvalues, and first components of eigenvectors, of the Lanczos matrix T of A from z, which conjugate
gradients leave behind: T_ii = 1 / alpha_i + beta_i-1 / alpha_i-1, T_i,i+1 = sqrt(beta_i) / alpha_i. With a
preconditioner P it is that of P^-1/2 A P^-1/2 from P^-1/2 z, with z^T P^-1 z for |z|^2: then the z have covariance P
(`precondition.probes`), and log |P| is added.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import torch
from torch import Tensor

from gpbench.solvers.conjugate_gradients import Product, Solution, solve


class Factored(Protocol):
    """A preconditioner that one can draw from."""

    def __call__(self, r: Tensor) -> Tensor: ...

    def log_determinant(self) -> Tensor: ...


def seeded(normal: Tensor) -> torch.Generator:
    """A generator on the device of a standard normal `[1]`, out of a step's noise, that seeds it."""
    digest = hashlib.sha256(normal.cpu().numpy().tobytes()).digest()
    return torch.Generator(normal.device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def rademacher(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Independent signs `[n, count]`, 1 or -1, float64 on the device of the generator."""
    signs = torch.randint(0, 2, (n, count), generator=generator, device=generator.device)
    return (2 * signs - 1).to(torch.float64)


def log_determinant(
    product: Product, probes: Tensor, steps: int, precondition: Factored | None = None
) -> tuple[Tensor, Tensor]:
    """log |A| in nats and its standard error over the probes `[n, c]`, by so many steps of Lanczos a probe."""
    solution = solve(product, probes, precondition=precondition, tolerance=0.0, cap=steps)
    values = log_quadratics(solution, probes, precondition)
    return values.mean(), values.std() / len(values) ** 0.5


def log_quadratics(solution: Solution, probes: Tensor, precondition: Factored | None = None) -> Tensor:
    """The estimate of log |A| that each probe gives `[c]`, from the systems A^-1 probes, solved from 0."""
    weight = (probes * (probes if precondition is None else precondition(probes))).sum(0)
    both = zip(solution.alpha.unbind(1), solution.beta.unbind(1), strict=True)
    values = weight * torch.stack([_log_moment(alpha, beta) for alpha, beta in both])
    return values if precondition is None else values + precondition.log_determinant()


def _log_moment(alpha: Tensor, beta: Tensor) -> Tensor:
    """sum_k tau_k^2 log theta_k of the coefficients of a column `[i]`, NaN after its end."""
    kept = (alpha > 0).cumprod(0).bool()
    if not bool(kept.any()):
        return alpha.new_full((), torch.nan)
    alpha, beta = alpha[kept], beta[kept]
    diagonal, off = 1 / alpha, beta[:-1].clamp_min(0.0).sqrt() / alpha[:-1]
    diagonal[1:] += beta[:-1] / alpha[:-1]
    theta, vectors = torch.linalg.eigh(diagonal.diag() + off.diag(1) + off.diag(-1))
    # rounding may leave an eigenvalue that should be small below 0
    return (vectors[0].square() * theta.clamp_min(torch.finfo(theta.dtype).tiny).log()).sum()
