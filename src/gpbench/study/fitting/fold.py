"""The data of one fit: its split, targets and scaling, and the method that it asks for. No torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpbench import streams
from gpbench.data.scaling import Scaling, scaling
from gpbench.data.splits import check_classes
from gpbench.streams import Key

if TYPE_CHECKING:
    from gpbench.data.table import Table
    from gpbench.methods.base import ClosedFormMethod
    from gpbench.study.records import What


@dataclass(frozen=True)
class Fold:
    """One split of a data set: row numbers, scaling by training rows, and the key of its random streams.

    targets `[N, P]`: of all rows, in original units, those that the protocol wants predicted."""

    key: Key
    train: np.ndarray
    test: np.ndarray
    targets: np.ndarray
    scaling: Scaling


def make_fold(what: What, table: Table, split: int, replica: int) -> Fold:
    """Split, targets and scaling of one fit; every class must be among the training rows."""
    data, protocol = what.data, what.protocol
    targets = table.targets[:, list(protocol.outputs)]
    train, test = protocol.splits.rows(len(targets), split, targets[:, 0])
    if data.classes:
        check_classes(targets, train, data.classes, f"split {split}")
    scaled = scaling(protocol, table.inputs, targets, train, data.task, data.images)
    return Fold(Key(str(data.md5), protocol.name, split, replica), train, test, targets, scaled)


def make_method(what: What) -> Any:
    """The method of a fit, from its `what` (whose values were checked when it was planned)."""
    module = importlib.import_module(what.method.module)
    hyper = module.Hyperparameters(**what.method.hyper)
    return module.Method(hyper, what.data.task, what.data.classes, len(what.protocol.outputs))


def fit_closed_form(method: ClosedFormMethod, fold: Fold, table: Table, classes: int) -> dict[str, Any]:
    """The model of the training rows of a fold; classes: their number, 0 where the task has none."""
    y = fold.scaling.targets(fold.targets[fold.train])
    x = fold.scaling.inputs(table.inputs[fold.train])
    return method.fit(x, y[:, 0].astype(int) if classes else y, streams.rng(fold.key, "init"))
