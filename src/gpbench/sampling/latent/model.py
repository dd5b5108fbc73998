"""A GP prior with a factorising likelihood, and what all of its samplers share (filippone2013, filippone2014).

    y_i | f_i ~ p(y_i | f_i);   f | psi ~ N(0, K),   K_ij = sigma exp(-1/2 sum_d (x_id - x_jd)^2 / tau_d^2) (+ jitter);
    psi = (log tau_1, ..., log tau_D, log sigma), or with a single tau; sigma may be fixed;

or with another kernel of `gpbench.gp.kernels` without sums, whose periods are among tau.

Many chains advance in one batch: the axis R of chains (replicas) comes first everywhere and nothing is mixed over it.
The state of R chains is a dict of tensors:

    psi `[R, P]`; f `[R, n]`; chol `[R, n, n]`, the factor L of K; log_lik `[R]`, log p(y | f); and what operators add
    under their names ("latents.step_size" `[R]`).

An operator's `step` reports in a dict what it did: "<name>.acceptance" `[R]`, the probability with which its proposal
was to be accepted (the mean, if it made several), and how many operations of size n it took: "cholesky", "inverse" (of
a triangle), "product" (of matrices), which are O(n^3), and "quadratic", which are O(n^2).
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

import torch
from scipy import special
from torch import Tensor

from gpbench.gp import kernels, linalg
from gpbench.gp.jitter import DEFAULT_JITTER
from gpbench.gp.latent_likelihoods import Likelihood
from gpbench.sampling import hmc
from gpbench.sampling.tuning import DualAveraging, StepAndScale, unit_scale

State = dict[str, Tensor]
Info = dict[str, "Tensor | float"]
COUNTS = ("cholesky", "inverse", "product", "quadratic")


def gamma_at(shape: Tensor, uniform: Tensor) -> Tensor:
    """Gamma(shape, 1) at `uniform` numbers in (0, 1), in float64.

    On the host, by SciPy, for torch has no inverse of the incomplete gamma function: a small tensor goes there and
    back, which takes a seventh of the time of Newton's iterations in torch."""
    found = special.gammaincinv(*(part.double().cpu().numpy() for part in (shape, uniform)))
    return torch.as_tensor(found, device=uniform.device)


class Prior(NamedTuple):
    """exp(psi) ~ Gamma(shape, rate), or with `inverse` inverse Gamma(shape, scale = rate); densities are of psi.

    log p(psi) = shape psi - rate exp(psi), or -shape psi - rate exp(-psi), without constants."""

    shape: float
    rate: float
    inverse: bool = False

    @property
    def _sign(self) -> int:
        return -1 if self.inverse else 1

    def log_density(self, psi: Tensor) -> Tensor:
        """log p(psi), element by element."""
        return self._sign * self.shape * psi - self.rate * (self._sign * psi).exp()

    def gradient(self, psi: Tensor) -> Tensor:
        """d log p / dpsi."""
        return self._sign * (self.shape - self.rate * (self._sign * psi).exp())

    def curvature(self, psi: Tensor) -> Tensor:
        """-d2 log p / dpsi2."""
        return self.rate * (self._sign * psi).exp()

    def quantile(self, uniform: Tensor) -> Tensor:
        """psi at `uniform` numbers in (0, 1)."""
        rank = 1 - uniform.double() if self.inverse else uniform.double()
        return self._sign * gamma_at(torch.full_like(rank, self.shape), rank).mul(1 / self.rate).to(uniform).log()


