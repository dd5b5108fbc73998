"""ULISSE: conjugate gradients that stop early, at random, and give the solution without bias (filippone2015).

With s = s_0 + delta_1 + ... + delta_T the converged solution, delta_i = alpha_i-1 p_i-1, and l >= 1 the first iteration
after which the residual is below a threshold,

    s~ = s_0 + sum_{i <= l} delta_i + sum_{j >= 1} [u < P_j] / P_j delta_l+j,    P_j = prod_{1 <= r <= j} 1 / w_r,

has expectation s, for u is uniform on (0, 1). The paper draws a number u_j for each decision u_j < 1 / w_j; as a term
follows only where all before it did, one number decides them all with the same probabilities P_j, and it is known when
no further iteration is needed. Expected terms from l on: sum_j P_j, 1.4202 for w_r = exp(r). Of an element, whose
increments are delta_j after l, the variance is

    sum_{j >= 1} (1 / P_j - 1) (delta_j^2 + 2 delta_j sum_{k > j} delta_k),

astronomical for w_r = exp(beta r) where conjugate gradients would need more than a handful of further iterations: what
any finite number of draws shows is truncated conjugate gradients. It is finite for a constant ratio w_r = rho below the
inverse square of the factor by which increments shrink, at 1 / (1 - 1 / rho) expected terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Weight = Callable[[int], float]
"""r >= 1 -> w_r >= 1."""


def exponential(beta: float) -> Weight:
    """w_r = exp(beta r), the paper's."""
    return lambda r: math.exp(beta * r)


def constant(ratio: float) -> Weight:
    """w_r = ratio."""
    return lambda r: ratio


class Ulisse:
    """The `watch` of `conjugate_gradients.solve` that estimates solutions by accumulators, each of a column.

    uniform `[a]`: their numbers u in (0, 1); columns `[a]`: whose increments each takes (two accumulators of one column
    give independent estimates of its solution); start `[n, c]`: s_0, that of the solve; threshold: of the norm of the
    residual. `estimates` `[n, a]`: s~, once the solve has ended. The next solve should start from the `x` of this one,
    the plain iterate, and not from an estimate."""

    def __init__(self, weight: Weight, threshold: float, uniform: Tensor, columns: Tensor, start: Tensor) -> None:
        self.weight, self.threshold, self.uniform, self.columns = weight, threshold, uniform, columns
        self.estimates = start[:, columns]
        self.after = torch.zeros_like(columns)  # j of an accumulator's next increment; 0 before l is reached
        self.survival = [1.0]  # P_j

    def __call__(self, iteration: int, increment: Tensor, residual: Tensor) -> Tensor:
        """Take delta `[n, c]`; the columns of which no accumulator takes the next one, bool `[c]`."""
        probability = self._probability()
        factor = torch.where(self.uniform < probability, 1 / probability, 0.0)
        self.estimates = torch.addcmul(self.estimates, factor, increment[:, self.columns])
        reached = (residual < self.threshold)[self.columns]
        self.after = torch.where((self.after > 0) | reached, self.after + 1, 0)
        taking = torch.zeros_like(residual).index_add_(
            0, self.columns, (self.uniform < self._probability()).to(residual)
        )
        return taking == 0

    def _probability(self) -> Tensor:
        """P_j of each accumulator's next increment `[a]`; it underflows to 0, which no u is below."""
        while len(self.survival) <= int(self.after.max()):
            last = self.survival[-1]
            self.survival.append(last / self.weight(len(self.survival)) if last > 0 else 0.0)
        return self.uniform.new_tensor(self.survival)[self.after]
