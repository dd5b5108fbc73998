"""Transitions of f given y and psi (filippone2013, section 3), with W(f) = log p(y | f) + log N(f; 0, K), K = L L^T.

    mh          f' = f + a z,  z ~ N(0, I)                    accepted by W(f') - W(f)
    mh_v1       f' = f + a z,  z ~ N(0, K)                    the same
    mh_v2       f' = sqrt(1 - a^2) f + a z,  z ~ N(0, K)      by log p(y | f') - log p(y | f): the prior is kept
    elliptical  slice sampling along an ellipse (murray2010), nothing to tune
    hmc         Hamiltonian dynamics with inverse mass A A^T: f = A w and unit mass on w
                hmc: A = I; hmc_v1: A A^T = (K^-1 + C)^-1, C the Fisher information at f = 0; hmc_v2: A = L
    smmala      f' = f + e^2/2 G^-1 grad W(f) + e G^-1/2 z,  G(f) = K^-1 + Fisher information at f, with the density of
                this proposal there and back in the acceptance

Densities are taken of nu = L^-1 f, a priori N(0, I), in which K is never inverted: G becomes B = I + L^T R L. Numbers
of leapfrog steps are uniform on 1, ..., leapfrogs. Sources: filippone2013, section 3; girolami2011 for smmala.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpbench.gp.linalg import log_normal, multiply, solve, solve_transposed
from gpbench.sampling import elliptical, hmc
from gpbench.sampling.latent.approximations import whitened_factor
from gpbench.sampling.latent.coordinates import Identity, Preconditioned, Whitened
from gpbench.sampling.latent.model import Generator, Info, Model, Operator, State
from gpbench.sampling.tuning import HAMILTONIAN, LANGEVIN, WALK


class LatentOperator(Operator[Model]):
    """A transition of f; `refresh` must follow a change of psi."""

    name = "latents"
    fixed = 1
    per_row = 1

    def init(self, state: State) -> State:
        return self.refresh(super().init(state))[0]

    def refresh(self, state: State) -> tuple[State, Info]:
        """The state with the entries that depend on K computed again, and the report of it."""
        return state, {}


class Walk(LatentOperator):
    """`mh`, and with `prior` `mh_v1`: random walks."""

    target = WALK
    first_step = 0.1

    def __init__(self, model: Model, prior: bool = False) -> None:
        super().__init__(model)
        self.prior = prior

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        z, old = generator.latent(), solve(state["chol"], state["f"])
        jump = self.step_size(state) * (multiply(state["chol"], z) if self.prior else z)
        proposed = self.model.at_latents(state["f"] + jump)
        new = solve(state["chol"], proposed["f"])
        # W(f') - W(f), in which log N(f; 0, K) = -|nu|^2/2 + constant
        gain = proposed["log_lik"] - state["log_lik"] + 0.5 * (old.square() - new.square()).sum(1)
        return self.accept_or_stay(state, proposed, gain, generator, quadratic=2 + self.prior)


class PriorReversible(LatentOperator):
    """`mh_v2`."""

    target = WALK
    first_step = 0.2

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        size = self.step_size(state).clamp_max(1.0)
        z = multiply(state["chol"], generator.latent())
        proposed = self.model.at_latents((1 - size.square()).sqrt() * state["f"] + size * z)
        gain = proposed["log_lik"] - state["log_lik"]
        return self.accept_or_stay(state, proposed, gain, generator, quadratic=1)


class EllipticalSlice(LatentOperator):
    """`elliptical`; the acceptance that it reports is the mean over transitions of 1 / tries."""

    fixed = 1 + elliptical.MAX_TRIES

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        draw = multiply(state["chol"], generator.latent())
        uniforms = generator.uniforms(self.fixed)
        f, log_lik, tries = elliptical.step(state["f"], self.model.log_lik, state["log_lik"], draw, uniforms)
        info: Info = {f"{self.name}.acceptance": 1 / tries.clamp_min(1).to(f), "quadratic": 1}
        return state | {"f": f, "log_lik": log_lik}, info


COORDINATES = {"hmc": (Identity, 0.02), "hmc_v1": (Preconditioned, 0.3), "hmc_v2": (Whitened, 0.2)}
"""Coordinates and first step size of each kind of Hamiltonian dynamics."""


class Hamiltonian(LatentOperator):
    """`hmc`, `hmc_v1`, `hmc_v2`, which differ in the coordinates of their dynamics."""

    target = HAMILTONIAN
    fixed = 2

    def __init__(self, model: Model, name: str, leapfrogs: int) -> None:
        super().__init__(model)
        self.leapfrogs = leapfrogs
        self.coordinates, self.first_step = COORDINATES[name]

    def refresh(self, state: State) -> tuple[State, Info]:
        if self.coordinates is not Preconditioned:
            return state, {}
        # C is the Fisher information at f = 0
        information = self.model.information(torch.zeros_like(state["f"])).clamp_min(0.0)
        root = whitened_factor(state["chol"], information, "metric")
        return state | {f"{self.name}.root": root}, {"cholesky": 1, "product": 1}

    def density(self, state: State) -> Identity:
        """W of the chosen coordinates."""
        if self.coordinates is Preconditioned:
            return Preconditioned(self.model, state["chol"], state[f"{self.name}.root"])
        return self.coordinates(self.model, state["chol"])

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        momentum, (uniform, number) = generator.latent(), generator.uniforms(2).unbind(1)
        leapfrogs = hmc.draw_leapfrogs(number, torch.full_like(uniform, self.leapfrogs))
        density = self.density(state)
        # padding rows have no momentum, as their noise is 0
        start = density(density.position(state["f"]))
        end, acceptance = hmc.step(start, density, momentum, uniform, self.step_size(state)[:, 0], leapfrogs)
        f, _ = density.latents(end.position)
        info: Info = {f"{self.name}.acceptance": acceptance, "quadratic": density.quadratic * (leapfrogs + 1) + 2}
        return state | self.model.at_latents(f), info


class ManifoldLangevin(LatentOperator):
    """`smmala`, the simplified manifold MALA, on nu with the metric B = I + L^T R(f) L = L^T G L."""

    target = LANGEVIN
    first_step = 0.5

    def refresh(self, state: State) -> tuple[State, Info]:
        root, drift = self._metric(state["chol"], solve(state["chol"], state["f"]), state["f"])
        kept = {f"{self.name}.root": root, f"{self.name}.drift": drift}
        return state | kept, {"cholesky": 1, "product": 1, "quadratic": 4}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        size, z = self.step_size(state), generator.latent()
        root, drift = state[f"{self.name}.root"], state[f"{self.name}.drift"]
        nu = solve(state["chol"], state["f"])
        mean = nu + 0.5 * size.square() * drift
        new_nu = mean + size * solve_transposed(root, z)
        f = multiply(state["chol"], new_nu)
        new_root, new_drift = self._metric(state["chol"], new_nu, f)
        back = new_nu + 0.5 * size.square() * new_drift
        proposed = self.model.at_latents(f) | {f"{self.name}.root": new_root, f"{self.name}.drift": new_drift}
        # W(f') - W(f) + log q(f | f') - log q(f' | f)
        gain = proposed["log_lik"] - state["log_lik"] + 0.5 * (nu.square() - new_nu.square()).sum(1)
        gain = gain + log_normal(nu, back, new_root, size) - log_normal(new_nu, mean, root, size)
        return self.accept_or_stay(state, proposed, gain, generator, cholesky=1, product=1, quadratic=8)

    def _metric(self, chol: Tensor, nu: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Factor of B `[R, n, n]` and drift B^-1 grad `[R, n]` at nu."""
        root = whitened_factor(chol, self.model.information(f).clamp_min(0.0), "metric")
        slope = multiply(chol.mT, self.model.gradient(f)) - nu
        return root, solve_transposed(root, solve(root, slope))


def named(name: str, model: Model, leapfrogs: int = 10) -> LatentOperator:
    """The operator of a name above; leapfrogs: the largest number of steps of Hamiltonian dynamics."""
    if name in COORDINATES:
        return Hamiltonian(model, name, leapfrogs)
    if name in ("mh", "mh_v1"):
        return Walk(model, prior=name == "mh_v1")
    kinds: dict[str, Callable[[Model], LatentOperator]]
    kinds = {"mh_v2": PriorReversible, "elliptical": EllipticalSlice, "smmala": ManifoldLangevin}
    return kinds[name](model)
