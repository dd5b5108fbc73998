"""Deep GP by random feature expansions and stochastic variational inference (cutajar2017, "DGP-RBF" and "DGP-ARC").

Layer l = 0 .. L maps F^(l) (the inputs X for l = 0) to F^(l+1) = Phi W, with random features Phi of its kernel,

    rbf          Phi = sqrt(outputscale / N) [cos F Omega, sin F Omega]
    arc_cosine   Phi = sqrt(2 outputscale / N) max(0, F Omega)                              (order 1)

priors W_ij ~ N(0, 1), Omega_ij ~ N(0, 1 / lengthscale_i^2), and mean-field posteriors N(m_ij, s_ij^2) and
N(mu_ij, beta_ij^2). With `feed_forward` the inputs are appended to every hidden layer, F^(l) <- [F^(l), X]. Objective,
for a mini-batch that stands for all n rows:

    elbo = sum_b weight_b 1/S sum_s log p(y_b | x_b, W_s, Omega) - KL[q(W) || p(W)] - KL[q(Omega) || p(Omega)]

with W_s = m + s eps_s fresh each step. Three treatments of the frequencies (section 3.3):

    prior_fixed     Omega = eps / lengthscale, eps drawn once; no KL of Omega
    var_fixed       Omega = mu + beta eps, eps drawn once, for all samples
    var_resampled   Omega_s = mu + beta eps_s, eps_s fresh each step

(the paper prints beta^2 eps; the standard deviation multiplies the noise). No Cholesky factorisation anywhere.
Positive quantities are stored as logs; log variances of the posteriors are clipped to [-20, 5].

Choices where the paper is silent or speaks of long runs:
- weights start at m ~ N(0, v), s^2 = v: from m = 0, s^2 = 1 training stalls on the noise of the weights. v = 1e-4 had
  better held-out density than 1e-3 and 1e-2 on training rows of boston and of digits after 1,000 to 3,000 updates;
- the first lengthscale is sqrt(total variance of the scaled training inputs): sqrt(D) on standardised inputs, about 7
  on pixels in [0, 1], where sqrt(784) = 28 makes the features nearly constant. Hidden layers start at sqrt(D_F);
- the paper keeps the covariance parameters (and its program the noise) fixed for 12,000 iterations and draws 100
  samples from half of its time budget on; here both are fractions of the updates: short budgets have all phases.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpbench import streams
from gpbench.gp import kernels, likelihoods, mean_field
from gpbench.gp.features import FEATURES_PER_FREQUENCY, product, random_features
from gpbench.hyper import Annotated, Ge, Le, Lt, OptimisedSettings, PositiveFloat, PositiveInt, dataclass
from gpbench.methods.base import GradientMethod, Noise, Shapes, State, noise_variance
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

INITIAL_LOG_NOISE_VARIANCE = -2.0
CHUNK_ELEMENTS = 2**20
"""Numbers of one feature matrix: 8 MB in float64."""


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """hidden_layers: 0 is a shallow GP; num_features: frequencies a layer; likelihood: null = by task; lengthscale: of
    layer 1 at the start, null = sqrt(total variance of its inputs); weight_mean_variance, weight_variance: the
    variance the initial m are drawn with, and the initial s^2; samples_late: Monte Carlo samples from half of the
    updates on; local_reparameterisation: noise on Phi W, one draw a row, instead of on W; freeze_fraction: part of the
    updates during which covariance parameters, by `freeze_frequencies` q(Omega), by `freeze_noise` the noise stay."""

    hidden_layers: Annotated[int, Ge(0), Le(30)] = 1
    hidden_width: PositiveInt = 3
    kernel: Literal["rbf", "arc_cosine"] = "rbf"
    num_features: PositiveInt = 100
    frequencies: Literal["prior_fixed", "var_fixed", "var_resampled"] = "var_fixed"
    feed_forward: bool = False
    likelihood: Literal["gaussian", "bernoulli", "softmax"] | None = None
    lengthscale: PositiveFloat | None = None
    weight_mean_variance: Annotated[float, Ge(0)] = 1e-4
    weight_variance: PositiveFloat = 1e-4
    samples_train: PositiveInt = 1
    samples_late: PositiveInt = 1
    samples_test: PositiveInt = 100
    local_reparameterisation: bool = False
    batch_size: PositiveInt = 200
    learning_rate: PositiveFloat = 0.01
    freeze_fraction: Annotated[float, Ge(0), Lt(1)] = 0.2
    freeze_frequencies: bool = False
    freeze_noise: bool = True

    def impossible(self, task: str) -> str:
        if self.feed_forward and not self.hidden_layers:
            return "feed_forward needs a hidden layer, hidden_layers is 0"
        fitting = {"gaussian": ("regression",), "bernoulli": ("binary",), "softmax": ("binary", "multiclass")}
        if self.likelihood and task not in fitting[self.likelihood]:
            return f"the {self.likelihood} likelihood is for {' or '.join(fitting[self.likelihood])} data, not {task}"
        return ""

    def width(self) -> int:
        return self.num_features


class Method(GradientMethod):
    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        of_task = "multiclass" if hyper.likelihood == "softmax" else task
        self.likelihood = likelihoods.for_task(of_task, num_classes, num_targets, multiclass="softmax")
        self.names = [f"layer{number}" for number in range(1, hyper.hidden_layers + 2)]
        self.widths = [hyper.hidden_width] * hyper.hidden_layers + [self.likelihood.num_outputs]
        self.num_weights = hyper.num_features * FEATURES_PER_FREQUENCY[hyper.kernel]  # of one output

    def init(self, train: Batch, key: Key) -> State:
        """q(Omega) at its prior, q(W) by the settings."""
        hyper, rng, num_inputs = self.hyper, streams.rng(key, "init"), train.x.shape[-1]

        def normal(*shape: int) -> Tensor:
            return torch.from_numpy(rng.standard_normal((1, *shape))).to(train.x)

        state = State({})
        params = state.params
        inputs_variance = kernels.start_lengthscale(train.x).square()
        width, given = num_inputs, hyper.lengthscale
        lengthscale = inputs_variance.sqrt() if given is None else torch.full_like(inputs_variance, given)
        for name, next_width in zip(self.names, self.widths, strict=True):
            frequency_noise = normal(width, hyper.num_features)
            weights = hyper.weight_mean_variance**0.5 * normal(self.num_weights, next_width)
            log_lengthscale = lengthscale.log()[:, None].repeat(1, width)
            params[f"{name}.log_lengthscale"] = log_lengthscale
            params[f"{name}.log_outputscale"] = torch.zeros_like(lengthscale)
            params[f"{name}.weight_mean"] = weights
            params[f"{name}.weight_log_variance"] = torch.full_like(weights, hyper.weight_variance).log()
            if hyper.frequencies != "var_resampled":
                state.buffers[f"{name}.frequency_noise"] = frequency_noise
            if hyper.frequencies != "prior_fixed":
                log_variance = (-2 * log_lengthscale[..., None]).clamp(*mean_field.LOG_VARIANCE_RANGE)
                params[f"{name}.frequency_mean"] = torch.zeros_like(frequency_noise)
                params[f"{name}.frequency_log_variance"] = log_variance.repeat(1, 1, hyper.num_features)
            width = next_width + hyper.feed_forward * num_inputs
            lengthscale = (next_width + hyper.feed_forward * inputs_variance).sqrt().expand_as(lengthscale)
        if self.task == "regression":
            params["log_noise_variance"] = torch.full_like(lengthscale, INITIAL_LOG_NOISE_VARIANCE)
        return state

    def samples(self, step: int, steps: int) -> int:
        """Monte Carlo samples S of one step: `samples_late` from half of the updates on."""
        return self.hyper.samples_late if 2 * step >= steps else self.hyper.samples_train

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """For each sample: a normal a weight (local: a row and output) and a resampled frequency."""
        samples, local = self.samples(step, steps), self.hyper.local_reparameterisation
        shapes = self._shapes(state.params["layer1.log_lengthscale"].shape[1], weights=not local)
        return Shapes((samples, sum(map(math.prod, shapes.values()))), (samples, sum(self.widths) * local))

    def frozen(self, step: int, steps: int) -> frozenset[str]:
        """Theta, and what goes with it, for the first `freeze_fraction` of the updates; `step` from 0."""
        if step >= self.hyper.freeze_fraction * steps:
            return frozenset()
        posterior = self.hyper.freeze_frequencies and self.hyper.frequencies != "prior_fixed"
        frozen = "log_lengthscale", "log_outputscale", *(["frequency_mean", "frequency_log_variance"] * posterior)
        noise = {"log_noise_variance"} if self.hyper.freeze_noise and self.task == "regression" else set()
        return frozenset(noise) | {f"{name}.{parameter}" for name in self.names for parameter in frozen}

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        """-elbo = KL[q || p] - 1/S sum_s sum_b weight_b log p(y_b | x_b, W_s, Omega_s), `[R]`."""
        shared, local = noise.fixed.transpose(0, 1), noise.per_row.permute(2, 0, 1, 3)
        samples = len(shared)
        # some samples at a time, whose features are computed again in the backward pass: memory stays small
        size = max(1, CHUNK_ELEMENTS // (batch.weight.numel() * self.num_weights))
        parts = list(zip(shared.split(size), local.split(size), strict=True))
        if len(parts) == 1:
            return self.kl(state) - self._log_prob(state, batch, shared, local) / samples
        recompute = partial(checkpoint, self._log_prob, state, batch, use_reentrant=False, preserve_rng_state=False)
        return self.kl(state) - sum((recompute(*part) for part in parts), torch.zeros(())) / samples

    def _log_prob(self, state: State, batch: Batch, shared: Tensor, local: Tensor) -> Tensor:
        """sum_s sum_b weight_b log p(y_b | x_b, W_s, Omega_s), `[R]`; noise `[S, R, ...]`."""
        drawn = self._draw(state, shared, weights=not self.hyper.local_reparameterisation)
        f = self._forward(batch.x, state, drawn, local)[-1]
        log_prob = self.likelihood.log_prob(batch.y, f, noise_variance(state.params))
        return (batch.weight * log_prob).sum((0, 2))

    def kl(self, state: State) -> Tensor:
        """KL[q(W) || N(0, I)] + KL[q(Omega) || N(0, 1 / lengthscale^2)], this not in prior_fixed, in nats, `[R]`."""
        total = torch.zeros(())
        for name in self.names:
            weight = mean_field.factor(state.params, f"{name}.weight")
            total = total + mean_field.kl(*weight, torch.zeros_like(weight[1]))
            if self.hyper.frequencies != "prior_fixed":
                prior_log_variance = -2 * state.params[f"{name}.log_lengthscale"][..., None]
                total = total + mean_field.kl(*mean_field.factor(state.params, f"{name}.frequency"), prior_log_variance)
        return total

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Equal mixture over `samples_test` weights, the same for every row of x `[1, T, D]`."""
        drawn = self._draw(state, self._test_noise(key, x))
        rows = max(1, CHUNK_ELEMENTS // (self.hyper.samples_test * self.num_weights))
        # into one tensor: parts that live on between large temporaries would leave holes of their size in memory
        f = x.new_empty(self.hyper.samples_test, x.shape[1], self.widths[-1])
        for start in range(0, x.shape[1], rows):
            f[:, start : start + rows] = self._forward(x[:, start : start + rows], state, drawn)[-1][:, 0]
        return self.likelihood.predictive(f, None, noise_variance(state.params))

    @torch.no_grad()
    def functions(self, state: State, x: Tensor, key: Key) -> list[Tensor]:
        """Posterior draws of every layer's outputs at x `[1, T, D]`: `[S, 1, T, D_out]` each, S = `samples_test`."""
        return self._forward(x, state, self._draw(state, self._test_noise(key, x)))

    def _test_noise(self, key: Key, x: Tensor) -> Tensor:
        """Noise `[S, 1, size]` of `samples_test` weights and frequencies."""
        size = sum(map(math.prod, self._shapes(x.shape[-1], weights=True).values()))
        return streams.normal(key, "eval", 0, (self.hyper.samples_test, 1, size), like=x)

    def _forward(self, x: Tensor, state: State, drawn: dict[str, Tensor], local: Tensor | None = None) -> list[Tensor]:
        """Samples of every layer's outputs `[S, R, B, D_out]` at x `[R, B, D]`; local: noise where W is not drawn."""
        f, outputs = x, []
        for i, name in enumerate(self.names):
            if i and self.hyper.feed_forward:
                f = torch.cat([f, x.expand(*f.shape[:-1], -1)], -1)
            outputscale = state.params[f"{name}.log_outputscale"].exp()
            phi = random_features(self.hyper.kernel, f, drawn[f"{name}.frequency"], outputscale)
            if local is None or f"{name}.weight" in drawn:
                f = product(phi, drawn[f"{name}.weight"])
            else:
                f = mean_field.draw_outputs(
                    phi, *mean_field.factor(state.params, f"{name}.weight"), local.split(self.widths, -1)[i]
                )
            outputs.append(f)
        return outputs

    def _draw(self, state: State, noise: Tensor, weights: bool = True) -> dict[str, Tensor]:
        """Omega `[(S,) R, D, F]` as `layer1.frequency`, ... and, if asked, W `[S, R, N, D_out]` as `layer1.weight`,
        ..., from noise `[S, R, size]`."""
        shapes = self._shapes(state.params["layer1.log_lengthscale"].shape[1], weights)
        parts = noise.split([math.prod(shape) for shape in shapes.values()], -1)
        normals = {name: part.unflatten(-1, shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        normals |= {name.removesuffix("_noise"): eps for name, eps in state.buffers.items()}
        return {name: self._reparametrised(state, name, eps) for name, eps in normals.items()}

    def _reparametrised(self, state: State, name: str, noise: Tensor) -> Tensor:
        """W or Omega of one layer from standard normals of its shape."""
        if self.hyper.frequencies == "prior_fixed" and name.endswith("frequency"):
            return noise * (-state.params[name.replace("frequency", "log_lengthscale")]).exp()[..., None]
        mean, log_variance = mean_field.factor(state.params, name)
        return mean + (0.5 * log_variance).exp() * noise

    def _shapes(self, num_inputs: int, weights: bool) -> dict[str, tuple[int, int]]:
        """What one sample draws: resampled frequencies `[D, F]`, then (if asked) weights `[N, D_out]`, by layer."""
        shapes: dict[str, tuple[int, int]] = {}
        if self.hyper.frequencies == "var_resampled":
            appended = num_inputs if self.hyper.feed_forward else 0
            inputs = [num_inputs, *(width + appended for width in self.widths)]
            shapes |= {f"{name}.frequency": (inputs[i], self.hyper.num_features) for i, name in enumerate(self.names)}
        if weights:
            shapes |= {f"{name}.weight": (self.num_weights, self.widths[i]) for i, name in enumerate(self.names)}
        return shapes
