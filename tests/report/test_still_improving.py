"""What a study prints of fits by gradients that still improve: marked everywhere, left out where its budget says so."""

import numpy as np
import pandas as pd
import pytest
from synthetic_study import all_done, build, change_study

from gpbench.errors import UserError
from gpbench.report.figures import draw
from gpbench.report.figures.ranks import mean_ranks, runs_of
from gpbench.report.page import facts
from gpbench.report.page.page import render
from gpbench.report.registry import TABLES
from gpbench.report.significance.comparisons import COMPARISONS, compare, statistics
from gpbench.report.significance.findings import to_markdown
from gpbench.report.tables.render import to_latex
from gpbench.report.tables.standard import table
from gpbench.report.view import STATUSES, UNMIXED, View
from gpbench.study.fitting.convergence import NOT_JUDGED
from projects import REPOSITORY

SHOWN = ["svgp", "dsvi", "dgp_rff", "constant"]
LIMIT = 0.02


def study(folder, limit=None, budget="quick", quick=1.0):
    """Three methods by gradients, of which dsvi still improves on boston, splits 1 and 2; svgp has a certificate."""
    build(folder, SHOWN, ["boston", "energy"], 3, all_done)
    scores = pd.read_parquet(folder / "scores.parquet").assign(budget=budget)
    scores["seconds_train"] *= quick
    optimised = scores["method"] != "constant"
    improving = (scores["method"] == "dsvi") & (scores["dataset"] == "boston") & scores["split"].isin([1, 2])
    scores["convergence"] = np.where(improving, "still improving", np.where(optimised, "converged", None))
    scores["gain"] = np.where(improving, 0.13, np.where(optimised, 0.004, np.nan))
    scores["steps_done"] = np.where(optimised, 1800, np.nan)
    scores.loc[improving & (scores["split"] == 2), ["gain", "steps_done"]] = 0.05, 5000
    gates = np.where(improving, "failed", np.where(optimised, "passed", ""))
    scores["gate"] = gates if limit else ""
    scores["reason"] = np.where(improving & (limit is not None), "still improving (about 0.13 nats)", "")
    first = (scores["method"] == "svgp") & (scores["split"] == 0)
    certificate = {"certificate_steps": 7200, "certificate_objective": 0.011, "certificate_mnll": -0.002}
    for name, value in certificate.items():
        scores[name] = np.where(first, value, np.nan)
    scores.to_parquet(folder / "scores.parquet")
    change_study(folder, gain=limit, budget=budget, r_hat=None)
    return View(folder)


@pytest.fixture
def ranked(tmp_path):
    """The budget requires no convergence."""
    return study(tmp_path / "study")


@pytest.fixture
def gated(tmp_path):
    return study(tmp_path / "study", LIMIT, "converged")


def test_without_a_limit_the_cell_is_marked_and_ranked(ranked):
    shown = TABLES["regression_mnll"].function(ranked).shown.set_index("method")["boston"]
    assert "↗" in shown["DSVI (2 layers)"]
    assert "↗" not in shown["SVGP"]
    assert "dsvi" in TABLES["ranks"].function(ranked).data.query("comparison == 'regression_mnll'")["method"].tolist()
    sentence = "↗ 1 of 6 judged cells had not converged at the last step."
    assert sentence in table(ranked, "cost").note
    assert sentence in to_markdown(statistics(ranked), ranked)
    assert f"{sentence} The budget allows that: they are ranked all the same." in facts.warnings(ranked)
    assert sentence in render(ranked)
    ranked.fits.loc[ranked.fits["method"] == "dgp_rff", "convergence"] = NOT_JUDGED
    assert ranked.still_improving.startswith("↗ 1 of 4 judged cells")


def test_with_a_limit_it_is_left_out_as_chains_are(gated):
    cell = gated.cells("mnll").set_index(["method", "dataset"]).loc["dsvi", "boston"]
    assert (cell["statuses"], bool(cell["complete"]), cell["improving"]) == (f"2 of 3 {UNMIXED}", False, 0)
    comparison = compare(gated, COMPARISONS[1])
    assert "boston" not in comparison["datasets"] or "dsvi" not in comparison["methods"]
    assert "✗ Not converged: DSVI (2 layers) on boston." in table(gated, "cost").note
    (text,) = facts.warnings(gated)
    assert text.startswith("2 fits by gradients that have not converged: as many steps again would gain 0.02 ")
    assert "would gain 0.02 (0.005 by L-BFGS) nats a datum or more" in text


