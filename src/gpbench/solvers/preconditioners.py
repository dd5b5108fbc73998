"""Preconditioners P of A = S K S + N, N = diag(noise) (cutajar2016, section 3), built by name.

    nystrom             Q + N                       Q = S K_XU K_UU^-1 K_UX S, U a random subset of the inputs
    fitc                Q + diag(S K S - Q) + N
    pitc                Q + bldiag(S K S - Q) + N   sqrt(n) blocks of rows that lie together
    spectral            Phi Phi^T + N               Phi random features of S K S
    partial_svd         V E V^T + N                 E the largest eigenvalues of S K S, by a random projection
    pivoted_cholesky    C C^T + N                   C columns of the pivoted Cholesky factor of S K S
    ski                 S W K_GG W^T S + N          W the nearest node of a grid
    block_jacobi        bldiag(S K S) + N           (the paper prints bldiag(K_y) + lambda I, the noise twice)
    regularised         A + 100 mean(noise) I
    none                I

All but `ski` and `regularised` are D + Phi Phi^T, D diagonal or in blocks, and

    P^-1 r = D^-1 r - D^-1 Phi (I + Phi^T D^-1 Phi)^-1 Phi^T D^-1 r.

`ski` and `regularised` are applied by conjugate gradients, whose products `inner` counts; the outer ones must then be
`flexible`. (The paper prints K_UU for lambda K_UU and I for lambda I in the preconditioners nystrom and spectral.)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gpbench.errors import UserError, unknown
from gpbench.gp import cross_approximation, features, linalg
from gpbench.solvers import blocks
from gpbench.solvers.conjugate_gradients import Product, solve
from gpbench.solvers.products import KernelProduct
from gpbench.solvers.quadrature import rademacher

JITTER = 1e-8
"""Of K_UU, relative to its mean diagonal."""
OVERSAMPLING, POWER_STEPS = 10, 1
"""Of the random projection of `partial_svd`."""
INNER_TOLERANCE = 1e-6
"""Residual at which inner conjugate gradients end, relative to what they are applied to."""
SHIFT = 100.0
"""delta of `regularised`, in means of the noise."""
MOST_NODES = 2**22
"""Of the grid of `ski`."""


class Preconditioner(ABC):
    """r `[n, c]` -> P^-1 r `[n, c]`; `inner` counts the products of its own iterations, one a column; flexible: whether
    the outer iterations must be."""

    inner = 0
    flexible = False

    @abstractmethod
    def __call__(self, r: Tensor) -> Tensor: ...

    @abstractmethod
    def dense(self) -> Tensor:
        """P `[n, n]`."""


class Factored(Preconditioner):
    """P with a determinant and a root R, P = R R^T."""

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """log |P| in nats."""

    @abstractmethod
    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        """R times independent signs `[n, count]`, of covariance P."""


class Diagonal(Factored):
    """P = diag(d), d `[n]`."""

    def __init__(self, d: Tensor) -> None:
        self.d = d

    def __call__(self, r: Tensor) -> Tensor:
        return r / self.d[:, None]

    def dense(self) -> Tensor:
        return self.d.diag()

    def log_determinant(self) -> Tensor:
        return self.d.log().sum()

    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        return self.d.sqrt()[:, None] * rademacher(len(self.d), count, generator).to(self.d)


class Blocks(Factored):
    """P = bldiag(A_1, ..., A_b): index `[b, s]` of rows as `blocks.partition` has it, matrices `[b, s, s]`."""

    def __init__(self, index: Tensor, matrices: Tensor, n: int) -> None:
        self.index, self.n = index, n
        exists = index < n
        both = exists[:, :, None] & exists[:, None, :]
        # the identity where a block has no row
        self.matrices = torch.where(both, matrices, torch.eye(index.shape[1]).to(matrices))
        self.chol = linalg.cholesky(self.matrices[:, None], "blocks of a preconditioner")[:, 0]

    def __call__(self, r: Tensor) -> Tensor:
        return blocks.put(torch.cholesky_solve(blocks.take(r, self.index), self.chol), self.index, self.n)

    def dense(self) -> Tensor:
        dense = self.matrices.new_zeros(self.n + 1, self.n + 1)
        dense[self.index[:, :, None], self.index[:, None, :]] = self.matrices
        return dense[: self.n, : self.n]

    def log_determinant(self) -> Tensor:
        return 2 * linalg.half_log_det(self.chol).sum()

    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        signs = rademacher(self.n, count, generator).to(self.chol)
        return blocks.put(self.chol @ blocks.take(signs, self.index), self.index, self.n)


class LowRank(Factored):
    """P = D + Phi Phi^T, Phi `[n, m]`, in O(n m) and what D takes, after O(n m^2)."""

    def __init__(self, base: Factored, phi: Tensor) -> None:
        self.base, self.phi, self.solved = base, phi, base(phi)  # D, Phi, D^-1 Phi
        inner = torch.eye(phi.shape[1]).to(phi) + phi.mT @ self.solved
        self.chol = linalg.cholesky(inner[None], "preconditioner")[0]

    def __call__(self, r: Tensor) -> Tensor:
        return self.base(r) - self.solved @ torch.cholesky_solve(self.solved.mT @ r, self.chol)

    def dense(self) -> Tensor:
        return self.base.dense() + self.phi @ self.phi.mT

    def log_determinant(self) -> Tensor:
        return self.base.log_determinant() + 2 * linalg.half_log_det(self.chol)

    def probes(self, count: int, generator: torch.Generator) -> Tensor:
        signs = rademacher(self.phi.shape[1], count, generator).to(self.phi)
        return self.base.probes(count, generator) + self.phi @ signs


class Inner(Preconditioner):
    """P^-1 by conjugate gradients on a product with P."""

    flexible = True

    def __init__(self, product: Product, n: int) -> None:
        self.product, self.n = product, n

    def __call__(self, r: Tensor) -> Tensor:
        solution = solve(self.product, r, tolerance=INNER_TOLERANCE * r.norm(dim=0), cap=10 * self.n)
        self.inner += solution.products
        return solution.x


def nystrom(product: KernelProduct, rank: int, generator: torch.Generator) -> Factored:
    return LowRank(Diagonal(product.noise), subset_features(product, rank, generator))


def fitc(product: KernelProduct, rank: int, generator: torch.Generator) -> Factored:
    phi = subset_features(product, rank, generator)
    left = (product.diagonal() - product.noise - phi.square().sum(1)).clamp_min(0.0)
    return LowRank(Diagonal(left + product.noise), phi)


def pitc(product: KernelProduct, rank: int, generator: torch.Generator) -> Factored:
    phi = subset_features(product, rank, generator)
    index, matrices = diagonal_blocks(product)
    of_block = blocks.take(phi, index)
    return LowRank(Blocks(index, matrices - of_block @ of_block.mT, product.n), phi)


def spectral(product: KernelProduct, rank: int, generator: torch.Generator) -> Factored:
    """Of `rank` frequencies, whose features are cosines and sines."""
    x, kernel = product.x, product.kernel.map(lambda value: value[None])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=x.dtype, device=x.device)

    phi = features.draw(kernel, x.shape[1], rank, normal)(x[None])[0]
    return LowRank(Diagonal(product.noise), scaled(product, phi))


def partial_svd(product: KernelProduct, rank: int, generator: torch.Generator) -> Factored:
    """Three products with rank + 10 columns: the range, a power step, and the projection."""
    size = min(rank + OVERSAMPLING, product.n)

    def smooth(v: Tensor) -> Tensor:
        return product(v) - product.noise[:, None] * v

    basis = rademacher(product.n, size, generator).to(product.x)
    for _ in range(1 + POWER_STEPS):
        basis, _ = torch.linalg.qr(smooth(basis))
    values, vectors = torch.linalg.eigh(basis.mT @ smooth(basis))  # the largest come last
    phi = (basis @ vectors * values.clamp_min(0.0).sqrt())[:, -min(rank, size) :]
    return LowRank(Diagonal(product.noise), phi)


def pivoted_cholesky(product: KernelProduct, rank: int, generator: torch.Generator) -> Factored:
    def column(pivot: Tensor) -> Tensor:
        return product.cross(pivot[None], slice(None))[0]

    _, phi, _ = cross_approximation.pivots(column, product.diagonal() - product.noise, min(rank, product.n))
    return LowRank(Diagonal(product.noise), phi)


def block_jacobi(product: KernelProduct, rank: int, generator: torch.Generator) -> Factored:
    return Blocks(*diagonal_blocks(product), product.n)


class Regularised(Inner):
    """P = A + delta I."""

    def __init__(self, product: KernelProduct) -> None:
        self.delta = SHIFT * product.noise.mean()
        self.kernel_product = product
        super().__init__(lambda v: product(v) + self.delta * v, product.n)

    def dense(self) -> Tensor:
        return self.kernel_product.rows(slice(None)) + self.delta * torch.eye(self.n).to(self.delta)


class Interpolated(Inner):
    """P = S W K_GG W^T S + N: G a regular grid with g nodes an input, g^(d + 1) = n^(3/2) so that a product costs what
    one with n^(3/2) numbers does, W the nearest node of each row, K_GG a Kronecker product of an RBF kernel."""

    def __init__(self, product: KernelProduct) -> None:
        x, kernel, (n, d) = product.x, product.kernel, product.x.shape
        self.size = max(2, int(n ** (1.5 / (d + 1))))
        if kernel.formula != "rbf" or self.size**d > MOST_NODES:
            raise UserError(
                f"preconditioner ski needs kernel rbf and a grid of at most {MOST_NODES} nodes, not {kernel.formula} "
                f"and {self.size}^{d}; leave it out"
            )
        low, width = x.amin(0), (x.amax(0) - x.amin(0)).clamp_min(torch.finfo(x.dtype).tiny)
        steps = torch.linspace(0, 1, self.size, dtype=x.dtype, device=x.device)
        nodes = (steps * (width / kernel.lengthscale)[:, None])[..., None]  # in lengthscales [d, g, 1]
        self.factors = (-0.5 * (nodes - nodes.mT).square()).exp()  # [d, g, g]
        place = ((x - low) / width * (self.size - 1)).round().long()
        self.node = (place * self.size ** torch.arange(d - 1, -1, -1, device=x.device)).sum(1)
        self.outputscale, self.noise, self.kernel_product = kernel.outputscale, product.noise, product
        super().__init__(self.multiply, n)

    def multiply(self, v: Tensor) -> Tensor:
        """P v `[n, c]`."""
        d, c = len(self.factors), v.shape[1]
        on_grid = v.new_zeros(self.size**d, c).index_add_(0, self.node, scaled(self.kernel_product, v))
        for factor in self.factors:  # an input after the other, each to the end of the axes
            on_grid = (factor @ on_grid.view(self.size, -1)).view(self.size, -1, c).transpose(0, 1).reshape(-1, c)
        smooth = self.outputscale * scaled(self.kernel_product, on_grid[self.node])
        return smooth + self.noise[:, None] * v

    def dense(self) -> Tensor:
        return self.multiply(torch.eye(self.n).to(self.noise))


def scaled(product: KernelProduct, values: Tensor) -> Tensor:
    """S values `[n, c]`."""
    return values if product.scale is None else product.scale[:, None] * values


def subset_features(product: KernelProduct, rank: int, generator: torch.Generator) -> Tensor:
    """Phi = S K_XU L^-T `[n, m]`, L L^T = K_UU, so that Q = Phi Phi^T; U: `rank` inputs, at most all."""
    kernel, x = product.kernel, product.x
    u = x[torch.randperm(product.n, generator=generator, device=generator.device)[:rank].to(x.device)]
    inner = kernel.covariance(u, u, product.centre)
    jitter = JITTER * inner.diagonal().mean()
    chol = linalg.cholesky(inner[None], "inputs of a preconditioner", jitter[None])[0]
    cross = kernel.covariance(x, u, product.centre)
    return scaled(product, torch.linalg.solve_triangular(chol.mT, cross, upper=True, left=False))


def diagonal_blocks(product: KernelProduct) -> tuple[Tensor, Tensor]:
    """sqrt(n) blocks of rows `[b, s]` that lie together in lengthscales, and those of A `[b, s, s]`."""
    index = blocks.partition(product.x / product.kernel.lengthscale, max(1, math.isqrt(product.n)))
    x = blocks.take(product.x, index)
    k = product.kernel.covariance(x, x, product.centre)
    if product.scale is not None:
        s = blocks.take(product.scale[:, None], index)
        k = s * k * s.mT
    return index, k + blocks.take(product.noise[:, None], index)[..., 0].diag_embed()


BUILD: dict[str, Callable[[KernelProduct, int, torch.Generator], Preconditioner]] = {
    "nystrom": nystrom,
    "fitc": fitc,
    "pitc": pitc,
    "spectral": spectral,
    "partial_svd": partial_svd,
    "pivoted_cholesky": pivoted_cholesky,
    "ski": lambda product, rank, generator: Interpolated(product),
    "block_jacobi": block_jacobi,
    "regularised": lambda product, rank, generator: Regularised(product),
    "none": lambda product, rank, generator: Diagonal(torch.ones_like(product.noise)),
}


def build(name: str, product: KernelProduct, rank: int, generator: torch.Generator) -> Preconditioner:
    """The preconditioner of a name; rank: inducing inputs, eigenvalues or pivots (at most n), or frequencies (none
    in ski, block_jacobi, regularised and none). UserError for an unknown name, and for a grid that is too large."""
    if name not in BUILD:
        raise unknown("preconditioner", name, BUILD)
    if not product.is_finite():  # whose decompositions may raise; this way the systems are not finite either
        return Diagonal(product.noise * torch.nan)
    return BUILD[name](product, rank, generator)
