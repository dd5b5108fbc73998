"""Joint samplers of (f, psi) given y that alternate two conditional transitions (filippone2013, section 3.3).

    latents          f alone, psi known
    theta_given_f    psi alone, f known;    theta_given_nu   psi alone, nu = L^-1 f known
    sa               f | y, psi;  log tau | f by the operator chosen, sigma | f exactly (inverse Gamma prior)
    aa               f | y, psi;  psi | y, nu
    asis             f | y, psi;  psi | f as in sa;  psi | y, nu with the nu of the new psi: interweaving (yu2011)

Each update may be repeated. What an operator keeps of K is made anew when psi has moved.
"""

from __future__ import annotations

from typing import Any

import torch

from gpbench.sampling.latent import joint, latents, pseudo_marginal
from gpbench.sampling.latent.latents import LatentOperator
from gpbench.sampling.latent.model import Generator, Info, M, Model, Operator, State, total
from gpbench.sampling.latent.parameters import Ancillary, GibbsVariance, Sufficient, is_conjugate, named
from gpbench.sampling.tuning import DualAveraging

SUFFICIENT = "sufficient"
"""Name of the operator on p(psi | f) where another one has the name theta."""


class Sequence(Operator[M]):
    """Transitions one after the other, each of which leaves the posterior invariant."""

    def __init__(self, model: M, parts: list[Operator]) -> None:
        super().__init__(model)
        self.parts = parts
        self.fixed = sum(part.fixed for part in parts)
        self.per_row = sum(part.per_row for part in parts)

    @property
    def tuned(self) -> list[Operator]:
        return list({part.name: part for own in self.parts for part in own.tuned}.values())

    def init(self, state: State) -> State:
        for part in dict.fromkeys(self.parts):
            state = part.init(state)
        return state

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        # the transition before ended with the last part
        infos, stale = [], not isinstance(self.parts[-1], LatentOperator)
        for part in self.parts:
            if isinstance(part, LatentOperator) and stale:
                state, info = part.refresh(state)
                infos.append(info)
            stale = not isinstance(part, LatentOperator)
            state, info = part.step(state, generator)
            infos.append(info)
        return state, total(*infos)


def sufficient(model: Model, theta: str, name: str = "theta") -> list[Operator]:
    """psi given f: the operator on all of it, or on the lengthscales and then sigma exactly."""
    if not is_conjugate(model):
        return [named(theta, Sufficient(model), prefix=name)]
    return [named(theta, Sufficient(model), model.num_lengthscales, name), GibbsVariance(model)]


def ancillary(model: Model, theta: str) -> list[Operator]:
    """psi given y and nu."""
    return [named(theta, Ancillary(model))]


def scheme(name: str, model: Model, of_f: LatentOperator | None, theta: str, repeats: tuple[int, int]) -> Operator:
    """The sampler of a name above; repeats: updates of f and of psi in a transition."""
    updates = [] if of_f is None else [of_f] * repeats[0]
    of_psi = {
        "latents": lambda: [],
        "theta_given_f": lambda: sufficient(model, theta),
        "theta_given_nu": lambda: ancillary(model, theta),
        "sa": lambda: sufficient(model, theta),
        "aa": lambda: ancillary(model, theta),
        "asis": lambda: [*sufficient(model, theta, SUFFICIENT), *ancillary(model, theta)],
    }[name]()
    return Sequence(model, [*updates, *of_psi * repeats[1]])


def sampler(settings: Any, model: Model) -> Operator:
    """The transition that the settings ask for."""
    name, repeats = settings.sampler, (settings.latent_updates, settings.theta_updates)
    if name == "khr":
        return joint.KHR(model, settings.theta_updates)
    if name == "marginal":
        return pseudo_marginal.Marginal(model, settings.approximation, settings.theta_updates)
    if name == "estimator":
        grid = torch.linspace(settings.grid_low, settings.grid_high, settings.grid_points).to(model.x)
        return pseudo_marginal.Estimator(model, grid, settings.approximation, settings.num_importance)
    of_f = None if settings.latents == "none" else latents.named(settings.latents, model, settings.leapfrogs)
    if name == "pm":
        return pseudo_marginal.PseudoMarginal(model, settings.approximation, settings.num_importance, of_f, *repeats)
    if name == "surr" and of_f is not None:
        return joint.Surrogate(model, of_f, *repeats)
    return scheme(name, model, of_f, settings.theta, repeats)


def tuners(operator: Operator) -> list[DualAveraging]:
    """Tuners of every step size in an operator."""
    parts = [(part.name, part.target, part.first_step) for part in operator.tuned]
    return [DualAveraging(name, target, step) for name, target, step in parts if target is not None]
