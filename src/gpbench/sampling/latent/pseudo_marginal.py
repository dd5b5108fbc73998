"""psi with f integrated out: pseudo-marginal samplers (filippone2014).

With an approximation q(f) of p(f | y, psi) and f_1, ..., f_m ~ q,

    log p^(y | psi) = log 1/m sum_i w_i,   log w_i = log p(y | f_i) + log N(f_i; 0, K) - log q(f_i)
                                                   = log p(y | f_i) - |nu_i|^2/2 + |z_i|^2/2 - 1/2 log |B|,

f_i = L nu_i, with q and B as in `approximations` and z_i ~ N(0, I) what nu_i is made of. p^ is unbiased, so a random
walk on psi accepted by p^(y | psi') p(psi') / (p^(y | psi) p(psi)) leaves p(psi | y) invariant whatever q and m are, as
long as the estimate of the present psi stays as it is until psi moves (andrieu2009).

An f goes with an estimate: one of the f_i, chosen by its weight. With it (psi, f) has the law p(psi, f | y); so has
(psi, f') where f' comes from f by transitions that leave p(f | y, psi) invariant; the walk goes on from f, not f'.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from gpbench.errors import UserError
from gpbench.sampling import hmc
from gpbench.sampling.latent import approximations
from gpbench.sampling.latent.approximations import Approximation, Gaussian
from gpbench.sampling.latent.latents import LatentOperator
from gpbench.sampling.latent.model import Generator, Info, Model, Operator, Prior, State, select, total
from gpbench.sampling.tuning import WALK

APPROXIMATIONS = {"laplace": approximations.laplace, "ep": approximations.ep}


def weigh(model: Model, chol: Tensor, q: Gaussian, z: Tensor) -> tuple[Tensor, Tensor]:
    """f_i `[R, m, n]` made of normals z `[R, m, n]` (0 in padding rows), and log w_i `[R, m]`; chol, q at one psi."""
    nu = q.draw(z)
    f = (chol @ nu.mT).mT
    log_prob = model.likelihood.log_prob(model.y[:, None].expand_as(f), f)
    terms = model.weight[:, None] * log_prob + 0.5 * (z.square() - nu.square())
    return f, terms.sum(-1) - q.half_log_det[:, None]


def log_mean(log_weight: Tensor) -> Tensor:
    """log p^ `[R]` of log w_i `[R, m]`."""
    return log_weight.logsumexp(1) - math.log(log_weight.shape[1])


def log_estimate(model: Model, chol: Tensor, q: Gaussian, z: Tensor) -> Tensor:
    """log p^(y | psi) `[R]` of standard normals z `[R, m, n]`, 0 in padding rows; chol and q at that psi."""
    return log_mean(weigh(model, chol, q, z)[1])


class Marginal(Operator[Model]):
    """A random walk on psi in which the approximate evidence Z stands for p(y | psi): MCMC EP of filippone2014.

    What it samples is not quite p(psi | y). f stays where it is: p(f | y, psi) is the approximation itself.
    """

    name = "theta"
    target = WALK
    first_step = 0.2
    draws = 0
    """Of f from the approximation, for an estimate."""

    def __init__(self, model: Model, approximation: str = "laplace", theta_updates: int = 1) -> None:
        super().__init__(model)
        self.approximate, self.theta_updates = APPROXIMATIONS[approximation], theta_updates
        self.fixed = theta_updates * (model.num_parameters + 1)

    def init(self, state: State) -> State:
        q = self.approximate(self.model, state["psi"], state["chol"])
        return super().init(state) | {"theta.log_estimate": q.log_evidence}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        infos = []
        for _ in range(self.theta_updates):
            state, info = self.walk(state, generator)
            infos.append(info)
        return state, total(*infos)

    def walk(self, state: State, generator: Generator) -> tuple[State, Info]:
        """One step of the random walk."""
        jump = self.step_size(state) * generator.normal(state["psi"].shape[1])
        idle = self.unknown(state)  # a move to where the chain is, with an estimate of its own, is always accepted
        psi = state["psi"] + torch.where(idle[:, None], 0.0, jump)
        chol = self.model.factor(psi)
        q = self.approximate(self.model, psi, chol)
        there = {"psi": psi, "chol": chol, **self.known(state, chol, q, generator)}
        gain = there["theta.log_estimate"] - state["theta.log_estimate"]
        gain = gain + self.model.log_prior(psi) - self.model.log_prior(state["psi"])
        acceptance = hmc.acceptance(gain.masked_fill(idle, 0.0))
        accepted = generator.uniform() < acceptance
        told: Info = {"cholesky": 1.0, "quadratic": 2.0 * self.draws, "theta.acceptance": acceptance}
        return select(accepted, there, state), total(q.counts, told)

    def unknown(self, state: State) -> Tensor:
        """Whether the estimate of the present psi is still to be found `[R]`."""
        return torch.zeros_like(state["log_lik"], dtype=torch.bool)

    def known(self, state: State, chol: Tensor, q: Approximation, generator: Generator) -> State:
        """What goes with a psi whose factor is chol and approximation q: `theta.log_estimate`, log p(y | psi) or so."""
        return {"theta.log_estimate": q.log_evidence}


class PseudoMarginal(Marginal):
    """The pseudo-marginal sampler with m = num_importance, and updates of f after those of psi.

    While `state["theta.tuning"]` `[R]` is 1 the approximate evidence stands for the estimate, as in `Marginal`. When it
    has turned 0 a first step draws the estimate of the present psi, and stays.
    """

    def __init__(
        self,
        model: Model,
        approximation: str = "laplace",
        num_importance: int = 1,
        latents: LatentOperator | None = None,
        latent_updates: int = 1,
        theta_updates: int = 1,
    ) -> None:
        super().__init__(model, approximation, theta_updates)
        self.num_importance = self.draws = num_importance
        self.of_f = [] if latents is None else [latents] * latent_updates
        self.fixed += theta_updates + sum(part.fixed for part in self.of_f)
        self.per_row = theta_updates * num_importance + sum(part.per_row for part in self.of_f)

    @property
    def tuned(self) -> list[Operator]:
        return [self, *(operator for part in self.of_f[:1] for operator in part.tuned)]

    def init(self, state: State) -> State:
        state, zero = super().init(state), torch.zeros_like(state["log_lik"])
        state |= {"theta.tuning": zero + 1, "theta.estimated": zero, "theta.f": state["f"]}
        return self.of_f[0].init(state) if self.of_f else state

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        state, info = super().step(state, generator)
        infos, f = [info], state["theta.f"]
        state = state | {"f": f, "log_lik": self.model.log_lik(f)}
        if self.of_f:
            state, info = self.of_f[0].refresh(state)
            infos.append(info)
        for part in self.of_f:
            state, info = part.step(state, generator)
            infos.append(info)
        return state, total(*infos)

    def unknown(self, state: State) -> Tensor:
        return (state["theta.tuning"] == 0) & (state["theta.estimated"] == 0)

    def known(self, state: State, chol: Tensor, q: Approximation, generator: Generator) -> State:
        """The estimate, and an f that goes with it."""
        tuning = state["theta.tuning"] > 0
        candidates, log_weight = weigh(self.model, chol, q, generator.latents(self.num_importance))
        estimate = torch.where(tuning, q.log_evidence, log_mean(log_weight).nan_to_num(-math.inf))
        below = log_weight.softmax(1).cumsum(1) < generator.uniform()[:, None]
        chosen = below.sum(1).clamp_max(self.num_importance - 1)
        f = candidates[torch.arange(len(chosen)).to(chosen), chosen]
        return {"theta.log_estimate": estimate, "theta.f": f, "theta.estimated": (~tuning).to(f)}


class Estimator(Operator[Model]):
    """Independent estimates log p^(y | tau) of m = num_importance draws, `state["log_estimate"]` `[R, G]`, a step.

    grid `[G]`: log tau of all lengthscales. Raises UserError where the variance is sampled.
    """

    name = "estimator"

    def __init__(self, model: Model, grid: Tensor, approximation: str = "laplace", num_importance: int = 1) -> None:
        super().__init__(model)
        if isinstance(model.variance, Prior):
            raise UserError("sampler estimator varies the lengthscale alone; set outputscale to the variance")
        self.grid, self.approximate, self.num_importance = grid, APPROXIMATIONS[approximation], num_importance
        self.per_row = len(grid) * num_importance

    @cached_property
    def places(self) -> list[tuple[Tensor, Approximation]]:
        """Factor of K and approximation at every point of the grid."""
        found = []
        for log_tau in self.grid:
            psi = log_tau.expand(len(self.model.x), self.model.num_parameters)
            chol = self.model.factor(psi)
            found.append((chol, self.approximate(self.model, psi, chol)))
        return found

    def init(self, state: State) -> State:
        return state | {"log_estimate": torch.stack([q.log_evidence for _, q in self.places], 1)}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        m = self.num_importance
        estimates = [log_estimate(self.model, chol, q, generator.latents(m)) for chol, q in self.places]
        return state | {"log_estimate": torch.stack(estimates, 1)}, {"quadratic": 2.0 * m * len(self.places)}
