"""Fits of methods with steps as a LightningModule: what surrounds the numerics of `loop`.

Lightning counts steps by optimiser calls, which is wrong for samplers (none) and for methods with several optimisers;
so the step number comes from the loader and drives stopping, logging and checkpoints. A checkpoint stands at the end of
a block of noise, so it needs no generator state and a resumed fit continues bit for bit.
"""

import functools
import logging
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.gp import linalg
from gpbench.gp.lbfgs import Search
from gpbench.hyper import OptimisedSettings
from gpbench.methods.base import Batch, GradientMethod, Noise, SamplerMethod, State, TrainingSet
from gpbench.places import write_text
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key
from gpbench.study.fitting import chain_draws, checkpoint, contract, devices, energies, stopping
from gpbench.study.fitting.checkpoint import Content
from gpbench.study.fitting.convergence import LARGEST_GAIN, NOT_JUDGED, Convergence
from gpbench.study.fitting.devices import Clock
from gpbench.study.fitting.fold import make_fold, make_method
from gpbench.study.fitting.loop import (
    GradientLoop,
    Loop,
    QuasiNewtonLoop,
    SamplerLoop,
    advanced_by,
    answer_one,
    training_set,
)
from gpbench.study.fitting.outcome import EVAL_ROWS, Outcome, finish, test_scores
from gpbench.study.fitting.schedule import Schedule
from gpbench.study.fitting.trimmed_lightning import LightningEnvironment, LightningModule, Trainer
from gpbench.study.records import JITTER, Group, Progress, What, to_json

MODEL_FILE = "model.pt"


class TimeCap(Exception):
    """The trainer's `max_minutes` are over, or those of the job; the checkpoint is written."""