def test_status_counts_what_is_judged(ranked):
    data = TABLES["status"].function(ranked).data.set_index("method")
    assert data.loc["dsvi", ["of them converged", "of them still improving"]].tolist() == [4, 2]
    assert data.loc["constant", ["of them converged", "of them still improving"]].tolist() == [0, 0]
    assert dict(facts.summary(ranked))["convergence"] == "16 converged, 2 still improving"
    vars(ranked)["done"] = ranked.done.assign(seconds_train=150.0)
    assert dict(facts.summary(ranked))["training time"] == "60.0 minutes over all finished fits"


def test_the_table_of_convergence_has_status_gain_steps_and_certificate(ranked):
    shown = TABLES["convergence"].function(ranked).shown.set_index(["data set", "method"])
    assert len(shown) == 6
    assert shown.loc[("boston", "DSVI (2 layers)")].tolist()[:3] == ["2 still improving, 1 converged", "0.130", "1800"]
    certified = ["7200 steps", "+0.011", "-0.002"]
    assert shown.loc[("boston", "SVGP")].tolist()[3:] == certified
    assert shown.loc[("boston", "DGP-RFF")].tolist()[3:] == ["-", "-", "-"]


def test_records_without_the_columns_say_nothing(tmp_path):
    folder = build(tmp_path / "old", SHOWN, ["boston"], 2, all_done)
    scores = pd.read_parquet(folder / "scores.parquet").drop(columns="convergence")
    scores.to_parquet(folder / "scores.parquet")
    view = View(folder)
    assert (view.warning, len(TABLES["convergence"].function(view).data)) == ("", 0)
    assert set(TABLES["status"].function(view).data) == {"method", "planned", *STATUSES}


def test_fits_that_needed_jitter_are_marked_and_counted(tmp_path):
    view = study(tmp_path / "study")
    scores = pd.read_parquet(view.folder / "scores.parquet")
    needed = (scores["method"] == "svgp") & (scores["dataset"] == "boston") & (scores["split"] < 2)
    scores["jitter_times"], scores["jitter_largest"] = np.where(needed, 7, np.nan), np.where(needed, 2e-7, np.nan)
    scores.loc[needed & (scores["split"] == 0), "jitter_largest"] = 1e-8
    scores.to_parquet(view.folder / "scores.parquet")
    view = View(view.folder)
    shown = TABLES["regression_mnll"].function(view).shown.set_index("method")
    marked = [(method, name) for method in shown.index for name in shown if "†" in shown.loc[method, name]]
    assert [pair for pair in marked if pair[0] != "SVGP"] == []
    sentence = "† 2 of 24 fits needed jitter to factor a matrix, at most 2e-07."
    assert sentence in table(view, "cost").note
    assert any(sentence in text for text in facts.warnings(view))
    assert "dagger" in to_latex(TABLES["regression_mnll"].function(view), "x")


def test_fits_whose_linear_systems_reached_the_cap_are_counted(tmp_path):
    view = study(tmp_path / "study")
    assert not any("linear systems" in text for text in facts.warnings(view))
    scores = pd.read_parquet(view.folder / "scores.parquet")
    of_boston = (scores["method"] == "svgp") & (scores["dataset"] == "boston")
    scores["unsolved"] = np.where(of_boston & (scores["split"] == 0), 0.5, 0.0)
    scores["unsolved_test"] = np.where(of_boston & (scores["split"] < 2), 0.25, np.nan)
    scores.to_parquet(view.folder / "scores.parquet")
    assert any("2 fits with linear systems" in text for text in facts.warnings(View(view.folder)))


def test_fits_on_a_gpu_are_counted_and_it_is_named(tmp_path):
    view = study(tmp_path / "study")
    assert not any("on a GPU" in text for text in facts.warnings(view))
    scores = pd.read_parquet(view.folder / "scores.parquet")
    scores["gpu"] = np.where((scores["method"] == "svgp") & (scores["split"] == 0), "some GPU", None)
    count = int(scores["gpu"].notna().sum())
    scores.to_parquet(view.folder / "scores.parquet")
    assert any(text.startswith(f"{count} fits on a GPU (some GPU)") for text in facts.warnings(View(view.folder)))


