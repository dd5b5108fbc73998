"""What is left out of a comparison and why, practical differences, and the figures that rest on complete cells."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from figure_texts import texts
from scipy.stats import friedmanchisquare
from synthetic_study import all_done, build, change_scores, with_scores

from gpbench.errors import UserError
from gpbench.evaluation.compare import friedman, ranks
from gpbench.evaluation.practical import ROPES, correlated_t_posterior, decision, signed_rank_posterior
from gpbench.report.figures import canvas, draw
from gpbench.report.figures.profiles import prices
from gpbench.report.registry import TABLES
from gpbench.report.significance.comparisons import (
    COMPARISONS,
    compare,
    complete_losses,
    differences_to_best,
    indistinct_groups,
    posteriors,
    statistics,
)
from gpbench.report.significance.findings import left_out, p_value, sentences, to_markdown, unconverged
from gpbench.report.view import View

FIELDS = ("a_better", "equal", "b_better")
SPEC = {spec.name: spec for spec in COMPARISONS}


def test_what_is_left_out_is_counted_with_reasons(view):
    dropped = {row["name"]: row for row in compare(view, SPEC["all_mnll"])["dropped"]}
    assert dropped["exact_gp"]["reasons"] == {"skipped: regression only": 3}
    assert [dropped["exact_gp"][key] for key in ("kind", "complete", "cells")] == ["method", 4, 7]
    assert dropped["boston"] == {
        **{"kind": "dataset", "name": "boston", "complete": 7, "cells": 8},
        "reasons": {"partly diverged": 1},
    }
    text = left_out(compare(view, SPEC["all_mnll"]), view)
    assert "Exact GP: 4 of 7 data sets (3 skipped: regression only)" in text
    assert "DSVI (2 layers): 6 of 7 data sets (1 partly stopped)" in text
    assert "yacht: 7 of 8 methods (1 failed: layer 1: Cholesky failed with jitter" in text


def test_statistics_say_what_they_rest_on(statistics_folder):
    text = (statistics_folder / "statistics.md").read_text()
    assert "Protocol common, budget quick, 5 splits; fits of commit 0123abc." in text
    assert text.count("Left out because not every cell is complete") == len(COMPARISONS)


def test_statistics_name_what_was_overridden(view):
    other = View(view.folder)
    other.study["command"] += " overrides='svgp.num_inducing=50 splits=5'"
    assert "5 splits, overrides 'svgp.num\\_inducing=50 splits=5'; fits" in to_markdown({"comparisons": {}}, other)


def test_statistics_say_whether_any_code_was_uncommitted(view):
    other = View(view.folder)
    assert "uncommitted" not in to_markdown({"comparisons": {}}, other)
    other.done.loc[other.done.index[0], "dirty"] = True
    assert "fits of commit 0123abc with uncommitted changes." in to_markdown({"comparisons": {}}, other)


def test_a_label_is_no_markup_in_the_statistics(view, statistics_folder):
    relabelled = View(view.folder)
    relabelled.labels["svgp"] = "*a* | __b__ <i>"
    text = to_markdown(json.loads((statistics_folder / "statistics.json").read_text()), relabelled)
    assert r"\*a\* \| \_\_b\_\_ &lt;i>" in text
    assert "*a*" not in text


def test_a_method_that_is_not_of_the_task_leaves_first(tmp_path):
    """By shares alone the binary data set would go: a third of its cells is missing, as of the method's."""
    folder = build(tmp_path / "s", ["svgp", "dsvi", "exact_gp"], ["boston", "concrete", "banana"], 2)
    losses, dropped = complete_losses(View(folder), SPEC["all_mnll"])
    assert [row["name"] for row in dropped] == ["exact_gp"]
    assert losses.shape == (3, 2)


def test_a_method_that_is_too_large_for_one_data_set_is_of_the_task(tmp_path):
    def outcome(method, dataset, _):
        return ("skipped", "at most 400 rows") if (method, dataset) == ("exact_gp", "concrete") else ("done", "")

    folder = build(tmp_path / "s", ["svgp", "dsvi", "exact_gp"], ["boston", "concrete", "energy"], 2, outcome)
    _, dropped = complete_losses(View(folder), SPEC["regression_mnll"])
    assert [row["name"] for row in dropped] == ["concrete"]


