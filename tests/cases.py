"""Small cases, a method on a task each, whose fits are made once and shared by the contracts."""

import dataclasses
import functools
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpbench import config
from gpbench.config import schema
from gpbench.data import splits
from gpbench.data.table import Table
from gpbench.methods.base import ClosedFormMethod
from gpbench.study.fitting.entries import entry
from gpbench.study.fitting.fold import Fold, make_fold, make_method
from gpbench.study.fitting.outcome import Outcome
from gpbench.study.planning import batches
from gpbench.study.planning.resolve import Setup, make_cell
from gpbench.study.records import Cell, Group
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
YARDSTICK = "constant"
# few steps: optimisers amplify a difference of rounding, so that 1e-9 says something of the sums and not of chaos
STEPS, BLOCK, ROWS, SPLITS = 40, 5, 80, 3
FEW = 15
"""steps, where fits are compared with each other and need not have learnt: three blocks, samples from the second on"""
EXPENSIVE = ("deep_gp_mcmc", "dgp_mcmc", "ep_gp", "gp_pcg", "sgld_ulisse")
OTHER_STEPS = {"bsgp": 60, "ipvi_in_turn": 80} | dict.fromkeys(EXPENSIVE, FEW)
"""of families that learn more slowly, and of those whose steps are long and expensive"""
ITERATIONS = 15
"""of L-BFGS: more magnify differences of rounding, or find the few parameters of an exact GP before they are over"""
ALONE = 2
"""of the splits, those that are also fitted one by one: the second trains on a row less than the others"""
VARIANTS = {"mcmc_svgp_apart", "ipvi_dgp_2_in_turn"}
"""Methods that inherit loss or step and prediction from another one and differ in their start, or in whose turn it is:
on one task alone."""
CLASSES = {"regression": 0, "binary": 2, "multiclass": 3, "counts": 0}
PROTOCOL = ("common", "splits.train_fraction=0.75")
"""name and overrides"""
# what makes a fit small, where a method has such a hyperparameter
SMALL = {
    "num_inducing": 16,
    "num_features": 20,
    "samples_test": 20,
    "num_samples": 4,
    "num_probes": 1,
    "trials": 1,
    "iterations": 40,
    "start_iterations": 10,
    "leapfrogs": 4,
    "hidden_units": "[32,16]",
    "grid_size": 10,
    "folds": 3,
    "penalties": "[0.1,10.0]",
    "ascent_iterations": 1,
    "em_iterations": 3,
    "rounds": 2,
    "restarts": 2,
    "particles": 8,
    "passes": 10,
    "generator_rate": 0.02,  # the published one is meant for 20,000 steps
}


