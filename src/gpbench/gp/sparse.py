"""Sparse (inducing-point) conditionals of a layer of GPs, in whitened form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpbench.gp import features, kernels
from gpbench.gp.kernels import Kernel

CHUNK_ELEMENTS = 2**20
"""Largest temporary of a prediction: 8 MB in float64; allocation dominates beyond."""

TRIANGLE_BLOCKS, BLOCKED_ROWS = 5, 400
"""Blocks of columns in which triangular factors are multiplied, 0.6 of the work of a full product: it pays where they
have so many rows in all."""

NUM_FREQUENCIES = 256
"""Random frequencies of a draw of a function."""


class Layer(NamedTuple):
    """Q GPs, in the order `conditional` takes them; with an axis (Q) where outputs have a kernel (and inducing inputs)
    of their own."""

    inducing_inputs: Tensor  # [R, (Q,) M, D]
    chol_kzz: Tensor  # [R, (Q,) M, M]
    whitened_mean: Tensor  # [R, M, Q]
    whitened_chol: Tensor | None  # [R, Q, M, M]
    kernel: Kernel

    @property
    def posterior_chol(self) -> Tensor:
        """`whitened_chol`; raises ValueError where v is known."""
        if self.whitened_chol is None:
            raise ValueError("a layer whose whitened values are known has no posterior covariance")
        return self.whitened_chol


def conditional(x: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Marginal mean and variance of f(x) when u = L v, L L^T = K_ZZ, v_q ~ N(m_q, L_q L_q^T).

    A = L^-1 k(Z, x);  mean_q = A^T m_q;  variance_q = k(x, x) - ||A||^2 + ||L_q^T A||^2 (columnwise).
    Without `whitened_chol`, v = m is known: the FITC conditional p(f | u), whose variance drops the last term.

    x `[*S, R, B, D]`, the other shapes as in `Layer`, L_q lower triangular; returns two `[*S, R, B, Q]`, the prior
    mean being zero. Under `torch.no_grad` the rows of x are treated in chunks.
    Source: hensman2013, eq. 4; salimbeni2017, eqs. 7-8."""
    *samples, replicas, rows, _ = x.shape
    # S and B become the columns of one product per replica
    columns = x.reshape(-1, replicas, rows, x.shape[-1]).transpose(0, 1).reshape(replicas, -1, x.shape[-1])
    if torch.is_grad_enabled():
        moments = _moments(columns, layer)
    else:
        num_factors = 1 if layer.whitened_chol is None else layer.whitened_chol.shape[1]
        chunk = max(1, CHUNK_ELEMENTS // (replicas * layer.whitened_mean.shape[1] * num_factors))
        means, variances = zip(*(_moments(part, layer) for part in columns.split(chunk, 1)), strict=True)
        moments = torch.cat(means, 1), torch.cat(variances, 1)
    mean, variance = (m.reshape(replicas, -1, rows, m.shape[-1]).transpose(0, 1) for m in moments)
    return mean.reshape(*samples, *mean.shape[1:]), variance.reshape(*samples, *variance.shape[1:])


def _moments(x: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Mean and variance `[R, B, Q]` at x `[R, B, D]`."""
    z, chol_kzz, whitened_mean, whitened_chol, kernel = layer
    outputs = kernel.outputscale.shape
    if len(outputs) == 2:
        mean, variance = _moments(_each_output(x, outputs[1]), single_outputs(layer))
        return mean.view(*outputs, -1).mT, variance.view(*outputs, -1).mT
    a = project(x, z, chol_kzz, kernel)
    moments: tuple[Tensor, Tensor] = _Marginals.apply(a, whitened_mean, whitened_chol, kernel.diagonal(x))
    return moments


def single_outputs(layer: Layer) -> Layer:
    """A layer whose outputs have kernels of their own as R * Q replicas of layers with one output."""
    z, chol_kzz, mean, chol, kernel = layer
    if z.ndim == 3:
        z = z[:, None].expand(-1, mean.shape[-1], -1, -1)
    chol = None if chol is None else chol.flatten(0, 1)[:, None]
    kernel = kernel.map(lambda value: value.flatten(0, 1))
    return Layer(z.flatten(0, 1), chol_kzz.flatten(0, 1), mean.mT.flatten(0, 1)[..., None], chol, kernel)


def _each_output(x: Tensor, outputs: int) -> Tensor:
    """x `[R, B, D]` for every output `[R * Q, B, D]`."""
    return x[:, None].expand(-1, outputs, -1, -1).flatten(0, 1)


def draw(layer: Layer, normal: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """One draw of the functions of a layer, which are then asked at any x `[R, T, D]` for `[R, T, Q]`.

    f(x) = phi(x)^T w + A^T (v - L^-1 phi(Z)^T w), v ~ q(v): a draw from the prior by random features, moved to
    agree with u = L v at Z. Its mean and covariance, over all that is drawn, are those of the posterior.
    normal(*shape): standard normals. Source: wilson2020."""
    if layer.kernel.outputscale.ndim == 2:
        outputs, each = layer.whitened_mean.shape[-1], draw(single_outputs(layer), normal)
        return lambda x: each(_each_output(x, outputs)).view(-1, outputs, x.shape[1]).mT
    z, chol_kzz, mean, _, kernel = layer
    phi = features.draw(kernel, z.shape[-1], NUM_FREQUENCIES, normal)
    num_features = phi(z[:, :1]).shape[-1]
    weights = normal(len(z), num_features, mean.shape[-1])
    v = mean + (layer.posterior_chol @ normal(*mean.mT.shape, 1))[..., 0].mT

    def prior(x: Tensor) -> Tensor:
        return phi(x) @ weights

    missing = v - torch.linalg.solve_triangular(chol_kzz, prior(z), upper=False)  # [R, M, Q]

    def posterior(x: Tensor) -> Tensor:
        return prior(x) + project(x, z, chol_kzz, kernel).mT @ missing

    chunk = max(1, CHUNK_ELEMENTS // (len(z) * num_features))
    return lambda x: torch.cat([posterior(rows) for rows in x.split(chunk, 1)], 1)


def project(x: Tensor, inducing_inputs: Tensor, chol_kzz: Tensor, kernel: Kernel) -> Tensor:
    """A = L^-1 k(Z, x) `[R, M, B]` for x `[R, B, D]`: given u = L v, f(x) has mean A^T v and covariance K - A^T A.

    The other shapes as in `Layer`, of a layer whose outputs share a kernel. Differentiable once."""
    if kernel.formula == "rbf":
        a: Tensor = _Project.apply(x, inducing_inputs, chol_kzz, kernel.lengthscale, kernel.outputscale)
        return a
    # from the right, where a solver may go along the rows that lie in memory
    return torch.linalg.solve_triangular(
        chol_kzz.mT, kernel.covariance(inducing_inputs, x).mT, upper=True, left=False
    ).mT


class _Project(torch.autograd.Function):
    """`project` of the RBF kernel with its gradient by hand. With H = L^-T dA: dk = H, dL = -tril(H A^T)."""

    @staticmethod
    def forward(ctx, x, inducing_inputs, chol_kzz, lengthscale, outputscale) -> Tensor:
        scaled_z, scaled_x = kernels.scaled(inducing_inputs, x, lengthscale)
        k = kernels.rbf_scaled(scaled_z, scaled_x, outputscale)
        a = torch.linalg.solve_triangular(chol_kzz.mT, k.mT, upper=True, left=False).mT
        ctx.save_for_backward(k, a, chol_kzz, scaled_z, scaled_x, lengthscale, outputscale)
        return a

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        k, a, chol_kzz, scaled_z, scaled_x, lengthscale, outputscale = ctx.saved_tensors
        h = torch.linalg.solve_triangular(chol_kzz, grad.mT, upper=False, left=False).mT
        grad_chol = (h @ a.mT).tril_().neg_() if ctx.needs_input_grad[2] else None
        grad_z, grad_x, *grad_scales = kernels.rbf_gradient(
            h.mul_(k), scaled_z, scaled_x, lengthscale, outputscale, ctx.needs_input_grad[0]
        )
        return grad_x, grad_z, grad_chol, *grad_scales


def unexplained(a: Tensor, diagonal: Tensor) -> Tensor:
    """Variance of f given u, k(x_n, x_n) - ||a_n||^2 `[R, B]`, from A `[R, M, B]` and the diagonal of k `[R, B or 1]`.

    Differentiable once."""
    variance: Tensor = _Unexplained.apply(a, diagonal)
    return variance


class _Unexplained(torch.autograd.Function):
    """`unexplained` with its gradient by hand, -2 a_n."""

    @staticmethod
    def forward(ctx, a: Tensor, diagonal: Tensor) -> Tensor:
        variance = diagonal - a.square().sum(1)
        ctx.save_for_backward(a, variance)
        ctx.shape = diagonal.shape
        return variance.clamp_min(0.0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, variance = ctx.saved_tensors
        grad = grad * (variance >= 0)
        return a * (-2 * grad)[:, None], grad.sum_to_size(ctx.shape)


class _Marginals(torch.autograd.Function):
    """Mean A^T m and variance k(x_b, x_b) - ||a_b||^2 + ||L_q^T a_b||^2 `[R, B, Q]`, from A `[R, M, B]` and the
    diagonal of k `[R, B or 1]`.

    Without factors L_q the variance drops its last term. The outputs are rows of one product, taken in blocks of
    columns J of the factors: T_J = L[J0:, J]^T a[J0:], for L is zero above its diagonal. Backward, with g that of the
    variance and S_J = 2 g T_J: dL[J0:, J] = a[J0:] S_J^T, da[J0:] += L[J0:, J] S_J."""

    @staticmethod
    def forward(ctx, a: Tensor, mean: Tensor, chol: Tensor | None, diagonal: Tensor) -> tuple[Tensor, Tensor]:
        unexplained = diagonal[:, None] - a.square().sum(1, keepdim=True)
        variance = unexplained.expand(-1, mean.shape[-1], -1)  # [R, Q, B]
        products = []
        for start, block in _triangle_blocks(chol):
            product = (block @ a[:, start:]).view(*variance.shape[:2], -1, a.shape[-1])
            variance = variance + product.square().sum(2)
            products.append(product)
        ctx.save_for_backward(a, mean, chol, variance, *products)
        ctx.shape = diagonal.shape
        return a.mT @ mean, variance.clamp_min(0.0).mT

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_mean: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, mean, chol, variance, *products = ctx.saved_tensors
        grad = grad.mT * (variance >= 0)  # [R, Q, B]
        total = grad.sum(1, keepdim=True)
        grad_a = torch.bmm(mean, grad_mean.mT).addcmul_(total, a, value=-2)
        grad_chol: Any = None if chol is None else torch.zeros_like(chol)
        for (start, block), product in zip(_triangle_blocks(chol), products, strict=True):
            scaled = (product * (2 * grad)[:, :, None]).flatten(1, 2)  # S_J [R, Q |J|, B]
            grad_a[:, start:].baddbmm_(block.mT, scaled)
            grad_block = (scaled @ a[:, start:].mT).view(*product.shape[:3], -1)
            grad_chol[:, :, start:, start : start + product.shape[2]] = grad_block.mT
        return grad_a, a @ grad_mean, grad_chol, total[:, 0].sum_to_size(ctx.shape)


def _triangle_blocks(chol: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """Pairs J0, L[J0:, J]^T `[R, Q |J|, M - J0]` of the blocks of columns J = J0, J0 + 1, ..."""
    if chol is None:
        return
    outputs, num_inducing = chol.shape[1:3]
    size = -(-num_inducing // TRIANGLE_BLOCKS) if outputs * num_inducing >= BLOCKED_ROWS else num_inducing
    for start in range(0, num_inducing, size):
        yield start, chol[:, :, start:, start : start + size].mT.flatten(1, 2)


def kl_whitened(mean: Tensor, chol: Tensor) -> Tensor:
    """KL[prod_q N(m_q, L_q L_q^T) || N(0, I)] in nats, `[R]`.

    1/2 (||L||_F^2 + ||m||^2 - Q M) - sum_qi log |(L_q)_ii|;  mean `[R, M, Q]`, chol `[R, Q, M, M]`."""
    kl: Tensor = _KL.apply(mean, chol)
    return kl


class _KL(torch.autograd.Function):
    """`kl_whitened` with its gradient by hand: m, and L - diag(1 / L_ii)."""

    @staticmethod
    def forward(ctx, mean: Tensor, chol: Tensor) -> Tensor:
        ctx.save_for_backward(mean, chol)
        squares = chol.square().sum((1, 2, 3)) + mean.square().sum((1, 2))
        log_det = chol.diagonal(dim1=-2, dim2=-1).abs().log().sum((1, 2))
        return torch.sub(0.5 * (squares - mean[0].numel()), log_det)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        mean, chol = ctx.saved_tensors
        grad = grad[:, None, None]
        grad_chol = grad[..., None] * chol
        diagonal = grad_chol.diagonal(dim1=-2, dim2=-1)
        diagonal -= grad / chol.diagonal(dim1=-2, dim2=-1)
        return grad * mean, grad_chol