def test_a_group_holds_no_pair_that_differs():
    """b and c differ, though a differs from neither."""
    pairs = pd.DataFrame({"a": ["a", "a", "b"], "b": ["b", "c", "c"], "reject": [False, False, True]})
    assert indistinct_groups(["a", "b", "c"], pairs) == [["a", "b"]]
    assert indistinct_groups(["a", "b", "c"], pairs.assign(reject=False)) == [["a", "b", "c"]]


@pytest.mark.parametrize("column", ["protocol", "budget"])
def test_mixtures_are_refused(small, tmp_path, column):
    scores = pd.read_parquet(small / "scores.parquet")
    scores.loc[0, column] = "other"
    with pytest.raises(UserError, match=f"mixes {column}"):
        statistics(View(with_scores(small, scores, tmp_path)))


def test_practical_differences_over_data_sets_have_every_pair(view):
    spec = SPEC["classification_error"]
    losses, _ = complete_losses(view, spec)
    found = posteriors(view, spec)
    assert len(found) == losses.shape[1] * (losses.shape[1] - 1) // 2
    row = found.iloc[-1]
    expected = asdict(signed_rank_posterior(losses[row["a"]], losses[row["b"]], "error"))
    assert row[list(FIELDS)].to_dict() == expected
    first = posteriors(view, spec, best_only=True)
    pd.testing.assert_frame_equal(first, found[: losses.shape[1] - 1])


def test_the_table_sets_the_first_in_rank_against_all_others(view):
    table = TABLES["bayes"].function(view)
    data = table.data.query("comparison == 'regression_rmse'").set_index("b")
    heading = f"Regression, RMSE (4 data sets): {view.labels[data['a'].iloc[0]]} against it"
    shown = table.shown.set_index("method")[heading]
    assert (data["a"] == "bsgp_1").all()
    assert shown["BSGP (1 layer)"] == "(first)"
    assert shown["BSGP (2 layers)"] == "-", "one split diverged"
    assert shown["Constant"].strip("*") == " / ".join(f"{data.loc['constant', key]:.2f}" for key in FIELDS)
    assert not shown["Constant"].startswith("**"), "of four data sets"
    assert ROPES["rmse"].in_words in table.note


def test_differences_to_the_best_have_their_posterior(view):
    found = differences_to_best(view, "rmse", "concrete").set_index("method")
    scores = view.per_split("rmse", "concrete")
    expected = correlated_t_posterior(scores["constant"], scores[found["best"].iloc[0]], 0.1, "rmse")
    assert found.loc["constant", ["better", "equal", "worse"]].tolist() == list(asdict(expected).values())


def test_the_best_has_the_smallest_mean(tmp_path):
    """Not the smallest median, which one bad split leaves as it is."""
    folder = build(tmp_path / "s", ["svgp", "dsvi"], ["boston"], 3, all_done)
    of_svgp = {0: 0.0, 1: 0.0, 2: 9.0}
    change_scores(folder, mnll=lambda scores: scores["split"].map(of_svgp).where(scores["method"] == "svgp", 1.0))
    found = differences_to_best(View(folder), "mnll", "boston")
    assert found[["method", "best", "difference"]].to_numpy().tolist() == [["svgp", "dsvi", 2.0]]


def test_two_data_sets_of_three_methods_are_enough_for_friedmans_test(tmp_path):
    folder = build(tmp_path / "s", ["svgp", "dsvi", "constant"], ["boston", "energy"], 2, all_done)
    losses, _ = complete_losses(View(folder), SPEC["regression_mnll"])
    expected = friedmanchisquare(*losses.to_numpy().T)
    found = compare(View(folder), SPEC["regression_mnll"])["friedman"]
    assert found["chi_squared"] == pytest.approx(expected.statistic)


def test_the_f_of_three_data_sets_is_not_shown(view):
    """Three methods that are alike have p < 0.05 in more than one of eight cases, on four data sets in fewer."""
    rng, rates = np.random.default_rng(0), {}
    for n in (3, 4):
        found = [friedman(pd.DataFrame(rng.random((n, 3)))).p_f for _ in range(200)]
        rates[n] = np.mean([0 < p < 0.05 for p in found])
    assert rates[4] < 0.1 < 0.125 < rates[3]
    test = {"chi_squared": 5.0, "p_chi_squared": 0.08, "f": 9.0, "p_f": 0.03}
    found = compare(view, SPEC["regression_mnll"]) | {"friedman": test, "bayes": []}
    texts = [" ".join(sentences(found | {"datasets": list("abcd")[:n]}, view)) for n in (3, 4)]
    assert ["Iman-Davenport: p = 0.03" in text for text in texts] == [False, True]


