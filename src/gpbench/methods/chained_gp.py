"""Sparse variational GP with a noise process of its own: Student-t, or a second GP of the log variance (saul2016).

Model      f ~ GP(0, k_f), and
           heteroscedastic  y_n ~ N(f(x_n), s e^g(x_n)),  g ~ GP(0, k_g)  (lazarogredilla2011);
           student_t        y_n ~ t_nu(f(x_n), s), density proportional to (1 + (y_n - f)^2 / (nu s))^(-(nu + 1)/2),
           nu > 2 degrees of freedom, so that the variance s nu / (nu - 2) exists. Targets are independent.
Posterior  of every latent function h its own u_h = h(Z) = L_h v_h, L_h L_h^T = K_h, q(v_h) = N(m_h, S_h)  (whitened).
Objective  elbo = sum_n E_{q(f_n) q(g_n)} log p(y_n | f_n, g_n) - sum_h KL[q(v_h) || N(0, I)]  (saul2016),
           q(h_n) as in `svgp`. Its expectation is closed for the heteroscedastic noise,
             -1/2 [log(2 pi s) + E g_n + ((y_n - E f_n)^2 + Var f_n) / s * e^(-E g_n + Var g_n / 2)],
           and a quadrature over f_n for Student-t noise.
Predictive p(y_*) is a scale mixture of normals, N(E f_*, Var f_* + s e^g) over q(g_*), or N(E f_*, Var f_* + s / r)
           over r ~ Gamma(nu/2, nu/2), by weighted nodes (`gpbench.predictive.scale_mixtures`).

Everything is trained by Adam: what `svgp` trains, with s in the place of its noise variance, and log(nu - 2). With
g = 0, or as nu grows, it is `svgp`.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpbench.gp import likelihoods, sparse
from gpbench.gp.quadrature import Rule, at_nodes, trapezoid
from gpbench.hyper import Annotated, Gt, dataclass
from gpbench.methods import svgp
from gpbench.methods.base import Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.scale_mixtures import ScaleMixture
from gpbench.streams import Key

GAMMA_NODES, SMALLEST_LOG = 121, -2 * math.log(1e5)
"""Nodes of r, and log r of the least: it is what rules the density at 10^5 scales from the mean."""
FREEDOM = "log_excess_freedom"
"""log(nu - 2) `[R]`"""


@dataclass(frozen=True)
class Hyperparameters(svgp.LayerSettings):
    """As in `svgp`, with Adam; likelihood: of the two above; noise_variance: s at the start; separate: latent functions
    have kernels (or kernels and inducing inputs) of their own; degrees_of_freedom: nu at the start."""

    likelihood: Literal["heteroscedastic", "student_t"] = "heteroscedastic"
    separate: Literal["none", "kernels", "all"] = "kernels"
    degrees_of_freedom: Annotated[float, Gt(2)] = 4.0

    def impossible(self, task: str) -> str:
        if self.natural_gradients != "none":
            return f"natural_gradients are for svgp and dsvi, not for likelihood {self.likelihood}"
        return super().impossible(task)


class Method(svgp.Method):
    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.process = StudentT() if hyper.likelihood == "student_t" else Heteroscedastic()
        self.num_outputs = self.process.functions * num_targets
        self.noises = self.noises + self.process.params

    def init(self, train: Batch, key: Key) -> State:
        state = super().init(train, key)
        excess = state.params["log_noise_variance"].new_full((1,), self.hyper.degrees_of_freedom - 2)
        state.params |= dict.fromkeys(self.process.params, excess.log())
        return state

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        (layer,) = self.layers(state)
        mean, variance = sparse.conditional(batch.x, layer)  # of q(f_n), q(g_n)  [R, B, Q]
        # E_{q(f_n) q(g_n)} log p(y_n | f_n, g_n)
        expected = self.process.expected_log_prob(batch.y, mean, variance, state.params)
        kl = sparse.kl_whitened(layer.whitened_mean, layer.posterior_chol)  # sum_h KL[q(v_h) || N(0, I)]
        return kl - (batch.weight * expected).sum(-1)  # -elbo

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> ScaleMixture:
        mean, variance = (moment[0] for moment in self.marginals(state, x, key))  # of q(f_*), q(g_*)  [1, T, Q]
        mean, variance, weights = self.process.mixture(mean, variance, state.params)
        return ScaleMixture(*map(likelihoods._host, (mean[0], variance[:, 0], weights)))


Mixture = tuple[Tensor, Tensor, Tensor]
"""Mean `[R, T, P]`, variances `[K, R, T, P]` and weights `[K]` of a scale mixture."""


class Heteroscedastic:
    """y ~ N(f, s e^g); functions f_1, ..., f_P, g_1, ..., g_P."""

    functions = 2
    params: list[str] = []

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, params: dict[str, Tensor]) -> Tensor:
        """E log N(y; f, s e^g) `[R, B]`, y `[R, B, P]`, f and g with mean and variance `[R, B, 2 P]`."""
        (f, g), (f_variance, g_variance) = mean.chunk(2, -1), variance.chunk(2, -1)
        log_noise = log_scale(params) + g
        precision = (0.5 * g_variance - log_noise).exp()  # E[e^-g] / s = e^(-E g + Var g / 2) / s
        quadratic = ((y - f).square() + f_variance) * precision
        return -0.5 * (math.log(2 * math.pi) + log_noise + quadratic).sum(-1)

    def mixture(self, mean: Tensor, variance: Tensor, params: dict[str, Tensor]) -> Mixture:
        """N(E f, Var f + s e^g) at the nodes of q(g), in double precision: the weight of the last is e^-288."""
        (f, g), (f_variance, g_variance) = mean.chunk(2, -1), variance.chunk(2, -1)
        nodes, weights = at_nodes(g.double(), g_variance.double(), of_noise)
        return f, f_variance + (log_scale(params) + nodes.movedim(-1, 0)).exp(), weights


class StudentT:
    """y ~ t_nu(f, s); functions f_1, ..., f_P.

    The expectation takes 81 nodes of the trapezoidal rule: where sd(f) is 1, 3, 10 times sqrt(s) its largest error
    found for nu >= 2.5 is 1e-14, 2e-8, 0.002 nats (20 Gauss-Hermite nodes: 2e-6, 0.01, 0.2)."""

    functions = 1
    params = [FREEDOM]

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, params: dict[str, Tensor]) -> Tensor:
        """sum_k w_k log t_nu(y; f_k, s) `[R, B]`, y, mean and variance `[R, B, P]`."""
        f, weights = at_nodes(mean, variance, trapezoid)  # [R, B, P, K], [K]
        nu, log_s = freedom(params)[:, None, None], log_scale(params)
        constant = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * ((math.pi * nu).log() + log_s)
        distance = (y[..., None] - f).square() / (nu * log_s.exp())[..., None]
        return (constant - 0.5 * (nu + 1) * (distance.log1p() @ weights)).sum(-1)

    def mixture(self, mean: Tensor, variance: Tensor, params: dict[str, Tensor]) -> Mixture:
        """N(E f, Var f + s / r) at the nodes of r, of one replica."""
        log_r, weights = (mean.new_tensor(part) for part in log_gamma(float(freedom(params))))
        return mean, variance + (log_scale(params) - log_r[:, None, None, None]).exp(), weights


def of_noise() -> Rule:
    """161 equidistant nodes from -8 to 24, 0.2 apart: a gross outlier speaks for noise that q(g) all but excludes.
    Largest error of a log density found 10 to 40 predictive sd from the mean, for sd(g) from .02 to 2: 2e-8 nats."""
    nodes = np.linspace(-8.0, 24.0, 161)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / weights.sum()


def log_scale(params: dict[str, Tensor]) -> Tensor:
    """log s `[R, 1, 1]` of all targets, or `[R, 1, P]` of each."""
    log_s = params["log_noise_variance"]
    return log_s.view(len(log_s), 1, -1)


def freedom(params: dict[str, Tensor]) -> Tensor:
    """nu `[R]`."""
    return 2 + params[FREEDOM].exp()


def log_gamma(nu: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes t `[K]` of log r and their weights `[K]`, r ~ Gamma(a, rate a), a = nu/2, with sd about c = sqrt(2/nu).

    t = c sinh(w), w equidistant: dense where p(t) = e^(a (t - e^t)) is narrow, sparse to the left, where it decays
    slowly. The first stands for what lies left of the others' cells, r < r_0, where p(r) is proportional to r^(a - 1):
    it has the weight (a r_0)^a / Gamma(a + 1) and the mean of 1/r there, a / ((a - 1) r_0), so that the variance is
    nu / (nu - 2). Largest error of log t_nu found for nu from 2.01 to 1000 within 16 and 30 scales of the mean, and
    within 100 up to nu = 10: 5e-12, 4e-5 and 6e-8 nats; of the sd from nu = 2.001: 2e-5 of it."""
    a, c = nu / 2, math.sqrt(2 / nu)
    w = np.linspace(np.arcsinh(SMALLEST_LOG / c), np.arcsinh(np.log1p(40 * c) / c), GAMMA_NODES)
    t = c * np.sinh(w)
    log_weight = a * (t - np.exp(t)) + np.log(np.cosh(w))  # log p(t) dt/dw
    weights = np.exp(log_weight - log_weight.max())
    edge = c * math.sinh(1.5 * w[0] - 0.5 * w[1])  # log r_0
    mass = math.exp(a * (math.log(a) + edge) - math.lgamma(a + 1))
    first = edge - math.log(a / max(a - 1, 1e-9))  # single precision may round nu to 2, where there is no variance
    return np.append(first, t), np.append(mass, (1 - mass) * weights / weights.sum())
