import shutil

import numpy as np
import pandas as pd
import pytest
from synthetic_samplers import build_sizes
from synthetic_study import all_done, build, change_study, with_scores

from gpbench.errors import UserError
from gpbench.evaluation.compare import paired_difference
from gpbench.report.page.facts import provenance
from gpbench.report.registry import TABLES
from gpbench.report.significance.comparisons import statistics
from gpbench.report.tables import convergence, standard
from gpbench.report.tables.render import Table, decimals, number, signed, to_html, to_latex, to_markdown
from gpbench.report.tables.standard import write_table
from gpbench.report.view import View


@pytest.fixture(scope="module")
def folder(view, tmp_path_factory):
    target = tmp_path_factory.mktemp("tables")
    for name in TABLES:
        write_table(view, name, target)
    return target


def test_every_table_is_written_in_four_formats(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}.{kind}" for name in TABLES for kind in ("csv", "md", "html", "tex")
    )


def test_csv_holds_the_hand_computed_mean(folder, study):
    raw = pd.read_parquet(study / "scores.parquet").query("method == 'dsvi' and dataset == 'concrete'")["rmse"]
    row = pd.read_csv(folder / "regression_rmse.csv").set_index(["method", "dataset"]).loc[("dsvi", "concrete")]
    assert row["mean"] == pytest.approx(raw.sum() / 5, rel=1e-12)


def test_failed_and_skipped_cells_are_visible_in_every_text(folder):
    for kind in ("md", "html", "tex"):
        assert "failed: layer 1: Cholesky failed" in (folder / f"regression_mnll.{kind}").read_text()
        assert "4/5, 1 diverged" in (folder / f"regression_mnll.{kind}").read_text()
        assert (folder / f"classification_error.{kind}").read_text().count("skipped: regression only") == 3


def test_best_is_the_lowest_complete_mean_and_tied_follows_the_interval(view):
    data = TABLES["regression_mnll"].function(view).data.set_index(["method", "dataset"])
    boston = data.xs("boston", level="dataset")
    assert boston["mean"].idxmin() == "bsgp_2", "the incomplete cell has the lowest mean in this fixture"
    best = boston["mean"].where(boston["complete"]).idxmin()
    assert list(boston.index[boston["best"]]) == [best]
    scores = view.per_split("mnll", "boston")
    for method in ("svgp", "constant"):
        found = paired_difference(scores[method], scores[best], 0.1)
        assert boston.loc[method, "tied"] == (found.lower <= 0 <= found.upper)
    assert not boston.loc["constant", "tied"]


def test_means_that_differ_by_rounding_alone_are_both_the_best(study, tmp_path):
    scores, errors = pd.read_parquet(study / "scores.parquet"), np.array([1, 2, 3, 5, 7]) / 350
    for method, values in {"svgp": errors, "dsvi": [float(f"{error:.10g}") for error in errors]}.items():
        scores.loc[(scores["method"] == method) & (scores["dataset"] == "digits"), "error"] = values
    view = View(with_scores(study, scores, tmp_path))
    data = TABLES["classification_error"].function(view).data.query("dataset == 'digits'").set_index("method")
    assert data.loc["svgp", "mean"] != data.loc["dsvi", "mean"]
    assert sorted(data.index[data["best"]]) == ["dsvi", "svgp"]


def test_printed_cell_has_mean_sd_and_count(view):
    table = TABLES["regression_rmse"].function(view)
    cell = table.data.set_index(["method", "dataset"]).loc[("constant", "yacht")]
    shown = table.shown.set_index("method").loc["Constant", "yacht"]
    assert shown == f"{cell['mean']:.3f} ± {cell['sd']:.3f} (5)"


