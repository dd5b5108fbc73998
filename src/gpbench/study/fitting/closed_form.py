"""Fits of methods without steps: one replica after the other, in NumPy. No torch."""

import time
from pathlib import Path

import numpy as np

from gpbench.data.table import Table
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key
from gpbench.study.fitting import contract, plain_model
from gpbench.study.fitting.fold import fit_closed_form, make_fold, make_method
from gpbench.study.fitting.outcome import Outcome, finish
from gpbench.study.records import Group, What

MODEL_FILE = "model.npz"
save = plain_model.save


def run(group: Group, table: Table, work: Path) -> list[Outcome]:
    """Fit and evaluate every fit of a group."""
    return [_fit(group.what, table, fit.split, fit.replica) for fit in group.fits]


def _fit(what: What, table: Table, split: int, replica: int) -> Outcome:
    fold, method = make_fold(what, table, split, replica), contract.held(make_method(what))
    started = time.perf_counter()
    model = fit_closed_form(method, fold, table, what.data.classes)
    outcome = Outcome("done", model=model, seconds={"train": time.perf_counter() - started})
    started = time.perf_counter()
    again = contract.held(make_method(what))  # as for a stored model: nothing may stand in attributes
    predictive = again.predict(model, fold.scaling.inputs(table.inputs[fold.test]))
    return finish(outcome, predictive, fold, what.data.task, started)


def answer(what: What, path: Path, x: np.ndarray, key: Key) -> Predictive:
    """Predictive of scaled inputs x `[T, D]` by a stored model."""
    predictive: Predictive = make_method(what).predict(plain_model.load(path), x)
    return predictive
