"""Protocols: splits and scaling, apart from any method.

Splits come first: under `common` every statistic is one of training rows.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

import numpy as np

from gpbench.errors import UserError
from gpbench.hyper import Fraction, NonNegativeInt, PositiveInt, dataclass


@dataclass(frozen=True)
class Splits:
    """How rows are split; `permutation` is explained in `split_rows`."""

    scheme: Literal["permutation"] = "permutation"
    seed: NonNegativeInt = 1
    train_fraction: Fraction = 0.9
    count: PositiveInt = 20


@dataclass(frozen=True)
class Protocol:
    """conf/protocol/*.yaml: splits, scaling and leaks, apart from any method."""

    name: str
    title: str
    splits: Splits
    inputs: Literal["standardise"] = "standardise"
    targets: Literal["standardise"] = "standardise"
    leaks: list[Literal["test_x"]] = field(default_factory=list)


def from_dict(content: dict[str, Any]) -> Protocol:
    """A protocol from the plain data that a plan holds (checked when it was planned)."""
    return Protocol(**content | {"title": "", "splits": Splits(**content["splits"])})


def split_rows(splits: Splits, n: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (train, test) of one split of n rows.

    `permutation`: RandomState(seed), then one `choice(n, n, replace=False)` a split, in order; the first
    round(train_fraction n) rows train (hernandez-lobato2015, whose index files these reproduce)."""
    if not 0 <= split < splits.count:
        raise UserError(f"split {split} does not exist; the protocol has splits 0 to {splits.count - 1}")
    state = np.random.RandomState(splits.seed)
    for _ in range(split + 1):
        order = state.choice(n, n, replace=False)
    cut = round(splits.train_fraction * n)
    if not 0 < cut < n:
        raise UserError(f"{n} rows cannot be cut into {splits.train_fraction:.0%} train and the rest test")
    return order[:cut], order[cut:]


@dataclass(frozen=True)
class Scaling:
    """Affine scaling of one split: scaled = (raw - shift) / scale, a shift and scale a column."""

    x_shift: np.ndarray
    x_scale: np.ndarray
    y_shift: np.ndarray
    y_scale: np.ndarray

    def inputs(self, raw: np.ndarray) -> np.ndarray:
        return (raw - self.x_shift) / self.x_scale

    def targets(self, raw: np.ndarray) -> np.ndarray:
        return (raw - self.y_shift) / self.y_scale


def scaling(
    protocol: Protocol, inputs: np.ndarray, targets: np.ndarray, train: np.ndarray, task: str, images: bool
) -> Scaling:
    """Scaling of one split from its training rows (population standard deviation; constant columns keep scale 1).

    Pixels are divided by the largest training value instead, so that they stay in [0, 1] and the
    background stays 0. Classes are never scaled. Where the protocol lists the leak `test_x`, input
    statistics come from all rows, as in the paper it copies."""
    seen = inputs if "test_x" in protocol.leaks else inputs[train]
    if images:
        x_shift, x_scale = np.zeros(inputs.shape[1]), np.full(inputs.shape[1], seen.max())
    else:
        x_shift, x_scale = seen.mean(0), seen.std(0)
    if task == "regression":
        y_shift, y_scale = targets[train].mean(0), targets[train].std(0)
    else:
        y_shift, y_scale = np.zeros(targets.shape[1]), np.ones(targets.shape[1])
    return Scaling(x_shift, _nonzero(x_scale), y_shift, _nonzero(y_scale))


def _nonzero(scale: np.ndarray) -> np.ndarray:
    """Scale 1 for columns that do not vary (up to rounding)."""
    return np.where(scale > 1e-12, scale, 1.0)


def check_classes(targets: np.ndarray, train: np.ndarray, classes: int, where: str) -> None:
    """A training part that lacks a class cannot be learned from."""
    present = np.unique(targets[train])
    if len(present) < classes:
        missing = sorted(set(range(classes)) - set(present.astype(int)))
        raise UserError(f"{where}: no training row of class {missing}; use another split or more rows")
