"""GP regression by Metropolis-Hastings over covariance parameters, by the exact evidence (filippone2015, section 5.1).

Model      as in `sgld_ulisse`, whose chains these are the reference for: psi = log(sigma, lambda, tau).
Step       psi' = psi + s M^1/2 N(0, I), accepted with probability min(1, p(psi' | y) / p(psi | y)), a dense Cholesky
           factor each; M as in `sgld_ulisse`, s by dual averaging in burn-in (the paper wants 0.2 to 0.4 accepted).
Predictive a mixture over kept psi.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gpbench.hyper import Fraction, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods import sgld_ulisse
from gpbench.methods.base import Noise, Shapes, State
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import GaussianMixture, Predictive
from gpbench.sampling.tuning import DualAveraging
from gpbench.streams import Key

ACCEPTED = 0.3
COUNTED = ("acceptance_theta", "cholesky")


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Priors and start as in `sgld_ulisse`; subset: rows of M. The paper drops the first fifth."""

    ard: bool = False
    shape: PositiveFloat = 1.0
    rate: PositiveFloat = 1.0
    jitter: PositiveFloat = 1e-8
    subset: PositiveInt = 500
    burn_in: Fraction = 0.2
    num_samples: PositiveInt = 1000


class Method(sgld_ulisse.Method):
    tuner = DualAveraging("walk", ACCEPTED, 1.0)

    def init(self, train: Batch, key: Key) -> State:
        x, state = train.x, self.begin(train, key)
        psi = state.params["psi"]
        state.memory = self.tuner.start(psi)
        state.memory |= {"log_joint": self.log_joint(psi, train), **{name: x.new_zeros(1) for name in COUNTED}}
        return state

    def log_joint(self, psi: Tensor, batch: Batch) -> Tensor:
        """log p(y | psi) + log p(psi) `[R]`."""
        none = batch.x[..., :0]
        evidence = self.given.dense.loss(State(sgld_ulisse.named(psi)), batch, Noise(none, none))  # -log p(y | psi)
        return self.prior.log_density(psi).sum(1) - evidence

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        return Shapes((state.params["psi"].shape[1] + 1,))

    @torch.no_grad()
    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """A transition; minus the log joint `[R]`."""
        memory, psi, burn_in = state.memory, state.params["psi"], self.burn_in(steps)
        size, _ = self.tuner.settings(memory, step, burn_in)
        kick, uniform = noise.fixed[:, :-1], torch.special.ndtr(noise.fixed[:, -1])
        proposed = psi + size[:, None] * (state.buffers["root"] @ kick[..., None])[..., 0]
        log_joint = self.log_joint(proposed, batch)
        acceptance = (log_joint - memory["log_joint"]).exp().nan_to_num(0.0).clamp_max(1.0)  # min(1, p' / p)
        accepted = uniform < acceptance
        state.params["psi"] = torch.where(accepted[:, None], proposed, psi)
        memory["log_joint"] = torch.where(accepted, log_joint, memory["log_joint"])
        memory |= self.tuner.learn(memory, step, burn_in, acceptance, proposed - psi)
        if step >= burn_in:
            number = step - burn_in + 1
            for name, value in zip(COUNTED, (acceptance, torch.ones_like(acceptance)), strict=True):
                memory[name] = torch.lerp(memory[name], value, 1 / number)
        return -memory["log_joint"] + 0 * state.params["psi"].sum(1)  # NaN where the chain is lost

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Equal mixture over the kept psi at x `[1, T, D]`, by dense factors too."""
        states = (State(sgld_ulisse.named(kept["psi"]), state.buffers) for kept in state.kept())
        each = [self.given.dense.predict(one, x, key) for one in states]
        return GaussianMixture(np.stack([one.mean() for one in each]), np.stack([one.variance() for one in each]))

    def report(self, state: State) -> dict[str, Tensor]:
        """As `SamplerMethod.report`."""
        return {name: state.memory[name] for name in COUNTED}
