"""Figures can be read: an outlier leaves the axis with its number, legends hold what is drawn, nothing is a guess."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from synthetic_study import build, build_probed

from gpbench.report.figures import canvas, convergence, draw, log_density, profiles, score_against_setting
from gpbench.report.figures.published import score_limits
from gpbench.report.view import View, describe_statuses


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def drawn(scores):
    """A panel of log densities `[splits, methods]` of a study that has one data set."""

    class Study:
        methods = list(scores)
        labels = {name: name for name in scores}

        def per_split(self, *_):
            return -scores

        def cells_of(self, *_):
            n = len(scores)
            cells = {"n": n, "expected": n, "complete": True, "improving": 0}
            return pd.DataFrame([cells] * scores.shape[1], index=list(scores))

    axis = Figure().subplots()
    log_density._draw_splits(axis, Study(), "one")
    return axis


def test_counts_of_splits_below_the_axis_stand_beside_the_marks():
    near = [-1.0, -1.2, -1.1]
    without, beside = drawn(pd.DataFrame({"a": near, "b": near})), drawn(pd.DataFrame({"a": near, "b": [-1, -1.2, -9]}))
    assert without.get_xlim()[0] < -1.2
    low, high = beside.get_xlim()
    assert (-1.2 - low) / (high - low) > 0.12
    assert [text.get_text() for text in beside.texts] == ["◂ 1"]


def test_one_outlier_does_not_flatten_the_others():
    _, (axis,) = canvas.titled(["one"], 2)
    axis.set_ylim(score_limits(pd.DataFrame({"a": [1.0, 1.1], "b": [1.2, 1.3], "c": [9.0, 9.1]})))
    look = canvas.looks_of({"m": "m"})["m"]
    for mean in (1.1, 9.0):
        cell = {"mean": mean, "sd": 0.1, "mean_seconds": 2.0, "sd_seconds": 0.1, "complete": True}
        profiles._mark(axis, pd.Series(cell), look)
    high = axis.get_ylim()[1]
    assert high < 3
    assert [line.get_ydata()[0] for line in axis.get_lines() if line.get_marker() == look.marker] == [1.1, high]
    assert [text.get_text() for text in axis.texts] == ["9"]


def test_a_curve_that_ends_far_behind_leaves_the_axis_and_a_single_mark_stays_in_it():
    _, (axis,) = canvas.titled(["one"], 2)
    curves = [np.array([[2.0, 1.5, 1.1, end]]) for end in (1.0, 1.1, 1.2, 40.0)]
    convergence._limit(axis, curves, pd.Series([6.0]), part=8)
    low, high = axis.get_ylim()
    assert low < 1
    assert 6 < high < 9


def test_ticks_of_distances_have_room():
    axis = Figure(figsize=(canvas.WIDTH, 2)).subplots()
    axis.set(xlim=(0, np.log1p(1500)), xscale="linear")
    axis.set_xscale("symlog", linthresh=0.01, linscale=0.5)
    profiles._ticks(axis.xaxis, np.log1p(1500), np.log1p)
    places = axis.get_xaxis_transform().transform([(tick, 0) for tick in axis.get_xticks()])[:, 0]
    assert min(np.diff(places)) / Figure(figsize=(canvas.WIDTH, 2)).dpi > 0.17  # inches; a digit has 0.06


@pytest.mark.parametrize(("last", "least"), [(9, 3), (20, 2), (90, 3)])
def test_seconds_within_two_decades_have_plain_numbers(last, least):
    figure = Figure()
    within, beyond = figure.subplots(2)
    for axis, end in ((within, last), (beyond, 900)):
        axis.plot([2, end], [0, 1])
        canvas.log_x(axis)
    FigureCanvasAgg(figure).draw()
    low, high = within.get_xlim()
    labels = [text.get_text() for text in within.get_xticklabels() if low <= text.get_position()[0] <= high]
    assert within.xaxis.get_minorticklocs().size == 0 < beyond.xaxis.get_minorticklocs().size
    assert len(labels) >= least
    assert [f"{float(label):g}" for label in labels] == labels


def test_a_setting_without_a_finished_fit_is_said_and_not_in_the_legend(tmp_path):
    def on_banana(_, dataset, *__):
        return ("done", "") if dataset == "banana" else ("failed", "no memory")

    view = View(build_probed(tmp_path / "s", on_banana))
    figure = draw(view, "num_inducing")
    reasons = [[text.get_text() for text in axis.texts] for axis in figure.axes]
    assert reasons[view.datasets.index("boston")] == ["no finished fit"]
    done = {*view.done["method"]}
    curves = score_against_setting.curves(view, "num_inducing")
    assert {*curves["curve"]} & {*labels(figure)} == {*curves.loc[curves["method"].isin(done), "curve"]}


@pytest.mark.parametrize("status", ["done", "failed"])
def test_the_dashed_line_is_in_the_legend_where_it_is_drawn(tmp_path, status):
    def first(method, *_):
        return ("done", "") if status == "done" or method != "svgp" else ("failed", "no memory")

    view = View(build(tmp_path / "s", ["svgp", "constant"], ["boston"], 2, first))
    for name in ("loglik_by_model", "intervals"):
        assert ("our SVGP" in labels(draw(view, name))) == (status == "done")


def test_what_committed_records_cannot_show_is_said():
    assert "committed records" in canvas.NO_CHAINS


def test_a_long_reason_ends_at_a_word():
    fits = [SimpleNamespace(split=0, status="skipped", reason="8611 training rows, at most 5000")]
    assert describe_statuses(fits, 30) == "skipped: 8611 training rows, …"
    assert describe_statuses(fits, 64) == "skipped: 8611 training rows, at most 5000"


def test_data_sets_of_error_over_time_stand_in_lines_of_four(tmp_path):
    """In a single line thirteen panels left no room for their numbers. A data set has one time axis."""
    names = ["boston", "yacht", "energy", "concrete", "banana"]
    axes = np.reshape(draw(View(build(tmp_path / "s", ["svgp", "constant"], names, 2)), "error_over_time").axes, (4, 4))
    assert [axis.get_title("left") for axis in axes[[0, 2]].flat] == [*names, "", "", ""]
    assert [axis.get_ylabel() for axis in axes[:, 0]] == ["test RMSE", "test MNLL", "test error rate", "test MNLL"]
    assert [axis.axison for axis in axes[2:].flat] == [True, False, False, False] * 2
    assert axes[0, 1].get_xlim() == axes[1, 1].get_xlim()


def test_cells_that_no_run_makes_are_not_counted_as_incomplete(tmp_path):
    ends = {"constant": ("skipped", "no"), "svgp": ("failed", "no")}
    folder = build(
        tmp_path / "s", ["constant", "svgp", "dsvi"], ["boston"], 2, lambda name, *_: ends.get(name, ("done", ""))
    )
    assert [draw(View(folder), name).axes[0].get_title("right") for name in ("intervals", "pit")] == [
        "1 incomplete"
    ] * 2


def test_long_names_of_models_stand_within_the_figure(tmp_path):
    """Where names are as long as a panel is high Matplotlib gave the layout up, and they were cut off."""
    folder = build(tmp_path / "s", ["svgp", "dsvi"], ["boston"], 2)
    scores = pd.read_parquet(folder / "scores.parquet")
    scores.assign(label="a name that is as long as the panels are high").to_parquet(folder / "scores.parquet")
    figure = draw(View(folder), "error_by_model")
    FigureCanvasAgg(figure).draw()
    assert min(label.get_window_extent().y0 for label in figure.axes[0].get_xticklabels()) > 0