def test_of_methods_that_are_alike_the_first_is_better_than_about_a_quarter():
    """What the sentence on Bayesian signed-rank tests says of seven methods and more."""
    rng, decided = np.random.default_rng(0), []
    for n in (6, 11) * 20:
        losses = pd.DataFrame(rng.standard_normal((n, 7)))
        first, *others = ranks(losses).mean().sort_values().index
        found = [decision(signed_rank_posterior(losses[first], losses[m], "mnll", 300)) for m in others]
        decided += [name == "a_better" for name in found]
    assert 0.2 < np.mean(decided) < 0.35


def test_who_shares_the_first_place_is_not_first(tmp_path):
    folder = build(tmp_path / "s", ["svgp", "dsvi"], ["boston", "energy"], 2, lambda *_: ("done", ""))
    scores = pd.read_parquet(folder / "scores.parquet")
    scores["mnll"] = 1.0 + ((scores["method"] == "dsvi") & (scores["dataset"] == "energy"))
    scores.to_parquet(folder / "scores.parquet")
    ranked = compare(View(folder), SPEC["regression_mnll"])["ranks"]
    assert [(row["method"], row["mean_rank"], row["firsts"]) for row in ranked] == [
        ("svgp", 1.25, 1),
        ("dsvi", 1.75, 0),
    ]
    assert len(differences_to_best(View(folder), "mnll", "energy")) == 1, "two splits are enough"


def test_a_sentence_says_what_is_undecided(view):
    found = compare(view, SPEC["regression_mnll"])
    pairs = posteriors(view, SPEC["regression_mnll"]).to_dict("records")
    assert "Bayesian" not in " ".join(sentences(found | {"bayes": pairs}, view))  # of four data sets
    sentence = sentences(found | {"bayes": pairs, "datasets": list("abcdef")}, view)[-1]
    first = found["ranks"][0]["method"]
    for key, words in (("a_better", "better than"), ("undecided", "undecided versus")):
        names = [view.labels[pair["b"]] for pair in pairs if pair["a"] == first and pair["decision"] == key]
        assert (f"{words} {', '.join(names)}" in sentence) == bool(names)
    assert f"{view.labels[first]} is" in sentence


def test_pairs_differ_by_the_corrected_test(view):
    found, row = compare(view, SPEC["regression_mnll"]), {"a": "svgp", "b": "constant", "p": 0.01}
    pairs = [row | {"reject": False}, row | {"a": "bsgp_1", "reject": True}]
    text = " ".join(sentences(found | {"pairs": pairs}, view))
    assert "correction: 1 of 2 pairs differ significantly: BSGP (1 layer) and Constant." in text


def test_small_p_values_are_not_zero():
    assert [p_value(p) for p in (0.012, 0.0005, 0.00009)] == ["p = 0.012", "p = 0.00050", "p < 0.0001"]


def test_ranks_are_told_a_second_time_where_that_adds_a_data_set(view):
    told = {"datasets": ["boston"], "methods": ["svgp", "dsvi"]}
    more = {"datasets": ["boston", "energy"], "ranks": {"dsvi": 1.0, "svgp": 2.0}}
    assert unconverged(told | {"unconverged": more | {"datasets": ["boston"]}}, view) == ""
    assert "2 methods on 2 data sets: DSVI (2 layers) 1.00" in unconverged(told | {"unconverged": more}, view)


def test_curves_reach_the_share_of_data_sets_within_a_distance(view):
    losses, _ = complete_losses(view, SPEC["regression_mnll"])
    axis = draw(view, "performance_profile").axes[0]
    curves = {line.get_label().split("%  ")[1]: line for line in axis.get_lines() if "%" in line.get_label()}
    assert set(curves) == {view.labels[method] for method in losses.columns}
    for method in losses.columns:
        x, y = curves[view.labels[method]].get_data()
        distance = losses[method] - losses.min(axis=1)
        at = float(distance.median())
        assert y[x <= at + 1e-12].max() == pytest.approx((distance <= at + 1e-12).mean())
        assert curves[view.labels[method]].get_label().startswith(f"{(distance <= 0.01).mean():4.0%}")
    assert axis.get_title("right") == "left out: 3 methods"
    assert len(axis.collections) == 1  # the band of the first


