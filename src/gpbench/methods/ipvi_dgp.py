"""IPVI-DGP: implicit posterior variational inference for deep GPs (yu2019), as its public program has it.

Model      f^0 = x;  f^l = m^l(f^{l-1}) + g^l(f^{l-1}),  g^l ~ GP(0, k^l), k^l ARD;  y_n ~ p(y | f^L_n): Gaussian,
           probit or robust-max. Linear mean functions m^l in the hidden layers as in `dsvi`, none in the last.
           u = L v with L L^T = K_ZZ and v ~ p = N(0, I) in every layer.
Posterior  a generator draws v from a q that has no density: v_m = G_phi(e_m, z_m), e_m ~ N(0, I); a discriminator
           T_psi(v_m, z_m) learns log q(v_m) / p(v_m). Both are one linear map a layer, the same for all m.
Players    psi             maximises  sum_lm E_q log sigm(T) + E_p log(1 - sigm(T)),
           phi             maximises  F - sum_lm E_q T,
           theta, Z, noise maximise   F = sum_n log E_{N(f; mean_n, variance_n)} p(y_n | f).

The moments of a layer are those of the mixture of p(g_n | v_s) over `num_samples` draws of v from q,

    mean_n = a_n^T mean_s(v_s),  variance_n = k_nn - ||a_n||^2 + var_s(a_n^T v_s),  a_n = L^-1 k(Z, f^{l-1}_n),

and f^{l-1}_n is one reparametrised sample through the hidden layers. F stands where the paper has E_q log p(y | v):
a Gaussian likelihood sees the variance as added noise, and so does q's spread in it.

A step is a round: every player moves along the gradient of its own objective, by Adam with a rate of its own, all of
them from where they stand at its beginning. The program lets psi move first, at the threefold cost; and it divides
phi's E_q T by the number of inducing inputs, which the paper and this module do not.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from gpbench import streams
from gpbench.gp import kernels, likelihoods, quadrature, sparse
from gpbench.gp.layers import init_kernel, kernel, mean_map, start_inducing
from gpbench.hyper import Formula, OptimisedSettings, PositiveFloat, PositiveInt, dataclass
from gpbench.methods.base import GradientMethod, Noise, Shapes, State, noise_variance
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

FIRST_DECAY = 0.5
"""Adam's beta_1, of all players"""


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """Settings of the public program for data without settings of their own, with rossi2021's num_inducing and batches.

    Hidden layers have min(hidden_width, D) outputs; kernel, ard: as in `svgp`; num_samples: of v; noise_variance: the
    initial one, Var(y) = 1; learning_rate: of kernels, inducing inputs and noise."""

    layers: PositiveInt = 1
    hidden_width: PositiveInt = 30
    num_inducing: PositiveInt = 100
    kernel: Formula = "rbf"
    ard: bool = True
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 0.01
    noise_variance: PositiveFloat = 1.0
    jitter: PositiveFloat = 1e-6
    num_samples: PositiveInt = 100
    samples_test: PositiveInt = 100
    discriminator_rate: PositiveFloat = 0.005
    generator_rate: PositiveFloat = 0.0001
    learning_rate: PositiveFloat = 0.0025
    batch_size: PositiveInt = 1000


