"""SVGP: stochastic variational inference for a sparse GP (hensman2013; classification hensman2015).

Model      f ~ GP(0, k), k RBF; y_n ~ p(y | f(x_n)): Gaussian, probit, robust-max or softmax, Poisson.
Posterior  u = f(Z) = L v with L L^T = K_ZZ, q(v_q) = N(m_q, L_q L_q^T) for output q  (whitened).
Objective  elbo = sum_n E_{q(f_n)} log p(y_n | f_n) - KL[q(v) || N(0, I)],
           q(f_n) = N(a_n^T m, k_nn - ||a_n||^2 + ||L_q^T a_n||^2),  a_n = L^-1 k(Z, x_n).

It is the case of one layer of `layered`, where the objective stands; `dsvi` is a deep GP of such layers.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gpbench.gp.sparse import Layer
from gpbench.hyper import OptimisedSettings, PositiveFloat, PositiveInt, dataclass
from gpbench.methods.base import State
from gpbench.methods.layered import LayeredMethod, Moments
from gpbench.methods.training_rows import Batch
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """Settings of hensman2013 as ashman2020 ran them; lengthscale null: sqrt(total variance of the inputs).

    ard: a lengthscale an input, else one for all; separate: outputs have kernels, or kernels and inducing inputs, of
    their own; samples_train, samples_test: of f under softmax; exposure: expected count of a bin where f = 0;
    natural_gradients: under which likelihoods the last layer takes them, with the rate natural_step."""

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
    natural_gradients: Literal["none", "gaussian", "all"] = "none"
    natural_step: PositiveFloat = 0.1
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 10_000

    def impossible(self, task: str) -> str:
        if self.multiclass == "softmax" and task != "multiclass":
            return f"multiclass: softmax is for multiclass data, not {task}"
        if self.exposure != 1 and task != "counts":
            return f"exposure is for counts, not {task}"
        return ""

    def probes(self) -> list[str]:
        return super().probes() if self.separate == "none" else ["bounds"]

    def allows_stale_gradients(self) -> bool:
        return self.natural_gradients == "none"


class Method(LayeredMethod):
    def init(self, train: Batch, key: Key) -> State:
        z = self.start_inducing(train.x, key)
        return State(
            self.start_layer("layer1", train.x, z, self.num_outputs, self.hyper.outputscale) | self.start_noise(z)
        )

    def propagate(self, state: State, layers: list[Layer], x: Tensor, first: Moments, noise: Tensor) -> Moments:
        return first
