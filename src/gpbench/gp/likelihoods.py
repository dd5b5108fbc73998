"""Likelihoods p(y | f) that factorise over rows, with the integrals against N(f; mean, variance).

expected_log_prob: int log p(y | f) N(f; mean, variance) df, the term of a variational bound; log_power_prob:
log int p(y | f)^power N(f; mean, variance) df, the normaliser of (power) expectation propagation; log_expected_prob:
that of power 1, the log predictive density. log_power_prob / power tends to expected_log_prob as power tends to 0.

Shapes: y `[R, B, P]` (0/1, class numbers or counts as floats), f, mean and variance `[S, R, B, Q]`, noise
`[R]` or `[R, P]` a variance (None but for `Gaussian`), power in (0, 1]; results `[S, R, B]` in nats.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gpbench.gp.quadrature import Rule, at_nodes, hermite, std, trapezoid

if TYPE_CHECKING:
    from gpbench.predictive.distributions import Predictive


def for_task(
    task: str, num_classes: int, num_targets: int = 1, multiclass: str = "robustmax", exposure: float = 1.0
) -> Likelihood:
    """Of a task: Gaussian, probit, robust-max or softmax (`multiclass`), Poisson; ValueError for an unknown task."""
    if task == "regression":
        return Gaussian(num_targets)
    if task == "binary":
        return BernoulliProbit()
    if task == "multiclass":
        return RobustMax(num_classes) if multiclass == "robustmax" else Softmax(num_classes)
    if task == "counts":
        return Poisson(exposure)
    raise ValueError(f"no likelihood for the task {task!r}")


def _host(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def _given(noise: Tensor | None) -> Tensor:
    if noise is None:
        raise ValueError("the Gaussian likelihood needs a noise variance")
    return noise


class Likelihood(ABC):
    """p(y | f) of `num_outputs` functions f."""

    num_outputs = 1

    @abstractmethod
    def log_prob(self, y: Tensor, f: Tensor, noise: Tensor | None = None) -> Tensor:
        """log p(y | f)."""

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        """int log p(y | f) N(f; mean, variance) df. Raises ValueError where it has no closed form."""
        raise ValueError(f"{type(self).__name__.lower()} has no closed-form expectation; sample f and average log_prob")

    def log_power_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None, power: float) -> Tensor:
        """log int p(y | f)^power N(f; mean, variance) df. Raises ValueError where it has no closed form.

        A likelihood with an `expected_log_prob` of its own, which is another integral, must override it."""
        return self.expected_log_prob(y, mean, variance, noise)

    def log_expected_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        """log int p(y | f) N(f; mean, variance) df."""
        return self.log_power_prob(y, mean, variance, noise, 1.0)

    def predictive(self, mean: Tensor, variance: Tensor | None = None, noise: Tensor | None = None) -> Predictive:
        """Predictive of one replica, an equal mixture over S: mean and variance `[S, N, Q]`; without a variance, f is
        known to be `mean`. Raises ValueError where a variance cannot be integrated."""
        return self._predictive(mean, torch.zeros_like(mean) if variance is None else variance, noise)

    @abstractmethod
    def _predictive(self, mean: Tensor, variance: Tensor, noise: Tensor | None) -> Predictive:
        """`predictive` with a variance."""


class _OneFunction(Likelihood):
    """Integrals by quadrature of `_log_prob(y, f)`, element by element."""

    rule = staticmethod(hermite)

    @abstractmethod
    def _log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f), element by element."""

    def log_prob(self, y: Tensor, f: Tensor, noise: Tensor | None = None) -> Tensor:
        """log p(y | f)."""
        return self._log_prob(y, f).sum(-1)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        """sum_k w_k log p(y | f_k)."""
        f, weights = at_nodes(mean, variance, self.rule)
        return (self._log_prob(y[..., None], f) @ weights).sum(-1)

    def log_power_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None, power: float) -> Tensor:
        """log sum_k w_k p(y | f_k)^power."""
        f, weights = at_nodes(mean, variance, self.rule)
        return (power * self._log_prob(y[..., None], f) + weights.log()).logsumexp(-1).sum(-1)