class Fit(Loop, LightningModule):
    """A group of fits at work: trace, checkpoints, clock. Begins where its newest checkpoint stands, if it has one."""

    def __init__(self, group: Group, table: Table, work: Path, device: torch.device) -> None:
        super().__init__()
        self.automatic_optimization = False
        what, how = group.what, group.how
        self.group, self.table, self.work, self.how = group, table, work, how
        self.method = contract.held(make_method(what))
        self.folds = [make_fold(what, table, f.split, f.replica) for f in group.fits]
        data = training_set(table, self.folds, getattr(torch, what.dtype), device)
        assert what.steps is not None, "a closed form has no steps"
        self.prepare(data, [fold.key for fold in self.folds], what.steps, what.noise_block)
        self.done = 0
        self.trace: list[list[dict[str, float]]] = []
        self.saved_optimiser: Content = {}
        self.saved_at = self.reported_at = time.monotonic()
        # a fit that ends by itself is likely to end early
        spread = np.geomspace if what.until_converged else np.linspace
        self.logged = {round(s) for s in spread(1, self.steps, min(self.steps, how.log_points))}
        points = min(how.eval_points, self.steps // how.eval_every)
        first = max(self.steps / 100, how.eval_every)
        self.evaluated = {self.steps, *(round(s) for s in np.geomspace(first, self.steps, points))}
        self.jitter: linalg.Tally = {}
        self.clock = Clock(device)  # what a method does before its first step is training too
        saved = checkpoint.read(work, [f.fit_id for f in group.fits], device)
        if saved is None:
            self.hold(self.method.start(self.data, self.keys))
            self.clock.pause()
        else:
            content, samples = saved
            self.hold(State(content["params"], content["buffers"], content["memory"], samples))
            self.load(content)
        linalg.events()  # where a fit starts is no matter

    def training_step(self, step: int) -> None:
        objective = self.advance(*self.draw(step), step)
        self.note(linalg.events())
        self.done = step + 1
        if any(self.is_logged(r, self.done) for r in range(len(self.folds))):
            self.record(objective)
        if self.done % self.block == 0 or self.is_finished():
            self.pause_at_block()
        if self.is_finished():
            self.trainer.should_stop = True

    def is_finished(self) -> bool:
        """Whether every replica has made its last step, or none is left that moves."""
        return self.done >= self.last_step or all(self.reasons)

    def ends(self, r: int) -> int:
        """The last step of replica r, as far as it is decided."""
        return self.steps

    def is_logged(self, r: int, step: int) -> bool:
        """Whether a step is in the trace of replica r."""
        end = self.ends(r)
        return step == end or (step < end and (step in self.logged or step in self.evaluated))

    def record(self, objective: Tensor) -> None:
        """One trace row a replica, with test scores where due; outside the clock."""
        seconds = self.clock.pause()
        rows = [{"step": self.done, "seconds": seconds, "objective": -v} for v in objective.tolist()]
        for r, row in enumerate(rows):
            end = self.ends(r)
            if self.active[r] and (self.done == end or (self.done < end and self.done in self.evaluated)):
                row |= self.look(r)
        self.trace.append(rows)
        self.report_progress()
        self.clock.go()

    def look(self, r: int) -> dict[str, float]:
        """Test scores of replica r now."""
        fold = self.folds[r]
        x = fold.scaling.inputs(self.table.inputs[fold.test[:EVAL_ROWS]])
        predictive = answer_one(self.method, self.replica(r), x, fold.key)
        linalg.events()  # how often a fit is looked at is no part of it
        return test_scores(predictive, fold, self.group.what.data.task)

    def note(self, events: list[linalg.Event]) -> None:
        """Keep which matrices needed jitter."""
        for event in events:
            if not event["failed"]:
                linalg.add(self.jitter, event)

    def needed_jitter(self, r: int) -> dict[str, Any]:
        """How often factors of replica r needed jitter, the largest, and in which matrices; {} where none did."""
        needed = [event for event in self.jitter.values() if event["replica"] == r]
        times, largest = sum(event["times"] for event in needed), max((e["jitter"] for e in needed), default=0.0)
        values = (times, largest, ", ".join(sorted(event["name"] for event in needed)))
        return dict(zip(JITTER, values, strict=True)) if needed else {}

    def pause_at_block(self) -> None:
        """Checkpoint where one is due, and stop where the time cap is reached."""
        over = self.is_over()
        if over or self.is_due() or self.is_finished():
            self.clock.pause()
            self.save()
            self.clock.go()
        if over and not self.is_finished():
            raise TimeCap(self.stopped())

    def is_over(self) -> bool:
        """Whether the time cap is reached, or the job is to end soon."""
        if self.how.max_minutes is None or stopping.is_requested():
            return stopping.is_requested()
        over = self.clock.pause() > 60 * self.how.max_minutes
        self.clock.go()
        return over

    def is_due(self) -> bool:
        """Whether the last checkpoint is old enough for another one."""
        return time.monotonic() - self.saved_at >= self.how.checkpoint_seconds

    def stopped(self) -> str:
        return stopping.reason(self.how, self.done, self.steps)

    def report_progress(self) -> None:
        """Progress for whoever watches, at most once a second."""
        now = time.monotonic()
        if now - self.reported_at >= 1.0:
            objective = [row["objective"] for row in self.trace[-1]]
            at_most = self.group.what.until_converged and self.last_step == self.steps
            progress = Progress(self.done, self.last_step, self.clock.seconds, objective, at_most)
            write_text(self.work / "progress.json", to_json(progress))
            self.reported_at = now

    def save(self) -> None:
        """Write a checkpoint: with the buffers, so that a resumed fit need not repeat `init`."""
        checkpoint.write(self.work, self.content() | {"buffers": self.state.buffers}, self.state.samples)
        self.saved_at = time.monotonic()

    def content(self) -> Content:
        """Of a checkpoint: all that changes from step to step, but the samples."""
        return checkpoint.content(self)

    def load(self, saved: Content) -> None:
        """Take over `content`."""
        checkpoint.restore(self, saved)

    def optimiser_state(self) -> Content:
        return {}

    def configure_optimizers(self) -> Any:
        return None


class OptimisedFit(Fit):
    """Fits that a schedule ends."""

    schedule: Schedule

    def prepare(self, data: TrainingSet, keys: list[Key], steps: int, block: int) -> None:
        super().prepare(data, keys, steps, block)
        self.until_converged = self.group.what.until_converged
        module = self.group.what.method.module
        if not isinstance(self.method, GradientMethod):
            raise UserError(f"{module} has no gradients; leave out its scheme, or write `closed_form: true`")
        if not isinstance(self.method.hyper, OptimisedSettings):
            raise UserError(
                f"{module}: Hyperparameters of a gradient method must inherit from gpbench.hyper.OptimisedSettings"
            )

    def ends(self, r: int) -> int:
        return self.schedule.ends(r)

    def judged(self, r: int) -> Convergence:
        """Whether replica r has converged; no objective is judged that single precision rounds by more than a gain."""
        judgement, error = self.schedule.judge(r), self.rounding[r]
        if error < LARGEST_GAIN:
            return judgement
        return Convergence(NOT_JUDGED, judgement.gain, f"float32 changes the objective by {error:.2g} nats a datum")

    @functools.cached_property
    @torch.no_grad()
    def rounding(self) -> list[float]:
        """By how much the objective a datum, of the last step's rows and noise, differs in double precision, for each
        replica of a finished fit; 0 of one in double precision."""
        if self.group.what.dtype == "float64":
            return [0.0] * len(self.folds)
        batch, noise = self.draw(self.done - 1)
        state = State(_double(self.state.params), _double(self.state.buffers))
        exact = self.method.loss(state, Batch(**_double(vars(batch))), Noise(**_double(noise._asdict())))
        error = (self.method.loss(self.state, batch, noise) - exact).abs() / self.data.count
        return [float(value) for value in error.nan_to_num(math.inf)]

    def content(self) -> Content:
        return super().content() | {"schedule": self.schedule.content()}

    def load(self, saved: Content) -> None:
        super().load(saved)
        self.schedule.load(saved["schedule"])


class GradientFit(GradientLoop, OptimisedFit):
    """Fits by `GradientLoop`; compiled: the method's loss, where the trainer asks for it."""

    compiled: Callable[[State, Batch, Noise], Tensor] | None = None

    def prepare(self, data: TrainingSet, keys: list[Key], steps: int, block: int) -> None:
        super().prepare(data, keys, steps, block)
        if self.how.compile:
            # on a GPU by CUDA graphs, which a step needs no more for than that nothing in it waits for the device
            mode = "reduce-overhead" if self.how.device == "cuda" else None
            self.compiled = torch.compile(self.method.loss, mode=mode)

    def loss(self, batch: Batch, noise: Noise) -> Tensor:
        # a careful step looks at every Cholesky factor, which a graph cannot
        if self.compiled is None or not linalg.checks_are_deferred():
            return super().loss(batch, noise)
        # a copy, as the next run of a CUDA graph overwrites what this one returns
        return self.compiled(self.state, batch, noise).clone()

    def hold(self, state: State) -> None:
        super().hold(state)
        for number, value in enumerate(state.params.values()):  # by number, as names may be those of attributes
            assert isinstance(value, torch.nn.Parameter)
            self.register_parameter(f"parameter_{number}", value)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        adam = self.start_adam()
        if self.saved_optimiser:
            adam.load_state_dict(self.saved_optimiser)
        return adam

    def optimiser_state(self) -> Content:
        return self.adam.state_dict()


class QuasiNewtonFit(QuasiNewtonLoop, OptimisedFit):
    """Fits by `QuasiNewtonLoop`."""

    def optimiser_state(self) -> Content:
        return {"searches": [vars(search) for search in self.searches]}

    def load(self, saved: Content) -> None:
        super().load(saved)
        self.searches = [Search(**search) for search in saved["optimiser"]["searches"]]


class SamplerFit(SamplerLoop, Fit):
    """Fits by `SamplerLoop`."""


def _double(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() if value.is_floating_point() else value for name, value in values.items()}


def run(group: Group, table: Table, work: Path) -> list[Outcome]:
    """Fit a group (resuming where it was cut off) and evaluate every fit of it."""
    return complete(family(group), group, table, work, outcome)


def family(group: Group) -> type[Fit]:
    """The kind of fits that a group takes in one process."""
    families: dict[str, type[Fit]] = {"adam": GradientFit, "lbfgs": QuasiNewtonFit, "chain": SamplerFit}
    return families[advanced_by(make_method(group.what), [fit.rows for fit in group.fits])]


def complete(
    family: type[Fit], group: Group, table: Table, work: Path, end: Callable[[Any, int], Outcome]
) -> list[Outcome]:
    """Train a group as a `family` of fits, resuming where it was cut off; `end(fit, r)` says what replica r leaves."""
    how = group.how
    torch.set_num_threads(how.threads)
    device = devices.of(how)
    fit = family(group, table, work, device).to(device)
    if not fit.is_finished():
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
        warnings.filterwarnings("ignore", module="lightning")  # advice on features that are not used here
        here = LightningEnvironment()  # and not Slurm's, which starts jobs again
        trainer = Trainer(
            **usual | dict.fromkeys(absent, False) | settings, plugins=[here], use_distributed_sampler=False
        )
        # Lightning would end a fit in the middle of a block
        vars(trainer._signal_connector)["register_signal_handlers"] = lambda: None
        fit.clock.go()
        trainer.fit(fit, train_dataloaders=range(fit.done, fit.steps))
    fit.to(fit.data.inputs.device)  # Lightning leaves the parameters on the CPU


def trained(fit: Fit, r: int) -> Outcome:
    """Status, trace and cost of replica r of a trained fit."""
    shared = len(fit.folds)
    trace = [rows[r] for rows in fit.trace if fit.is_logged(r, int(rows[r]["step"]))]
    result = Outcome("done", trace=trace, seconds={"train": fit.clock.seconds / shared, "shared_by": shared})
    result.info |= fit.needed_jitter(r)
    if not bool(fit.active[r]):
        result.status, result.reason = "diverged", fit.reasons[r]
    if isinstance(fit, OptimisedFit):
        result.info |= asdict(fit.judged(r)) | {"steps_done": min(fit.ends(r), fit.done)}
    if isinstance(fit.method, SamplerMethod):
        result.info["sampler"] = energies.report(fit.method, fit.state, r)
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
    with linalg.replicas_from(r):  # by a new instance, as for a stored model: nothing may stand in attributes
        predictive = answer_one(contract.held(make_method(fit.group.what)), state, x, fold.key)
    result.info.get("sampler", {}).update((name, float(noted)) for name, noted in state.memory.items())
    fit.note(linalg.events())
    finish(result, predictive, fold, task, started)
    result.info |= fit.needed_jitter(r)
    # one that keeps no states, but the last of many particles, has no draws of one posterior to judge
    if isinstance(fit.method, SamplerMethod) and state.samples and result.status == "done":
        result.chain = chain_draws.draws(fit.method, state, fold, fit.table, task)
    return result


def save(model: dict[str, Any], path: Path) -> None:
    path.write_bytes(checkpoint.serialised({k: _cpu(v) for k, v in model.items()}))


def _cpu(values: dict[str, Any]) -> dict[str, Any]:
    return {k: [t.cpu().clone() for t in v] if isinstance(v, list) else v.cpu().clone() for k, v in values.items()}


def answer(what: What, path: Path, x: np.ndarray, key: Key) -> Predictive:
    """Predictive of scaled inputs x `[T, D]` by a stored model."""
    return answer_one(make_method(what), State(**torch.load(path, weights_only=True)), x, key)
