"""GP regression by Langevin dynamics over covariance parameters, with ULISSE for its linear systems (filippone2015).

Model      f ~ GP(0, k), k(x, x') = sigma exp(-sum_d tau_d (x_d - x'_d)^2), one tau or one an input; y_n = f(x_n) + e_n,
           e_n ~ N(0, lambda). sigma, lambda, tau ~ Gamma(shape, rate), independent; psi = log(sigma, lambda, tau).
Gradient   g~ = -1/(2 N_r) sum_j s_j^T dK_y r_j + 1/2 a_1^T dK_y a_2,   K_y = K + lambda I,   r_j independent signs,
           s_j, a_1 and a_2 unbiased estimates of K_y^-1 r_j and, twice and independently, of K_y^-1 y: all products.
Step       psi' = psi + e/2 M (g~ + d log p(psi)) + N(0, e M), never rejected; M^-1 = - Hessian of log p(psi | y_S) at
           its maximum, by the exact evidence of a random subset S; e_t = a / (b + t), which is first_step
           at 0 and would be last_step at the end of all steps, were it not held from the end of burn-in on.
           The r_j stay for some steps, in which solves start from the last plain iterates; those of y always do.
Freezing   Once e_t/4 lambda_max(M^1/2 V M^1/2) < 0.002, V the covariance of g~ over 100 steps, e_t stays; at the latest
           where burn-in ends, for what is kept comes from one step size.
Predictive a mixture over kept psi of N(k_*^T K_y^-1 y, k_** - k_*^T K_y^-1 k_* + lambda), as `gp_pcg` has it.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import lbfgs
from gpbench.hyper import Fraction, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods import gp_pcg
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import GaussianMixture, Predictive
from gpbench.sampling.latent.model import Prior
from gpbench.solvers import conjugate_gradients, ulisse
from gpbench.solvers.conjugate_gradients import Solution
from gpbench.solvers.products import KernelProduct
from gpbench.streams import Key

WINDOW, NOISE_RATIO = 100, 0.002
"""Steps over which V is estimated, and the ratio of the noise of gradients to that of steps at which they freeze."""
CONVERGED, MOST_ITERATIONS = 1e-8, 10
"""Norm of the residual of a converged solve; iterations of conjugate gradients at most, a row."""
SEARCH, LEAST_GAIN, LEAST_CURVATURE = 200, 1e-3, 0.1
"""Iterations of L-BFGS for the start, the nats that a tenth of them must gain, and the least eigenvalue of M^-1."""
COUNTED = ("quadratic", "step_size", "stopped")
WEIGHTS = {"exponential": ulisse.exponential, "constant": ulisse.constant}
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Those of filippone2015 for concrete but threshold (1 there), and priors, which it does not state. threshold:
    residual, in sqrt(n), at which solves may stop, by weights exp(weight r) or a constant ratio `weight`; num_probes:
    N_r, kept for probe_steps; subset: rows of S. Steps begin with twice the part of the rows in S at most, for M is not
    made smaller for the others."""

    ard: bool = False
    shape: PositiveFloat = 1.0
    rate: PositiveFloat = 1.0
    jitter: PositiveFloat = 1e-8
    weights: Literal["exponential", "constant"] = "exponential"
    weight: PositiveFloat = 1.0
    threshold: PositiveFloat = 0.03
    num_probes: PositiveInt = 4
    probe_steps: PositiveInt = 20
    subset: PositiveInt = 500
    first_step: PositiveFloat = 0.1
    last_step: PositiveFloat = 1e-4
    burn_in: Fraction = 0.5
    num_samples: PositiveInt = 100

    def impossible(self, task: str) -> str:
        if self.weights == "constant" and self.weight < 1:
            return "weights=constant need a weight of at least 1: terms that end too soon cannot be weighted up"
        return "" if self.first_step > self.last_step else "first_step must be larger than last_step"


