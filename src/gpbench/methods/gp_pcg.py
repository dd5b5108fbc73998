"""GPs by preconditioned conjugate gradients: exact regression, probit classification by Laplace (cutajar2016).

Model      f ~ GP(0, k); y_n = f(x_n) + e_n, e_n ~ N(0, s), K_y = K + s I; several targets have a function each. Or
           y_n ~ Bernoulli(Phi(f(x_n))), whose posterior is that of Laplace at the mode f = K a, B = I + S K S.
Gradient   of the log evidence, without bias for solutions that are exact; r_j: N independent vectors of signs,
           1/2 a^T dK_y a - 1/(2 N) sum_j (K_y^-1 r_j)^T dK_y r_j,  a = K_y^-1 y                 (section 2), or
           1/2 a^T dK a - 1/(2 N) sum_j (S B^-1 r_j)^T dK S r_j - 1/2 u^T (I + K W)^-1 dK g      (supplement, B.1),
           u = 1/N sum_j r_j o (K^-1 + W)^-1 r_j o dW/df,  g = grad log p(y | f)  (the paper prints -dW/df).
Step       of AdaGrad on psi, the logarithms of lengthscale, outputscale and noise variance, h the gradient above:
           G = G + h o h,  psi = psi + learning_rate * h / sqrt(G).
Posterior  mean k_* a, variance k_** - k_* K_y^-1 k_*^T (or k_** - k_* S B^-1 S k_*^T): a system a test row.

K is never stored: systems are solved by products with tiles of K, all columns of a step at once, with a preconditioner
that is drawn anew in each step. log |K_y| and log |B|, which only the reported objective needs, are estimated from
columns of their own (`quadrature`). The start is the optimum of some random rows, where there are many, by
`gp_cholesky`, or the given values (`warm_start: false`). No state is kept but the last.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import kernels, likelihoods
from gpbench.gp.latent_likelihoods import Probit
from gpbench.hyper import Formula, NonNegativeFloat, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods import gp_cholesky
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.solvers import laplace, preconditioners, quadrature
from gpbench.solvers.conjugate_gradients import Solution, solve
from gpbench.solvers.products import KernelProduct
from gpbench.streams import Key

COLUMNS = 128
"""Test rows whose systems are solved together."""
VALUE_TOLERANCE = 1e-2
"""Residual at which the columns of a log determinant end, relative to their length: its quadrature is exact long
before they are."""
COUNTED = ("iterations", "unsolved")


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Settings of cutajar2016 but for learning_rate (1 there), warm_start and cap; the others of `exact_gp`.

    rank: of the preconditioner, in square roots of n; num_probes: N; tolerance: of residuals, a row (the norm of one is
    sqrt(n) times it); cap: most iterations of a system."""

    kernel: Formula = "rbf"
    ard: bool = True
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.1
    jitter: NonNegativeFloat = 1e-8
    preconditioner: Literal[
        "nystrom", "fitc", "pitc", "spectral", "partial_svd", "pivoted_cholesky", "block_jacobi", "none"
    ] = "nystrom"
    rank: PositiveFloat = 4.0
    num_probes: PositiveInt = 4
    tolerance: PositiveFloat = 1e-5
    cap: PositiveInt = 1000
    learning_rate: PositiveFloat = 0.3
    warm_start: bool = True


class Estimate(NamedTuple):
    """Minus the log evidence in nats, and the surrogate whose gradient is that of the log evidence; iterations of the
    slowest column, and the share of the columns that did not converge."""

    loss: Tensor
    surrogate: Tensor
    iterations: Tensor
    unsolved: Tensor


