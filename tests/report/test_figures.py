import numpy as np
import pandas as pd
import pytest
from figure_texts import texts
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from synthetic_samplers import build_samplers
from synthetic_study import METHODS, all_done, build, build_probed, change_scores

from gpbench.errors import UserError
from gpbench.report.figures import by_model, calibration, canvas, convergence, draw, functions, profiles, write_figure
from gpbench.report.figures.canvas import looks
from gpbench.report.figures.published import QUOTED
from gpbench.report.registry import FIGURES
from gpbench.report.scorecard.one_run import scorecard
from gpbench.report.view import View
from gpbench.study.fitting.outcome import EVAL_ROWS

PROBED = ("features", "bounds", "layers", "workers", "num_inducing", "depth", "p_values", "error_by_inducing")
"""Figures that need the variants and probes of the study `probed`."""


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A study of which no fit is finished."""
    folder = tmp_path_factory.mktemp("failed") / "s"
    return View(build(folder, ["svgp", "constant"], ["boston"], 1, lambda *_: ("failed", "no memory")))


@pytest.fixture(scope="module")
def failed_probed(tmp_path_factory):
    """The study `probed`, of which no fit is finished."""
    return View(build_probed(tmp_path_factory.mktemp("failed_probed") / "s", lambda *_: ("failed", "no memory")))


@pytest.fixture(scope="module", params=["banana", "boston"])
def single(request, tmp_path_factory):
    """One method, one data set, one split."""
    return View(build(tmp_path_factory.mktemp("single") / "s", ["svgp"], [request.param], 1))


SLOWLY = ("cost", "critical_difference", "boxes")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_written(small_view, probed_view, tmp_path, name):
    """As PNG: most of the time of a PDF goes into its fonts."""
    (path,) = write_figure(probed_view if name in PROBED else small_view, name, tmp_path, kinds=("png",))
    assert path == tmp_path / f"{name}.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"


@pytest.mark.parametrize("name", [*("pit", "layers"), *(pytest.param(n, marks=pytest.mark.slow) for n in SLOWLY)])
def test_files_are_the_same_byte_for_byte_and_have_no_date(small, probed, tmp_path, name):
    """Stairs, line collections; slowly lines and bars, annotations, boxes; `test_pictures` has maps."""
    study = probed if name in PROBED else small
    first, second = (write_figure(View(study), name, tmp_path / folder) for folder in "ab")
    assert [path.name for path in first] == [f"{name}.pdf", f"{name}.png"]
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()
    assert first[0].read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in first[0].read_bytes()


@pytest.mark.parametrize("name", ["convergence", "log_density", "calibration", "pit", "cost"])
def test_every_data_set_and_method_is_named(view, name):
    shown = texts(draw(view, name)).replace("\n", " ")
    assert "boston" in shown
    for label in (view.labels[method] for method in METHODS):
        assert label in shown


def test_absent_fits_are_named_in_the_figure(view):
    shown = texts(draw(view, "log_density"))
    assert "skipped: regression only" in shown
    assert "4/5" in shown


def test_critical_difference_states_whether_the_data_sets_suffice(view):
    shown = texts(draw(view, "critical_difference")).replace("\n", " ")
    assert "5 cannot suffice, whatever the scores" in shown
    assert "0 of 15 pairs differ significantly. With 6 methods" in shown
    assert "Left out as incomplete: boston, yacht (7/8); DSVI (2 layers), Gradient boosting (6/7)" in shown


@pytest.mark.parametrize("name", FIGURES)
def test_a_study_without_a_finished_fit_has_a_figure_that_says_so(failed, name):
    assert any(word in texts(draw(failed, name)) for word in ("No ", "missing"))


@pytest.mark.parametrize("name", FIGURES)
def test_one_method_one_data_set_one_split(single, name):
    assert draw(single, name).axes


def test_methods_differ_in_more_than_colour(view):
    found = looks(view).values()
    assert len({look.color for look in found}) == len(METHODS)
    assert len({look.marker for look in found}) == len(METHODS)


def test_a_figure_says_of_which_run_and_budget_it_is(view):
    """Smoke and paper write files of the same name."""
    said = draw(view, "cost").legends[-1].get_title().get_text()
    assert said == draw(view, "pit").get_supxlabel()
    assert said == f"{view.study['name']}: protocol {view.study['protocol']}, budget {view.study['budget']}"


LONG = {"svgp": "arc_cosine, var_resampled, 2 hidden", "dsvi": "arc_cosine, prior_fixed, 2 hidden"}


def relabelled(folder):
    """A study whose methods have labels of more than one line."""
    change_scores(folder, label=lambda s: s["method"].map(LONG).fillna("arc_cosine of all kinds, " + s["method"]))
    return View(folder)


def overlapping(parts):
    """Pairs of texts that cover each other."""
    boxes = [part.get_window_extent() for part in parts if part.get_text()]
    return [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def test_long_labels_stand_apart_in_the_critical_difference_diagram(tmp_path):
    figure = draw(relabelled(build(tmp_path / "s", status=all_done)), "critical_difference")
    figure.canvas.draw()
    assert [overlapping(axis.texts) for axis in figure.axes] == [[], [], []]


@pytest.mark.parametrize("name", ["log_density", "boxes", "pareto"])
def test_long_labels_leave_room_for_panels(tmp_path, name):
    figure = draw(relabelled(build(tmp_path / "s", status=all_done)), name)
    figure.canvas.draw()
    assert min(axis.bbox.width for axis in figure.axes) > 0.23 * figure.bbox.width


def test_titles_of_narrow_panels_stand_apart(tmp_path):
    figure = draw(relabelled(build_samplers(tmp_path / "s", splits=1)), "ranks")
    figure.canvas.draw()
    assert overlapping([axis._left_title for axis in figure.axes]) == []


def test_an_unknown_figure_names_the_nearest(view, tmp_path):
    with pytest.raises(UserError, match="unknown figure 'costs'; did you mean 'cost'"):
        write_figure(view, "costs", tmp_path)


@pytest.mark.parametrize("name", PROBED)
def test_a_probed_study_without_a_finished_fit_says_so(failed_probed, name):
    assert "No " in texts(draw(failed_probed, name))


@pytest.mark.parametrize("name", ["error_over_time", "features", "bounds", "workers"])
def test_unfinished_cells_leave_gaps_that_are_named(tmp_path, name):
    lost = ("svgp", "dgp_rff")
    folder = build_probed(tmp_path / "s", lambda method, *_: ("failed", "no") if method in lost else ("done", ""))
    shown = texts(draw(View(folder), name))
    remarks = {"features": "1 of 4 not complete", "workers": "1 of 3 not complete", "bounds": "no finished fit"}
    assert remarks.get(name, "boston") in shown


def test_error_over_time_has_a_column_for_each_data_set(probed_view):
    axes = draw(probed_view, "error_over_time").axes
    assert [axis.get_title("left") for axis in axes[:2]] == ["boston", "banana"]
    assert [axis.get_ylabel() for axis in axes] == ["test RMSE", "test error rate", "test MNLL", ""]


def test_feature_lines_hold_the_means_over_splits(probed_view):
    axis = draw(probed_view, "features").axes[0]
    fixed = axis.containers[0].lines[0]
    means = probed_view.per_split("rmse", "boston")[["svgp", "dsvi"]].mean()
    np.testing.assert_allclose(fixed.get_ydata(orig=False), means, rtol=1e-12)
    np.testing.assert_allclose(fixed.get_xdata(orig=False), [10, 100], rtol=0.03)


def test_bounds_are_compared_with_the_order_of_the_scores(probed_view):
    """Bounds of this study follow the quality that its scores are drawn from, but for close neighbours."""
    figure = draw(probed_view, "bounds")
    remark = figure.axes[1].get_title("right")
    assert float(remark.rsplit(" ", 1)[1]) > 0.6
    assert texts(figure).count("no bound") == 2, "the constant method, on both data sets"
    left, right = figure.axes[:2]
    drawn = [np.quantile(box.get_ydata(), [0, 1]) for box in left.lines if len(box.get_ydata()) == 5]
    found = probed_view.probe("bounds").query("dataset == 'boston'").groupby("method")["bound"]
    np.testing.assert_allclose(drawn, found.quantile([0.25, 0.75]).unstack().loc[[*METHODS][:-1]])
    means = [line.get_ydata()[0] for line in right.lines if line.get_linestyle() == "-"]
    np.testing.assert_allclose(means, probed_view.per_split("mnll", "boston").mean())


def test_layers_show_both_signs_of_a_sampler_and_one_of_a_variational_method(probed_view):
    axes = np.reshape(draw(probed_view, "layers").axes, (2, -1))
    titles = [axis.get_title("left") for axis in axes[0]]
    for method, lines, colours in (("svgp", 50, 1), ("bsgp_2", 100, 2)):
        column = axes[:, titles.index(f"boston\n{probed_view.labels[method]}")]
        for axis in column:
            (drawn,) = [part for part in axis.collections if isinstance(part, LineCollection)]
            assert len(drawn.get_segments()) == lines
            assert len({tuple(colour) for colour in drawn.get_colors()}) == colours
        assert len(column[-1].lines[0].get_xdata()) == 10
        (hidden,) = [part for part in column[0].collections if isinstance(part, LineCollection)]
        looks = [functions.RISING if line[-1, 1] > line[0, 1] else functions.FALLING for line in hidden.get_segments()]
        assert [to_hex(colour) for colour in hidden.get_colors()] == [look.color.lower() for look in looks]
    assert len(titles) == 2, "the other methods have no layers"


def test_a_method_that_failed_keeps_its_column_of_layers(tmp_path):
    folder = build_probed(tmp_path / "s", lambda method, *_: ("failed", "no") if method == "svgp" else ("done", ""))
    assert "no finished fit" in texts(draw(View(folder), "layers"))


def test_one_process_is_a_dashed_line_beside_the_schemes(probed_view):
    _, error, staleness, bottom, *_ = draw(probed_view, "workers").axes
    alone = probed_view.per_split("rmse", "boston").mean()
    dashed = [line.get_ydata()[0] for line in error.lines if line.get_color() == "#555555"]
    assert dashed == [alone[method] for method in METHODS if method not in ("dgp_rff", "exact_gp", "boosting")]
    assert list(staleness.containers[0].lines[0].get_ydata(orig=False)) == [0.9, 8.5]
    assert [label.get_text() for label in bottom.get_xticklabels()] == ["2", "10"]


PRINTED = {"source": "someone2020", "item": "Table 1", "dataset": "boston", "metric_printed": "test_loglik"}
PRINTED |= {"protocol": "common", "scale": "original", "spread": 0.2, "spread_kind": "population sd", "splits": 5}
PRINTED |= {"data_sets": 1}
PRINTED |= {"ours_metric": "mnll", "study": "", "factor": -1, "setting": "", "note": ""}


@pytest.fixture
def compared(tmp_path):
    """Three methods of two families, the last with one lengthscale; numbers for one of them and for other work."""
    folder = build(tmp_path / "s", ["svgp", "dsvi", "bsgp_1"], ["boston", "yacht"], settings={"bsgp_1": {"ard": False}})
    change_scores(folder, family=lambda scores: scores["method"].replace("bsgp_1", "dsvi"))
    rows = [
        PRINTED | {"method_printed": "SGP", "value": -2.5, "ours_method": "sgp|svgp", "reason": ""},
        PRINTED | {"method_printed": "PBP", "value": -2.6, "ours_method": "", "reason": QUOTED},
        PRINTED | {"method_printed": "AEP-3", "value": -2.7, "ours_method": "", "reason": "setting not in the study"},
    ]
    scorecard(View(folder), pd.DataFrame(rows)).to_csv(folder / "scorecard.csv", index=False)
    return View(folder)


def test_models_stand_beside_published_numbers_and_quoted_work(compared):
    boston, yacht = draw(compared, "loglik_by_model").axes
    means = -compared.per_split("mnll", "boston").mean()
    heights = [bar.lines[0].get_ydata()[0] for bar in boston.containers]
    assert heights == [*means, -2.5, -2.6], "ours in the study's order, theirs, and the quoted; not what has no place"
    assert [tick.get_text() for tick in boston.get_xticklabels()] == [*compared.labels.values(), "PBP"]
    assert len(yacht.containers) == 3
    (dashed,) = [line for line in boston.get_lines() if line.get_linestyle() == "--"]
    assert dashed.get_ydata()[0] == means["svgp"], "the first method's"


def test_bars_are_population_standard_deviations(compared):
    boston = draw(compared, "loglik_by_model").axes[0]
    reach = [np.ptp(bar.lines[2][0].get_segments()[0][:, 1]) / 2 for bar in boston.containers]
    ours = compared.per_split("mnll", "boston").std(ddof=0)
    np.testing.assert_allclose(reach, [*ours, 0.2, 0.2], rtol=1e-9)


def test_a_family_shares_its_colour_and_isotropic_kernels_are_half_filled(compared):
    bars = [bar.lines[0] for bar in draw(compared, "error_by_model").axes[0].containers]
    assert [bar.get_color() for bar in bars] == ["#000000", "#C00000", "#C00000"]
    assert [bar.get_marker() for bar in bars] == ["o", "^", "^"]
    assert [bar.get_fillstyle() for bar in bars] == ["full", "full", "left"]
    assert [bar.get_ydata()[0] for bar in bars] == compared.per_split("rmse", "boston").mean().tolist()


def test_a_number_that_one_paper_quotes_is_a_line_in_the_panel_of_its_metric_and_data_set(compared):
    axes = draw(compared, "error_over_time").axes
    lines = [[line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == ":"] for axis in axes]
    assert lines == [[], [], [2.6], []], "RMSE of boston and yacht, then MNLL"
    compared.card = pd.concat([compared.card, compared.card])
    axes = draw(compared, "error_over_time").axes
    assert not any(line.get_linestyle() == ":" for axis in axes for line in axis.lines), "of two it is neither"


def test_published_means_stand_above_ours_with_their_spreads(compared):
    (axis,) = draw(compared, "scorecard").axes
    scores = compared.per_split("mnll", "boston")["svgp"]
    published, ours = axis.containers
    assert [bar.lines[0].get_markerfacecolor() == "white" for bar in (published, ours)] == [True, False]
    marks = [bar.lines[0].get_xydata()[0] for bar in (published, ours)]
    np.testing.assert_allclose(marks, [(2.5, -0.15), (scores.mean(), 0.15)])
    reach = [np.ptp(bar.lines[2][0].get_segments()[0][:, 0]) / 2 for bar in (published, ours)]
    np.testing.assert_allclose(reach, [0.2 * np.sqrt(5 / 4), scores.std(ddof=1)])


def test_a_published_number_is_marked_where_the_curves_end(compared):
    right = draw(compared, "convergence").axes[1]
    (mark,) = [line for line in right.get_lines() if line.get_marker() == "_"]
    assert mark.get_ydata() == [2.5]
    assert right.get_ylim()[0] <= 2.5 <= right.get_ylim()[1]


def test_a_split_that_has_ended_counts_with_its_last_score(tmp_path):
    """The curve ended with the first split, so that its last mean was of no split's end. A fit without a trace is one
    mark at its seconds, with a bar from the least to the largest score."""
    folder = build(tmp_path / "s", ["svgp", "exact_gp"], ["boston"], 3, all_done)
    traces = pd.read_parquet(folder / "traces.parquet")
    longer = traces["fit_id"] == traces["fit_id"].iloc[-1]
    traces.loc[longer, ["seconds", "step"]] *= 10
    traces.to_parquet(folder / "traces.parquet")
    last = traces.sort_values("step").groupby("fit_id").last()
    view = View(folder)
    axes = draw(view, "convergence").axes
    for axis, clock in zip(axes, ("seconds", "step"), strict=True):
        curve = axis.lines[0]
        assert curve.get_xdata()[-1] == pytest.approx(last[clock].max())
        assert curve.get_ydata()[-1] == pytest.approx(last["mnll"].mean())
    (mark,) = axes[0].containers
    fits = view.done.query("method == 'exact_gp'")
    assert mark.lines[0].get_xydata()[0] == pytest.approx(fits[["seconds_train", "mnll"]].mean().tolist())
    assert mark.lines[2][0].get_segments()[0][:, 1] == pytest.approx([fits["mnll"].min(), fits["mnll"].max()])


def test_captions_say_how_many_test_rows_are_looked_at_during_training():
    for name in ("convergence", "error_over_time", "error_at_equal_seconds"):
        assert f"first {EVAL_ROWS} test rows" in FIGURES[name].caption


def test_reliability_takes_every_class_into_account(tmp_path):
    """0.1, 0.3 and 0.6 are stated 1,000 times each, and 0.2, 0.2 and 0.6 of them come true; nine points are few."""
    folder = build(tmp_path / "s", ["svgp"], ["digits"], 1)
    stated = np.concatenate([np.tile([0.1, 0.3, 0.6], (1000, 1)), np.tile([0.9, 0.05, 0.05], (9, 1))])
    y = np.repeat([0, 1, 2, 0], [200, 200, 600, 9])
    points = pd.DataFrame(stated, columns=["p0", "p1", "p2"]).assign(
        fit_id="svgp-digits-0", y=y, modal=2, confidence=0.6
    )
    points.assign(p3=np.nan).to_parquet(folder / "points.parquet")
    (axis,) = draw(View(folder), "reliability").axes
    curve = axis.get_lines()[0]
    np.testing.assert_allclose(curve.get_xydata(), [(0.05, 0), (0.1, 0.2), (0.3, 0.2), (0.6, 0.6)], rtol=1e-9)


def test_models_stand_beside_those_of_their_depth_and_those_without(probed_view):
    """Of a study that sets two layers of two methods; bars are two standard deviations of the printed metric."""
    figure = draw(probed_view, "errors_by_depth")
    assert [axis.get_title(loc="left") for axis in figure.axes] == [f"{d}, 2 layers" for d in probed_view.datasets]
    assert len(figure.axes[0].get_xticks()) == len(probed_view.methods)
    scores, bars = probed_view.per_split("mnll", "boston"), figure.axes[0].containers
    shown = scores.iloc[:, [int(bar.lines[0].get_xdata()[0]) for bar in bars]]
    np.testing.assert_allclose([bar.lines[0].get_ydata()[0] for bar in bars], shown.mean())
    reach = [np.ptp(bar.lines[2][0].get_segments()[0][:, 1]) / 4 for bar in bars]
    np.testing.assert_allclose(reach, shown.std(ddof=1))


def test_a_mean_that_leaves_the_axis_is_an_arrow_with_its_number(view):
    figure, (axis,) = canvas.titled(["one"], 2)
    cells = view.cells("rmse").query("dataset == 'boston'").set_index("method").assign(sd=0.05)
    cells = cells.assign(mean=[0.3, 0.2, 7.25, 0.2, 0.3, 0.25, 0.3, 0.3])
    by_model._draw_models(axis, view, cells)
    assert axis.get_ylim()[1] < 0.5
    assert [item.get_text() for item in axis.texts if item.get_text()] == ["7.2"]
    assert sum(item.arrow_patch is not None for item in axis.texts if hasattr(item, "arrow_patch")) == 1


def test_a_pit_band_is_as_wide_as_rows_that_are_tested_again_make_it():
    bins = {"bin": range(20), "count": 50, "predicted": 0.0, "happened": 0.0}
    one = pd.DataFrame(bins).assign(fit_id="a", split=0)
    splits, chains = (pd.concat([one, one.assign(fit_id="b", split=split)]) for split in (1, 0))
    alone, half, same = (calibration._bars(*of) for of in ((splits, 0.0), (splits, 0.5), (chains, 0.5)))
    for wider, factor in ((half, 1.5), (same, 2.0)):
        ratio = (wider["upper"] - wider["expected"]) / (alone["upper"] - alone["expected"])
        np.testing.assert_allclose(ratio, np.sqrt(factor))


def test_an_axis_of_time_shows_the_last_scores_of_all_fits_and_not_the_first():
    _, (axis,) = canvas.titled(["one"], 2)
    convergence._limit(axis, [np.array([[90.0, 9, 2, 1], [90, 9, 2, 5]])], pd.Series([0.5]))
    low, high = axis.get_ylim()
    assert low < 0.5
    assert 5 < high < 9


def test_a_cell_that_is_not_complete_is_hollow():
    _, axes = canvas.titled(["a", "b"], 2)
    cell = pd.Series({"mean": 1.0, "sd": 0.1, "mean_seconds": 2.0, "sd_seconds": 0.1})
    for axis, complete in zip(axes, (True, False), strict=True):
        profiles._mark(axis, pd.concat([cell, pd.Series({"complete": complete})]), canvas.looks_of({"m": "m"})["m"])
    filled, hollow = (axis.get_lines()[0].get_markerfacecolor() for axis in axes)
    assert (filled == "white", hollow) == (False, "white")


def test_intervals_that_hold_every_target_cover_too_much(tmp_path):
    """All transforms are 1/2: any interval covers all, and one of ten bars has ten times what it should."""
    folder = build(tmp_path / "s", ["svgp"], ["boston"], 1)
    pd.read_parquet(folder / "points.parquet").assign(pit=0.5).to_parquet(folder / "points.parquet")
    nominal, beyond = draw(View(folder), "calibration").axes[0].get_lines()[0].get_data()
    np.testing.assert_allclose(beyond, 1 - nominal)
    axis = draw(View(folder), "pit").axes[0]
    np.testing.assert_allclose(axis.patches[0].get_data().values, [*[0] * 5, -0.85, *[0] * 4])
    np.testing.assert_allclose(axis.collections[0].get_segments()[0][:, 1], -0.085)
