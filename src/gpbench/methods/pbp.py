"""PBP: probabilistic backpropagation, a Bayesian neural network by assumed-density filtering (hernandezlobato2015).

Model      z^0 = x,  a^l = W^l [z^(l-1), 1] / sqrt(n_l),  z^l = relu(a^l),  f = a^(L+1),  n_l inputs with that of bias;
           y ~ N(f, 1/gamma) a target, w ~ N(0, 1/lambda) a weight, lambda and gamma ~ Gamma(6, 6).
Posterior  q = prod_i N(w_i; m_i, v_i) Gamma(lambda; a_w, b_w) Gamma(gamma; a, b).
Likelihood a row at a time, in a new order every pass: f ~ N(mean, variance) by the exact moments of each layer given
           independent Gaussian inputs, Z = Z(a, b) = prod_p N(y_p; mean_p, variance_p + b / (a - 1)), and
             m <- m + v dlogZ/dm,    v <- v - v^2 [(dlogZ/dm)^2 - 2 dlogZ/dv],
             a <- [Z Z_2 Z_1^-2 (a + 1) / a - 1]^-1,  b <- [Z_2 Z_1^-1 (a + 1) / b - Z_1 Z^-1 a / b]^-1,
           Z_1 = Z(a + 1, b), Z_2 = Z(a + 2, b). A factor is included as often as there are passes, as published.
Prior      after every pass one round of expectation propagation over the factors N(w_i; 0, 1/lambda), with the same
           updates of m_i, v_i, a_w, b_w from their cavity, where Z = N(0; m_i, v_i + b_w / (a_w - 1)).
Predictive N(mean, variance + b / (a - 1)).

Gradients go back through the moments by hand. Of a ~ N(m, v) and any function h: dE h/dm = E h', dE h/dv = E h'' / 2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from gpbench.hyper import Annotated, Ge, Le, PositiveInt, Settings, dataclass
from gpbench.methods.base import ClosedFormMethod, Model
from gpbench.predictive.distributions import GaussianMixture

SHAPE = RATE = 6.0
"""Of both Gamma priors: worth 12 observations of mean 0 and variance 1, in scaled units."""
SMALLEST_VARIANCE, LARGEST_CAVITY = 1e-100, 1e6
"""Of a weight after an update, and of one without its prior factor: beyond them it is left out."""

Pair = tuple[np.ndarray, np.ndarray]
"""Of means and of variances, or of gradients with respect to them."""


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Settings of hernandezlobato2015; hidden_layers: more than four diverge; units: of every hidden layer (100 for
    protein and year there); passes: through the rows."""

    hidden_layers: Annotated[int, Ge(1), Le(4)] = 1
    units: PositiveInt = 50
    passes: PositiveInt = 40


class Layer(NamedTuple):
    """q of the weights of a layer: means and variances `[n_out, n_in + 1]`, the bias last."""

    mean: np.ndarray
    variance: np.ndarray