class Method(GradientMethod):
    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.likelihood = likelihoods.for_task(task, num_classes, num_targets)
        self.names = [f"layer{number}" for number in range(1, hyper.layers + 1)]

    def init(self, train: Batch, key: Key) -> State:
        """Z by k-means, pushed through the mean functions for the deeper layers; Glorot's uniform weights."""
        rng = streams.rng(key, "init")
        x, z = train.x, start_inducing(train.x, self.hyper.num_inducing, rng)
        width = min(self.hyper.hidden_width, x.shape[-1])
        state = State({})
        for name in self.names[:-1]:
            state.params |= self._first_layer(name, x, z, width, rng)
            mapped = state.buffers[f"{name}.mean_map"] = mean_map(x, width)
            x, z = x @ mapped, z @ mapped
        state.params |= self._first_layer(self.names[-1], x, z, self.likelihood.num_outputs, rng)
        if self.task == "regression":
            state.params["log_noise_variance"] = z.new_full((len(z),), self.hyper.noise_variance).log()
        return state

    def rates(self, name: str) -> tuple[float, float]:
        if "discriminator" in name:
            return self.hyper.discriminator_rate, FIRST_DECAY
        return (self.hyper.generator_rate if "generator" in name else self.hyper.learning_rate), FIRST_DECAY

    def frozen(self, step: int, steps: int) -> frozenset[str]:
        """The common scale of the classes' functions, which robust-max cannot see."""
        return frozenset({f"{self.names[-1]}.log_outputscale"} if self.task == "multiclass" else ())

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """For every layer draws of e and of v ~ p; one normal a row and hidden unit."""
        widths = self._widths(state)
        return Shapes((2, self.hyper.num_samples, self.hyper.num_inducing, sum(widths)), (sum(widths[:-1]),))

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        """Minus phi's objective; stop-gradients give each of the players the gradient of its own."""
        e, prior, hidden = self._by_layer(state, noise)
        mean, variance = self.propagate(state, batch.x, e, hidden)
        log_prob = self.likelihood.log_expected_prob(batch.y, mean[None], variance[None], noise_variance(state.params))
        loss = -(batch.weight * log_prob[0]).sum(-1)  # -F
        for name, part, other in zip(self.names, e, prior, strict=True):
            z = state.params[f"{name}.inducing_inputs"].detach()
            drawn = linear_map(state, f"{name}.generator", part, z)
            fixed = State({key: value.detach() for key, value in state.params.items()})
            ratio = linear_map(fixed, f"{name}.discriminator", drawn, z)  # T at q, `[R, S, M, 1]`
            cost = softplus(-linear_map(state, f"{name}.discriminator", drawn.detach(), z))
            cost = cost + softplus(linear_map(state, f"{name}.discriminator", other, z))
            # of the discriminator's cost the gradient only: it is no part of the objective
            loss = loss + (ratio + cost - cost.detach()).sum((2, 3)).mean(1)
        return loss

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Equal mixture over `samples_test` passes, each with its own draws of v and in the hidden layers."""
        widths, rows = self._widths(state), x.shape[1]
        shapes = self.noise_shapes(state, rows, 0, 1)
        shape = (self.hyper.samples_test, rows, widths[-1])
        mean, variance = x.new_empty(shape), x.new_empty(shape)
        chunk = max(1, sparse.CHUNK_ELEMENTS // (self.hyper.num_samples * max(widths)))
        for sample in range(self.hyper.samples_test):
            normals = streams.normal(key, "eval", sample, (1, shapes.size(rows)), x)
            e, _, hidden = self._by_layer(state, shapes.split(normals, rows))
            for start in range(0, rows, chunk):
                some = slice(start, start + chunk)
                moments = self.propagate(state, x[:, some], e, [part[:, some] for part in hidden])
                (mean[sample, some],), (variance[sample, some],) = moments
        return self.likelihood.predictive(mean, variance, noise_variance(state.params))

    def propagate(self, state: State, x: Tensor, e: list[Tensor], hidden: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Moments of f^L at x `[R, B, D]`, two `[R, B, Q]`; normals e `[R, S, M, K]` of each layer's generator, and
        `[R, B, K]` of each hidden layer."""
        f = x
        for name, part, eps in zip(self.names[:-1], e, hidden, strict=False):
            mean, variance = self.moments(state, name, part, f)
            f = f @ state.buffers[f"{name}.mean_map"] + mean + quadrature.std(variance) * eps
        return self.moments(state, self.names[-1], e[-1], f)

    def moments(self, state: State, name: str, e: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of g(x) `[R, B, K]` under the mixture of the p(g | v_s), v_s = G(e_s, Z)."""
        z, chol_kzz, function = kernel(state.params, name, self.hyper.jitter, self.hyper.kernel)
        v = linear_map(state, f"{name}.generator", e, z)
        a = sparse.project(x, z, chol_kzz, function)  # [R, M, B]
        centre = v.mean(1)  # [R, M, K]
        deviations = (v - centre[:, None]).mT.flatten(1, 2) @ a  # [R, S K, B]
        spread = deviations.unflatten(1, (-1, v.shape[-1])).square().mean(1)
        unexplained = sparse.unexplained(a, function.diagonal(x))
        return a.mT @ centre, (unexplained[:, None] + spread).mT

    def _widths(self, state: State) -> list[int]:
        """Number of outputs of every layer."""
        return [state.params[f"{name}.generator_bias"].shape[-1] for name in self.names]

    def _by_layer(self, state: State, noise: Noise) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Normals of the generators and of the priors, `[R, S, M, K]` a layer, and of hidden layers, `[R, B, K]`."""
        widths = self._widths(state)
        e, prior = (noise.fixed[:, part].split(widths, -1) for part in (0, 1))
        return e, prior, noise.per_row.split(widths[:-1], -1)

    def _first_layer(
        self, name: str, x: Tensor, z: Tensor, num_outputs: int, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        lengthscale = kernels.start_lengthscale(x, self.hyper.lengthscale)
        params = init_kernel(name, z, lengthscale, self.hyper.outputscale, self.hyper.ard, self.hyper.kernel)
        num_inputs = num_outputs + z.shape[-1]
        for player, size in (("generator", num_outputs), ("discriminator", 1)):
            limit = math.sqrt(6 / (num_inputs + size))
            weight = torch.as_tensor(rng.uniform(-limit, limit, (1, num_inputs, size)))
            params[f"{name}.{player}_weight"] = weight.to(z)
            params[f"{name}.{player}_bias"] = z.new_zeros(1, size)
        return params


def linear_map(state: State, player: str, v: Tensor, z: Tensor) -> Tensor:
    """[v_m, z_m] W + b `[R, S, M, K']` with the player's W `[R, K + D, K']`; v `[R, S, M, K]`, z `[R, M, D]`."""
    weight, bias = state.params[f"{player}_weight"], state.params[f"{player}_bias"]
    values, inputs = weight.split([v.shape[-1], z.shape[-1]], 1)
    return v @ values[:, None] + (z @ inputs + bias[:, None])[:, None]
