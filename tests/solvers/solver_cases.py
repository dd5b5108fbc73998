"""Small kernel systems for the tests of the solvers: of a regression, and B of a Laplace approximation."""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.gp.kernels import Kernel
from gpbench.solvers.products import KernelProduct

SYSTEMS = ("regression", "laplace")


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel(formula: str = "rbf", width: int = 3) -> Kernel:
    """With lengthscales 1, 1.5, 2, ... and outputscale 1.3."""
    lengthscale = 1 + 0.5 * torch.arange(width, dtype=torch.float64)
    values = {"lengthscale": lengthscale, "outputscale": torch.tensor(1.3, dtype=torch.float64)}
    if formula == "matern52 + linear":
        values |= {f"part2.{name}": value.clone() for name, value in values.items()}
    return Kernel(formula, values)


def system(
    kind: str = "regression", n: int = 150, tile: tuple[int, int] = (32, 64), formula: str = "rbf"
) -> KernelProduct:
    """Rows by rows of unlike tiles; noise that differs by row, or 1 and a scale."""
    x = normals(n, 3)
    if kind == "regression":
        return KernelProduct(kernel(formula), x, 0.05 + 0.05 * torch.rand(n, generator=seeded(7)).double(), tile=tile)
    return KernelProduct(kernel(formula), x, 1.0, torch.rand(n, generator=seeded(8)).double(), tile=tile)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dense(product: KernelProduct, kernel: Kernel | None = None, noise: Tensor | None = None) -> Tensor:
    """S K S + diag(noise) `[n, n]` by its definition; kernel and noise: to be differentiated in."""
    k = (kernel or product.kernel).covariance(product.x, product.x)
    s = torch.ones_like(product.noise) if product.scale is None else product.scale
    return s[:, None] * k * s + (product.noise if noise is None else noise).diag()