class Method(SamplerMethod):
    likelihood = Probit()

    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        shared = ("kernel", "ard", "lengthscale", "outputscale", "noise_variance", "jitter")
        settings = {name: getattr(hyper, name) for name in shared}
        optimiser: Literal["lbfgs", "adam"] = "lbfgs" if hyper.warm_start else "adam"
        self.dense = gp_cholesky.Method(gp_cholesky.Hyperparameters(**settings, optimiser=optimiser), task)

    def init(self, train: Batch, key: Key) -> State:
        state = self.dense.init(train, key)
        state.memory = {f"squares.{name}": torch.zeros_like(value) for name, value in state.params.items()}
        state.memory |= {name: train.x.new_zeros(1) for name in COUNTED}
        return state

    def keep(self, step: int, steps: int) -> bool:
        return False

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """A number to seed what is drawn for the preconditioner, and the probes."""
        return Shapes((1,), (self.hyper.num_probes,))

    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """A step of AdaGrad, replica by replica; minus the estimated log evidence `[R]`."""
        losses = []
        for r, kept in enumerate(batch.weight > 0):
            one = slice(r, r + 1)
            params = {name: value[one].detach().requires_grad_() for name, value in state.params.items()}
            probes = torch.where(noise.per_row[r, kept] < 0, -1.0, 1.0).to(batch.x)
            generator = quadrature.seeded(noise.fixed[r])
            with torch.enable_grad():
                estimate = self.estimate(params, batch.x[r, kept], batch.y[r, kept], probes, generator)
                gradients = torch.autograd.grad(estimate.surrogate, list(params.values()))
            for name, gradient in zip(params, gradients, strict=True):
                squares = state.memory[f"squares.{name}"][one]
                squares += gradient.square()  # G = G + h o h
                along = gradient / squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
                state.params[name][one] += self.hyper.learning_rate * along
            for name in COUNTED:
                state.memory[name][one] += (getattr(estimate, name) - state.memory[name][one]) / (step + 1)
            losses.append(estimate.loss)
        return torch.stack(losses)

    def report(self, state: State) -> dict[str, Tensor]:
        """iterations: of the slowest column of a step; unsolved: share of the columns that did not converge."""
        return {name: state.memory[name] for name in COUNTED}

    def estimate(
        self, params: dict[str, Tensor], x: Tensor, y: Tensor, probes: Tensor, generator: torch.Generator
    ) -> Estimate:
        """Of one replica, at params `[1, ...]`: x `[n, D]`, y `[n, P]`, probes `[n, N]`."""
        kernel = self.dense.kernel(params).map(lambda value: value[0])
        if self.task == "binary":
            return self.estimate_laplace(kernel, x, y[:, 0], probes, generator)
        product = KernelProduct(kernel, x, self.dense.noise_variance(params)[0])
        system = System(product, self.hyper, generator)
        solution, log_det = system.solve_with_log_det(torch.cat([y, probes], 1))
        targets, count = y.shape[1], probes.shape[1]
        a, solved = solution.x[:, :targets], solution.x[:, targets:]
        # 1/2 sum_p a_p^T K_y a_p - P / (2 N) sum_j (K_y^-1 r_j)^T K_y r_j
        left = torch.cat([0.5 * a, -0.5 * targets / count * solved], 1)
        surrogate = product.bilinear(left, torch.cat([a, probes], 1))
        loss = 0.5 * ((y * a).sum() + targets * (log_det + len(y) * math.log(2 * math.pi)))  # -log N(y; 0, K_y)
        return Estimate(loss, surrogate, *counted(solution))

    def estimate_laplace(
        self, kernel: kernels.Kernel, x: Tensor, y: Tensor, probes: Tensor, generator: torch.Generator
    ) -> Estimate:
        k, at = KernelProduct(kernel, x, 0.0), self.mode(kernel, x, y, generator)
        s, count = at.root[:, None], probes.shape[1]
        system = System(KernelProduct(kernel, x, 1.0, at.root), self.hyper, generator)
        smooth = k(probes)  # K r_j
        solution, log_det = system.solve_with_log_det(torch.cat([probes, s * smooth], 1))
        solved, inner = solution.x.split(count, 1)
        # (K^-1 + W)^-1 r = K (r - S B^-1 S K r),   dW/df = - d3 log p / df3
        u = (probes * k(probes - s * inner)).mean(1) * -at.third
        # (I + W K)^-1 u = u - S B^-1 S K u
        q = u[:, None] - s * system.solve(s * k(u[:, None])).x
        a, gradient = at.a[:, None], at.gradient[:, None]
        # 1/2 a^T K a - 1/(2 N) sum_j (S B^-1 r_j)^T K S r_j - 1/2 q^T K g
        left = torch.cat([0.5 * a, -0.5 / count * s * solved, -0.5 * q], 1)
        surrogate = k.bilinear(left, torch.cat([a, s * probes, gradient], 1))
        return Estimate(0.5 * log_det - at.value, surrogate, *counted(solution))

    def mode(self, kernel: kernels.Kernel, x: Tensor, y: Tensor, generator: torch.Generator) -> laplace.Mode:
        k, start = KernelProduct(kernel, x, 0.0), torch.zeros_like(y)[:, None]

        def solve_b(root: Tensor, r: Tensor) -> Tensor:
            nonlocal start
            system = System(KernelProduct(kernel, x, 1.0, root), self.hyper, generator)
            start = system.solve(r[:, None], start).x
            return start[:, 0]

        return laplace.mode(lambda v: k(v[:, None])[:, 0], solve_b, y, self.likelihood)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        kept, x = state.buffers["mask"][0] > 0, x[0]
        train_x, train_y = state.buffers["x"][0, kept], state.buffers["y"][0, kept]
        kernel, generator = self.dense.kernel(state.params).map(lambda value: value[0]), streams.generator(key, "eval")
        if self.task == "binary":
            at = self.mode(kernel, train_x, train_y[:, 0], generator)
            a, scale, noise = at.a[:, None], at.root, train_x.new_ones(())
        else:
            scale, noise = None, self.dense.noise_variance(state.params)[0]
        system = System(KernelProduct(kernel, train_x, noise, scale), self.hyper, generator)
        if self.task != "binary":
            a = system.solve(train_y).x
        means, variances = [], []
        for part in x.split(COLUMNS):
            cross = kernel.covariance(train_x, part)
            right = cross if scale is None else scale[:, None] * cross
            means.append(cross.mT @ a)
            variances.append(kernel.diagonal(part) - (right * system.solve(right).x).sum(0))
        state.memory["unsolved_test"] = 1 - torch.cat(system.converged).to(x).mean(0, keepdim=True)
        mean, variance = torch.cat(means), torch.cat(variances).clamp_min(0.0)
        if self.task == "binary":
            return self.likelihood.predictive(mean.mT, variance[None])
        variance = variance[None, :, None].expand(-1, -1, mean.shape[1])
        return likelihoods.Gaussian().predictive(mean[None], variance, noise[None])