def test_the_front_is_priced_by_the_geometric_mean(view):
    losses, _ = complete_losses(view, SPEC["classification_mnll"])
    found = prices(view, losses)
    seconds = view.done[view.done["dataset"].isin(losses.index) & (view.done["method"] == "svgp")]
    medians = seconds.groupby("dataset")["seconds_train"].median()
    assert found.loc["svgp", "seconds"] == pytest.approx(np.prod(medians) ** (1 / 3))
    assert found.loc["svgp", "excess"] == pytest.approx((losses["svgp"] - losses.min(axis=1)).mean())
    axis = draw(view, "pareto").axes[1]
    named = {text.get_text() for text in axis.texts}
    assert axis.get_title(loc="right") == "left out: 2 methods"
    assert {"Constant", view.labels[found["excess"].idxmin()]} <= named


def test_what_nobody_timed_has_neither_a_price_nor_a_total(tmp_path):
    """Predictions that were published split by split are ranked, but not on the front of costs."""
    folder = build(tmp_path / "study", ["svgp", "dsvi", "constant"], ["boston", "energy"], 3, all_done)
    change_scores(folder, seconds_train=lambda scores: scores["seconds_train"].mask(scores["method"] == "dsvi"))
    view = View(folder)
    assert view.labels["dsvi"] not in texts(draw(view, "pareto"))
    of_dsvi = TABLES["cost"].function(view).shown.set_index("method").loc[view.labels["dsvi"]]
    assert of_dsvi[["data sets", "training s per fit", "range", "training s in total"]].tolist() == [2, "-", "-", "-"]
    change_scores(folder, seconds_train=lambda scores: scores["seconds_train"].where(scores["method"] == "svgp"))
    (text,) = draw(View(folder), "pareto").axes[0].texts
    assert "No front" in text.get_text()


@pytest.mark.parametrize("name", ["critical_difference", "performance_profile", "pareto"])
def test_committed_records_are_enough(small, tmp_path, name):
    shutil.copy(small / "study.json", tmp_path)
    pd.read_parquet(small / "scores.parquet").to_csv(tmp_path / "scores.csv", index=False)
    shown = [axis.get_title("left") for axis in draw(View(tmp_path), name).axes]
    assert "Regression, MNLL (1 data set)" in shown


def test_costs_are_mean_seconds_against_mean_losses_with_standard_deviations(small_view):
    boston = draw(small_view, "cost").axes[0]
    fits = small_view.done.query("dataset == 'boston'").groupby("method", sort=False)[["seconds_train", "mnll"]]
    np.testing.assert_allclose([bar.lines[0].get_xydata()[0] for bar in boston.containers], fits.mean())
    reach = [[np.ptp(bar.lines[2][i].get_segments()[0][:, i]) / 2 for i in (0, 1)] for bar in boston.containers]
    np.testing.assert_allclose(reach, fits.std(ddof=1))


def test_methods_stand_at_their_mean_ranks_over_a_line_that_joins_what_is_not_told_apart(view):
    """Four data sets cannot tell any two methods apart."""
    losses, _ = complete_losses(view, SPEC["regression_mnll"])
    rank, looks = losses.rank(axis=1).mean(), canvas.looks(view)
    axis = draw(view, "critical_difference").axes[1]
    marks = {line.get_color(): line.get_xdata()[0] for line in axis.lines if len(line.get_xdata()) == 1}
    assert marks == pytest.approx({looks[method].color: value for method, value in rank.items()})
    shown = {" ".join(text.get_text().split()) for text in axis.texts}
    for method, value in rank.items():
        assert {f"{view.labels[method]} {value:.2f}", f"{value:.2f} {view.labels[method]}"} & shown
    (joined,) = (line.get_xdata() for line in axis.lines if line.get_linewidth() == 2.5)
    assert joined == pytest.approx([rank.min() - 0.06, rank.max() + 0.06])
