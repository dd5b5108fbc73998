"""Fits of methods with steps: R replicas in one tensor batch, as a LightningModule.

Lightning counts steps by optimiser calls, which is wrong for samplers (none) and for methods with several
optimisers; so the step number comes from the loader and drives stopping, logging and checkpoints.
A checkpoint stands at the end of a block of noise, so it needs no generator state and a resumed fit
continues bit for bit.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from gpbench import streams
from gpbench.data.table import Table
from gpbench.gp import linalg
from gpbench.methods.base import Batch, GradientMethod, Noise, SamplerMethod, Shapes, State
from gpbench.places import write_text
from gpbench.predictive.distributions import Predictive
from gpbench.study.fitting import chain_draws, checkpoint
from gpbench.study.fitting.clock import Clock
from gpbench.study.fitting.fold import make_fold, make_method
from gpbench.study.fitting.noise import Draws
from gpbench.study.fitting.outcome import Outcome, finish
from gpbench.study.fitting.training_rows import training_set
from gpbench.study.records import Group, What

MODEL_FILE = "model.pt"
EVAL_ROWS = 500  # test rows looked at while a fit is running


class TimeCap(Exception):
    """The trainer's `max_minutes` are over; the checkpoint is written."""


class Fit(LightningModule, ABC):
    """A group of fits: feeds steps with rows and noise, keeps trace and checkpoints. `advance` makes one step."""

    def __init__(self, group: Group, table: Table, work: Path, device: torch.device) -> None:
        super().__init__()
        self.automatic_optimization = False
        what, how = group.what, group.how
        self.group, self.table, self.work, self.how = group, table, work, how
        self.steps, self.block = what.steps, what.noise_block
        self.method = make_method(what)
        self.folds = [make_fold(what, table, f.split, f.replica) for f in group.fits]
        self.keys = [fold.key for fold in self.folds]
        self.data = training_set(table, self.folds, getattr(torch, what.dtype), device)
        self.batch_size = self._batch_size(self.method.hyper)
        self.done, self.trace, self.reasons = 0, [], [""] * len(self.folds)
        self.saved_optimiser: dict[str, Any] = {}
        self.active = torch.ones(len(self.folds), dtype=torch.bool, device=device)
        linalg.events(clear=True)
        self.clock = Clock(device)  # what a method does before its first step is training too
        self.hold(self.method.init(self.data, self.keys))
        self.clock.pause()
        self.full = self.data.full() if self.batch_size is None else None
        counts = self.data.count.tolist()
        self.draws = Draws(self.noise_shapes, self.keys, counts, self.batch_size, self.block, self.data.inputs)
        self.saved_at = self.told_at = time.monotonic()
        self.logged = {round(s) for s in np.linspace(1, self.steps, min(self.steps, how.log_points))}
        self.evaluated = {round(s) for s in np.geomspace(max(self.steps / 100, 1), self.steps, how.eval_points)}

    def noise_shapes(self, rows: int, step: int) -> Shapes:
        """Of the noise of a step with so many rows."""
        return self.method.noise_shapes(self.state, rows, step, self.steps)

    def _batch_size(self, hyper: Any) -> int | None:
        """Rows of a mini-batch, drawn with replacement; None where every replica takes all its rows."""
        size, counts = getattr(hyper, "batch_size", None), self.data.count
        if size is None or bool((counts <= size).all()):
            return None
        if bool((counts <= size).any()):
            raise ValueError(
                f"batch_size {size} is a full batch for some splits of this group only; change it by a row"
            )
        return size

    def hold(self, state: State) -> None:
        """Take a state's tensors; subclasses say which are trained."""
        self.state = state

    @abstractmethod
    def advance(self, batch: Batch, noise: Noise, step: int) -> Tensor:
        """One step from `step` to `step + 1`; returns minus the objective `[R]`."""

    def draw(self, step: int) -> tuple[Batch, Noise]:
        """Rows and noise of a step."""
        positions, noise = self.draws.at(step)
        return self.full if positions is None else self.data.take(positions), noise

    def training_step(self, step: int) -> None:
        objective = self.advance(*self.draw(step), step)
        self.done = step + 1
        if self.done in self.logged or self.done in self.evaluated:
            self.record(objective)
        if self.done % self.block == 0 or self.done == self.steps:
            self.pause_at_block()

    def deactivate(self, finite: Tensor, step: int) -> Tensor:
        """Mark replicas that just became non-finite; returns which (None of them moves again)."""
        newly = self.active & ~finite
        if bool(newly.any()):
            # the first of a replica's failures is the cause of the others
            failed = {e["replica"]: e["name"] for e in reversed(linalg.events()) if e["failed"]}
            for r in newly.nonzero().flatten().tolist():
                layer = f" (no Cholesky factor in {failed[r]!r})" if r in failed else ""
                self.reasons[r] = f"not finite at step {step + 1} of {self.steps}{layer}"
            self.active &= finite
        return newly

    def record(self, objective: Tensor) -> None:
        """One trace row a replica, with test scores where due; outside the clock."""
        seconds = self.clock.pause()
        rows = [{"step": self.done, "seconds": seconds, "objective": -v} for v in objective.tolist()]
        if self.done in self.evaluated:
            for r, row in enumerate(rows):
                if self.active[r]:
                    row |= self.look(r)
        self.trace.append(rows)
        self.tell()
        self.clock.go()

    def look(self, r: int) -> dict[str, float]:
        """Test scores of replica r now, on its first `EVAL_ROWS` test rows; nothing is ever chosen by them."""
        fold, task = self.folds[r], self.group.what.data.task
        test = fold.test[:EVAL_ROWS]
        predictive = answer_one(self.method, self.replica(r), fold.scaling.inputs(self.table.inputs[test]), fold.key)
        if not predictive.is_finite():
            return {}
        y = fold.targets[test]
        if task in ("binary", "multiclass"):
            wrong = predictive.modal() != y[:, 0]
            return {"mnll": -float(predictive.log_prob(y[:, 0]).mean()), "error": float(wrong.mean())}
        shift, scale = fold.scaling.y_shift, fold.scaling.y_scale  # of counts: 0, 1
        density = predictive.log_prob((y - shift) / scale) - np.log(scale)
        error = predictive.mean() * scale + shift - y
        return {"mnll": -float(density.mean()), "rmse": float(np.sqrt((error**2).mean()))}

    def replica(self, r: int) -> State:
        """The state of one replica, with the replica axis kept."""
        one = slice(r, r + 1)
        pick = {
            name: {k: v[one].detach() for k, v in getattr(self.state, name).items()} for name in ("params", "buffers")
        }
        samples = {k: [v[one] for v in values] for k, values in self.state.samples.items()}
        return State(**pick, samples=samples)

    def pause_at_block(self) -> None:
        """Checkpoint where one is due, and stop where the time cap is reached."""
        over = self.is_over()
        if over or self.is_due() or self.done == self.steps:
            self.clock.pause()
            self.save()
            self.clock.go()
        if over and self.done < self.steps:
            raise TimeCap(self.stopped())

    def is_over(self) -> bool:
        """Whether the time cap is reached."""
        if self.how.max_minutes is None:
            return False
        over = self.clock.pause() > 60 * self.how.max_minutes
        self.clock.go()
        return over

    def is_due(self) -> bool:
        """Whether the last checkpoint is old enough for another one."""
        return time.monotonic() - self.saved_at >= self.how.checkpoint_seconds

    def stopped(self) -> str:
        return f"stopped after {self.how['max_minutes']} minutes at step {self.done} of {self.steps}"

    def tell(self) -> None:
        """Progress for whoever watches, at most once a second."""
        now = time.monotonic()
        if now - self.told_at >= 1.0:
            objective = [row["objective"] for row in self.trace[-1]]
            progress = {"step": self.done, "steps": self.steps, "seconds": self.clock.seconds, "objective": objective}
            write_text(self.work / "progress.json", json.dumps(progress))
            self.told_at = now

    def save(self) -> None:
        checkpoint.write(self.work, self.content(), self.state.samples)
        self.saved_at = time.monotonic()

    def content(self) -> dict[str, Any]:
        """Of a checkpoint: all that changes from step to step, but the samples."""
        return {
            "fits": [f.fit_id for f in self.group.fits],
            "step": self.done,
            "params": {k: v.detach() for k, v in self.state.params.items()},
            "memory": self.state.memory,
            "optimiser": self.optimiser_state(),
            "active": self.active,
            "reasons": self.reasons,
            "seconds": self.clock.seconds,
            "trace": self.trace,
        }

    def restore(self) -> None:
        """Continue from the newest readable checkpoint, if there is one."""
        found = checkpoint.read(self.work, [f.fit_id for f in self.group.fits], self.device)
        if found is not None:
            saved, self.state.samples = found
            self.load(saved)

    def load(self, saved: dict[str, Any]) -> None:
        """Take over `content`."""
        with torch.no_grad():
            for name, value in saved["params"].items():
                self.state.params[name].copy_(value)
        self.state.memory = saved["memory"]
        self.saved_optimiser = saved["optimiser"]
        self.active, self.reasons = saved["active"], saved["reasons"]
        self.done, self.trace = saved["step"], saved["trace"]
        self.clock.seconds = saved["seconds"]

    def optimiser_state(self) -> dict[str, Any]:
        return {}

    def configure_optimizers(self) -> Any:
        return None


