"""Metrics put known predictives in the order that they must have: oracle, exact GP, linear, constant.

80 training rows and 1,920 test rows, so that no order is an accident of the test noise.
"""

from dataclasses import replace

import numpy as np
import pytest

from cases import cell, group
from gpbench.data.table import Table
from gpbench.evaluation.metrics import METRICS, score
from gpbench.evaluation.pointwise import pointwise
from gpbench.predictive.distributions import GaussianMixture
from gpbench.study.fitting.entries import entry
from gpbench.study.fitting.fold import make_fold

PROPER = ("mnll", "mnll_scaled", "rmse", "rmse_scaled", "smse", "msll", "crps")
NOISE_SD = 0.5


def truth(x: np.ndarray) -> np.ndarray:
    return 30 + 4 * np.sin(2 * x[:, 0]) + x[:, 1]


@pytest.fixture(scope="module")
def table() -> Table:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3))
    y = truth(x) + NOISE_SD * rng.normal(size=len(x))
    return Table(x, y[:, None], ["a", "b", "c"], ["y"])


@pytest.fixture(scope="module")
def scores(table, tmp_path_factory):
    points, info = {}, None
    for name in ("exact_gp", "linear", "constant"):
        one = group(cell(name, "regression"), 0)
        protocol = replace(one.what.protocol, splits=replace(one.what.protocol.splits, train=80))
        one = replace(one, what=replace(one.what, protocol=protocol))
        outcome = entry(one.what).run(one, table, tmp_path_factory.mktemp(name))[0]
        points[name], info = outcome.points, outcome.info
    fold = make_fold(one.what, table, 0, 0)
    mean = truth(table.inputs[fold.test])[None, :, None]
    oracle = GaussianMixture(mean, np.full_like(mean, NOISE_SD**2))
    points["oracle"] = pointwise(oracle, table.targets[fold.test], task="regression", rows=fold.test)
    points["oracle"]["log_density_scaled"] += np.log(fold.scaling.y_scale.item())
    cost = {"seconds_train": 1.0, "seconds_predict": 1.0, "peak_memory_mb": 1.0}
    facts = info | cost | {"task": "regression", "num_classes": 0}
    return {name: score(p, facts) for name, p in points.items()}


@pytest.mark.parametrize("metric", PROPER)
def test_oracle_exact_gp_linear_constant(scores, metric):
    losses = [METRICS[metric].loss(scores[name][metric]) for name in ("oracle", "exact_gp", "linear", "constant")]
    assert losses == sorted(losses)
    assert len(set(losses)) == 4
