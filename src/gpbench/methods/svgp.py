"""SVGP: stochastic variational inference for a sparse GP (hensman2013; classification hensman2015).

Model      f ~ GP(0, k), k RBF-ARD; y_n ~ p(y | f(x_n)): Gaussian, probit or robust-max.
Posterior  u = f(Z) = L v with L L^T = K_ZZ, q(v_q) = N(m_q, L_q L_q^T) for output q  (whitened).
Objective  elbo = sum_n E_{q(f_n)} log p(y_n | f_n) - KL[q(v) || N(0, I)],
           q(f_n) = N(a_n^T m, k_nn - ||a_n||^2 + ||L_q^T a_n||^2),  a_n = L^-1 k(Z, x_n).

Everything is trained by Adam: Z, m, L_q, and the logarithms of lengthscale, outputscale and noise variance.
The layer functions here are those of `dsvi`, whose deep GP with one layer this is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import inducing, kernels, likelihoods, linalg, sparse
from gpbench.gp.kernels import start_lengthscale
from gpbench.hyper import PositiveFloat, PositiveInt, dataclass
from gpbench.methods.base import Batch, GradientMethod, State, TrainingSet


@dataclass(frozen=True)
class Hyperparameters:
    """Settings of hensman2013 as ashman2020 ran them; lengthscale None: sqrt(total variance of the inputs)."""

    num_inducing: PositiveInt = 100
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.05
    jitter: PositiveFloat = 1e-6
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 10_000


class Layer(NamedTuple):
    """Q GPs that share a kernel and inducing inputs, in the order `sparse.conditional` takes them."""

    inducing_inputs: Tensor  # [R, M, D]
    chol_kzz: Tensor  # [R, M, M]
    whitened_mean: Tensor  # [R, M, Q]
    whitened_chol: Tensor  # [R, Q, M, M]
    lengthscale: Tensor  # [R, D]
    outputscale: Tensor  # [R]


def init_layer(name: str, z: Tensor, num_outputs: int, lengthscale: Tensor, outputscale: float, factor: float = 1.0):
    """Parameters of a layer at q(v) = N(0, factor^2 I); z `[R, M, D]`, lengthscale `[R]`."""
    replicas, num_inducing, num_inputs = z.shape
    eye = torch.eye(num_inducing, dtype=z.dtype, device=z.device)
    return {
        f"{name}.inducing_inputs": z,
        f"{name}.whitened_mean": z.new_zeros(replicas, num_inducing, num_outputs),
        f"{name}.whitened_chol": (factor * eye).repeat(replicas, num_outputs, 1, 1),
        f"{name}.log_lengthscale": lengthscale.log()[:, None].repeat(1, num_inputs),
        f"{name}.log_outputscale": z.new_tensor(outputscale).log().repeat(replicas),
    }


def layer(params: dict[str, Tensor], name: str, jitter: float) -> Layer:
    """Natural parameters of the layer `name`, with the factor of K_ZZ + jitter * outputscale * I."""
    z = params[f"{name}.inducing_inputs"]
    lengthscale, outputscale = params[f"{name}.log_lengthscale"].exp(), params[f"{name}.log_outputscale"].exp()
    chol_kzz = linalg.cholesky(kernels.rbf(z, z, lengthscale, outputscale), name, jitter * outputscale)
    # the sign of a column of L_q is of no consequence, so the diagonal is left unconstrained
    whitened_chol = params[f"{name}.whitened_chol"].tril()
    return Layer(z, chol_kzz, params[f"{name}.whitened_mean"], whitened_chol, lengthscale, outputscale)


class Method(GradientMethod):
    def __init__(self, hyper, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.likelihood = likelihoods.for_task(task, num_classes, num_targets)

    def init(self, data: TrainingSet, keys: list[streams.Key]) -> State:
        train = data.full()
        z = self.start_inducing(train, data.count, keys)
        params = init_layer(
            "layer1",
            z,
            self.likelihood.num_outputs,
            self.start_lengthscale(train.x, train.weight),
            self.hyper.outputscale,
        )
        return State(params | self.start_noise(z))

    def start_inducing(self, train: Batch, count: Tensor, keys: list[streams.Key]) -> Tensor:
        """k-means centres of each replica's training inputs `[R, M, D]`."""
        rows = [x[:n].cpu().numpy() for x, n in zip(train.x, count.tolist(), strict=True)]
        centres = [
            torch.as_tensor(inducing.kmeans(x, self.hyper.num_inducing, streams.rng(key, "init")))
            for x, key in zip(rows, keys, strict=True)
        ]
        return torch.stack(centres).to(train.x)

    def start_lengthscale(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.hyper.lengthscale is None:
            return start_lengthscale(x, mask)
        return x.new_full(x.shape[:1], self.hyper.lengthscale)

    def start_noise(self, z: Tensor) -> dict[str, Tensor]:
        if self.task != "regression":
            return {}
        return {"log_noise_variance": z.new_full(z.shape[:1], self.hyper.noise_variance).log()}

    def layers(self, state: State) -> list[Layer]:
        """Layers in the order in which they are applied."""
        return [layer(state.params, "layer1", self.hyper.jitter)]

    def propagate(self, state: State, layers: list[Layer], x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f(x) `[S, R, B, Q]`, one pair a sample of the hidden layers (there are none here)."""
        return sparse.conditional(x[None], *layers[-1])

    def noise_variance(self, state: State) -> Tensor | None:
        """Variance of the Gaussian likelihood `[R]`, scaled units."""
        log_noise_variance = state.params.get("log_noise_variance")
        return None if log_noise_variance is None else log_noise_variance.exp()

    def loss(self, state: State, batch: Batch, noise: Tensor) -> Tensor:
        layers = self.layers(state)
        mean, variance = self.propagate(state, layers, batch.x, noise)
        expected = self.likelihood.expected_log_prob(batch.y, mean, variance, self.noise_variance(state)).mean(0)
        kl = sum(sparse.kl_whitened(part.whitened_mean, part.whitened_chol) for part in layers)
        return kl - (batch.weight * expected).sum(-1)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, keys: list[streams.Key]) -> list:
        mean, variance = self.marginals(state, x, keys)
        noise_variance = self.noise_variance(state)
        noises = [None] * len(keys) if noise_variance is None else noise_variance
        return [self.likelihood.predictive(mean[:, r], variance[:, r], noise) for r, noise in enumerate(noises)]

    def marginals(self, state: State, x: Tensor, keys: list[streams.Key]) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at test rows `[S, R, T, Q]`."""
        return self.propagate(state, self.layers(state), x, x.new_empty(0))
