"""What a study prints of Markov chains that have not converged: visible everywhere, compared nowhere."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from synthetic_study import CHAINS, all_done, build, change_study, with_scores

from gpbench.cli import advise
from gpbench.report.figures import draw
from gpbench.report.page.page import Section, _add_figure, render
from gpbench.report.registry import TABLES
from gpbench.report.scorecard.one_run import scorecard
from gpbench.report.scorecard.published import COLUMNS
from gpbench.report.significance.comparisons import COMPARISONS, compare, differences_to_best
from gpbench.report.significance.findings import sentences
from gpbench.report.tables.standard import write_table
from gpbench.report.view import UNMIXED, View

SPLITS, FAILING = 3, (1, 2)
METHODS = ["svgp", "bsgp_1", "bsgp_2", "constant"]
LIMIT, DRAWS = 1.05, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two samplers with four chains a split, of which `bsgp_2` fails on boston, splits 1 and 2."""
    folder = build(tmp_path_factory.mktemp("chains") / "study", METHODS, ["boston", "banana"], SPLITS, all_done)
    scores = pd.read_parquet(folder / "scores.parquet")
    samplers = scores["method"].isin(["bsgp_1", "bsgp_2"])
    copies = [scores[samplers].assign(replica=r, fit_id=lambda s, r=r: s["fit_id"] + f"-{r}") for r in range(1, CHAINS)]
    scores = pd.concat([scores, *copies], ignore_index=True)
    samplers = scores["method"].isin(["bsgp_1", "bsgp_2"])
    failing = (scores["method"] == "bsgp_2") & (scores["dataset"] == "boston") & scores["split"].isin(FAILING)
    chains = {
        "chains": CHAINS,
        "draws": DRAWS,
        "r_hat_row": 1.0,
        "r_hat_row_sd": 0.01,
        "ess_bulk": 130.0,
        "ess_tail": 110.0,
    }
    for name, value in (chains | {"r_hat_covariance": 2.5, "ess_covariance": 5.0}).items():
        scores[name] = np.where(samplers, value, np.nan)
    scores["r_hat"] = np.where(failing, 1.31, np.where(samplers, 1.02, np.nan))
    scores["gate"] = np.where(failing, "failed", np.where(samplers, "passed", ""))
    scores["reason"] = np.where(failing, "R-hat 1.31 of 4 x 40 draws, at most 1.05", scores["reason"])
    scores.to_parquet(folder / "scores.parquet")
    rng = np.random.default_rng(0)
    drawn = [
        pd.DataFrame({"fit_id": fit_id, "row": row, "draw": range(DRAWS), "mean": rng.normal(size=DRAWS)})
        for fit_id in scores.loc[samplers, "fit_id"]
        for row in (3, 20, 37)
    ]
    pd.concat(drawn).to_parquet(folder / "chains.parquet")
    change_study(folder, r_hat=LIMIT, tables=["chains"], figures=["traces"], pairs=[["bsgp_2", "svgp"]])
    return folder


@pytest.fixture
def view(folder):
    return View(folder)


def test_the_mean_is_printed_with_the_number_of_splits_that_fail(view):
    shown = TABLES["regression_mnll"].function(view).shown.set_index("method")["boston"]
    cell = view.cells("mnll").set_index(["method", "dataset"]).loc["bsgp_2", "boston"]
    assert shown["BSGP (2 layers)"].endswith("(3) ✗ 2 of 3 not converged")
    assert float(shown["BSGP (2 layers)"].split()[0]) == pytest.approx(cell["mean"], abs=0.01)
    assert "✗" not in shown["BSGP (1 layer)"]
    assert [text.get_text() for text in draw(view, "log_density").axes[0].texts] == ["✗", "◂ 1"]


def test_a_failing_cell_is_neither_best_nor_ranked_nor_compared(view):
    """It has the lowest mean of this study, and would be bold."""
    means = view.cells("mnll", "regression").set_index("method")["mean"]
    assert means.idxmin() == "bsgp_2"
    assert TABLES["regression_mnll"].function(view).data.query("best")["method"].tolist() == ["bsgp_1"]
    assert "bsgp_2" not in differences_to_best(view, "mnll", "boston")["method"].tolist()
    assert "bsgp_2" in differences_to_best(view, "mnll", "banana")["method"].tolist()
    ranks = TABLES["ranks"].function(view).data
    assert "bsgp_2" not in ranks[ranks["comparison"] == "regression_mnll"]["method"].tolist()


