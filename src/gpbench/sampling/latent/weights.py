"""Updates of the weights of the sources in the multinomial logit GP (filippone2012, table 1), class by class.

Given f (SA) the classes theta_c `[R, q]` of `gpbench.sampling.latent.multinomial` are independent, with

    log p(f_c, theta_c) = -log|K_c|/2 - f_c^T K_c^-1 f_c/2 + log p(theta_c),

and move by HMC with mass I, or by RMHMC. Given nu_c = L_c^-1 f_c (AA) they move by random walks, one class after the
other, and take f along: f_c' = L_c' nu_c, accepted by log p(y | f') + log p(theta') - log p(y | f) - log p(theta).
Weights on the simplex (e^theta_c ~ Dirichlet(alpha, ..., alpha), alpha ~ Exp(1)) have Dirichlet proposals around the
present weights, with the densities of the move and of its reverse in the acceptance; theta is then log w.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.gp import linalg
from gpbench.gp.linalg import half_log_det, multiply, solve
from gpbench.sampling import hmc
from gpbench.sampling.latent import rmhmc
from gpbench.sampling.latent.model import Generator, Info, Operator, State, gamma_at, select
from gpbench.sampling.latent.multinomial import TRAJECTORY, Model
from gpbench.sampling.tuning import WALK


class Weights(Operator[Model]):
    """An update of theta, class by class."""

    name = "theta"

    def __init__(self, model: Model, first_step: float) -> None:
        super().__init__(model)
        self.first_step = first_step
        self.functions, self.sources = model.y.shape[1], model.grams.shape[1]
        self.fixed = self.functions * (self.sources + 1)


class WeightsHMC(Weights):
    """HMC of theta given f with mass I."""

    target = TRAJECTORY

    def __init__(self, model: Model, leapfrogs: int, first_step: float) -> None:
        super().__init__(model, first_step)
        self.leapfrogs = leapfrogs

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        target, position = WeightsTarget(self.model, state["f"]), state["theta"].flatten(0, 1)
        normal = generator.normal(self.functions * self.sources).reshape(-1, self.sources)
        uniform = generator.uniforms(self.functions).flatten()
        size = self.step_size(state).expand(-1, self.functions).flatten()
        position, acceptance, counts = self.move(target, position, normal, uniform, size)
        theta = position.reshape(state["theta"].shape)
        info: Info = {"theta.acceptance": acceptance.reshape(-1, self.functions).mean(1)}
        return state | {"theta": theta, "chol": self.model.factor(theta)}, info | counts

    def move(
        self, target: WeightsTarget, position: Tensor, normal: Tensor, uniform: Tensor, size: Tensor
    ) -> tuple[Tensor, Tensor, Info]:
        """New positions `[R m, q]`, acceptances `[R m]` and counts; normal `[R m, q]`, uniform and size `[R m]`."""
        leapfrogs = torch.full_like(uniform, self.leapfrogs, dtype=torch.int64)
        end, acceptance = hmc.step(target.point(position), target.point, normal, uniform, size, leapfrogs)
        evaluations = self.functions * (self.leapfrogs + 1)
        return end.position, acceptance, {"cholesky": evaluations + self.functions, "inverse": evaluations}


class WeightsRMHMC(WeightsHMC):
    """RMHMC of theta given f; the metric is its Fisher information plus the curvature of the prior."""

    def move(
        self, target: WeightsTarget, position: Tensor, normal: Tensor, uniform: Tensor, size: Tensor
    ) -> tuple[Tensor, Tensor, Info]:
        move = rmhmc.step(target.at(position), target, normal, uniform, size, self.leapfrogs)
        points, metrics = 2 * self.leapfrogs + 1, (move.metrics + 1).reshape(-1, self.functions).sum(1)
        products = self.functions * points * self.sources * (self.sources + 1) / 2
        counts: Info = {"cholesky": metrics + self.functions, "inverse": (self.sources + 1) * metrics}
        return move.position, move.acceptance, counts | {"product": products}


class WeightsTarget:
    """log p(f_c, theta_c) of positions theta_c `[R m, q]`, with the metric

    G_jr = Tr(A_j A_r)/2 + delta_jr (-d2 log p / dtheta_j2),   A_j = e^theta_j K^-1 C_j.

    M_j = L^-1 e^theta_j C_j L^-T has the same traces of products as A_j; it is symmetric, so that the trace of three
    does not depend on their order, and dG_jr/dtheta_k = (delta_jk + delta_rk) Tr(M_j M_r)/2 - Tr(M_j M_r M_k) + prior.
    """

    def __init__(self, model: Model, f: Tensor) -> None:
        self.model, self.functions, self.f = model, f.shape[1], f.flatten(0, 1)
        self.grams = model.grams[:, None].expand(-1, self.functions, -1, -1, -1).flatten(0, 1)

    def _chol(self, position: Tensor) -> Tensor:
        """L `[R m, n, n]`."""
        return self.model.factor(position.reshape(-1, self.functions, position.shape[1])).flatten(0, 1)

    def _whitened(self, position: Tensor, chol: Tensor) -> Tensor:
        """M `[R m, q, n, n]`."""
        half = torch.linalg.solve_triangular(chol[:, None], self.grams, upper=False)
        return position.exp()[..., None, None] * torch.linalg.solve_triangular(chol[:, None], half.mT, upper=False)

    def point(self, position: Tensor) -> hmc.Point:
        """The point without its metric."""
        return self._point(position, self._chol(position))

    def _point(self, position: Tensor, chol: Tensor) -> hmc.Point:
        """Value, and gradient (f^T A_j K^-1 f - Tr A_j)/2 + d log p / dtheta_j."""
        prior, nu = self.model.prior, solve(chol, self.f)
        value = prior.log_density(position).sum(1) - 0.5 * nu.square().sum(1) - half_log_det(chol)
        inverse = torch.cholesky_solve(torch.eye(chol.shape[-1]).to(chol).expand_as(chol), chol)
        alpha = multiply(inverse, self.f)
        inner = alpha[:, :, None] * alpha[:, None] - inverse
        fit = position.exp() * torch.einsum("rij,rsij->rs", inner, self.grams)
        return hmc.Point(position, value, 0.5 * fit + prior.gradient(position))

    def _metric(self, position: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """Tr(M_j M_r) `[R m, q, q]`, and the factor of G."""
        flat = m.flatten(2)
        traces = flat @ flat.mT
        curvature = torch.diag_embed(self.model.prior.curvature(position))
        return traces, linalg.cholesky(0.5 * traces + curvature, "metric")

    def factor(self, position: Tensor) -> Tensor:
        return self._metric(position, self._whitened(position, self._chol(position)))[1]

    def at(self, position: Tensor) -> rmhmc.Point:
        chol = self._chol(position)
        m = self._whitened(position, chol)
        traces, factor = self._metric(position, m)
        slopes = self._slopes(position, m, traces)
        inverse = torch.cholesky_inverse(factor)
        value, gradient = self._point(position, chol)[1:3]
        return rmhmc.Point(position, value, gradient, factor, torch.einsum("rab,rabk->rk", inverse, slopes), slopes)

    def _slopes(self, position: Tensor, m: Tensor, traces: Tensor) -> Tensor:
        """dG_jr/dtheta_k `[R m, q, q, q]`, k last."""
        eye = torch.eye(position.shape[1], dtype=m.dtype, device=m.device)
        products = m[:, :, None] @ m[:, None]  # [R m, q, q, n, n]
        triples = torch.einsum("rabij,rkij->rabk", products, m)
        pairs = 0.5 * traces[..., None] * (eye[:, None] + eye[None])
        # the curvature of the prior of a weight is proportional to the weight, hence its own derivative
        cubic = self.model.prior.curvature(position)[:, :, None, None] * eye[:, :, None] * eye[:, None]
        return pairs - triples + cubic

    def quadratics(self, point: rmhmc.Point, u: Tensor) -> Tensor:
        return torch.einsum("ra,rb,rabk->rk", u, u, point.local)


class WeightsWalk(Weights):
    """Random walks of theta_c given nu = L^-1 f, one class after the other: f_c' = L_c' nu_c."""

    target = WALK

    def propose(self, state: State, generator: Generator) -> tuple[Tensor, Tensor]:
        """theta' `[R, m, q]`, and the log ratio of priors and proposals `[R, m]`."""
        theta, prior = state["theta"], self.model.prior
        jump = generator.normal(self.functions * self.sources).reshape(theta.shape)
        proposal = theta + self.step_size(state)[..., None] * jump
        return proposal, (prior.log_density(proposal) - prior.log_density(theta)).sum(2)

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        proposal, ratio = self.propose(state, generator)
        chol = self.model.factor(proposal)
        f = multiply(chol, solve(state["chol"], state["f"]))
        uniforms, acceptances = generator.uniforms(self.functions), []
        for c in range(self.functions):
            this_class = torch.arange(self.functions, device=f.device) == c
            moved = {
                name: torch.where(this_class.reshape(-1, *[1] * (value.ndim - 2)), value, state[name])
                for name, value in (("theta", proposal), ("f", f), ("chol", chol))
            }
            moved["log_lik"] = self.model.log_lik(moved["f"])
            acceptances.append(hmc.acceptance(moved["log_lik"] - state["log_lik"] + ratio[:, c]))
            state = select(uniforms[:, c] < acceptances[-1], moved, state)
        counts: Info = {"cholesky": self.functions, "quadratic": 2 * self.functions}
        return state, counts | {"theta.acceptance": torch.stack(acceptances, 1).mean(1)}


