"""Deep GP by random Fourier features and stochastic variational inference (cutajar2017, "DGP-RBF", VAR-FIXED).

Layer l: F^(l+1) = Phi W, Phi = sqrt(outputscale / F) [cos F^(l) Omega, sin F^(l) Omega],
with priors W_ij ~ N(0, 1), Omega_ij ~ N(0, 1 / lengthscale_i^2) and mean-field posteriors N(m_ij, s_ij^2) and
N(mu_ij, beta_ij^2). Objective, for a mini-batch that stands for all n rows:

    elbo = sum_b weight_b 1/S sum_s log p(y_b | x_b, W_s, Omega) - KL[q(W) || p(W)] - KL[q(Omega) || p(Omega)]

with W_s = m + s eps_s fresh each step, and Omega = mu + beta eps from noise eps that is drawn once (VAR-FIXED). No
Cholesky factorisation anywhere. Likelihoods: Gaussian, probit for two classes, softmax for more.
Positive quantities are stored as logs; log variances of the posteriors are clipped to [-20, 5].

Choices where the paper is silent or speaks of long runs:
- weights start at m ~ N(0, v), s^2 = v: from m = 0, s^2 = 1 training stalls on the noise of the weights. v = 1e-4 had
  better held-out density than 1e-3 and 1e-2 on training rows of boston and of digits after 1,000 to 3,000 updates
  (the bound then starts lower, as the KL of many small variances is large, and catches up);
- the first lengthscale follows one rule, sqrt(total variance of the scaled training inputs): sqrt(D) on
  standardised inputs, about 7 on pixels in [0, 1] (sqrt(784) = 28 there makes the features nearly constant);
- the paper keeps the covariance parameters fixed for 12,000 iterations; here for a fraction of the updates, so
  that short budgets train them as well;
- one Monte Carlo sample throughout training (the paper raises it to 100 at half of its time budget).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench import streams
from gpbench.evaluation.predictive import Predictive
from gpbench.gp import features, kernels, likelihoods
from gpbench.hyper import Fraction, PositiveFloat, PositiveInt, dataclass
from gpbench.methods.base import Batch, GradientMethod, State, TrainingSet
from gpbench.streams import Key

LOG_VARIANCE_RANGE = (-20.0, 5.0)
INITIAL_LOG_NOISE_VARIANCE = -2.0
CHUNK_ELEMENTS = 2**20
"""Numbers of one feature matrix in prediction: 8 MB in float64."""


@dataclass(frozen=True)
class Hyperparameters:
    """layers: GP layers (2 = one hidden layer); lengthscale: null = sqrt(total variance of the training inputs);
    weight_variance: initial s^2, and the variance the initial m are drawn with;
    freeze_fraction: part of the updates during which the covariance parameters stay at their initial values."""

    layers: PositiveInt = 2
    hidden_width: PositiveInt = 3
    num_features: PositiveInt = 100
    lengthscale: PositiveFloat | None = None
    weight_variance: PositiveFloat = 1e-4
    samples_train: PositiveInt = 1
    samples_test: PositiveInt = 100
    batch_size: PositiveInt = 200
    learning_rate: PositiveFloat = 0.01
    freeze_fraction: Fraction = 0.2


class Method(GradientMethod):
    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.likelihood = likelihoods.for_task(task, num_classes, num_targets, multiclass="softmax")
        self.names = [f"layer{number}" for number in range(1, hyper.layers + 1)]
        self.widths = [hyper.hidden_width] * (hyper.layers - 1) + [self.likelihood.num_outputs]

    def init(self, data: TrainingSet, keys: list[Key]) -> State:
        """q(Omega) at its prior, q(W) small and random."""
        generators = [streams.rng(key, "init") for key in keys]
        like = data.inputs

        def normal(*shape: int) -> Tensor:
            draws = [torch.from_numpy(generator.standard_normal(shape)) for generator in generators]
            return torch.stack(draws).to(like)

        params, buffers = {}, {}
        lengthscale, num_inputs = self._first_lengthscale(data), like.shape[1]
        for name, width in zip(self.names, self.widths, strict=True):
            frequency_noise = normal(num_inputs, self.hyper.num_features)
            weights = self.hyper.weight_variance**0.5 * normal(2 * self.hyper.num_features, width)
            log_lengthscale = lengthscale.log()[:, None].repeat(1, num_inputs)
            buffers[f"{name}.frequency_noise"] = frequency_noise
            params |= {
                f"{name}.log_lengthscale": log_lengthscale,
                f"{name}.log_outputscale": torch.zeros_like(lengthscale),
                f"{name}.frequency_mean": torch.zeros_like(frequency_noise),
                f"{name}.frequency_log_variance": -2 * log_lengthscale[..., None].expand_as(frequency_noise),
                f"{name}.weight_mean": weights,
                f"{name}.weight_log_variance": torch.full_like(weights, self.hyper.weight_variance).log(),
            }
            lengthscale, num_inputs = torch.full_like(lengthscale, width**0.5), width
        if self.task == "regression":
            params["log_noise_variance"] = torch.full_like(lengthscale, INITIAL_LOG_NOISE_VARIANCE)
        return State(params, buffers)

    def noise_size(self, batch_size: int) -> int:
        """One normal a weight and training sample, whatever the batch."""
        return self.hyper.samples_train * sum(2 * self.hyper.num_features * width for width in self.widths)

    def frozen(self, step: int, steps: int) -> frozenset[str]:
        """The covariance parameters Theta, for the first `freeze_fraction` of the updates; `step` from 0."""
        if step >= self.hyper.freeze_fraction * steps:
            return frozenset()
        return frozenset(f"{name}.log_{scale}" for name in self.names for scale in ("lengthscale", "outputscale"))

    def loss(self, state: State, batch: Batch, noise: Tensor) -> Tensor:
        """-elbo `[R]`."""
        noise = noise.view(len(noise), self.hyper.samples_train, -1).transpose(0, 1)
        f = self._forward(batch.x, self._frequencies(state), self._weights(state, noise), state)
        log_prob = self.likelihood.log_prob(batch.y, f, self._noise_variance(state)).mean(0)
        return self.kl(state) - (batch.weight * log_prob).sum(-1)

    def kl(self, state: State) -> Tensor:
        """KL[q(W) || N(0, I)] + KL[q(Omega) || N(0, 1 / lengthscale^2)] in nats, `[R]`."""
        total = 0.0
        for name in self.names:
            weight, frequency = _posterior(state, f"{name}.weight"), _posterior(state, f"{name}.frequency")
            prior_log_variance = -2 * state.params[f"{name}.log_lengthscale"][..., None]
            total = total + gaussian_kl(*weight, torch.zeros_like(weight[1]))
            total = total + gaussian_kl(*frequency, prior_log_variance)
        return total

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, keys: list[Key]) -> list[Predictive]:
        """Equal mixture over `samples_test` weights, the same for every row of x `[R, T, D]`."""
        size = self.noise_size(1) // self.hyper.samples_train
        noise = streams.normal(keys, "eval", 0, (self.hyper.samples_test, size), like=x).transpose(0, 1)
        frequencies, weights = self._frequencies(state), self._weights(state, noise)
        rows = max(1, CHUNK_ELEMENTS // (len(keys) * self.hyper.samples_test * 2 * self.hyper.num_features))
        chunks = [self._forward(part, frequencies, weights, state) for part in x.split(rows, 1)]
        f, noise_variance = torch.cat(chunks, 2), self._noise_variance(state)
        noises = [None] * len(keys) if noise_variance is None else noise_variance
        return [self._predictive(f[:, r], noise) for r, noise in enumerate(noises)]

    def _predictive(self, f: Tensor, noise_variance: Tensor | None) -> Predictive:
        """Predictive of one replica from samples f `[S, T, Q]`, which carry no variance of their own."""
        if self.task == "multiclass":
            return self.likelihood.predictive(f)
        return self.likelihood.predictive(f, torch.zeros_like(f), noise_variance)

    def _forward(self, x: Tensor, frequencies: list[Tensor], weights: list[Tensor], state: State) -> Tensor:
        """Samples of the last layer `[S, R, B, Q]` at x `[R, B, D]`."""
        f = x
        for name, omega, weight in zip(self.names, frequencies, weights, strict=True):
            f = features.fourier(f, omega, state.params[f"{name}.log_outputscale"].exp()) @ weight
        return f

    def _frequencies(self, state: State) -> list[Tensor]:
        """Omega = mu + beta eps with the noise of the start, one `[R, D, F]` a layer."""
        noises = [state.buffers[f"{name}.frequency_noise"] for name in self.names]
        posteriors = [_posterior(state, f"{name}.frequency") for name in self.names]
        return [_reparametrised(*posterior, noise) for posterior, noise in zip(posteriors, noises, strict=True)]

    def _weights(self, state: State, noise: Tensor) -> list[Tensor]:
        """W = m + s eps, one `[S, R, 2F, D_out]` a layer, from noise `[S, R, noise_size]`."""
        posteriors = [_posterior(state, f"{name}.weight") for name in self.names]
        noises = noise.split([mean[0].numel() for mean, _ in posteriors], -1)
        return [
            _reparametrised(*posterior, part.reshape(-1, *posterior[0].shape))
            for posterior, part in zip(posteriors, noises, strict=True)
        ]

    def _first_lengthscale(self, data: TrainingSet) -> Tensor:
        """The configured lengthscale, or sqrt(total variance) of each replica's scaled training inputs, `[R]`."""
        if self.hyper.lengthscale is not None:
            return torch.full_like(data.x_shift[:, 0], self.hyper.lengthscale)
        train = data.full()
        return kernels.start_lengthscale(train.x, train.weight)

    def _noise_variance(self, state: State) -> Tensor | None:
        return state.params["log_noise_variance"].exp() if self.task == "regression" else None


def _posterior(state: State, name: str) -> tuple[Tensor, Tensor]:
    """Mean and clipped log variance of a mean-field factor."""
    return state.params[f"{name}_mean"], state.params[f"{name}_log_variance"].clamp(*LOG_VARIANCE_RANGE)


def _reparametrised(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    return mean + (0.5 * log_variance).exp() * noise


def gaussian_kl(mean: Tensor, log_variance: Tensor, prior_log_variance: Tensor) -> Tensor:
    """KL[N(m, s^2) || N(0, p^2)] = 1/2 (s^2 / p^2 + m^2 / p^2 - 1 - log s^2 / p^2), summed to `[R]`."""
    log_ratio = log_variance - prior_log_variance
    terms = log_ratio.exp() + mean.square() * (-prior_log_variance).exp() - 1 - log_ratio
    return 0.5 * terms.sum((-2, -1))
