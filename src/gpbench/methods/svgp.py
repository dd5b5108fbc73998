"""SVGP: stochastic variational inference for a sparse GP (hensman2013; classification hensman2015).

Model      f ~ GP(0, k), k RBF; y_n ~ p(y | f(x_n)): Gaussian, probit, robust-max or softmax, Poisson.
Posterior  u = f(Z) = L v with L L^T = K_ZZ, q(v_q) = N(m_q, L_q L_q^T) for output q  (whitened).
Objective  elbo = sum_n E_{q(f_n)} log p(y_n | f_n) - KL[q(v) || N(0, I)],
           q(f_n) = N(a_n^T m, k_nn - ||a_n||^2 + ||L_q^T a_n||^2),  a_n = L^-1 k(Z, x_n).

The expectation of softmax has no closed form: f_n is drawn, mean + sqrt(variance) * normal, in training and prediction.
Everything is trained by Adam: Z, m, L_q, and the logarithms of lengthscale, outputscale and noise variance; with
`natural_gradients` the last layer's m and L_q take natural-gradient steps instead (salimbeni2018), from the same
gradients. `dsvi` is a deep GP of these layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import kernels, likelihoods, natural, quadrature, sparse
from gpbench.gp.sparse import Layer
from gpbench.hyper import PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods.base import Batch, GradientMethod, State, TrainingSet
from gpbench.methods.layers import by_row, init_layer, layer, source, start_inducing


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Settings of hensman2013 as ashman2020 ran them; lengthscale null: sqrt(total variance of the inputs).

    ard: a lengthscale an input, else one for all; separate: outputs have kernels, or kernels and inducing inputs, of
    their own; samples_train, samples_test: of f under softmax; exposure: expected count of a bin where f = 0."""

    num_inducing: PositiveInt = 100
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.05
    ard: bool = True
    separate: Literal["none", "kernels", "all"] = "none"
    multiclass: Literal["robustmax", "softmax"] = "robustmax"
    exposure: PositiveFloat = 1.0
    samples_train: PositiveInt = 1
    samples_test: PositiveInt = 100
    jitter: PositiveFloat = 1e-6
    natural_gradients: bool = False
    natural_step: PositiveFloat = 0.1
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 10_000

    def impossible(self, task: str) -> str:
        if self.multiclass == "softmax" and task != "multiclass":
            return f"multiclass: softmax is for multiclass data, not {task}"
        if self.exposure != 1 and task != "counts":
            return f"exposure is for counts, not {task}"
        return ""

    def allows_stale_gradients(self) -> bool:
        return not self.natural_gradients


