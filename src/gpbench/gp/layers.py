"""Where a layer of sparse GPs starts, and the layer that its parameters stand for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gpbench.gp import inducing, kernels, linalg
from gpbench.gp.sparse import Layer


def start_inducing(x: Tensor, num: int, rng: np.random.Generator) -> Tensor:
    """k-means centres `[1, num, D]` of the rows x `[1, n, D]`."""
    return x.new_tensor(inducing.kmeans(x[0].cpu().numpy(), num, rng)[None])


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


def kernel(params: dict[str, Tensor], name: str, jitter: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Z, the factor of K_ZZ + jitter * outputscale * I, lengthscale and outputscale of a layer with one kernel."""
    z = params[f"{name}.inducing_inputs"]
    lengthscale, outputscale = params[f"{name}.log_lengthscale"].exp(), params[f"{name}.log_outputscale"].exp()
    return z, kernels.rbf_factor(z, lengthscale, outputscale, jitter, name), lengthscale, outputscale


def init_kernel(name: str, z: Tensor, lengthscale: Tensor, outputscale: float) -> dict[str, Tensor]:
    """Inducing inputs z `[R, M, D]` and one ARD kernel that starts with the lengthscale `[R]` for every input."""
    return {
        f"{name}.inducing_inputs": z,
        f"{name}.log_lengthscale": lengthscale.log()[:, None].repeat(1, z.shape[-1]),
        f"{name}.log_outputscale": torch.full_like(lengthscale, outputscale).log(),
    }


def layer(params: dict[str, Tensor], name: str, jitter: float) -> Layer:
    """Natural parameters of the layer `name`, with the factor of K_ZZ + jitter * outputscale * I."""
    z = params[f"{name}.inducing_inputs"]
    lengthscale, outputscale = params[f"{name}.log_lengthscale"].exp(), params[f"{name}.log_outputscale"].exp()
    # the sign of a column of L_q is of no consequence, so the diagonal is left unconstrained
    whitened_chol = params[f"{name}.whitened_chol"].tril()
    if outputscale.ndim == 1:
        chol_kzz = kernels.rbf_factor(z, lengthscale, outputscale, jitter, name)
    else:
        own = z if z.ndim == 4 else z[:, None]  # [R, Q or 1, M, D]
        kzz = kernels.rbf(own, own, lengthscale, outputscale).transpose(0, 1)  # [Q, R, M, M]: events number replicas
        chol_kzz = linalg.cholesky(kzz, name, jitter * outputscale.T).transpose(0, 1)
    return Layer(z, chol_kzz, params[f"{name}.whitened_mean"], whitened_chol, lengthscale, outputscale)


def mean_map(x: Tensor, width: int) -> Tensor:
    """W `[R, D, width]` of the linear mean function x W of a layer with inputs x `[R, N, D]` (salimbeni2017, sec. 3.1).

    The identity, padded with zeros to widen; the leading right-singular vectors of x to narrow."""
    replicas, _, num_inputs = x.shape
    if width >= num_inputs:
        return torch.eye(num_inputs, width, dtype=x.dtype, device=x.device).repeat(replicas, 1, 1)
    vectors = torch.linalg.eigh(x.mT @ x).eigenvectors.flip(-1)[..., :width]
    # the sign of an eigenvector is arbitrary: the largest entry is made positive
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return vectors * largest.sign()
