"""Scaling of inputs and targets, by what a protocol says and the training rows of a split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpbench.data.splits import FrozenProtocol


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
    protocol: FrozenProtocol, inputs: np.ndarray, targets: np.ndarray, train: np.ndarray, task: str, images: bool
) -> Scaling:
    """Scaling of one split from its training rows (population standard deviation; constant columns keep scale 1).

    Pixels are divided by the largest training value instead, so that
    0..255 becomes 0..1 and a background of 0 stays 0. Classes are never scaled. Where the protocol lists the leak
    `test_x`, input statistics come from all rows, as in the paper it copies."""
    seen = inputs if "test_x" in protocol.leaks else inputs[train]
    if protocol.inputs == "as they are":
        x_shift, x_scale = _none(inputs)
    elif images:
        x_shift, x_scale = np.zeros(inputs.shape[1]), np.full(inputs.shape[1], float(seen.max()) or 1.0)
    else:
        x_shift, x_scale = seen.mean(0), _spread(seen)
    if task == "regression" and protocol.targets == "standardise":
        y_shift, y_scale = targets[train].mean(0), _spread(targets[train])
    else:
        y_shift, y_scale = _none(targets)
    return Scaling(x_shift, x_scale, y_shift, y_scale)


def _none(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shift and scale of every column that leave it as it is."""
    return np.zeros(rows.shape[1]), np.ones(rows.shape[1])


def _spread(rows: np.ndarray) -> np.ndarray:
    """Population standard deviation of every column, 1 for columns that do not vary (up to rounding)."""
    sd = rows.std(0)
    return np.where(sd > 1e-12 * np.abs(rows).max(0), sd, 1.0)
