"""Box plots of the splits, and colours of families of models."""

import numpy as np
import pandas as pd
import pytest
from synthetic_study import build, change_scores

from gpbench.report.figures import by_model, draw, log_density
from gpbench.report.scorecard.one_run import scorecard
from gpbench.report.view import View

METHODS = ["svgp", "dsvi", "exact_gp"]
SPLITS = 8


def ends(method: str, dataset: str, split: int) -> tuple[str, str]:
    if (method, dataset) == ("exact_gp", "yacht"):
        return "skipped", "13 inputs, at most 4"
    return ("failed", "out of luck and of memory, too") if (method, dataset) == ("dsvi", "yacht") else ("done", "")


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    folder = build(tmp_path_factory.mktemp("boxes") / "s", METHODS, ["boston", "yacht"], SPLITS, ends)
    change_scores(folder, mnll=lambda scores: scores["split"].where(scores["status"] == "done").astype(float))
    row = {"source": "rossi2021", "item": "Figure 10", "metric_printed": "test_mnll", "protocol": "common", "note": ""}
    row |= {
        "scale": "original",
        "spread": 0.1,
        "spread_kind": "population sd",
        "splits": 8,
        "data_sets": 1,
        "setting": "",
        "reason": "",
    }
    row |= {"ours_metric": "mnll", "factor": 1, "dataset": "boston", "method_printed": "DGP", "ours_method": "dsvi"}
    scorecard(View(folder), pd.DataFrame([row | {"value": 2.5, "study": ""}])).to_csv(
        folder / "scorecard.csv", index=False
    )
    return View(folder)


def test_boxes_hold_the_splits_of_methods_that_are_not_skipped(view):
    boston, yacht = draw(view, "boxes").axes
    assert [label.get_text() for label in boston.get_xticklabels()] == [view.labels[name] for name in METHODS]
    assert [label.get_text() for label in yacht.get_xticklabels()] == [view.labels[name] for name in METHODS[:2]]
    box = boston.get_lines()[0].get_ydata()
    np.testing.assert_allclose([box.min(), box.max()], np.quantile(np.arange(SPLITS), [0.25, 0.75]))
    (failed,) = yacht.texts
    assert "failed" in failed.get_text()
    yacht.figure.canvas.draw()
    assert failed.get_window_extent().y1 < yacht.bbox.y1, "it ran through the title"


def test_a_published_mean_is_marked_above_its_method(view):
    boston, yacht = draw(view, "boxes").axes
    marked = [tuple(line.get_xydata()[0]) for line in boston.get_lines() if line.get_marker() == "D"]
    assert marked == [(1, 2.5)]
    assert not [line for line in yacht.get_lines() if line.get_marker() == "D"]


def test_log_densities_are_minus_the_losses_with_a_bar_at_their_mean(view):
    boston = draw(view, "log_density").axes[0]
    for row, (splits, mean) in enumerate(zip(boston.get_lines()[::2], boston.get_lines()[1::2], strict=True)):
        np.testing.assert_array_equal(splits.get_xydata(), [(-split, row) for split in range(SPLITS)])
        assert set(mean.get_xdata()) == {-3.5}


def test_what_lies_far_below_the_better_half_is_counted():
    """The better method has -1 and -2: twice its range of 1 below -2 an axis ends."""
    assert log_density._lowest_drawn(pd.DataFrame({"a": [-1.0, -2.0], "b": [-30.0, -1.5]})) == -4


def test_a_model_of_another_family_has_no_colour_of_a_family(tmp_path):
    """The third and the seventh colour of the palette are those of AEP and of sparse GPs."""
    methods = ["svgp", "dsvi", "bsgp_1", "bsgp_2", "dgp_rff", "exact_gp", "boosting"]
    folder = build(tmp_path / "s", methods, ["boston"])
    change_scores(folder, family=lambda scores: scores["method"].replace({"svgp": "aep", "dsvi": "other"}))
    aep, *others = [bar.lines[0].get_color() for bar in draw(View(folder), "loglik_by_model").axes[0].containers]
    of_families = {color for color, _ in by_model.FAMILIES.values()}
    assert aep in of_families
    assert not of_families & set(others)