def test_status_counts_every_planned_fit_and_unfinished_lists_the_rest(view):
    counts = TABLES["status"].function(view).data.set_index("method")
    assert counts["planned"].sum() == 8 * 7 * 5
    assert counts.loc["exact_gp", ["done", "skipped"]].tolist() == [20, 15]
    rest = TABLES["unfinished"].function(view)
    assert len(rest.data) == counts["planned"].sum() - counts["done"].sum()
    rff = rest.shown[rest.shown["method"] == "DGP-RFF"].iloc[0]
    assert (rff["splits"], rff["status"]) == ("0, 1, 2, 3, 4", "failed")
    assert rff["reason"].startswith("layer 1: Cholesky failed with jitter 1e-4")
    assert (rest.data["status"] == "skipped").is_monotonic_increasing, "what was left out by design comes last"
    assert rest.shown.loc[rest.shown["method"] == "Exact GP", "data set"].tolist() == ["banana, breast_cancer, digits"]


def test_costs_are_medians_and_the_largest_memory(tmp_path):
    folder = build(tmp_path / "s", ["svgp"], ["boston"], 3, lambda *_: ("done", ""))
    scores = pd.read_parquet(folder / "scores.parquet")
    assert "GPU" not in TABLES["cost"].function(View(folder)).note
    scores.assign(seconds_train=[1.0, 2.0, 9.0], peak_memory_mb=[100.0, 300.0, 200.0]).to_parquet(
        folder / "scores.parquet"
    )
    row = TABLES["cost"].function(View(folder)).shown.iloc[0]
    names = ["training s per fit", "range", "training s in total", "peak memory MB"]
    assert row[names].tolist() == ["2.00", "1.0 to 9.0", "12.0", "300"]


def test_a_rank_has_its_interval_where_there_is_one():
    cells = [standard._rank(*cell) for cell in ((1.5, 1.0, 2.0), (1.0, 1.0, 1.0), (2.0, np.nan, np.nan))]
    assert cells == ["1.50 [1.0, 2.0]", "1.00 [1.0, 1.0]", "2.00"]


@pytest.mark.parametrize("decision", ["a_better", "equal", "b_better", "undecided"])
def test_a_decided_comparison_is_bold(decision):
    test = pd.Series({"a_better": 0.2, "equal": 0.3, "b_better": 0.5, "decision": decision})
    bold = "0.20 / 0.30 / 0.50" if decision == "undecided" else "**0.20 / 0.30 / 0.50**"
    # of two methods that are alike it decides on two data sets in half of all cases, on five in a sixth
    assert [standard._odds(test, datasets) for datasets in (5, 6)] == ["0.20 / 0.30 / 0.50", bold]


def test_ranks_agree_with_counting(view):
    data = TABLES["ranks"].function(view).data.query("comparison == 'classification_mnll'").set_index("method")
    matrix = view.matrix("mnll", "binary", "multiclass")[list(data.index)]
    for method in data.index:
        better = [(row < row[method]).sum() + 1 for _, row in matrix.iterrows()]
        assert data.loc[method, "mean_rank"] == pytest.approx(np.mean(better))
    left_out = "Exact GP: 0 of 3 data sets (3 skipped: regression only); Gradient boosting: 2 of 3 data sets (1 partly"
    assert left_out in TABLES["ranks"].function(view).note


def test_all_metrics_has_one_row_per_fit_and_metric(view):
    data = TABLES["all_metrics"].function(view).data
    assert not data.duplicated(["fit_id", "metric"]).any()
    assert (data["metric"] == "mnll").sum() == len(view.done)
    assert set(data.loc[data["dataset"] == "banana", "metric"]).isdisjoint({"rmse", "rmse_scaled"})


def test_latex_escapes_what_latex_reserves():
    frame = pd.DataFrame({"a_b": ["50 % & $x$ #1 {y} ~ ^ \\", "**1.0 ± 0.1**"]})
    text = to_latex(Table(frame, frame, "under_score"), "t")
    assert r"a\_b" in text
    assert r"50 \% \& \$x\$ \#1 \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{}" in text
    assert r"\textbf{1.0 $\pm$ 0.1}" in text
    assert r"\caption{under\_score}" in text


