"""nu = L^-1 f and psi moved together by Hamiltonian dynamics, with the gradient of both in reverse.

    l(psi, nu) = log p(y | f) - |nu|^2/2 + log p(psi),   f = L_psi nu,   g = d log p(y | f) / df;
    dl/dnu = L^T g - nu;   dl/dpsi_p = sum_ij W_ij (dK_p)_ij + d log p(psi) / dpsi_p,
    W = L^-T symmetric(L^T g nu^T) L^-1, the gradient of g^T L nu with respect to K

    hmc    `leapfrogs` steps of the step size times a number from 1 - `SPREAD` to 1 + `SPREAD` drawn a trajectory,
           which keeps trajectories from closing; all are equally long, so that no chain waits for another
    nuts   the No-U-Turn sampler (`gpbench.sampling.nuts`)

Dynamics are of w / s with unit mass, w = (psi, nu) and s their standard deviations as learnt in burn-in. A gradient
takes a factorisation and two solves. The state keeps w with its log density and gradient, and no factor of K.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.gp import linalg
from gpbench.gp.linalg import multiply, solve
from gpbench.sampling import hmc, nuts
from gpbench.sampling.latent.model import Generator, Info, Model, Operator, State
from gpbench.sampling.latent.parameters import finite
from gpbench.sampling.tuning import DualAveraging, StepAndScale

TARGET, SPREAD = 0.8, 0.2
CACHED = 2**18
"""Elements of the matrices of chains whose densities are computed together on a CPU: what its cache holds."""


class Density:
    """l of w / s `[R, P + n]`; scale: s."""

    def __init__(self, model: Model, scale: Tensor) -> None:
        self.model, self.scale = model, scale

    def __call__(self, position: Tensor, chains: Tensor | None = None) -> hmc.Point:
        """The point at a position `[A, P + n]` of the chains given (all of them for None); it knows f."""
        size = max(1, CACHED // self.model.x.shape[1] ** 2) if position.device.type == "cpu" else len(position)
        if chains is None and size >= len(position):
            return self.at(self.model, self.scale, position)
        numbers = torch.arange(len(position)) if chains is None else chains
        parts = []
        for part, some in zip(position.split(size), numbers.split(size), strict=True):
            with linalg.of_replicas(some.tolist()):
                parts.append(self.at(self.model.of(some), self.scale[some], part))
        return parts[0] if len(parts) == 1 else hmc.Point(*(torch.cat(values) for values in zip(*parts, strict=True)))

    @staticmethod
    def at(model: Model, scale: Tensor, position: Tensor) -> hmc.Point:
        """The point of all chains of a model."""
        psi, nu = (scale * position).tensor_split([model.num_parameters], 1)
        covariance = model.covariance(psi)
        chol = linalg.cholesky(covariance, "K")
        f = multiply(chol, nu)
        pulled = multiply(chol.mT, model.gradient(f))  # L^T g
        weights = linalg.gradient_from_product(finite(chol), pulled[:, :, None] * nu[:, None])
        of_psi = model.chain(psi, covariance, weights) + model.prior_gradient(psi)
        value = model.log_lik(f) - 0.5 * nu.square().sum(1) + model.log_prior(psi)
        return hmc.Point(position, value, scale * torch.cat([of_psi, pulled - nu], 1), f)


class Hamiltonian(Operator[Model]):
    """`hmc`."""

    name = "theta"
    target = TARGET
    first_step = 0.1
    per_row = 1

    def __init__(self, model: Model, leapfrogs: int) -> None:
        super().__init__(model)
        self.leapfrogs = leapfrogs
        self.fixed = model.num_parameters + self.uniforms

    @property
    def uniforms(self) -> int:
        """Random numbers of a step, besides momenta."""
        return 2

    @property
    def tuner(self) -> DualAveraging:
        return StepAndScale(self.name, TARGET, self.first_step, size=sum(self.shape))

    @property
    def shape(self) -> tuple[int, int]:
        """P and n."""
        return self.model.num_parameters, self.model.x.shape[1]

    def init(self, state: State) -> State:
        position = torch.cat([state["psi"], solve(state["chol"], state["f"])], 1)
        ones = torch.ones_like(position)
        point = Density(self.model, ones)(position)
        kept = {"theta.scale": ones, "theta.position": position, "theta.value": point.value}
        state = super().init(state) | kept | {"theta.gradient": point.gradient}
        return {name: value for name, value in state.items() if name != "chol"}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        scale = state["theta.scale"]
        position, slope = state["theta.position"] / scale, state["theta.gradient"] * scale
        # padding rows have no momentum, as their noise is 0
        momentum = torch.cat([generator.normal(self.model.num_parameters), generator.latent()], 1)
        start = hmc.Point(position, state["theta.value"], slope, state["f"])
        end, info = self.move(start, Density(self.model, scale), momentum, generator.uniforms(self.uniforms), state)
        stays = (end.position == position).all(1, keepdim=True)
        w = torch.where(stays, state["theta.position"], scale * end.position)
        gradient = torch.where(stays, state["theta.gradient"], end.gradient / scale)
        kept = {"theta.position": w, "theta.value": end.value, "theta.gradient": gradient}
        moved = {"psi": w[:, : self.model.num_parameters], **self.model.at_latents(end.extra)}
        gradients = info.pop("gradients")
        counts = {"cholesky": gradients, "inverse": 2 * gradients, "quadratic": 5 * gradients}
        return state | kept | moved, info | counts

    def move(
        self, start: hmc.Point, density: Density, momentum: Tensor, uniforms: Tensor, state: State
    ) -> tuple[hmc.Point, Info]:
        """Where a trajectory leads, and its acceptance, divergences and number of gradients."""
        uniform, spread = uniforms.unbind(1)
        size = self.step_size(state)[:, 0] * (1 + SPREAD * (2 * spread - 1))
        leapfrogs = torch.full_like(uniform, self.leapfrogs)
        end, acceptance = hmc.step(start, density, momentum, uniform, size, leapfrogs)
        # a probability that is 0 in floating point is one of an energy that is off by 745 nats or not finite
        divergent = (acceptance == 0).to(acceptance)
        return end, {"theta.acceptance": acceptance, "divergent": divergent, "gradients": leapfrogs}


class NoUTurn(Hamiltonian):
    """`nuts`, with at most `depth` doublings."""

    def __init__(self, model: Model, depth: int) -> None:
        self.depth = depth
        super().__init__(model, 1)

    @property
    def uniforms(self) -> int:
        return nuts.uniforms_needed(self.depth)

    def move(
        self, start: hmc.Point, density: Density, momentum: Tensor, uniforms: Tensor, state: State
    ) -> tuple[hmc.Point, Info]:
        moved = nuts.step(start, density, momentum, uniforms, self.step_size(state)[:, 0], self.depth)
        divergent = moved.divergent.to(moved.acceptance)
        return moved.point, {"theta.acceptance": moved.acceptance, "divergent": divergent, "gradients": moved.leapfrogs}
