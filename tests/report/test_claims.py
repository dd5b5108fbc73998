"""Claims of papers: what may stand in their files, and what committed records say of them."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from claims_cases import BETTER, CARD, CONF, judged, quick_run, run
from scipy import stats
from synthetic_samplers import build_samplers
from synthetic_study import change_study

from gpbench.config.evidence import Claim, Comparison
from gpbench.errors import UserError
from gpbench.evaluation.compare import PairedDifference, paired_difference
from gpbench.report.papers import claims, finding
from gpbench.report.scorecard.counterparts import Counterparts
from gpbench.report.scorecard.published import read_published
from gpbench.report.view import View
from projects import REPOSITORY


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return quick_run(tmp_path_factory.mktemp("claims") / "quick")


def test_the_difference_is_paired_and_below_zero_where_the_first_is_better(quick):
    (result,) = judged([quick])
    scores = quick.view.per_split("mnll", "boston")
    expected = paired_difference(scores["dsvi"], scores["svgp"], 0.1)
    assert result.difference == expected
    assert expected.mean < 0 > expected.upper
    assert (result.kind, result.protocol) == (claims.HOLDS, "common")
    (reverse,) = judged([quick], methods=("svgp", "dsvi"))
    assert (reverse.kind, reverse.difference.mean) == (claims.FAILS, -expected.mean)
    # of a metric that is to be large, the larger one is better
    (larger,) = judged([quick], metric="accuracy")
    assert (larger.kind, larger.difference.mean) == (claims.HOLDS, pytest.approx(expected.mean))


def chains(folder):
    """A run of uci_common with chains of SVGP and BSGP-1 on boston."""
    build_samplers(folder, ["svgp", "bsgp_1"], ["boston"])
    change_study(folder, command="x study=uci_common")
    return folder


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_samplers_are_paired_over_data_sets_and_on_a_single_one_over_chains(tmp_path, splits):
    """Without the term for training rows that splits share: Student's paired interval. Chains of several data sets are
    not independent, as data sets differ."""
    folder = chains(tmp_path / "s")
    path = folder / "scores.parquet"
    scores = pd.read_parquet(path)
    scores["ess_percent"] = 10 + 5 * scores["split"] + np.random.default_rng(3).standard_normal(len(scores))
    scores[scores["split"] < splits].to_parquet(path)
    (result,) = judged([Counterparts(View(folder))], methods=("svgp", "bsgp_1"), metric="ess_percent")
    fits = pd.read_parquet(path).sort_values(["split", "replica"])
    if splits > 1:
        fits = fits.groupby(["method", "split"], as_index=False)["ess_percent"].mean()
    first, second = (-fits.loc[fits["method"] == name, "ess_percent"].to_numpy() for name in ("svgp", "bsgp_1"))
    expected = stats.ttest_rel(first, second)
    found = result.difference
    assert (found.n, result.splits) == (4 if splits == 1 else splits, splits)
    assert (found.lower, found.upper) == pytest.approx(tuple(expected.confidence_interval()))
    assert found.p == pytest.approx(expected.pvalue)


def test_samplers_on_several_data_sets_count_before_more_chains_on_one(tmp_path):
    def made(name, replicas, splits):
        folder = chains(tmp_path / name)
        scores = pd.read_parquet(folder / "scores.parquet")
        scores[(scores["replica"] < replicas) & (scores["split"] < splits)].to_parquet(folder / "scores.parquet")
        return Counterparts(View(folder))

    for runs in ([made("a", 4, 1), made("b", 2, 2)], [made("c", 2, 2), made("d", 4, 1)]):
        (result,) = judged(runs, methods=("svgp", "bsgp_1"), metric="ess_percent")
        assert (result.difference.n, result.splits) == (2, 2)


def test_a_data_set_on_which_chains_mix_does_not_stand_for_several_on_which_they_do_not(tmp_path):
    """The sampler ahead would be judged on those sets alone on which it does well."""
    several, single = chains(tmp_path / "several"), chains(tmp_path / "single")
    scores = pd.read_parquet(several / "scores.parquet")
    scores["ess_percent"] = np.where(scores["method"] == "svgp", 5.0 + 0.1 * scores["replica"], 1.0)
    scores["r_hat"] = np.where((scores["method"] == "svgp") & (scores["split"] == 1), 1.4, 1.0)
    scores.to_parquet(several / "scores.parquet")
    scores[scores["split"] == 0].to_parquet(single / "scores.parquet")
    runs = [Counterparts(View(folder)) for folder in (single, several)]
    (alone,), (result,) = (judged(of, methods=("svgp", "bsgp_1"), metric="ess_percent") for of in (runs[:1], runs))
    assert (alone.kind, alone.splits) == (claims.HOLDS, 1)
    assert (result.kind, result.splits) == (claims.NOT_JUDGED, 4)
    assert result.reason.startswith("not converged in 1 split: R-hat 1.4")


def test_seconds_that_all_chains_share_are_measured_once(tmp_path):
    """Chains alike in all but the clock of their batch are no faster; of several batches the clock has a spread."""
    folder = chains(tmp_path / "s")
    scores = pd.read_parquet(folder / "scores.parquet")
    scores["seconds_train"] = np.where(scores["method"] == "svgp", 19.0, 27.3)
    scores["ess_per_second"] = (500 + 40 * scores["replica"]) / scores["seconds_train"]

    def result(splits, metric):
        scores[scores["split"] < splits].to_parquet(folder / "scores.parquet")
        return judged([Counterparts(View(folder))], methods=("svgp", "bsgp_1"), metric=metric)[0]

    for metric in ("ess_per_second", "seconds_train"):
        assert (result(1, metric).kind, result(1, metric).difference.n) == (claims.UNDECIDED, 1)
    assert result(3, "ess_per_second").difference.n == 3


def test_chains_that_have_not_mixed_are_judged_where_they_have_fewer_effective_draws(tmp_path):
    """As many are counted at most; ahead, failed, or where equality is claimed, they say nothing."""
    folder = chains(tmp_path / "s")
    scores = pd.read_parquet(folder / "scores.parquet")

    def result(stuck, ahead, status="done", lost=-1, **changes):
        of_stuck = scores["method"] == stuck
        percent = 10.0 + (5.0 + 0.1 * scores["replica"] + 0.2 * scores["split"]) * (scores["method"] == ahead)
        percent = percent.mask(of_stuck & (scores["split"] == lost))
        made = scores.assign(ess_percent=percent, status=scores["status"].mask(of_stuck, status))
        made["r_hat"] = np.where(of_stuck, 1.4, 1.0)
        made["gate"] = np.where(of_stuck & (made["status"] == "done"), "failed", "passed")
        made.to_parquet(folder / "scores.parquet")
        return judged([Counterparts(View(folder))], methods=("svgp", "bsgp_1"), metric="ess_percent", **changes)[0]

    behind = result("bsgp_1", ahead="svgp")
    assert (behind.kind, behind.behind, behind.reason) == (claims.HOLDS, "bsgp_1", "")
    assert finding._difference(behind)[-2] == f"holds ({behind.runs[0].view.labels['bsgp_1']}: at most)"
    assert (result("svgp", ahead="bsgp_1").kind, result("svgp", ahead="bsgp_1").behind) == (claims.FAILS, "svgp")
    for changes in ({"status": "failed"}, {"expect": "equal"}, {"lost": 1}):
        assert result("bsgp_1", ahead="svgp", **changes).kind == claims.NOT_JUDGED
    assert result("bsgp_1", ahead="bsgp_1").kind == claims.NOT_JUDGED
    scores["ess_min"] = 30.0  # of both, so that the one ahead is too short
    assert result("bsgp_1", ahead="svgp").reason.startswith("chains of 2000 draws are 30 autocorrelation times long")


def test_splits_of_other_rows_are_not_paired(tmp_path):
    other = run(tmp_path / "a", n_test=lambda s: s["n_test"] + ((s["method"] == "dsvi") & (s["split"] == 1)))
    assert [(r.kind, r.reason) for r in judged([other])] == [(claims.NOT_JUDGED, "their splits have other test rows")]
    assert claims.described(judged([other])) == "not judged (1 not judged) at budget quick (1)"


def test_a_split_without_a_score_is_not_left_out(tmp_path):
    lacking = run(tmp_path / "a", mnll=lambda scores: scores["mnll"].mask(scores["split"] == 1))
    assert [(r.kind, r.reason) for r in judged([lacking])] == [(claims.NOT_JUDGED, "an infinite score, or none")]


def test_holm_corrects_over_the_data_sets_of_a_claim(quick):
    alone, several = judged([quick])[0], judged([quick], "boston", "concrete", "energy")
    assert alone.p == alone.difference.p
    assert [r.p for r in several] == pytest.approx([3 * alone.p] * 3)
    assert claims.verdict(several) == claims.HOLDS
    assert claims.described(several).startswith("holds (3 holds) at budget quick (3)")
    single = replace(several[0], difference=PairedDifference(-0.5, np.nan, np.nan, np.nan, 1))
    equal = replace(several[0], comparison=replace(several[0].comparison, expect="equal"))
    for untested in (single, equal):
        assert [r.p for r in claims._decided([untested, *several[1:]])][1:] == pytest.approx([2 * alone.p] * 2)
    # by Holm 0.09, 0.09 and 0.5 decide, not p
    close = [PairedDifference(-0.1, -0.2, -0.01, p, 5) for p in (0.04, 0.03, 0.5)]
    known = [replace(result, difference=difference) for result, difference in zip(several, close, strict=True)]
    assert {result.kind for result in claims._decided(known)} == {claims.UNDECIDED}
    assert [result.kind for result in claims._decided(known[:1])] == [claims.HOLDS]


def test_holm_corrects_apart_under_each_protocol_and_the_paper_s_comes_first(quick, tmp_path):
    run(tmp_path / "a")
    change_study(tmp_path / "a", protocol="rossi2021", command="x study=rossi2021_uci")
    parts = [Comparison(**BETTER | {"datasets": ["boston"], "studies": [of]}) for of in ("uci_common", "rossi2021_uci")]
    results = claims.judge(Claim("c", "Table 1", parts), [quick, Counterparts(View(tmp_path / "a"))], CONF)
    assert [r.protocol for r in results] == ["rossi2021", "common"]
    assert [r.p for r in results] == [r.difference.p for r in results]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([claims.HOLDS, claims.NOT_JUDGED], claims.HOLDS),
        ([claims.HOLDS, claims.UNDECIDED], claims.PARTLY),
        ([claims.HOLDS, claims.UNDECIDED, claims.FAILS], claims.MIXED),
        ([claims.UNDECIDED, claims.FAILS], claims.FAILS),
        ([claims.UNDECIDED, claims.NOT_JUDGED], claims.UNDECIDED),
        ([claims.NOT_RUN, claims.NOT_JUDGED], claims.NOT_JUDGED),
    ],
)
def test_a_claim_holds_in_part_where_it_fails_on_no_data_set(kinds, expected):
    comparison = Comparison(**BETTER)
    results = [claims.Result(comparison, f"set{i}", "common", kind) for i, kind in enumerate(kinds)]
    assert claims.verdict(results) == claims.verdict(results[::-1]) == expected


def test_equal_and_not_worse_are_judged_by_the_margin(quick):
    kinds = {
        expect: [judged([quick], expect=expect, methods=m)[0].kind for m in (("dsvi", "svgp"), ("svgp", "dsvi"))]
        for expect in ("equal", "not worse")
    }
    assert kinds == {"equal": [claims.FAILS] * 2, "not worse": [claims.HOLDS, claims.FAILS]}
    (close,) = judged([quick], expect="equal", metric="rmse")
    assert (close.kind, close.difference.mean) == (claims.HOLDS, pytest.approx(0.0102))
    assert close.margin == pytest.approx(0.05), "of the second, whose RMSE is 1"
    signs = [finding._relation(judged([quick], expect=expect)[0]) for expect in ("better", "equal", "not worse")]
    assert signs == [f"DSVI (2 layers) {sign} SVGP" for sign in "<=≤"]


def test_what_the_records_lack_is_not_run_and_one_split_not_significant(quick, tmp_path):
    assert judged([quick], "yacht")[0].kind == claims.NOT_RUN
    assert judged([quick], methods=("dsvi", "bsgp_1"))[0].kind == claims.NOT_RUN
    assert judged([quick], studies=["rossi2021_uci"])[0].kind == claims.NOT_RUN
    assert claims.described(judged([], "boston", "yacht")) == "not run (2 not run)"
    assert claims.described([]) == "-"
    (single,) = judged([run(tmp_path / "one", splits=1)])
    assert (single.kind, single.difference.n) == (claims.UNDECIDED, 1)


def test_fits_that_failed_are_not_judged_and_the_larger_budget_counts(quick, tmp_path):
    """Also where it is not judged: what it cannot tell a smaller one cannot either."""
    diverged = run(tmp_path / "a", "paper", status=lambda m, d, s: ("diverged", "x") if s == 3 else ("done", ""))
    assert judged([diverged])[0].reason == "1 diverged"
    assert judged([diverged, quick])[0].runs == judged([quick, diverged])[0].runs == (diverged, diverged)
    check = run(tmp_path / "b", "check", splits=2)
    assert judged([quick, check])[0].runs == judged([check, quick])[0].runs == (check, check)


def test_methods_of_two_runs_are_paired_by_split(tmp_path):
    """Where both are converged or at the published updates; not with a budget in which either is cut short."""

    def only(name, folder, budget, **arguments):
        return run(
            tmp_path / folder, budget, status=lambda m, *_: ("done" if m == name else "skipped", ""), **arguments
        )

    converged, paper, check = (
        only("dsvi", "a", "converged"),
        only("svgp", "b", "paper", splits=4),
        only("svgp", "c", "check"),
    )
    (result,) = judged([converged, paper, check])
    assert (result.kind, result.difference.n, result.runs) == (claims.HOLDS, 4, (converged, paper))
    assert claims.described([result]) == "holds (1 holds) at budget converged and paper (1)"
    assert judged([converged, check])[0].kind == claims.NOT_RUN
    quick = [only(name, f"quick-{name}", "quick") for name in ("dsvi", "svgp")]
    assert judged(quick)[0].kind == claims.NOT_RUN, "two runs cut short, maybe not alike"
    both = run(tmp_path / "d", "converged", splits=2)
    assert judged([converged, paper, both])[0].runs == (converged, paper), "of one smaller budget more splits"
    other = only("svgp", "e", "paper", splits=4)
    converged.settings, other.settings = "dsvi.layers=3", "svgp.jitter=1e-3"
    assert judged([other, converged, paper])[0].runs == (converged, paper), "one run of other settings, not two"
    converged.settings = "protocol.splits.seed=7"
    assert judged([converged, paper])[0].kind == claims.NOT_RUN, "their splits are not the same"


def test_which_of_several_runs_is_compared(quick, tmp_path):
    """That of more than one split, of the larger budget (of two runs the smaller counts), of the study's settings."""
    single = run(tmp_path / "a", "paper", splits=1)
    assert judged([single, quick])[0].runs == judged([quick, single])[0].runs == (quick, quick)
    whole = run(tmp_path / "b", "converged")
    longer = run(tmp_path / "c", "paper", splits=4, status=lambda m, *_: ("done" if m == "svgp" else "skipped", ""))
    assert judged([longer, whole])[0].runs == judged([whole, longer])[0].runs == (whole, whole)
    changed = run(tmp_path / "d", "quick", splits=8)
    for settings in ("svgp.jitter=1e-3", "svgp.steps=60000"):
        changed.settings = settings
        assert judged([changed, quick])[0].runs == judged([quick, changed])[0].runs == (quick, quick)


