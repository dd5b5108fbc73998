"""Where a layer of sparse GPs starts, and the layer that its parameters stand for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gpbench.gp import inducing, kernels
from gpbench.gp.kernels import Kernel
from gpbench.gp.sparse import Layer


def start_inducing(
    x: Tensor, num: int, rng: np.random.Generator, kind: str = "kmeans", kernel: Kernel | None = None
) -> Tensor:
    """Inducing inputs `[1, num, D]` of x `[1, n, D]`: k-means centres, random `rows`, `greedy` ones under a kernel."""
    rows = x[0].cpu().numpy()
    if kind == "greedy" and kernel is not None:
        on_host = kernel.map(lambda value: value.double().cpu())
        return x.new_tensor(inducing.greedy(rows, num, rng, on_host)[None])
    return x.new_tensor((inducing.rows if kind == "rows" else inducing.kmeans)(rows, num, rng)[None])


def init_layer(
    name: str,
    z: Tensor,
    num_outputs: int,
    lengthscale: Tensor,
    outputscale: float,
    factor: float = 1.0,
    ard: bool = True,
    separate: str = "none",
    formula: str = "rbf",
    covariance: str = "full",
    coordinates: str = "whitened",
) -> dict[str, Tensor]:
    """Parameters of a layer at q(v) = N(0, factor^2 I); z `[R, M, D]`, lengthscale `[R]`.

    ard: a lengthscale an input, else one for all. separate: an output has a kernel (`kernels`) and inducing inputs
    (`all`) of its own, an axis Q of those parameters after R. formula: of the kernel. covariance: `full`, a factor
    L_q, or `diagonal`, sds. coordinates: `whitened`, q(v), or `inducing`, the same numbers for q(u)."""
    replicas, num_inducing, num_inputs = z.shape
    eye = torch.eye(num_inducing, dtype=z.dtype, device=z.device)
    chol = (factor * eye).repeat(replicas, num_outputs, 1, 1)
    outputs = () if separate == "none" else (num_outputs,)
    lengthscales = lengthscale.log().view(replicas, *(1 for _ in outputs), 1)
    log_lengthscale = lengthscales.repeat(1, *outputs, num_inputs if ard else 1)
    log_outputscale = z.new_tensor(outputscale).log().repeat(replicas, *outputs)
    return {
        f"{name}.inducing_inputs": z[:, None].repeat(1, num_outputs, 1, 1) if separate == "all" else z,
        f"{name}.{coordinates}_mean": z.new_zeros(replicas, num_inducing, num_outputs),
        f"{name}.{coordinates}_chol": chol if covariance == "full" else chol.diagonal(dim1=-2, dim2=-1).clone(),
        **named(name, kernels.start(formula, log_lengthscale, log_outputscale)),
    }


def named(name: str, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters under their names in the layer `name`."""
    return {f"{name}.{key}": value for key, value in params.items()}


def kernel(params: dict[str, Tensor], name: str, jitter: float, formula: str = "rbf") -> tuple[Tensor, Tensor, Kernel]:
    """Z, the factor of K_ZZ + jitter * scale * I, and the kernel of the layer `name`."""
    z, function = params[f"{name}.inducing_inputs"], kernels.read(formula, params, f"{name}.")
    return z, function.factor(z, jitter, name), function


def init_kernel(
    name: str, z: Tensor, lengthscale: Tensor, outputscale: float, ard: bool = True, formula: str = "rbf"
) -> dict[str, Tensor]:
    """Inducing inputs z `[R, M, D]` and a kernel that starts with the lengthscale `[R]` for every input."""
    log_lengthscale = lengthscale.log()[:, None].repeat(1, z.shape[-1] if ard else 1)
    log_outputscale = torch.full_like(lengthscale, outputscale).log()
    start = kernels.start(formula, log_lengthscale, log_outputscale)
    return {f"{name}.inducing_inputs": z, **named(name, start)}


def layer(params: dict[str, Tensor], name: str, jitter: float, formula: str = "rbf") -> Layer:
    """The layer `name`: kernel and q(v) of its parameters, with the factor of K_ZZ + jitter * scale * I."""
    z, chol_kzz, function = kernel(params, name, jitter, formula)
    if f"{name}.whitened_mean" in params:
        mean, chol = params[f"{name}.whitened_mean"], factor(params[f"{name}.whitened_chol"])
    else:
        mean, chol = params[f"{name}.inducing_mean"], factor(params[f"{name}.inducing_chol"])
        # u = L v ~ N(m, S_u): v ~ N(L^-1 m, L^-1 S_u L^-T)
        each = chol_kzz if chol_kzz.ndim == chol.ndim else chol_kzz[:, None]
        mean = torch.linalg.solve_triangular(each, mean.mT[..., None], upper=False)[..., 0].mT
        chol = torch.linalg.solve_triangular(each, chol, upper=False)
    return Layer(z, chol_kzz, mean, chol, function)


def factor(chol: Tensor) -> Tensor:
    """Lower triangular factors `[R, Q, M, M]` of covariances, of a param of that shape or of sds `[R, Q, M]`."""
    # the sign of a column of L_q is of no consequence, so the diagonal is left unconstrained
    return chol.tril() if chol.ndim == 4 else chol.diag_embed()


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
