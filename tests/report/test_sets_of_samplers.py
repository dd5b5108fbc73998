"""What the scorecard and tables make of chains on one data set, or on few."""

import pandas as pd
import pytest
from synthetic_samplers import build_samplers
from synthetic_study import change_scores
from test_scorecard import card

from gpbench.report.registry import TABLES
from gpbench.report.view import View

ONE_SET = "inconclusive: one data set on each side"


@pytest.fixture
def folder(tmp_path):
    return build_samplers(tmp_path / "s", ["svgp"], ["boston"], splits=1)


def rewritten(folder, **columns) -> View:
    change_scores(folder, **columns)
    return View(folder)


PRINTED = {"ours_method": "svgp", "ours_metric": "cubic", "factor": 1, "value": 30.0, "splits": 10}


def test_operations_that_vary_are_of_their_data_set_and_exact_counts_are_not(folder):
    """Sweeps of EP hang on the data; a count that is the same in all chains is that of the algorithm."""
    sweeps = rewritten(folder, cubic=lambda scores: 15.0 + 0.01 * scores["replica"])
    found = [card(sweeps, **PRINTED | {"spread": spread})["verdict"] for spread in (0.1, 0.0)]
    assert found == [ONE_SET] * 2
    assert card(sweeps, **PRINTED | {"spread": float("nan"), "spread_kind": ""})["verdict"] == "better"  # a formula
    exact = rewritten(folder, cubic=lambda scores: 15.0)
    assert card(exact, **PRINTED | {"spread": 0.0})["verdict"] == "better"


def test_a_data_set_whose_chains_are_missing_is_no_run(tmp_path):
    def status(method, dataset, split):
        return ("missing", "") if split == 2 else ("done", "")

    view = View(build_samplers(tmp_path / "t", ["svgp"], ["boston"], splits=3, status=status))
    found = card(view, **PRINTED | {"ours_metric": "ess_percent", "spread": 4.0, "splits": 100, "data_sets": 10})
    assert found["verdict"].startswith("not judged: ")
    assert found["standard_error"] == pytest.approx(4.0 * (1 / 2 + 1 / 10) ** 0.5)


def test_samplers_that_ended_earlier_or_on_fewer_data_sets_say_so(tmp_path):
    def status(method, dataset, split):
        return ("failed", "") if (method, split) == ("svgp", 2) else ("done", "")

    folder = build_samplers(tmp_path / "t", ["svgp", "bsgp_1"], ["boston"], 3, status)
    moments = pd.read_parquet(folder / "prefixes.parquet")
    last = moments["iteration"] == moments["iteration"].max()
    moments[~(last & moments["fit_id"].str.startswith("svgp"))].to_parquet(folder / "prefixes.parquet")
    assert list(TABLES["efficiency"].function(View(folder)).shown["splits x chains"]) == ["2 x 4 of 3 splits", "3 x 4"]
    row = TABLES["convergence_order"].function(View(folder)).shown.iloc[0]
    assert row[["order", "shorter chains", "splits"]].tolist() == ["2", "1", "3"]