def test_a_run_that_is_judged_and_chains_that_have_mixed_count_before_the_settings_of_the_study(quick, tmp_path):
    diverged = run(tmp_path / "a", status=lambda m, d, s: ("diverged", "x") if s == 3 else ("done", ""))
    changed = run(tmp_path / "b")
    changed.settings = "svgp.jitter=1e-3"
    for runs in ([diverged, changed], [changed, diverged]):
        assert judged(runs)[0].runs == (changed, changed)
    as_set, other = judged([quick])[0], judged([changed])[0]
    assert claims._weight(replace(as_set, behind="svgp")) < claims._weight(other) < claims._weight(as_set)


def test_one_run_counts_before_two_with_more_updates_and_of_alike_ones_that_with_more(tmp_path):
    whole, more = run(tmp_path / "a", "converged"), run(tmp_path / "b", "converged")
    parts = [
        run(tmp_path / name, "converged", status=lambda m, *_, name=name: ("done" if m == name else "skipped", ""))
        for name in ("dsvi", "svgp")
    ]
    for one, updates in ((whole, 100), (more, 200), (parts[0], 900), (parts[1], 900)):
        one.updates = lambda *_, updates=updates: updates
    assert judged([*parts, whole])[0].runs == judged([whole, *parts])[0].runs == (whole, whole)
    assert judged([whole, more])[0].runs == judged([more, whole])[0].runs == (more, more)