def test_ranks_are_told_a_second_time_with_them(view, small_view):
    """bsgp_2 leads on boston, from which the gate removes it; where nothing is removed nothing is told."""
    (spec,) = (spec for spec in COMPARISONS if spec.name == "regression_mnll")
    told = compare(view, spec)["unconverged"]
    assert (told["datasets"], next(iter(told["ranks"].items()))) == (["boston"], ("bsgp_2", 1.0))
    text = " ".join(sentences(compare(view, spec) | {"bayes": []}, view))
    assert "Mean ranks (1 is best) over 1 data set: BSGP (1 layer) 1.00" in text
    assert (
        "With fits that have not converged, 4 methods on 1 data set: BSGP (2 layers) 1.00, BSGP (1 layer) 2.00" in text
    )
    assert "not converged" not in " ".join(sentences(compare(small_view, spec) | {"bayes": []}, small_view))


def test_status_counts_them_and_unfinished_lists_them_with_their_r_hat(view):
    counts = TABLES["status"].function(view).data.set_index("method").loc["bsgp_2"]
    failing = len(FAILING) * CHAINS
    assert (counts["done"], counts[UNMIXED], counts["planned"]) == (6 * CHAINS - failing, failing, 6 * CHAINS)
    (row,) = TABLES["unfinished"].function(view).shown.to_dict("records")
    assert (row["splits"], row["status"]) == ("1, 2", UNMIXED)
    assert row["reason"] == "R-hat 1.31 of 4 x 40 draws, at most 1.05"


def test_every_table_and_the_page_say_so(view, folder, tmp_path):
    warning = "✗ Not converged: BSGP (2 layers) on boston."
    for name in ("differences", "cost", "all_metrics"):
        write_table(view, name, tmp_path)
        assert warning in (tmp_path / f"{name}.md").read_text()
    assert r"$\times$ Not converged" in (tmp_path / "cost.tex").read_text()
    page = render(view)
    assert "8 fits by Markov chains that have not converged: their R-hat exceeds 1.05" in page
    assert "not done: not part of any mean" not in page
    assert f"{len(view.fits) - 8} of {len(view.fits)} done" in page


def test_the_caption_of_a_figure_on_the_page_counts_them(view, tmp_path):
    assert view.failing == "✗ In 1 of 8 cells fits have not converged."
    (tmp_path / "figures").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "figures" / "cost.png")
    view.folder, section = tmp_path, Section("cost", "Cost")
    _add_figure(view, "cost", section)
    assert view.failing in section.figures[0]["caption"]


def test_the_scorecard_does_not_judge_them(view):
    row = dict.fromkeys(COLUMNS, "") | {"source": "x", "dataset": "boston", "protocol": "common", "value": 1.0}
    row |= {"spread": 0.1, "spread_kind": "sample sd", "splits": SPLITS, "data_sets": 1}
    row |= {"ours_metric": "mnll", "factor": 1.0}
    card = scorecard(view, pd.DataFrame([row | {"ours_method": name} for name in ("bsgp_1", "bsgp_2")]))
    assert card["verdict"].tolist()[1] == "not judged: 2 of 3 not converged"
    assert card["verdict"].tolist()[0] in ("agrees", "better", "worse", "inconclusive")
    assert card["compared"].tolist() == ["", ""], "counted are fits by gradients"


def test_a_chain_that_diverged_leaves_its_cell_incomplete(folder, tmp_path):
    scores = pd.read_parquet(folder / "scores.parquet")
    lost = (scores["method"] == "bsgp_1") & (scores["dataset"] == "boston") & (scores["fit_id"].str.endswith("-0-2"))
    scores.loc[lost, ["status", "gate", "mnll"]] = ["diverged", "", np.nan]
    cell = (
        View(with_scores(folder, scores, tmp_path))
        .cells("mnll")
        .set_index(["method", "dataset"])
        .loc["bsgp_1", "boston"]
    )
    assert (cell["n"], bool(cell["complete"]), cell["statuses"]) == (SPLITS, False, "1 diverged")