class DirichletWalk(WeightsWalk):
    """Weights w on the simplex given nu: w_c' ~ Dirichlet(w_c / e^2 + min(0.1, alpha)), e the step size; then alpha
    given w, by a log-normal walk. In the state theta is log w, and log_concentration `[R]` is log alpha."""

    FLOOR = 0.1

    def __init__(self, model: Model, first_step: float) -> None:
        super().__init__(model, first_step)
        self.fixed = self.functions * (2 * self.sources + 1) + 2

    def propose(self, state: State, generator: Generator) -> tuple[Tensor, Tensor]:
        theta, size = state["theta"], self.step_size(state)[..., None]
        normals = generator.normal(2 * self.functions * self.sources).reshape(-1, 2, *theta.shape[1:]).unbind(1)
        alpha = state["log_concentration"].exp()[:, None, None].expand_as(theta)
        floor = alpha.clamp_max(self.FLOOR)  # tails lighter than those of Dirichlet(alpha) would hold a chain for ever
        shapes = theta.exp() / size.square() + floor
        proposal = log_gammas(shapes, *normals).log_softmax(-1)
        reverse = proposal.exp() / size.square() + floor
        prior = log_dirichlet(proposal, alpha) - log_dirichlet(theta, alpha)
        return proposal, prior + log_dirichlet(theta, reverse) - log_dirichlet(proposal, shapes)

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        state, info = super().step(state, generator)
        old = state["log_concentration"]
        new = old + generator.normal(1)[:, 0]
        gain = concentration_density(new, state["theta"]) - concentration_density(old, state["theta"])
        accepted = generator.uniform() < hmc.acceptance(gain)
        return select(accepted, {"log_concentration": new}, state), info


def concentration_density(log_alpha: Tensor, theta: Tensor) -> Tensor:
    """log p(w, log alpha) `[R]` for w = e^theta `[R, m, q]` and alpha ~ Exp(1), with the Jacobian of log alpha."""
    alpha = log_alpha.exp()
    return log_dirichlet(theta, alpha[:, None, None].expand_as(theta)).sum(1) - alpha + log_alpha


def log_dirichlet(log_w: Tensor, shapes: Tensor) -> Tensor:
    """log Dirichlet(w; shapes) over the last axis, as a density of w."""
    constant = shapes.sum(-1).lgamma() - shapes.lgamma().sum(-1)
    return constant + ((shapes - 1) * log_w).sum(-1)


def log_gammas(shapes: Tensor, normal: Tensor, other: Tensor) -> Tensor:
    """Logarithms of Gamma(shape, 1) draws from two standard normals each, which do not underflow where a shape is
    small: Gamma(a) is Gamma(a + 1) U^(1/a) in law."""
    larger = gamma_at(shapes.double() + 1, torch.special.ndtr(normal.double()))
    return larger.to(shapes).log() + torch.special.log_ndtr(other) / shapes
