"""The trials of a tuned fit: the inner split of its training rows, and which settings are the best. NumPy only.

A trial is handed a table of the training rows alone, so that nothing it does can depend on a test row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpbench.errors import UserError

if TYPE_CHECKING:
    from gpbench.data.table import Table
    from gpbench.study.records import Setting, What


def training_part(what: What, table: Table, split: int) -> Table:
    """The training rows of a split of a table, as a table."""
    train, _ = what.protocol.splits.rows(len(table.targets), split, table.targets[:, what.protocol.outputs[0]])
    return replace(table, inputs=table.inputs[train], targets=table.targets[train])


def trial(what: What, settings: dict[str, Setting]) -> What:
    """What is fitted to the training part to try some settings: its split 0 is the inner one."""
    assert what.tune is not None
    return replace(what.with_settings(settings), protocol=replace(what.protocol, splits=what.tune.inner))


def best(scores: list[float], reasons: list[str]) -> int:
    """Number of the trial with the least score (mean negative log density of the validation rows), the first of equals.

    Raises UserError where no trial has a finite one; reasons: why the others have none."""
    finite = np.where(np.isfinite(scores), scores, np.inf)
    if np.isinf(finite).all():
        raise UserError(f"none of the {len(scores)} settings tried could be scored: {next(filter(None, reasons), '')}")
    return int(finite.argmin())
