"""Transitions of psi, the logarithms of the covariance parameters, in two coordinate systems (filippone2013).

    sufficient (SA)   f is held: p(psi | f) ~ N(f; 0, K_psi) p(psi); the data do not enter
    ancillary (AA)    nu = L^-1 f is held: p(psi | y, nu) ~ p(y | f = L_psi nu) p(psi); f moves with psi

each by a random walk (`mh`), Hamiltonian dynamics (`hmc`) or simplified manifold MALA (`smmala`) with the metrics

    SA   1/2 Tr(K^-1 dK_r K^-1 dK_s) - d2 log p(psi);    AA   (dL_r nu)^T R (dL_s nu) - d2 log p(psi),

R the Fisher information, dL = L tril_1/2(L^-1 dK L^-T), tril_1/2 the lower triangle with half of the diagonal. A
gradient alone takes g^T dL nu in reverse, at the cost of two solves in all.
Sources: filippone2013, section 2 and appendix; with `variance` held, psi is moved in its lengthscales alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpbench.gp import linalg
from gpbench.gp.linalg import half_log_det, log_normal, multiply, solve, solve_transposed
from gpbench.sampling import hmc
from gpbench.sampling.latent.model import Generator, Info, Model, Operator, Prior, State, gamma_at, select, total
from gpbench.sampling.tuning import HAMILTONIAN, LANGEVIN, WALK

NOISE_JITTER = 1e-10
"""Of a metric's diagonal, relative: directions in which psi changes nothing."""

LEAPFROGS = 10
"""The largest number of steps of Hamiltonian dynamics."""

NOT_REQUESTED = torch.empty(0)


class Place(NamedTuple):
    """A proposal of psi `[R, P]`: the state there, log density `[R]`, gradient `[R, P]` and metric `[R, P, P]`."""

    state: State
    value: Tensor
    gradient: Tensor = NOT_REQUESTED
    metric: Tensor = NOT_REQUESTED


@dataclass(frozen=True)
class Sufficient:
    """p(psi | f)."""

    model: Model

    def value(self, state: State) -> Tensor:
        """Log density `[R]` at the psi of a state."""
        whitened = solve(state["chol"], state["f"])
        normal = -0.5 * whitened.square().sum(1) - half_log_det(state["chol"])
        return normal + self.model.log_prior(state["psi"])

    def at(self, state: State, psi: Tensor, gradient: bool = False, metric: bool = False) -> Place:
        """The place psi, given the f of a state."""
        model = self.model
        covariance = model.covariance(psi)
        chol = linalg.cholesky(covariance, "K")
        proposed = {"psi": psi, "chol": chol}
        value = self.value(state | proposed)
        if not gradient:
            return Place(proposed, value)
        inverse = torch.cholesky_inverse(finite(chol))
        slopes = model.derivatives(psi, covariance)
        weights = multiply(inverse, state["f"])
        # 1/2 (f^T K^-1 dK_p K^-1 f - Tr(K^-1 dK_p)) + d log p(psi) / dpsi_p
        traces = (inverse[:, None] * slopes).sum((2, 3))
        quadratic = ((slopes @ weights[:, None, :, None])[..., 0] * weights[:, None]).sum(2)
        slope = 0.5 * (quadratic - traces) + model.prior_gradient(psi)
        if not metric:
            return Place(proposed, value, slope)
        # 1/2 Tr(K^-1 dK_r K^-1 dK_s) - d2 log p(psi)
        products = inverse[:, None] @ slopes
        traces = torch.einsum("rpij,rqji->rpq", products, products)
        return Place(proposed, value, slope, 0.5 * traces + torch.diag_embed(model.prior_curvature(psi)))

    def counts(self, gradient: bool, metric: bool) -> Info:
        """Operations of `at`."""
        number = self.model.num_parameters
        return {
            "cholesky": 1,
            "inverse": int(gradient),
            "product": metric * number,
            "quadratic": 1 + 2 * number * gradient + number**2 * metric,
        }