@dataclasses.dataclass(frozen=True)
class Model:
    """The posterior of R chains: rows x `[R, n, D]`, y `[R, n]`; weight `[R, n]` is 1 in rows and 0 in padding.

    variance: a prior of sigma, or its known value (or values `[R]`). The f of padding rows are apart from the others
    and stay 0."""

    x: Tensor
    y: Tensor
    weight: Tensor
    likelihood: Likelihood
    lengthscale: Prior
    variance: Prior | float | Tensor
    ard: bool = False
    formula: str = "rbf"

    @functools.cached_property
    def widths(self) -> dict[str, int]:
        """How many numbers of psi each lengthscale and period of the kernel has, in their order."""
        known = kernels.start(self.formula, torch.empty(1), torch.empty(()))
        names = [name.replace("log_", "") for name in known if not name.endswith("outputscale")]
        return dict.fromkeys(names, self.x.shape[-1] if self.ard else 1)

    @property
    def num_lengthscales(self) -> int:
        return sum(self.widths.values())

    def of(self, chains: Tensor) -> Model:
        """The model of the chains with these numbers `[A]`."""
        return dataclasses.replace(self, x=self.x[chains], y=self.y[chains], weight=self.weight[chains])

    @property
    def num_parameters(self) -> int:
        """P."""
        return self.num_lengthscales + isinstance(self.variance, Prior)

    def kernel(self, psi: Tensor) -> kernels.Kernel:
        """The kernel at psi, its lengthscales `[R, D]`."""
        parts = psi[:, : self.num_lengthscales].exp().split([*self.widths.values()], 1)
        values = {name: part.expand(-1, self.x.shape[-1]) for name, part in zip(self.widths, parts, strict=True)}
        return kernels.Kernel(self.formula, values | {"outputscale": self.outputscale(psi)})

    def outputscale(self, psi: Tensor) -> Tensor:
        """sigma `[R]`, a variance."""
        if isinstance(self.variance, Prior):
            return psi[:, -1].exp()
        return torch.as_tensor(self.variance).to(psi).expand(psi.shape[0])

    def covariance(self, psi: Tensor) -> Tensor:
        """K `[R, n, n]` with its jitter; in padding rows it is the identity."""
        kernel = self.kernel(psi).covariance(self.x, self.x, self.centre)
        jitter = DEFAULT_JITTER * self.outputscale(psi)[:, None]
        diagonal = torch.lerp(torch.ones_like(self.weight), jitter, self.weight)
        # in place but where a gradient is to pass: matrices of many chains are slow to allocate
        covariance = kernel * self.mask if self.padded or kernel.requires_grad else kernel
        covariance.diagonal(dim1=-2, dim2=-1).add_(diagonal)
        return covariance

    @functools.cached_property
    def centre(self) -> Tensor:
        """Mean of the rows `[R, 1, D]`. Were padding in it, it would change the rounding of K, which the smallest
        pivots of its factor, sqrt(jitter), magnify 1 / (2 sqrt(jitter)) = 500 times."""
        weight = self.weight[:, :, None]
        return (weight * self.x).sum(1, keepdim=True) / weight.sum(1, keepdim=True)

    @functools.cached_property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return not bool((self.weight == 1).all())

    @property
    def mask(self) -> Tensor:
        """`[R, n, n]`: 0 in rows and columns of padding, else 1."""
        return self.weight[:, :, None] * self.weight[:, None, :]

    def cross(self, psi: Tensor, x: Tensor) -> Tensor:
        """Covariances of f at the rows and at x `[R, T, D]`: `[R, n, T]`."""
        return self.kernel(psi).covariance(self.x, x, self.centre) * self.weight[:, :, None]

    def factor(self, psi: Tensor) -> Tensor:
        """L `[R, n, n]`, L L^T = K; NaN where K has no factor."""
        return linalg.cholesky(self.covariance(psi), "K")

    def derivatives(self, psi: Tensor, covariance: Tensor) -> Tensor:
        """dK/dpsi_p `[R, P, n, n]` of the RBF kernel from K: K_ij (x_id - x_jd)^2 / tau_d^2; that of log sigma is K."""
        scaled = self.x / self.kernel(psi).lengthscale[:, None]
        if self.ard:
            distances = (scaled.mT[:, :, :, None] - scaled.mT[:, :, None, :]).square()  # [R, D, n, n]
        else:
            distances = torch.cdist(scaled, scaled).square()[:, None]
        # jitter does not move with tau, but distances are 0 there
        parts = [covariance[:, None] * distances]
        if isinstance(self.variance, Prior):
            parts.append((covariance * self.mask)[:, None])
        return torch.cat(parts, 1)

    def chain(self, psi: Tensor, covariance: Tensor, weights: Tensor) -> Tensor:
        """sum_ij W_ij (dK/dpsi_p)_ij `[R, P]` of symmetric W `[R, n, n]`, 0 in padding, without the derivatives: with
        V = W * K, sum_ij V_ij (a_i - a_j)^2 = 2 sum_i a_i (a_i sum_j V_ij - sum_j V_ij a_j)."""
        if self.formula != "rbf":
            with torch.enable_grad():
                leaf = psi.detach().requires_grad_()
                return torch.autograd.grad((weights * self.covariance(leaf)).sum(), leaf)[0]
        weighted = weights * covariance
        centred = (self.x - self.x.mean(1, keepdim=True)) / self.kernel(psi).lengthscale[:, None]
        parts = 2 * (centred * (centred * weighted.sum(2, keepdim=True) - weighted @ centred)).sum(1)  # [R, D]
        parts = parts if self.ard else parts.sum(1, keepdim=True)
        return torch.cat([parts, weighted.sum((1, 2))[:, None]], 1) if isinstance(self.variance, Prior) else parts

    def log_lik(self, f: Tensor) -> Tensor:
        """log p(y | f) `[R]`."""
        return (self.weight * self.likelihood.log_prob(self.y, f)).sum(-1)

    def gradient(self, f: Tensor) -> Tensor:
        """d log p(y | f) / df `[R, n]`."""
        return self.weight * self.likelihood.gradient(self.y, f)

    def information(self, f: Tensor) -> Tensor:
        """Fisher information of f `[R, n]`, the diagonal of a matrix."""
        return self.weight * self.likelihood.information(f)

    def curvature(self, f: Tensor) -> Tensor:
        """-d2 log p(y | f) / df2 `[R, n]` as observed."""
        return self.weight * self.likelihood.curvature(self.y, f)

    def priors(self, psi: Tensor) -> list[tuple[Prior, Tensor]]:
        """Each prior with its part of psi."""
        parts = [(self.lengthscale, psi[:, : self.num_lengthscales])]
        return [*parts, (self.variance, psi[:, -1:])] if isinstance(self.variance, Prior) else parts

    def log_prior(self, psi: Tensor) -> Tensor:
        """log p(psi) `[R]` without its constant."""
        return sum((prior.log_density(part).sum(-1) for prior, part in self.priors(psi)), torch.zeros(()))

    def prior_gradient(self, psi: Tensor) -> Tensor:
        """d log p(psi) / dpsi `[R, P]`."""
        return torch.cat([prior.gradient(part) for prior, part in self.priors(psi)], -1)

    def prior_curvature(self, psi: Tensor) -> Tensor:
        """-d2 log p(psi) / dpsi2 `[R, P]`."""
        return torch.cat([prior.curvature(part) for prior, part in self.priors(psi)], -1)

    def at_latents(self, f: Tensor) -> State:
        """The entries of a state that change when f does."""
        return {"f": f, "log_lik": self.log_lik(f)}

    def state(self, psi: Tensor, f: Tensor) -> State:
        """State of chains at psi and f."""
        return {"psi": psi, "chol": self.factor(psi), **self.at_latents(f)}


