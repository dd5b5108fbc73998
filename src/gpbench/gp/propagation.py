"""Gaussian beliefs pushed through a layer of sparse GPs: the exact first two moments of its outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.gp import psi, sparse
from gpbench.gp.sparse import Layer


def moments(
    layer: Layer, mean: Tensor, variance: Tensor | None = None, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance `[R, B, Q]` of g(x) + x W for x ~ N(mean, diag(variance)), `[R, B, D]` each.

    Without a variance x is known. weights W `[R, D, Q]`: of a linear mean function, or none. g_q are the GPs of the
    layer under q(v_q) = N(m_q, L_q L_q^T). Source: damianou2013; with W ashman2020, eqs. 3.19 and 3.20."""
    if variance is not None:
        return _random_input(layer, mean, variance, weights)
    first, second = sparse.conditional(mean, layer)
    return (first if weights is None else first + mean @ weights), second


def through(
    layers: list[Layer], x: Tensor, noise_variances: list[Tensor], weights: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Moments `[R, B, Q]` of the last of the layers at known x `[R, B, D]`, the output of each taken for a Gaussian.

    noise_variances `[R]`: of every layer but the last; weights: as in `moments`, of every layer."""
    mean, variance = moments(layers[0], x, None, weights[0])
    for layer, noise_variance, weight in zip(layers[1:], noise_variances, weights[1:], strict=True):
        mean, variance = moments(layer, mean, variance + noise_variance[:, None, None], weight)
    return mean, variance


def _random_input(layer: Layer, mean: Tensor, variance: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    rbf = layer.kernel
    if rbf.outputscale.ndim == 2:
        replicas, outputs = rbf.outputscale.shape
        mean, variance = (part.repeat_interleave(outputs, 0) for part in (mean, variance))
        each = None if weights is None else weights.mT.flatten(0, 1)[..., None]
        parts = _random_input(sparse.single_outputs(layer), mean, variance, each)
        first, second = (part.view(replicas, outputs, -1).mT for part in parts)
        return first, second
    # one order of memory however many replicas there are: products round by it, and K_ZZ^-1 magnifies that
    root, upper = layer.posterior_chol.contiguous(), layer.chol_kzz.mT
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    a = torch.linalg.solve_triangular(upper, layer.whitened_mean, upper=True)
    half = torch.linalg.solve_triangular(upper[:, None], root @ root.mT - eye, upper=True)
    b = torch.linalg.solve_triangular(upper[:, None], half.mT, upper=True) + a.mT[..., None] * a.mT[..., None, :]
    return psi.moments(mean, variance, layer.inducing_inputs, rbf.lengthscale, rbf.outputscale, a, b, weights)
