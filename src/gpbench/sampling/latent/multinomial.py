"""Samplers of the multinomial logit GP with several sources (filippone2012, table 1).

    f_c | theta ~ N(0, K_c),   K_c = sum_s e^{theta_cs} C_s,   y_i | f ~ softmax(f_i1, ..., f_im),   theta ~ p(theta).

The functions f `[R, m, n]` move by HMC or RMHMC given theta `[R, m, q]`; theta moves by HMC or RMHMC given f (SA), or
by random walks or Dirichlet proposals given nu_c = L_c^-1 f_c (AA), L_c the factor of K_c. The classes of theta are
independent given f, and each moves on its own. Operators and states are those of `gpbench.sampling.latent.model`, with
theta in place of psi and one more axis, of classes: chol `[R, m, n, n]`. Operations are counted in units of n^3; one on
matrices of m n rows counts as m^3.

filippone2012 calls all of its operators for f RM-HMC; with a constant mass they are HMC in other coordinates: mass I on
f itself, or the mass K^-1 + Lambda(pi) at the class frequencies pi, whose inverse is A A^T, A = L B^{-T/2}, B the
whitened precision of `gpbench.gp.multinomial`. RMHMC with the metric K^-1 + Lambda(pi(f)) runs in coordinates nu, where
the metric is B and the trajectories are the same.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gpbench.gp import linalg, multinomial
from gpbench.gp.linalg import multiply, solve
from gpbench.sampling import hmc
from gpbench.sampling.latent import rmhmc
from gpbench.sampling.latent.coordinates import Identity, Preconditioned, Whitened
from gpbench.sampling.latent.model import Generator, Info, Operator, Prior, State

TRAJECTORY = 0.65
"""Acceptance to which step sizes of trajectories are tuned: within the 60 to 70 % of filippone2012."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The posterior of R chains: grams `[R, q, n, n]` of the sources, y `[R, m, n]` one-hot, weight `[R, n]`; grams and
    y are 0 in padding rows, whose weight is 0. prior: of each weight e^theta, unless weights are on the simplex."""

    grams: Tensor
    y: Tensor
    weight: Tensor
    prior: Prior = Prior(2.0, 2.0)

    def factor(self, theta: Tensor) -> Tensor:
        """Factors L_c `[R, m, n, n]` of K_c, in padding rows the identity; NaN if K_c has no factor."""
        covariance = torch.einsum("rcs,rsij->rcij", theta.exp(), self.grams)
        padding = torch.diag_embed(1 - self.weight)[:, None]
        return linalg.cholesky((covariance + padding).movedim(1, 0), "K").movedim(0, 1)  # replicas stand last there

    def log_lik(self, f: Tensor) -> Tensor:
        """log p(y | f) `[R]`."""
        return multinomial.log_lik(f, self.y)

    def gradient(self, f: Tensor) -> Tensor:
        """d log p(y | f) / df `[R, m, n]`."""
        return multinomial.gradient(f, self.y, self.weight)

    def probabilities(self, f: Tensor) -> Tensor:
        """pi `[R, m, n]`, 0 in padding rows."""
        return self.weight[:, None] * f.softmax(1)

    def frequencies(self) -> Tensor:
        """The share of each class among the rows, in the shape of pi `[R, m, n]`."""
        share = self.y.sum(2) / self.weight.sum(1, keepdim=True)
        return share[..., None] * self.weight[:, None]

    def at_latents(self, f: Tensor) -> State:
        """The entries of a state that change when f does."""
        return {"f": f, "log_lik": self.log_lik(f)}

    def state(self, theta: Tensor, f: Tensor) -> State:
        """State of chains at theta and f."""
        return {"theta": theta, "chol": self.factor(theta), **self.at_latents(f)}


class Latents(Operator[Model]):
    """An update of f given theta by trajectories of `leapfrogs` steps."""

    name, target, fixed = "latents", TRAJECTORY, 1

    def __init__(self, model: Model, leapfrogs: int, first_step: float) -> None:
        super().__init__(model)
        self.leapfrogs, self.first_step = leapfrogs, first_step
        self.per_row = model.y.shape[1]


class HMC(Latents):
    """HMC with mass I on f, or (`homogeneous`) with the mass of the class frequencies."""

    def __init__(self, model: Model, leapfrogs: int, first_step: float, homogeneous: bool = False) -> None:
        super().__init__(model, leapfrogs, first_step)
        self.homogeneous = homogeneous

    def density(self, chol: Tensor) -> Identity:
        """log p(y, f | theta) in coordinates with mass I."""
        if not self.homogeneous:
            return Identity(self.model, chol)
        precision = multinomial.whitened_precision(chol, self.model.frequencies())
        return Preconditioned(self.model, chol, linalg.cholesky(precision, "mass"))

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        density, functions = self.density(state["chol"]), self.per_row
        # padding rows have no momentum, as their noise is 0
        momentum, uniform = generator.latents(functions).flatten(1), generator.uniform()
        leapfrogs = torch.full_like(uniform, self.leapfrogs, dtype=torch.int64)
        size, start = self.step_size(state)[:, 0], density(density.position(state["f"]))
        end, acceptance = hmc.step(start, density, momentum, uniform, size, leapfrogs)
        info: Info = {"latents.acceptance": acceptance, "quadratic": density.quadratic * (self.leapfrogs + 1)}
        if self.homogeneous:
            info |= {"cholesky": functions**3, "product": functions**2}
        return state | self.model.at_latents(density.latents(end.position)[0]), info


class RMHMC(Latents):
    """RMHMC with the metric K^-1 + Lambda(pi(f)) of f, in coordinates nu."""

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        target = LatentsTarget(self.model, state["chol"])
        start = target.at(solve(state["chol"], state["f"]).flatten(1))
        functions = self.per_row
        normal, uniform = generator.latents(functions).flatten(1), generator.uniform()
        size = self.step_size(state)[:, 0]
        move = rmhmc.step(start, target, normal, uniform, size, self.leapfrogs)
        points, metrics = 2 * self.leapfrogs + 1, move.metrics + 1  # there and back
        info: Info = {"cholesky": metrics * functions**3, "product": metrics * functions**2}
        info |= {"inverse": points * functions**3, "quadratic": 4 * metrics * functions**2}
        info["latents.acceptance"] = move.acceptance
        return state | self.model.at_latents(target.latents(move.position)[0]), info


class LatentsTarget(Whitened):
    """log p(y, nu | theta) of positions nu `[R, m n]`, with the metric I + L^T Lambda(f) L."""

    model: Model

    def metric(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """pi `[R, m, n]` and the factor of the metric."""
        pi = self.model.probabilities(self.latents(position)[0])
        return pi, linalg.cholesky(multinomial.whitened_precision(self.chol, pi), "metric")

    def factor(self, position: Tensor) -> Tensor:
        return self.metric(position)[1]

    def at(self, position: Tensor) -> rmhmc.Point:
        pi, factor = self.metric(position)
        traces = multinomial.information_traces(pi, multinomial.subject_covariances(self.chol, factor))
        return rmhmc.Point(*self(position)[:3], factor, self.of_nu(traces), pi)

    def quadratics(self, point: rmhmc.Point, u: Tensor) -> Tensor:
        return self.of_nu(multinomial.information_quadratics(point.local, self.latents(u)[0]))

    def of_nu(self, gradient: Tensor) -> Tensor:
        """L^T g, a gradient with respect to f as one with respect to nu `[R, m n]`."""
        return multiply(self.chol.mT, gradient).flatten(1)
