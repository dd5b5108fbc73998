"""The scorecard of all papers over all committed runs, its badge, and whether what is committed is still true."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image
from synthetic_study import all_done, build, change_scores, change_study

from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures.scorecard import FAMILIES, against
from gpbench.report.scorecard import all_runs, verdicts
from gpbench.report.scorecard.counterparts import Counterparts
from gpbench.report.scorecard.published import COLUMNS, read_published
from gpbench.report.view import View

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
BASE = dict.fromkeys(COLUMNS, "") | {"source": "ashman2020", "item": "Table 4", "dataset": "boston", "splits": 5}
BASE["data_sets"] = 1
BASE |= {"protocol": "common", "value": 2.5, "spread": 0.1, "spread_kind": "sample sd", "metric_printed": "mnll"}
BASE |= {"ours_method": "svgp", "ours_metric": "mnll", "factor": 1, "study": "ashman2020_uci", "method_printed": "SGP"}


def run(folder, budget="quick", protocol="common", splits=5, status=all_done, datasets=("boston",), words=""):
    """A committed run of SVGP."""
    build(folder, ["svgp"], datasets, splits, status, protocol=protocol)
    change_scores(folder, budget=budget)
    change_study(folder, budget=budget, command=f"snakemake --config study=ashman2020_uci{words}")
    return View(folder)


def best(views, **changes):
    return all_runs.scorecard(list(map(Counterparts, views)), pd.DataFrame([BASE | changes]), CONF).iloc[0]


@pytest.mark.parametrize(
    ("changes", "ours", "verdict"),
    [
        ({"metric_printed": "n_points", "value": 506}, 506, "agrees"),
        ({"metric_printed": "n_points", "dataset": "concrete", "value": 992}, 1030, "differs"),
        ({"metric_printed": "d_out", "dataset": "energy", "value": 2}, 2, "agrees"),  # targets
        ({"metric_printed": "d_out", "dataset": "wine", "value": 3}, 3, "agrees"),  # classes
        ({"metric_printed": "n_test", "dataset": "usps", "value": 2007}, 2007, "agrees"),
        # without an official split; a file that nobody pinned, whose rows are only documented; not ours; another metric
        ({"metric_printed": "n_test", "value": 51}, None, "not run: x"),
        ({"metric_printed": "n_points", "dataset": "higgs", "value": 11e6}, None, "not run: x"),
        ({"metric_printed": "n_points", "dataset": "scans", "value": 62}, None, "not run: x"),
        ({"metric_printed": "n_layers", "value": 2}, None, "not run: x"),
    ],
)
def test_facts_of_data_are_compared_with_our_data_set(changes, ours, verdict):
    nothing = {"spread": float("nan"), "spread_kind": "", "splits": 1, "rounding": 0.5}
    row = best([], **nothing, ours_method="", ours_metric="", study="", reason="x", **changes)
    assert (row["verdict"], row["run"]) == (verdict, "")
    assert row["ours"] == ours or (ours is None and pd.isna(row["ours"]))
    assert verdicts.group(row["ours_metric"]) == "bookkeeping"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "quick": run(folder / "a_quick"),
        "check": run(folder / "b_check", budget="check", splits=2),
        "many": run(folder / "c_many", splits=8),
        "changed": run(folder / "a_changed", splits=20, words=" overrides='svgp.steps=9 splits=20'"),
        "other": run(folder / "d_other", budget="paper", protocol="ashman2020", splits=20),
        "partial": run(
            folder / "e_partial",
            budget="paper",
            status=lambda m, d, split: ("done", "") if split else ("diverged", "x"),
        ),
        "full": run(folder / "g_full", budget="converged"),
        "begun": run(
            folder / "h_begun", budget="paper", status=lambda m, d, split: ("missing", "") if split else ("done", "")
        ),
        "failed": run(folder / "f_failed", budget="paper", status=lambda *_: ("failed", "no Cholesky")),
    }


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["quick", "check", "many"], "b_check"),
        (["quick", "many"], "c_many"),
        (["quick", "changed"], "a_quick"),
        (["other", "quick"], "a_quick"),
        (["partial", "quick"], "e_partial"),
        (["partial", "check"], "e_partial"),
        (["begun", "quick"], "a_quick"),
        (["partial", "full"], "g_full"),
        (["partial", "other"], "e_partial"),
        (["failed", "other"], "d_other"),
        (["failed"], "f_failed"),
    ],
)
def test_the_best_of_several_runs_stands_for_a_row(runs, names, chosen):
    """What is judged at the published budget, then what is complete and not judged there; then what is judged at a
    smaller one, what is not, and another protocol; the larger budget; no settings of a user; more splits."""
    assert best([runs[name] for name in names])["run"] == chosen
    assert best([runs[name] for name in reversed(names)])["run"] == chosen


def test_of_runs_that_are_alike_the_one_of_more_updates_is_compared(tmp_path):
    """Whatever their names are; of a fit that the rule ended, those that it made."""
    views = []
    for name, steps, done in (("a", 2000, 100), ("b", 200, None), ("c", 2000, 150)):
        folder = run(tmp_path / name).folder
        change_scores(folder, steps=float(steps), steps_done=done)
        views.append(View(folder))
    assert best(views)["run"] == best(views[::-1])["run"] == "b"
    more = run(tmp_path / "d", splits=8)
    more.fits["steps"] = 10.0
    assert best([*views, more])["run"] == "d", "more splits come first"


def test_a_number_of_any_data_set_stands_beside_the_first_of_ours_that_is_judged(tmp_path):
    def status(method, dataset, split):
        return ("diverged", "x") if (dataset, split) == ("boston", 1) else ("done", "")

    view = run(tmp_path / "s", status=status, datasets=("boston", "yacht"))
    found, of_yacht = best([view], dataset="any"), best([view], dataset="yacht")
    assert found["dataset"] == "any"
    assert verdicts.kind(best([view])["verdict"]) == "not judged"
    assert verdicts.kind(found["verdict"]) in verdicts.JUDGED
    assert (found["ours"], found["verdict"]) == (of_yacht["ours"], of_yacht["verdict"])
    unjudged = run(tmp_path / "t", status=status)
    assert best([unjudged], dataset="any")["verdict"] == best([unjudged])["verdict"]
    assert best([view], dataset="any", ours_method="dsvi")["run"] == ""


def test_ours_stands_with_run_budget_protocol_splits_commit_and_command(runs):
    found = best([runs["check"]])
    beside = ["run", "ours_budget", "ours_protocol", "ours_n", "ours_commit", "command", "compared"]
    expected = ["b_check", "check", "common", 2, "0123abc", "snakemake --config study=ashman2020_uci", "2 of 5 splits"]
    assert found[beside].tolist() == expected


def test_what_no_run_has_says_which_study_would_or_why_none(runs):
    found = best([runs["quick"]], dataset="energy")
    assert found["verdict"] == "not run: study ashman2020_uci would run it at budget quick"
    assert found["command"] == "snakemake --cores 2 --config study=ashman2020_uci"
    assert (found["run"], found["ours_n"]) == ("", 0)
    found = best([runs["quick"]], ours_method="", study="", reason="later: needs STRIDE")
    assert (found["verdict"], found["command"]) == ("not run: later: needs STRIDE", "")
    assert best([runs["failed"]])["verdict"] == "not run: failed: no Cholesky"
    other = best([runs["quick"]], study="rossi2021_uci")
    assert other["verdict"] == "not judged: study rossi2021_uci has the published settings"
    assert best([runs["quick"], runs["other"]], study="rossi2021_uci")["run"] == "a_quick", "of the same protocol"
    # a failed fit under another protocol says nothing of this one
    assert best([runs["failed"]], protocol="ashman2020")["verdict"].startswith("not run: study ashman2020_uci")


def test_a_run_is_compared_with_the_papers_that_its_study_names(tmp_path):
    view = run(tmp_path / "run")
    view.study["published"] = ["rossi2021"]
    rows = pd.DataFrame([BASE, BASE | {"source": "rossi2021"}])
    assert all_runs.scorecard([Counterparts(view)], rows, CONF)["run"].tolist() == ["", "run"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A project of two runs and the numbers of two papers, and what is written for it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "published").mkdir()
    for paper in ("ashman2020", "urbainczyk2025"):
        (folder / "published" / f"{paper}.csv").symlink_to(ROOT / "published" / f"{paper}.csv")
    run(folder / "results" / "one", protocol="ashman2020", splits=4, datasets=("boston", "concrete", "energy"))
    run(folder / "results" / "two", splits=3)
    where = all_runs.read_runs(folder / "results"), folder / "published", CONF, folder / "card"
    all_runs.write_scorecard(*where)
    return where


def test_every_published_row_is_covered_once_in_its_order(written):
    rows = read_published(written[1])
    card = all_runs.scorecard(written[0], rows, CONF)
    keys = ["source", "item", "dataset", "method_printed", "setting", "metric_printed", "value"]
    pd.testing.assert_frame_equal(card[keys], rows[keys])
    kinds = card["verdict"].map(verdicts.kind)
    assert set(kinds) <= set(verdicts.VERDICTS)
    assert kinds.isin(verdicts.JUDGED).any()
    numeric = kinds.isin([*verdicts.JUDGED, "not judged", "other protocol"])
    assert (card["ours"].notna() == numeric).all()
    unrun = card[kinds == "not run"]
    assert unrun["verdict"].str.len().gt(len("not run: ")).all()
    assert ((unrun["command"] != "") == (unrun["study"] != "")).all()


def test_counts_and_badge_add_up(written):
    card = pd.read_csv(written[-1] / "scorecard.csv")
    table = all_runs.counts(card)
    assert table.loc["all papers", "rows"] == len(card) == table["rows"].sum() / 2
    judged = int(table.loc["all papers", list(verdicts.JUDGED)].sum())
    groups = all_runs.by_group(card)
    facts = int((card["compared"] == "a fact of the data").sum())
    assert sum(map(len, groups.values())) == len(card)
    assert set(groups["samplers"]["ours_metric"]) <= {"ess_min", "acceptance_theta", "acceptance_latents", "r_hat"}
    predicted = all_runs.counts(groups["predictions"]).loc["all papers"]
    said = "".join(ET.fromstring((written[-1] / "badge.svg").read_text()).itertext())
    assert f"{judged - facts} of {predicted['rows']} judged, {predicted['agrees']} agree, " in said
    page = (written[-1] / "scorecard.md").read_text()
    assert sum(page.count(f"\n| {paper}, ") for paper in set(card["source"])) == judged
    assert "A verdict holds for the method at the budget beside it." in page
    left = [line for line in page.split("**Rows without a verdict**")[1].splitlines() if line.startswith("| ")][2:]
    assert sum(int(line.split("|")[-2]) for line in left) == len(card) - judged


def test_rows_without_a_verdict_are_open(tmp_path):
    kinds = ["agrees", "inconclusive", "not judged: x", "other protocol (ours a, published b)", "not run: y"]
    card = pd.DataFrame({"study": ["one"] * 5 + [""], "verdict": [*kinds, "not run: no method given"]})
    card.to_csv(tmp_path / "scorecard.csv", index=False)
    assert all_runs.open_rows(tmp_path / "scorecard.csv") == {"one": 3}
    assert all_runs.open_rows(tmp_path / "none.csv") == {}


def test_the_same_numbers_give_the_same_texts(written):
    _, contents = all_runs.texts(*written[:-1])
    assert contents == {name: (written[-1] / name).read_text() for name in contents}
    assert set(contents) == {"scorecard.csv", "scorecard.md", "badge.svg"}


def test_what_is_stale_is_named(written, tmp_path):
    for name in ("scorecard.csv", "scorecard.md"):
        (tmp_path / name).write_bytes((written[-1] / name).read_bytes())
    Image.new("RGB", (1, 1)).save(tmp_path / "scorecard.png")
    assert all_runs.stale(*written[:-1], tmp_path) == [tmp_path / "badge.svg", tmp_path / "scorecard.png"]
    assert all_runs.stale(*written) == []


def test_without_any_run_all_is_not_run(tmp_path):
    none = all_runs.read_runs(tmp_path / "none")
    card = all_runs.scorecard(none, pd.DataFrame([BASE, BASE | {"study": "", "reason": "a bound"}]), CONF)
    kinds = card["verdict"].map(verdicts.kind)
    assert set(kinds) == {"not run"}
    assert "published predictions: 0 of 2 judged, 0 agree" in all_runs.badge(card)


def test_the_figure_draws_every_number_in_the_panel_of_its_metric():
    """An accuracy of 0.9 as 0.1; what lies far off at the edge of its panel; a legend that counts verdicts."""
    row = {"published_sd": 0.01, "splits": 4, "ours_sd": 0.02, "ours_n": 16, "standard_error": 0.05}
    numbers = [
        *(("mnll", 1.0, 1.01, "agrees"), ("mnll", -2.0, 0.5, "worse"), ("rmse", 3.0, 2.0, "better")),
        *(("accuracy", 0.9, 0.8, "worse"), ("error", 0.2, 0.2, "agrees"), ("acceptance_theta", 0.2, 0.6, "differs")),
        *(
            ("r_hat_classic_1000", 1.5, 1.4, "not judged: x"),
            ("ess_percent", 2.0, 1.0, "other protocol (ours x, published y)"),
        ),
        *(("cubic", 20.0, 20.0, "agrees"), ("smse", 0.2, 0.3, "worse")),
    ]
    names = ["ours_metric", "published", "ours", "verdict"]
    card = pd.DataFrame([row | dict(zip(names, values, strict=True)) for values in numbers])
    card["difference"] = card["ours"] - card["published"]
    card.loc[2, ["ours", "difference"]] = 3.5, -1.0  # paired: judged and drawn by the splits that both have
    figure = against(card)
    panels = {title.strip(): axis for axis in figure.axes if (title := axis.get_title("left"))}
    assert list(panels) == [family.title for family in FAMILIES]
    assert [int(axis.get_title("right")) for axis in panels.values()] == [2, 1, 2, 1, 1, 1, 1, 1]
    (paired,) = (line for line in panels["RMSE"].lines if line.get_marker() == "^")
    assert tuple(paired.get_xydata()[0]) == pytest.approx((3, 2))
    drawn = [
        tuple(map(float, line.get_xydata()[0]))
        for line in panels["errors, Brier scores"].lines
        if line.get_marker() == "v"
    ]
    assert drawn == [pytest.approx((0.1, 0.2))]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["agrees (3)", "better (1)", "worse (3)", "differs (1)", "not judged (1)", "other protocol (1)"]


def test_every_metric_has_a_panel():
    titles = {name: next(family.title for family in FAMILIES if family.holds(name)) for name in METRICS}
    assert {titles[name] for name in ("accuracy", "auc", "brier", "error")} == {"errors, Brier scores"}
    assert titles["ess_percent_per_cubic"] == "effective sample sizes"