def test_where_fits_end_by_the_rule_more_splits_count_before_the_most_updates_that_a_study_sets(tmp_path):
    own, longer = run(tmp_path / "a", "converged", splits=4), run(tmp_path / "b", "converged", splits=8)
    for settings, chosen in (("dsvi.steps=60000 svgp.steps=60000", longer), ("svgp.jitter=1e-3 svgp.steps=60000", own)):
        longer.settings = settings
        assert judged([own, longer])[0].runs == judged([longer, own])[0].runs == (chosen, chosen)


def test_runs_of_another_protocol_are_not_taken(tmp_path):
    other = run(tmp_path / "a")
    assert judged([other])[0].kind == claims.HOLDS
    change_study(tmp_path / "a", protocol="rossi2021")
    assert judged([Counterparts(View(tmp_path / "a"))])[0].kind == claims.NOT_RUN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["dsvj", "svgp"]}, r"method 'dsvj' in claim 1 of .*ashman2020.yaml; did you mean 'dsvi'"),
        ({"datasets": ["bostn_uci"]}, r"data set 'bostn_uci' in claim 1 of .*; did you mean 'boston_uci'"),
        ({"metric": "mnl"}, r"metric 'mnl' in claim 1 of .*; did you mean 'mnll'"),
        ({"studies": ["uci_comon"]}, r"study 'uci_comon' in claim 1 of .*; did you mean 'uci_common'"),
        (
            {"studies": ["uci_common", "rossi2021_uci"]},
            "claim 1 of .* must share one protocol, not common and rossi2021",
        ),
        ({"metrik": "mnll"}, r"key 'metrik' in .*ashman2020.yaml.*; did you mean 'metric'"),
    ],
)
def test_a_typo_is_one_line_with_the_file_and_the_nearest_name(tmp_path, change, message):
    content = {"date": "2026-11-22", "finding": "x"}
    claim = {"claim": "c", "where": "w", "comparisons": [BETTER | change]}
    (tmp_path / "ashman2020.yaml").write_text(yaml.safe_dump(content | {"claims": [claim]}))
    with pytest.raises(UserError, match=message):
        claims.read(tmp_path, CONF, CARD)


