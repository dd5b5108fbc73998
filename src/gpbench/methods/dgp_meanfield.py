"""Deep GP with variational distributions over the hidden variables of every training row (damianou2013).

Model      h^0 = x;  h^l_n ~ N(f^l(h^{l-1}_n), s_l I), f^l_d ~ GP(0, k^l) independent, k^l RBF-ARD;  h^L = y.
Posterior  q(h^l_n) = N(mu^l_n, diag(v^l_n)) for l = 1..L-1, free for every row;  u^l = f^l(Z^l), q(u^l) at its best.
Objective  bound = sum_l F_l + sum_{l<L} sum_n H[q(h^l_n)], with the expectations Psi1 = E k(h, Z), Psi2 = sum_n
           E k(Z, h_n) k(h_n, Z) under q(h^{l-1}) (known rows in layer 1) and mu, v those of h^l (y, 0 in layer L),
           F_l = sum_d [-N/2 log 2 pi s + 1/2 log |K| - 1/2 log |K + Psi2 / s| - (||mu_d||^2 + sum_n v_nd) / (2 s)
                 + mu_d^T Psi1 (K + Psi2 / s)^-1 Psi1^T mu_d / (2 s^2) - (psi0 - tr(K^-1 Psi2)) / (2 s)],
           K = K_ZZ, psi0 = N k(0, 0). With one layer it is `sgpr`.
Prediction x goes through the layers with their best q(u); the output of each is taken for a Gaussian with its exact
           moments, independent over units.

mu^l = P + offset, P = x W at mean square 1, W the leading right-singular vectors of x, or the identity where layers are
as wide as x; offsets start at 0. All is in float64 whatever the parameters' type: K^-1 magnifies the rounding of Psi2.
The paper leaves the start open. Its authors' program (PyDeepGP) has v = 0.01 to 0.02 and s = 1 % of the variance of a
layer's outputs, fixed for a while; v = s = 0.1 takes Adam further (boston, 600 steps: bound -240, not -265 nats). Its
jitter starts at 1e-3 too, but is trained: u is f(Z) with that much noise, and the bound stays one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import kernels, likelihoods, lowrank, propagation, psi, sparse
from gpbench.gp.layers import kernel, mean_map, start_inducing
from gpbench.gp.sparse import Layer
from gpbench.hyper import PositiveFloat, PositiveInt, RBFSettings, dataclass
from gpbench.methods.base import GradientMethod, Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

Gaussians = tuple[Tensor, Tensor | None]
"""Means and variances `[R, N, W]` of independent variables; no variance: known values."""


@dataclass(frozen=True)
class Hyperparameters(RBFSettings):
    """Settings of the competitor in cutajar2016rff: 3 GPs a hidden layer (at most D), 100 inducing inputs.

    lengthscale null: sqrt(total variance of a layer's inputs); hidden_variance: v, layer_noise_variance and
    noise_variance: s of hidden layers and the last, at the start, in scaled units. Always a full batch."""

    layers: PositiveInt = 2
    hidden_width: PositiveInt = 3
    num_inducing: PositiveInt = 100
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    layer_noise_variance: PositiveFloat = 0.1
    noise_variance: PositiveFloat = 0.1
    hidden_variance: PositiveFloat = 0.1
    jitter: PositiveFloat = 1e-3
    learning_rate: PositiveFloat = 0.05


def principal_map(x: Tensor, width: int) -> Tensor:
    """W `[1, D, width]`: x W, x `[1, N, D]`, are the first principal components, or all of x, at mean square 1."""
    weights = mean_map(x, width)
    scale = ((x @ weights).square().sum(1) / x.shape[1]).sqrt()
    return weights / torch.where(scale > 0, scale, 1.0)[:, None]


def double(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in tensors.items()}


class Method(GradientMethod):
    def __init__(self, hyper, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.names = [f"layer{number}" for number in range(1, hyper.layers + 1)]

    def init(self, train: Batch, key: Key) -> State:
        hyper, x = self.hyper, train.x
        z = start_inducing(x, hyper.num_inducing, streams.rng(key, "init"))
        weights = principal_map(x, min(hyper.hidden_width, x.shape[-1]))
        components, buffers = x @ weights, {"x": x, "y": train.y, "mask": train.weight}
        params: dict[str, Tensor] = {}
        for name in self.names[:-1]:
            params |= self.start_layer(name, x, z, hyper.layer_noise_variance)
            params[f"{name}.offset"] = torch.zeros_like(components)
            params[f"{name}.log_variance"] = torch.full_like(components, math.log(hyper.hidden_variance))
            buffers["components"] = components
            # the second map, and every later one, is the identity
            x, z = components, z @ weights if name == "layer1" else z
        return State(params | self.start_layer(self.names[-1], x, z, hyper.noise_variance), buffers)

    def start_layer(self, name: str, x: Tensor, z: Tensor, noise_variance: float) -> dict[str, Tensor]:
        """Parameters of a layer whose inputs are like x `[1, N, W]`."""
        lengthscale = kernels.start_lengthscale(x, self.hyper.lengthscale)
        return {
            f"{name}.inducing_inputs": z,
            f"{name}.log_lengthscale": lengthscale.log()[:, None].repeat(1, x.shape[-1]),
            f"{name}.log_outputscale": x.new_full((1,), math.log(self.hyper.outputscale)),
            f"{name}.log_noise_variance": x.new_full((1,), math.log(noise_variance)),
        }

    def variables(self, params: dict[str, Tensor], buffers: dict[str, Tensor]) -> list[Gaussians]:
        """q(h^0), ..., q(h^L) of the training rows."""
        hidden = [
            (buffers["components"] + params[f"{name}.offset"], params[f"{name}.log_variance"].exp())
            for name in self.names[:-1]
        ]
        return [(buffers["x"], None), *hidden, (buffers["y"], None)]

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        mask = state.buffers["mask"].double()
        params = double(state.params)
        variables = self.variables(params, double(state.buffers))
        bound = self.entropy(variables, mask)  # sum_{l < L} sum_n H[q(h^l_n)]
        for name, inputs, outputs in zip(self.names, variables, variables[1:], strict=False):
            bound = bound + self.bound(params, name, inputs, outputs, mask)  # F_l
        return -bound

    def entropy(self, variables: list[Gaussians], mask: Tensor) -> Tensor:
        """sum_n H[N(., diag(variance_n))] of all variables that are not known, in nats `[R]`."""
        logs = [torch.log(2 * math.pi * math.e * variance) for _, variance in variables if variance is not None]
        return sum((0.5 * (mask[..., None] * log).sum((1, 2)) for log in logs), torch.zeros(()))

    def bound(self, params: dict[str, Tensor], name: str, inputs: Gaussians, outputs: Gaussians, mask: Tensor):
        """F_l `[R]` of the layer `name`."""
        phi, precision, b = self.collapse(params, name, inputs, outputs, mask)
        noise_variance, outputscale = (params[f"{name}.log_{part}"].exp() for part in ("noise_variance", "outputscale"))
        (mean, variance), count = outputs, mask.sum(-1)
        second = mean.square() if variance is None else mean.square() + variance
        trace = phi.diagonal(dim1=1, dim2=2).sum(-1)  # tr(K^-1 Psi2)
        # sum_d [||mu_d||^2 + sum_n v_nd + psi0 - tr(K^-1 Psi2)], the terms over 2 s
        residual = (mask[..., None] * second).sum((1, 2)) + mean.shape[-1] * (count * outputscale - trace)
        constant = count * mean.shape[-1] * torch.log(2 * math.pi * noise_variance)
        # log_normaliser: sum_d of 1/2 log |K| - 1/2 log |K + Psi2 / s| and of the term in mu_d^T Psi1
        return lowrank.log_normaliser(precision, b, name) - 0.5 * (constant + residual / noise_variance)

    def collapse(self, params: dict[str, Tensor], name: str, inputs: Gaussians, outputs: Gaussians, mask: Tensor):
        """Phi = L^-1 Psi2 L^-T `[R, M, M]`, L L^T = K, and Phi / s and b of the best q(v) as in `lowrank`, u = L v."""
        z, chol_kzz, rbf = kernel(params, name, self.hyper.jitter)
        (mean, variance), (target, _) = inputs, outputs
        if variance is None:
            a = sparse.project(mean, z, chol_kzz, rbf) * mask[:, None]
            phi = a @ a.mT
        else:
            once = psi.psi1(mean, variance, z, rbf.lengthscale, rbf.outputscale) * mask[..., None]
            a = torch.linalg.solve_triangular(chol_kzz, once.mT, upper=False)
            twice = psi.psi2_sum(mean, variance, z, rbf.lengthscale, rbf.outputscale, mask)
            half = torch.linalg.solve_triangular(chol_kzz, twice, upper=False)
            phi = torch.linalg.solve_triangular(chol_kzz, half.mT, upper=False)
        noise_variance = params[f"{name}.log_noise_variance"].exp()[:, None, None]
        return phi, phi / noise_variance, a @ target / noise_variance

    def layers(self, state: State) -> list[Layer]:
        """Layers at their best q(v)."""
        params, mask = double(state.params), state.buffers["mask"].double()
        variables, layers = self.variables(params, double(state.buffers)), []
        for name, inputs, outputs in zip(self.names, variables, variables[1:], strict=False):
            z, chol_kzz, rbf = kernel(params, name, self.hyper.jitter)
            _, precision, b = self.collapse(params, name, inputs, outputs, mask)
            q = lowrank.posterior(precision, b, name)
            layers.append(Layer(z, chol_kzz, *lowrank.mean_and_chol(q), rbf))
        return layers

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        noise_variance = self.noise_variance(state, self.names[-1])
        return likelihoods.Gaussian().predictive(*self.marginals(state, x), noise_variance)

    def marginals(self, state: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f^L at test rows x `[1, T, D]`: two `[1, T, P]`."""
        noise_variances = [self.noise_variance(state, name) for name in self.names[:-1]]
        return propagation.through(self.layers(state), x.double(), noise_variances, [None for _ in self.names])

    def noise_variance(self, state: State, name: str) -> Tensor:
        """s_l `[R]`."""
        return state.params[f"{name}.log_noise_variance"].double().exp()
