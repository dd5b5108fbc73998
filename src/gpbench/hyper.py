"""Vocabulary of a method's `Hyperparameters`: dataclass, Literal, annotated ranges, and their base class `Settings`.

`gpbench.config` reads such a dataclass out of a method's source without importing it (so that planning needs no
torch); it may use only the names of this module, and build on the dataclasses of other methods.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator

from gpbench.errors import unknown

KERNELS = ("rbf", "matern12", "matern32", "matern52", "arccosine", "linear", "periodic")


def known_kernels(formula: str) -> str:
    """A formula of kernels, their names with + and * between; ValueError where a name is unknown."""
    for name in formula.replace("*", "+").split("+"):
        if name.strip() not in KERNELS:
            raise ValueError(unknown("kernel", name.strip(), KERNELS))
    return formula


PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Gt(0), Lt(1)]
Friction = Annotated[float, Gt(0), Lt(2)]
"""Of a momentum, which 1 - friction multiplies in each step."""
Formula = Annotated[str, AfterValidator(known_kernels)]
"""Of kernels: `matern52 + rbf * periodic` (`gpbench.gp.kernels`)."""

__all__ = [
    "Annotated", "Formula", "Fraction", "Friction", "Ge", "Gt", "Le", "Literal", "Lt", "NonNegativeFloat",
    "NonNegativeInt", "OptimisedSettings", "PositiveFloat", "PositiveInt", "RBFSettings", "Settings", "dataclass",
]  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Base class of every method's `Hyperparameters`: what planning and fitting ask of them."""

    def impossible(self, task: str) -> str:
        """Why these settings fit no data of a task; empty where they do."""
        return ""

    def needs(self) -> list[str]:
        """Columns of simulated truth without which these settings make no sense."""
        return []

    def least_rows(self) -> int:
        """Training rows without which these settings make no sense."""
        return 1

    def rows_per_step(self, rows: int) -> int:
        """Rows of one step, of so many training rows: a mini-batch of `batch_size` where there is such a field, but all
        rows where there are at most `full_batch_rows`."""
        return rows if rows <= getattr(self, "full_batch_rows", 0) else min(getattr(self, "batch_size", rows), rows)

    def takes_lbfgs(self, task: str, rows: int) -> bool:
        """Whether a fit to so many training rows is by L-BFGS, on all of them in every step: `optimiser` says so."""
        return getattr(self, "optimiser", "adam") == "lbfgs"

    def width(self) -> int | None:
        """Columns of the largest matrix of a step, whose rows are those of the step; None where it is square.

        Replicas share one tensor batch only where this matrix is small. Usually the field `num_inducing`."""
        return getattr(self, "num_inducing", None)

    def probes(self) -> list[str]:
        """Probes of a study that not every method answers and that fits with these settings do.

        Usually `bounds` with a field `batch_size`, and `inducing` with `num_inducing`: inducing inputs and the RBF
        kernel of the first layer that all its outputs share."""
        fields = {"bounds": "batch_size", "inducing": "num_inducing"}
        found = [probe for probe, field in fields.items() if hasattr(self, field)]
        return found if getattr(self, "kernel", "rbf") == "rbf" else [probe for probe in found if probe != "inducing"]

    def allows_stale_gradients(self) -> bool:
        """Whether a step may use gradients of earlier parameters, as asynchronous workers push them."""
        return True


@dataclass(frozen=True)
class OptimisedSettings(Settings):
    """Base class of the `Hyperparameters` of gradient methods.

    decay: the last part of the steps, in which the rate of Adam falls to zero; before it is constant."""

    decay: Annotated[float, Ge(0), Lt(1)] = 0.0


@dataclass(frozen=True)
class RBFSettings(OptimisedSettings):
    """Base class of the `Hyperparameters` of gradient methods whose formulas hold for the RBF kernel alone."""

    kernel: Formula = "rbf"

    def impossible(self, task: str) -> str:
        return "" if self.kernel == "rbf" else f"its formulas hold for kernel rbf only, not {self.kernel}"
