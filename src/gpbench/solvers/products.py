"""Products of kernel matrices with vectors, matrix-free.

    A = S K S + diag(noise),  K = k(X, X),  S = diag(scale)

of n rows: with S = I the covariance K_y of a regression, with S = W^1/2 and noise 1 the matrix B of a Laplace
approximation. A is symmetric: only tiles of its upper triangle are formed, used for both triangles and dropped, so that
memory is O(n c + tile) for c vectors, which share the tiles. The surrogate of a gradient is `bilinear`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gpbench.gp import kernels
from gpbench.gp.kernels import Kernel

TILE, TILE_GPU = (128, 768), (4096, 16384)
"""Rows and columns of a tile: .8 MB in float64, which stay in the cache of a core (`bench/solvers.py`); on a GPU .5 GB,
where starting an operation is what takes the time."""


class KernelProduct:
    """v -> (S K S + diag(noise)) v for v `[n, c]`; `products` counts the columns.

    kernel: of one replica, its values without the replica axis (`Kernel.map(lambda value: value[r])`); x `[n, D]`;
    noise a number or `[n]` (units of f squared); scale `[n]`: the diagonal of S, None for I; tile: its rows, and a
    multiple of them, its columns."""

    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        noise: Tensor | float,
        scale: Tensor | None = None,
        tile: tuple[int, int] | None = None,
    ) -> None:
        self.x, self.n, self.scale = x, len(x), scale
        self.tile = tile or (TILE if x.device.type == "cpu" else TILE_GPU)
        noise = torch.as_tensor(noise, dtype=x.dtype, device=x.device).expand(len(x))
        self.kernel, self.noise = kernel.map(Tensor.detach), noise.detach()
        self._differentiable = kernel, noise
        self.products = 0
        self.variance = self.kernel.diagonal(x).expand(len(x))
        self.centre = x.mean(0, keepdim=True)

    def __call__(self, v: Tensor) -> Tensor:
        """A v `[n, c]`, O(n^2 (D + c))."""
        self.products += v.shape[1]
        # vectors lie as rows, as a product of few rows with a tile takes half the time of a tile with few columns
        # no `contiguous`, which leaves a single row as it lies: products on a GPU cannot start from that
        across = (v if self.scale is None else self.scale[:, None] * v).mT.clone(memory_format=torch.contiguous_format)
        out = torch.zeros_like(across)  # (K S v)^T
        left, right, form = self._factors()
        height, width = self.tile
        # views of whole blocks of columns, taken once: a slice costs as much as a small operation
        whole = list(zip(right.split(width), across.split(width, 1), out.split(width, 1), strict=True))
        for start in range(0, self.n, height):
            stop, block = min(start + height, self.n), start // width + 1
            edge = min(block * width, self.n)
            a, beside, along = left[start:stop], out[:, start:stop], across[:, start:stop]
            k = form(a, right[start:edge])
            k.diagonal().copy_(self.variance[start:stop])
            beside.addmm_(across[:, start:edge], k.mT)
            out[:, stop:edge].addmm_(along, k[:, stop - start :])
            for b, across_b, beneath in whole[block:]:
                k = form(a, b)
                beside.addmm_(across_b, k.mT)
                beneath.addmm_(along, k)
        product = out.mT if self.scale is None else self.scale[:, None] * out.mT
        return torch.addcmul(product, self.noise[:, None], v)

    def is_finite(self) -> bool:
        """Whether all that A is made of is."""
        parts = [self.x, self.noise, *self.kernel.values.values(), *([] if self.scale is None else [self.scale])]
        return all(bool(part.isfinite().all()) for part in parts)

    def diagonal(self) -> Tensor:
        """Of A `[n]`."""
        return (self.variance if self.scale is None else self.scale.square() * self.variance) + self.noise

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

    def _upper(self) -> Iterator[tuple[slice, slice, slice]]:
        """Tiles of the upper triangle: rows, columns, and the columns that lie above the diagonal of K. The first tile
        of some rows begins on the diagonal."""
        height, width = self.tile
        for start in range(0, self.n, height):
            rows = slice(start, min(start + height, self.n))
            for left in range(start, self.n, width):
                columns = slice(left, min(left + width, self.n))
                yield rows, columns, slice(min(max(left, rows.stop), columns.stop), columns.stop)

    def _factors(self) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]:
        """Numbers of each row as the left and as the right argument of k, and form(some left, some right) -> K of
        these, which the next call overwrites."""
        if self.kernel.formula != "rbf":
            return self.x, self.x, lambda a, b: self.kernel.covariance(a, b, self.centre)
        a, _ = kernels.scaled(self.x, None, self.kernel.lengthscale, self.centre)
        squares, one = -0.5 * a.square().sum(1, keepdim=True), torch.ones_like(a[:, :1])
        # log k = a b^T - |a|^2 / 2 - |b|^2 / 2 + log outputscale, all in one product of matrices; to base 2, as its
        # powers take half the time of those of e
        right = torch.cat([a, one, squares + self.kernel.outputscale.log()], 1) / math.log(2)
        height, width = self.tile
        buffer = a.new_empty(min(height, self.n) * min(width, self.n))

        @functools.cache
        def room(height: int, width: int) -> Tensor:
            return buffer[: height * width].view(height, width)

        return torch.cat([a, squares, one], 1), right, lambda a, b: torch.mm(a, b.mT, out=room(len(a), len(b))).exp2_()


class _Bilinear(torch.autograd.Function):
    """sum_c left_c^T S K S right_c with its gradient, which is found in the same pass."""

    @staticmethod
    def forward(ctx, product: KernelProduct, left: Tensor, right: Tensor, names: list[str], *values: Tensor) -> Tensor:
        if product.scale is not None:
            left, right = product.scale[:, None] * left, product.scale[:, None] * right
        total, gradients = left.new_zeros(()), [torch.zeros_like(value) for value in values]
        for rows, columns, above in product._upper():
            leaves = [value.detach().requires_grad_() for value in values]
            kernel = Kernel(product.kernel.formula, dict(zip(names, leaves, strict=True)))
            with torch.enable_grad():
                # above the diagonal l_I^T K_IJ r_J + l_J^T K_JI r_I = sum (K_IJ o (l_I r_J^T + r_I l_J^T))
                weight = left[rows] @ right[columns].mT
                weight[:, above.start - columns.start :].addmm_(right[rows], left[above].mT)
                k = kernel.covariance(product.x[rows], product.x[columns], product.centre)
                part = (k * weight).sum()
            total += part.detach()
            for gradient, found in zip(gradients, torch.autograd.grad(part, leaves), strict=True):
                gradient += found
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, *(grad * gradient for gradient in ctx.saved_tensors)
