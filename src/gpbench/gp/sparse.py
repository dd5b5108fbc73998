"""Sparse (inducing-point) conditionals of a layer of GPs with RBF kernels, in whitened form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gpbench.gp import features, kernels

CHUNK_ELEMENTS = 2**20
"""Largest temporary of a prediction: 8 MB in float64; allocation dominates beyond."""

TRIANGLE_BLOCKS = 5
"""Blocks of columns in which a triangular factor is multiplied: 0.6 of the work of a full product."""

NUM_FREQUENCIES = 256
"""Random frequencies of a draw of a function."""


class Layer(NamedTuple):
    """Q GPs, in the order `conditional` takes them; with an axis (Q) where outputs have a kernel (and inducing inputs)
    of their own. Lengthscales: one for all inputs, or one each."""

    inducing_inputs: Tensor  # [R, (Q,) M, D]
    chol_kzz: Tensor  # [R, (Q,) M, M]
    whitened_mean: Tensor  # [R, M, Q]
    whitened_chol: Tensor | None  # [R, Q, M, M]
    lengthscale: Tensor  # [R, (Q,) D or 1]
    outputscale: Tensor  # [R, (Q,)]

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
    Source: hensman2013, eq. 4; salimbeni2017, eqs. 7-8.
    """
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
    z, chol_kzz, whitened_mean, whitened_chol, lengthscale, outputscale = layer
    if outputscale.ndim == 2:
        mean, variance = _moments(_each_output(x, outputscale), single_outputs(layer))
        return mean.view(*outputscale.shape, -1).mT, variance.view(*outputscale.shape, -1).mT
    # A = L^-1 k(Z, x) [R, M, B]
    a = torch.linalg.solve_triangular(chol_kzz, kernels.rbf(z, x, lengthscale, outputscale), upper=False)
    mean = a.mT @ whitened_mean
    if whitened_chol is None:
        reduction = -a.square().sum(1, keepdim=True).expand(-1, mean.shape[-1], -1)
    else:
        reduction = _VarianceChange.apply(whitened_chol, a)
    return mean, (outputscale[:, None, None] + reduction).clamp_min(0.0).mT


def single_outputs(layer: Layer) -> Layer:
    """A layer whose outputs have kernels of their own as R * Q replicas of layers with one output."""
    z, chol_kzz, mean, chol, lengthscale, outputscale = layer
    if z.ndim == 3:
        z = z[:, None].expand(-1, outputscale.shape[1], -1, -1)
    chol = None if chol is None else chol.flatten(0, 1)[:, None]
    scales = lengthscale.flatten(0, 1), outputscale.flatten()
    return Layer(z.flatten(0, 1), chol_kzz.flatten(0, 1), mean.mT.flatten(0, 1)[..., None], chol, *scales)


def _each_output(x: Tensor, outputscale: Tensor) -> Tensor:
    """x `[R, B, D]` for every output `[R * Q, B, D]`."""
    return x[:, None].expand(-1, outputscale.shape[1], -1, -1).flatten(0, 1)


def draw(layer: Layer, normal: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """One draw of the functions of a layer, which are then asked at any x `[R, T, D]` for `[R, T, Q]`.

    f(x) = phi(x)^T w + A^T (v - L^-1 phi(Z)^T w), v ~ q(v): a draw from the prior by random features, moved to
    agree with u = L v at Z. Its mean and covariance, over all that is drawn, are those of the posterior.
    normal(*shape): standard normals. Source: wilson2020.
    """
    if layer.outputscale.ndim == 2:
        outputs, each = layer.outputscale.shape[1], draw(single_outputs(layer), normal)
        return lambda x: each(_each_output(x, layer.outputscale)).view(-1, outputs, x.shape[1]).mT
    z, chol_kzz, mean, _, lengthscale, outputscale = layer
    frequencies = normal(len(z), z.shape[-1], NUM_FREQUENCIES) / lengthscale[..., None]
    weights = normal(len(z), 2 * NUM_FREQUENCIES, mean.shape[-1])
    v = mean + (layer.posterior_chol @ normal(*mean.mT.shape, 1))[..., 0].mT

    def prior(x: Tensor) -> Tensor:
        return features.fourier(x, frequencies, outputscale) @ weights

    missing = v - torch.linalg.solve_triangular(chol_kzz, prior(z), upper=False)  # [R, M, Q]

    def posterior(x: Tensor) -> Tensor:
        a = torch.linalg.solve_triangular(chol_kzz, kernels.rbf(z, x, lengthscale, outputscale), upper=False)
        return prior(x) + a.mT @ missing

    chunk = max(1, CHUNK_ELEMENTS // (len(z) * 2 * NUM_FREQUENCIES))
    return lambda x: torch.cat([posterior(rows) for rows in x.split(chunk, 1)], 1)


class _VarianceChange(torch.autograd.Function):
    """||L_q^T a_b||^2 - ||a_b||^2 `[R, Q, B]` for triangular L `[R, Q, M, M]` and columns a `[R, M, B]`.

    The outputs are rows of one product, taken in blocks of columns J of L: T_J = L[J0:, J]^T a[J0:], for L is zero
    above its diagonal. Backward, with S_J = 2 g T_J: dL[J0:, J] = a[J0:] S_J^T, da[J0:] += L[J0:, J] S_J.
    """

    @staticmethod
    def forward(ctx, chol: Tensor, a: Tensor) -> Tensor:
        replicas, outputs, _, num_columns = *chol.shape[:3], a.shape[-1]
        change = -a.square().sum(1, keepdim=True).repeat(1, outputs, 1)
        products = []
        for start, block in _triangle_blocks(chol):
            product = (block @ a[:, start:]).view(replicas, outputs, -1, num_columns)
            change += product.square().sum(2)
            products.append(product)
        ctx.save_for_backward(chol, a, *products)
        return change

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        chol, a, *products = ctx.saved_tensors
        grad = 2 * grad
        grad_chol, grad_a = torch.zeros_like(chol), -grad.sum(1, keepdim=True) * a
        for (start, block), product in zip(_triangle_blocks(chol), products, strict=True):
            scaled = (product * grad[:, :, None]).flatten(1, 2)  # S_J [R, Q |J|, B]
            grad_a[:, start:].baddbmm_(block.mT, scaled)
            grad_block = (scaled @ a[:, start:].mT).view(*product.shape[:3], -1)
            grad_chol[:, :, start:, start : start + product.shape[2]] = grad_block.mT
        return grad_chol, grad_a


def _triangle_blocks(chol: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Pairs J0, L[J0:, J]^T `[R, Q |J|, M - J0]` of the blocks of columns J = J0, J0 + 1, ..."""
    num_inducing = chol.shape[-1]
    size = -(-num_inducing // TRIANGLE_BLOCKS)
    for start in range(0, num_inducing, size):
        yield start, chol[:, :, start:, start : start + size].mT.flatten(1, 2)


def kl_whitened(mean: Tensor, chol: Tensor) -> Tensor:
    """KL[prod_q N(m_q, L_q L_q^T) || N(0, I)] in nats, `[R]`.

    1/2 (||L||_F^2 + ||m||^2 - Q M) - sum_qi log |(L_q)_ii|;  mean `[R, M, Q]`, chol `[R, Q, M, M]`.
    """
    log_det = chol.diagonal(dim1=-2, dim2=-1).abs().log().sum((1, 2))
    count = mean.shape[1] * mean.shape[2]
    return 0.5 * (chol.square().sum((1, 2, 3)) + mean.square().sum((1, 2)) - count) - log_det
