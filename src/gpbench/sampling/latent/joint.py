"""psi and f moved together by a random walk on psi (filippone2013, sections 2.3 and 2.4).

    KHR    f' ~ q(f | y, psi'), Laplace's approximation at the new psi, and (psi', f') is accepted by the ratio of
           w(psi, f) p(psi), w = p(y | f) N(f; 0, K) / q(f): the pseudo-marginal sampler with m = 1 whose f_1 is the
           state (knorrheld2002)
    SURR   given surrogate data g ~ N(f, S), S diagonal, f has mean m and covariance (K^-1 + S^-1)^-1 = D D^T; a move of
           psi takes f = D eta + m along, eta held, accepted by p(y | f) N(g; 0, K + S) p(psi) (murray2010covariance)

Of SURR, D = L L_B^-T with L_B L_B^T = B = I + L^T S^-1 L, so that N(f; m, D D^T) is a q of `approximations` in which
g_i / S_ii and 1 / S_ii stand for the sites. S_ii is the inverse Fisher information at the mode of p(y_i | f_i)
N(f_i; 0, sigma), at most 10^6 sigma.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.gp.linalg import multiply, solve
from gpbench.sampling.latent.approximations import Approximation, Gaussian, posterior
from gpbench.sampling.latent.model import Generator, Info, Model, Operator, State
from gpbench.sampling.latent.pseudo_marginal import Marginal, weigh
from gpbench.sampling.tuning import WALK

MODE_STEPS, LONGEST_STEP = 10, 2.0
"""Of Newton's method in one dimension; S need only be the same function of sigma every time."""
MOST_NOISE = 1e6


class KHR(Marginal):
    """The joint update of knorrheld2002; `theta.log_estimate` is log w(psi, f)."""

    per_row = 1

    def init(self, state: State) -> State:
        q = self.approximate(self.model, state["psi"], state["chol"])
        z = q.coordinates(solve(state["chol"], state["f"]))
        log_weight = weigh(self.model, state["chol"], q, z[:, None])[1][:, 0]
        return super().init(state) | {"theta.log_estimate": log_weight}

    def estimate(self, state: State, chol: Tensor, q: Approximation, generator: Generator) -> State:
        f, log_weight = weigh(self.model, chol, q, generator.latents(1))
        return {"theta.log_estimate": log_weight[:, 0], **self.model.at_latents(f[:, 0])}


class Surrogate(Operator[Model]):
    """An update of psi, and of f with it, given new surrogate data."""

    name = "theta"
    target = WALK
    first_step = 0.2

    per_row = 1

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.fixed = model.num_parameters + 1

    def init(self, state: State) -> State:
        noise = self.noise(state["psi"])
        root = posterior(state["chol"], self.model.weight / noise, 0 * noise).root
        return super().init(state) | {"theta.noise": noise, "theta.root": root}

    def step(self, state: State, generator: Generator) -> tuple[State, Info]:
        data = state["f"] + state["theta.noise"].sqrt() * generator.latent()
        q = self.given(state, data)
        eta = q.coordinates(solve(state["chol"], state["f"]))

        psi = state["psi"] + self.jump(state, generator.normal(state["psi"].shape[1]))
        proposed = {"psi": psi, "chol": self.model.factor(psi), "theta.noise": self.noise(psi)}
        new_q = self.given(proposed, data)
        f = multiply(proposed["chol"], new_q.draw(eta[:, None])[:, 0])
        proposed |= self.model.at_latents(f) | {"theta.root": new_q.root}

        gain = self.value(proposed, new_q, data) - self.value(state, q, data)
        return self.accept_or_stay(state, proposed, gain, generator, cholesky=2.0, product=1.0, quadratic=11.0)

    def given(self, state: State, data: Tensor) -> Gaussian:
        """p(f | g, psi); data: g `[R, n]`."""
        precision = self.model.weight / state["theta.noise"]
        return posterior(state["chol"], precision, precision * data, state.get("theta.root"))

    def value(self, state: State, q: Gaussian, data: Tensor) -> Tensor:
        """log p(y | f) + log N(g; 0, K + S) + log p(psi) `[R]`; the weights w of q are (K + S)^-1 g."""
        log_det = (self.model.weight * state["theta.noise"].log()).sum(1)
        normal = -0.5 * ((q.weights * data).sum(1) + log_det) - q.half_log_det
        return state["log_lik"] + normal + self.model.log_prior(state["psi"])

    def noise(self, psi: Tensor) -> Tensor:
        """S_ii `[R, n]`."""
        sigma = self.model.outputscale(psi)[:, None]
        f = torch.zeros_like(self.model.weight)
        for _ in range(MODE_STEPS):
            slope = self.model.gradient(f) - f / sigma
            step = slope / (self.model.curvature(f) + 1 / sigma)
            f = f + step.clamp(-LONGEST_STEP, LONGEST_STEP)
        return (1 / self.model.information(f)).clamp_max(MOST_NOISE * sigma)
