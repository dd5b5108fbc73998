"""Small regressions for the algebra of STRIDE, beside their dense matrices."""

import math

import torch
from torch import Tensor

from gpbench.gp import greedy
from gpbench.gp.deep_kernels import DeepKernel
from gpbench.gp.greedy import Regression


def tensor(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def regression(x: Tensor, y: Tensor, lengthscale=1.0, outputscale=1.0, noise_variance=0.1, jitter=1e-10) -> Regression:
    """A stationary GP at the places x `[R, S, n, D]` with targets y `[R, n]`."""
    kernel = DeepKernel("composition", tensor([[lengthscale]]).expand(len(x), 1))
    variance, noise = tensor([[outputscale]]).expand(len(x), 1), tensor([[noise_variance]]).expand(len(x), 1)
    return Regression(
        lambda a, b: kernel.covariance(a, b, variance),
        lambda rows: greedy.take(x, rows),
        variance,
        y,
        torch.ones_like(y),
        noise,
        jitter,
    )


def toy() -> Regression:
    """x = (-1, -.5, 0, .5, 1), y = sin 2x, lengthscale 0.6, outputscale 1.3, noise variance 0.05, no jitter."""
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    return regression(x[None, None, :, None], torch.sin(2 * x)[None], 0.6, 1.3, 0.05, jitter=0.0)


def random(n=30, d=2, replicas=1, particles=1, seed=0, **settings) -> Regression:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(replicas, particles, n, d, generator=generator, dtype=torch.float64)
    return regression(x, torch.sin(2 * x[:, 0, :, 0]) + 0.1, **settings)


def dense(model: Regression, chosen: list[int]) -> tuple[float, float]:
    """l and F of the first replica and particle by dense algebra, the constant -n/2 log 2 pi included."""
    places = model.places(slice(None))[:1, :1]
    k = model.covariance(places, places)[0, 0]
    noise, n = float(model.noise_variance[0]), len(k)
    kmm = k[chosen][:, chosen] + model.jitter * model.variance[0] * torch.eye(len(chosen), dtype=k.dtype)
    q = k[:, chosen] @ torch.linalg.solve(kmm, k[chosen])
    p = q + noise * torch.eye(n, dtype=k.dtype)
    y = model.y[0]
    value = -0.5 * (y @ torch.linalg.solve(p, y) + torch.logdet(p) + n * math.log(2 * math.pi))
    return float(value), float(value - 0.5 * (k - q).trace() / noise)


def values(model: Regression, chosen: list[int]) -> tuple[Tensor, Tensor]:
    """l and F `[R, S]` at the same rows of every replica."""
    rows = torch.tensor(chosen, dtype=torch.int64).expand(len(model.y), -1)
    summary = greedy.summarise(model, model.places(rows))
    return greedy.log_likelihood(model, summary), greedy.bound(model, summary)
