"""What `svgp` and `dsvi` share: layers of sparse GPs with whitened Gaussian posteriors, trained on a bound.

Posterior  u^l = f^l(Z^l) = L v^l with L L^T = K_ZZ, q(v^l_q) = N(m_q, L_q L_q^T) for output q of layer l.
Objective  elbo = 1/S sum_s sum_n E_{q(f_sn)} log p(y_n | f_sn) - sum_l KL[q(v^l) || N(0, I)]
           (hensman2015, eq. 19; salimbeni2017, eqs. 15 and 18): f_sn is the last layer's function at row n given
           sample s of the layers before it, whose moments a method gives by `propagate`.

The expectation of softmax has no closed form: f_sn is drawn, mean + sqrt(variance) * normal, in training and
prediction.
Everything is trained by Adam: Z, m, L_q, and the logarithms of lengthscale, outputscale and noise variance; with
`natural_gradients` the last layer's m and L_q take a natural-gradient step instead (salimbeni2018), before Adam moves
the others. Where the likelihood is not Gaussian its rate grows log-linearly from 1e-4 over the first 5 steps.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import kernels, likelihoods, natural, quadrature, sparse
from gpbench.gp.layers import init_layer, layer, start_inducing
from gpbench.gp.sparse import Layer
from gpbench.methods.base import GradientMethod, Noise, Shapes, State, noise_variance
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

Moments = tuple[Tensor, Tensor]
"""Mean and variance `[S, R, B, Q]` of functions at B rows."""
RAMP_START, RAMP_STEPS = 1e-4, 5
"""First rate of natural gradients, and the steps over which it grows (salimbeni2018)."""


class LayeredMethod(GradientMethod):
    """names: of the layers, in the order in which they are applied."""

    def __init__(self, hyper: Any, task: str, num_classes: int = 0, num_targets: int = 1, depth: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.likelihood = likelihoods.for_task(task, num_classes, num_targets, hyper.multiclass, hyper.exposure)
        self.num_outputs = self.likelihood.num_outputs
        self.is_drawn = isinstance(self.likelihood, likelihoods.Softmax)
        self.names = [f"layer{number}" for number in range(1, depth + 1)]
        self.noises = ["log_noise_variance"] if task == "regression" else []

    @abstractmethod
    def propagate(self, state: State, layers: list[Layer], x: Tensor, first: Moments, noise: Tensor) -> Moments:
        """Moments of the last layer at x `[R, B, D]`, from those of the first, which all samples share.

        noise `[S, R, B, row_noise]`: standard normals, first those of the hidden layers."""

    @property
    def hidden_noise(self) -> int:
        """Standard normals of a row and sample in the hidden layers."""
        return 0

    @property
    def row_noise(self) -> int:
        """Standard normals of a row and sample: those of the hidden layers, then those of f where it is drawn."""
        return self.hidden_noise + self.num_outputs * self.is_drawn

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        return Shapes(per_row=(self.hyper.samples_train if self.row_noise else 1, self.row_noise))

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        layers = self.layers(state)
        first = sparse.conditional(batch.x[None], layers[0])  # q(f^1_n) = N(A^T m, k_nn - ||A||^2 + ||L_q^T A||^2)
        mean, variance = self.functions_at(state, layers, batch.x, first, noise.per_row.permute(2, 0, 1, 3))
        if self.is_drawn:
            expected = self.likelihood.log_prob(batch.y, mean)  # log p(y_n | f_sn)
        else:  # E_{q(f_sn)} log p(y_n | f_sn)
            expected = self.likelihood.expected_log_prob(batch.y, mean, variance, noise_variance(state.params))
        kl = reduce(add, (sparse.kl_whitened(part.whitened_mean, part.posterior_chol) for part in layers))
        return kl - (batch.weight * expected).sum((0, -1)) / len(expected)  # -elbo

    def functions_at(self, state: State, layers: list[Layer], x: Tensor, first: Moments, noise: Tensor) -> Moments:
        """As `propagate`; functions that are drawn have no variance."""
        mean, variance = self.propagate(state, layers, x, first, noise)
        if not self.is_drawn:
            return mean, variance
        f = mean + quadrature.std(variance) * noise[..., -self.num_outputs :]
        return f, torch.zeros_like(f)

    def layers(self, state: State) -> list[Layer]:
        """Layers in the order in which they are applied."""
        return [layer(state.params, name, self.hyper.jitter, self.hyper.kernel) for name in self.names]

    def frozen(self, step: int, steps: int) -> frozenset[str]:
        """What `fixed` says, and the common scale of the classes' functions, which robust-max cannot see: Adam would
        follow its rounding."""
        fixed, kernel = self.hyper.fixed, kernels.names(self.hyper.kernel)
        unseen = isinstance(self.likelihood, likelihoods.RobustMax) and self.hyper.separate == "none"
        parts = ["inducing_inputs"] * (fixed in ("inducing_inputs", "all")) + kernel * (fixed in ("kernel", "all"))
        names = [f"{name}.{part}" for name in self.names for part in parts] + self.noises * (fixed == "all")
        return frozenset(names + [f"{self.names[-1]}.log_outputscale"] * unseen)

    def natural_rate(self, step: int) -> float:
        """Rate of the natural gradient at `step`; 0 where there is none."""
        is_gaussian, rate = self.task == "regression", self.hyper.natural_step
        if self.hyper.natural_gradients == "none" or (self.hyper.natural_gradients == "gaussian" and not is_gaussian):
            return 0.0
        if is_gaussian or step >= RAMP_STEPS or rate <= RAMP_START:
            return rate
        return RAMP_START * (rate / RAMP_START) ** (step / RAMP_STEPS)

    def has_own_steps(self) -> bool:
        return self.natural_rate(RAMP_STEPS) > 0

    @torch.no_grad()
    def step_own(self, state: State, step: int, factor: Tensor) -> dict[str, Tensor]:
        """q(v) of the last layer after a natural-gradient step, if it takes one."""
        rate, last = self.natural_rate(step), self.names[-1]
        names = f"{last}.whitened_mean", f"{last}.whitened_chol"
        mean, chol = (state.params[name] for name in names)
        slope, chol_slope = (part.grad for part in (mean, chol) if part.grad is not None)
        moved = natural.step(mean, chol.tril(), slope, chol_slope, rate * factor, f"natural gradient of {last}")
        return dict(zip(names, moved, strict=True))

    def start_inducing(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Inducing inputs `[1, M, D]` for the training inputs."""
        hyper = self.hyper
        log_lengthscale = kernels.start_lengthscale(x, hyper.lengthscale).log()[:, None]
        start = kernels.start(hyper.kernel, log_lengthscale, torch.zeros_like(log_lengthscale[:, 0]))
        kernel = kernels.read(hyper.kernel, start)
        return start_inducing(x, hyper.num_inducing, rng, hyper.inducing_start, kernel)

    def start_layer(
        self, name: str, x: Tensor, z: Tensor, num_outputs: int, outputscale: float, factor: float = 1.0
    ) -> dict[str, Tensor]:
        """Parameters of a layer whose inputs are like x `[1, N, D]`."""
        hyper = self.hyper
        lengthscale = kernels.start_lengthscale(x, hyper.lengthscale)
        form = hyper.ard, hyper.separate, hyper.kernel, hyper.covariance, hyper.coordinates
        return init_layer(name, z, num_outputs, lengthscale, outputscale, factor, *form)

    def start_noise(self, z: Tensor) -> dict[str, Tensor]:
        if self.task != "regression":
            return {}
        shape = (len(z), self.num_targets) if self.hyper.noise == "each" else z.shape[:1]
        return {"log_noise_variance": z.new_full(shape, self.hyper.noise_variance).log()}

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        mean, variance = (moment[:, 0] for moment in self.marginals(state, x, key))
        return self.likelihood.predictive(mean, None if self.is_drawn else variance, noise_variance(state.params))

    def marginals(self, state: State, x: Tensor, key: Key) -> Moments:
        """Moments `[S, 1, T, Q]` of f at test rows: S = samples_test, or 1 where nothing is drawn."""
        layers, rows, size = self.layers(state), x.shape[1], self.row_noise
        first = sparse.conditional(x[None], layers[0])
        # into one tensor, a sample at a time: parts that live on between large temporaries would fragment memory
        shape = (self.hyper.samples_test if size else 1, 1, rows, self.num_outputs)
        mean, variance = x.new_empty(shape), x.new_empty(shape)
        for sample in range(len(mean)):
            noise = streams.normal(key, "eval", sample, (1, 1, rows, size), x)
            (mean[sample],), (variance[sample],) = self.functions_at(state, layers, x, first, noise)
        return mean, variance

    @torch.no_grad()
    def functions(self, state: State, x: Tensor, key: Key) -> list[Tensor]:
        """Posterior draws of every layer's outputs at x `[1, T, D]`: `[S, 1, T, D_out]` each, S = samples_test.

        A draw is one function a layer, whatever the rows; where a layer has noise, every row has its own."""
        layers = self.layers(state)
        shapes = [(self.hyper.samples_test, *x.shape[:2], part.whitened_mean.shape[-1]) for part in layers]
        outputs = [x.new_empty(shape) for shape in shapes]
        for sample in range(self.hyper.samples_test):
            f, normal = x, streams.source(key, "eval", sample, x)
            drawn = [sparse.draw(part, normal) for part in layers]  # before any noise of rows
            for name, g, output in zip(self.names, drawn, outputs, strict=True):
                values = g(f)
                if name != self.names[-1]:  # f^l = m^l(f) + g^l(f) + e^l
                    values = f @ state.buffers[f"{name}.mean_map"] + values
                    if (log_noise := state.params.get(f"{name}.log_noise_variance")) is not None:
                        values = values + (0.5 * log_noise).exp()[:, None, None] * normal(*values.shape)
                f = output[sample] = values
        return outputs
