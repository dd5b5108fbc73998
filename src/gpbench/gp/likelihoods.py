"""Likelihoods p(y | f) that factorise over rows, with the integrals against N(f; mean, variance).

Shapes: y `[R, B, P]` (0/1 or class numbers as floats for classification), f, mean and variance
`[S, R, B, Q]`, noise_variance `[R]` (None but for `Gaussian`); results `[S, R, B]` in nats.
`predictive` is for one replica: mean and variance `[S, N, Q]`.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

QUADRATURE_NODES = 20
SMALLEST_VARIANCE = 1e-12
"""Below it a marginal counts as a point; keeps the gradient of a standard deviation finite."""


def for_task(task: str, num_classes: int, num_targets: int = 1, multiclass: str = "robustmax") -> Likelihood:
    """Likelihood of a task: Gaussian, probit, or for `multiclass` robust-max or softmax."""
    if task == "regression":
        return Gaussian(num_targets)
    if task == "binary":
        return BernoulliProbit()
    if task == "multiclass":
        return {"robustmax": RobustMax, "softmax": Softmax}[multiclass](num_classes)
    raise ValueError(f"no likelihood for the task {task!r}")


@cache
def _hermite() -> tuple[np.ndarray, np.ndarray]:
    """Nodes t_k and weights w_k with E[g(e)] = sum_k w_k g(t_k) for a standard normal e."""
    nodes, weights = np.polynomial.hermite.hermgauss(QUADRATURE_NODES)
    return math.sqrt(2.0) * nodes, weights / math.sqrt(math.pi)


def _quadrature(like: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(torch.as_tensor(part, dtype=like.dtype, device=like.device) for part in _hermite())


def _std(variance: Tensor) -> Tensor:
    return variance.clamp_min(SMALLEST_VARIANCE).sqrt()


def _host(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


class Gaussian:
    """p(y | f) = N(y; f, noise_variance): an output a target, one noise variance for all."""

    def __init__(self, num_targets: int = 1) -> None:
        self.num_outputs = num_targets

    def log_prob(self, y: Tensor, f: Tensor, noise_variance: Tensor) -> Tensor:
        """log N(y; f, noise_variance)."""
        return self.log_expected_prob(y, f, torch.zeros_like(f), noise_variance)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise_variance: Tensor) -> Tensor:
        """-1/2 log(2 pi noise) - ((y - mean)^2 + variance) / (2 noise)."""
        noise = noise_variance[:, None, None]
        quadratic = ((y - mean).square() + variance) / noise
        return -0.5 * (quadratic + torch.log(2 * math.pi * noise)).sum(-1)

    def log_expected_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise_variance: Tensor) -> Tensor:
        """log N(y; mean, variance + noise)."""
        total = variance + noise_variance[:, None, None]
        return -0.5 * ((y - mean).square() / total + torch.log(2 * math.pi * total)).sum(-1)

    def predictive(self, mean: Tensor, variance: Tensor, noise_variance: Tensor):
        """Equally weighted mixture of N(mean, variance + noise) over the S components."""
        from gpbench.evaluation.predictive import GaussianMixture

        return GaussianMixture(_host(mean), _host(variance + noise_variance))


class BernoulliProbit:
    """p(y = 1 | f) = Phi(f), y in {0, 1}."""

    num_outputs = 1

    def log_prob(self, y: Tensor, f: Tensor, noise_variance: None = None) -> Tensor:
        """log Phi((2 y - 1) f)."""
        return torch.special.log_ndtr((2 * y - 1) * f).sum(-1)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise_variance: None = None) -> Tensor:
        """E log Phi((2 y - 1) f) by Gauss-Hermite quadrature with 20 nodes."""
        nodes, weights = _quadrature(mean)
        f = mean[..., None] + _std(variance)[..., None] * nodes
        return (torch.special.log_ndtr((2 * y - 1)[..., None] * f) @ weights).sum(-1)

    def log_expected_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise_variance: None = None) -> Tensor:
        """log Phi((2 y - 1) mean / sqrt(1 + variance))."""
        return self.log_prob(y, mean / (1 + variance).sqrt())

    def predictive(self, mean: Tensor, variance: Tensor, noise_variance: None = None):
        """Probabilities of (0, 1), one component a sample."""
        from gpbench.evaluation.predictive import Categorical

        z = mean / (1 + variance).sqrt()
        return Categorical(_host(torch.special.ndtr(torch.cat([-z, z], -1))))


class RobustMax:
    """p(y = c | f) = 1 - epsilon where f_c is the largest of the C functions, else epsilon / (C - 1).

    Source: hensman2015, section 2.1; the integral over the largest function is one-dimensional,
    P = E_{f_y} prod_{c != y} Phi((f_y - mean_c) / sqrt(variance_c)), 20 Gauss-Hermite nodes.
    """

    def __init__(self, num_classes: int, epsilon: float = 1e-3) -> None:
        self.num_outputs = num_classes
        self.hit, self.miss = 1 - epsilon, epsilon / (num_classes - 1)

    def log_prob(self, y: Tensor, f: Tensor, noise_variance: None = None) -> Tensor:
        """log(1 - epsilon) where the largest function is the class's, else log(epsilon / (C - 1))."""
        hit = f.argmax(-1) == y[..., 0].long()
        return torch.where(hit, math.log(self.hit), math.log(self.miss)).to(f.dtype)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise_variance: None = None) -> Tensor:
        """P log(1 - epsilon) + (1 - P) log(epsilon / (C - 1))."""
        largest = self.prob_largest(y, mean, variance)
        return largest * math.log(self.hit) + (1 - largest) * math.log(self.miss)

    def log_expected_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise_variance: None = None) -> Tensor:
        """log(P (1 - epsilon) + (1 - P) epsilon / (C - 1))."""
        return self._prob(self.prob_largest(y, mean, variance)).log()

    def prob_largest(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """P = Pr(f_y > f_c for every c != y) under independent normals, `[S, R, B]`."""
        label = y.long().expand(*mean.shape[:-1], 1)
        std = _std(variance)
        nodes, weights = _quadrature(mean)
        f_label = mean.gather(-1, label) + std.gather(-1, label) * nodes  # [S, R, B, K]
        # a probability that underflows to 0 has gradient 0, which is right: P itself enters, not its logarithm
        below = torch.special.ndtr((f_label[..., None, :] - mean[..., None]) / std[..., None])  # [S, R, B, C, K]
        own = torch.nn.functional.one_hot(label[..., 0], self.num_outputs).bool()
        return below.masked_fill(own[..., None], 1.0).prod(-2) @ weights

    def _prob(self, largest: Tensor) -> Tensor:
        return largest * self.hit + (1 - largest) * self.miss

    def predictive(self, mean: Tensor, variance: Tensor, noise_variance: None = None):
        """Class probabilities, one component a sample, normalised (quadrature leaves an error of about 1e-4)."""
        from gpbench.evaluation.predictive import Categorical

        probs = torch.empty_like(mean)
        for s in range(mean.shape[0]):
            for c in range(self.num_outputs):
                label = torch.full_like(mean[s, :, :1], c)
                probs[s, :, c] = self._prob(self.prob_largest(label, mean[s], variance[s]))
        return Categorical(_host(probs / probs.sum(-1, keepdim=True)))


class Softmax:
    """p(y = c | f) = exp(f_c) / sum_c' exp(f_c'); integrals over f are left to the samples of f given."""

    def __init__(self, num_classes: int) -> None:
        self.num_outputs = num_classes

    def log_prob(self, y: Tensor, f: Tensor, noise_variance: None = None) -> Tensor:
        """f_y - log sum_c exp(f_c)."""
        label = y.long().expand(*f.shape[:-1], 1)
        return f.log_softmax(-1).gather(-1, label)[..., 0]

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, noise_variance: None = None) -> Tensor:
        """Has no closed form.

        Raises ValueError: sample f and average `log_prob`.
        """
        raise ValueError("softmax has no closed-form expectation; sample f and average log_prob")

    log_expected_prob = expected_log_prob

    def predictive(self, mean: Tensor, variance: None = None, noise_variance: None = None):
        """Probabilities softmax(f) at samples of f given as `mean`.

        Raises ValueError where a variance is given: it could not be integrated.
        """
        from gpbench.evaluation.predictive import Categorical

        if variance is not None:
            raise ValueError("softmax has no closed-form predictive; sample f and pass variance=None")
        return Categorical(_host(mean.softmax(-1)))


Likelihood = Gaussian | BernoulliProbit | RobustMax | Softmax
