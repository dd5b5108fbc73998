"""Deep GP regression by pCN without inducing points: the "standard deep GP" of urbainczyk2025.

Model and chains are those of `stride` with hidden layers in full, and the top layer's exact likelihood
log N(y; 0, k_L(X, X | u) + s I) in place of the sparse one; there is no M-step. Every transition of a particle costs
O(n^3). The mixture of exact GP predictions at the last states of all particles, whose factors are found when they are
needed: all of them are too large to be kept (S n^2 numbers). Covariance parameters are those of the greedy sparse GP.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpbench.gp import linalg
from gpbench.hyper import dataclass
from gpbench.methods import stride
from gpbench.methods.base import State
from gpbench.methods.hidden_layers import Tensors


@dataclass(frozen=True)
class Hyperparameters(stride.Hyperparameters):
    """As those of `stride`; num_inducing and candidates are of the sparse GP whose covariance parameters it takes,
    rounds and objective do nothing, and the steps of pCN stay in the last of em_iterations parts of the chain."""

    def impossible(self, task: str) -> str:
        if self.hidden != "full":
            return f"the exact deep GP has hidden layers in full, not hidden={self.hidden}"
        return super().impossible(task)

    def width(self) -> None:
        return None


class Method(stride.Method):
    def log_likelihood(self, params: Tensors, buffers: Tensors) -> Tensor:
        """log N(y; 0, k_L + s I) in nats `[R, S]`."""
        constant = buffers["mask"].sum(1) * math.log(2 * math.pi)
        values = []
        for places in self.all_places(params, buffers):
            chol = self.factor(places, buffers)
            whitened = linalg.solve(chol, buffers["y"])
            values.append(-0.5 * (whitened.square().sum(1) + constant) - linalg.half_log_det(chol))
        return torch.stack(values, 1)

    def maximise(self, state: State, keys: Tensor) -> None:
        """There are no inducing points to choose."""

    def condition(self, params: Tensors, buffers: Tensors) -> Tensors:
        return self.hidden.extension(params, buffers)

    def layers(self, state: State, x: Tensor) -> list[Tensor]:
        known, kernel = state.buffers | self.condition(state.params, state.buffers), self.hidden.kernel(state.buffers)
        hidden = self.hidden.at_inputs(known, known, x[:, None])
        tests, moments = kernel.places(x[:, None], hidden[-1]).split(1, 1), []
        for places, test in zip(self.all_places(state.params, known), tests, strict=True):
            chol = self.factor(places, known)
            cross = kernel.covariance(places, test, known["outputscale"])[:, 0] * known["mask"][..., None]
            a = torch.linalg.solve_triangular(chol, cross, upper=False)  # [1, n, T]
            mean = linalg.multiply(a.mT, linalg.solve(chol, known["y"]))
            moments.append((mean, (known["outputscale"] - a.square().sum(1)).clamp_min(0.0)))
        top = [torch.stack(part)[..., None] for part in zip(*moments, strict=True)]  # [S, 1, T, 1]
        return [*(u.transpose(0, 1) for u in hidden), *top]

    def all_places(self, params: Tensors, buffers: Tensors) -> tuple[Tensor, ...]:
        """Places of the top layer at all rows `[R, 1, n, *]`, of a particle after the other."""
        values = self.hidden.values(params, buffers)(slice(None))
        return self.hidden.kernel(buffers).places(buffers["x"][:, None], values).split(1, 1)

    def factor(self, places: Tensor, buffers: Tensors) -> Tensor:
        """Of k_L + s I `[R, n, n]`; padding rows are rows of the identity."""
        mask = buffers["mask"]
        covariance = self.hidden.kernel(buffers).covariance(places, places, buffers["outputscale"])[:, 0]
        nugget = torch.where(mask > 0, buffers["noise_variance"], 1.0)
        return linalg.cholesky(covariance * mask[:, :, None] * mask[:, None, :] + nugget.diag_embed(), "top layer")