def test_a_wrong_paper_explanation_or_claim_without_test_is_refused(tmp_path):
    content = {"date": "2026-11-22", "finding": "x", "claims": []}
    path = tmp_path / "ashman202.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"paper 'ashman202' in .*ashman202.yaml; did you mean 'ashman2020'"):
        claims.read(tmp_path, CONF, CARD)
    path = path.rename(tmp_path / "ashman2020.yaml")
    explanation = {"item": "Table 4", "dataset": "bosto", "why": "w", "shown_by": "s"}
    path.write_text(yaml.safe_dump(content | {"explanations": [explanation]}))
    with pytest.raises(UserError, match=r"dataset 'bosto' in explanation 1 of .*; did you mean 'boston'"):
        claims.read(tmp_path, CONF, CARD)
    path.write_text(yaml.safe_dump(content | {"claims": [{"claim": "c", "where": "w"}]}))
    with pytest.raises(UserError, match="claim 1 of .* needs either `comparisons` or"):
        claims.read(tmp_path, CONF, CARD)


def test_every_paper_with_printed_numbers_has_claims(tmp_path):
    (tmp_path / ".ashman2020.a1b2c3d4.yaml").touch()  # as a process leaves it that is killed
    assert claims.read(tmp_path, CONF, CARD) == {}
    found = claims.read(REPOSITORY / "published" / "claims", CONF, read_published(REPOSITORY / "published"))
    assert {key: len(evidence.claims) for key, evidence in found.items()}.keys() == set(CARD["source"])
    assert all(3 <= len(evidence.claims) <= 12 for evidence in found.values())


