"""Units and spreads of printed numbers beside ours, and what counts as a run of ours."""

import numpy as np
import pytest
from synthetic_samplers import build_samplers
from synthetic_study import add_replica, build, change_scores
from test_scorecard import card, verdict

from gpbench.report.scorecard import verdicts
from gpbench.report.view import View


def test_a_printed_standard_error_is_that_of_its_splits(small_view):
    found = card(small_view, spread=0.02, spread_kind="standard error", splits=16, data_sets=4)
    assert found["published_sd"] == pytest.approx(0.02 * np.sqrt(16))


def test_the_rounding_of_a_percentage_is_a_hundredth_of_it_in_our_units(small_view):
    """12.5 % is 0.125 give or take 0.0005, less than the margin of 5 %; give or take 5 % it would be more."""
    percent = {"ours_metric": "rmse_scaled", "factor": 0.01, "value": 12.5}
    margins = [card(small_view, **percent, rounding=rounding)["margin"] for rounding in (0.05, 5.0)]
    assert margins == pytest.approx([0.05 * 0.125, 0.05])


def test_repeated_fits_of_a_split_are_one_run(tmp_path):
    """Of predictions, whose mean is over splits; with chains each is a run."""
    folder = build(tmp_path / "s", ["svgp"], ["boston"])
    add_replica(folder)
    found = card(View(folder))
    assert (found["ours_n"], verdicts.kind(found["verdict"]) in verdicts.JUDGED) == (5, True)


def test_equal_counts_of_operations_are_certain(tmp_path):
    """They are exact, unlike equal scores of a few splits."""
    view = View(build_samplers(tmp_path / "s", ["svgp"], ["boston"]))
    printed = {"ours_method": "svgp", "factor": 1, "spread": np.nan, "spread_kind": "", "splits": 4, "data_sets": 4}
    ours = view.fits["cubic"].iloc[0]
    found = [verdict(view, **printed, ours_metric="cubic", value=factor * ours) for factor in (0.5, 1.0, 2.0)]
    assert found == ["worse", "agrees", "better"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_chain_without_a_value_leaves_its_cell_unjudged(tmp_path, value):
    folder = build_samplers(tmp_path / "s", ["svgp"], ["boston"])
    change_scores(folder, ess_percent=lambda scores: scores["ess_percent"].where(scores.index > 0, value))
    printed = {"ours_metric": "ess_percent", "factor": 1, "value": 30.0, "spread": 1.0, "splits": 100}
    found = card(view := View(folder), **printed)
    assert (found["verdict"], found["ours_n"]) == ("not judged: the metric is undefined in 1 run", 15)
    assert found["ours"] == pytest.approx(view.done["ess_percent"][1:].mean())
