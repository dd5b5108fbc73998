"""The numerics of a fit with steps: R replicas in one tensor batch, their rows, their noise, and what a step does.

Everything that can change a number of a fit stands here or in what this module imports; how a fit is run, watched and
saved (`lightning_module`) stands outside. Sums over replicas are never taken but of losses, whose gradients are apart.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gpbench.gp import lbfgs, linalg
from gpbench.methods.base import GradientMethod, Noise, SamplerMethod, Shapes, State
from gpbench.methods.training_rows import Batch, TrainingSet
from gpbench.study.fitting.convergence import ADAM, LBFGS, Rule
from gpbench.study.fitting.fold import Fold
from gpbench.study.fitting.noise import Draws
from gpbench.study.fitting.schedule import Schedule

if TYPE_CHECKING:
    from gpbench.data.table import Table
    from gpbench.predictive.distributions import Predictive
    from gpbench.streams import Key

CHUNK = 2**20
"""Numbers that are converted at once."""
ADAM_SECOND_DECAY = 0.999


def training_set(table: Table, folds: list[Fold], dtype: torch.dtype, device: torch.device) -> TrainingSet:
    """The training rows of several folds; all raw rows are stored once."""
    # in single precision common offsets (of training rows) would eat digits; scaled values do not depend on them
    first, is_single = folds[0].scaling, float(dtype == torch.float32)
    x_offset, y_offset = is_single * first.x_shift, is_single * first.y_shift
    longest = max(len(fold.train) for fold in folds)
    rows = np.stack([np.pad(fold.train, (0, longest - len(fold.train))) for fold in folds])

    def tensor(arrays: list[np.ndarray]) -> Tensor:
        return torch.as_tensor(np.stack(arrays), device=device).to(dtype)

    def shifted(array: np.ndarray, by: np.ndarray) -> Tensor:
        """All rows, shifted and converted part by part: a large set has no further copy in float64."""
        whole = torch.empty(array.shape, dtype=dtype, device=device)
        size = max(1, CHUNK // max(array.shape[1], 1))
        for part in (slice(start, start + size) for start in range(0, len(array), size)):
            whole[part].copy_(torch.as_tensor(array[part] - by))
        return whole

    return TrainingSet(
        inputs=shifted(table.inputs, x_offset),
        targets=shifted(folds[0].targets, y_offset),
        rows=torch.as_tensor(rows, device=device),
        count=torch.as_tensor([len(fold.train) for fold in folds], device=device),
        x_shift=tensor([fold.scaling.x_shift - x_offset for fold in folds]),
        x_scale=tensor([fold.scaling.x_scale for fold in folds]),
        y_shift=tensor([fold.scaling.y_shift - y_offset for fold in folds]),
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

    @property
    def last_step(self) -> int:
        """The number of steps, as far as it is decided."""
        return self.steps

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
            failed = {e["replica"]: e["name"] for e in reversed(linalg.events(clear=False)) if e["failed"]}
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


class Adam(torch.optim.Adam):
    """torch's Adam, whose methods do not import torch's compiler (seconds) only to say that they are not compiled."""

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class OptimisedLoop(Loop):
    """Steps that a schedule ends; rule: by which it does; decay: the part in which the rate falls."""

    schedule: Schedule
    rule: Rule
    until_converged = False

    def prepare(self, data: TrainingSet, keys: list[Key], steps: int, block: int) -> None:
        super().prepare(data, keys, steps, block)
        self.schedule = Schedule(steps, self.decay(), data.count.tolist(), self.until_converged, self.rule)

    def decay(self) -> float:
        return 0.0

    @property
    def last_step(self) -> int:
        return self.schedule.last()


class GradientLoop(OptimisedLoop):
    """Adam on minus the objective, summed over replicas; a replica that is not finite stops moving."""

    method: GradientMethod
    rule = ADAM

    def decay(self) -> float:
        return float(self.method.hyper.decay)

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
        self.adam: torch.optim.Adam = Adam(settings, fused=True)
        return self.adam

    careful = False
    """Whether every Cholesky factor is checked at once: from the first step on that was not finite in all replicas."""

    def advance(self, batch: Batch, noise: Noise, step: int) -> Tensor:
        """A step waits for the device once; one that fails is made again, carefully, with the jitter that it needs.

        Methods with steps of their own are always careful: what these moved is not taken back."""
        if not self.careful and not self.method.has_own_steps():
            with linalg.deferred_checks():
                loss = self.differentiate(batch, noise)
                if self.update(loss, step):
                    return loss
            self.careful = True
        loss = self.differentiate(batch, noise)
        if moved := self.step_own(loss, step):
            loss = self.differentiate(batch, noise)
            for name in moved:
                self.state.params[name].grad = None
        self.update(loss, step)
        return loss

    def step_own(self, loss: Tensor, step: int) -> list[str]:
        """Step `step` of the method's own, which needs gradients; the names of the parameters that it moves."""
        if not self.method.has_own_steps():
            return []
        params, factors = self.state.params, self.factors(step)
        factor = torch.ones_like(loss) if factors is None else factors
        moved = self.method.step_own(self.state, step, factor)
        self.deactivate(self.finite([loss, *moved.values()], step), step)
        moving = factor * self.active > 0
        for name, value in moved.items():
            params[name].data.copy_(_kept(value, params[name], moving.to(loss)))
        return list(moved)

    def finite(self, values: list[Tensor], step: int) -> Tensor:
        """Which replicas are finite `[R]` in values `[R, ...]`; one that has ended is not judged any more."""
        finite = torch.cat([value.reshape(len(value), -1) for value in values], 1).sum(1).isfinite()
        scheduled = self.schedule.factors(step)
        return finite | (values[0].new_tensor(scheduled) == 0) if 0 in scheduled else finite

    def differentiate(self, batch: Batch, noise: Noise) -> Tensor:
        """Leave the gradient of the loss in the parameters; the loss `[R]`."""
        for parameter in self.state.params.values():
            parameter.grad = None
        loss = self.loss(batch, noise)
        self.propagate(loss.sum())
        return loss.detach()

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        return self.method.loss(self.state, batch, noise)

    def propagate(self, total: Tensor) -> None:
        total.backward()

    def update(self, loss: Tensor, step: int) -> bool:
        """Step `step` of Adam along the gradients that are there.

        Where checks are deferred and something is not finite, nothing is moved: False."""
        params = self.state.params
        finite = self.finite([loss, *(p.grad for p in params.values() if p.grad is not None)], step)
        if not linalg.checks_are_deferred():
            self.deactivate(finite, step)
        elif not bool(finite.all()):
            return False
        for name in self.method.frozen(step, self.steps):
            params[name].grad = None
        self.step_adam(self.factors(step, self.method.pace(self.state)))
        self.schedule.observe(loss, step)
        return True

    def factors(self, step: int, pace: Tensor | float = 1.0) -> Tensor | None:
        """What the steps of the replicas are multiplied by `[R]`, 0 for those that ended or failed; None where by 1."""
        scheduled = self.schedule.factors(step)
        if isinstance(pace, float) and all(factor == 1 for factor in scheduled) and not any(self.reasons):
            return None
        return self.data.inputs.new_tensor(scheduled) * pace * self.active

    @torch.no_grad()
    def step_adam(self, factors: Tensor | None) -> None:
        """A step of Adam, whose length is multiplied by the factors."""
        trained = [p for p in self.state.params.values() if p.grad is not None]
        before = [] if factors is None else [p.clone() for p in trained]
        self.adam.step()
        for p, start in zip(trained, before, strict=False):
            p.copy_(_kept(p, start, factors))