class Gaussian(Likelihood):
    """p(y | f) = N(y; f, noise): an output a target, one noise variance for all `[R]` or one each `[R, P]`."""

    def __init__(self, num_targets: int = 1) -> None:
        self.num_outputs = num_targets

    def log_prob(self, y: Tensor, f: Tensor, noise: Tensor | None = None) -> Tensor:
        """log N(y; f, noise)."""
        return self.log_expected_prob(y, f, torch.zeros_like(f), noise)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        """-1/2 log(2 pi noise) - ((y - mean)^2 + variance) / (2 noise)."""
        noise = _given(noise)
        if noise.ndim == 2:
            each = noise[:, None]
            return -0.5 * (((y - mean).square() + variance) / each + torch.log(2 * math.pi * each)).sum(-1)
        expected: Tensor = _GaussianExpectation.apply(y, mean, variance, noise)
        return expected

    def log_power_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None, power: float) -> Tensor:
        """log N(y; mean, variance + noise / power) + (1 - power)/2 log(2 pi noise) - 1/2 log power."""
        noise = _given(noise)
        noise = noise[:, None] if noise.ndim == 2 else noise[:, None, None]
        total = variance + noise / power
        constant = (1 - power) * torch.log(2 * math.pi * noise) - math.log(power)
        return 0.5 * (constant - (y - mean).square() / total - torch.log(2 * math.pi * total)).sum(-1)

    def _predictive(self, mean: Tensor, variance: Tensor, noise: Tensor | None) -> Predictive:
        """Equally weighted mixture of N(mean, variance + noise) over the S components."""
        from gpbench.predictive.distributions import GaussianMixture

        return GaussianMixture(_host(mean), _host(variance + _given(noise)))


class _GaussianExpectation(torch.autograd.Function):
    """`Gaussian.expected_log_prob` with its gradient by hand. With g that of a row and v its (y - mean)^2 + variance:

    d mean = g (y - mean) / noise,    d variance = -g / (2 noise),    d log noise = sum g/2 (v / noise - 1)."""

    @staticmethod
    def forward(ctx, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        gap = y - mean
        quadratic = torch.addcmul(variance, gap, gap).sum(-1) / noise[:, None]
        ctx.save_for_backward(gap, quadratic, noise)
        return -0.5 * (quadratic + gap.shape[-1] * torch.log(2 * math.pi * noise)[:, None])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        gap, quadratic, noise = ctx.saved_tensors
        scaled = grad / noise[:, None]
        for_noise = 0.5 * (scaled * (quadratic - gap.shape[-1])).sum_to_size(len(noise), 1)[:, 0]
        return None, scaled[..., None] * gap, (-0.5 * scaled)[..., None].expand_as(gap), for_noise


class BernoulliProbit(_OneFunction):
    """p(y = 1 | f) = Phi(f), y in {0, 1}.

    The expectation of log Phi takes 20 Gauss-Hermite nodes, as published: its largest error found at variances 1, 10,
    30, 100 is 2e-10, 3e-4, 0.006, 0.05 nats."""

    def _log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.special.log_ndtr((2 * y - 1) * f)

    def log_power_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None, power: float) -> Tensor:
        """log E Phi(f)^power, f ~ N(m, v) with m = (2 y - 1) mean. What exceeds E Phi(f) = Phi(m / sqrt(1 + v)) falls
        off as e^(-power f^2 / 2), so that it is integrated against N(m, v) e^(-power f^2 / 2) = Z N(m / c, v / c),

        c = 1 + power v,  log Z = -1/2 log c - power m^2 / (2 c).    Error below 1e-10 where v / c <= 20, else 1e-4.
        A power above 1 gives NaN, as Phi^power is then less than Phi."""
        log_prob = self.log_prob(y, mean / (1 + variance).sqrt())
        if power == 1:
            return log_prob
        signed, spread = (2 * y - 1) * mean, 1 + power * variance
        f, weights = at_nodes(signed / spread, variance / spread, trapezoid)
        log_cdf = torch.special.log_ndtr(f)
        # log(Phi^power - Phi) - log e^(-power f^2 / 2); the clamp keeps the gradient finite where Phi is 1
        excess = (-torch.expm1((1 - power) * log_cdf.clamp_max(-1e-30))).log() + power * (log_cdf + 0.5 * f.square())
        log_z = -0.5 * (spread.log() + power * signed.square() / spread)
        return torch.logaddexp(log_prob, (log_z + (excess + weights.log()).logsumexp(-1)).sum(-1))

    def _predictive(self, mean: Tensor, variance: Tensor, noise: Tensor | None) -> Predictive:
        """Probabilities of (0, 1), one component a sample."""
        from gpbench.predictive.distributions import Categorical

        z = (mean / (1 + variance).sqrt())[..., 0]
        return Categorical(_host(torch.stack([torch.special.ndtr(-z), torch.special.ndtr(z)], -1)))


