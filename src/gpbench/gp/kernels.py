"""Covariance functions, and where their lengthscales start."""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.gp import linalg


def rbf(x1: Tensor, x2: Tensor, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
    """Squared-exponential covariance with one lengthscale an input (ARD).

    k(a, b) = outputscale * exp(-1/2 sum_d (a_d - b_d)^2 / lengthscale_d^2).
    x1 `[*R, N, D]`, x2 `[*R, M, D]`, lengthscale `[*R, D]` (units of x), outputscale `[*R]` (a variance,
    units of f squared); returns `[*R, N, M]`. Differentiable once.
    """
    k: Tensor = _RBF.apply(x1, None if x2 is x1 else x2, lengthscale, outputscale)
    return k


class _RBF(torch.autograd.Function):
    """`rbf` with its gradient by hand, a third of the operations; without x2, of x1 with itself."""

    @staticmethod
    def forward(ctx, x1: Tensor, x2: Tensor | None, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
        a = x1 / lengthscale[..., None, :]
        b = None if x2 is None else x2 / lengthscale[..., None, :]
        k = rbf_scaled(a, b, outputscale)
        ctx.save_for_backward(k, a, b, lengthscale, outputscale)
        ctx.shapes = [() if x is None else x.shape for x in (x1, x2)]
        return k

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        k, a, b, lengthscale, outputscale = ctx.saved_tensors
        *inputs, for_lengthscale, for_outputscale = rbf_gradient(
            grad * k if b is not None else (grad + grad.mT) * k, a, b, lengthscale, outputscale, ctx.needs_input_grad[1]
        )
        inputs = [None if g is None else g.sum_to_size(s) for g, s in zip(inputs, ctx.shapes, strict=True)]
        return *inputs, for_lengthscale, for_outputscale


def rbf_factor(z: Tensor, lengthscale: Tensor, outputscale: Tensor, jitter: float, name: str) -> Tensor:
    """Lower Cholesky factor of k(Z, Z) + jitter * outputscale * I `[*R, M, M]`, shapes as in `rbf`.

    More jitter where that needs it as in `linalg.cholesky`, with events of `name`. Differentiable once.
    """
    factor: Tensor = _RBFFactor.apply(z, lengthscale, outputscale, jitter, name)
    return factor


class _RBFFactor(torch.autograd.Function):
    """`rbf_factor` with its gradient by hand: the jitter on the diagonal scales with K, and moves with nothing else."""

    @staticmethod
    def forward(ctx, z: Tensor, lengthscale: Tensor, outputscale: Tensor, jitter: float, name: str) -> Tensor:
        a = z / lengthscale[..., None, :]
        k = rbf_scaled(a, None, outputscale)
        k.diagonal(dim1=-2, dim2=-1).add_(jitter * outputscale[..., None])
        factor = linalg.factorise(k, name)
        ctx.save_for_backward(factor, k, a, lengthscale, outputscale)
        return factor

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        factor, k, a, lengthscale, outputscale = ctx.saved_tensors
        grad_k = linalg.factor_gradient(factor, grad)
        weight = (grad_k + grad_k.mT).mul_(k)
        for_z, _, *for_scales = rbf_gradient(weight, a, None, lengthscale, outputscale, False)
        return for_z, *for_scales, None, None


def rbf_scaled(a: Tensor, b: Tensor | None, outputscale: Tensor) -> Tensor:
    """`rbf` of a = x1 / lengthscale and b = x2 / lengthscale; without b, of a with itself."""
    # norms and scale ride in the matrix product as two more columns: [a, -norm_a, 1] [b, 1, -norm_b]^T
    norm_a = -0.5 * a.square().sum(-1, keepdim=True)
    norm_b = norm_a if b is None else -0.5 * b.square().sum(-1, keepdim=True)
    norm_b = norm_b + outputscale.log()[..., None, None]
    left = torch.cat([a, norm_a, torch.ones_like(norm_a)], -1)
    right = torch.cat([a if b is None else b, torch.ones_like(norm_b), norm_b], -1)
    return (left @ right.mT).exp_()


def rbf_gradient(
    weight: Tensor, a: Tensor, b: Tensor | None, lengthscale: Tensor, outputscale: Tensor, for_b: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of x1, x2 (None where not `for_b`), lengthscale and outputscale from W = k (d loss / d k) `[*R, N, M]`.

    With a and b as in `rbf_scaled`, and r and c the sums of the rows and columns of W:
    d/da = W b - r a,    d/db = W^T a - c b,    d/d log outputscale = sum W,
    d/d log lengthscale = sum_nm W_nm (a_n - b_m)^2 = -sum_n a_n d/da_n - sum_m b_m d/db_m.
    Without b both gradients fall to a, and weight is W + W^T.
    """
    mirrored = b is None
    if b is None:
        b = a
    rows, product = weight.sum(-1, keepdim=True), weight @ b
    grad_a, grad_b = torch.addcmul(product, rows, a, value=-1), None
    along = (a * grad_a).sum(-2)
    if not mirrored:
        columns = weight.sum(-2, keepdim=True)
        if for_b:
            grad_b = torch.addcmul(weight.mT @ a, columns.mT, b, value=-1)
            along += (b * grad_b).sum(-2)
        else:  # sum_m b_m d/db_m without the product of d/db
            along += (a * product).sum(-2) - (columns @ b.square())[..., 0, :]
    scale = lengthscale[..., None, :]
    return (
        grad_a / scale,
        None if grad_b is None else grad_b / scale,
        -(along / lengthscale).sum_to_size(lengthscale.shape),
        (0.5 if mirrored else 1.0) * rows.sum((-2, -1)) / outputscale,
    )


def start_lengthscale(x: Tensor, given: float | None = None) -> Tensor:
    """Initial lengthscale `[R]`: the one given, else sqrt(sum_d var x_d), which is sqrt(D) on standardised inputs.

    x `[R, N, D]`: the training rows, none of padding.
    """
    if given is not None:
        return x.new_full(x.shape[:1], given)
    centred = x - x.sum(1, keepdim=True) / x.shape[1]
    return (centred.square().sum((1, 2)) / x.shape[1]).clamp_min(1e-6).sqrt()
