"""Every method fits data that real sets hold: few rows, a constant input column, rows that repeat."""

import dataclasses

import numpy as np
import pytest

from cases import CONF, YARDSTICK, Case, cell, every_case, group, mnll, table
from gpbench.data.table import Table

CASES = every_case(CONF)
SPLIT = 1
"""one that every method learns from in so few steps"""
EXPLAINS_REPEATS = {"pitc"}
"""Methods that take rows that repeat for certain, within their blocks, and have to predict without these."""


def few_rows(data: Table) -> Table:
    """16 rows, of which 12 train: fewer than the 16 inducing inputs of the small settings."""
    chosen = np.concatenate([np.flatnonzero(data.targets[:, 0] == y)[:6] for y in np.unique(data.targets)])
    chosen = chosen[:: max(1, len(chosen) // 16)][:16]
    return dataclasses.replace(data, inputs=data.inputs[chosen], targets=data.targets[chosen])


def constant_column_and_repeated_rows(data: Table) -> Table:
    """As naval, a fourth input that never changes; as protein, a second half that repeats the first."""
    half = len(data.inputs) // 2
    again = np.concatenate([np.arange(half), np.arange(half)])
    inputs = np.column_stack([data.inputs[again], np.full(len(again), 288.0)])
    return Table(inputs, data.targets[again], [*data.input_names, "constant"], data.target_names)


@pytest.mark.parametrize("change", [few_rows, constant_column_and_repeated_rows], ids=lambda change: change.__name__)
@pytest.mark.parametrize(("name", "task"), CASES, ids=["-".join(case) for case in CASES])
def test_it_fits(name, task, change, tmp_path_factory):
    data = change(table(task))
    case = Case(name, task, tmp_path_factory, data=data, few=change is few_rows)
    (outcome,) = case.fit(group(case.cell, SPLIT))
    assert outcome.status == "done", outcome.reason
    assert np.isfinite(outcome.points["log_density"]).all()
    if name not in {YARDSTICK, *EXPLAINS_REPEATS} and change is not few_rows:
        constant = cell(YARDSTICK, task, data=data)
        assert mnll(outcome) < mnll(case.fit(group(constant, SPLIT))[0])
