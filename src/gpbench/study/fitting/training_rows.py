"""The training rows of a group of fits as tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gpbench.data import table as tables
from gpbench.data.table import Table
from gpbench.methods.base import TrainingSet
from gpbench.study.fitting.fold import Fold


def training_set(table: Table, folds: list[Fold], dtype: torch.dtype, device: torch.device) -> TrainingSet:
    """The training rows of several folds; all raw rows are stored once."""
    # in single precision a common offset (one of training rows) would eat digits; scaled values do not depend on it
    offset = folds[0].scaling.x_shift if dtype == torch.float32 else np.zeros(table.inputs.shape[1])
    longest = max(len(fold.train) for fold in folds)
    rows = np.stack([np.pad(fold.train, (0, longest - len(fold.train))) for fold in folds])

    def tensor(array: np.ndarray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(array), device=device).to(dtype)

    def shifted(array: np.ndarray, by: np.ndarray | float) -> Tensor:
        """All rows, moved and converted part by part: a large set has no copy in float64 besides."""
        whole = torch.empty(array.shape, dtype=dtype, device=device)
        parts = tables.chunks(array)
        for target, part in zip(whole.split([len(part) for part in parts]), parts, strict=True):
            target.copy_(torch.as_tensor(part - by))
        return whole

    return TrainingSet(
        inputs=shifted(table.inputs, offset),
        targets=shifted(folds[0].targets, 0.0),
        rows=torch.as_tensor(rows, device=device),
        count=torch.as_tensor([len(fold.train) for fold in folds], device=device),
        x_shift=tensor(np.stack([fold.scaling.x_shift - offset for fold in folds])),
        x_scale=tensor(np.stack([fold.scaling.x_scale for fold in folds])),
        y_shift=tensor(np.stack([fold.scaling.y_shift for fold in folds])),
        y_scale=tensor(np.stack([fold.scaling.y_scale for fold in folds])),
    )
