"""Likelihoods p(y | f) of a single latent value, with the derivatives that samplers need (filippone2013, appendix B).

Of tensors y and f of equal shape, element by element, in nats:

    log_prob       log p(y | f)
    gradient       d log p / df
    curvature      -d2 log p / df2, as observed
    third          d3 log p / df3
    information    the Fisher information E[curvature(y, f)], y ~ p(y | f)
    sample         y at `uniform` numbers in (0, 1), by the inverse of its distribution function

y is 0 or 1 (classes), a count, a real number, or 0, ..., r - 1 (ordered classes), as floats. `predictive` integrates f
out: mean and variance `[S, T]` of a normal f at T rows, for each of S components.
"""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from gpbench.gp import likelihoods
from gpbench.gp.quadrature import at_nodes, hermite, std
from gpbench.predictive.distributions import Categorical, GaussianMixture, Predictive

LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)
NORMAL_POINTS = 20
"""Equally likely values of f by which the predictive of `StochasticVolatility` is mixed."""


class Logit:
    """p(y = 1 | f) = 1 / (1 + e^-f): logistic regression, LRG of filippone2013."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid((2 * y - 1) * f)

    def gradient(self, y: Tensor, f: Tensor) -> Tensor:
        return y - f.sigmoid()

    def curvature(self, y: Tensor, f: Tensor) -> Tensor:
        return self.information(f)

    def third(self, y: Tensor, f: Tensor) -> Tensor:
        return -self.information(f) * (1 - 2 * f.sigmoid())

    def information(self, f: Tensor) -> Tensor:
        return f.sigmoid() * (-f).sigmoid()

    def sample(self, f: Tensor, uniform: Tensor) -> Tensor:
        return (uniform < f.sigmoid()).to(f)

    def predictive(self, mean: Tensor, variance: Tensor) -> Categorical:
        f, weights = at_nodes(mean, variance, hermite)
        return _classes(torch.stack([(-f).sigmoid() @ weights, f.sigmoid() @ weights], -1))


class Probit:
    """p(y = 1 | f) = Phi(f) (filippone2014)."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.special.log_ndtr((2 * y - 1) * f)

    def gradient(self, y: Tensor, f: Tensor) -> Tensor:
        sign = 2 * y - 1
        return sign * _hazard(sign * f)

    def curvature(self, y: Tensor, f: Tensor) -> Tensor:
        z = (2 * y - 1) * f
        return _hazard(z) * (z + _hazard(z))

    def third(self, y: Tensor, f: Tensor) -> Tensor:
        sign = 2 * y - 1
        z, h = sign * f, _hazard(sign * f)
        slope = -h * (z + h)
        return sign * (-slope * (z + h) - h * (1 + slope))

    def information(self, f: Tensor) -> Tensor:
        return _hazard(f) * _hazard(-f)

    def sample(self, f: Tensor, uniform: Tensor) -> Tensor:
        return (uniform < torch.special.ndtr(f)).to(f)

    def predictive(self, mean: Tensor, variance: Tensor) -> Predictive:
        return likelihoods.BernoulliProbit().predictive(mean[..., None], variance[..., None])


class LogGaussianCox:
    """p(y | f) = Poisson(y; e^f): the Cox process LCX of filippone2013."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return y * f - f.exp() - torch.lgamma(y + 1)

    def gradient(self, y: Tensor, f: Tensor) -> Tensor:
        return y - f.exp()

    def curvature(self, y: Tensor, f: Tensor) -> Tensor:
        return f.exp()

    def third(self, y: Tensor, f: Tensor) -> Tensor:
        return -f.exp()

    def information(self, f: Tensor) -> Tensor:
        return f.exp()

    def sample(self, f: Tensor, uniform: Tensor) -> Tensor:
        # on the host: torch has no quantiles of counts, and no transition draws any
        return torch.as_tensor(stats.poisson.ppf(uniform.cpu().numpy(), f.exp().cpu().numpy())).to(f)

    def predictive(self, mean: Tensor, variance: Tensor):
        return likelihoods.Poisson().predictive(mean[..., None], variance[..., None])


class StochasticVolatility:
    """p(y | f) = N(y; 0, e^2f): VLT of filippone2013."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return -f - 0.5 * y.square() * (-2 * f).exp() - LOG_ROOT_TAU

    def gradient(self, y: Tensor, f: Tensor) -> Tensor:
        return y.square() * (-2 * f).exp() - 1

    def curvature(self, y: Tensor, f: Tensor) -> Tensor:
        return 2 * y.square() * (-2 * f).exp()

    def third(self, y: Tensor, f: Tensor) -> Tensor:
        return 4 * y.square() * (-2 * f).exp()

    def information(self, f: Tensor) -> Tensor:
        return torch.full_like(f, 2.0)

    def sample(self, f: Tensor, uniform: Tensor) -> Tensor:
        return f.exp() * torch.special.ndtri(uniform)

    def predictive(self, mean: Tensor, variance: Tensor) -> GaussianMixture:
        """f is mixed over 20 equally likely values of its normal law, as mixtures have equal weights."""
        middle = (torch.arange(NORMAL_POINTS).to(mean) + 0.5) / NORMAL_POINTS
        f = mean[..., None] + std(variance)[..., None] * torch.special.ndtri(middle)  # [S, T, K]
        scale = (2 * f).exp().movedim(-1, 1).flatten(0, 1)[..., None].cpu().double().numpy()
        return GaussianMixture(0 * scale, scale)