def test_html_and_markdown_escape_markup():
    frame = pd.DataFrame({"m": ["<script>x|y</script>"]})
    table = Table(frame, frame, "a < b")
    assert "&lt;script&gt;" in to_html(table)
    assert "<script>" not in to_html(table) + to_markdown(table)
    assert "x\\|y" in to_markdown(table)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("`<img src=x>``", "`&lt;img src=x>``"),  # no code: it does not end
        ("[label](javascript:x)", "[label]\\(javascript:x)"),
        ("label {: onclick=x }", "label \\{: onclick=x }"),
        ("[0, 1] (3) `f(x)[0](1)`", "[0, 1] (3) `f(x)[0](1)`"),
    ],
)
def test_markdown_has_no_links_and_no_attributes_of_a_name(text, escaped):
    assert to_markdown(Table.of([[text]], ["m"], "c")).splitlines()[-1] == f"| {escaped} |"


def test_captions_and_notes_are_escaped_as_cells_are_and_code_is_left_alone():
    frame = pd.DataFrame({"m": ["`a|b_c`"]})
    text = to_markdown(Table(frame, frame, "a_b *c*", "`only=[a_b|*]` on x_1 < \\"))
    assert text.startswith(r"**a\_b \*c\***")
    assert text.endswith("`only=[a_b|*]` on x\\_1 &lt; \\\\\n")
    assert r"| `a\|b_c` |" in text


def test_latex_takes_no_cell_for_an_argument_and_knows_the_letters_of_the_labels():
    frame = pd.DataFrame({"χ²": ["[0, 1]", "*", "p(τ | y), β = 1"]})
    _, *rows = to_latex(Table(frame, frame, "t"), "t").partition(r"\toprule")[2].replace(r"\midrule", "").split("\n")
    lines = [row for row in rows if row.endswith(r"\\")]
    letters = r"p($\tau$ \textbar{} y), $\beta$ = 1 \\"
    assert lines == [r"$\chi$$^2$ \\", r"{}[0, 1] \\", r"{}* \\", letters]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.012345, "0.0123"), (123.456, "123"), (1234.5, "1234"), (3e-7, "3.00e-07"), (np.nan, "-"), (0.0, "0.00"),
     (np.inf, "∞"), (-np.inf, "−∞"), (250000.0, "250000"), (2.5e6, "2.50e+06")],
)  # fmt: skip
def test_number_has_three_significant_digits(value, text):
    assert number(value) == text


def test_decimals_show_two_digits_of_the_spread():
    assert [decimals([sd]) for sd in (0.23, 0.023, 3.4, 41.0, 6e-5, 1e-9)] == [2, 3, 1, 0, 6, 6]
    assert decimals([np.nan, 0.0]) == 3
    assert decimals([0.23, 0.21, 41.0]) == 2, "the typical one"


def test_a_study_without_finished_or_regression_fits_still_has_its_tables(tmp_path):
    nothing = View(build(tmp_path / "nothing", ["svgp"], ["boston"], 2, lambda *_: ("failed", "no memory")))
    assert TABLES["regression_mnll"].function(nothing).shown.loc[:, "boston"].tolist() == ["failed: no memory"]
    lost = build(tmp_path / "lost", ["svgp"], ["boston"], 3, lambda *_: ("failed", "x"), drop={("svgp", "boston", 1)})
    assert TABLES["regression_mnll"].function(View(lost)).shown["boston"].tolist() == ["2 failed, 1 missing"]
    classes = View(build(tmp_path / "classes", ["svgp", "constant"], ["banana"], 1))
    for view in (nothing, classes):
        for name in TABLES:
            assert write_table(view, name, tmp_path / "out")


def test_columns_that_no_fit_filled_may_be_absent(small, tmp_path):
    scores = pd.read_parquet(small / "scores.parquet")
    scores = scores[
        ["fit_id", "kind", "method", "label", "dataset", "protocol", "budget", "overrides", "split", "task"]
    ]
    view = View(with_scores(small, scores.assign(replica=0, status="skipped", reason="no"), tmp_path))
    assert TABLES["regression_mnll"].function(view).shown["boston"].tolist() == ["skipped: no"] * 2
    assert TABLES["classification_error"].function(view).shown["banana"].tolist() == ["skipped: no"] * 2
    assert TABLES["cost"].function(view).shown["finished fits"].tolist() == [0, 0]
    assert provenance(view)[2] == ("commits of the fits", "none")