class GradientFit(Fit):
    """Adam on minus the objective, summed over replicas; a replica that is not finite stops moving."""

    def hold(self, state: State) -> None:
        for name, value in state.params.items():
            state.params[name] = torch.nn.Parameter(value.contiguous())  # steps are in place: nothing may be expanded
            self.register_parameter(name.replace(".", "_"), state.params[name])
        self.state = state

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
        for name, value in self.state.params.items():
            groups.setdefault(self.method.rates(name), []).append(value)
        settings = [{"params": part, "lr": rate, "betas": (decay, 0.999)} for (rate, decay), part in groups.items()]
        self.adam = torch.optim.Adam(settings, fused=True)
        if self.saved_optimiser:
            self.adam.load_state_dict(self.saved_optimiser)
        return self.adam

    def optimiser_state(self) -> dict[str, Any]:
        return self.adam.state_dict()

    def advance(self, batch: Batch, noise: Noise, step: int) -> Tensor:
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

    def update(self, loss: Tensor, step: int) -> None:
        """Step `step` of Adam along the gradients that are there; the method's own step of what it moves itself."""
        params, finite = self.state.params, loss.isfinite()
        own = self.method.step_own(self.state)
        for value in [*own.values(), *(p.grad for p in params.values() if p.grad is not None)]:
            finite = finite & value.reshape(len(finite), -1).sum(1).isfinite()
        newly = self.deactivate(finite, step)
        if not bool(self.active.all()):
            self.freeze_replicas(newly)
        for name, value in own.items():
            params[name].data[self.active] = value[self.active]
            params[name].grad = None
        for name in self.method.frozen(step, self.steps):
            params[name].grad = None
        self.adam.step()

    def freeze_replicas(self, newly: Tensor) -> None:
        """With no gradient and no momentum Adam does not move a replica."""
        for p in self.state.params.values():
            if p.grad is not None:
                p.grad[~self.active] = 0.0
            if newly.any() and p in self.adam.state:
                self.adam.state[p]["exp_avg"][newly] = 0.0
                self.adam.state[p]["exp_avg_sq"][newly] = 0.0


