"""Figures, tests and published numbers of rossi2021."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats
from synthetic_study import all_done, build

from gpbench import config
from gpbench.report.figures import draw, intervals
from gpbench.report.figures.intervals import half_width
from gpbench.report.figures.score_against_setting import curves
from gpbench.report.page import page
from gpbench.report.registry import TABLES
from gpbench.report.scorecard.one_run import scorecard
from gpbench.report.scorecard.published import read_published
from gpbench.report.tables import objectives
from gpbench.report.tables.objectives import p_values
from gpbench.report.view import View
from gpbench.study.planning.variants import expand

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "svgp": {"num_inducing": 10},
    "dsvi": {"num_inducing": 100},
    "bsgp_1": {"objective": "fitc", "layers": 1},
    "bsgp_2": {"objective": "vfe", "layers": 1},
}
LABELS = {"svgp": "SVGP 10", "dsvi": "SVGP 100", "bsgp_1": "FITC 1", "bsgp_2": "VFE 1"}
ROW = {"source": "rossi2021", "item": "Table 5", "metric_printed": "test_mnll", "protocol": "common", "note": ""}
ROW |= {"scale": "original", "spread": 0.1, "spread_kind": "population sd", "splits": 8, "data_sets": 1}
ROW |= {"setting": "", "reason": ""}
ROW |= {"ours_metric": "mnll", "factor": 1, "study": ""}


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    """Four methods on two data sets and eight splits, published numbers for all on boston, one far off."""
    folder = build(
        tmp_path_factory.mktemp("rossi") / "s", list(LABELS), ["boston", "yacht"], 8, all_done,
        settings=SETTINGS,
    )  # fmt: skip
    scores = pd.read_parquet(folder / "scores.parquet")
    rng = np.random.default_rng(1)
    scores["mnll"] = scores["split"] + 0.05 * (scores["method"] == "bsgp_2") + 0.01 * rng.normal(size=len(scores))
    scores["seconds_predict"] = scores["method"].map({"svgp": 0.1, "dsvi": 1.0, "bsgp_1": 10.0, "bsgp_2": 10.0})
    scores.assign(label=scores["method"].map(LABELS)).to_parquet(folder / "scores.parquet")
    rows = [
        ROW | {"dataset": "boston", "method_printed": name, "ours_method": name, "value": value}
        for name, value in zip(LABELS, (3.0, 2.0, 1.0, 90.0), strict=True)
    ]
    scorecard(View(folder), pd.DataFrame(rows)).to_csv(folder / "scorecard.csv", index=False)
    return View(folder)


def shown(axis):
    return [text.get_text() for text in axis.texts]


def test_half_width_is_that_of_the_t_interval():
    values = np.array([1.0, 2.5, 2.0, 4.0])
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert half_width(values.std(ddof=1), 4) == pytest.approx((expected.high - expected.low) / 2, rel=1e-12)
    assert half_width(np.nan, 1) == 0


def test_intervals_hold_our_means_and_the_published_ones_below(view):
    boston = draw(view, "intervals").axes[0]
    marks = [bar.lines[0].get_xydata()[0] for bar in boston.containers]
    means = view.per_split("mnll", "boston").mean()
    expected = [(means["svgp"], 0), (3, 0.3), (means["dsvi"], 1), (2, 1.3), (means["bsgp_1"], 2), (1, 2.3)]
    np.testing.assert_allclose(marks, [*expected, (means["bsgp_2"], 3)], rtol=1e-12)
    assert shown(boston) == ["(90)"], "beyond the axis"
    (dashed,) = [line for line in boston.get_lines() if line.get_linestyle() == "--"]
    assert dashed.get_xdata()[0] == means["svgp"]
    bars = [bar.lines[2][0].get_segments()[0] for bar in boston.containers[:2]]
    sd = view.per_split("mnll", "boston")["svgp"].std(ddof=1)
    np.testing.assert_allclose(
        [np.ptp(bar[:, 0]) / 2 for bar in bars], [half_width(sd, 8), half_width(0.1 * np.sqrt(8 / 7), 8)], rtol=1e-9
    )


def test_ranks_are_ours_and_where_all_data_sets_have_them_the_published_ones(view):
    *_, ranks = draw(view, "intervals").axes
    ours = sorted(bar.lines[0].get_xdata()[0] for bar in ranks.containers)
    assert sum(ours) == 1 + 2 + 3 + 4
    assert len(ranks.get_lines()) == len(ranks.containers), "yacht has no published numbers"


def test_published_ranks_are_averaged_over_data_sets_and_ours_have_their_intervals(view, monkeypatch):
    ours = [{"method": "dsvi", "mean_rank": 2.0, "lower": 1.5, "upper": 3.75}]
    told = {"datasets": ["boston", "yacht"], "methods": [*LABELS], "ranks": ours}
    monkeypatch.setattr(intervals, "compare", lambda *_: told)
    axis, losses = Figure().subplots(), {"boston": (3.0, 2.0, 1.0, 90.0), "yacht": (1.0, 2.0, 4.0, 3.0)}
    rows = [(name, *pair) for name, values in losses.items() for pair in zip(LABELS, values, strict=True)]
    intervals._draw_ranks(axis, view, pd.DataFrame(rows, columns=["dataset", "ours_method", "published"]))
    theirs = [line.get_xydata()[0] for line in axis.get_lines() if line.get_fillstyle() == "none"]
    np.testing.assert_allclose(theirs, [(2, 0.3), (2, 1.3), (2.5, 2.3), (3.5, 3.3)])
    (bar,) = axis.containers
    assert bar.lines[0].get_xydata()[0].tolist() == [2, 1]
    assert bar.lines[2][0].get_segments()[0].tolist() == [[1.5, 1], [3.75, 1]]


@pytest.mark.parametrize(("name", "sds"), [("num_inducing", 1), ("error_by_inducing", 2)])
def test_bars_are_as_many_standard_deviations_as_the_paper_draws(view, name, sds):
    (curve,) = draw(view, name).axes[0].containers
    reach = [np.ptp(bar[:, 1]) / 2 for bar in curve.lines[2][0].get_segments()]
    np.testing.assert_allclose(reach, sds * view.per_split("mnll", "boston")[["svgp", "dsvi"]].std(ddof=1))


def test_the_page_counts_all_verdicts_and_shows_what_has_a_counterpart(view):
    ours = ROW | {"dataset": "boston", "method_printed": "SVGP", "ours_method": "svgp", "value": 3.0}
    other = ours | {"method_printed": "elsewhere", "ours_method": "", "reason": "a bound"}
    scorecard(view, pd.DataFrame([ours, other])).to_json(view.folder / "scorecard.json", orient="records")
    section = page.Section("scorecard", "Scorecard")
    page._add_scorecard(view, section)
    assert ("not run", "1 published number") in section.facts
    assert len(section.facts) == 2
    ((_, table),) = section.tables
    assert (table.count("<tr>"), "elsewhere" in table) == (1 + 1, False)
    scorecard(view, pd.DataFrame([other])).to_json(view.folder / "scorecard.json", orient="records")
    page._add_scorecard(view, blank := page.Section("scorecard", "Scorecard"))
    assert not blank, "nothing printed is about this study"


def test_curves_are_labels_without_the_value(view):
    found = curves(view, "num_inducing")
    assert list(found.itertuples(index=False, name=None)) == [("svgp", 10, "SVGP"), ("dsvi", 100, "SVGP")]
    assert list(curves(view, "layers")["curve"]) == ["FITC", "VFE"]


def test_a_curve_holds_the_means_and_other_methods_are_level(view):
    boston, _ = draw(view, "num_inducing").axes
    means = view.per_split("mnll", "boston").mean()
    (curve,) = boston.containers
    np.testing.assert_allclose(curve.lines[0].get_xydata(), [(10, means["svgp"]), (100, means["dsvi"])], rtol=1e-12)
    level = [line.get_ydata()[0] for line in boston.get_lines() if len(set(line.get_ydata())) == 1]
    assert level == [means["bsgp_1"], means["bsgp_2"]]
    (printed,) = [line for line in boston.get_lines() if line.get_fillstyle() == "none"]
    np.testing.assert_array_equal(printed.get_xydata(), [(10, 3), (100, 2)])


def test_pairing_finds_what_the_differences_of_folds_hide(view):
    """VFE is 0.05 worse on every fold, and folds differ by 1."""
    found = p_values(view).set_index("dataset")
    assert list(found.index) == ["boston", "yacht"]
    assert (found["n"] == 8).all()
    scores = view.per_split("mnll", "boston")
    expected = stats.wilcoxon(scores["bsgp_1"], scores["bsgp_2"], alternative="less", method="exact").pvalue
    assert found.loc["boston", "p_paired"] == pytest.approx(expected, rel=1e-12)
    assert found["p_paired"].max() == 2**-8
    assert found["p_unpaired"].min() > 0.2
    assert found.loc["boston", "difference"] == pytest.approx(-0.05, abs=0.02)


def test_the_range_of_p_holds_the_middle_ninety_percent(monkeypatch):
    drawn = iter([*np.arange(100) / 100, 0.5])
    monkeypatch.setattr(objectives, "signed_rank_less", lambda _: next(drawn))
    n, difference, *found = objectives._tests(np.array([1.0, 2.0]), np.zeros(2))
    assert (n, difference, found) == (2, 1.5, pytest.approx([0.5, 0.495, 0.0495, 0.9405]))


def test_both_p_values_stand_in_the_figure_and_in_the_table(view):
    found = p_values(view).iloc[0]
    boston, _ = draw(view, "p_values").axes
    drawn = {line.get_marker(): line.get_ydata()[0] for line in boston.get_lines() if line.get_marker() in ("o", "s")}
    assert drawn == {"o": found["p_paired"], "s": found["p_unpaired"]}
    (bar,) = boston.containers[0].lines[2][0].get_segments()
    assert bar[:, 1] == pytest.approx(found[["p_unpaired_low", "p_unpaired_high"]].tolist())
    row = TABLES["p_values"].function(view).shown.iloc[0]
    assert (row["p, paired"], row["smallest possible p"]) == ("0.00391", "0.00391")


def test_every_pair_of_a_depth_is_tested_and_a_single_split_is_not(tmp_path):
    """The last FITC of a depth took the place of others; one split had p = 0.5, and 2^-7 by folds that were all it."""
    kinds = {"svgp": "fitc", "dsvi": "fitc", "bsgp_1": "vfe", "bsgp_2": "vfe"}
    settings = {method: {"objective": kind, "layers": 1} for method, kind in kinds.items()}
    one, two = (View(build(tmp_path / f"s{n}", list(kinds), ["boston"], n, settings=settings)) for n in (1, 2))
    assert p_values(two)[["fitc", "vfe"]].to_numpy().tolist() == [["svgp", "bsgp_1"], ["dsvi", "bsgp_2"]]
    assert p_values(one).filter(like="p_").isna().all(axis=None)
    shown = TABLES["p_values"].function(one).shown
    assert shown.filter(regex="^p|possible|middle").eq("-").all(axis=None)
    assert "on the same two splits" in draw(one, "p_values").get_label()


def test_prediction_cost_is_the_time_of_prediction(view):
    boston, _ = draw(view, "prediction_cost").axes
    assert boston.get_xlabel() == "prediction seconds per fit"
    assert [bar.lines[0].get_xdata()[0] for bar in boston.containers] == pytest.approx([0.1, 1, 10, 10])


def test_published_numbers_have_the_mean_ranks_of_the_paper():
    """Ranks: another transcription of table 5, one decimal."""
    table = read_published(ROOT / "published").query("source == 'rossi2021' and item == 'Table 5'")
    names = table["ours_method"].str.split("|").str[0]
    ranks = table.assign(name=names).pivot(index="dataset", columns="name", values="value").rank(axis=1).mean()
    expected = {"bsgp": [8.2, 4.5, 3.3, 3.0, 2.3], "sghmc_dgp": [12.6, 8.2, 7.3, 5.9, 7.8]}
    expected |= {"ipvi_dgp": [14.3, 11.4, 11.0, 12.0, 11.2]}
    for name, values in expected.items():
        found = [ranks[f"{name}_{layers}"] for layers in range(1, 6)]
        np.testing.assert_allclose(found, values, atol=0.0501)
    assert ranks["svgp"] == pytest.approx(12.9, abs=0.0501)


def test_every_published_number_has_its_place_in_a_study():
    studies = [config.compose(ROOT / "conf", "study", path.stem) for path in ROOT.glob("conf/study/rossi2021_*.yaml")]
    names = {name for study in studies for name in expand(study)}
    rows = read_published(ROOT / "published").query("source == 'rossi2021' and ours_method != ''")
    wanted = {name for text in rows["ours_method"] for name in text.split("|")}
    assert wanted <= names
