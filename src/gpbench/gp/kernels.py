"""Covariance functions, their sums and products, and where their parameters start.

Of r^2 = sum_d (a_d - b_d)^2 / lengthscale_d^2, a' = a / lengthscale and b' = b / lengthscale:

    rbf         exp(-1/2 r^2)
    matern12    exp(-r)
    matern32    (1 + sqrt(3) r) exp(-sqrt(3) r)
    matern52    (1 + sqrt(5) r + 5/3 r^2) exp(-sqrt(5) r)
    periodic    exp(-2 sum_d sin^2(pi (a_d - b_d) / period_d) / lengthscale_d^2)
    linear      a' b'^T
    arccosine   1/pi |a'| |b'| (sin t + (pi - t) cos t), t the angle of a' and b' (cho2009)

A formula adds and multiplies such parts, "matern52 + rbf * periodic"; each of its terms has an outputscale, a variance.
Squares are expanded after the mean of x1 is taken off both inputs, and are at least 0, so that single precision bears
inputs far from the origin and short lengthscales; the diagonal of k(x, x) is exact.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gpbench.gp import linalg

Params = dict[str, Tensor]


class Part(NamedTuple):
    """A kernel of a formula; prefix: of the names of its parameters, empty for the first."""

    name: str
    prefix: str


@functools.cache
def terms(formula: str) -> tuple[tuple[Part, ...], ...]:
    """The terms of a formula, products of parts."""
    prefixes = itertools.chain([""], (f"part{number}." for number in itertools.count(2)))
    return tuple(tuple(Part(name.strip(), next(prefixes)) for name in term.split("*")) for term in formula.split("+"))


def start(formula: str, log_lengthscale: Tensor, log_outputscale: Tensor) -> Params:
    """Logarithms of the parameters of a formula: the lengthscales given for every part, the outputscale shared equally
    by the terms, periods 2 pi, at which `periodic` is locally RBF.

    log_lengthscale `[*R, D]` or `[*R, 1]`, log_outputscale `[*R]`."""
    params: Params = {}
    for term in terms(formula):
        for part in term:
            params[f"{part.prefix}log_lengthscale"] = log_lengthscale.clone() if part.prefix else log_lengthscale
            if part is term[0]:
                params[f"{part.prefix}log_outputscale"] = log_outputscale - math.log(len(terms(formula)))
            if part.name == "periodic":
                params[f"{part.prefix}log_period"] = torch.full_like(log_lengthscale, math.log(2 * math.pi))
    return params


def names(formula: str) -> list[str]:
    """Of the parameters of a formula."""
    return [*start(formula, torch.zeros(1, 1), torch.zeros(1))]


def read(formula: str, params: Params, prefix: str = "") -> Kernel:
    """The kernel that a formula and the logarithms in params, whose names begin with prefix, stand for."""
    parts = [part.prefix for term in terms(formula) for part in term]
    names = [part + of for part in parts for of in ("log_lengthscale", "log_outputscale", "log_period")]
    found = {name: params[prefix + name] for name in names if prefix + name in params}
    return Kernel(formula, {name.replace("log_", ""): value.exp() for name, value in found.items()})


class Kernel(NamedTuple):
    """A covariance function at values of its parameters, named as in `start` without `log_`.

    Lengthscales and periods `[*R, D]` or `[*R, 1]` (units of x; of `periodic` lengthscales have none), outputscales
    `[*R]` (units of f squared)."""

    formula: str
    values: Params

    @property
    def lengthscale(self) -> Tensor:
        """That of the first part."""
        return self.values["lengthscale"]

    @property
    def outputscale(self) -> Tensor:
        """That of the first term."""
        return self.values["outputscale"]

    @property
    def scale(self) -> Tensor:
        """Sum of the outputscales `[*R]`, to which jitter is relative."""
        return functools.reduce(torch.add, (self.values[f"{term[0].prefix}outputscale"] for term in self.terms))

    @property
    def terms(self) -> tuple[tuple[Part, ...], ...]:
        return terms(self.formula)

    def map(self, change: Callable[[Tensor], Tensor]) -> Kernel:
        """The kernel with every value changed."""
        return Kernel(self.formula, {name: change(value) for name, value in self.values.items()})

    def covariance(self, x1: Tensor, x2: Tensor, centre: Tensor | None = None) -> Tensor:
        """k(x1, x2) `[*R, N, M]` of x1 `[*R, N, D]` and x2 `[*R, M, D]`; centre as in `scaled`. Differentiable once."""
        parts = ([self._part(part, x1, x2, centre) for part in term] for term in self.terms)
        return functools.reduce(torch.add, (functools.reduce(torch.mul, term) for term in parts))

    def _part(self, part: Part, x1: Tensor, x2: Tensor, centre: Tensor | None) -> Tensor:
        """One kernel; those that are no first factor of a term have no outputscale."""
        lengthscale = self.values[f"{part.prefix}lengthscale"]
        scale = self.values.get(f"{part.prefix}outputscale", torch.ones_like(lengthscale[..., 0]))
        if part.name == "periodic":
            period = self.values[f"{part.prefix}period"]
            one, other = on_circles(x1, period), None if x2 is x1 else on_circles(x2, period)
            return rbf(one, one if other is None else other, for_circles(lengthscale, x1), scale)
        if part.name in FROM_ORIGIN:
            a, b = (x / lengthscale[..., None, :] for x in (x1, x2))
            return FROM_ORIGIN[part.name](a, b, scale)
        k: Tensor = _Stationary.apply(x1, None if x2 is x1 else x2, lengthscale, scale, part.name, centre)
        return k

    def diagonal(self, x: Tensor) -> Tensor:
        """k(x_n, x_n) `[*R, N]` of x `[*R, N, D]`, or `[*R, 1]` where it is the same everywhere."""
        variances = []
        for term in self.terms:
            variance = self.values[f"{term[0].prefix}outputscale"][..., None]
            for part in term:
                if part.name in FROM_ORIGIN:
                    scaled_x = x / self.values[f"{part.prefix}lengthscale"][..., None, :]
                    variance = variance * scaled_x.square().sum(-1)
            variances.append(variance)
        return functools.reduce(torch.add, variances)

    def factor(self, z: Tensor, jitter: float, name: str) -> Tensor:
        """Lower Cholesky factor of k(Z, Z) + jitter * scale * I `[R, (Q,) M, M]`; z `[R, (Q,) M, D]`.

        More jitter where that needs it as in `linalg.cholesky`, with events of `name`. Differentiable once."""
        if self.formula == "rbf" and self.outputscale.ndim == 1:
            return rbf_factor(z, self.lengthscale, self.outputscale, jitter, name)
        own = z if z.ndim == self.outputscale.ndim + 2 else z[:, None]  # [R, Q or 1, M, D]
        kzz = self.covariance(own, own).movedim(0, -3)  # [(Q,) R, M, M]: events number replicas
        return linalg.cholesky(kzz, name, jitter * self.scale.movedim(0, -1)).movedim(-3, 0)


def rbf(x1: Tensor, x2: Tensor, lengthscale: Tensor, outputscale: Tensor, centre: Tensor | None = None) -> Tensor:
    """Squared-exponential covariance with one lengthscale an input (ARD).

    k(a, b) = outputscale * exp(-1/2 sum_d (a_d - b_d)^2 / lengthscale_d^2).
    x1 `[*R, N, D]`, x2 `[*R, M, D]`, lengthscale `[*R, D]` (units of x), outputscale `[*R]` (a variance,
    units of f squared); centre as in `scaled`; returns `[*R, N, M]`. Differentiable once."""
    k: Tensor = _Stationary.apply(x1, None if x2 is x1 else x2, lengthscale, outputscale, "rbf", centre)
    return k


class _Stationary(torch.autograd.Function):
    """A kernel of r^2 with its gradient by hand, a third of the operations; without x2, of x1 with itself."""

    @staticmethod
    def forward(
        ctx,
        x1: Tensor,
        x2: Tensor | None,
        lengthscale: Tensor,
        outputscale: Tensor,
        name: str,
        centre: Tensor | None = None,
    ) -> Tensor:
        a, b = scaled(x1, x2, lengthscale, centre)
        if name == "rbf":
            k = slope = rbf_scaled(a, b, outputscale)
        else:
            k, slope = (outputscale[..., None, None] * part for part in matern(name, a, b))
        ctx.save_for_backward(k, slope, a, b, lengthscale, outputscale)
        ctx.name, ctx.shapes = name, [() if x is None else x.shape for x in (x1, x2)]
        return k

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        k, slope, a, b, lengthscale, outputscale = ctx.saved_tensors
        weight = grad * slope if b is not None else (grad + grad.mT) * slope
        *inputs, for_lengthscale, for_outputscale = rbf_gradient(
            weight, a, b, lengthscale, outputscale, ctx.needs_input_grad[1]
        )
        if ctx.name != "rbf":
            for_outputscale = (grad * k).sum((-2, -1)) / outputscale
        inputs = [None if g is None else g.sum_to_size(s) for g, s in zip(inputs, ctx.shapes, strict=True)]
        return *inputs, for_lengthscale, for_outputscale, None, None


def matern(name: str, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """c(r) and its slope -2 dc/d(r^2) `[*R, N, M]`, r the distances of a and b; without b, of a with itself.

    matern12 has a cusp at r = 0, where its slope is taken for 0; it needs r more exactly than expanded squares give."""
    if name == "matern12":
        r = torch.cdist(a, a if b is None else b, compute_mode="donot_use_mm_for_euclid_dist")
        c = (-r).exp_()
        return c, (c / r).masked_fill_(r == 0, 0.0)
    squares = _exponent(a, b).mul_(-2).clamp_min_(0.0)
    if b is None:
        squares.diagonal(dim1=-2, dim2=-1).zero_()
    r = squares.mul_({"matern32": 3.0, "matern52": 5.0}[name]).sqrt_()  # sqrt(3) r or sqrt(5) r
    decay = (-r).exp_()
    if name == "matern32":
        return (1 + r) * decay, 3 * decay
    return (1 + r + r.square() / 3) * decay, 5 / 3 * (1 + r) * decay


def on_circles(x: Tensor, period: Tensor) -> Tensor:
    """[cos, sin] of 2 pi x / period `[*R, N, 2 D]`: of squared distance 4 sin^2(pi (a - b) / period) an input."""
    angle = 2 * torch.pi * x / period[..., None, :]
    return torch.cat([angle.cos(), angle.sin()], -1)


def for_circles(lengthscale: Tensor, x: Tensor) -> Tensor:
    """Lengthscales of `on_circles` of inputs x: those of the inputs twice, or one for all."""
    return lengthscale if lengthscale.shape[-1] < x.shape[-1] else torch.cat([lengthscale, lengthscale], -1)


def linear(a: Tensor, b: Tensor, outputscale: Tensor) -> Tensor:
    """outputscale * a b^T `[*R, N, M]`."""
    return (outputscale[..., None, None] * a) @ b.mT


def arc_cosine(a: Tensor, b: Tensor, outputscale: Tensor) -> Tensor:
    """outputscale / pi |a| |b| (sin t + (pi - t) cos t) `[*R, N, M]`, t the angle of a and b.

    Source: cho2009, equations 3 and 6."""
    k: Tensor = _ArcCosine.apply(a @ b.mT, a.norm(dim=-1), b.norm(dim=-1))
    return outputscale[..., None, None] * k


class _ArcCosine(torch.autograd.Function):
    """`arc_cosine` of P = a b^T and the norms; its gradient is finite where t = 0, unlike that of t.

    dk/dP = (pi - t) / pi,    dk/d|a| = |b| sin t / pi."""

    @staticmethod
    def forward(ctx, product: Tensor, norm_a: Tensor, norm_b: Tensor) -> Tensor:
        norms = norm_a[..., :, None] * norm_b[..., None, :]
        angle = (product / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_(-1, 1).acos_()
        sine, opposite = angle.sin() / torch.pi, 1 - angle / torch.pi
        ctx.save_for_backward(sine, opposite, norm_a, norm_b)
        return norms * sine + opposite * product

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sine, opposite, norm_a, norm_b = ctx.saved_tensors
        along = grad * sine
        return grad * opposite, linalg.multiply(along, norm_b), linalg.multiply(along.mT, norm_a)


FROM_ORIGIN = {"linear": linear, "arccosine": arc_cosine}
"""Kernels that depend on where the origin is: of scaled inputs and an outputscale."""


def rbf_factor(z: Tensor, lengthscale: Tensor, outputscale: Tensor, jitter: float, name: str) -> Tensor:
    """Lower Cholesky factor of k(Z, Z) + jitter * outputscale * I `[*R, M, M]`, shapes as in `rbf`.

    More jitter where that needs it as in `linalg.cholesky`, with events of `name`. Differentiable once."""
    factor: Tensor = _RBFFactor.apply(z, lengthscale, outputscale, jitter, name)
    return factor


class _RBFFactor(torch.autograd.Function):
    """`rbf_factor` with its gradient by hand: the jitter on the diagonal scales with K, and moves with nothing else."""

    @staticmethod
    def forward(ctx, z: Tensor, lengthscale: Tensor, outputscale: Tensor, jitter: float, name: str) -> Tensor:
        a, _ = scaled(z, None, lengthscale)
        k = rbf_scaled(a, None, outputscale)
        k.diagonal(dim1=-2, dim2=-1).add_(jitter * outputscale[..., None])
        factor = linalg.factorise(k, name)
        ctx.save_for_backward(factor, k, a, lengthscale, outputscale)
        return factor

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        factor, k, a, lengthscale, outputscale = ctx.saved_tensors
        grad_k = linalg.factor_gradient(factor, grad)
        weight = (grad_k + grad_k.mT).mul_(k)
        for_z, _, *for_scales = rbf_gradient(weight, a, None, lengthscale, outputscale, False)
        return for_z, *for_scales, None, None


def scaled(
    x1: Tensor, x2: Tensor | None, lengthscale: Tensor, centre: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """a = (x1 - c) / lengthscale and b = (x2 - c) / lengthscale (None without x2), c `[*R, 1, D]` the centre, or the
    mean of x1: k sees differences only, and the smaller the numbers, the less their squares are rounded."""
    if centre is None:
        centre = x1.sum(-2, keepdim=True) / x1.shape[-2]
    scale = lengthscale[..., None, :]
    return (x1 - centre) / scale, None if x2 is None else (x2 - centre) / scale


def rbf_scaled(a: Tensor, b: Tensor | None, outputscale: Tensor) -> Tensor:
    """`rbf` of a and b as `scaled` has them; without b, of a with itself."""
    k = _exponent(a, b, outputscale.log()[..., None, None]).exp_()
    if b is None:
        k.diagonal(dim1=-2, dim2=-1).copy_(outputscale[..., None])
    return k.clamp_max_(outputscale[..., None, None])


def _exponent(a: Tensor, b: Tensor | None, log_scale: Tensor | float = 0.0) -> Tensor:
    """log_scale - 1/2 r^2 `[*R, N, M]`, but for rounding."""
    # norms and scale ride in the matrix product as two more columns: [a, -norm_a, 1] [b, 1, -norm_b]^T
    norm_a = -0.5 * a.square().sum(-1, keepdim=True)
    norm_b = norm_a if b is None else -0.5 * b.square().sum(-1, keepdim=True)
    norm_b = norm_b + log_scale
    left = torch.cat([a, norm_a, torch.ones_like(norm_a)], -1)
    right = torch.cat([a if b is None else b, torch.ones_like(norm_b), norm_b], -1)
    return left @ right.mT


def rbf_gradient(
    weight: Tensor, a: Tensor, b: Tensor | None, lengthscale: Tensor, outputscale: Tensor, for_b: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of x1, x2 (None where not `for_b`), lengthscale and outputscale from W = k (d loss / d k) `[*R, N, M]`.

    Of other kernels of r^2 all but the last, from W = -2 dk/d(r^2) (d loss / d k). With a and b as `scaled` has them,
    and r and c the sums of the rows and columns of W:
    d/da = W b - r a,    d/db = W^T a - c b,    d/d log outputscale = sum W,
    d/d log lengthscale = sum_nm W_nm (a_n - b_m)^2 = -sum_n a_n d/da_n - sum_m b_m d/db_m.
    Without b both gradients fall to a, and weight is W + W^T."""
    mirrored = b is None
    if b is None:
        b = a
    rows, product = weight.sum(-1, keepdim=True), weight @ b
    grad_a, grad_b = torch.addcmul(product, rows, a, value=-1), None
    along = (a * grad_a).sum(-2)
    if not mirrored:
        columns = weight.sum(-2, keepdim=True)
        if for_b:
            grad_b = torch.addcmul(weight.mT @ a, columns.mT, b, value=-1)
            along += (b * grad_b).sum(-2)
        else:  # sum_m b_m d/db_m without the product of d/db
            along += (a * product).sum(-2) - (columns @ b.square())[..., 0, :]
    scale = lengthscale[..., None, :]
    return (
        grad_a / scale,
        None if grad_b is None else grad_b / scale,
        -(along / lengthscale).sum_to_size(lengthscale.shape),
        (0.5 if mirrored else 1.0) * rows.sum((-2, -1)) / outputscale,
    )


def start_lengthscale(x: Tensor, given: float | None = None) -> Tensor:
    """Initial lengthscale `[R]`: given, or sqrt(sum_d var x_d), 1e-3 at least, which is sqrt(D) on standardised inputs.

    x `[R, N, D]`: the training rows, none of padding."""
    if given is not None:
        return x.new_full(x.shape[:1], given)
    centred = x - x.sum(1, keepdim=True) / x.shape[1]
    return (centred.square().sum((1, 2)) / x.shape[1]).clamp_min(1e-6).sqrt()
