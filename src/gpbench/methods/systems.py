"""What a method of studies of kind `solve` is: it tries a solver on linear systems, one after the other.

`gpbench.study.fitting.systems` runs it; nothing is predicted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gpbench.methods.base import Method

if TYPE_CHECKING:
    from torch import Tensor

    from gpbench.streams import Key


class SolveMethod(Method, ABC):
    """A method that measures a solver; one replica at a time."""

    @abstractmethod
    def count(self) -> int:
        """How many systems there are."""

    @abstractmethod
    def measure(self, x: Tensor, y: Tensor, number: int, key: Key) -> dict[str, float]:
        """What is noted of system `number` (from 0), name -> value: `iterations`, `stopped` (1 where the solver ended at
        its cap, else 0) and whatever else the method measures. Names with `seconds` measure the machine.

        x `[n, D]`, y `[n]`: all rows, scaled units. Random choices come from `streams.rng(key, "init", 1 + number)`, so
        that no system depends on the one before."""
