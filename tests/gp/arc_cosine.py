"""The arc-cosine kernel in closed form, which random features are held against."""

import torch
from torch import Tensor


def arc_cosine(x1: Tensor, x2: Tensor, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
    """Arc-cosine covariance of order 1 with one lengthscale an input (ARD).

    k(a, b) = outputscale / pi |u| |v| (sin t + (pi - t) cos t), u = a / lengthscale, v = b / lengthscale, t their
    angle; k(a, a) = outputscale |u|^2. Shapes as in `rbf`. Source: cho2009, equations 3 and 6.
    """
    a, b = x1 / lengthscale[..., None, :], x2 / lengthscale[..., None, :]
    norms = a.norm(dim=-1)[..., :, None] * b.norm(dim=-1)[..., None, :]
    cos = ((a @ b.mT) / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp(-1, 1)
    # arccos loses half the digits at small angles, where k is flat in the angle
    angle = cos.arccos()
    return outputscale[..., None, None] / torch.pi * norms * (angle.sin() + (torch.pi - angle) * cos)
