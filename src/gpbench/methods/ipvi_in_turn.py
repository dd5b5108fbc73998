"""IPVI-DGP whose players may move in turn: the discriminator, then the others at its new place (yu2019).

Model, posterior and objectives of every player are those of `ipvi_dgp`. A round in turn takes two steps,

    psi <- psi + Adam of its objective             (even steps),
    phi, theta, Z, noise <- the same of theirs     (odd steps, with new draws of v and of rows),

so that phi follows a log density ratio that has seen the phi of before. The program has a pass of its own for phi and
one for theta; both leave psi where it is, and here they share a step.
"""

from __future__ import annotations

from typing import Literal

from gpbench.gp import kernels
from gpbench.hyper import dataclass
from gpbench.methods import ipvi_dgp


@dataclass(frozen=True)
class Hyperparameters(ipvi_dgp.Hyperparameters):
    """As in `ipvi_dgp`; moves: together, which is `ipvi_dgp`, or in_turn."""

    moves: Literal["together", "in_turn"] = "together"


class Method(ipvi_dgp.Method):
    hyper: Hyperparameters

    def frozen(self, step: int, steps: int) -> frozenset[str]:
        """Who waits at a step, besides what never moves."""
        always = super().frozen(step, steps)
        if self.hyper.moves == "together":
            return always
        discriminators, others = self.players()
        return always | (others if step % 2 == 0 else discriminators)

    def players(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the parameters of the discriminators, and of all others."""
        discriminator, generator = ([f"{player}_weight", f"{player}_bias"] for player in ("discriminator", "generator"))
        others = [*generator, "inducing_inputs", *kernels.names(self.hyper.kernel)]
        noise = ["log_noise_variance"] if self.task == "regression" else []
        first, second = (
            [f"{name}.{part}" for name in self.names for part in parts] for parts in (discriminator, others)
        )
        return frozenset(first), frozenset(second + noise)
