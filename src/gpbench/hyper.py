"""Vocabulary of a method's `Hyperparameters`: dataclass, Literal, and annotated ranges.

`gpbench.config` reads such a dataclass out of a method's source without importing it (so that
planning needs no torch); only the names of this module may stand in the annotations.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Gt(0), Lt(1)]

__all__ = [
    "Annotated", "Fraction", "Ge", "Gt", "Le", "Literal", "Lt", "NonNegativeFloat", "NonNegativeInt",
    "PositiveFloat", "PositiveInt", "dataclass",
]  # fmt: skip
