"""Fits of the kind `predict`: data of a split, outcome, and evaluation on held-out rows. No torch."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpbench.data import protocols
from gpbench.data.scaling import Scaling, scaling
from gpbench.data.table import Table
from gpbench.evaluation.pointwise import components, pointwise
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key


@dataclass(frozen=True)
class Fold:
    """One split of a data set: row numbers, scaling by training rows, and the key of its random streams.

    targets `[N, P]`: of all rows, in original units, those that the protocol wants predicted."""

    key: Key
    train: np.ndarray
    test: np.ndarray
    targets: np.ndarray
    scaling: Scaling


@dataclass
class Outcome:
    """What a fit leaves behind. points, components, chain and model are absent where it did not end well.

    chain: what the states of a Markov chain say one by one (see `chains`)."""

    status: str
    reason: str = ""
    points: Any = None
    components: dict[str, np.ndarray] = field(default_factory=dict)
    chain: dict[str, np.ndarray] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    trace: list[dict[str, float]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)


def fold(what: dict[str, Any], table: Table, split: int, replica: int) -> Fold:
    """Split, targets and scaling of one fit; every class must be among the training rows."""
    data, protocol = what["data"], what["protocol"]
    targets = table.targets[:, protocol["outputs"]]
    train, test = protocols.split_rows(protocol["splits"], len(targets), split, targets[:, 0])
    if data["classes"]:
        protocols.check_classes(targets, train, data["classes"], f"split {split}")
    scaled = scaling(protocol, table.inputs, targets, train, data["task"], data["images"])
    return Fold(Key(data["md5"], protocol["name"], split, replica), train, test, targets, scaled)


def finish(outcome: Outcome, predictive: Predictive, part: Fold, task: str, started: float) -> Outcome:
    """Evaluate a predictive (scaled units) of the test rows; one that is not finite marks the fit as diverged."""
    outcome.seconds["predict"] = time.perf_counter() - started
    if not predictive.is_finite():
        outcome.status, outcome.reason = "diverged", "the predictive is not finite"
        return outcome
    scaled_by = None
    if task == "regression":
        scaled_by = (part.scaling.y_shift, part.scaling.y_scale)
    outcome.points = pointwise(predictive, part.targets[part.test], task=task, scaled_by=scaled_by, rows=part.test)
    outcome.components = components(predictive)
    outcome.info |= {
        "train_target_mean": part.targets[part.train].mean(0).tolist(),
        "train_target_sd": part.targets[part.train].std(0).tolist(),
    }
    return outcome


def method(what: dict[str, Any]) -> Any:
    """The method of a fit, from its `what` (whose values were checked when it was planned)."""
    module = importlib.import_module(what["method"]["module"])
    hyper = module.Hyperparameters(**{k: v for k, v in what["method"].items() if k != "module"})
    return module.Method(hyper, what["data"]["task"], what["data"]["classes"], len(what["protocol"]["outputs"]))
