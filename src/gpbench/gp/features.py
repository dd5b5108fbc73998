"""Random features of kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from gpbench.gp import kernels
from gpbench.gp.kernels import Kernel, Part

Normal = Callable[..., Tensor]
"""Shape -> standard normals."""

FEATURES_PER_FREQUENCY = {"rbf": 2, "arc_cosine": 1}


def random_features(kernel: str, x: Tensor, frequencies: Tensor, outputscale: Tensor) -> Tensor:
    """Features Phi of `kernel` (`rbf` or `arc_cosine`) whose inner products estimate the kernel without bias.

    x `[*S, R, B, D]`, frequencies Omega `[*S, R, D, F]` (radians per unit of x), outputscale `[R]` (a variance);
    returns `[*S, R, B, 2 F]` or `[*S, R, B, F]`; x and Omega may each lack the axis S. With
    Omega_dj ~ N(0, 1 / lengthscale_d^2), E[Phi Phi^T] = K and the error is of order F^-1/2."""
    return {"rbf": fourier, "arc_cosine": rectified}[kernel](x, frequencies, outputscale)


def fourier(x: Tensor, frequencies: Tensor, outputscale: Tensor) -> Tensor:
    """Features of the RBF-ARD kernel, shapes as in `random_features`.

    Phi = sqrt(outputscale / F) [cos(x Omega), sin(x Omega)]. Source: rahimi2007, cutajar2017 section 2.1.1."""
    angle = product(x, frequencies)
    scale = (outputscale / frequencies.shape[-1]).sqrt()[:, None, None]
    return scale * torch.cat([angle.cos(), angle.sin()], -1)


def rectified(x: Tensor, frequencies: Tensor, outputscale: Tensor) -> Tensor:
    """Features of the arc-cosine kernel of order 1 with ARD, shapes as in `random_features`.

    Phi = sqrt(2 outputscale / F) max(0, x Omega). Source: cho2009, cutajar2017 section 2.1.2."""
    scale = (2 * outputscale / frequencies.shape[-1]).sqrt()[:, None, None]
    return scale * product(x, frequencies).relu()


def draw(kernel: Kernel, num_inputs: int, num: int, normal: Normal) -> Callable[[Tensor], Tensor]:
    """Features Phi of x `[R, T, D]`, `[R, T, F]`, with E Phi Phi^T = k(x, x): `num` frequencies a part, drawn once.

    Features of a product are products of those of its parts, frequency by frequency; those of a sum stand side by side.
    """
    drawn = [[_draw_part(kernel, part, num_inputs, num, normal) for part in term] for term in kernel.terms]

    def phi(x: Tensor) -> Tensor:
        columns = []
        for term, parts in zip(kernel.terms, drawn, strict=True):
            found, *others = (part(x) for part in parts)
            for other in others:
                found = [one * two for one, two in itertools.product(found, other)]
            scale = (kernel.values[f"{term[0].prefix}outputscale"] / num).sqrt()[:, None, None]
            columns.append(scale * torch.cat(found, -1))
        return torch.cat(columns, -1)

    return phi


def _draw_part(
    kernel: Kernel, part: Part, num_inputs: int, num: int, normal: Normal
) -> Callable[[Tensor], list[Tensor]]:
    """One or two features a frequency, without the outputscale.

    matern: of a multivariate Student t distribution with 1, 3 or 5 degrees of freedom (rasmussen2006, section 4.2)."""
    lengthscale, name = kernel.values[f"{part.prefix}lengthscale"], part.name
    periodic = name == "periodic"
    frequencies = normal(len(lengthscale), num_inputs * (1 + periodic), num)
    if name.startswith("matern"):
        degrees = int(name[-2])
        chi_square = normal(len(lengthscale), degrees, num).square().sum(1, keepdim=True)
        frequencies = frequencies * (degrees / chi_square).sqrt()

    def of(x: Tensor) -> list[Tensor]:
        scale = lengthscale
        if periodic:
            scale = kernels.for_circles(lengthscale, x)
            x = kernels.on_circles(x, kernel.values[f"{part.prefix}period"])
        angle = product(x, frequencies / scale[..., None])
        if name == "linear":
            return [angle]
        return [2**0.5 * angle.relu()] if name == "arccosine" else [angle.cos(), angle.sin()]

    return of


def product(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product of left `[*S, R, B, K]` and right `[*S, R, K, D]` -> `[*S, R, B, D]`.

    Where one of them lacks the sample axis S, the samples of the other join its rows or its columns, so that
    nothing is copied S times."""
    if left.ndim == right.ndim:
        return left @ right
    if left.ndim > right.ndim:
        samples, replicas, rows, inner = left.shape
        flat = left.transpose(0, 1).reshape(replicas, samples * rows, inner) @ right
        return flat.reshape(replicas, samples, rows, -1).transpose(0, 1)
    samples, replicas, inner, columns = right.shape
    flat = left @ right.permute(1, 2, 0, 3).reshape(replicas, inner, samples * columns)
    return flat.reshape(replicas, -1, samples, columns).permute(2, 0, 1, 3)
