"""psi with f integrated out: pseudo-marginal samplers (filippone2014).

With an approximation q(f) of p(f | y, psi) and f_1, ..., f_m ~ q,

    log p^(y | psi) = log 1/m sum_i w_i,   log w_i = log p(y | f_i) + log N(f_i; 0, K) - log q(f_i)
                                                   = log p(y | f_i) - |nu_i|^2/2 + |z_i|^2/2 - 1/2 log |B|,

f_i = L nu_i, with q and B as in `approximations` and z_i ~ N(0, I) what nu_i is made of. p^ is unbiased, so a random
walk on psi accepted by p^(y | psi') p(psi') / (p^(y | psi) p(psi)) leaves p(psi | y) invariant whatever q and m are, as
long as the estimate of the present psi stays as it is until psi moves (andrieu2009).

Tails of p(f | y, psi) may be heavier than those of q, so that w is unbounded. With a `share` a > 0 of a defensive
mixture (hesterberg1995), f is drawn from (1 - a) q(f) + a p(f | psi) and weighed by its density: then w <= max p(y |
f) / a.

An f belongs to an estimate: one of the f_i, chosen with probability proportional to w_i. (psi, f) then has the law
p(psi, f | y); so has (psi, f') if f' comes from f by transitions that leave p(f | y, psi) invariant. The random walk
goes on from f, not from f'.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from gpbench.errors import UserError
from gpbench.sampling.latent import approximations
from gpbench.sampling.latent.approximations import Approximation, Gaussian
from gpbench.sampling.latent.model import Generator, Info, Model, Operator, Prior, State, total
from gpbench.sampling.tuning import WALK

APPROXIMATIONS = {"laplace": approximations.laplace, "ep": approximations.ep}


def weigh(model: Model, chol: Tensor, q: Gaussian, z: Tensor) -> tuple[Tensor, Tensor]:
    """f_i `[R, m, n]` of normals z `[R, m, n]` (0 in padding rows), and log w_i `[R, m]`; chol, q of the same psi."""
    nu = q.draw(z)
    f, log_prob = _at(model, chol, nu)
    # log p(y | f_i) - |nu_i|^2/2 + |z_i|^2/2 - 1/2 log |B|
    terms = log_prob + 0.5 * (z.square() - nu.square())
    return f, terms.sum(-1) - q.half_log_det[:, None]


def defended(
    model: Model, chol: Tensor, q: Gaussian, z: Tensor, uniform: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    """As `weigh`, of draws from the mixture; uniform `[R, m]` decides from which part each is."""
    nu = torch.where((uniform < share)[..., None], z, q.draw(z))
    f, log_prob = _at(model, chol, nu)
    prior = -0.5 * nu.square().sum(-1)
    own = q.half_log_det[:, None] - 0.5 * ((nu - q.whitened[:, None]) @ q.root).square().sum(-1)
    # log p(y | f_i) + log p(f_i) - log ((1 - a) q(f_i) + a p(f_i))
    mixed = torch.logaddexp(math.log1p(-share) + own, math.log(share) + prior)
    return f, log_prob.sum(-1) + prior - mixed


def _at(model: Model, chol: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
    """f and log p(y | f) of every row, each `[R, m, n]`."""
    f = (chol @ nu.mT).mT
    return f, model.weight[:, None] * model.likelihood.log_prob(model.y[:, None].expand_as(f), f)


def log_mean(log_weight: Tensor) -> Tensor:
    """log p^ `[R]` of log w_i `[R, m]`."""
    return log_weight.logsumexp(1) - math.log(log_weight.shape[1])


def log_estimate(model: Model, chol: Tensor, q: Gaussian, z: Tensor) -> Tensor:
    """log p^(y | psi) `[R]` of standard normals z `[R, m, n]`, 0 in padding rows; chol and q at that psi."""
    return log_mean(weigh(model, chol, q, z)[1])


class Marginal(Operator[Model]):
    """A step of a random walk on psi in which the approximate evidence Z replaces p(y | psi): MCMC EP of filippone2014.

    It samples an approximation of p(psi | y). f does not move: p(f | y, psi) is the Gaussian approximation itself."""

    name = "theta"
    target = WALK
    first_step = 0.2

    def __init__(self, model: Model, approximation: str = "laplace") -> None:
        super().__init__(model)
        self.approximate = APPROXIMATIONS[approximation]
        self.fixed = model.num_parameters + 1

    def init(self, state: State) -> State:
        q = self.approximate(self.model, state["psi"], state["chol"])
        return super().init(state) | {"theta.log_estimate": q.log_evidence}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        jump = self.jump(state, generator.normal(state["psi"].shape[1]))
        unknown = self.unknown(state)  # such a chain stays where it is, and always accepts its new estimate
        psi = state["psi"] + torch.where(unknown[:, None], 0.0, jump)
        chol = self.model.factor(psi)
        q = self.approximate(self.model, psi, chol)
        proposed = {"psi": psi, "chol": chol, **self.estimate(state, chol, q, generator)}
        gain = proposed["theta.log_estimate"] - state["theta.log_estimate"]
        gain = gain + self.model.log_prior(psi) - self.model.log_prior(state["psi"])
        gain, products = gain.masked_fill(unknown, 0.0), 2.0 * self.per_row  # a draw of f takes two
        state, info = self.accept_or_stay(state, proposed, gain, generator, cholesky=1.0, quadratic=products)
        return state, total(q.counts, info)

    def unknown(self, state: State) -> Tensor:
        """Whether a chain has no estimate of log p(y | psi) yet `[R]`."""
        return torch.zeros_like(state["log_lik"], dtype=torch.bool)

    def estimate(self, state: State, chol: Tensor, q: Approximation, generator: Generator) -> State:
        """Entries of a proposal with factor chol and approximation q: `theta.log_estimate` of log p(y | psi), ..."""
        return {"theta.log_estimate": q.log_evidence}


class PseudoMarginal(Marginal):
    """A step of the pseudo-marginal sampler with m = num_importance; f becomes the one that belongs to the estimate.

    share: of draws from the prior, 0 for none.

    While `state["theta.tuning"]` `[R]` is 1 the approximate evidence replaces the estimate, as in `Marginal`. The first
    step after it has become 0 draws the estimate of the present psi and does not move psi."""

    def __init__(
        self, model: Model, approximation: str = "laplace", num_importance: int = 1, share: float = 0.0
    ) -> None:
        super().__init__(model, approximation)
        self.share = share
        self.fixed += 1 + num_importance * (share > 0)
        self.per_row = num_importance

    def init(self, state: State) -> State:
        state, zero = super().init(state), torch.zeros_like(state["log_lik"])
        return state | {"theta.tuning": zero + 1, "theta.estimated": zero, "theta.f": state["f"]}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        state, info = super().step(state, generator)
        return state | self.model.at_latents(state["theta.f"]), info

    def unknown(self, state: State) -> Tensor:
        return (state["theta.tuning"] == 0) & (state["theta.estimated"] == 0)

    def estimate(self, state: State, chol: Tensor, q: Approximation, generator: Generator) -> State:
        """The estimate, and the f that belongs to it: f_i with probability w_i / sum_j w_j."""
        tuning = state["theta.tuning"] > 0
        z = generator.latents(self.per_row)
        if self.share:
            uniform = generator.uniforms(self.per_row)
            candidates, log_weight = defended(self.model, chol, q, z, uniform, self.share)
        else:
            candidates, log_weight = weigh(self.model, chol, q, z)
        estimate = torch.where(tuning, q.log_evidence, log_mean(log_weight).nan_to_num(-math.inf))
        below = log_weight.softmax(1).cumsum(1) < generator.uniform()[:, None]
        chosen = below.sum(1).clamp_max(self.per_row - 1)
        f = candidates[torch.arange(len(chosen)).to(chosen), chosen]
        return {"theta.log_estimate": estimate, "theta.f": f, "theta.estimated": (~tuning).to(f)}


class Estimator(Operator[Model]):
    """A step draws independent estimates log p^(y | tau) `[R, G]` of m = num_importance draws: `log_estimate`.

    grid `[G]`: log tau, the same for all lengthscales. Raises UserError if the variance is sampled."""

    name = "estimator"

    def __init__(self, model: Model, grid: Tensor, approximation: str = "laplace", num_importance: int = 1) -> None:
        super().__init__(model)
        if isinstance(model.variance, Prior):
            raise UserError("sampler estimator varies the lengthscale only; set outputscale to the known variance")
        self.grid, self.approximate, self.num_importance = grid, APPROXIMATIONS[approximation], num_importance
        self.per_row = len(grid) * num_importance

    @cached_property
    def places(self) -> list[tuple[Tensor, Approximation]]:
        """Factor of K and approximation at every point of the grid."""
        places = []
        for log_tau in self.grid:
            psi = log_tau.expand(len(self.model.x), self.model.num_parameters)
            chol = self.model.factor(psi)
            places.append((chol, self.approximate(self.model, psi, chol)))
        return places

    def init(self, state: State) -> State:
        return state | {"log_estimate": torch.stack([q.log_evidence for _, q in self.places], 1)}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        m = self.num_importance
        estimates = [log_estimate(self.model, chol, q, generator.latents(m)) for chol, q in self.places]
        return state | {"log_estimate": torch.stack(estimates, 1)}, {"quadratic": 2.0 * m * len(self.places)}
