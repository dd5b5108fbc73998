"""What the documentation shows of committed records is made of them, and nothing stale passes."""

from __future__ import annotations

import json
import re
import shutil

import pandas as pd
import pytest
from synthetic_study import build, change_study

from gpbench.errors import UserError
from gpbench.report.export import documents
from gpbench.report.joined import Joined
from gpbench.report.scorecard import all_runs
from gpbench.report.scorecard.counterparts import Counterparts
from gpbench.report.scorecard.verdicts import JUDGED, kind
from gpbench.report.significance import comparisons
from gpbench.report.view import UNMIXED, View
from projects import REPOSITORY

README = "# x\n<!-- findings -->\n<!-- end -->\n<!-- results -->\n<!-- end -->\n<!-- scorecard -->\n<!-- end -->\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory, published):
    """A project with one small committed run and the numbers of one paper, whose documents are made."""
    root = tmp_path_factory.mktemp("documents")
    study = build(root / "study", ["svgp", "constant"], ["boston", "banana"], 2)
    run = root / "docs" / "results" / documents.RUN
    run.mkdir(parents=True)
    shutil.copy(study / "study.json", run)
    change_study(run, name=documents.RUN)
    pd.read_parquet(study / "scores.parquet").to_csv(run / "scores.csv", index=False)
    (root / "conf").symlink_to(REPOSITORY / "conf")
    (root / "published").symlink_to(published)
    (root / "README.md").write_text(README)
    (root / "docs" / "findings.yaml").write_text(json.dumps({"claims": []}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "RUNS", (documents.RUN,))
        patch.setattr(documents, "FIGURES", ("pareto",))
        patch.setattr(documents, "TABLES", ("regression_mnll", "ranks"))
        documents.make(root)
        yield root


def in_words(view):
    return documents.summary(view).replace("\n", " ")


def test_documents_are_current_until_a_score_changes(root):
    documents.check(root)
    path = root / "docs" / "results" / documents.RUN / "scores.csv"
    before, scores = path.read_text(), pd.read_csv(path, dtype=str)
    scores.loc[(scores["method"] == "svgp") & (scores["dataset"] == "boston"), "mnll"] = "123.0"
    scores.to_csv(path, index=False)
    (root / "docs" / "scorecard" / "badge.svg").unlink()
    with pytest.raises(UserError, match=r"run `make docs` and commit what it writes") as error:
        documents.check(root)
    path.write_text(before)
    for name in ("regression_mnll.md", "ranks.md", "statistics.md", "scorecard/badge.svg", "figures/pareto.png"):
        assert name in str(error.value)


def test_a_cell_that_has_not_converged_is_that_of_a_longer_run(root):
    """As a whole, of a run with all of its splits done; others stay, and so do cells that have converged."""
    own, longer, shorter = (View(root / "study") for _ in range(3))
    for view in (own, shorter):
        view.fits.loc[(view.fits["method"] == "svgp") & (view.fits["split"] == 1), "status"] = UNMIXED
    for view, loss in ((own, 1.0), (longer, 2.0), (shorter, 3.0)):
        view.fits["mnll"] = loss
        view.fits["steps"] *= 1 + (view is not own)
    vars(longer)["fits"] = longer.fits.query("dataset != 'banana' or split != 1")
    joined = Joined(own, [shorter, longer])
    assert list(joined.taken) == [("svgp", "boston")]
    assert joined.borrowed == "With more updates or rows (study): SVGP on boston."
    assert joined.warning.startswith(f"{joined.borrowed} ✗ Not converged: SVGP on banana.")
    means = joined.cells("mnll").set_index(["method", "dataset"])
    assert means["mean"].to_dict() == dict.fromkeys(means.index, 1.0) | {("svgp", "boston"): 2.0}
    assert means.index[~means["complete"]].tolist() == [("svgp", "banana")]
    assert joined.fits[["method", "dataset", "split"]].equals(own.fits[["method", "dataset", "split"]])
    assert not Joined(shorter, [longer]).taken, "as many updates are no more"
    own.fits["steps"] *= 4
    assert not Joined(longer, [own]).taken, "what has converged stays"


def test_a_run_at_another_budget_gives_no_cells(root):
    own, other = View(root / "study"), View(root / "study")
    own.fits["status"] = own.fits["method"].map({"svgp": "skipped"}).fillna(UNMIXED)
    own.fits["steps"] -= own.fits["status"] == UNMIXED
    joined = Joined(own, [other])
    assert len(joined.taken) == 4
    assert "4 cells are of runs with more updates or rows (2 of Constant, 2 of SVGP)." in in_words(joined)
    other.study["budget"] = "paper"
    assert not Joined(own, [other]).taken


@pytest.mark.parametrize(("column", "value"), [("n_test", 7), ("preset", "other"), ("steps", 1), ("split", 9)])
def test_fits_of_other_rows_or_presets_and_of_fewer_updates_are_not_taken(root, column, value):
    own, other = View(root / "study"), View(root / "study")
    own.fits["status"] = UNMIXED
    other.fits["steps"] += 1
    other.fits.loc[other.fits["dataset"] == "boston", column] = value
    assert {dataset for _, dataset in Joined(own, [other]).taken} == {"banana"}


def test_a_run_with_more_splits_than_ours_gives_no_cells(root):
    own, other = View(root / "study"), View(root / "study")
    vars(own)["fits"] = own.fits[(own.fits["dataset"] != "boston") | (own.fits["split"] == 0)]
    own.fits["status"] = UNMIXED
    other.fits["steps"] += 1
    assert {dataset for _, dataset in Joined(own, [other]).taken} == {"banana"}


def test_a_run_with_another_model_gives_no_cells(root):
    own = Counterparts(View(root / "docs" / "results" / documents.RUN))
    names = ["svgp.steps=60000 trainer.replicas=1", "svgp.num_inducing=500 svgp.steps=60000", "budget.gain=1", ""]
    others = [Counterparts(View(own.view.folder)) for _ in names]
    own.view.fits["status"] = UNMIXED
    own.view.fits["steps"] -= 1
    for other, settings in zip(others, names, strict=True):
        other.settings = settings
    others[-1].study = "another"
    (joined,) = documents.joined([*others, own])
    assert {id(view) for view in joined.taken.values()} == {id(others[0].view)}
    assert not documents.joined([*others[1:], own])[0].taken


def test_a_run_that_the_documentation_shows_must_be_there():
    with pytest.raises(UserError, match=f"docs/results has no run {documents.RUN}.*restore it by"):
        documents.joined([])


def test_blocks_of_a_text_are_replaced_and_must_exist():
    text = "a\n<!-- results -->\nold\n<!-- end -->\nb\n"
    result = documents.filled(text, {"results": "new\n"})
    assert result == "a\n<!-- results -->\nnew\n<!-- end -->\nb\n"
    assert documents.filled(result, {"results": "new\n"}) == result
    with pytest.raises(UserError, match="no block '<!-- scorecard -->"):
        documents.filled(text, {"scorecard": "x"})


@pytest.mark.parametrize("pair", [("svgp", "constant"), ("constant", "svgp")])
def test_the_readme_says_which_method_of_a_pair_is_worse(root, monkeypatch, pair):
    usual, told = comparisons.compare, {"pairs": [{"a": pair[0], "b": pair[1], "reject": no} for no in (True, False)]}
    monkeypatch.setattr(comparisons, "compare", lambda *words: usual(*words) | told)
    text = in_words(Joined(View(root / "study"), []))
    ranks = "best mean ranks by MNLL: SVGP 1.0, Constant 2.0."
    assert f"{ranks} 1 of 2 pairs differ significantly; the worse method is Constant in 1." in text
    assert "8 fits of 2 methods on 2 data sets" in text


def test_the_readme_says_what_of_a_study_is_missing(root):
    view = Joined(View(root / "study"), [])
    view.fits.loc[view.fits["method"] == "constant", "status"] = "missing"
    view.fits.loc[(view.fits["method"] == "svgp") & (view.fits["split"] == 1), "status"] = UNMIXED  # which has scores
    text = in_words(view)
    assert "4 fits of 1 method on 2 data sets, protocol common" in text
    assert "splits; 4 of Constant are missing. " in text


def test_the_readme_says_where_not_every_method_is_complete(root):
    view = Joined(View(root / "study"), [])
    view.fits.loc[(view.fits["method"] == "svgp") & (view.fits["dataset"] == "banana"), "status"] = "failed"
    assert "2 methods are complete on 1 of them (not on banana), " in in_words(view)


def test_the_readme_counts_what_the_scorecard_says():
    card = pd.read_csv(REPOSITORY / "docs" / "scorecard" / "scorecard.csv")
    groups = all_runs.by_group(card)
    total = all_runs.counts(groups["predictions"]).loc["all papers"]
    text = documents.verdicts(card).replace("\n", " ")
    start = f"Of {total['rows']} published predictions: {total['agrees']} agrees, {total['better']} better"
    assert text.startswith(start)
    assert sum(map(int, re.findall(r"\d+", text.split(":")[1].split(".")[0]))) == total["rows"]
    of_samplers = groups["samplers"]["verdict"]
    judged, agreed = of_samplers.map(kind).isin(JUDGED), of_samplers == "agrees"
    mixed = groups["samplers"].loc[agreed, "ours_metric"].str.startswith("r_hat").sum()
    said = f"samplers: {judged.sum()} of {len(judged)} judged, {agreed.sum()} agree (R-hats: {mixed}), "
    said += f"{(of_samplers.map(kind) == 'inconclusive').sum()} inconclusive"
    assert said in text
