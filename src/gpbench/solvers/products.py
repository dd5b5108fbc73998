"""Products of kernel matrices with vectors, matrix-free.

    A = S K S + diag(noise),  K = k(X, X),  S = diag(scale)

of n rows: with S = I the covariance K_y of a regression, with S = W^1/2 and noise 1 the matrix B of a Laplace
approximation. A is symmetric: of its tiles those above the diagonal are formed, used for both triangles and dropped, so
that memory is O(n c + tile^2) for c vectors, which share the tiles. The sheet's surrogate of a gradient is `bilinear`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gpbench.gp import kernels
from gpbench.gp.kernels import Kernel

TILE = 512
"""Rows and columns of a tile: 2 MB in float64, which stays in the cache."""


class KernelProduct:
    """v -> (S K S + diag(noise)) v for v `[n, c]`; `products` counts the columns.

    kernel: of one replica, its values without the replica axis (`Kernel.map(lambda value: value[r])`); x `[n, D]`;
    noise a number or `[n]` (units of f squared); scale `[n]`: the diagonal of S, None for I; tile: rows of a block.
    """

    def __init__(
        self, kernel: Kernel, x: Tensor, noise: Tensor | float, scale: Tensor | None = None, tile: int = TILE
    ) -> None:
        self.x, self.n, self.tile, self.scale = x, len(x), tile, scale
        noise = torch.as_tensor(noise, dtype=x.dtype, device=x.device).expand(len(x))
        self.kernel, self.noise = kernel.map(Tensor.detach), noise.detach()
        self._differentiable = kernel, noise
        self.products = 0
        self.centre = x.mean(0, keepdim=True)

    def __call__(self, v: Tensor) -> Tensor:
        """A v `[n, c]`, O(n^2 (D + c))."""
        self.products += v.shape[1]
        scaled = v if self.scale is None else self.scale[:, None] * v
        out = torch.zeros_like(scaled)
        tile = self._tiles()
        for rows, columns in self._upper():
            k = tile(rows, columns)
            out[rows].addmm_(k, scaled[columns])
            if rows != columns:
                out[columns].addmm_(k.mT, scaled[rows])
        return torch.addcmul(out if self.scale is None else self.scale[:, None] * out, self.noise[:, None], v)

    def is_finite(self) -> bool:
        """Whether all that A is made of is."""
        parts = [self.x, self.noise, *self.kernel.values.values(), *([] if self.scale is None else [self.scale])]
        return all(bool(part.isfinite().all()) for part in parts)

    def diagonal(self) -> Tensor:
        """Of A `[n]`."""
        variance = self.kernel.diagonal(self.x)
        return (variance if self.scale is None else self.scale.square() * variance) + self.noise

    def rows(self, index: Tensor | slice) -> Tensor:
        """A[index] `[b, n]`, not counted: all rows are one product."""
        rows = self.cross(index, slice(None))
        rows[torch.arange(len(rows)), torch.arange(self.n, device=self.x.device)[index]] += self.noise[index]
        return rows

    def cross(self, index: Tensor | slice, others: Tensor | slice) -> Tensor:
        """(S K S)[index, others] `[b, m]`, without noise."""
        k = self.kernel.covariance(self.x[index], self.x[others], self.centre)
        return k if self.scale is None else self.scale[index, None] * k * self.scale[others]

    def bilinear(self, left: Tensor, right: Tensor) -> Tensor:
        """sum_c left_c^T A right_c, differentiable in the values of the kernel and the noise; left, right `[n, c]`.

        Its gradient is taken tile by tile and no tile is kept. Where left and right are solutions of systems with A,
        held fixed, it is the surrogate whose gradient is that of a quadratic form or of a trace."""
        (_, values), noise = self._differentiable
        total: Tensor = _Bilinear.apply(self, left.detach(), right.detach(), list(values), *values.values())
        return total + (noise * (left * right).sum(1).detach()).sum()

    def _upper(self) -> Iterator[tuple[slice, slice]]:
        """Tiles of the upper triangle, those on the diagonal too."""
        blocks = [slice(start, min(start + self.tile, self.n)) for start in range(0, self.n, self.tile)]
        return ((rows, columns) for i, rows in enumerate(blocks) for columns in blocks[i:])

    def _tiles(self):
        """tile(rows, columns) -> K[rows, columns], which is overwritten by the next."""
        if self.kernel.formula != "rbf":
            return self._covariance
        a, _ = kernels.scaled(self.x, None, self.kernel.lengthscale, self.centre)
        squares, one = -0.5 * a.square().sum(1, keepdim=True), torch.ones_like(a[:, :1])
        # log k = a b^T - |a|^2 / 2 - |b|^2 / 2 + log outputscale, all in one product of matrices
        outputscale = self.kernel.outputscale
        left = torch.cat([a, squares, one], 1)
        right = torch.cat([a, one, squares + outputscale.log()], 1)
        buffer = a.new_empty(self.tile * self.tile)

        def tile(rows: slice, columns: slice) -> Tensor:
            height, width = rows.stop - rows.start, columns.stop - columns.start
            k = buffer[: height * width].view(height, width)
            torch.mm(left[rows], right[columns].mT, out=k).exp_()
            if rows == columns:
                k.diagonal().copy_(outputscale.expand(height))
            return k

        return tile

    def _covariance(self, rows: slice, columns: slice, kernel: Kernel | None = None) -> Tensor:
        """K[rows, columns] by the kernel's own formula; of the same rows, with an exact diagonal."""
        a = self.x[rows]
        return (kernel or self.kernel).covariance(a, a if rows == columns else self.x[columns], self.centre)


class _Bilinear(torch.autograd.Function):
    """sum_c left_c^T S K S right_c with its gradient, which is found in the same pass."""

    @staticmethod
    def forward(ctx, product: KernelProduct, left: Tensor, right: Tensor, names: list[str], *values: Tensor) -> Tensor:
        if product.scale is not None:
            left, right = product.scale[:, None] * left, product.scale[:, None] * right
        total, gradients = left.new_zeros(()), [torch.zeros_like(value) for value in values]
        for rows, columns in product._upper():
            leaves = [value.detach().requires_grad_() for value in values]
            kernel = Kernel(product.kernel.formula, dict(zip(names, leaves, strict=True)))
            with torch.enable_grad():
                # off the diagonal l_I^T K_IJ r_J + l_J^T K_JI r_I = sum (K_IJ o (l_I r_J^T + r_I l_J^T))
                weight = left[rows] @ right[columns].mT
                if rows != columns:
                    weight.addmm_(right[rows], left[columns].mT)
                part = (product._covariance(rows, columns, kernel) * weight).sum()
            total += part.detach()
            for gradient, found in zip(gradients, torch.autograd.grad(part, leaves), strict=True):
                gradient += found
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, *(grad * gradient for gradient in ctx.saved_tensors)