@dataclass(frozen=True)
class Ancillary:
    """p(psi | y, nu)."""

    model: Model

    def value(self, state: State) -> Tensor:
        """Log density `[R]` at the psi of a state."""
        return state["log_lik"] + self.model.log_prior(state["psi"])

    def at(self, state: State, psi: Tensor, gradient: bool = False, metric: bool = False) -> Place:
        """The place psi, given the nu of a state."""
        model, nu = self.model, solve(state["chol"], state["f"])
        covariance = model.covariance(psi)
        chol = linalg.cholesky(covariance, "K")
        f = multiply(chol, nu)
        proposed = {"psi": psi, "chol": chol, **model.at_latents(f)}
        value = self.value(proposed)
        if not gradient:
            return Place(proposed, value)
        # (dL_p nu)^T d log p(y | f) / df + d log p(psi) / dpsi_p
        if not metric:
            slope = self._slope(psi, covariance, chol, nu, model.gradient(f)) + model.prior_gradient(psi)
            return Place(proposed, value, slope)
        directions = self._directions(psi, covariance, chol, nu)  # [R, P, n]
        slope = (directions @ model.gradient(f)[..., None])[..., 0] + model.prior_gradient(psi)
        # (dL_r nu)^T R (dL_s nu) - d2 log p(psi)
        fisher = (directions * model.information(f)[:, None]) @ directions.mT
        return Place(proposed, value, slope, fisher + torch.diag_embed(model.prior_curvature(psi)))

    def _slope(self, psi: Tensor, covariance: Tensor, chol: Tensor, nu: Tensor, gradient: Tensor) -> Tensor:
        """g^T dL_p nu `[R, P]` of a gradient g `[R, n]`, in reverse: sum_ij W_ij (dK_p)_ij, W the gradient of
        g^T L nu with respect to K, which takes two solves instead of two for each p."""
        weights = linalg.factor_gradient(finite(chol), gradient[:, :, None] * nu[:, None])
        return self.model.chain(psi, covariance, weights)

    def _directions(self, psi: Tensor, covariance: Tensor, chol: Tensor, nu: Tensor) -> Tensor:
        """dL_p nu `[R, P, n]`; of log sigma it is f / 2."""
        slopes, root = self.model.derivatives(psi, covariance), finite(chol)[:, None]
        left = torch.linalg.solve_triangular(root, slopes, upper=False)
        inner = torch.linalg.solve_triangular(root, left.mT, upper=False)  # L^-1 dK L^-T, which is symmetric
        lower = inner.tril(-1) + 0.5 * torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1))
        return multiply(root, multiply(lower, nu[:, None]))

    def counts(self, gradient: bool, metric: bool) -> Info:
        """Operations of `at`."""
        number = self.model.num_parameters
        return {
            "cholesky": 1,
            "inverse": 2 * gradient * (number if metric else 1),
            "product": 0,
            "quadratic": 2 + 3 * number * gradient + number**2 * metric,
        }


Target = Sufficient | Ancillary


class ParameterOperator(Operator[Model]):
    """A transition of psi given what its target holds; only the first `free` coordinates move."""

    uniforms = 1
    """Random numbers of a step, besides one for each coordinate that moves."""

    def __init__(self, target: Target, free: int | None = None, name: str = "theta") -> None:
        super().__init__(target.model)
        self.conditional, self.name = target, name
        self.free = self.model.num_parameters if free is None else free
        self.fixed = self.free + self.uniforms

    def place(self, state: State, psi: Tensor, gradient: bool = False, metric: bool = False) -> Place:
        """The place psi, with gradient and metric of the coordinates that move."""
        place = self.conditional.at(state, psi, gradient, metric)
        if gradient:
            place = place._replace(gradient=place.gradient[:, : self.free])
        return place._replace(metric=place.metric[:, : self.free, : self.free]) if metric else place

    def moved(self, psi: Tensor, step: Tensor) -> Tensor:
        """psi + step `[R, free]`."""
        return psi + torch.nn.functional.pad(step, (0, psi.shape[1] - self.free))


class ParameterWalk(ParameterOperator):
    """`mh`: psi' = psi + a z."""

    target = WALK
    first_step = 0.2

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        jump = self.jump(state, generator.normal(self.free))
        now = self.conditional.value(state)
        proposed = self.place(state, self.moved(state["psi"], jump))
        counts = self.conditional.counts(gradient=False, metric=False)
        return self.accept_or_stay(state, proposed.state, proposed.value - now, generator, **counts)


