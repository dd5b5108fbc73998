"""Psi statistics: expectations of the RBF-ARD kernel under x ~ N(mean, diag(variance)), and the moments they give.

psi1 = E k(x, Z), psi2 = E k(Z, x) k(x, Z), psi3 = E (w^T x)^2, psi4 = E k(Z, x) w^T x (and psi0 = E k(x, x), the
outputscale). Exponents are matrix products of 2 D + 2 columns a row and a (pair of) inducing input, so that no
temporary has a factor D. Shapes: mean, variance `[R, B, D]`; inducing_inputs `[R, M, D]`; lengthscale `[R, D]` or
`[R, 1]` (units of x); outputscale `[R]` (units of f squared); weights W `[R, D, Q]` of Q linear functions.

psi2 is multiplied by matrices as large as K_ZZ^-1, so moments of smooth kernels need float64: single precision leaves
nothing of the variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod

import torch
from torch import Tensor

CHUNK_ELEMENTS, CHUNK_ROWS = 2**17, 512
"""Largest temporary of `moments` on a CPU, 1 MB in float64, which stays in the cache between its uses, and its rows:
the more square it is, the less a product packs of what it is made of."""

CHUNK_ELEMENTS_GPU = 2**25


def psi1(mean: Tensor, variance: Tensor, inducing_inputs: Tensor, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
    """E k(x, z_m) `[R, B, M]`.

    outputscale prod_d sqrt(l_d^2 / (l_d^2 + s_d)) exp(-1/2 sum_d (mean_d - z_md)^2 / (l_d^2 + s_d)), s = variance.
    Source: damianou2013."""
    left, right = _joined(*_once(mean, variance, inducing_inputs, lengthscale, outputscale))
    return (left @ right.mT).exp()


def psi2(mean: Tensor, variance: Tensor, inducing_inputs: Tensor, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
    """E k(x, z_m) k(x, z_m') `[R, B, M, M]`, with c the middle between z_m and z_m'.

    outputscale^2 prod_d sqrt(l_d^2 / (l_d^2 + 2 s_d)) exp(-sum_d [(z_md - z_m'd)^2 / (4 l_d^2)
    + (mean_d - c_d)^2 / (l_d^2 + 2 s_d)]). Source: damianou2013."""
    num_inducing = inducing_inputs.shape[1]
    every = torch.arange(num_inducing**2, device=inducing_inputs.device)
    left, right = _joined(*_twice(mean, variance, inducing_inputs, lengthscale, outputscale, every))
    return (left @ right.mT).exp().unflatten(2, (num_inducing, num_inducing))


def psi2_sum(
    mean: Tensor, variance: Tensor, inducing_inputs: Tensor, lengthscale: Tensor, outputscale: Tensor, weight: Tensor
) -> Tensor:
    """sum_n weight_n E k(x_n, z_m) k(x_n, z_m') `[R, M, M]`; weight `[R, B]`.

    Memory does not grow with N M^2, neither here nor in the gradient."""
    num_inducing, device = inducing_inputs.shape[1], inducing_inputs.device
    packed = _upper(num_inducing, device)
    left, left_offset, right, right_offset = _twice(mean, variance, inducing_inputs, lengthscale, outputscale, packed)
    sums = _ExpProduct.apply(right, right_offset, left, left_offset, weight[..., None])[..., 0]  # [R, M (M + 1) / 2]
    number = torch.arange(num_inducing**2, device=device).view(num_inducing, -1)
    # where a pair, or its mirror image, stands among the packed ones, which are in order
    position = torch.searchsorted(packed, torch.minimum(number, number.T))
    return sums[:, position]


def psi3(mean: Tensor, variance: Tensor, weights: Tensor) -> Tensor:
    """E (w_q^T x)^2 = sum_d w_dq^2 s_d + (w_q^T mean)^2 `[R, B, Q]`."""
    return variance @ weights.square() + (mean @ weights).square()


def psi4(
    mean: Tensor, variance: Tensor, inducing_inputs: Tensor, lengthscale: Tensor, outputscale: Tensor, weights: Tensor
) -> Tensor:
    """E k(x, z_m) w_q^T x = psi1_m sum_d w_dq (mean_d l_d^2 + z_md s_d) / (l_d^2 + s_d) `[R, B, M, Q]`."""
    own, share = _tilted(mean, variance, lengthscale)
    tilted = (own @ weights)[:, :, None] + torch.einsum("rbd,rmd,rdq->rbmq", share, inducing_inputs, weights)
    return psi1(mean, variance, inducing_inputs, lengthscale, outputscale)[..., None] * tilted


def moments(
    mean: Tensor,
    variance: Tensor,
    inducing_inputs: Tensor,
    lengthscale: Tensor,
    outputscale: Tensor,
    a: Tensor,
    b: Tensor,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance `[R, B, Q]` of the outputs of a layer of sparse GPs whose input is x.

    mean_q = w_q^T mean + psi1 a_q;  variance_q = psi0 + psi3 + 2 psi4^T a_q + tr(b_q psi2) - mean_q^2.

    a `[R, M, Q]` = K_ZZ^-1 m, b `[R, Q, M, M]` = K_ZZ^-1 (S - K_ZZ) K_ZZ^-1 + a a^T for u ~ N(m, S); without weights
    the prior mean is zero. Memory does not grow with B M^2, neither here nor in the gradient. A variance that
    rounding leaves below zero is zero. Source: bui2016; ashman2020, eq. 3.20 (its last line corrected)."""
    layer = (inducing_inputs, lengthscale, outputscale)
    # psi1 a, and with a mean function psi1 (a z_d) for every input d
    targets = a if weights is None else torch.cat([a, (a[:, :, None] * inducing_inputs[..., None]).flatten(2)], 2)
    first, *moved = _ExpProduct.apply(*_once(mean, variance, *layer), targets).split(a.shape[2], 2)
    packed = _upper(inducing_inputs.shape[1], inducing_inputs.device)
    pairs = (b + b.mT).flatten(2).index_select(2, packed)
    # a pair stands for itself and its mirror image, the diagonal for itself alone
    diagonal = packed % (inducing_inputs.shape[1] + 1) == 0
    twice = _ExpProduct.apply(*_twice(mean, variance, *layer, packed), torch.where(diagonal, 0.5 * pairs, pairs).mT)
    second = outputscale[:, None, None] + twice
    if weights is not None:
        own, share = _tilted(mean, variance, lengthscale)
        fourth = (own @ weights) * first + torch.einsum("rbd,rdq,drbq->rbq", share, weights, torch.stack(moved))
        second = second + psi3(mean, variance, weights) + 2 * fourth
        first = first + mean @ weights
    return first, (second - first.square()).clamp_min(0.0)


def _tilted(mean: Tensor, variance: Tensor, lengthscale: Tensor) -> tuple[Tensor, Tensor]:
    """Parts of the mean own + share * z of x under N(x; mean, variance) k(x, z), `[R, B, D]` each."""
    square = lengthscale.square()[:, None]
    total = square + variance
    return mean * square / total, variance / total


Factors = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of an exponent `[R, B, P]`: left `[R, B, 2 D]`, its offset `[R, B, 1]`, right `[R, P, 2 D]`, its offset `[R, P, 1]`.

The exponent is left right^T plus the offsets of its row and of its column."""


def _once(mean, variance, inducing_inputs, lengthscale, outputscale) -> Factors:
    """Factors of log psi1."""
    square = lengthscale.square()[:, None]
    precision = 0.5 / (square + variance)
    log_scale = outputscale.log()[:, None] + 0.5 * (2 * square * precision).log().sum(-1)
    return _factors(mean, precision, log_scale, inducing_inputs, torch.zeros_like(inducing_inputs[..., :1]))


def _twice(mean, variance, inducing_inputs, lengthscale, outputscale, pairs) -> Factors:
    """Factors of log psi2 for pairs of inducing inputs by their number m M + m'."""
    square = lengthscale.square()[:, None]
    precision = 1 / (square + 2 * variance)
    log_scale = 2 * outputscale.log()[:, None] + 0.5 * (square * precision).log().sum(-1)
    num_inducing = inducing_inputs.shape[1]
    one, other = (inducing_inputs.index_select(1, m) for m in (pairs // num_inducing, pairs % num_inducing))
    apart = ((one - other) / (2 * lengthscale[:, None])).square().sum(-1, keepdim=True)
    return _factors(mean, precision, log_scale, 0.5 * (one + other), apart)


def _factors(mean, precision, log_scale, points, penalty) -> Factors:
    """Of log_scale_b - sum_d precision_bd (mean_bd - points_pd)^2 - penalty_p."""
    moved = precision * mean
    offset = log_scale[..., None] - (moved * mean).sum(-1, keepdim=True)
    return torch.cat([2 * moved, -precision], -1), offset, torch.cat([points, points.square()], -1), -penalty


def _joined(left: Tensor, left_offset: Tensor, right: Tensor, right_offset: Tensor) -> tuple[Tensor, Tensor]:
    """Factors whose product is the whole exponent, the offsets as two more columns."""
    whole_left = torch.cat([left, left_offset, torch.ones_like(left_offset)], -1)
    return whole_left, torch.cat([right, torch.ones_like(right_offset), right_offset], -1)


@cache
def _upper(num_inducing: int, device: torch.device) -> Tensor:
    """Numbers m M + m' of the pairs m <= m'."""
    row, column = torch.triu_indices(num_inducing, num_inducing, device=device)
    return row * num_inducing + column


class _ExpProduct(torch.autograd.Function):
    """E weight `[R, B, Q]`, E the exponentials of `Factors`, a block at a time and once more in the gradient.

    weight `[R, P, Q]`. With g the gradient of the result and F = E * (g weight^T):
    d weight = E^T g, d left = F right, d right = F^T left, d left_offset = F 1 = sum_q g_q (E weight)_q,
    d right_offset = F^T 1 = sum_q weight_q (d weight)_q. Of a single output F is E with rows and columns scaled, and
    the scales go to the narrow factors."""

    @staticmethod
    def forward(ctx, left, left_offset, right, right_offset, weight) -> Tensor:
        result = left.new_zeros(*left.shape[:2], weight.shape[2])
        whole_left, whole_right = _joined(left, left_offset, right, right_offset)
        for expected, (result_row,), (weight_point,) in _blocks(whole_left, whole_right, (result,), (weight,)):
            result_row.baddbmm_(expected, weight_point)
        ctx.save_for_backward(whole_left, whole_right, weight, result)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        whole_left, whole_right, weight, result = ctx.saved_tensors
        left, right = whole_left[..., :-2], whole_right[..., :-2]
        single = weight.shape[2] == 1
        rows, points = (grad * left, weight * right) if single else (left, right)
        # of the points transposed, as a row of them is longer than a column
        for_left, for_right, for_weight = (
            torch.zeros_like(left),
            torch.zeros_like(right.mT).mT,
            torch.zeros_like(weight),
        )
        by_row, by_point = (grad, rows, for_left), (weight, points, for_right, for_weight)
        for expected, row_parts, point_parts in _blocks(whole_left, whole_right, by_row, by_point):
            (grad_row, row, for_row), (weight_point, point, for_point, for_weight_point) = row_parts, point_parts
            for_weight_point.baddbmm_(expected.mT, grad_row)
            if not single:
                expected *= torch.bmm(grad_row, weight_point.mT)
            for_row.baddbmm_(expected, point)
            for_point.mT.baddbmm_(row.mT, expected)
        if single:
            for_left, for_right = grad * for_left, weight * for_right
        offsets = ((one * other).sum(-1, keepdim=True) for one, other in ((grad, result), (weight, for_weight)))
        return for_left, next(offsets), for_right, next(offsets), for_weight


Parts = tuple[Tensor, ...]


def _blocks(left: Tensor, right: Tensor, by_row: Parts, by_point: Parts) -> Iterator[tuple[Tensor, Parts, Parts]]:
    """Blocks of exp(left right^T) with their parts of tensors of rows `[R, B, ...]` and of points `[R, P, ...]`.

    The next block overwrites a block: fresh memory would cost as much as the product. On a CPU one replica at a time:
    how a product rounds depends on how many are taken at once, and the moments carry that further by the condition of
    K_ZZ. Elsewhere, bound by launches, all of them, and all points."""
    (replicas, rows), points = left.shape[:2], right.shape[1]
    if left.device.type == "cpu":
        size = min(rows, CHUNK_ROWS, CHUNK_ELEMENTS)
        sizes = 1, size, min(points, CHUNK_ELEMENTS // size)
    else:
        sizes = replicas, max(1, CHUNK_ELEMENTS_GPU // (replicas * points)), points
    memory = left.new_empty(prod(sizes))

    def parts(tensors: Parts, size: int) -> list[list[Parts]]:
        """By replicas, then by rows or points."""
        cut = [[part.split(size, 1) for part in tensor.split(sizes[0])] for tensor in tensors]
        return [list(zip(*same, strict=True)) for same in zip(*cut, strict=True)]

    for of_rows, of_points in zip(parts((left, *by_row), sizes[1]), parts((right, *by_point), sizes[2]), strict=True):
        for (row, *row_parts), (point, *point_parts) in product(of_rows, of_points):
            shape = len(row), row.shape[1], point.shape[1]
            block = torch.bmm(row, point.mT, out=memory[: prod(shape)].view(shape))
            yield block.exp_(), tuple(row_parts), tuple(point_parts)