def _kept(moved: Tensor, start: Tensor, factors: Tensor | None) -> Tensor:
    """start + factor * (moved - start) of each replica; start itself where the factor is 0, whatever `moved` holds."""
    if factors is None:
        return moved
    factor = factors.view(-1, *[1] * (moved.ndim - 1))
    part = torch.where(factor == 1, moved, start + factor * (moved - start))
    return torch.where(factor == 0, start, part)


class QuasiNewtonLoop(OptimisedLoop):
    """L-BFGS on all rows, an iteration a step, every replica by itself; one that cannot descend any further has ended.

    searches: of the replicas, once there was a step."""

    method: GradientMethod
    rule = LBFGS

    def prepare(self, data: TrainingSet, keys: list[Key], steps: int, block: int) -> None:
        super().prepare(data, keys, steps, block)
        self.rows = [data.replica(r) for r in range(len(keys))]
        self.searches: list[lbfgs.Search] = []

    def _batch_size(self, counts: list[int]) -> int | None:
        return None

    def hold(self, state: State) -> None:
        state.params = {name: value.contiguous() for name, value in state.params.items()}
        self.state = state

    def advance(self, batch: Batch, noise: Noise, step: int) -> Tensor:
        losses = []
        for r in range(len(self.keys)):
            with linalg.replicas_from(r):
                losses.append(self.descend(r, step))
        loss = torch.stack(losses)
        finite = loss.isfinite()
        for value in self.state.params.values():
            finite = finite & value.reshape(len(finite), -1).sum(1).isfinite()
        self.deactivate(finite, step)
        self.schedule.observe(loss, step)
        return loss

    def descend(self, r: int, step: int) -> Tensor:
        """One iteration of replica r, unless it has ended; its loss."""
        one, rows = self.replica(r), self.rows[r]
        start = {name: value for name, value in one.params.items() if name not in self.method.solved}
        objective = lbfgs.of_params(lambda params: self.method.profile(State(params, one.buffers), rows), start)
        if len(self.searches) == r:
            self.searches.append(lbfgs.start(objective, lbfgs.flatten(start)))
        search = replace(self.searches[r], x=lbfgs.flatten(start))
        if step < self.schedule.ends(r):
            search = self.searches[r] = lbfgs.step(objective, search)
            moved = State(one.params | lbfgs.unflatten(search.x, start), one.buffers)
            for name, value in (moved.params | self.method.solve(moved, rows)).items():
                self.state.params[name][r : r + 1] = value
            if search.ended:
                self.schedule.end(r, step + 1, float(search.gradient.abs().max()))
        return search.loss


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


def advanced_by(method: GradientMethod | SamplerMethod, rows: list[int]) -> str:
    """How fits to so many training rows each go on: `adam`, `lbfgs` or `chain`."""
    if isinstance(method, SamplerMethod):
        return "chain"
    by_lbfgs = {method.hyper.takes_lbfgs(method.task, count) for count in rows}
    if len(by_lbfgs) > 1:
        raise ValueError("some splits of this group have too many rows for L-BFGS; set optimiser=adam")
    return "lbfgs" if by_lbfgs.pop() else "adam"


def share(batch: Batch, rank: int, workers: int) -> Batch:
    """The part of a mini-batch that one of some synchronous workers takes; the mean over them is that of the batch."""
    x, y, weight = (part.chunk(workers, 1)[rank] for part in (batch.x, batch.y, batch.weight))
    return Batch(x, y, workers * weight)


@torch.no_grad()
def answer_one(method: GradientMethod | SamplerMethod, state: State, x: np.ndarray, key: Key) -> Predictive:
    """Predictive of scaled inputs x `[T, D]` by one replica."""
    like = next(iter(state.params.values()))
    return method.predict(state, torch.as_tensor(x).to(like)[None], key)
