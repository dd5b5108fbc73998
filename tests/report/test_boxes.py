"""Box plots of the splits."""

import numpy as np
import pandas as pd
import pytest
from synthetic_study import build

from gpbench.report.figures import draw
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
    scores = pd.read_parquet(folder / "scores.parquet")
    scores["mnll"] = scores["split"].where(scores["status"] == "done").astype(float)
    scores.to_parquet(folder / "scores.parquet")
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
