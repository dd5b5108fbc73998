"""Samplers of (f, psi) given y, put together from transitions of f and of psi (filippone2013, section 2).

    latents          f alone, psi known
    theta_given_f    psi alone, f known;    theta_given_nu   psi alone, nu = L^-1 f known
    sa               f | y, psi;  log tau | f by the chosen operator, sigma | f exactly (inverse Gamma prior)
    aa               f | y, psi;  psi | y, nu
    asis             f | y, psi;  psi | f as in sa;  psi | y, nu with the nu of the new psi: interweaving (yu2011)
    surr             f | y, psi;  psi given surrogate data (`joint`)
    khr              psi and f together (`joint`)
    hmc, nuts        psi and L^-1 f together by Hamiltonian dynamics (`whitened`)
    pm               psi by an estimate of p(y | psi);  f | y, psi (`pseudo_marginal`)
    marginal         psi by an approximation of p(y | psi) (`pseudo_marginal`)
    estimator        independent estimates of p(y | psi) (`pseudo_marginal`)

Each update may be repeated. What operators of f keep of K is computed again when psi has moved.
"""

from __future__ import annotations

from typing import Any

import torch

from gpbench.sampling.latent import joint, latents, whitened
from gpbench.sampling.latent.latents import LatentOperator
from gpbench.sampling.latent.model import Generator, Info, M, Model, Operator, State, total
from gpbench.sampling.latent.parameters import Ancillary, GibbsVariance, ParameterWalk, Sufficient, is_conjugate, named
from gpbench.sampling.latent.pseudo_marginal import Estimator, Marginal, PseudoMarginal
from gpbench.sampling.tuning import DualAveraging

SUFFICIENT = "sufficient"
"""Name of the operator on p(psi | f) in a scheme where the one on p(psi | y, nu) has the name theta."""


class Sequence(Operator[M]):
    """Transitions one after the other, each of which leaves the posterior invariant."""

    def __init__(self, model: M, parts: list[Operator]) -> None:
        super().__init__(model)
        self.parts = parts
        self.fixed = sum(part.fixed for part in parts)
        self.per_row = sum(part.per_row for part in parts)

    @property
    def tuned(self) -> list[Operator]:
        return list({operator.name: operator for part in self.parts for operator in part.tuned}.values())

    def init(self, state: State) -> State:
        for part in dict.fromkeys(self.parts):
            state = part.init(state)
        return state

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        # the previous step ended with the last part
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
    """Transitions of psi given f: of all of it, or of the lengthscales and then of sigma exactly."""
    if not is_conjugate(model):
        return [named(theta, Sufficient(model), prefix=name)]
    return [named(theta, Sufficient(model), model.num_lengthscales, name), GibbsVariance(model)]


def scheme(name: str, model: Model, of_f: LatentOperator | None, theta: str, repeats: tuple[int, int]) -> Operator:
    """Latents, theta_given_f, theta_given_nu, sa, aa or asis; repeats: updates of f and of psi in a transition."""
    of_psi: list[Operator] = []
    if name in ("theta_given_f", "sa", "asis"):
        of_psi += sufficient(model, theta, SUFFICIENT if name == "asis" else "theta")
    if name in ("theta_given_nu", "aa", "asis"):
        of_psi.append(named(theta, Ancillary(model)))
    updates = [] if of_f is None else [of_f]
    return Sequence(model, [*updates * repeats[0], *of_psi * repeats[1]])


def sampler(settings: Any, model: Model) -> Operator:
    """The transition that the settings ask for."""
    return adapt(_sampler(settings, model)) if settings.walk == "adapted" else _sampler(settings, model)


def _sampler(settings: Any, model: Model) -> Operator:
    name, approximation, num_importance = settings.sampler, settings.approximation, settings.num_importance
    of_f = None if settings.latents == "none" else latents.named(settings.latents, model, settings.leapfrogs)
    updates = [] if of_f is None else [of_f] * settings.latent_updates
    repeats = settings.theta_updates
    if name == "estimator":
        grid = torch.linspace(settings.grid_low, settings.grid_high, settings.grid_points).to(model.x)
        return Estimator(model, grid, approximation, num_importance)
    if name == "hmc":
        return whitened.Hamiltonian(model, settings.leapfrogs)
    if name == "nuts":
        return whitened.NoUTurn(model, settings.doublings)
    if name == "khr":
        return Sequence(model, [joint.KHR(model)] * repeats)
    if name == "marginal":
        return Sequence(model, [Marginal(model, approximation)] * repeats)
    if name == "pm":
        of_psi = PseudoMarginal(model, approximation, num_importance, settings.defensive)
        return Sequence(model, [*[of_psi] * repeats, *updates])
    if name == "surr":
        return Sequence(model, [*updates, *[joint.Surrogate(model)] * repeats])
    return scheme(name, model, of_f, settings.theta, (settings.latent_updates, repeats))


def adapt(operator: Operator) -> Operator:
    """The operator with its random walks of psi along the covariance of psi, which burn-in learns."""
    for part in operator.tuned:
        if isinstance(part, ParameterWalk | Marginal | joint.Surrogate):
            part.adapted = part.free if isinstance(part, ParameterWalk) else part.model.num_parameters
    return operator


def tuners(operator: Operator) -> list[DualAveraging]:
    """What learns the settings of every operator in one."""
    return [part.tuner for part in operator.tuned]
