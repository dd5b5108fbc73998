"""Samplers of the multinomial logit GP with several sources (filippone2012, table 1).

    f_c | theta ~ N(0, K_c),   K_c = sum_s e^{theta_cs} C_s,   y_i | f ~ softmax(f_i1, ..., f_im),   theta ~ p(theta).

The functions f `[R, m, n]` move by HMC or RMHMC given theta `[R, m, q]`; theta moves by HMC or RMHMC given f (SA), or
by random walks or Dirichlet proposals given nu_c = L_c^-1 f_c (AA), L_c the factor of K_c. The classes of theta are
independent given f, and each moves on its own. Operators and states are those of `gpbench.sampling.latent.model`, with
theta for psi and an axis of classes more: chol `[R, m, n, n]`. Operations are counted in units of n^3; one on matrices
of m n rows is m^3 of them.

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
from gpbench.gp.linalg import multiply, solve, solve_transposed
from gpbench.sampling import hmc
from gpbench.sampling.latent import rmhmc
from gpbench.sampling.latent.model import Generator, Info, Operator, Prior, State

TRAJECTORY = 0.65
"""Acceptance to which step sizes of trajectories are tuned, where they are: the 60 to 70 % of filippone2012."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The posterior of R chains: grams `[R, q, n, n]` of the sources, y `[R, m, n]` one-hot, weight `[R, n]`; grams and
    y are 0 in padding rows, whose weight is 0. prior: of each weight e^theta, unless weights are on the simplex."""

    grams: Tensor
    y: Tensor
    weight: Tensor
    prior: Prior = Prior(2.0, 2.0)

    def factor(self, theta: Tensor) -> Tensor:
        """Factors L_c `[R, m, n, n]` of K_c, in padding rows the identity; NaN where there is none."""
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
        """The share of each class among the rows in the place of pi `[R, m, n]`."""
        share = self.y.sum(2) / self.weight.sum(1, keepdim=True)
        return share[..., None] * self.weight[:, None]

    def state(self, theta: Tensor, f: Tensor) -> State:
        """Chains at theta and f."""
        return {"theta": theta, "f": f, "chol": self.factor(theta), "log_lik": self.log_lik(f)}


class Latents(Operator[Model]):
    """An update of f given theta by trajectories of `leapfrogs` steps."""

    name, target, fixed = "latents", TRAJECTORY, 1

    def __init__(self, model: Model, leapfrogs: int, first_step: float) -> None:
        super().__init__(model)
        self.leapfrogs, self.first_step = leapfrogs, first_step
        self.per_row = model.y.shape[1]

    def told(self, state: State, f: Tensor, acceptance: Tensor, counts: Info) -> tuple[State, Info]:
        moved = state | {"f": f, "log_lik": self.model.log_lik(f)}
        return moved, {"latents.acceptance": acceptance} | counts


class HMC(Latents):
    """HMC with mass I on f, or (`homogeneous`) with that of the class frequencies."""

    def __init__(self, model: Model, leapfrogs: int, first_step: float, homogeneous: bool = False) -> None:
        super().__init__(model, leapfrogs, first_step)
        self.density = HomogeneousMass if homogeneous else IdentityMass

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        density = self.density(self.model, state["chol"])
        # padding rows have no momentum, as their noise is 0
        momentum, uniform = generator.latents(self.per_row).flatten(1), generator.uniform()
        leapfrogs = torch.full_like(uniform, self.leapfrogs, dtype=torch.int64)
        size, start = self.step_size(state)[:, 0], density(density.position(state["f"]))
        end, acceptance = hmc.step(start, density, momentum, uniform, size, leapfrogs)
        return self.told(state, density.latents(end.position)[0], acceptance, density.counts(self.leapfrogs + 1))


class IdentityMass:
    """log p(y, f | theta) of positions f `[R, m n]`."""

    def __init__(self, model: Model, chol: Tensor) -> None:
        self.model, self.chol = model, chol

    def position(self, f: Tensor) -> Tensor:
        return f.flatten(1)

    def latents(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """f and nu `[R, m, n]`."""
        f = position.reshape(self.chol.shape[:-1])
        return f, solve(self.chol, f)

    def pulled(self, slope: Tensor, nu: Tensor) -> Tensor:
        """The gradient of positions, from that `[R, m, n]` of log p(y | f)."""
        return (slope - solve_transposed(self.chol, nu)).flatten(1)

    def __call__(self, position: Tensor) -> hmc.Point:
        f, nu = self.latents(position)
        value = self.model.log_lik(f) - 0.5 * nu.square().sum((1, 2))
        return hmc.Point(position, value, self.pulled(self.model.gradient(f), nu))

    def counts(self, points: int) -> Info:
        return {"quadratic": 2 * self.chol.shape[1] * points}


class HomogeneousMass(IdentityMass):
    """The same of positions w = B^{T/2} nu, f = L nu."""

    def __init__(self, model: Model, chol: Tensor) -> None:
        super().__init__(model, chol)
        self.root = linalg.cholesky(multinomial.whitened_precision(chol, model.frequencies()), "mass")

    def position(self, f: Tensor) -> Tensor:
        return multiply(self.root.mT, solve(self.chol, f).flatten(1))

    def latents(self, position: Tensor) -> tuple[Tensor, Tensor]:
        nu = solve_transposed(self.root, position).reshape(self.chol.shape[:-1])
        return multiply(self.chol, nu), nu

    def pulled(self, slope: Tensor, nu: Tensor) -> Tensor:
        return solve(self.root, (multiply(self.chol.mT, slope) - nu).flatten(1))

    def counts(self, points: int) -> Info:
        functions = self.chol.shape[1]
        quadratic = 2 * (functions + functions**2) * points
        return {"cholesky": functions**3, "product": functions**2, "quadratic": quadratic}


class RMHMC(Latents):
    """RMHMC with the metric K^-1 + Lambda(pi(f)) of f, in coordinates nu."""

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        target = LatentsTarget(self.model, state["chol"])
        start = target.at(solve(state["chol"], state["f"]).flatten(1))
        functions = self.per_row
        normal, uniform = generator.latents(functions).flatten(1), generator.uniform()
        size = self.step_size(state)[:, 0]
        move = rmhmc.step(start, target, normal, uniform, size, self.leapfrogs)
        points, metrics = self.leapfrogs + 1, move.metrics + 1
        counts: Info = {"cholesky": metrics * functions**3, "product": metrics * functions**2}
        counts |= {"inverse": points * functions**3, "quadratic": 4 * metrics * functions**2}
        return self.told(state, target.latents(move.position), move.acceptance, counts)


class LatentsTarget:
    """log p(y, nu | theta) of positions nu `[R, m n]`, with the metric I + L^T Lambda(f) L."""

    def __init__(self, model: Model, chol: Tensor) -> None:
        self.model, self.chol = model, chol

    def latents(self, position: Tensor) -> Tensor:
        """f = L nu `[R, m, n]`."""
        return multiply(self.chol, position.reshape(self.chol.shape[:-1]))

    def pulled(self, gradient: Tensor) -> Tensor:
        """L^T g, a gradient of f as one of nu `[R, m n]`."""
        return multiply(self.chol.mT, gradient).flatten(1)

    def _factor(self, pi: Tensor) -> Tensor:
        return linalg.cholesky(multinomial.whitened_precision(self.chol, pi), "metric")

    def factor(self, position: Tensor) -> Tensor:
        return self._factor(self.model.probabilities(self.latents(position)))

    def at(self, position: Tensor) -> rmhmc.Point:
        f = self.latents(position)
        pi = self.model.probabilities(f)
        factor = self._factor(pi)
        traces = multinomial.information_traces(pi, multinomial.subject_covariances(self.chol, factor))
        value = self.model.log_lik(f) - 0.5 * position.square().sum(1)
        gradient = self.pulled(self.model.gradient(f)) - position
        return rmhmc.Point(position, value, gradient, factor, self.pulled(traces), pi)

    def quadratics(self, point: rmhmc.Point, u: Tensor) -> Tensor:
        return self.pulled(multinomial.information_quadratics(point.local, self.latents(u)))