def test_processors_of_fits_are_counted(tmp_path):
    view = study(tmp_path / "study")
    count = len(view.done)
    assert dict(facts.provenance(view))["processors of the fits"] == f"not recorded ({count})"
    scores = pd.read_parquet(view.folder / "scores.parquet")
    scores["processor"] = np.where(scores["method"] == "svgp", "of svgp", "")
    ours = int(((scores["method"] == "svgp") & (scores["status"] == "done")).sum())
    scores["dirty"] = scores["split"] == 0
    scores.to_parquet(view.folder / "scores.parquet")
    told = dict(facts.provenance(View(view.folder)))
    assert told["processors of the fits"] == f"not recorded ({count - ours}), of svgp ({ours})"
    assert told["fits with uncommitted changes"] == str(int(scores["dirty"].sum()))


def test_ranks_of_several_budgets_are_drawn_in_order_of_their_cost(tmp_path):
    quick, longer = study(tmp_path / "quick"), study(tmp_path / "longer", budget="check", quick=10.0)
    assert [run.study["budget"] for run in runs_of(quick)] == ["quick", "check"]
    ranked = mean_ranks([longer, quick])
    assert ranked["budget"].drop_duplicates().tolist() == ["quick", "check"]
    assert set(ranked["method"]) == set(SHOWN)
    assert ranked.groupby("budget")["rank"].sum().tolist() == [10.0, 10.0]
    hours = [float(run.done["seconds_train"].sum()) / 3600 for run in (quick, longer)]
    assert ranked["hours"].unique().tolist() == pytest.approx(hours)
    expected = quick.done.pivot_table("mnll", "dataset", "method").rank(axis=1).mean()
    assert ranked[ranked["budget"] == "quick"].set_index("method")["rank"].to_dict() == expected.to_dict()
    axis = draw(quick, "rank_by_budget").axes[0]
    assert axis.lines[0].get_xydata().tolist() == [pytest.approx([time, expected["svgp"]]) for time in hours]
    assert len(axis.lines) == len(SHOWN)
    assert axis.yaxis_inverted(), "the best on top"
    assert [label.get_text().split("\n")[1] for label in axis.get_xticklabels()] == ["quick", "check"]


def test_hours_are_of_the_methods_that_all_budgets_have_and_budgets_of_one_protocol(tmp_path):
    quick, longer = study(tmp_path / "quick"), study(tmp_path / "longer", budget="check")
    longer.fits.loc[longer.fits["method"] == "dsvi", "status"] = "failed"
    ranked = mean_ranks([quick, longer])
    assert set(ranked["method"]) == {*SHOWN} - {"dsvi"}
    seconds = quick.done.loc[quick.done["method"] != "dsvi", "seconds_train"]
    assert ranked.loc[ranked["budget"] == "quick", "hours"].unique().tolist() == [pytest.approx(seconds.sum() / 3600)]
    change_study(longer.folder, protocol="another")
    assert [run.study["budget"] for run in runs_of(quick)] == ["quick"]


def test_a_study_that_builds_on_another_is_compared_with_it(tmp_path):
    """As the committed run uci_converged, whose title goes on where that of uci_common ends."""
    quick, longer = study(tmp_path / "quick"), study(tmp_path / "longer", budget="converged", quick=10.0)
    for folder, more in ((longer.folder, ", converged"), (quick.folder, "")):
        change_study(folder, title="UCI" + more)
    for folder, budgets in ((longer.folder, ["converged", "quick"]), (quick.folder, ["quick", "converged"])):
        assert [run.study["budget"] for run in runs_of(View(folder))] == budgets
    runs = runs_of(View(REPOSITORY / "docs" / "results" / "uci_converged"))
    assert [run.study["name"] for run in runs] == ["uci_converged", "uci_common"]


def test_a_folder_beside_it_that_describes_no_study_is_one_line(ranked, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "study.json").write_text("{}")
    with pytest.raises(UserError, match=r"other/study\.json is damaged \(it describes no study\)"):
        runs_of(ranked)


def test_one_budget_alone_says_so(ranked):
    (text,) = draw(ranked, "rank_by_budget").axes[0].texts
    assert "have one budget only (quick)" in text.get_text()
