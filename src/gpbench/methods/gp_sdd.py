"""GP regression by stochastic dual descent (lin2024).

Model      f ~ GP(0, k); y_n = f(x_n) + e_n, e_n ~ N(0, s), A = K + s I; targets share kernel and noise variance, which
           are those of `exact_gp` at the maximum of its evidence of a random subset of the rows, and stay.
Objective  1/2 alpha^T A alpha - alpha^T b for b = y, and for b = g_s(X) + e_s, S draws of the prior with noise: a
           step moves random coordinates of all right-hand sides (`solvers.dual_descent`).
Posterior  mean k_* alpha_y; variance 1/S sum_s (g_s(x_*) - k_* alpha_s)^2, for by pathwise conditioning
           g_s(x_*) - k_* A^-1 (g_s(X) + e_s) is a draw of f_* - E f_*. The g_s are made of random features.

Predictions are by the averaged iterate; no state is kept but the last.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import features, lbfgs, likelihoods
from gpbench.hyper import Formula, Fraction, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods import exact_gp
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.solvers import dual_descent
from gpbench.solvers.products import KernelProduct
from gpbench.streams import Key

LEAST_GAIN = 1e-4
"""Nats a row that a tenth of the iterations of L-BFGS must gain for it to go on."""
CHUNK = 512
"""Rows whose features or covariances with all others are formed at once."""
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """coordinates, momentum, averaging (r, times the number of steps) and draws (S) of lin2024; kernel, ard and the
    initial values as in `exact_gp`. start_rows: of the subset, start_iterations: of L-BFGS on it; num_features: random
    frequencies of a draw of the prior."""

    kernel: Formula = "rbf"
    ard: bool = True
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.1
    jitter: PositiveFloat = 1e-8
    start_rows: PositiveInt = 1000
    start_iterations: PositiveInt = 200
    coordinates: PositiveInt = 512
    momentum: Fraction = 0.9
    averaging: PositiveFloat = 100.0
    draws: PositiveInt = 64
    num_features: PositiveInt = 1000


class Method(SamplerMethod):
    hyper: Hyperparameters

    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        shared = ("kernel", "ard", "lengthscale", "outputscale", "noise_variance", "jitter")
        settings = exact_gp.Hyperparameters(**{name: getattr(hyper, name) for name in shared})
        self.exact = exact_gp.Method(settings, task, num_classes, num_targets)
        """The GP whose kernel and noise these are."""

    def init(self, train: Batch, key: Key) -> State:
        x, rng = train.x, streams.rng(key, "init")
        buffers = self.maximise_evidence(train, rng, key)
        buffers |= {"x": x, "mask": train.weight, "seed": torch.tensor([streams.seed(key, "init", 1)], device=x.device)}
        chosen = torch.as_tensor(rng.permutation(x.shape[1])[: self.hyper.coordinates], device=x.device)
        product = self.product(buffers, 0, x[0])
        buffers["beta"] = dual_descent.step_size(product, chosen, self.hyper.momentum)[None]
        prior = self.prior(buffers)
        noise = torch.as_tensor(rng.standard_normal((x.shape[1], self.hyper.draws))).to(x)
        drawn = torch.cat([prior(part) for part in x[0].split(CHUNK)]) + product.noise.sqrt()[:, None] * noise
        b = torch.cat([train.y, drawn[None]], 2)  # y, g_s(X) + e_s
        memory = {"b": b, "alpha": torch.zeros_like(b), "velocity": torch.zeros_like(b)}
        return State({"mean": torch.zeros_like(b)}, buffers, memory)

    def maximise_evidence(self, train: Batch, rng: np.random.Generator, key: Key) -> Tensors:
        """Logarithms of the parameters of kernel and noise, the best for some rows."""
        # in the order of the set, which a set that has no more keeps
        chosen = np.sort(rng.permutation(train.x.shape[1])[: self.hyper.start_rows])
        some = Batch(train.x[:, chosen], train.y[:, chosen], train.weight[:, chosen])
        cold = self.exact.init(some, key)
        objective = lbfgs.of_params(lambda params: self.exact.profile(State(params, cold.buffers), some), cold.params)
        iterations, tolerance = self.hyper.start_iterations, LEAST_GAIN * len(chosen)
        best = lbfgs.minimise(objective, lbfgs.flatten(cold.params), iterations, tolerance)
        return lbfgs.unflatten(best, cold.params)

    def keep(self, step: int, steps: int) -> bool:
        return False

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """A number a row: those with the largest are the coordinates of a step."""
        return Shapes(per_row=(1,))

    @torch.no_grad()
    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """A step of each replica; the estimated dual objective of the targets `[R]`."""
        hyper, memory, losses = self.hyper, state.memory, []
        for r, kept in enumerate(batch.weight > 0):
            product = self.product(state.buffers, r, batch.x[r, kept])
            block = noise.per_row[r, kept, 0].topk(min(hyper.coordinates, product.n)).indices
            now = dual_descent.Iterate(
                memory["alpha"][r, kept], memory["velocity"][r, kept], state.params["mean"][r, kept]
            )
            averaging = min(hyper.averaging / steps, 1.0)
            moved, objective = dual_descent.step(
                product, memory["b"][r, kept], now, block, state.buffers["beta"][r], hyper.momentum, averaging
            )
            memory["alpha"][r, kept], memory["velocity"][r, kept], state.params["mean"][r, kept] = moved
            losses.append(objective[: self.num_targets].sum())
        return torch.stack(losses) + 0 * state.params["mean"].sum((1, 2))

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        buffers, targets = state.buffers, self.num_targets
        kernel, prior, means, variances = self.exact.kernel(buffers), self.prior(buffers), [], []
        for part in x.split(CHUNK, 1):
            # padding rows have mean 0
            image = (kernel.covariance(part, buffers["x"]) @ state.params["mean"])[0]
            deviation = prior(part[0]) - image[:, targets:]
            means.append(image[:, :targets])
            variances.append(deviation.square().mean(1, keepdim=True).expand(-1, targets))
        mean, variance = torch.cat(means)[None], torch.cat(variances)[None]
        return likelihoods.Gaussian().predictive(mean, variance, self.exact.noise_variance(buffers)[:, None])

    def product(self, buffers: Tensors, r: int, x: Tensor) -> KernelProduct:
        """A of replica r at its rows x `[n, D]`."""
        kernel = self.exact.kernel(buffers).map(lambda value: value[r])
        return KernelProduct(kernel, x, self.exact.noise_variance(buffers)[r])

    def prior(self, buffers: Tensors) -> Callable[[Tensor], Tensor]:
        """Draws g_s of the prior of one replica: x `[T, D]` -> `[T, S]`, always the same functions."""
        like, kernel = buffers["x"], self.exact.kernel(buffers)
        generator = torch.Generator(like.device).manual_seed(int(buffers["seed"]))

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)

        phi = features.draw(kernel, like.shape[2], self.hyper.num_features, normal)
        weights = normal(phi(like[:, :1]).shape[2], self.hyper.draws)
        return lambda x: (phi(x[None]) @ weights)[0]
