"""MCMC-SVGP whose chains start apart in theta too (vehtari2021).

Model, inducing inputs and transitions are those of `mcmc_svgp`, whose chains all start at the theta that maximises
bound and prior, as published. Here chain r starts at

    log theta_r = log theta + apart e_r,   e_r ~ N(0, I),   v_r ~ q(v),

so that R-hat, which compares chains, can find a mode that all of them would miss together.
"""

from __future__ import annotations

from gpbench import streams
from gpbench.hyper import NonNegativeFloat, dataclass
from gpbench.methods import mcmc_svgp
from gpbench.methods.base import State
from gpbench.methods.training_rows import TrainingSet
from gpbench.sampling.sghmc import flatten, unflatten
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(mcmc_svgp.Hyperparameters):
    """As in `mcmc_svgp`; apart: standard deviation of log theta where chains start, about that of its prior."""

    apart: NonNegativeFloat = 1.0


class Method(mcmc_svgp.Method):
    hyper: Hyperparameters

    def start(self, data: TrainingSet, keys: list[Key]) -> State:
        """As `mcmc_svgp`, theta moved in each chain by numbers of its own."""
        state = super().start(data, keys)
        theta = self.theta(state.params)
        together = flatten(theta)
        for r, key in enumerate(keys):
            together[r] += self.hyper.apart * streams.normal(key, "init", 1, (together.shape[1],), like=together)
        state.params |= unflatten(together, theta)
        return state
