"""The numerics of a fit with steps: R replicas in one tensor batch, their rows, their noise, and what a step does.

Everything that can change a number of a fit stands here or in what this module imports; how a fit is run, watched and
saved (`lightning_module`) stands outside. Sums over replicas are never taken but of losses, whose gradients are apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gpbench.gp import linalg
from gpbench.methods.base import Batch, GradientMethod, Noise, SamplerMethod, Shapes, State, TrainingSet
from gpbench.study.fitting.fold import Fold
from gpbench.study.fitting.noise import Draws

if TYPE_CHECKING:
    from gpbench.data.table import Table
    from gpbench.predictive.distributions import Predictive
    from gpbench.streams import Key

CHUNK = 2**20
"""Numbers that are converted at once."""
ADAM_SECOND_DECAY = 0.999


def training_set(table: Table, folds: list[Fold], dtype: torch.dtype, device: torch.device) -> TrainingSet:
    """The training rows of several folds; all raw rows are stored once."""
    # in single precision a common offset (one of training rows) would eat digits; scaled values do not depend on it
    offset = folds[0].scaling.x_shift if dtype == torch.float32 else np.zeros(table.inputs.shape[1])
    longest = max(len(fold.train) for fold in folds)
    rows = np.stack([np.pad(fold.train, (0, longest - len(fold.train))) for fold in folds])

    def tensor(arrays: list[np.ndarray]) -> Tensor:
        return torch.as_tensor(np.stack(arrays), device=device).to(dtype)

    def shifted(array: np.ndarray, by: np.ndarray | float) -> Tensor:
        """All rows, shifted and converted part by part: a large set has no further copy in float64."""
        whole = torch.empty(array.shape, dtype=dtype, device=device)
        size = max(1, CHUNK // max(array.shape[1], 1))
        for part in (slice(start, start + size) for start in range(0, len(array), size)):
            whole[part].copy_(torch.as_tensor(array[part] - by))
        return whole

    return TrainingSet(
        inputs=shifted(table.inputs, offset),
        targets=shifted(folds[0].targets, 0.0),
        rows=torch.as_tensor(rows, device=device),
        count=torch.as_tensor([len(fold.train) for fold in folds], device=device),
        x_shift=tensor([fold.scaling.x_shift - offset for fold in folds]),
        x_scale=tensor([fold.scaling.x_scale for fold in folds]),
        y_shift=tensor([fold.scaling.y_shift for fold in folds]),
        y_scale=tensor([fold.scaling.y_scale for fold in folds]),
    )


class Loop(ABC):
    """Steps of R replicas of a method.

    active `[R]`: replicas that were finite so far, with the reasons of the others; batch_size: rows of a mini-batch,
    drawn with replacement, None where every replica takes all its rows."""

    method: Any
    state: State

    def prepare(self, data: TrainingSet, keys: list[Key], steps: int, block: int) -> None:
        """Rows and noise of all steps; the noise is seeded anew every `block` steps."""
        self.data, self.keys, self.steps, self.block = data, keys, steps, block
        counts = data.count.tolist()
        self.batch_size = self._batch_size(counts)
        self.full = data.full() if self.batch_size is None else None
        self.draws = Draws(self.noise_shapes, keys, counts, self.batch_size, block, data.inputs)
        self.active = torch.ones(len(keys), dtype=torch.bool, device=data.inputs.device)
        self.reasons = [""] * len(keys)

    def _batch_size(self, counts: list[int]) -> int | None:
        sizes = [self.method.hyper.rows_per_step(count) for count in counts]
        is_full = [size == count for size, count in zip(sizes, counts, strict=True)]
        if all(is_full):
            return None
        if any(is_full):
            raise ValueError(
                f"batch_size {max(sizes)} is a full batch for some splits of this group only; change it by a row"
            )
        return int(sizes[0])

    def hold(self, state: State) -> None:
        """Take over the tensors of a state; subclasses say which are trained."""
        self.state = state

    def noise_shapes(self, rows: int, step: int) -> Shapes:
        """Of the noise of a step with so many rows."""
        shapes: Shapes = self.method.noise_shapes(self.state, rows, step, self.steps)
        return shapes

    def draw(self, step: int) -> tuple[Batch, Noise]:
        """Rows and noise of a step."""
        positions, noise = self.draws.at(step)
        if positions is None:
            assert self.full is not None
            return self.full, noise
        return self.data.take(positions), noise

    @abstractmethod
    def advance(self, batch: Batch, noise: Noise, step: int) -> Tensor:
        """One step from `step` to `step + 1`; returns minus the objective `[R]`."""

    def deactivate(self, finite: Tensor, step: int) -> None:
        """Mark replicas that just became non-finite, which never move again."""
        newly = self.active & ~finite
        if bool(newly.any()):
            # the first of a replica's failures is the cause of the others
            failed = {e["replica"]: e["name"] for e in reversed(linalg.events()) if e["failed"]}
            for r in newly.nonzero().flatten().tolist():
                layer = f" (no Cholesky factor in {failed[r]!r})" if r in failed else ""
                self.reasons[r] = f"not finite at step {step + 1} of {self.steps}{layer}"
            self.active &= finite

    def replica(self, r: int) -> State:
        """The state of one replica, with the replica axis kept."""
        one = slice(r, r + 1)
        pick = {
            name: {k: v[one].detach() for k, v in getattr(self.state, name).items()} for name in ("params", "buffers")
        }
        samples = {k: [v[one] for v in values] for k, values in self.state.samples.items()}
        return State(**pick, samples=samples)


class GradientLoop(Loop):
    """Adam on minus the objective, summed over replicas; a replica that is not finite stops moving."""

    method: GradientMethod

    def hold(self, state: State) -> None:
        for name, value in state.params.items():
            state.params[name] = torch.nn.Parameter(value.contiguous())  # steps are in place: nothing may be expanded
        self.state = state

    def start_adam(self) -> torch.optim.Adam:
        """Adam with the method's rates."""
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for name, value in self.state.params.items():
            groups.setdefault(self.method.rates(name), []).append(value)
        settings = [
            {"params": part, "lr": rate, "betas": (decay, ADAM_SECOND_DECAY)} for (rate, decay), part in groups.items()
        ]
        self.adam = torch.optim.Adam(settings, fused=True)
        return self.adam

    careful = False
    """Whether every Cholesky factor is checked at once: from the first step on that was not finite in all replicas."""

    def advance(self, batch: Batch, noise: Noise, step: int) -> Tensor:
        """A step waits for the device once; one that fails is made again, carefully, with the jitter that it needs."""
        if not self.careful:
            with linalg.deferred_checks():
                loss = self.differentiate(batch, noise)
                if self.update(loss, step):
                    return loss
            self.careful = True
        loss = self.differentiate(batch, noise)
        self.update(loss, step)
        return loss

    def differentiate(self, batch: Batch, noise: Noise) -> Tensor:
        """Leave the gradient of the loss in the parameters; the loss `[R]`."""
        self.adam.zero_grad(set_to_none=True)
        loss = self.method.loss(self.state, batch, noise)
        self.propagate(loss.sum())
        return loss.detach()

    def propagate(self, total: Tensor) -> None:
        total.backward()

    def update(self, loss: Tensor, step: int) -> bool:
        """Step `step` of Adam along the gradients that are there; the method's own step of what it moves itself.

        Where checks are deferred and something is not finite, nothing is moved: False."""
        params, moved = self.state.params, self.method.step_own(self.state)
        values = [loss, *moved.values(), *(p.grad for p in params.values() if p.grad is not None)]
        finite = torch.stack([value.reshape(len(loss), -1).sum(1) for value in values]).isfinite().all(0)
        if linalg.checks_are_deferred():
            if not bool(finite.all()):
                return False
        else:
            self.deactivate(finite, step)
        for name, value in moved.items():
            params[name].data.copy_(torch.where(_shaped(self.active, value), value, params[name]))
            params[name].grad = None
        if any(self.reasons):
            self.freeze_replicas()
        for name in self.method.frozen(step, self.steps):
            params[name].grad = None
        self.adam.step()
        return True

    def freeze_replicas(self) -> None:
        """With no gradient and no momentum Adam does not move the replicas that are not active."""
        for p in self.state.params.values():
            moments = (self.adam.state[p][name] for name in ("exp_avg", "exp_avg_sq") if p in self.adam.state)
            for value in (*moments, *(() if p.grad is None else (p.grad,))):
                value.masked_fill_(_shaped(~self.active, value), 0.0)


