"""What curves, marks, ticks and remarks of figures say, on cases of a few numbers."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from synthetic_samplers import build_samplers

from gpbench.report.figures import calibration, canvas, convergence, draw, profiles, r_hat
from gpbench.report.figures.published import published_scores
from gpbench.report.view import UNMIXED, View


@pytest.fixture
def axis():
    _, (axis,) = canvas.titled(["one"], 2)
    return axis


def test_a_cell_is_counted_once_for_what_it_lacks(axis):
    """One that lacks a split is incomplete, also where others of its splits have not converged."""
    rows = [(True, 3, "", 2), (True, 3, "", 0), (False, 3, f"1 of 3 {UNMIXED}", 0)]
    rows += [(False, 2, f"1 of 3 {UNMIXED}, 1 diverged", 0), (False, 2, "1 failed", 1)]
    cells = pd.DataFrame(rows, columns=["complete", "n", "statuses", "improving"]).assign(expected=3)
    canvas.remark_incomplete(axis, cells)
    assert axis.get_title("right") == f"2 incomplete, 1 {UNMIXED}, 2 still improving"


def test_chains_are_counted_from_one():
    assert [look.label for look in canvas.chain_looks([1, 0, 1]).values()] == ["chain 1", "chain 2"]


def test_numbers_of_another_protocol_or_metric_do_not_stand_beside_ours():
    names = ["protocol", "ours_metric", "ours_method"]
    rows = [("common", "mnll", "svgp"), ("other", "mnll", "svgp"), ("common", "rmse", "svgp"), ("common", "mnll", "x")]
    view = SimpleNamespace(card=pd.DataFrame(rows, columns=names), study={"protocol": "common"}, methods=["svgp"])
    assert published_scores(view).index.tolist() == [0]


def test_a_band_reaches_from_the_least_to_the_largest_split(axis, small_view):
    rows = pd.DataFrame({"fit_id": list("aabb"), "step": [1, 2] * 2, "mnll": [1.0, 1.0, 4.0, 4.0], "method": "svgp"})
    convergence._curve(axis, small_view, rows, "step", "mnll")
    heights = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max(), *axis.lines[0].get_ydata()) == (1, 4, 2.5, 2.5)


def test_a_curve_ends_where_half_of_the_splits_do():
    curves = [(np.array([0.0, end]), np.array([1.0, 1.0])) for end in (1.0, 0.5)]
    reached = np.isfinite(calibration.mean_curve(curves))
    assert calibration.GRID[reached].max() == 0.5


def test_a_distance_of_just_the_region_counts_within_it_and_ticks_are_ratios(small_view):
    """1.01 - 1 exceeds 0.01 in double precision."""
    losses = pd.DataFrame({"svgp": [1.0, 1.0], "constant": [1.01, 1.005]})
    for metric, shares in (("mnll", {"SVGP": "100%", "Constant": "100%"}), ("rmse", {})):
        axis = Figure().subplots()
        profiles._profile(axis, small_view, metric, losses * [1, 1 if metric == "mnll" else 3])
        found = {line.get_label().split("%  ")[1]: line.get_label().split("  ")[0] for line in axis.get_lines()}
        assert shares.items() <= found.items()
    ticks = [float(label.get_text()) for label in axis.get_xticklabels()]
    assert max(ticks) >= 1
    np.testing.assert_allclose(axis.get_xticks(), np.log1p(ticks))


def test_the_darker_line_is_the_usual_limit_of_r_hat(axis):
    axis.set_yscale("log")
    r_hat.threshold_axis(axis)
    assert axis.lines[0].get_ydata()[0] == pytest.approx(0.1)
    np.testing.assert_allclose(axis.get_yticks() + 1, [float(label.get_text()) for label in axis.get_yticklabels()])


def test_a_curve_of_two_classes_is_of_class_1(small_view):
    (axis,) = draw(small_view, "reliability").axes
    assert axis.get_ylabel() == "fraction of class 1"


def test_densities_are_of_the_first_split(tmp_path):
    folder = build_samplers(tmp_path / "s", ["svgp"], ["boston"], 2)
    drawn = pd.read_parquet(folder / "draws.parquet")
    other = drawn.assign(fit_id=drawn["fit_id"].str.replace("-0-", "-1-"), value=drawn["value"] + 100)
    pd.concat([drawn, other]).to_parquet(folder / "draws.parquet")
    (axis,) = draw(View(folder), "densities").axes
    assert np.abs(axis.lines[0].get_xdata()).max() < 10