class Method(GradientMethod):
    def __init__(self, hyper, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.likelihood = likelihoods.for_task(task, num_classes, num_targets, hyper.multiclass, hyper.exposure)
        self.num_outputs = self.likelihood.num_outputs
        self.is_drawn = isinstance(self.likelihood, likelihoods.Softmax)
        self.names = ["layer1"]

    def init(self, data: TrainingSet, keys: list[streams.Key]) -> State:
        train = data.full()
        z = self.start_inducing(train, data.count, keys)
        return State(self.start_layer("layer1", train.x, train.weight, z, self.num_outputs) | self.start_noise(z))

    def start_inducing(self, train: Batch, count: Tensor, keys: list[streams.Key]) -> Tensor:
        """k-means centres of each replica's training inputs `[R, M, D]`."""
        rngs = [streams.rng(key, "init") for key in keys]
        return start_inducing(train.x, count, self.hyper.num_inducing, rngs)

    def start_layer(
        self, name: str, x: Tensor, mask: Tensor, z: Tensor, num_outputs: int, factor: float = 1.0
    ) -> dict[str, Tensor]:
        """Parameters of a layer with inputs like x `[R, N, D]`, of which the mask `[R, N]` counts."""
        hyper = self.hyper
        lengthscale = kernels.start_lengthscale(x, mask, hyper.lengthscale)
        return init_layer(name, z, num_outputs, lengthscale, hyper.outputscale, factor, hyper.ard, hyper.separate)

    def start_noise(self, z: Tensor) -> dict[str, Tensor]:
        if self.task != "regression":
            return {}
        return {"log_noise_variance": z.new_full(z.shape[:1], self.hyper.noise_variance).log()}

    @property
    def row_noise(self) -> int:
        """Standard normals of a row and sample: those of f where it is drawn."""
        return self.num_outputs if self.is_drawn else 0

    def noise_size(self, batch_size: int, step: int = 0, steps: int = 1) -> int:
        return batch_size * self.hyper.samples_train * self.row_noise

    def frozen(self, step: int, steps: int) -> frozenset[str]:
        """The common scale of the classes' functions, which robust-max cannot see: Adam would follow its rounding."""
        unseen = isinstance(self.likelihood, likelihoods.RobustMax) and self.hyper.separate == "none"
        return frozenset({f"{self.names[-1]}.log_outputscale"} if unseen else ())

    def layers(self, state: State) -> list[Layer]:
        """Layers in the order in which they are applied."""
        return [layer(state.params, name, self.hyper.jitter) for name in self.names]

    def propagate(self, state: State, layers: list[Layer], x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f(x) `[S, R, B, Q]` given noise `[R, B * S * row_noise]`; a drawn f has no variance."""
        first = sparse.conditional(x[None], *layers[0])
        return self.finish(state, layers, x, first, by_row(noise, x.shape[1], self.row_noise))

    def finish(
        self, state: State, layers: list[Layer], x: Tensor, first: tuple[Tensor, Tensor], noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `propagate`, from the moments of the first layer `[1, R, B, W]`, which all samples share."""
        mean, variance = self.deepen(state, layers, x, first, noise)
        if not self.is_drawn:
            return mean, variance
        f = mean + quadrature.std(variance) * noise[..., -self.num_outputs :]
        return f, torch.zeros_like(f)

    def deepen(self, state: State, layers: list[Layer], x: Tensor, moments: tuple[Tensor, Tensor], noise: Tensor):
        """Moments of the last layer from those of the first, which it is here."""
        return moments

    def noise_variance(self, state: State) -> Tensor | None:
        """Variance of the Gaussian likelihood `[R]`, scaled units."""
        log_noise_variance = state.params.get("log_noise_variance")
        return None if log_noise_variance is None else log_noise_variance.exp()

    def loss(self, state: State, batch: Batch, noise: Tensor) -> Tensor:
        layers = self.layers(state)
        mean, variance = self.propagate(state, layers, batch.x, noise)
        if self.is_drawn:
            expected = self.likelihood.log_prob(batch.y, mean).mean(0)
        else:
            expected = self.likelihood.expected_log_prob(batch.y, mean, variance, self.noise_variance(state)).mean(0)
        kl = sum(sparse.kl_whitened(part.whitened_mean, part.whitened_chol) for part in layers)
        return kl - (batch.weight * expected).sum(-1)

    @torch.no_grad()
    def step_own(self, state: State) -> dict[str, Tensor]:
        """q(v) of the last layer after a natural-gradient step, if it takes one."""
        if not self.hyper.natural_gradients:
            return {}
        last = self.names[-1]
        names = f"{last}.whitened_mean", f"{last}.whitened_chol"
        mean, chol = (state.params[name] for name in names)
        rate, what = self.hyper.natural_step, f"natural gradient of {last}"
        moved = natural.step(mean, chol.tril(), mean.grad, chol.grad, rate, what)
        return dict(zip(names, moved, strict=True))

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, keys: list[streams.Key]) -> list:
        mean, variance = self.marginals(state, x, keys)
        if self.is_drawn:
            return [self.likelihood.predictive(mean[:, r]) for r in range(len(keys))]
        noise_variance = self.noise_variance(state)
        noises = [None] * len(keys) if noise_variance is None else noise_variance
        return [self.likelihood.predictive(mean[:, r], variance[:, r], noise) for r, noise in enumerate(noises)]

    def marginals(self, state: State, x: Tensor, keys: list[streams.Key]) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at test rows `[S, R, T, Q]`: S = samples_test, or 1 where nothing is drawn."""
        layers, rows, size = self.layers(state), x.shape[1], self.row_noise
        first = sparse.conditional(x[None], *layers[0])
        # into one tensor, a sample at a time: parts that live on between large temporaries would fragment memory
        shape = (self.hyper.samples_test if size else 1, len(keys), rows, self.num_outputs)
        mean, variance = x.new_empty(shape), x.new_empty(shape)
        for sample in range(len(mean)):
            noise = by_row(streams.normal(keys, "eval", sample, (rows * size,), x), rows, size)
            (mean[sample],), (variance[sample],) = self.finish(state, layers, x, first, noise)
        return mean, variance

    @torch.no_grad()
    def functions(self, state: State, x: Tensor, keys: list[streams.Key]) -> list[Tensor]:
        """Posterior draws of every layer's outputs at x `[R, T, D]`: `[S, R, T, D_out]` each, S = samples_test.

        A draw is one function a layer, whatever the rows; where a layer has noise, every row has its own."""
        layers = self.layers(state)
        shapes = [(self.hyper.samples_test, *x.shape[:2], part.whitened_mean.shape[-1]) for part in layers]
        outputs = [x.new_empty(shape) for shape in shapes]
        for sample in range(self.hyper.samples_test):
            f, normal = x, source(keys, sample, x)
            drawn = [sparse.draw(part, normal) for part in layers]  # before any noise of rows
            for name, g, output in zip(self.names, drawn, outputs, strict=True):
                f = output[sample] = self.outputs(state, name, f, g(f), normal)
        return outputs

    def outputs(self, state: State, name: str, f: Tensor, g: Tensor, normal: Callable[..., Tensor]) -> Tensor:
        """Outputs of a layer at its inputs f, from a draw g of its functions there; normal(*shape): `[R, *shape]`."""
        return g