def _shaped(mask: Tensor, like: Tensor) -> Tensor:
    """mask `[R]` with as many axes as `like`."""
    return mask.view(-1, *[1] * (like.ndim - 1))


class SamplerLoop(Loop):
    """Markov chains; the states that the method wants to keep join an append-only reservoir."""

    method: SamplerMethod

    def advance(self, batch: Batch, noise: Noise, step: int) -> Tensor:
        objective = self.method.step(self.state, batch, noise, step, self.steps)
        self.deactivate(objective.isfinite(), step)
        if self.method.keep(step + 1, self.steps):
            for name, value in self.state.params.items():
                self.state.samples.setdefault(name, []).append(value.detach().clone())
        return objective.detach()


def share(batch: Batch, rank: int, workers: int) -> Batch:
    """The part of a mini-batch that one of some synchronous workers takes; the mean over them is that of the batch."""
    x, y, weight = (part.chunk(workers, 1)[rank] for part in (batch.x, batch.y, batch.weight))
    return Batch(x, y, workers * weight)


@torch.no_grad()
def answer_one(method: GradientMethod | SamplerMethod, state: State, x: np.ndarray, key: Key) -> Predictive:
    """Predictive of scaled inputs x `[T, D]` by one replica."""
    like = next(iter(state.params.values()))
    return method.predict(state, torch.as_tensor(x).to(like)[None], key)
