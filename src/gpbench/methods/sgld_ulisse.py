"""GP regression by Langevin dynamics over covariance parameters, with ULISSE for its linear systems (filippone2015).

Model      f ~ GP(0, k), k(x, x') = sigma exp(-sum_d tau_d (x_d - x'_d)^2), one tau or one an input; y_n = f(x_n) + e_n,
           e_n ~ N(0, lambda). sigma, lambda, tau ~ Gamma(shape, rate), independent; psi = log(sigma, lambda, tau).
Gradient   g~ = -1/(2 N_r) sum_j s_j^T dK_y r_j + 1/2 a_1^T dK_y a_2,   K_y = K + lambda I,   r_j independent signs,
           s_j, a_1 and a_2 unbiased estimates of K_y^-1 r_j and, twice and independently, of K_y^-1 y: all products.
Step       psi' = psi + e/2 M (g~ + d log p(psi)) + N(0, e M), never rejected; M^-1 = - Hessian of log p(psi | y_S) at the
           maximum for the exact evidence of a random subset S; e_t = a / (b + t) from first_step to last_step.
           The r_j stay for some steps, in which solves start from the last plain iterates; those of y always do.
Freezing   Once e_t/4 lambda_max(M^1/2 V M^1/2) < 0.002, V the covariance of g~ over 100 steps, e_t stays; at the latest
           where burn-in ends, for what is kept comes from one step size.
Predictive a mixture over kept psi of N(k_*^T K_y^-1 y, k_** - k_*^T K_y^-1 k_* + lambda), a solve a test row.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import lbfgs, likelihoods
from gpbench.gp.kernels import Kernel
from gpbench.hyper import Fraction, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.sampling.latent.model import Prior
from gpbench.solvers import conjugate_gradients, ulisse
from gpbench.solvers.products import KernelProduct
from gpbench.streams import Key

WINDOW, NOISE_RATIO = 100, 0.002
"""Steps over which V is estimated, and the ratio of the noise of gradients to that of steps at which they freeze."""
CONVERGED, MOST_ITERATIONS = 1e-8, 10
"""Norm of the residual of a converged solve; iterations of conjugate gradients at most, a row."""
SEARCH, LEAST_GAIN, LEAST_CURVATURE = 200, 1e-3, 0.1
"""Iterations of L-BFGS for the start, the nats that a tenth of them must gain, and the least eigenvalue of M^-1."""
ACCURACY, TEST_ROWS = 1e-5, 256
"""Of predictions: error of an element of a solve, and test rows solved for at once."""
WEIGHTS = {"exponential": ulisse.exponential, "constant": ulisse.constant}


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Those of filippone2015 for concrete; priors are not given there. threshold: residual, in sqrt(n), at which solves
    may stop, by weights exp(weight r) or of a constant ratio `weight`; probes: N_r, kept for probe_steps; subset: rows
    of S. first_step is at most twice the part of the rows in S, for M is not made smaller for the others."""

    ard: bool = False
    shape: PositiveFloat = 1.0
    rate: PositiveFloat = 1.0
    jitter: PositiveFloat = 1e-8
    weights: Literal["exponential", "constant"] = "exponential"
    weight: PositiveFloat = 1.0
    threshold: PositiveFloat = 1.0
    probes: PositiveInt = 4
    probe_steps: PositiveInt = 20
    subset: PositiveInt = 500
    first_step: PositiveFloat = 0.1
    last_step: PositiveFloat = 1e-4
    burn_in: Fraction = 0.5
    num_samples: PositiveInt = 100


class Method(SamplerMethod):
    hyper: Hyperparameters
    covariance_parameters = ("psi",)

    def init(self, train: Batch, key: Key) -> State:
        """psi ~ N(mode, M), both of one subset for all chains of a posterior."""
        rows, x = train.x.shape[1], train.x[0]
        chosen = streams.rng(key._replace(replica=0), "init").permutation(rows)[: self.hyper.subset]
        mode, root = self.mode_and_root(x[chosen].double(), train.y[0, chosen, 0].double())
        normal = torch.as_tensor(streams.rng(key, "init", 1).standard_normal(len(mode)))
        count = len(mode)
        memory = {
            "probes": train.x.new_zeros(1, rows, self.hyper.probes),
            "solutions": train.x.new_zeros(1, rows, 1 + self.hyper.probes),
            "gradient": train.x.new_zeros(1, count),  # sums over a window
            "gradient_square": train.x.new_zeros(1, count, count),
            "frozen": train.x.new_zeros(1),  # step size; 0 before
            "products": train.x.new_zeros(1),
            "transitions": train.x.new_zeros(1),
        }
        buffers = {"x": train.x, "y": train.y[..., 0], "mask": train.weight, "root": root.to(x)[None]}
        return State({"psi": (mode + root @ normal).to(x)[None]}, buffers, memory)

    def mode_and_root(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """psi `[P]` that maximises log p(psi | y_S), and M^1/2 `[P, P]`, in double precision."""
        squares = (x[:, None] - x[None]).square().movedim(-1, 0)
        squares = squares if self.hyper.ard else squares.sum(0, keepdim=True)

        def minus_log_posterior(psi: Tensor) -> Tensor:
            (sigma, noise), tau = psi[:2].exp(), psi[2:].exp()
            covariance = sigma * (-torch.tensordot(tau, squares, 1)).exp()
            covariance = covariance + (noise + self.hyper.jitter * sigma) * torch.eye(len(y)).to(y)
            factor, info = torch.linalg.cholesky_ex(covariance)
            whitened = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
            value = 0.5 * whitened.square().sum() + factor.diagonal().log().sum()
            return torch.where(info > 0, torch.inf, value) - self.prior.log_density(psi).sum()

        start = torch.full((2 + len(squares),), 0.5, dtype=x.dtype).log()
        start[2:] -= np.log(x.shape[1])
        found = lbfgs.minimise(lbfgs.of_params(lambda p: minus_log_posterior(p["psi"]), {"psi": start}), start, SEARCH, 1e-3)
        values, vectors = torch.linalg.eigh(torch.autograd.functional.hessian(minus_log_posterior, found))
        return found, vectors * values.clamp_min(LEAST_CURVATURE).rsqrt()
