"""Coordinates w, f = A w, in which Hamiltonian dynamics with unit mass move latent values; on f the mass is (A A^T)^-1.

    Identity        A = I
    Whitened        A = L, so that w = nu = L^-1 f
    Preconditioned  A = L L_B^-T, L_B L_B^T = B = I + L^T C L, so that A A^T = (K^-1 + C)^-1

for f `[R, n]` with the factor L `[R, n, n]` of K, or m functions f `[R, m, n]` with factors `[R, m, n, n]` and L_B
`[R, m n, m n]` of all of them together. Each object is the log density

    log p(y | f) - |nu|^2/2     (constants are left out)

as a function of positions w `[R, n]` or `[R, m n]`, in the form that `gpbench.sampling.hmc` takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from gpbench.gp.linalg import multiply, solve, solve_transposed
from gpbench.sampling import hmc

if TYPE_CHECKING:
    from gpbench.sampling.latent import model, multinomial

    Model = model.Model | multinomial.Model


class Identity:
    """Positions are f itself."""

    def __init__(self, model: Model, chol: Tensor) -> None:
        self.model, self.chol = model, chol
        self.quadratic = 2 * chol.shape[1:-2].numel()  # O(n^2) operations at a point

    def position(self, f: Tensor) -> Tensor:
        """w of f."""
        return f.flatten(1)

    def latents(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """f and nu of w."""
        f = w.reshape(self.chol.shape[:-1])
        return f, solve(self.chol, f)

    def pulled(self, slope: Tensor, nu: Tensor) -> Tensor:
        """Gradient with respect to w, from d log p(y | f) / df: slope - L^-T nu."""
        return (slope - solve_transposed(self.chol, nu)).flatten(1)

    def __call__(self, w: Tensor) -> hmc.Point:
        f, nu = self.latents(w)
        value = self.model.log_lik(f) - 0.5 * nu.flatten(1).square().sum(1)
        return hmc.Point(w, value, self.pulled(self.model.gradient(f), nu))


class Whitened(Identity):
    """Positions are nu."""

    def position(self, f: Tensor) -> Tensor:
        return solve(self.chol, f).flatten(1)

    def latents(self, w: Tensor) -> tuple[Tensor, Tensor]:
        nu = w.reshape(self.chol.shape[:-1])
        return multiply(self.chol, nu), nu

    def pulled(self, slope: Tensor, nu: Tensor) -> Tensor:
        """L^T slope - nu."""
        return (multiply(self.chol.mT, slope) - nu).flatten(1)


class Preconditioned(Whitened):
    """Positions are L_B^T nu; root: L_B."""

    def __init__(self, model: Model, chol: Tensor, root: Tensor) -> None:
        super().__init__(model, chol)
        self.root = root
        self.quadratic += 2 * chol.shape[1:-2].numel() ** 2

    def position(self, f: Tensor) -> Tensor:
        return multiply(self.root.mT, super().position(f))

    def latents(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return super().latents(solve_transposed(self.root, w))

    def pulled(self, slope: Tensor, nu: Tensor) -> Tensor:
        """L_B^-1 (L^T slope - nu)."""
        return solve(self.root, super().pulled(slope, nu))
