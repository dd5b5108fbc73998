"""SVGP: stochastic variational inference for a sparse GP (hensman2013; classification hensman2015).

Model      f ~ GP(0, k); y_n ~ p(y | f(x_n)): Gaussian, probit, robust-max or softmax, Poisson.
Posterior  u = f(Z) = L v with L L^T = K_ZZ, q(v_q) = N(m_q, L_q L_q^T) for output q  (whitened).
Objective  elbo = sum_n E_{q(f_n)} log p(y_n | f_n) - KL[q(v) || N(0, I)],
           q(f_n) = N(a_n^T m, k_nn - ||a_n||^2 + ||L_q^T a_n||^2),  a_n = L^-1 k(Z, x_n).

It is the case of one layer of `layered`, where the objective stands; `dsvi` is a deep GP of such layers.
With a Gaussian likelihood and all rows the best q is known, v ~ N(B^-1 A y / s, B^-1), B = I + A A^T / s, and the
objective there is the bound of `sgpr`: L-BFGS maximises it over Z and the scales, and q follows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import kernels, lowrank, sparse
from gpbench.gp.sparse import Layer
from gpbench.hyper import Formula, NonNegativeInt, OptimisedSettings, PositiveFloat, PositiveInt, dataclass
from gpbench.methods import warm_start
from gpbench.methods.base import State
from gpbench.methods.layered import LayeredMethod, Moments
from gpbench.methods.training_rows import Batch
from gpbench.streams import Key

NAME = "layer1"
"""of its one layer"""


@dataclass(frozen=True)
class LayerSettings(OptimisedSettings):
    """Settings that `svgp` and `dsvi` share; `Hyperparameters` explains them."""

    num_inducing: PositiveInt = 100
    kernel: Formula = "rbf"
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
    covariance: Literal["full", "diagonal"] = "full"
    coordinates: Literal["whitened", "inducing"] = "whitened"
    inducing_start: Literal["kmeans", "rows", "greedy"] = "kmeans"
    fixed: Literal["none", "inducing_inputs", "kernel", "all"] = "none"
    noise: Literal["shared", "each"] = "shared"
    natural_gradients: Literal["none", "gaussian", "all"] = "none"
    natural_step: PositiveFloat = 0.1
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 10_000
    full_batch_rows: NonNegativeInt = 0

    def impossible(self, task: str) -> str:
        if self.multiclass == "softmax" and task != "multiclass":
            return f"multiclass: softmax is for multiclass data, not {task}"
        if self.exposure != 1 and task != "counts":
            return f"exposure is for counts, not {task}"
        if self.noise == "each" and task != "regression":
            return f"noise: each target's own variance is for regression, not {task}"
        takes = self.natural_gradients == "all" or (self.natural_gradients == "gaussian" and task == "regression")
        if takes and not self.is_full_and_whitened:
            return "natural_gradients need a full covariance in whitened coordinates"
        return ""

    @property
    def is_full_and_whitened(self) -> bool:
        return self.covariance == "full" and self.coordinates == "whitened"

    def probes(self) -> list[str]:
        return super().probes() if self.separate == "none" else ["bounds"]

    def allows_stale_gradients(self) -> bool:
        return self.natural_gradients == "none"


@dataclass(frozen=True)
class Hyperparameters(LayerSettings):
    """Settings of hensman2013 as ashman2020 ran them, but for q, here whitened, and lengthscale (1 there), null:
    sqrt(total variance of the inputs).

    kernel: a formula of `gp.kernels`; ard: a lengthscale an input, else one for all; separate: outputs have kernels,
    or kernels and inducing inputs, of their own; samples_train, samples_test: of f under softmax; exposure: expected
    count of a bin where f = 0; full_batch_rows: training rows up to which every step takes all of them; covariance:
    of q, diagonal: sds alone; coordinates: of q, those of v or of u, in either it starts at N(0, I); inducing_start:
    Z at k-means centres, random rows, or rows of the largest variance given those before (burt2020); fixed: what
    stays at its start, all: all but q; noise: one variance, or each target's own; optimiser: `lbfgs` means Adam where
    the best q is not known (other likelihoods, separate outputs, another q or noise), where it takes natural
    gradients or something is fixed, and beyond 20,000 rows; natural_gradients: under which likelihoods the last layer
    takes them, with the rate natural_step."""

    optimiser: Literal["adam", "lbfgs"] = "adam"

    def takes_lbfgs(self, task: str, rows: int) -> bool:
        is_solved = task == "regression" and self.separate == "none" and self.natural_gradients == "none"
        is_solved = is_solved and self.is_full_and_whitened and self.fixed == "none" and self.noise == "shared"
        return is_solved and rows <= 20_000 and super().takes_lbfgs(task, rows)


class Method(LayeredMethod):
    solved = frozenset({f"{NAME}.whitened_mean", f"{NAME}.whitened_chol"})

    def init(self, train: Batch, key: Key) -> State:
        rng = streams.rng(key, "init")
        z = self.start_inducing(train.x, rng)
        params = self.start_layer(NAME, train.x, z, self.num_outputs, self.hyper.outputscale) | self.start_noise(z)
        return warm_start.by_some_rows(self, State(params), train, rng)

    def propagate(self, state: State, layers: list[Layer], x: Tensor, first: Moments, noise: Tensor) -> Moments:
        return first

    def profile(self, state: State, rows: Batch) -> Tensor:
        """-log N(y; 0, A^T A + s I) + tr(K - A^T A) / (2 s) `[R]`: minus the bound of `sgpr`."""
        noise_variance = state.params["log_noise_variance"].exp()
        a = self.features(state, rows.x)
        unexplained = sparse.unexplained(a, self.kernel(state).diagonal(rows.x))  # diagonal of K - A^T A
        return -lowrank.bound(a, rows.y, unexplained, noise_variance, torch.ones_like(unexplained), NAME)

    @torch.no_grad()
    def solve(self, state: State, rows: Batch) -> dict[str, Tensor]:
        precision = (-state.params["log_noise_variance"]).exp()[:, None].expand(rows.x.shape[:2])
        q = lowrank.condition(self.features(state, rows.x), rows.y, precision, NAME)
        mean, chol = lowrank.mean_and_chol(q)
        return {f"{NAME}.whitened_mean": mean, f"{NAME}.whitened_chol": chol}

    def features(self, state: State, x: Tensor) -> Tensor:
        """Columns a_n `[R, M, B]`."""
        z = state.params[f"{NAME}.inducing_inputs"]
        return lowrank.features(x, z, self.kernel(state), self.hyper.jitter, NAME)

    def kernel(self, state: State) -> kernels.Kernel:
        return kernels.read(self.hyper.kernel, state.params, f"{NAME}.")
