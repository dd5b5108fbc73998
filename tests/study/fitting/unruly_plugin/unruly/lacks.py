"""A method whose module cannot be imported; nobody does before it is fitted."""

from __future__ import annotations

import no_such_package

from gpbench.hyper import OptimisedSettings, dataclass


@dataclass(frozen=True)
class Hyperparameters(OptimisedSettings):
    """None of its own."""


Method = no_such_package.Method