class Generator:
    """The random numbers of one step, drawn beforehand and taken in order: standard normals fixed `[R, size]` and, for
    every row, by_row `[R, n, size]`. ValueError for a step that takes more than there are."""

    def __init__(self, fixed: Tensor, by_row: Tensor) -> None:
        self.fixed, self.by_row, self.taken, self.rows_taken = fixed, by_row, 0, 0

    def normal(self, count: int) -> Tensor:
        """Standard normals `[R, count]`."""
        self.taken += count
        if self.taken > self.fixed.shape[1]:
            raise ValueError(f"a step takes more than the {self.fixed.shape[1]} random numbers that it declared")
        return self.fixed[:, self.taken - count : self.taken]

    def uniforms(self, count: int) -> Tensor:
        """Uniform numbers in (0, 1) `[R, count]`."""
        return torch.special.ndtr(self.normal(count))

    def uniform(self) -> Tensor:
        """A uniform number for every chain `[R]`."""
        return self.uniforms(1)[:, 0]

    def latents(self, count: int) -> Tensor:
        """Standard normals `[R, count, n]`."""
        self.rows_taken += count
        if self.rows_taken > self.by_row.shape[2]:
            raise ValueError(f"a step takes more than the {self.by_row.shape[2]} numbers per row that it declared")
        return self.by_row[:, :, self.rows_taken - count : self.rows_taken].mT

    def latent(self) -> Tensor:
        """A standard normal for every row `[R, n]`."""
        return self.latents(1)[:, 0]