def test_an_unknown_table_names_the_nearest(view, tmp_path):
    with pytest.raises(UserError, match="unknown table 'rank'; did you mean 'ranks'"):
        write_table(view, "rank", tmp_path)


def test_treatments_are_compared_on_paired_splits(probed):
    view = View(probed)
    table = TABLES["features"].function(view)
    scores = view.per_split("error", "banana")
    difference = scores["svgp"] - scores["bsgp_1"]
    row = table.data.set_index(["dataset", "metric", "num_features"]).loc["banana", "error", 10]
    assert row["difference_mean"] == pytest.approx(difference.mean(), abs=1e-15)
    assert row["var_fixed_sd"] == pytest.approx(scores["svgp"].std(ddof=1), rel=1e-12)
    assert (row["var_fixed_n"], row["difference_n"]) == (3, 3)
    shown = table.shown.set_index(["data set", "metric", "features"]).loc["banana", "error rate", 10]
    assert shown["signs"] == " ".join("−0+"[int(np.sign(value)) + 1] for value in difference)
    assert shown["VAR-FIXED"].endswith("(3)")


def test_methods_of_one_treatment_and_number_of_features_have_rows_of_their_own(tmp_path):
    treatments = {"svgp": "var_fixed", "dsvi": "var_fixed", "bsgp_1": "var_resampled", "bsgp_2": "var_resampled"}
    settings = {method: {"frequencies": name, "num_features": 10} for method, name in treatments.items()}
    view = View(build(tmp_path / "s", list(settings), ["boston"], 2, all_done, settings=settings))
    table, means = TABLES["features"].function(view), view.per_split("mnll", "boston").mean()
    found = table.data[table.data["metric"] == "mnll"].set_index("var_fixed")
    assert found["var_resampled"].to_dict() == {"svgp": "bsgp_1", "dsvi": "bsgp_2"}
    assert found.loc["dsvi", "difference_mean"] == pytest.approx(means["dsvi"] - means["bsgp_2"])
    assert list(table.shown["methods"][:2]) == ["SVGP; BSGP (1 layer)", "DSVI (2 layers); BSGP (2 layers)"]


def test_comparisons_over_tasks_that_a_study_lacks_are_left_out(tmp_path):
    view = View(build(tmp_path / "s", ["svgp", "constant"], ["boston"], 2, all_done))
    assert not any("Classification" in column for column in TABLES["ranks"].function(view).shown)
    assert [*statistics(view)["comparisons"]] == ["all_mnll", "regression_mnll", "regression_rmse"]


def test_scores_of_a_method_with_lost_fits_are_marked_at_every_size(tmp_path):
    folder = build_sizes(tmp_path / "s", datasets=["banana"])
    scores = pd.read_parquet(folder / "scores.parquet")
    scores.loc[scores["fit_id"] == "dsvi-banana-0", "status"] = "failed"
    scores.to_parquet(folder / "scores.parquet")
    shown = TABLES["scores_by_n"].function(View(folder)).shown
    marked = [shown[label].str.contains("✗").unique().tolist() for label in ("SVGP", "DSVI (2 layers)")]
    assert marked == [[False], [True]]


def test_workers_has_a_row_for_every_cell(probed):
    data = TABLES["workers"].function(View(probed)).data.set_index(["dataset", "method"])
    assert len(data) == 16
    assert data.loc[("boston", "exact_gp"), ["scheme", "workers", "staleness_mean", "restarts"]].tolist() == [
        *("asynchronous", 10, 8.5, 1.0)
    ]
    assert data.loc[("boston", "constant"), ["scheme", "workers"]].tolist() == ["one process", 1]


