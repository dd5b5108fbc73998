"""Variational auto-encoded deep GP: a network gives the distributions of the hidden variables (dai2016).

Model      that of `dgp_meanfield`: h^0 = x;  h^l_n ~ N(f^l(h^{l-1}_n), s_l I), f^l_d ~ GP(0, k^l);  h^L = y.
Posterior  q(h^l_n) = N(mu^l_n, diag(v^l)) with mu^l_n = g_l(mu^{l-1}_n), mu^0 = x, l = 1..L-1: g_l is a perceptron,
           v^l a vector for all rows; q(u^l_d) = N(m, S), whitened as in `svgp`.
Objective  bound = sum_n sum_l [E log N(h^l_n; f^l, s_l) + H[q(h^l_n)]] - sum_l KL[q(u^l) || p(u^l)],
           E log N(h; f, s) = -1/2 log 2 pi s - ((mu - m_f)^2 + v + v_f) / (2 s), h and f independent under q, and
           m_f, v_f the exact moments of f^l at q(h^{l-1}); y has v = 0 and no entropy.
Prediction that of `dgp_meanfield`: x goes through the GPs, not through the networks.

The paper integrates u out, which needs all rows in every step; with q(u) explicit the bound is a sum over rows, of
which mini-batches are unbiased estimates, and at the best q(u) it is the same. Regression only: through another
likelihood the Gaussians that leave the hidden layers would give no bound.
The recognition model of supervised data is open in the paper, which maps from y; here it is that of the authors'
program (PyDeepGP): from x downwards, int(2/3 W) and int(1/3 W) tanh units for W inputs and outputs together, v the same
for all rows. What y says of h enters through training; any network gives a bound. Weights start uniform in
+-sqrt(6 / W) of their layer, q(u^l) at the mean g_l(Z^l), 0 in layer L; v and s as in `dgp_meanfield`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import propagation, sparse
from gpbench.gp.layers import kernel, start_inducing
from gpbench.gp.sparse import Layer
from gpbench.hyper import PositiveFloat, PositiveInt, dataclass
from gpbench.methods import dgp_meanfield
from gpbench.methods.base import Noise, State
from gpbench.methods.dgp_meanfield import Gaussians, double
from gpbench.methods.training_rows import Batch
from gpbench.streams import Key

START_DEVIATION = 0.1
"""Standard deviation of the whitened u under q(u) at the start; at 1, f would hide what the networks say."""


@dataclass(frozen=True)
class Hyperparameters(dgp_meanfield.Hyperparameters):
    """Those of `dgp_meanfield`, and mini-batches."""

    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 1000


def start_network(num_inputs: int, num_outputs: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Weights `[W_in + 1, W_out]` of the three layers of a perceptron, the last row the biases."""
    total = num_inputs + num_outputs
    sizes = [num_inputs, max(1, 2 * total // 3), max(1, total // 3), num_outputs]
    weights = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        bound = math.sqrt(6 / (inputs + outputs))
        weights.append(np.vstack([rng.uniform(-bound, bound, (inputs, outputs)), np.zeros((1, outputs))]))
    return weights


def perceptron(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Outputs `[R, B, W_out]` at x `[R, B, W_in]`: tanh units, the last layer linear."""
    for number, weight in enumerate(weights):
        x = torch.baddbmm(weight[:, -1:], x if number == 0 else x.tanh(), weight[:, :-1])
    return x


class Method(dgp_meanfield.Method):
    def init(self, train: Batch, key: Key) -> State:
        hyper, rng = self.hyper, streams.rng(key, "init")
        x, z = train.x, start_inducing(train.x, hyper.num_inducing, rng)
        params: dict[str, Tensor] = {}
        width = min(hyper.hidden_width, x.shape[-1])
        for name in self.names[:-1]:
            params |= self.start_layer(name, x, z, hyper.layer_noise_variance)
            for number, weight in enumerate(start_network(x.shape[-1], width, rng), start=1):
                params[f"{name}.network{number}"] = x.new_tensor(weight[None])
            params[f"{name}.log_variance"] = x.new_full((1, width), math.log(hyper.hidden_variance))
            x, above = self.recognise(params, name, x), z
            z = self.recognise(params, name, above)
            params |= self.start_posterior(params, name, z)
        name = self.names[-1]
        params |= self.start_layer(name, x, z, hyper.noise_variance)
        return State(params | self.start_posterior(params, name, z.new_zeros(*z.shape[:2], self.num_targets)))

    def start_posterior(self, params: dict[str, Tensor], name: str, u: Tensor) -> dict[str, Tensor]:
        """q(u) with means u `[R, M, W]`."""
        _, chol_kzz, _ = kernel(double(params), name, self.hyper.jitter)
        mean = torch.linalg.solve_triangular(chol_kzz, u.double(), upper=False).to(u)
        eye = torch.eye(u.shape[1], dtype=u.dtype, device=u.device)
        chol = (START_DEVIATION * eye).repeat(len(u), u.shape[2], 1, 1)
        return {f"{name}.whitened_mean": mean, f"{name}.whitened_chol": chol}

    def recognise(self, params: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        """mu^l `[R, B, W]` of the layer `name` from mu^{l-1}."""
        return perceptron(x, [params[f"{name}.network{number}"] for number in (1, 2, 3)])

    def variables(self, params: dict[str, Tensor], buffers: dict[str, Tensor]) -> list[Gaussians]:
        """q(h^0), ..., q(h^L) of the rows x, y in buffers."""
        variables: list[Gaussians] = [(buffers["x"], None)]
        for name in self.names[:-1]:
            mean = self.recognise(params, name, variables[-1][0])
            variables.append((mean, params[f"{name}.log_variance"].exp()[:, None].expand_as(mean)))
        return [*variables, (buffers["y"], None)]

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        params, weight = double(state.params), batch.weight.double()
        variables, layers = self.variables(params, double({"x": batch.x, "y": batch.y})), self.layers(state)
        bound = self.entropy(variables, weight)  # sum_{l < L} sum_n H[q(h^l_n)]
        for name, layer, inputs, outputs in zip(self.names, layers, variables, variables[1:], strict=False):
            expected = self.expected_log_prob(
                outputs, propagation.moments(layer, *inputs), self.noise_variance(state, name)
            )
            # sum_n E log N(h^l_n; f^l, s_l) - KL[q(u^l) || p(u^l)], f^l with its exact moments
            bound = bound + (weight * expected).sum(-1) - sparse.kl_whitened(layer.whitened_mean, layer.posterior_chol)
        return -bound

    def expected_log_prob(self, outputs: Gaussians, functions: tuple[Tensor, Tensor], noise_variance: Tensor) -> Tensor:
        """E log N(h; f, s) of independent h and f, summed over units `[R, B]`."""
        (mean, variance), (function_mean, function_variance) = outputs, functions
        noise = noise_variance[:, None, None]
        square = (mean - function_mean).square() + function_variance + (0.0 if variance is None else variance)
        return -0.5 * (torch.log(2 * math.pi * noise) + square / noise).sum(-1)

    def layers(self, state: State) -> list[Layer]:
        params, layers = double(state.params), []
        for name in self.names:
            z, chol_kzz, rbf = kernel(params, name, self.hyper.jitter)
            q = params[f"{name}.whitened_mean"], params[f"{name}.whitened_chol"].tril()
            layers.append(Layer(z, chol_kzz, *q, rbf))
        return layers