class Method(ClosedFormMethod):
    hyper: Hyperparameters

    def fit(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Model:
        """Means and variances of the weights and the noise's Gamma (a, b), for x `[n, D]` and y `[n, P]`."""
        widths = [x.shape[1], *[self.hyper.units] * self.hyper.hidden_layers, y.shape[1]]
        layers = [self.start(*sizes, rng) for sizes in zip(widths, widths[1:], strict=False)]
        noise, prior = (SHAPE, RATE), Prior(layers)
        for _ in range(self.hyper.passes):
            for row in rng.permutation(len(x)):
                layers, noise = include(layers, noise, x[row], y[row])
            prior.refine(layers)
        return {
            "means": [part.mean for part in layers],
            "variances": [part.variance for part in layers],
            "noise": noise,
        }

    def start(self, inputs: int, outputs: int, rng: np.random.Generator) -> Layer:
        """Means N(0, 1 / (n_in + 1)), which break the symmetry; variances those of the prior, b_w / (a_w - 1)."""
        mean = rng.standard_normal((outputs, inputs + 1)) / math.sqrt(inputs + 1)
        return Layer(mean, np.full(mean.shape, RATE / (SHAPE - 1)))

    def predict(self, model: Model, x: np.ndarray) -> GaussianMixture:
        """One Gaussian for each row of x `[T, D]`."""
        layers, (a, b) = [Layer(*part) for part in zip(model["means"], model["variances"], strict=True)], model["noise"]
        mean, variance = forward(layers, x.T)[-1][1]
        return GaussianMixture(mean.T[None], variance.T[None] + b / (a - 1))


def forward(layers: list[Layer], x: np.ndarray) -> list[tuple[Pair, Pair]]:
    """Of every layer the moments of its inputs [z, 1] and of a = W [z, 1] / sqrt(n), each `[n]`, or `[n, T]` for x
    `[D, T]`."""
    found, z = [], (x, np.zeros_like(x))
    for layer in layers:
        inputs = with_bias(*z)
        found.append((inputs, linear(layer, *inputs)))
        z = relu(*found[-1][1]) if layer is not layers[-1] else z
    return found


def with_bias(mean: np.ndarray, variance: np.ndarray) -> Pair:
    """Moments of [z, 1]."""
    one = np.ones_like(mean[:1])
    return np.concatenate([mean, one]), np.concatenate([variance, 0 * one])


def linear(layer: Layer, mean: np.ndarray, variance: np.ndarray) -> Pair:
    """Moments of a = W z / sqrt(n): M m / sqrt(n), (M^2 v + V (m^2 + v)) / n."""
    n = len(mean)
    return layer.mean @ mean / math.sqrt(n), (layer.mean**2 @ variance + layer.variance @ (mean**2 + variance)) / n


def relu(mean: np.ndarray, variance: np.ndarray) -> Pair:
    """Moments of z = max(0, a), with t = m / sqrt(v): sqrt(v) (phi(t) + t Phi(t)),
    v [Phi(t) + t^2 Phi(t) Phi(-t) + t phi(t) (Phi(-t) - Phi(t)) - phi(t)^2]."""
    sd = np.sqrt(variance)
    t, phi, below, above = standardised(mean, sd)
    spread = below * (1 + t**2 * above) + t * phi * (above - below) - phi**2
    return sd * (phi + t * below), variance * np.maximum(spread, 0.0)


def standardised(mean: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, ...]:
    """t, phi(t), Phi(t) and Phi(-t)."""
    t = mean / sd
    return t, np.exp(-0.5 * t**2) / math.sqrt(2 * math.pi), ndtr(t), ndtr(-t)


def relu_backward(mean: np.ndarray, variance: np.ndarray, to_mean: np.ndarray, to_variance: np.ndarray) -> Pair:
    """Gradients with respect to m and v, given those to the moments (M, U) of max(0, a):

    dM/dm = Phi,  dM/dv = phi / (2 sqrt(v)),  dU/dm = 2 M (1 - Phi),  dU/dv = Phi - M phi / sqrt(v)."""
    sd = np.sqrt(variance)
    t, phi, below, above = standardised(mean, sd)
    rectified = sd * (phi + t * below)
    return (
        to_mean * below + to_variance * 2 * rectified * above,
        to_mean * phi / (2 * sd) + to_variance * (below - rectified * phi / sd),
    )


def gradients(
    layers: list[Layer], moments: list[tuple[Pair, Pair]], to_mean: np.ndarray, to_variance: np.ndarray
) -> list[Pair]:
    """d log Z / dM and d log Z / dV of every layer, given those to the moments `[P]` of f."""
    found = []
    for number in range(len(layers) - 1, -1, -1):
        layer, (mean, variance) = layers[number], moments[number][0]
        n = len(mean)
        of_mean = np.outer(to_mean, mean) / math.sqrt(n) + 2 * to_variance[:, None] * layer.mean * variance / n
        found.append((of_mean, np.outer(to_variance, mean**2 + variance) / n))
        if number:
            back_mean = to_mean @ layer.mean / math.sqrt(n) + 2 * mean * (to_variance @ layer.variance) / n
            back_variance = to_variance @ (layer.mean**2 + layer.variance) / n
            to_mean, to_variance = relu_backward(*moments[number - 1][1], back_mean[:-1], back_variance[:-1])
    return found[::-1]


def include(
    layers: list[Layer], noise: tuple[float, float], x: np.ndarray, y: np.ndarray
) -> tuple[list[Layer], tuple[float, float]]:
    """q after a row x `[D]`, y `[P]`; a weight whose variance would not be positive stays as it is."""
    moments, (a, b) = forward(layers, x), noise
    mean, variance = moments[-1][1]
    gap, total = y - mean, variance + b / (a - 1)
    # log Z = -1/2 sum_p log(2 pi total_p) + gap_p^2 / total_p
    slopes = gradients(layers, moments, gap / total, 0.5 * ((gap / total) ** 2 - 1 / total))
    moved = []
    for layer, (to_mean, to_variance) in zip(layers, slopes, strict=True):
        new = layer.variance - layer.variance**2 * (to_mean**2 - 2 * to_variance)
        valid = new > SMALLEST_VARIANCE
        shifted = layer.mean + layer.variance * to_mean
        moved.append(Layer(np.where(valid, shifted, layer.mean), np.where(valid, new, layer.variance)))
    return moved, matched(a, b, *(log_normal(gap, variance + b / shape) for shape in (a - 1, a, a + 1)))


def log_normal(gap: np.ndarray, variance: np.ndarray) -> float:
    """log N(gap; 0, variance) without its constant, summed."""
    return -0.5 * float((np.log(variance) + gap**2 / variance).sum())


def matched(a: float, b: float, log_z: float, log_z1: float, log_z2: float) -> tuple[float, float]:
    """Gamma (a, b) with the first two moments after a factor; as it was where these have no Gamma."""
    with np.errstate(over="ignore", invalid="ignore"):  # of a row far from all others
        shape = np.exp(log_z2 - 2 * log_z1 + log_z) * (a + 1) / a - 1
        rate = np.exp(log_z2 - log_z1) * (a + 1) / b - np.exp(log_z1 - log_z) * a / b
    return (float(1 / shape), float(1 / rate)) if 0 < shape < 1 and rate > 0 else (a, b)


class Prior:
    """Approximate factors of the prior in natural parameters, m / v, 1 / v, a - 1 and -b of each weight, `[4, n_out,
    n_in + 1]` a layer; and Gamma (a_w, b_w) of lambda."""

    def __init__(self, layers: list[Layer]) -> None:
        self.a, self.b = SHAPE, RATE
        self.factors = [np.stack([0 * part.mean, 1 / part.variance, 0 * part.mean, 0 * part.mean]) for part in layers]

    def refine(self, layers: list[Layer]) -> None:
        """One round over all weights, one after the other, as they share lambda; moves `layers` in place."""
        for layer, factors in zip(layers, self.factors, strict=True):
            for place in np.ndindex(layer.mean.shape):
                at = (slice(None), *place)
                m, v, factors[at] = self.refined(float(layer.mean[place]), float(layer.variance[place]), factors[at])
                layer.mean[place], layer.variance[place] = m, v

    def refined(self, m: float, v: float, factor: np.ndarray) -> tuple[float, float, np.ndarray]:
        """Moments of a weight and its factor after an update from the cavity; unchanged where that is improper."""
        cavity = np.array([m / v, 1 / v, self.a - 1, -self.b]) - factor
        precision, a, b = float(cavity[1]), float(cavity[2]) + 1, -float(cavity[3])
        if not (precision > 1 / LARGEST_CAVITY and a > 1 and b > 0):
            return m, v, factor
        v, m = 1 / precision, float(cavity[0]) / precision
        total = v + b / (a - 1)
        terms = (-0.5 * (math.log(s) + m**2 / s) for s in (total, v + b / a, v + b / (a + 1)))
        self.a, self.b = matched(a, b, *terms)
        # dlogZ/dm = -m / total, and (dlogZ/dm)^2 - 2 dlogZ/dv = 1 / total
        m, v = m - v * m / total, v - v**2 / total
        return m, v, np.array([m / v, 1 / v, self.a - 1, -self.b]) - cavity