def test_every_explanation_is_of_a_row_that_is_worse_or_differs_and_every_run_that_is_named_exists():
    runs = {path.name for path in (REPOSITORY / "docs" / "results").iterdir()}
    evidence = claims.read(REPOSITORY / "published" / "claims", CONF, CARD)
    for key, one in evidence.items():
        left = CARD[(CARD["source"] == key) & CARD["verdict"].isin(["worse", "differs"])]
        for explanation in one.explanations:
            rows = claims.rows_of(explanation, left)
            assert len(rows), (key, explanation.why)
            left = left.drop(rows.index)
        text = (REPOSITORY / "published" / "claims" / f"{key}.yaml").read_text()
        assert {name for name in re.findall(r"\b[a-z]+\d*[a-z_0-9]*-[0-9a-f]{6}\b", text)} <= runs


def test_many_data_sets_are_tested_together(quick):
    """The exact two-sided p of six differences with one sign is 2 / 2^6 = .031."""
    comparison = Comparison(["uci_common"], ("dsvi", "svgp"), "mnll")
    differences = [PairedDifference(-0.1 * i, -1.0, 1.0, 0.5, 5) for i in range(1, 7)]
    blank = claims.Result(comparison, "set7", "common", runs=(quick, quick))
    results = [replace(blank, dataset=f"set{i}", difference=d) for i, d in enumerate(differences)]
    assert claims.over_datasets(results) == [
        "DSVI (2 layers) is better than SVGP on 6 of 6 data sets, signed-rank p = 0.031"
    ]
    assert claims.over_datasets(results[:5]) == []
    alike = replace(comparison, expect="equal")
    assert claims.over_datasets([replace(result, comparison=alike) for result in results]) == []
    equal = replace(blank, difference=PairedDifference(0.0, -1.0, 1.0, 1.0, 5))
    chosen = [replace(results[0], behind="svgp"), *results[1:]]  # a set that is judged since SVGP is behind on it
    assert claims.over_datasets(chosen) == ["DSVI (2 layers) is better than SVGP on 6 of 6 data sets"]
    assert claims.over_datasets([*results, equal])[0].startswith("DSVI (2 layers) is better than SVGP on 6 of 7")
    assert finding._datasets(results, 5) == "6 data sets (-0.60 to -0.10)"
    assert finding._datasets(results[:1], 5) == "set0 -0.10 [-1.00, +1.00]"
