"""Algebra of the multinomial logit GP: the softmax of m latent functions, and covariances that add up over sources.

    pi_ic = e^{f_ic} / sum_r e^{f_ir};    log p(y | f) = sum_i log pi_{i y_i};
    K_c = sum_s w_cs C_s,    C_s = X_s X_s^T / a_s + jitter I,    a_s = tr(X_s X_s^T) / n (or 1).

As printed (a_s = 1) the diagonal of C_s is of the order of the number of its columns, and weights of 1 would saturate
the softmax. The jitter belongs to every source: centred rows leave C_s singular.

f, y (one-hot) and pi are `[R, m, n]`; padding rows have y = 0 and weight 0, and count for nothing. The information of
subject i about its m functions is Lambda_i = diag(pi_i) - pi_i pi_i^T. Source: filippone2012, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grams(x1: Tensor, x2: Tensor, sizes: list[int]) -> Tensor:
    """X_s X'_s^T of every source `[R, q, N, T]`, of sizes[s] columns, for rows x1 `[R, N, D]` and x2 `[R, T, D]`."""
    pairs = zip(x1.split(sizes, -1), x2.split(sizes, -1), strict=True)
    return torch.stack([one @ other.mT for one, other in pairs], 1)


def squares(x: Tensor, sizes: list[int]) -> Tensor:
    """|x_s|^2 `[R, q, N]`, the diagonals of the Gram matrices of x `[R, N, D]`."""
    return torch.stack([part.square().sum(-1) for part in x.split(sizes, -1)], 1)


def log_lik(f: Tensor, y: Tensor) -> Tensor:
    """log p(y | f) `[R]`."""
    return (y * f.log_softmax(1)).sum((1, 2))


def gradient(f: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """d log p(y | f) / df = y - pi `[R, m, n]`; weight `[R, n]`."""
    return y - weight[:, None] * f.softmax(1)


def information(pi: Tensor) -> Tensor:
    """Lambda `[R, m, m, n]`, also minus the Hessian of log p(y | f); pi is 0 in padding rows."""
    return torch.diag_embed(pi.mT).permute(0, 2, 3, 1) - pi[:, :, None] * pi[:, None]


def information_traces(pi: Tensor, s: Tensor) -> Tensor:
    """Tr(S_i dLambda_i/df_ib) `[R, m, n]` for symmetric S `[R, m, m, n]`.

    With d_b = (e_b - pi)^T S (e_b - pi) it is pi_b (d_b - sum_a pi_a d_a)."""
    product = (s * pi[:, None]).sum(2)  # S pi
    mean = (pi * product).sum(1, keepdim=True)
    d = s.diagonal(dim1=1, dim2=2).mT - 2 * product + mean
    return pi * (d - (pi * d).sum(1, keepdim=True))


def information_quadratics(pi: Tensor, s: Tensor) -> Tensor:
    """s_i^T dLambda_i/df_ib s_i `[R, m, n]` for s `[R, m, n]`: `information_traces` of s s^T."""
    d = (s - (pi * s).sum(1, keepdim=True)).square()
    return pi * (d - (pi * d).sum(1, keepdim=True))


def whitened_precision(chol: Tensor, pi: Tensor) -> Tensor:
    """I + L^T Lambda L `[R, m n, m n]`, functions one after the other, for L = blockdiag(L_c), chol `[R, m, n, n]`.

    It is what K^-1 + Lambda is for nu = L^-1 f, and is at least the identity however singular K."""
    size = chol.shape[1] * chol.shape[2]
    blocks = chol.mT[:, :, None] @ (information(pi)[..., None] * chol[:, None])  # [R, m, m, n, n]
    precision = blocks.transpose(2, 3).reshape(-1, size, size)
    return precision + torch.eye(size, dtype=chol.dtype, device=chol.device)


def subject_covariances(chol: Tensor, factor: Tensor) -> Tensor:
    """The blocks of subjects `[R, m, m, n]` in (K^-1 + Lambda)^-1; factor: of the whitened precision."""
    functions, n = chol.shape[1:3]
    diagonal = torch.zeros(len(chol), functions, n, functions, n, dtype=chol.dtype, device=chol.device)
    for c in range(functions):
        diagonal[:, c, :, c] = chol[:, c].mT
    half = torch.linalg.solve_triangular(factor, diagonal.reshape(factor.shape), upper=False)
    half = half.reshape(len(chol), -1, functions, n)
    return torch.einsum("rkai,rkbi->rabi", half, half)