class SamplerFit(Fit):
    """Markov chains; the states that the method wants to keep join an append-only reservoir."""

    def advance(self, batch: Batch, noise: Noise, step: int) -> Tensor:
        objective = self.method.step(self.state, batch, noise, step, self.steps)
        self.deactivate(objective.isfinite(), step)
        if self.method.keep(step + 1, self.steps):
            for name, value in self.state.params.items():
                self.state.samples.setdefault(name, []).append(value.detach().clone())
        return objective.detach()


def run(group: Group, table: Table, work: Path) -> list[Outcome]:
    """Fit a group (resuming where it was cut off) and evaluate every fit of it."""
    family = SamplerFit if isinstance(make_method(group.what), SamplerMethod) else GradientFit
    return complete(family, group, table, work, outcome)


def complete(
    family: type[Fit], group: Group, table: Table, work: Path, end: Callable[[Any, int], Outcome]
) -> list[Outcome]:
    """Train a group as a `family` of fits, resuming where it was cut off; `end(fit, r)` says what replica r leaves."""
    how = group.how
    torch.set_num_threads(how.threads)
    device = torch.device(how.device)
    fit = family(group, table, work, device).to(device)
    fit.restore()
    if fit.done < fit.steps:
        try:
            train(fit)
        except TimeCap as cap:
            return [Outcome("stopped", str(cap))] * len(group.fits)
    return [end(fit, r) for r in range(len(group.fits))]