class Poisson(_OneFunction):
    """p(y | f) = Poisson(y; exposure e^f): a count y = 0, 1, ... in a bin of size exposure (> 0).

    log p(y | f) narrows as 1/sqrt(y): at y = 20 and variance 1, log y within 7 sd of the mean, the quadrature is off by
    less than 1e-5 nats (20 Gauss-Hermite nodes: 0.35); nodes end at 8 sd. Where sd(f) sqrt(y) exceeds 10 it is off by
    .01 nats and more (docs/sharp-edges.md). For y of 1 and 2 the largest errors found, where f is near log y, are 1e-5
    and 1e-4 nats at variance 10, 6e-4 and 3e-3 at 20, 0.1 and 0.3 at 100."""

    rule = staticmethod(trapezoid)

    def __init__(self, exposure: float = 1.0) -> None:
        self.log_exposure = math.log(exposure)

    def _log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        log_rate = f + self.log_exposure
        return y * log_rate - log_rate.exp() - torch.lgamma(y + 1)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        """y (mean + log exposure) - exposure e^(mean + variance/2) - log y!."""
        log_rate = mean + self.log_exposure
        return (y * log_rate - (log_rate + variance / 2).exp() - torch.lgamma(y + 1)).sum(-1)

    def _predictive(self, mean: Tensor, variance: Tensor, noise: Tensor | None) -> Predictive:
        """Mixture of Poissons, 81 weighted nodes a sample."""
        from gpbench.predictive.counts import Counts

        f, weights = at_nodes(mean, variance, self.rule)  # [S, N, 1, K], [K]
        rate = (f + self.log_exposure).exp().movedim(-1, 1).flatten(0, 1)
        return Counts(_host(rate), _host(weights.repeat(len(mean)) / len(mean)))


