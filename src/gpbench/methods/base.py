"""What a method is: a small core of pure tensor code.

Three families, told apart by what they define:

- `ClosedFormMethod`: `fit(x, y, rng)` and `predict(model, x)`, NumPy, one replica at a time;
- `GradientMethod`: `init`, `loss`, `predict`; the trainer owns the optimiser;
- `SamplerMethod`: `init`, `step`, `predict`; the trainer owns the reservoir of samples.

`loss` and `step` work on R replicas at once, along the first axis of every tensor. `init`, `predict` and `functions`
answer for one replica; its tensors keep that axis, of length 1, so that all of them share the functions of `gp`.

A method's module also defines a frozen dataclass `Hyperparameters` with the published defaults; it is
read without importing the module (see `gpbench.config`), so it may use only literals and the names of
`gpbench.hyper`. Methods know nothing of files, Snakemake or MLflow.

A method of layers may define `functions(state, x, key)`: posterior draws of the outputs of every layer at x
`[1, T, D]`, a tensor `[S, 1, T, D_out]` each; studies with `probes: [layers]` draw them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpbench.methods.training_rows import Batch, TrainingSet, stack

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from gpbench.predictive.distributions import Predictive
    from gpbench.streams import Key

Model = dict[str, Any]
"""What a closed-form method has learnt: names and values of its own choice, which are stored as they are."""


@dataclass
class State:
    """Everything a fit carries from step to step; every tensor has the replica axis first.

    params: trained (or sampled) tensors, unconstrained. buffers: tensors fixed at initialisation.
    memory: what a sampler keeps besides (momenta, adaptation). samples: reservoir of a sampler,
    name -> list of `[R, ...]` snapshots of params."""

    params: dict[str, Tensor]
    buffers: dict[str, Tensor] = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)
    samples: dict[str, list[Tensor]] = field(default_factory=dict)

    def kept(self) -> list[dict[str, Tensor]]:
        """The states in the reservoir; the present params while it is empty."""
        if not any(self.samples.values()):
            return [self.params]
        return [dict(zip(self.samples, values, strict=True)) for values in zip(*self.samples.values(), strict=True)]


def noise_variance(params: dict[str, Tensor]) -> Tensor | None:
    """Variance of the Gaussian likelihood `[R]` or `[R, P]`, scaled units; None in classification and for counts."""
    return params["log_noise_variance"].exp() if "log_noise_variance" in params else None


class Noise(NamedTuple):
    """Standard normals of a step: `fixed` `[R, *shape]`, and `per_row` `[R, B, *shape]` of every row of its batch."""

    fixed: Tensor
    per_row: Tensor


class Shapes(NamedTuple):
    """Shapes of the standard normals that a step takes: those that do not depend on its rows, and those of a row."""

    fixed: tuple[int, ...] = (0,)
    per_row: tuple[int, ...] = (0,)

    def size(self, rows: int) -> int:
        """How many numbers a step with so many rows takes."""
        return math.prod(self.fixed) + rows * math.prod(self.per_row)

    def split(self, normals: Tensor, rows: int) -> Noise:
        """The noise in a vector a replica `[R, size]`: row by row at its end, so that padding takes nothing."""
        count = math.prod(self.fixed)
        fixed, per_row = normals[:, :count], normals[:, count:]
        return Noise(fixed.view(len(normals), *self.fixed), per_row.view(len(normals), rows, *self.per_row))


class Method:
    """hyper: the module's `Hyperparameters`; task: regression, binary, multiclass or counts; num_classes: 0 without
    classes; num_targets: P, 1 in classification."""

    def __init__(self, hyper: Any, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        self.hyper = hyper
        self.task = task
        self.num_classes = num_classes
        self.num_targets = num_targets


class ClosedFormMethod(Method, ABC):
    """A method without steps, in NumPy, one replica at a time (it must not import torch)."""

    @abstractmethod
    def fit(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Model:
        """Model of scaled inputs x `[n, D]` and targets y `[n, P]` (counts are not scaled) or class numbers `[n]`."""

    @abstractmethod
    def predict(self, model: Model, x: np.ndarray) -> Predictive:
        """Predictive of x `[T, D]` in scaled units."""


class SteppedMethod(Method, ABC):
    """What gradient methods and samplers have in common."""

    def init(self, train: Batch, key: Key) -> State:
        """Initial state of one replica; random choices come from `streams.rng(key, "init")`.

        train `[1, n, ...]`: all its training rows, none of padding. Every tensor of the state has shape `[1, ...]`."""
        raise NotImplementedError(f"{type(self).__module__}.Method must define init, or start for all replicas at once")

    def start(self, data: TrainingSet, keys: list[Key]) -> State:
        """Initial state of R replicas: that of each by `init`, stacked; where they differ in rows, padded with zeros.

        To be overridden only where all replicas at once are much faster, or where zeros are no valid padding."""
        states = [self.init(data.replica(r), key) for r, key in enumerate(keys)]

        def stacked(tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
            return {name: stack([values[name] for values in tensors]) for name in tensors[0]}

        params, buffers, memory = (
            stacked([getattr(state, part) for state in states]) for part in ("params", "buffers", "memory")
        )
        return State(params, buffers, memory)

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """The noise of step `step` of `steps` with so many rows; none by default."""
        return Shapes()

    @abstractmethod
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Predictive of one replica for x `[1, T, D]`, in scaled units; randomness from the stream `eval`.

        That of a sampler averages over `state.samples` (over `state.params` while it is empty), and what it leaves in
        `state.memory` is reported as numbers of the prediction."""


