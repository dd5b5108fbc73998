"""Accuracy against chance and between pairs of classes, by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_study import add_replica, build

from gpbench.report.registry import TABLES
from gpbench.report.tables.chance import against_chance
from gpbench.report.view import View


def test_right_and_wrong_predictions_against_what_chance_expects():
    """Of 12 rows of three classes 9 are right where 4 are expected: 25/4 + 25/8 = 9.375, p = erfc(sqrt(9.375 / 2))."""
    y = np.repeat([0, 1, 2], 4)
    p = np.full((12, 3), 0.2)
    p[np.arange(12), y] = 0.6
    p[:3] = [0.3, 0.1, 0.6]  # three rows of class 0 look like class 2, and more like 0 than like 1
    scores = against_chance(p, y)
    assert (scores["rows"], scores["accuracy"], scores["above"]) == (12, 0.75, True)
    assert scores["chi_squared"] == pytest.approx(9.375)
    assert scores["p"] == pytest.approx(2 * stats.norm.sf(np.sqrt(9.375)))
    assert (scores["pair_0_1"], scores["pair_0_2"], scores["pair_1_2"]) == (1.0, 5 / 8, 1.0)
    assert scores["pairs"] == pytest.approx((1 + 5 / 8 + 1) / 3)


def test_worse_than_chance_is_not_better_than_chance():
    y = np.zeros(30, int)
    p = np.tile([0.1, 0.9, 0.0], (30, 1))
    scores = against_chance(p, y)
    assert not scores["above"]
    assert scores["p"] == pytest.approx(2 * stats.norm.sf(np.sqrt(15)))
    assert scores["pairs"] == 0.5, "never 0 rather than 1, always 0 rather than 2, and no row of the third pair"


@pytest.mark.parametrize("y", [[0, 0, 0, 0, 1, 2], [2, 2, 2, 2, 1, 0]])
def test_probabilities_that_tell_nothing_are_right_of_every_other_row_of_a_pair(y):
    assert against_chance(np.full((6, 3), 1 / 3), np.array(y))["pairs"] == 0.5


@pytest.fixture
def view(tmp_path):
    """Two splits of `digits`: svgp is right in every row, constant gives all classes the same probability, and dsvi
    none to the right one."""
    folder = tmp_path / "s"
    build(folder, ["svgp", "constant", "dsvi"], ["digits"], 2)
    add_replica(folder)
    parts = []
    for fit in pd.read_parquet(folder / "scores.parquet")["fit_id"]:
        y = np.arange(40) % 4
        # of the two replicas of svgp one is wrong, by less than the other is right
        of_svgp = -0.1 if fit.count("-") == 3 else 0.4
        sure = {"constant": 0.0, "dsvi": -0.25, "svgp": of_svgp}[fit.split("-")[0]]
        p = np.full((40, 4), (0.75 - sure) / 3)
        p[np.arange(40), y] = 0.25 + sure
        columns = {f"p{number}": p[:, number] for number in range(4)}
        parts.append(pd.DataFrame({"row": np.arange(40), "y": y, **columns}).assign(fit_id=fit))
    pd.concat(parts).to_parquet(folder / "points.parquet")
    return View(folder)


def test_replicas_are_averaged_and_splits_pooled(view):
    table = TABLES["chance"].function(view)
    assert list(table.data["rows"]) == [80, 80, 80]
    svgp, constant, wrong = table.data.itertuples()
    assert (svgp.accuracy, svgp.pairs) == (1.0, 1.0)
    assert (constant.accuracy, constant.p) == (0.25, 1.0)
    assert (wrong.accuracy, wrong.p < 0.05) == (0.0, True)
    assert [text.endswith("*") for text in table.shown["p"]] == [True, False, False]


def test_a_study_without_several_classes_has_an_empty_table(tmp_path):
    table = TABLES["chance"].function(View(build(tmp_path / "s", ["svgp"], ["boston"], 1)))
    assert (len(table.data), len(table.shown)) == (0, 0)