class RobustMax(Likelihood):
    """p(y = c | f) = 1 - epsilon where f_c is the largest of the C functions, else epsilon / (C - 1).

    Source: hensman2015mcmc; the integral over the largest function is one-dimensional,
    P = E_{f_y} prod_{c != y} Phi((f_y - mean_c) / sqrt(variance_c)): in bounds and normalisers by 20 Gauss-Hermite
    nodes, as published, in predictions by 81. The factors become steps between the nodes where variance_y / variance_c
    is large. Largest error found at ratios 1, 4, 10, 100, 1000, the other functions alike: with 3 classes of 20 nodes
    1e-8, 3e-4, .007, .07, .11, of 81 below 1e-12 up to 10, then .001, .02; with 10 classes of 20 nodes 2e-5, .005,
    .024, .09, .12, of 81 1e-13, 5e-12, 4e-7, .005, .024."""

    def __init__(self, num_classes: int, epsilon: float = 1e-3) -> None:
        self.num_outputs = num_classes
        self.hit, self.miss = 1 - epsilon, epsilon / (num_classes - 1)

    def log_prob(self, y: Tensor, f: Tensor, noise: Tensor | None = None) -> Tensor:
        """log(1 - epsilon) where the largest function is the class's, else log(epsilon / (C - 1))."""
        hit = f.argmax(-1) == y[..., 0].long()
        return torch.where(hit, math.log(self.hit), math.log(self.miss)).to(f.dtype)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        """P log(1 - epsilon) + (1 - P) log(epsilon / (C - 1))."""
        largest = self.prob_largest(y, mean, variance)
        return largest * math.log(self.hit) + (1 - largest) * math.log(self.miss)

    def log_power_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None, power: float) -> Tensor:
        """log(P (1 - epsilon)^power + (1 - P) (epsilon / (C - 1))^power)."""
        return self._power_prob(self.prob_largest(y, mean, variance), power).log()

    def prob_largest(self, y: Tensor, mean: Tensor, variance: Tensor, rule: Callable[[], Rule] = hermite) -> Tensor:
        """P = Pr(f_y > f_c for every c != y) under independent normals, `[S, R, B]`."""
        label = y.long().expand(*mean.shape[:-1], 1)
        own_mean, own_variance = mean.gather(-1, label), variance.gather(-1, label)
        f_label, weights = at_nodes(own_mean, own_variance, rule)  # [S, R, B, 1, K], [K]
        # a probability that underflows to 0 has gradient 0, which is right: P itself enters, not its logarithm
        below = torch.special.ndtr((f_label - mean[..., None]) / std(variance)[..., None])  # [S, R, B, C, K]
        own = label == torch.arange(self.num_outputs, device=label.device)  # one_hot would wait for the device
        return below.masked_fill(own[..., None], 1.0).prod(-2) @ weights

    def _power_prob(self, largest: Tensor, power: float = 1.0) -> Tensor:
        return largest * self.hit**power + (1 - largest) * self.miss**power

    def _predictive(self, mean: Tensor, variance: Tensor, noise: Tensor | None) -> Predictive:
        """Class probabilities, one component a sample, normalised: without that they add up to 1 within 1e-12 where
        variances differ tenfold and .001 a hundredfold for 3 classes, 4e-7 and .005 for 10."""
        from gpbench.predictive.distributions import Categorical

        probs = torch.empty_like(mean)
        for s in range(mean.shape[0]):
            for c in range(self.num_outputs):
                label = torch.full_like(mean[s, :, :1], c)
                probs[s, :, c] = self._power_prob(self.prob_largest(label, mean[s], variance[s], trapezoid))
        return Categorical(_host(probs / probs.sum(-1, keepdim=True)))


class Softmax(Likelihood):
    """p(y = c | f) = exp(f_c) / sum_c' exp(f_c'); integrals over f are left to the samples of f given."""

    def __init__(self, num_classes: int) -> None:
        self.num_outputs = num_classes

    def log_prob(self, y: Tensor, f: Tensor, noise: Tensor | None = None) -> Tensor:
        """f_y - log sum_c exp(f_c)."""
        label = y.long().expand(*f.shape[:-1], 1)
        return f.log_softmax(-1).gather(-1, label)[..., 0]

    def predictive(self, mean: Tensor, variance: Tensor | None = None, noise: Tensor | None = None) -> Predictive:
        """Probabilities softmax(f) at samples of f given as `mean`; ValueError with a variance."""
        if variance is not None:
            raise ValueError("softmax has no closed-form predictive; sample f and pass variance=None")
        return super().predictive(mean)

    def _predictive(self, mean: Tensor, variance: Tensor, noise: Tensor | None) -> Predictive:
        from gpbench.predictive.distributions import Categorical

        return Categorical(_host(mean.softmax(-1)))
