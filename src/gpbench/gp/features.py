"""Random Fourier features of the RBF kernel."""

from __future__ import annotations

import torch
from torch import Tensor


def fourier(x: Tensor, frequencies: Tensor, outputscale: Tensor) -> Tensor:
    """Features Phi whose inner products estimate an RBF-ARD kernel without bias.

    Phi = sqrt(outputscale / F) [cos(x Omega), sin(x Omega)];  with Omega_dj ~ N(0, 1 / lengthscale_d^2),
    E[Phi Phi^T] = K and the error is of order F^-1/2.
    x `[*S, R, B, D]`, frequencies Omega `[R, D, F]` (radians per unit of x), outputscale `[R]` (a variance);
    returns `[*S, R, B, 2F]`. Source: rahimi2007, cutajar2017.
    """
    angle = project(x, frequencies)
    scale = (outputscale / frequencies.shape[-1]).sqrt()[:, None, None]
    return scale * torch.cat([angle.cos(), angle.sin()], -1)


def project(x: Tensor, matrix: Tensor) -> Tensor:
    """x `[*S, R, B, D]` times one matrix `[R, D, F]` a replica -> `[*S, R, B, F]`.

    The samples join the rows, so that the matrix is not copied S times.
    """
    *samples, replicas, rows, inputs = x.shape
    flat = x.reshape(-1, replicas, rows, inputs).transpose(0, 1).reshape(replicas, -1, inputs)
    product = (flat @ matrix).reshape(replicas, -1, rows, matrix.shape[-1]).transpose(0, 1)
    return product.reshape(*samples, replicas, rows, -1)
