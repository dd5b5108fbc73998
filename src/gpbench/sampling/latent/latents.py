"""Transitions of f given y and psi (filippone2013, section 3.1), with W(f) = log p(y | f) + log N(f; 0, K), K = L L^T.

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

from gpbench.gp import linalg
from gpbench.gp.linalg import log_normal, multiply, solve, solve_transposed
from gpbench.sampling import elliptical, hmc
from gpbench.sampling.latent.model import Generator, Info, Model, Operator, State, select
from gpbench.sampling.tuning import HAMILTONIAN, LANGEVIN, WALK


class LatentOperator(Operator[Model]):
    """A transition of f; `refresh` follows a change of psi."""

    name = "latents"

    def refresh(self, state: State) -> tuple[State, Info]:
        """What is kept of K, anew."""
        return state, {}

    def told(self, acceptance: Tensor, **counts: float | Tensor) -> Info:
        return {f"{self.name}.acceptance": acceptance, **counts}


class Walk(LatentOperator):
    """`mh`, and with `prior` `mh_v1`: random walks."""

    target = WALK
    first_step = 0.1
    fixed = 1
    per_row = 1

    def __init__(self, model: Model, prior: bool = False) -> None:
        super().__init__(model)
        self.prior = prior

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        z, old = generator.latent(), solve(state["chol"], state["f"])
        jump = self.step_size(state) * (multiply(state["chol"], z) if self.prior else z)
        f = state["f"] + jump
        new, log_lik = solve(state["chol"], f), self.model.log_lik(f)
        gain = log_lik - state["log_lik"] + 0.5 * (old.square() - new.square()).sum(1)
        acceptance = hmc.acceptance(gain)
        accepted = generator.uniform() < acceptance
        return select(accepted, {"f": f, "log_lik": log_lik}, state), self.told(acceptance, quadratic=2 + self.prior)


class PriorReversible(LatentOperator):
    """`mh_v2`."""

    target = WALK
    first_step = 0.2
    fixed = 1
    per_row = 1

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        size = self.step_size(state).clamp_max(1.0)
        z = multiply(state["chol"], generator.latent())
        f = (1 - size.square()).sqrt() * state["f"] + size * z
        log_lik = self.model.log_lik(f)
        acceptance = hmc.acceptance(log_lik - state["log_lik"])
        accepted = generator.uniform() < acceptance
        return select(accepted, {"f": f, "log_lik": log_lik}, state), self.told(acceptance, quadratic=1)


class EllipticalSlice(LatentOperator):
    """`elliptical`; its acceptance is that of single tries."""

    fixed = 1 + elliptical.MAX_TRIES
    per_row = 1

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        draw = multiply(state["chol"], generator.latent())
        uniforms = generator.uniforms(self.fixed)
        f, log_lik, tries = elliptical.step(state["f"], self.model.log_lik, state["log_lik"], draw, uniforms)
        return state | {"f": f, "log_lik": log_lik}, self.told(1 / tries.clamp_min(1).to(f), quadratic=1)


class Hamiltonian(LatentOperator):
    """`hmc`, `hmc_v1`, `hmc_v2`: metric is unit, posterior or prior."""

    target = HAMILTONIAN
    fixed = 2
    per_row = 1

    def __init__(self, model: Model, metric: str = "prior", leapfrogs: int = 10) -> None:
        super().__init__(model)
        self.metric, self.leapfrogs = metric, leapfrogs
        self.first_step = {"unit": 0.02, "posterior": 0.3, "prior": 0.2}[metric]

    def init(self, state: State) -> State:
        return self.refresh(super().init(state))[0]

    def refresh(self, state: State) -> tuple[State, Info]:
        if self.metric != "posterior":
            return state, {}
        # (K^-1 + C)^-1 = A A^T with A = L L_B^-T, L_B L_B^T = B = I + L^T C L
        information = self.model.information(torch.zeros_like(state["f"]))
        root = _root(state["chol"], information)
        return state | {f"{self.name}.root": root}, {"cholesky": 1, "product": 1}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        momentum, (uniform, number) = generator.latent(), generator.uniforms(2).unbind(1)
        most = torch.full_like(uniform, self.leapfrogs)
        leapfrogs = hmc.draw_leapfrogs(number, most)
        density = _Density(self.model, state, self.metric, state.get(f"{self.name}.root", torch.empty(0)))
        # padding rows have no momentum, as their noise is 0
        start = density(density.inverse(state["f"]))
        end, acceptance = hmc.step(start, density, momentum, uniform, self.step_size(state)[:, 0], leapfrogs)
        f = density.latent(end.position)
        moved = {"f": f, "log_lik": self.model.log_lik(f)}
        return state | moved, self.told(acceptance, quadratic=density.products * (leapfrogs + 1) + 2)


class _Density:
    """W as a function of w, f = A w: the points that `hmc` asks for."""

    def __init__(self, model: Model, state: State, metric: str, root: Tensor) -> None:
        self.model, self.chol, self.metric, self.root = model, state["chol"], metric, root
        self.products = 4 if metric == "posterior" else 2

    def inverse(self, f: Tensor) -> Tensor:
        """w of f."""
        if self.metric == "unit":
            return f
        nu = solve(self.chol, f)
        return multiply(self.root.mT, nu) if self.metric == "posterior" else nu

    def whitened(self, w: Tensor) -> Tensor:
        """nu of w."""
        if self.metric == "unit":
            return solve(self.chol, w)
        return solve_transposed(self.root, w) if self.metric == "posterior" else w

    def latent(self, w: Tensor) -> Tensor:
        """f of w."""
        return w if self.metric == "unit" else multiply(self.chol, self.whitened(w))

    def __call__(self, w: Tensor) -> hmc.Point:
        nu = self.whitened(w)
        f = w if self.metric == "unit" else multiply(self.chol, nu)
        value = self.model.log_lik(f) - 0.5 * nu.square().sum(1)
        slope = self.model.gradient(f)
        if self.metric == "unit":
            return hmc.Point(w, value, slope - solve_transposed(self.chol, nu))
        slope = multiply(self.chol.mT, slope) - nu
        return hmc.Point(w, value, solve(self.root, slope) if self.metric == "posterior" else slope)


class ManifoldLangevin(LatentOperator):
    """`smmala`, the simplified manifold MALA, on nu with the metric B = I + L^T R(f) L = L^T G L."""

    target = LANGEVIN
    first_step = 0.5
    fixed = 1
    per_row = 1

    def init(self, state: State) -> State:
        return self.refresh(super().init(state))[0]

    def refresh(self, state: State) -> tuple[State, Info]:
        root, drift = self._metric(state["chol"], solve(state["chol"], state["f"]), state["f"])
        kept = {f"{self.name}.root": root, f"{self.name}.drift": drift}
        return state | kept, {"cholesky": 1, "product": 1, "quadratic": 4}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        size, z = self.step_size(state), generator.latent()
        root, drift = state[f"{self.name}.root"], state[f"{self.name}.drift"]
        nu = solve(state["chol"], state["f"])
        mean = nu + 0.5 * size.square() * drift
        proposed = mean + size * solve_transposed(root, z)
        f = multiply(state["chol"], proposed)
        new_root, new_drift = self._metric(state["chol"], proposed, f)
        back = proposed + 0.5 * size.square() * new_drift
        log_lik = self.model.log_lik(f)
        gain = log_lik - state["log_lik"] + 0.5 * (nu.square() - proposed.square()).sum(1)
        gain = gain + log_normal(nu, back, new_root, size) - log_normal(proposed, mean, root, size)
        acceptance = hmc.acceptance(gain)
        moved = {"f": f, "log_lik": log_lik, f"{self.name}.root": new_root, f"{self.name}.drift": new_drift}
        chosen = select(generator.uniform() < acceptance, moved, state)
        return chosen, self.told(acceptance, cholesky=1, product=1, quadratic=8)

    def _metric(self, chol: Tensor, nu: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Factor of B `[R, n, n]` and drift B^-1 grad `[R, n]` at nu."""
        root = _root(chol, self.model.information(f))
        slope = multiply(chol.mT, self.model.gradient(f)) - nu
        return root, solve_transposed(root, solve(root, slope))


def _root(chol: Tensor, information: Tensor) -> Tensor:
    """L_B with L_B L_B^T = I + L^T diag(information) L, which is never near singular."""
    scaled = information.clamp_min(0).sqrt()[:, :, None] * chol
    eye = torch.eye(chol.shape[-1]).to(chol)
    return linalg.cholesky(eye + scaled.mT @ scaled, "metric")


def named(name: str, model: Model, leapfrogs: int = 10) -> LatentOperator:
    """The operator of a name above; leapfrogs: most steps of those with Hamiltonian dynamics."""
    if name.startswith("hmc"):
        metric = {"hmc": "unit", "hmc_v1": "posterior", "hmc_v2": "prior"}[name]
        return Hamiltonian(model, metric, leapfrogs)
    if name in ("mh", "mh_v1"):
        return Walk(model, prior=name == "mh_v1")
    others: dict[str, Callable[[Model], LatentOperator]] = {
        "mh_v2": PriorReversible,
        "elliptical": EllipticalSlice,
        "smmala": ManifoldLangevin,
    }
    return others[name](model)