class ParameterHamiltonian(ParameterOperator):
    """`hmc` with unit mass and 1 to `LEAPFROGS` steps."""

    target = HAMILTONIAN
    first_step = 0.05
    uniforms = 2

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        momentum, (uniform, number) = generator.normal(self.free), generator.uniforms(2).unbind(1)
        leapfrogs = hmc.draw_leapfrogs(number, torch.full_like(uniform, LEAPFROGS))

        def density(jump: Tensor) -> hmc.Point:
            place = self.place(state, self.moved(state["psi"], jump), gradient=True)
            return hmc.Point(jump, place.value, place.gradient)

        start = density(torch.zeros_like(momentum))
        size = self.step_size(state)[:, 0]
        end, acceptance = hmc.step(start, density, momentum, uniform, size, leapfrogs)
        proposed = self.place(state, self.moved(state["psi"], end.position))
        # chains that stay keep their state as it was, without the rounding of a new factor
        chosen = select((end.position != 0).any(1), proposed.state, state)
        gradients = {key: (leapfrogs + 1) * count for key, count in self.conditional.counts(True, False).items()}
        info: Info = {f"{self.name}.acceptance": acceptance, **gradients}
        return chosen, total(info, self.conditional.counts(False, False))


class ParameterLangevin(ParameterOperator):
    """`smmala`: psi' = psi + e^2/2 G^-1 gradient + e G^-1/2 z."""

    target = LANGEVIN
    first_step = 0.5

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        size, z, zero = self.step_size(state), generator.normal(self.free), generator.fixed.new_zeros(1, self.free)
        now = self.place(state, state["psi"], gradient=True, metric=True)
        mean, root = self._proposal(now, zero, size)
        jump = mean + size * solve_transposed(root, z)
        proposed = self.place(state, self.moved(state["psi"], jump), gradient=True, metric=True)
        back, back_root = self._proposal(proposed, jump, size)
        # log p(psi') - log p(psi) + log q(psi | psi') - log q(psi' | psi)
        gain = proposed.value - now.value
        gain = gain + log_normal(zero, back, back_root, size) - log_normal(jump, mean, root, size)
        counts = {key: 2 * count for key, count in self.conditional.counts(True, True).items()}
        return self.accept_or_stay(state, proposed.state, gain, generator, **counts)

    def _proposal(self, place: Place, start: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of the proposal from `start`, and the factor of the metric there."""
        metric = place.metric
        mean_diagonal = metric.diagonal(dim1=-2, dim2=-1).mean(-1)
        root = linalg.cholesky(metric, "metric of psi", NOISE_JITTER * mean_diagonal)
        drift = solve_transposed(root, solve(root, place.gradient))
        return start + 0.5 * size.square() * drift, root


class GibbsVariance(Operator[Model]):
    """sigma | f, tau ~ inverse Gamma(a + n/2, b + 1/2 f^T (K / sigma)^-1 f), for the prior inverse Gamma(a, b)."""

    name = "variance"
    fixed = 1

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        model, prior = self.model, self.model.variance
        assert isinstance(prior, Prior)  # see `is_conjugate`
        sigma = state["psi"][:, -1].exp()
        quadratic = sigma * solve(state["chol"], state["f"]).square().sum(1)
        shape = prior.shape + 0.5 * model.weight.sum(1)
        new = (prior.rate + 0.5 * quadratic) / gamma_at(shape, generator.uniform()).to(sigma)
        ratio = (new / sigma).sqrt()[:, None].expand_as(model.weight)
        chol = state["chol"] * torch.where(model.weight > 0, ratio, 1.0)[:, :, None]
        psi = torch.cat([state["psi"][:, :-1], new.log()[:, None]], 1)
        return state | {"psi": psi, "chol": chol}, {"quadratic": 2}


def is_conjugate(model: Model) -> bool:
    """Whether sigma has an inverse Gamma prior, so that `GibbsVariance` applies."""
    return isinstance(model.variance, Prior) and model.variance.inverse


def named(name: str, target: Target, free: int | None = None, prefix: str = "theta") -> ParameterOperator:
    """The operator mh, hmc or smmala on a target, whose entries have the given prefix."""
    kinds: dict[str, Callable[[Target, int | None, str], ParameterOperator]]
    kinds = {"mh": ParameterWalk, "hmc": ParameterHamiltonian, "smmala": ParameterLangevin}
    return kinds[name](target, free, prefix)


def finite(chol: Tensor) -> Tensor:
    """The factor, with the identity for chains whose factor is NaN: their density is NaN anyway."""
    lost = chol[:, -1, -1].isnan()  # what has no factor has NaN there
    if not bool(lost.any()):
        return chol
    return torch.where(lost[:, None, None], torch.eye(chol.shape[-1]).to(chol), chol)