class Ordinal:
    """p(y = s | f) = Phi(z_s+1) - Phi(z_s), z_s = (threshold_s - f) / noise_sd: ORD of filippone2013.

    r ordered classes between fixed thresholds -inf = threshold_0 < ... < threshold_r = inf, which with the noise's
    standard deviation are not in the paper: threshold_s = e Phi^-1(s / r) makes classes of f equally likely a priori at
    its variance e^2, and nearly so those of y (.197 to .204 where r = 5). Its appendix prints the second derivative
    with a wrong sign in the first term."""

    def __init__(self, num_classes: int, scale: float = math.e, noise_sd: float = 0.5) -> None:
        inner = [scale * float(stats.norm.ppf(s / num_classes)) for s in range(1, num_classes)]
        self.thresholds, self.noise_sd = [-math.inf, *inner, math.inf], noise_sd

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return _log_mass(*self._ends(y, f))

    def gradient(self, y: Tensor, f: Tensor) -> Tensor:
        low, high, _, _ = self._terms(y, f)
        return (low - high) / self.noise_sd

    def curvature(self, y: Tensor, f: Tensor) -> Tensor:
        low, high, a, b = self._terms(y, f)
        return ((low - high).square() - (a * low - b * high)) / self.noise_sd**2

    def third(self, y: Tensor, f: Tensor) -> Tensor:
        low, high, a, b = self._terms(y, f)
        g, first = low - high, a * low - b * high
        second = a.square() * low - b.square() * high
        return (second - g - g * first - 2 * g * (first - g.square())) / self.noise_sd**3

    def information(self, f: Tensor) -> Tensor:
        """sum_s p(s | f) gradient(s, f)^2."""
        total = torch.zeros_like(f)
        for s in range(len(self.thresholds) - 1):
            y = torch.full_like(f, s)
            total = total + self.log_prob(y, f).exp() * self.gradient(y, f).square()
        return total

    def sample(self, f: Tensor, uniform: Tensor) -> Tensor:
        inner = f.new_tensor(self.thresholds[1:-1])
        return (uniform[..., None] > torch.special.ndtr((inner - f[..., None]) / self.noise_sd)).sum(-1).to(f)

    def predictive(self, mean: Tensor, variance: Tensor) -> Categorical:
        edges = mean.new_tensor(self.thresholds)
        z = (edges - mean[..., None]) / (self.noise_sd**2 + variance[..., None]).sqrt()
        return _classes(_log_mass(z[..., :-1], z[..., 1:]).exp())

    def _ends(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """z_s and z_s+1 of the class of y."""
        edges, s = f.new_tensor(self.thresholds), y.long()
        return (edges[s] - f) / self.noise_sd, (edges[s + 1] - f) / self.noise_sd

    def _terms(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """phi(z_s) / p, phi(z_s+1) / p, z_s, z_s+1; an end at infinity counts as 0, for phi is 0 there."""
        a, b = self._ends(y, f)
        log_p = _log_mass(a, b)
        low, high = ((_log_normal(z) - log_p).exp() for z in (a, b))
        return low, high, torch.where(a.isinf(), 0.0, a), torch.where(b.isinf(), 0.0, b)


Likelihood = Logit | Probit | LogGaussianCox | StochasticVolatility | Ordinal
NAMED = {
    "logit": Logit,
    "probit": Probit,
    "poisson": LogGaussianCox,
    "volatility": StochasticVolatility,
    "ordinal": Ordinal,
}


def named(name: str, num_classes: int = 0) -> Likelihood:
    """Likelihood of a name in `NAMED`; num_classes: of `ordinal`."""
    return Ordinal(num_classes) if name == "ordinal" else NAMED[name]()


def _log_normal(z: Tensor) -> Tensor:
    """log phi(z)."""
    return -0.5 * z.square() - LOG_ROOT_TAU


def _hazard(z: Tensor) -> Tensor:
    """phi(z) / Phi(z)."""
    return (_log_normal(z) - torch.special.log_ndtr(z)).exp()


def _log_mass(a: Tensor, b: Tensor) -> Tensor:
    """log(Phi(b) - Phi(a)) for a < b, from the tail in which both are small."""
    flip = a > 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    log_high = torch.special.log_ndtr(high)
    return log_high + torch.log1p(-(torch.special.log_ndtr(low) - log_high).exp())


def _classes(probabilities: Tensor) -> Categorical:
    return Categorical(probabilities.detach().cpu().double().numpy())