def test_table_of_chains_has_a_row_for_every_cell_and_split(view):
    table = TABLES["chains"].function(view)
    assert len(table.data) == 2 * 2 * SPLITS
    row = table.data.set_index(["dataset", "method", "split"]).loc["boston", "bsgp_2", 1]
    seconds = view.fits.query("dataset == 'boston' and method == 'bsgp_2' and split == 1")["seconds_train"]
    assert row["ess_per_second"] == pytest.approx(130.0 / seconds.sum())
    failing = table.shown[table.shown["R-hat"].str.endswith("✗")]
    assert failing[["method", "split", "R-hat"]].to_numpy().tolist() == [
        ["BSGP (2 layers)", 1, "1.310 ✗"],
        ["BSGP (2 layers)", 2, "1.310 ✗"],
    ]
    assert set(table.shown["chains x draws"]) == {"4 x 40"}
    assert set(table.shown["over rows"]) == {"1.000 ± 0.010"}
    assert set(table.shown["R-hat, covariance"]) == {"2.500"}, "reported, not judged"
    assert "R-hat exceeds 1.05" in table.note


def test_chains_that_never_move_have_no_r_hat_over_rows(view, monkeypatch):
    for name in ("r_hat_row", "r_hat_row_sd"):
        monkeypatch.setitem(view.done, name, np.nan)
    assert set(TABLES["chains"].function(view).shown["over rows"]) == {"-"}


def test_table_of_chains_of_which_no_number_is_known(folder, tmp_path):
    scores = pd.read_parquet(folder / "scores.parquet").assign(chains=np.nan)
    view = View(with_scores(folder, scores, tmp_path))
    assert set(TABLES["chains"].function(view).shown["chains x draws"]) == {"- x 40"}


def test_traces_show_three_rows_of_the_first_split_a_line_a_chain(view, folder):
    figure = draw(view, "traces")
    axes = figure.axes
    assert len(axes) == 4 * 3, "two samplers on two data sets"
    assert {len(axis.lines) for axis in axes} == {CHAINS}
    drawn = pd.read_parquet(folder / "chains.parquet").query("fit_id == 'bsgp_1-boston-0-2' and row == 20")
    np.testing.assert_array_equal(axes[1].lines[2].get_ydata(), drawn["mean"])
    assert axes[2].get_title(loc="right") == f"R-hat 1.020, {CHAINS} chains"
    assert len({line.get_color() for line in axes[0].lines}) == CHAINS


def test_traces_of_a_study_without_chains_say_so(small):
    (text,) = draw(View(small), "traces").axes[0].texts
    assert text.get_text() == "No chains: no fit by a Markov chain is finished."
    assert TABLES["chains"].function(View(small)).shown.empty


def test_advice_says_why_methods_are_left_out_and_names_no_cheapest_of_equals(folder, tmp_path):
    """It said of them that they have no scores, and of the cheapest 2.98 s, not 2.98 s."""
    scores = pd.read_parquet(folder / "scores.parquet").query("dataset == 'boston'")
    equal = scores["method"].isin(["svgp", "bsgp_1"])
    scores.loc[equal, "seconds_train"] = np.where(scores.loc[equal, "method"] == "svgp", 2.979, 2.981)
    rng = np.random.default_rng(0)
    scores.loc[equal, "mnll"] = 0.1 * (scores["method"] == "svgp") + rng.normal(size=len(scores))
    with_scores(folder, scores, tmp_path)
    expected = [[method, "boston", split] for method in METHODS[:3] for split in range(SPLITS)]
    change_study(tmp_path, datasets=["boston"], methods=METHODS[:3], expected=expected)
    _, lines = advise._recommendation(View(tmp_path), "boston")
    assert any(line.startswith("  not compared: bsgp_2 (2 of 3 not converged); ") for line in lines)
    assert sum("not told from" in line for line in lines) == 1
    assert not any("cheapest" in line for line in lines)