@functools.cache
def table(task: str) -> Table:
    """A smooth function of three inputs of unlike scales, with noise; its sign; which third of it a row is in;
    or counts whose log rate it is."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, -2.0]
    f = np.sin(2 * x[:, 0]) + 0.1 * x[:, 1]
    if task == "regression":
        y = 30 + 4 * (f + 0.1 * rng.normal(size=ROWS))
    elif task == "counts":
        y = rng.poisson(np.exp(f)).astype(float)
    else:
        cuts = np.quantile(f, np.arange(1, CLASSES[task]) / CLASSES[task])
        y = np.searchsorted(cuts, f).astype(float)
    return Table(x, y[:, None], ["a", "b", "c"], ["y"])


@functools.cache
def composed(conf: Path, group: str, name: str, overrides: tuple[str, ...] = ()):
    """A group item. Hundreds of cases ask for the same few, and Hydra takes 80 ms for each."""
    return config.compose(conf, group, name, overrides)


def every_case(conf: Path) -> list[tuple[str, str]]:
    """(method, task) of the first method of each module that predicts: the others of a module are presets."""
    first = {}
    for name, path in config.options(conf, "method").items():
        module = re.search(r"^module: *(\S+)", path.read_text(), re.MULTILINE)  # a preset may take that of another one
        if module:
            first.setdefault(module[1], name)
    headers = [composed(conf, "method", name).header for name in first.values()]
    tasks = {header.name: header.tasks[: 1 if header.name in VARIANTS else None] for header in headers}
    return [(header.name, task) for header in headers if "predict" in header.kinds for task in tasks[header.name]]


def two_targets() -> Table:
    """The regression table with a second target: another function, as smooth and as noisy, in other units."""
    data = table("regression")
    f = np.cos(2 * data.inputs[:, 0]) - 0.1 * data.inputs[:, 1]
    second = -500 + 70 * (f + 0.1 * np.random.default_rng(1).normal(size=ROWS))
    return Table(data.inputs, np.column_stack([data.targets, second]), data.input_names, ["y", "other"])


def cell(
    name: str,
    task: str,
    dtype: str = "float64",
    conf: Path = CONF,
    data: Table | None = None,
    protocol: tuple[str, ...] = PROTOCOL,
) -> Cell:
    """A cell as the planner makes it, with `SPLITS` fits."""
    data = data or table(task)
    hyper = composed(conf, "method", name).hyper
    small = tuple(f"{k}={v}" for k, v in SMALL.items() if hasattr(hyper, k))
    boston = composed(conf, "dataset", "boston")
    dataset = dataclasses.replace(
        boston,
        source=dataclasses.replace(boston.source, targets=data.target_names),
        name=f"smooth_{task}",
        task=task,
        md5=data.md5,
        rows=len(data.inputs),
        columns=data.inputs.shape[1],
        classes=[str(c) for c in range(CLASSES[task])],
    )
    method = composed(conf, "method", name, small)
    steps = OTHER_STEPS.get(method.family, STEPS)
    sizes = {"default": schema.Sizes(steps, steps, steps), "lbfgs": schema.Sizes(*[ITERATIONS] * 3)}
    setup = Setup(
        schema.Study("conformance", "", [name], [dataset.name], dtype=dtype, noise_block=BLOCK, splits=SPLITS),
        composed(CONF, "protocol", protocol[0], protocol[1:]),
        schema.Budget("conformance", "", sizes),
        schema.Trainer("conformance", checkpoint_seconds=1e9, log_points=20, eval_points=2),
    )
    return make_cell(setup, method, dataset, list(small))


def group(cell: Cell, *splits: int, **how: object) -> Group:
    """The fits of some splits in one tensor batch, as a batch file holds them."""
    fits = tuple(fit for fit in cell.fits if fit.split in splits)
    trained = dataclasses.replace(cell, how=dataclasses.replace(cell.how, **how))
    return dataclasses.replace(batches.group_of(trained, fits, cell.rows), group_id="-".join(f.fit_id for f in fits))


def with_hyper(cell: Cell, **hyper: object) -> Cell:
    """The cell with other hyperparameters."""
    method = dataclasses.replace(cell.what.method, hyper=cell.what.method.hyper | hyper)
    return dataclasses.replace(cell, what=dataclasses.replace(cell.what, method=method))


def trained_by(made: Group, scheme: str, workers: int) -> Group:
    """The group, trained by another scheme."""
    return dataclasses.replace(made, what=dataclasses.replace(made.what, trained_by=scheme, workers=workers))


@contextmanager
def unequal_parts():
    """Split 1 has a training row less than the others."""
    whole = splits.Shuffled.rows

    def rows(self, n, split, labels=None):
        train, test = whole(self, n, split, labels)
        return (train[:-1] if split == 1 else train), test

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits.Shuffled, "rows", rows)
        yield


class Case:
    """A method on a task: its fits, each made when it is first asked for."""

    def __init__(
        self,
        name: str,
        task: str,
        folders,
        conf=CONF,
        data=None,
        protocol=PROTOCOL,
        hyper=None,
        few: bool = False,
        device: str = "cpu",
    ) -> None:
        """hyper: other hyperparameters; few: `cell` takes `FEW` steps, and `full` and `single` as many as ever."""
        self.name, self.task, self.folders, self.device = name, task, folders, device
        self.table, self.conf, self.protocol, self.hyper = data or table(task), conf, protocol, hyper or {}
        self.cell = self.full = self.of_dtype("float64")
        if few and self.full.what.steps:
            steps = min(FEW, self.full.what.steps)
            self.cell = dataclasses.replace(self.full, what=dataclasses.replace(self.full.what, steps=steps))
        self.method = make_method(self.cell.what)
        self.steps = self.cell.what.steps
        self.closed_form = isinstance(self.method, ClosedFormMethod)

    def of_dtype(self, dtype: str) -> Cell:
        made = with_hyper(cell(self.name, self.task, dtype, self.conf, self.table, self.protocol), **self.hyper)
        return dataclasses.replace(made, how=dataclasses.replace(made.how, device=self.device))

    @functools.cached_property
    def single(self) -> Cell:
        """The cell in single precision."""
        return self.of_dtype("float32")

    @functools.cached_property
    def constant(self) -> Outcome:
        """The constant predictor of split 0."""
        return self.fit(group(cell(YARDSTICK, self.task, data=self.table, protocol=self.protocol), 0))[0]

    def folder(self) -> Path:
        return self.folders.mktemp(f"{self.name}-{self.task}")

    def fit(self, group: Group, data: Table | None = None, work: Path | None = None) -> list[Outcome]:
        """Fit a group in a work folder of its own."""
        fitting = entry(group.what)
        with unequal_parts():
            return fitting.run(group, data or self.table, work or self.folder())

    @functools.cached_property
    def together(self) -> list[Outcome]:
        return self.fit(group(self.cell, *range(SPLITS)))

    @functools.cached_property
    def alone(self) -> list[Outcome]:
        return [self.fit(group(self.cell, split))[0] for split in range(ALONE)]

    @functools.cached_property
    def learnt(self) -> Outcome:
        """Split 0 after as many steps as ever."""
        return self.alone[0] if self.full == self.cell else self.fit(group(self.full, 0))[0]

    @functools.cached_property
    def fold(self) -> Fold:
        """Split 0, whose size is that of the planner."""
        return make_fold(self.cell.what, self.table, 0, 0)

    def answer(self, outcome: Outcome, x: np.ndarray):
        """Predictive of split 0 at scaled inputs x `[T, D]`, by the fitted model, as `gpbench predict` asks it."""
        fitting = entry(self.cell.what)
        path = self.folder() / fitting.MODEL_FILE
        fitting.save(outcome.model, path)
        return fitting.answer(self.cell.what, path, x, self.fold.key)


def mnll(outcome: Outcome) -> float:
    assert outcome.status == "done", outcome.reason
    return -outcome.points["log_density"].mean()


def numbers(outcome: Outcome) -> pd.DataFrame:
    """Trace without the clock."""
    return pd.DataFrame(outcome.trace).drop(columns="seconds", errors="ignore")


def assert_same(one: Outcome, other: Outcome) -> None:
    """Bit for bit the same points and trace."""
    assert one.status == other.status == "done", (one.reason, other.reason)
    pd.testing.assert_frame_equal(one.points, other.points, check_exact=True)
    pd.testing.assert_frame_equal(numbers(one), numbers(other), check_exact=True)


def assert_close(one: Outcome, other: Outcome, relative: float = 1e-9) -> None:
    """Every number of the points agrees to `relative`."""
    assert one.status == other.status == "done", (one.reason, other.reason)
    scale = 1.0 + other.points.abs()
    worst = ((one.points - other.points).abs() / scale).to_numpy().max()
    assert worst <= relative, f"relative difference {worst:.2g}"


def changed(data: Table, rows: np.ndarray) -> Table:
    """Other inputs and targets (of the same classes) in some rows."""
    inputs, targets = data.inputs.copy(), data.targets.copy()
    inputs[rows] = 3 * inputs[rows] + 1
    is_regression = np.unique(targets).size > max(CLASSES.values())
    targets[rows] = 3 * targets[rows] + 1 if is_regression else np.roll(targets[rows], 1, axis=0)
    return dataclasses.replace(data, inputs=inputs, targets=targets)