class GradientMethod(SteppedMethod, ABC):
    """A method that minimises `loss` by Adam with `hyper.learning_rate`, but for what `step_own` moves.

    Steps take mini-batches of `hyper.batch_size` rows; without that hyperparameter always all rows. One whose
    `hyper.takes_lbfgs` may be true minimises `profile` by L-BFGS there; `solved`: params that then follow by `solve`.
    """

    solved: frozenset[str] = frozenset()

    def profile(self, state: State, rows: Batch) -> Tensor:
        """The loss of all training rows at the best values of the params `solved`, `[R]`; it takes no noise."""
        none = rows.x[..., :0]
        return self.loss(state, rows, Noise(none, none))

    def solve(self, state: State, rows: Batch) -> dict[str, Tensor]:
        """The best values of the params `solved`, given the others and all training rows."""
        return {}

    def frozen(self, step: int, steps: int) -> frozenset[str]:
        """Names of params that are not trained at `step` of `steps`."""
        return frozenset()

    def rates(self, name: str) -> tuple[float, float]:
        """Learning rate of the param `name`, and Adam's decay beta_1 of its mean gradient."""
        return self.hyper.learning_rate, 0.9

    def pace(self, state: State) -> Tensor | float:
        """What the rates of Adam are multiplied by, `[R]` or one number."""
        return 1.0

    def has_own_steps(self) -> bool:
        """Whether `step_own` moves anything."""
        return False

    def step_own(self, state: State, step: int, factor: Tensor) -> dict[str, Tensor]:
        """New values of the params that Adam is not to move, from their gradients, which are in `.grad`.

        They are taken over first; then Adam moves the others by a new gradient on the same rows and noise.
        factor `[R]`: what the schedule multiplies rates by."""
        return {}

    @abstractmethod
    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        """Minus the (estimated) objective in nats, `[R]`."""


class SamplerMethod(SteppedMethod, ABC):
    """A Markov chain a replica. `hyper.num_samples` states are kept, after a fraction `hyper.burn_in` of the steps."""

    covariance_parameters: tuple[str, ...] = ("log_lengthscale", "log_outputscale", "log_period", "log_noise_variance")
    """endings of the names of sampled covariance parameters, whose draws are reported"""

    @abstractmethod
    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """Advance `state` in place by transition `step` (from 0); returns the loss `[R]` that is traced,
        minus the log joint up to constants, an estimate of it, or another objective that the method names."""

    def burn_in(self, steps: int) -> int:
        """Steps before the first state is kept, which leave one at least."""
        return min(round(self.hyper.burn_in * steps), steps - 1)

    def keep(self, step: int, steps: int) -> bool:
        """Whether the state after `step` (from 1) joins the reservoir: evenly after burn-in, the last step too."""
        after, total = step - self.burn_in(steps), steps - self.burn_in(steps)
        kept = min(self.hyper.num_samples, total)
        return after > 0 and after * kept // total > (after - 1) * kept // total

    def report(self, state: State) -> dict[str, Tensor]:
        """Means per transition after burn-in, `[R]` each; what a method does not count is left out.

        acceptance_latents, acceptance_theta: probabilities; cholesky, inverse, product: operations of O(n^3);
        quadratic: of O(n^2)."""
        return {}

    def variables(self, name: str, size: int) -> list[str]:
        """What the `size` numbers of the sampled `name` of a chain are called."""
        return [f"{name}[{i}]" for i in range(size)]
