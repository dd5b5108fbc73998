"""Every method fits data that real sets hold: few rows, a constant input column, rows that repeat."""

import dataclasses

import numpy as np
import pytest

from cases import CONF, SPLITS, YARDSTICK, Case, every_case, group, mnll, table
from gpbench.data.table import Table

CASES = every_case(CONF)
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


CHANGES = [few_rows, pytest.param(constant_column_and_repeated_rows, marks=pytest.mark.slow)]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(("name", "task"), CASES, ids=["-".join(case) for case in CASES])
def test_it_fits(name, task, change, tmp_path_factory):
    data = change(table(task))
    splits = [0] if change is few_rows else range(SPLITS)
    outcomes = fitted(name, task, data, splits, tmp_path_factory, few=change is few_rows)
    assert all(np.isfinite(outcome.points["log_density"]).all() for outcome in outcomes)
    if name not in {YARDSTICK, *EXPLAINS_REPEATS} and change is not few_rows:
        constant = fitted(YARDSTICK, task, data, splits, tmp_path_factory)
        assert np.mean(list(map(mnll, outcomes))) < np.mean(list(map(mnll, constant)))


def fitted(name, task, data, splits, folders, few=False):
    """Some splits, none of which failed."""
    case = Case(name, task, folders, data=data, few=few)
    outcomes = case.fit(group(case.cell, *splits))
    assert {outcome.status for outcome in outcomes} == {"done"}, [outcome.reason for outcome in outcomes]
    return outcomes