def test_diagnostics_see_the_two_signs_of_the_hidden_function(probed):
    """The draws of this study are independent: 4 x 50 of them, mirrored in every other chain."""
    table = TABLES["diagnostics"].function(View(probed))
    worst = table.shown.set_index("quantity")
    assert list(worst.index) == ["layer 1", "|layer 1|", "layer 2"]
    assert worst[["chains", "draws"]].to_numpy().tolist() == [[4, 50]] * 3
    r_hat = worst["largest R-hat"].astype(float)
    assert r_hat["layer 1"] > 1.5
    assert r_hat[["|layer 1|", "layer 2"]].max() < 1.05
    assert worst["least bulk ESS"].astype(float)["layer 2"] > 100
    least = table.data.groupby("quantity")["ess_bulk"].min()
    assert worst["least bulk ESS"].to_dict() == least.map(number).to_dict()
    assert table.data["x"].between(0, 2).all(), "inside the training rows"
    assert len(table.data) == 3 * 11


def test_an_r_hat_that_is_very_large_is_no_number():
    assert [convergence._ratio(value) for value in (1.0, 99.9, 100.0, np.nan)] == ["1.000", "99.900", "> 100", "-"]


def test_too_few_draws_or_none_leave_an_empty_table(probed, small, tmp_path):
    for path in probed.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    layers = pd.read_parquet(probed / "layers.parquet")
    layers[(layers["sample"] < 3) | (layers["layer"] == 0)].to_parquet(tmp_path / "layers.parquet")
    for folder in (tmp_path, small):
        assert TABLES["diagnostics"].function(View(folder)).shown.empty


def test_differences_are_paired_over_splits(study, tmp_path):
    folder = shutil.copytree(study, tmp_path / "pairs")
    reported = View(study).study["reported"]
    reported["metrics"].append("accuracy")  # more is better, so that it has no column
    pairs = [["dsvi", "svgp"], ["bsgp_2", "svgp"], ["constant", "svgp"]]
    change_study(folder, pairs=pairs, reported=reported)
    view = View(folder)
    table = TABLES["differences"].function(view)
    data = table.data.set_index(["dataset", "a", "metric"])
    scores = view.per_split("rmse", "concrete")
    row, found = data.loc["concrete", "dsvi", "rmse"], paired_difference(scores["dsvi"], scores["svgp"], 0.1)
    assert row[["mean", "lower", "upper", "n"]].tolist() == [found.mean, found.lower, found.upper, 5]
    assert data.loc[("boston", "bsgp_2", "mnll"), "n"] == 4, "one split diverged"
    assert set(data.xs("banana").index.get_level_values("metric")) == {"mnll", "error"}
    assert list(table.shown["difference"][:2]) == ["DSVI (2 layers) − SVGP", "BSGP (2 layers) − SVGP"]
    shown = table.shown.set_index(["data set", "difference"])
    of_mnll = data.loc["concrete", "dsvi", "mnll"][["mean", "lower", "upper"]]
    places = decimals([view.per_split("mnll", "concrete")["svgp"].std(ddof=1)])
    assert shown.loc[("concrete", "DSVI (2 layers) − SVGP"), "MNLL"] == signed(*of_mnll, places)
    assert places == 2
    assert shown.loc[("concrete", "Constant − SVGP"), "better"] == "SVGP"
    assert shown.loc[("boston", "BSGP (2 layers) − SVGP"), "better"] == "not compared"


def test_one_split_has_a_difference_without_an_interval(tmp_path):
    folder = build(tmp_path / "one", ["svgp", "constant"], ["boston"], 1)
    change_study(folder, pairs=[["svgp", "constant"]])
    view = View(folder)
    table = TABLES["differences"].function(view)
    scores = view.per_split("mnll", "boston").loc[0]
    assert table.data.loc[0, "mean"] == pytest.approx(scores["svgp"] - scores["constant"])
    assert np.isnan(table.data.loc[0, "lower"])
    assert "[" not in table.shown.loc[0, "MNLL"]
