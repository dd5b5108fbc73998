"""Figures and tables of solvers, of condition numbers, of chains side by side, and of errors at equal seconds."""

import numpy as np
import pandas as pd
import pytest
from figure_texts import texts
from matplotlib.figure import Figure
from synthetic_samplers import build_samplers
from synthetic_study import all_done, build, change_scores, change_study

from gpbench.report.figures import draw, solvers, write_figure
from gpbench.report.tables import preconditioners
from gpbench.report.view import View

METHODS = {"svgp": "none", "bsgp_1": "nystrom", "bsgp_2": "ski"}
"""Names that the synthetic study knows -> the preconditioner that each stands for."""
FIGURES = ("preconditioners", "preconditioner_seconds", "condition_numbers", "by_condition")
CAP = 100


def rows(preconditioner):
    """Systems at lengthscales 1 and 10: `none` takes 80 iterations and is stopped at the second, `nystrom` takes a
    quarter and a tenth, `ski` is stopped at both."""
    taken = {"none": [80, CAP], "nystrom": [20, CAP // 10], "ski": [CAP, CAP]}[preconditioner]
    inner = {"ski": [50, 50]}.get(preconditioner, [0, 0])
    return pd.DataFrame(
        {
            "step": [1, 2],
            "seconds": [1.0, 2.0],
            "lengthscale": [1.0, 10.0],
            "noise": [0.01, 0.01],
            "iterations": taken,
            "inner": inner,
            "stopped": [int(number == CAP) for number in taken],
            "setup_seconds": [0.1, 0.1],
            "solve_seconds": [0.9, 1.9],
            "kappa": [1e3, 1e5],
            "error": [1e-8, 1e-3],
        }
    )


def build_systems(folder, methods=tuple(METHODS), status=all_done):
    """Write a study of kind `solve`."""
    build(folder, methods, ["boston"], 1, status)
    change_scores(folder, kind="solve")
    done = pd.read_parquet(folder / "scores.parquet").query("status == 'done'")
    parts = [rows(METHODS[row.method]).assign(fit_id=row.fit_id) for row in done.itertuples()]
    if parts:
        pd.concat(parts).to_parquet(folder / "systems.parquet")
    change_study(folder, kind="solve", settings={method: {"preconditioner": METHODS[method]} for method in methods})
    return folder


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    return View(build_systems(tmp_path_factory.mktemp("systems") / "s"))


def test_ratios_to_conjugate_gradients_by_hand(view):
    found = preconditioners.relative_to_cg(view).set_index(["method", "lengthscale"]).sort_index()
    assert found["iterations"].to_dict() == {
        **{("svgp", 1.0): 80, ("svgp", 10.0): 100, ("bsgp_1", 1.0): 20, ("bsgp_1", 10.0): 10},
        **{("bsgp_2", 1.0): 150, ("bsgp_2", 10.0): 150},  # inner ones too
    }
    ratio = found["relative_iterations"]
    assert ratio["bsgp_1"].tolist() == [0.25, 0.1]
    assert ratio["bsgp_2"].tolist() == [1.875, 1.0], "both were stopped at the second"
    assert found["seconds"].loc["svgp"].tolist() == [1.0, 2.0], "with those of the preconditioner"
    assert (found["relative_seconds"] == 1).all()


def test_solvers_without_inner_iterations_need_no_column_of_them(view, tmp_path):
    build_systems(tmp_path / "s")
    path = tmp_path / "s" / "systems.parquet"
    pd.read_parquet(path).drop(columns="inner").to_parquet(path)
    found = preconditioners.relative_to_cg(View(tmp_path / "s")).set_index(["method", "lengthscale"])
    assert found.loc[("bsgp_2", 1.0), "iterations"] == CAP


def test_the_table_counts_what_was_stopped_and_marks_lower_bounds(view):
    table = preconditioners.preconditioners(view)
    assert table.shown["boston"].tolist() == [
        "≥1.0 (1.0 to 1.0); 1.0; 1 of 2",
        "≥10 (10 to 10); 1.0; 0 of 2",
        "≥1.0 (1.0 to 1.0); 1.0; 2 of 2",
    ]
    assert table.data["stopped"].tolist() == [1, 0, 2]


@pytest.mark.parametrize(("stopped", "is_marked"), [([1, 1, 0, 0], False), ([0, 0, 1, 0], True)])
def test_a_bound_is_marked_where_half_of_the_long_systems_were_stopped(stopped, is_marked):
    systems = pd.DataFrame({"lengthscale": [1.0, 1.0, 10.0, 20.0], "stopped": 0, "stopped_cg": stopped})
    saved = preconditioners._saved(systems.assign(relative_iterations=0.5, relative_seconds=0.25))
    assert preconditioners._text(saved) == "≥" * is_marked + "2.0 (2.0 to 2.0); 4.0; 0 of 4"


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_the_same_byte_for_byte(view, tmp_path, name):
    first, second = (write_figure(view, name, tmp_path / folder) for folder in "ab")
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("name", FIGURES)
def test_figures_show_the_methods(view, name):
    shown = texts(draw(view, name))
    assert "No " not in shown
    assert view.labels["bsgp_1"] in shown


def test_the_heat_map_shows_logarithms_and_crosses(view):
    axes = draw(view, "preconditioners").axes
    ratios = [axis.collections[0].get_array().data.ravel() for axis in axes[:3]]
    np.testing.assert_allclose(ratios[0], np.log10([80, 100]))
    np.testing.assert_allclose(ratios[1], np.log10([0.25, 0.1]))
    assert [len(axis.lines) for axis in axes[:3]] == [1, 0, 2]
    np.testing.assert_allclose(axes[0].lines[0].get_xydata(), [(1, -2)])  # lengthscale 10, noise 0.01
    red, _, blue, _ = axes[1].collections[0].get_cmap()(0.0)
    assert blue > red, "fewer iterations are blue"


def test_a_place_of_the_heat_map_is_crossed_out_where_all_draws_were_stopped():
    rows = pd.DataFrame({"noise": 0.1, "lengthscale": [1.0, 1.0, 10.0, 10.0], "stopped": [0, 1, 1, 1], "taken": 5.0})
    axis = Figure().subplots()
    solvers._panel(axis, rows, "taken")
    assert [line.get_xdata().tolist() for line in axis.lines] == [[1.0]]


def test_a_curve_counts_systems_up_to_a_condition_number_and_stopped_ones_are_hollow(view):
    curve = draw(view, "condition_numbers").axes[0].lines[0]
    np.testing.assert_allclose(curve.get_xydata(), [(1e3, 0.5), (1e5, 1.0)])
    iterations, error = draw(view, "by_condition").axes
    marks = [(line.get_xydata().tolist(), line.get_markerfacecolor() == "none") for line in iterations.lines]
    assert marks[:2] == [([[1e3, 80]], False), ([[1e5, CAP]], True)]
    assert marks[5] == ([[1e3, 150], [1e5, 150]], True), "inner ones too"
    np.testing.assert_allclose(error.lines[0].get_xydata(), [(1e3, 1e-8)])


@pytest.mark.parametrize("name", FIGURES)
def test_without_conjugate_gradients_or_a_finished_fit_there_is_a_reason(tmp_path, name):
    failed = View(build_systems(tmp_path / "a", status=lambda *_: ("failed", "no memory")))
    assert "No systems" in texts(draw(failed, name))
    if name.startswith("preconditioner"):
        alone = View(build_systems(tmp_path / "b", ["bsgp_1"]))
        assert "No systems" in texts(draw(alone, name))


def test_a_preconditioner_that_failed_leaves_a_panel_with_its_status(tmp_path):
    folder = build_systems(tmp_path / "s", status=lambda m, *_: ("failed", "no") if m == "bsgp_2" else ("done", ""))
    assert "failed" in texts(draw(View(folder), "preconditioners"))
    assert preconditioners.preconditioners(View(folder)).shown["boston"].tolist()[2] == "-"


def test_running_moments_have_three_lines_a_chain(tmp_path):
    view = View(build_samplers(tmp_path / "s", ("svgp", "bsgp_1"), ("boston",), 1))
    axes = draw(view, "running_moments").axes
    assert [axis.get_title("left") for axis in axes] == ["log lengthscale 1", "log variance"]
    assert len(axes[0].lines) == 2 * 4 * 3
    of_chain = view.probe("prefixes").query("method == 'svgp' and replica == 0 and quantity == 'log lengthscale 1'")
    mean, sd = of_chain["mean"], np.sqrt(of_chain["variance"])
    for line, heights in zip(axes[0].lines, (mean, mean - 2 * sd, mean + 2 * sd), strict=False):
        np.testing.assert_allclose(line.get_ydata(), heights)


def test_a_method_that_has_ended_goes_on_to_the_end_of_the_others(tmp_path):
    folder = build(tmp_path / "s", ["svgp", "dsvi"], ["boston"], 2, all_done)
    traces = pd.read_parquet(folder / "traces.parquet")
    traces.assign(rmse=np.exp(traces["mnll"])).to_parquet(folder / "traces.parquet")
    axis = draw(View(folder), "error_at_equal_seconds").axes[0]
    dotted = [line for line in axis.lines if line.get_linestyle() == ":"]
    assert len(dotted) == 2
    assert len({line.get_xdata()[-1] for line in dotted}) == 1
    ends = np.exp(traces.dropna(subset="mnll").sort_values("step").groupby("fit_id")["mnll"].last())
    expected = ends.groupby(ends.index.str.split("-").str[0]).mean()
    np.testing.assert_allclose(
        [line.get_ydata() for line in dotted], [[expected[name]] * 2 for name in ("svgp", "dsvi")]
    )