class Method(SamplerMethod):
    hyper: Hyperparameters
    covariance_parameters = ("psi",)

    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.prior = Prior(hyper.shape, hyper.rate)
        self.given = gp_pcg.Method(gp_pcg.Hyperparameters(ard=hyper.ard, jitter=hyper.jitter), task)
        """The GP at a psi."""

    def init(self, train: Batch, key: Key) -> State:
        x, state = train.x, self.begin(train, key)
        count, probes = state.params["psi"].shape[1], self.hyper.num_probes
        state.memory = {
            "probes": x.new_zeros(1, x.shape[1], probes),
            "solutions": x.new_zeros(1, x.shape[1], 1 + probes),  # plain iterates for y and the probes
            "gradient": x.new_zeros(1, count),  # this and its square are sums over a window
            "gradient_square": x.new_zeros(1, count, count),
            "frozen": x.new_zeros(1),  # the step size, 0 before
            **{name: x.new_zeros(1) for name in COUNTED},
        }
        return state

    def begin(self, train: Batch, key: Key) -> State:
        """psi ~ N(mode, M), both of one subset for all chains of a posterior."""
        x, rng = train.x, streams.rng(key._replace(replica=0), "init")
        chosen = rng.permutation(x.shape[1])[: self.hyper.subset]
        mode, root = self.mode_and_root(x[0, chosen].double(), train.y[0, chosen, 0].double())
        normal = torch.as_tensor(streams.rng(key, "init", 1).standard_normal(len(mode))).to(mode)
        psi = (mode + root @ normal).to(x)[None]
        return State({"psi": psi}, {"x": x, "y": train.y, "mask": train.weight, "root": root.to(x)[None]})

    def mode_and_root(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """psi `[P]` that maximises log p(psi | y_S), and M^1/2 `[P, P]`, by dense factors."""
        squares = (x[:, None] - x[None]).square().movedim(-1, 0)
        squares = squares if self.hyper.ard else squares.sum(0, keepdim=True)
        eye = torch.eye(len(y), dtype=x.dtype, device=x.device)

        def minus_log_posterior(psi: Tensor) -> Tensor:
            sigma, noise, tau = psi[0].exp(), psi[1].exp(), psi[2:].exp()
            covariance = sigma * (-torch.tensordot(tau, squares, 1)).exp() + (noise + self.hyper.jitter * sigma) * eye
            factor, info = torch.linalg.cholesky_ex(covariance)
            whitened = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
            value = 0.5 * whitened.square().sum() + factor.diagonal().log().sum()  # -log p(y | psi)
            return torch.where(info > 0, torch.inf, value) - self.prior.log_density(psi).sum()

        start = torch.cat([y.new_tensor([1.0, 0.1]), y.new_full((len(squares),), 0.5 / x.shape[1])]).log()
        objective = lbfgs.of_params(lambda params: minus_log_posterior(params["psi"]), {"psi": start})
        mode = lbfgs.minimise(objective, start, SEARCH, LEAST_GAIN)
        values, vectors = torch.linalg.eigh(torch.autograd.functional.hessian(minus_log_posterior, mode))
        # the symmetric root, as the signs of eigenvectors are a library's choice
        return mode, (vectors * values.clamp_min(LEAST_CURVATURE).rsqrt()) @ vectors.mT

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """Numbers of the step and a number u for every accumulator; signs of the probes where they are drawn anew."""
        accumulators = 2 + self.hyper.num_probes
        redrawn = step % self.hyper.probe_steps == 0
        return Shapes((state.params["psi"].shape[1] + accumulators,), (self.hyper.num_probes if redrawn else 0,))

    @torch.no_grad()
    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """A step of each replica; 1/2 y^T K_y^-1 y - log p(psi) `[R]`, estimated: the log determinant never is."""
        memory, losses = state.memory, []
        for r, kept in enumerate(batch.weight > 0):
            x, y, psi = batch.x[r, kept], batch.y[r, kept], state.params["psi"][r]
            kick, normal = noise.fixed[r].split([len(psi), 2 + self.hyper.num_probes])
            if step % self.hyper.probe_steps == 0:
                memory["probes"][r, kept] = torch.where(noise.per_row[r, kept] < 0, -1.0, 1.0).to(x)
                memory["solutions"][r, :, 1:] = 0.0
            start = memory["solutions"][r, kept]
            gradient, quadratic, solution = self.gradient(
                psi, x, y, memory["probes"][r, kept], start, torch.special.ndtr(normal)
            )
            memory["solutions"][r, kept] = solution.x
            size, root = self.step_size(memory["frozen"][r], len(y), step, steps), state.buffers["root"][r]
            # psi' = psi + e/2 M (g~ + d log p(psi)) + e^1/2 M^1/2 normal
            drift = root @ (root.mT @ (gradient + self.prior.gradient(psi)))
            state.params["psi"][r] = psi + 0.5 * size * drift + size**0.5 * (root @ kick)
            self.freeze(memory, r, gradient, root, size, step)
            if step >= self.burn_in(steps):
                self.count(memory, r, solution, size, step - self.burn_in(steps))
            losses.append(0.5 * quadratic - self.prior.log_density(psi).sum())
        return torch.stack(losses) + 0 * state.params["psi"].sum(1)

    def gradient(
        self, psi: Tensor, x: Tensor, y: Tensor, probes: Tensor, start: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor, Solution]:
        """g~ `[P]`, the estimate of y^T K_y^-1 y and the plain solves of [y, r_1, ...] `[n, 1 + N_r]`."""
        psi = psi.detach().requires_grad_()
        with torch.enable_grad():
            params = named(psi[None])
            kernel = self.given.dense.kernel(params).map(lambda value: value[0])
            product = KernelProduct(kernel, x, self.given.dense.noise_variance(params)[0])
        numbers, threshold = [0, *range(1 + probes.shape[1])], self.hyper.threshold * len(y) ** 0.5  # y twice
        columns = torch.tensor(numbers, device=x.device)
        early = ulisse.Ulisse(WEIGHTS[self.hyper.weights](self.hyper.weight), threshold, uniform, columns, start)
        b, cap = torch.cat([y, probes], 1), MOST_ITERATIONS * len(y)
        solution = conjugate_gradients.solve(product, b, start=start, tolerance=CONVERGED, cap=cap, watch=early)
        one, two, solved = early.estimates.tensor_split([1, 2], 1)
        with torch.enable_grad():
            # 1/2 a_1^T K_y a_2 - 1/(2 N_r) sum_j s_j^T K_y r_j
            left = torch.cat([0.5 * one, -0.5 / probes.shape[1] * solved], 1)
            surrogate = product.bilinear(left, torch.cat([two, probes], 1))
            (gradient,) = torch.autograd.grad(surrogate, psi)
        return gradient, (y * one).sum(), solution

    def step_size(self, frozen: Tensor, rows: int, step: int, steps: int) -> Tensor:
        """e_t = a / (b + t), e_0 = first, e_T = last for T steps, held once burn-in ends or the chain is frozen."""
        first = min(self.hyper.first_step, 2 * min(self.hyper.subset / rows, 1.0))
        b = self.hyper.last_step * steps / (first - self.hyper.last_step)
        return torch.where(frozen > 0, frozen, first * b / (b + min(step, self.burn_in(steps))))

    def freeze(self, memory: Tensors, r: int, gradient: Tensor, root: Tensor, size: Tensor, step: int) -> None:
        """Add to the sums of a window; where it ends, keep the step size if the noise of gradients is small in it."""
        total, square = memory["gradient"][r], memory["gradient_square"][r]
        total += gradient
        square += gradient.outer(gradient)
        if (step + 1) % WINDOW:
            return
        covariance = (square - total.outer(total) / WINDOW) / (WINDOW - 1)  # V
        whitened = root.mT @ covariance @ root
        if whitened.isfinite().all() and size / 4 * torch.linalg.eigvalsh(whitened)[-1] < NOISE_RATIO:
            memory["frozen"][r] = size
        total.zero_()
        square.zero_()

    def count(self, memory: Tensors, r: int, solution: Solution, size: Tensor, number: int) -> None:
        """Add a transition to the means after burn-in, `number` (from 0) of them."""
        capped = (solution.iterations >= MOST_ITERATIONS * len(solution.x)).any()
        values = torch.stack([size.new_tensor(solution.products), size, capped.to(size)])
        for name, value in zip(COUNTED, values, strict=True):
            memory[name][r] += (value - memory[name][r]) / (number + 1)

    def report(self, state: State) -> Tensors:
        """quadratic: columns multiplied by K_y in the solves of a transition; step_size; stopped: share of transitions
        in which a solve reached the most iterations."""
        return {name: state.memory[name] for name in COUNTED}

    def variables(self, name: str, size: int) -> list[str]:
        """As `SamplerMethod.variables`."""
        tau = ["log tau"] if size == 3 else [f"log tau {number}" for number in range(1, size - 1)]
        return ["log sigma", "log lambda", *tau]

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Equal mixture over the kept psi at x `[1, T, D]`."""
        means, variances, unsolved = [], [], []
        for kept in state.kept():
            given = State(named(kept["psi"]), state.buffers)
            one = self.given.predict(given, x, key)
            means.append(one.mean())
            variances.append(one.variance())
            unsolved.append(given.memory["unsolved_test"])
        state.memory["unsolved_test"] = torch.stack(unsolved).mean(0)
        return GaussianMixture(np.stack(means), np.stack(variances))


def named(psi: Tensor) -> Tensors:
    """psi `[R, P]` by the names that its parameters have elsewhere; lengthscale_d = (2 tau_d)^-1/2."""
    scales = -0.5 * (psi[:, 2:] + math.log(2))
    return {"log_outputscale": psi[:, 0], "log_noise_variance": psi[:, 1], "log_lengthscale": scales}