def counted(solution: Solution) -> tuple[Tensor, Tensor]:
    """Iterations of the slowest column, and the share that did not converge."""
    return solution.iterations.max().to(solution.x), 1 - solution.converged.to(solution.x).mean()


class System:
    """Systems with one matrix, and its preconditioner; converged: of the columns of each call."""

    def __init__(self, product: KernelProduct, hyper: Hyperparameters, generator: torch.Generator) -> None:
        self.product, self.hyper, self.generator = product, hyper, generator
        self.converged: list[Tensor] = []
        rank = math.ceil(hyper.rank * math.sqrt(product.n))
        built = preconditioners.build(hyper.preconditioner, product, rank, generator)
        assert isinstance(built, preconditioners.Factored)
        self.precondition = built
        self.tolerance = hyper.tolerance * math.sqrt(product.n)

    def solve(self, b: Tensor, start: Tensor | None = None, tolerance: Tensor | None = None) -> Solution:
        limit = self.tolerance if tolerance is None else tolerance
        found = solve(self.product, b, precondition=self.precondition, start=start, tolerance=limit, cap=self.hyper.cap)
        self.converged.append(found.converged)
        return found

    def solve_with_log_det(self, b: Tensor) -> tuple[Solution, Tensor]:
        """The systems b `[n, c]`, and the log determinant from columns that go along with them."""
        columns = b.shape[1]
        z = self.precondition.probes(self.hyper.num_probes, self.generator)
        tolerance = torch.cat([b.new_full((columns,), self.tolerance), VALUE_TOLERANCE * z.norm(dim=0)])
        both = self.solve(torch.cat([b, z], 1), tolerance=tolerance)
        log_det = quadrature.log_quadratics(both.of(slice(columns, None)), z, self.precondition).mean()
        return both.of(slice(columns)), log_det