def train(fit: Fit, **settings: Any) -> None:
    """All steps that are left; settings: of Lightning's trainer."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    usual = {"accelerator": "gpu" if fit.how.device == "cuda" else "cpu", "devices": 1, "max_epochs": 1}
    absent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on features that are switched off here
        trainer = Trainer(**usual | dict.fromkeys(absent, False) | settings, use_distributed_sampler=False)
    fit.clock.go()
    trainer.fit(fit, train_dataloaders=range(fit.done, fit.steps))


def trained(fit: Fit, r: int) -> Outcome:
    """Status, trace and cost of replica r of a trained fit."""
    shared = len(fit.folds)
    trace = [rows[r] for rows in fit.trace]
    result = Outcome("done", trace=trace, seconds={"train": fit.clock.seconds / shared, "shared_by": shared})
    if not bool(fit.active[r]):
        result.status, result.reason = "diverged", fit.reasons[r]
    if isinstance(fit.method, SamplerMethod):
        result.info["sampler"] = {name: float(values[r]) for name, values in fit.method.report(fit.state).items()}
    return result


def outcome(fit: Fit, r: int) -> Outcome:
    """What replica r of a trained fit leaves behind."""
    fold, task = fit.folds[r], fit.group.what.data.task
    result = trained(fit, r)
    if result.status != "done":
        return result
    state = fit.replica(r)
    result.model = {"params": state.params, "buffers": state.buffers, "samples": state.samples}
    started = time.perf_counter()
    x = fold.scaling.inputs(fit.table.inputs[fold.test])
    finish(result, answer_one(fit.method, state, x, fold.key), fold, task, started)
    if isinstance(fit.method, SamplerMethod) and result.status == "done":
        result.chain = chain_draws.draws(fit.method, state, fold, fit.table, task)
    return result


@torch.no_grad()
def answer_one(method: GradientMethod | SamplerMethod, state: State, x: np.ndarray, key: streams.Key) -> Predictive:
    """Predictive of scaled inputs x `[T, D]` by one replica: asked one by one, none depends on another."""
    like = next(iter(state.params.values()))
    return method.predict(state, torch.as_tensor(x).to(like)[None], [key])[0]


def save(model: dict[str, Any], path: Path) -> None:
    torch.save({k: _cpu(v) for k, v in model.items()}, path)


def _cpu(values: dict[str, Any]) -> dict[str, Any]:
    return {k: [t.cpu().clone() for t in v] if isinstance(v, list) else v.cpu().clone() for k, v in values.items()}


def answer(what: What, path: Path, x: np.ndarray, key: streams.Key) -> Predictive:
    """Predictive of scaled inputs x `[T, D]` by a stored model."""
    stored = torch.load(path, weights_only=True)
    return answer_one(make_method(what), State(**stored), x, key)
