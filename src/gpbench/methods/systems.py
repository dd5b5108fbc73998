"""What a method of studies of kind `solve` is: it tries a solver on linear systems, one after the other.

`gpbench.study.fitting.systems` runs it; nothing is predicted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp.kernels import Kernel
from gpbench.methods.base import Method
from gpbench.solvers.conjugate_gradients import Watch
from gpbench.solvers.preconditioners import Preconditioner
from gpbench.solvers.products import KernelProduct
from gpbench.streams import Key


class SolveMethod(Method, ABC):
    """A method that measures a solver; one replica at a time."""

    @abstractmethod
    def count(self) -> int:
        """How many systems there are."""

    @abstractmethod
    def measure(self, x: Tensor, y: Tensor, number: int, key: Key) -> dict[str, float]:
        """What is noted of system `number` (from 0), name -> value: `iterations`, `stopped` (1 where the solver ended
        without converging, at its cap say, else 0) and whatever else the method measures. Names with `seconds` measure
        the machine.

        x `[n, D]`, y `[n]`: all rows, scaled units. Random choices come from streams of the block 1 + number, as
        `streams.rng(key, "init", 1 + number)`, so that no system depends on the one before."""


def some_rows(x: Tensor, y: Tensor, most: int | None, key: Key) -> tuple[Tensor, Tensor]:
    """At most so many random rows, the same for all systems and methods; all without a limit."""
    if most is None or most >= len(x):
        return x, y
    rows = torch.as_tensor(streams.rng(key, "init").choice(len(x), most, replace=False), device=x.device)
    return x[rows], y[rows]


def capped(precondition: Preconditioner | None, cap: int) -> Watch:
    """The `watch` that stops conjugate gradients after so many iterations, those within the preconditioner too."""

    def is_over(i: int, increment: Tensor, residual: Tensor) -> Tensor:
        inner = precondition.inner if precondition else 0
        return torch.full_like(residual, i + 1 + inner >= cap, dtype=torch.bool)

    return is_over


class Stored(KernelProduct):
    """Products with the matrix kept, in double or, rounded, in single precision."""

    def __init__(self, kernel: Kernel, x: Tensor, noise: Tensor | float, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(kernel, x, noise)
        self.matrix = self.rows(slice(None)).to(dtype)

    def __call__(self, v: Tensor) -> Tensor:
        self.products += v.shape[1]
        return (self.matrix @ v.to(self.matrix.dtype)).to(v.dtype)
