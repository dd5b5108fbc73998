"""Every further file of conf/method, the preset of a paper say, makes one small fit that ends with numbers."""

import dataclasses

import numpy as np
import pytest

from cases import CONF, Case, composed, every_case, group, table
from gpbench import config
from gpbench.data.table import Table

STEPS = 10
OTHERS = sorted(set(config.options(CONF, "method")) - set(dict(every_case(CONF))))
PRESETS = [name for name in OTHERS if "predict" in composed(CONF, "method", name).header.kinds]


def of_width(task: str, columns: int) -> Table:
    """The table of a task, its inputs repeated to as many columns (0: as it is)."""
    data = table(task)
    if not columns:
        return data
    chosen = np.arange(columns) % data.inputs.shape[1]
    return dataclasses.replace(data, inputs=data.inputs[:, chosen], input_names=[f"x{i}" for i in range(columns)])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fits_its_first_task(name, tmp_path_factory):
    method = composed(CONF, "method", name)
    task = method.header.tasks[0]
    case = Case(name, task, tmp_path_factory, data=of_width(task, sum(getattr(method.hyper, "sources", None) or [])))
    steps = case.steps and STEPS
    short = dataclasses.replace(case.cell, what=dataclasses.replace(case.cell.what, steps=steps))
    (outcome,) = case.fit(group(short, 0, eval_points=0))
    assert outcome.status == "done", outcome.reason
    assert np.isfinite(outcome.points.select_dtypes("number")).all(axis=None)
    assert np.isfinite([row["objective"] for row in outcome.trace]).all()