M = TypeVar("M")


class Operator(ABC, Generic[M]):
    """A transition that leaves the posterior of a model invariant, or that of some coordinates given the others.

    name: prefix of its entries in the state and in the report. target: the acceptance to which its step size is tuned,
    None if it has no step size; first_step: the initial step size. fixed, per_row: how many normals a step takes, in
    all and for every row. The step size is `state["<name>.step_size"]` `[R]`: whoever runs the chain sets it, and
    changes it during burn-in only. adapted: the number of coordinates of a random walk along `state["<name>.scale"]`, a
    factor of their covariance, which is learnt too; 0 for one that is alike in all directions."""

    name = ""
    target: float | None = None
    first_step = 1.0
    fixed = 0
    per_row = 0
    adapted = 0

    def __init__(self, model: M) -> None:
        self.model = model

    @property
    def tuned(self) -> list[Operator]:
        """The operators in this one whose step sizes are tuned."""
        return [] if self.target is None else [self]

    @property
    def tuner(self) -> DualAveraging:
        """What learns its settings, if it is tuned."""
        assert self.target is not None
        if self.adapted:
            return StepAndScale(self.name, self.target, self.first_step, size=self.adapted, dense=True)
        return DualAveraging(self.name, self.target, self.first_step)

    def init(self, state: State) -> State:
        """The state with the entries that the operator needs besides psi, f, chol and log_lik."""
        if self.target is None:
            return state
        scale = {f"{self.name}.scale": unit_scale(state["psi"], self.adapted, dense=True)} if self.adapted else {}
        return state | {f"{self.name}.step_size": torch.full_like(state["log_lik"], self.first_step)} | scale

    @abstractmethod
    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        """One transition of every chain, and the report of what it did."""

    def accept_or_stay(
        self, state: State, proposed: State, gain: Tensor, generator: Generator, **counts: float | Tensor
    ) -> tuple[State, Info]:
        """Metropolis: the proposed entries with probability min(1, exp(gain)), gain `[R]`; counts go into the report.

        What `proposed` lacks stays as it is."""
        acceptance = hmc.acceptance(gain)
        accepted = generator.uniform() < acceptance
        return select(accepted, proposed, state), {f"{self.name}.acceptance": acceptance, **counts}

    def step_size(self, state: State) -> Tensor:
        """`[R, 1]`."""
        return state[f"{self.name}.step_size"][:, None]

    def jump(self, state: State, normal: Tensor) -> Tensor:
        """How far a random walk goes, `[R, K]` of standard normals: step size times scale times normal."""
        scale = state[f"{self.name}.scale"] if self.adapted else None
        return self.step_size(state) * (normal if scale is None else linalg.multiply(scale, normal))


def select(accepted: Tensor, new: State, old: State) -> State:
    """The new entries in the accepted chains `[R]`, the old ones in the others; what `new` lacks stays as it is."""
    chosen = {}
    for key, value in new.items():
        mask = accepted.reshape(-1, *[1] * (value.ndim - 1))
        chosen[key] = torch.where(mask, value, old[key])
    return old | chosen


def total(*infos: Info) -> Info:
    """The report of several operators: counts are summed, acceptances of the same name averaged."""
    keys = dict.fromkeys(key for info in infos for key in info)
    summed = {key: sum(info[key] for info in infos if key in info) for key in keys}
    return {
        key: value if key in COUNTS else value / sum(key in info for info in infos) for key, value in summed.items()
    }
