"""Layers of sparse GPs as `svgp` and `dsvi` train them: their parameters, and what is drawn by a row of noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import inducing, kernels, linalg
from gpbench.gp.sparse import Layer
from gpbench.streams import Key


def start_inducing(x: Tensor, count: Tensor, num: int, rngs: list[np.random.Generator]) -> Tensor:
    """k-means centres `[R, num, D]` of the rows x `[R, n, D]`, of which the first count `[R]` are not padding."""
    rows = [part[:n].cpu().numpy() for part, n in zip(x, count.tolist(), strict=True)]
    return x.new_tensor(np.stack([inducing.kmeans(part, num, rng) for part, rng in zip(rows, rngs, strict=True)]))


def init_layer(
    name: str,
    z: Tensor,
    num_outputs: int,
    lengthscale: Tensor,
    outputscale: float,
    factor: float = 1.0,
    ard: bool = True,
    separate: str = "none",
) -> dict[str, Tensor]:
    """Parameters of a layer at q(v) = N(0, factor^2 I); z `[R, M, D]`, lengthscale `[R]`.

    ard: a lengthscale an input, else one for all. separate: an output has a kernel (`kernels`) and inducing inputs
    (`all`) of its own, an axis Q of those parameters after R.
    """
    replicas, num_inducing, num_inputs = z.shape
    eye = torch.eye(num_inducing, dtype=z.dtype, device=z.device)
    outputs = () if separate == "none" else (num_outputs,)
    lengthscales = lengthscale.log().view(replicas, *(1 for _ in outputs), 1)
    return {
        f"{name}.inducing_inputs": z[:, None].repeat(1, num_outputs, 1, 1) if separate == "all" else z,
        f"{name}.whitened_mean": z.new_zeros(replicas, num_inducing, num_outputs),
        f"{name}.whitened_chol": (factor * eye).repeat(replicas, num_outputs, 1, 1),
        f"{name}.log_lengthscale": lengthscales.repeat(1, *outputs, num_inputs if ard else 1),
        f"{name}.log_outputscale": z.new_tensor(outputscale).log().repeat(replicas, *outputs),
    }


def layer(params: dict[str, Tensor], name: str, jitter: float) -> Layer:
    """Natural parameters of the layer `name`, with the factor of K_ZZ + jitter * outputscale * I."""
    z = params[f"{name}.inducing_inputs"]
    lengthscale, outputscale = params[f"{name}.log_lengthscale"].exp(), params[f"{name}.log_outputscale"].exp()
    # the sign of a column of L_q is of no consequence, so the diagonal is left unconstrained
    whitened_chol = params[f"{name}.whitened_chol"].tril()
    if outputscale.ndim == 1:
        chol_kzz = linalg.cholesky(kernels.rbf(z, z, lengthscale, outputscale), name, jitter * outputscale)
    else:
        own = z if z.ndim == 4 else z[:, None]  # [R, Q or 1, M, D]
        kzz = kernels.rbf(own, own, lengthscale, outputscale).transpose(0, 1)  # [Q, R, M, M]: events number replicas
        chol_kzz = linalg.cholesky(kzz, name, jitter * outputscale.T).transpose(0, 1)
    return Layer(z, chol_kzz, params[f"{name}.whitened_mean"], whitened_chol, lengthscale, outputscale)


def by_row(noise: Tensor, rows: int, size: int) -> Tensor:
    """Noise `[R, rows * S * size]` as `[S, R, rows, size]`; one sample where nothing is drawn (size 0).

    Rows come first in the noise, so that padding rows at the end take nothing from the others.
    """
    samples = noise.shape[-1] // (rows * size) if size else 1
    return noise.view(len(noise), rows, samples, size).permute(2, 0, 1, 3)


def source(keys: list[Key], sample: int, like: Tensor) -> Callable[..., Tensor]:
    """normal(*shape): the next standard normals `[R, *shape]` of sample number `sample` of the stream `eval`."""
    generators = [streams.generator(key, "eval", sample, like.device) for key in keys]

    def normal(*shape: int) -> Tensor:
        draws = [torch.randn(shape, generator=g, dtype=like.dtype, device=like.device) for g in generators]
        return torch.stack(draws)

    return normal
