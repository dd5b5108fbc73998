"""Claims of papers: what may stand in their files, what committed records say of them, and their pages."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats
from synthetic_samplers import build_samplers
from synthetic_study import all_done, build, change_study

from gpbench.config.evidence import Claim, Comparison, Evidence, Explanation
from gpbench.errors import UserError
from gpbench.evaluation.compare import PairedDifference, paired_difference
from gpbench.report.papers import claims, finding, protocol
from gpbench.report.scorecard import all_runs
from gpbench.report.scorecard.counterparts import Counterparts
from gpbench.report.scorecard.published import read_published
from gpbench.report.view import View
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
BETTER = {"studies": ["uci_common"], "methods": ["dsvi", "svgp"], "metric": "mnll", "datasets": ["boston_uci"]}
CARD = all_runs.read(REPOSITORY / "docs" / "scorecard" / "scorecard.csv")


def run(folder, budget="quick", splits=5, status=all_done, **columns):
    """DSVI, which is better by 0.5 nats and a little more, and SVGP, as a run of uci_common; columns: of the scores."""
    build(folder, ["svgp", "dsvi"], ["boston", "concrete", "energy"], splits, status)
    scores = pd.read_parquet(folder / "scores.parquet").assign(budget=budget)
    lead = (scores["method"] == "dsvi") * (0.5 + 0.02 * scores["split"])
    scores["mnll"] = (2 + 0.3 * scores["split"] - lead).where(scores["status"] == "done")
    scores.assign(**columns).to_parquet(folder / "scores.parquet")
    change_study(folder, budget=budget, command="x study=uci_common")
    return Counterparts(View(folder))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    accuracy = {"accuracy": lambda scores: -scores["mnll"], "mnll_scaled": lambda scores: scores["mnll"] - np.log(2)}
    accuracy["rmse"] = lambda scores: 1 + (0.01 + 1e-4 * scores["split"]) * (scores["method"] == "dsvi")
    densities = {
        "mnll_gaussian": lambda scores: scores["mnll"] + 0.25,
        "mnll_draws": lambda scores: scores["mnll"] + 0.5,
    }
    return run(tmp_path_factory.mktemp("claims") / "quick", **accuracy, **densities)


def judged(runs, *datasets, **changes):
    comparison = Comparison(**BETTER | {"datasets": list(datasets or ["boston"])} | changes)
    return claims.judge(Claim("c", "Table 1", [comparison]), runs, CONF)


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


def test_chains_are_paired_as_independent_ones(tmp_path):
    """By data set and number, without the term for training rows that splits share: Student's paired interval."""
    folder = chains(tmp_path / "s")
    (result,) = judged([Counterparts(View(folder))], methods=("svgp", "bsgp_1"), metric="ess_percent")
    fits = pd.read_parquet(folder / "scores.parquet").sort_values(["split", "replica"])
    first, second = (-fits.loc[fits["method"] == name, "ess_percent"].to_numpy() for name in ("svgp", "bsgp_1"))
    expected = stats.ttest_rel(first, second)
    found = result.difference
    assert found.n == 16
    assert (found.lower, found.upper) == pytest.approx(tuple(expected.confidence_interval()))
    assert found.p == pytest.approx(expected.pvalue)


def test_chains_that_have_not_mixed_are_judged_where_they_have_fewer_effective_draws(tmp_path):
    """As many are counted at most; ahead, failed, or where equality is claimed, they say nothing."""
    folder = chains(tmp_path / "s")
    scores = pd.read_parquet(folder / "scores.parquet")

    def result(stuck, ahead, status="done", **changes):
        percent = 10.0 + (5.0 + 0.1 * scores["replica"]) * (scores["method"] == ahead)
        of_stuck = scores["method"] == stuck
        made = scores.assign(ess_percent=percent, status=scores["status"].mask(of_stuck, status))
        made["r_hat"] = np.where(of_stuck, 1.4, 1.0)
        made["gate"] = np.where(of_stuck & (made["status"] == "done"), "failed", "passed")
        made.to_parquet(folder / "scores.parquet")
        return judged([Counterparts(View(folder))], methods=("svgp", "bsgp_1"), metric="ess_percent", **changes)[0]

    behind = result("bsgp_1", ahead="svgp")
    assert (behind.kind, behind.behind, behind.reason) == (claims.HOLDS, "bsgp_1", "")
    assert finding._difference(behind)[-2] == f"holds ({behind.runs[0].view.labels['bsgp_1']}: at most)"
    assert (result("svgp", ahead="bsgp_1").kind, result("svgp", ahead="bsgp_1").behind) == (claims.FAILS, "svgp")
    for changes in ({"ahead": "bsgp_1"}, {"ahead": "svgp", "status": "failed"}, {"ahead": "svgp", "expect": "equal"}):
        assert result("bsgp_1", **changes).kind == claims.NOT_JUDGED


def test_splits_of_other_rows_are_not_paired(tmp_path):
    other = run(tmp_path / "a", n_test=lambda scores: scores["n_test"] + (scores["method"] == "dsvi"))
    assert [(r.kind, r.reason) for r in judged([other])] == [(claims.NOT_JUDGED, "their splits have other test rows")]


def test_a_split_without_a_score_is_not_left_out(tmp_path):
    lacking = run(tmp_path / "a", mnll=lambda scores: scores["mnll"].mask(scores["split"] == 1))
    assert [(r.kind, r.reason) for r in judged([lacking])] == [(claims.NOT_JUDGED, "an infinite score, or none")]


def test_holm_corrects_over_the_data_sets_of_a_claim(quick):
    alone, several = judged([quick])[0], judged([quick], "boston", "concrete", "energy")
    assert alone.p == alone.difference.p
    assert [r.p for r in several] == pytest.approx([3 * alone.p] * 3)
    assert claims.verdict(several) == claims.HOLDS
    assert claims.described(several).startswith("holds (3 holds) at budget quick (3)")


def test_equal_and_not_worse_are_judged_by_the_margin(quick):
    kinds = {
        expect: [judged([quick], expect=expect, methods=m)[0].kind for m in (("dsvi", "svgp"), ("svgp", "dsvi"))]
        for expect in ("equal", "not worse")
    }
    assert kinds == {"equal": [claims.FAILS] * 2, "not worse": [claims.HOLDS, claims.FAILS]}
    (close,) = judged([quick], expect="equal", metric="rmse")
    assert (close.kind, close.difference.mean) == (claims.HOLDS, pytest.approx(0.0102))
    assert close.margin == pytest.approx(0.05), "of the second, whose RMSE is 1"


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


@pytest.fixture(scope="module")
def text(quick):
    """The page of a paper with one claim, and two rows of its scorecard: one explained, one open."""
    claim = Claim("Two layers win.", "Table 4", [Comparison(**BETTER | {"datasets": ["boston", "yacht"]})])
    why = Explanation("Table 4", "It stops early.", "experiment 1", dataset="boston")
    evidence = Evidence("2020-01-01", "An old finding.", [claim], explanations=[why])
    card = CARD[(CARD["source"] == "ashman2020") & (CARD["item"] == "Table 4")].iloc[:20]
    card = card.assign(verdict="not run: x", run="", ours_method="svgp").set_index(np.arange(20))
    card.loc[[0, 9], ["verdict", "run"]] = "worse", "quick"
    card.loc[1, ["verdict", "run", "published"]] = "better", "quick", 1.0
    card.loc[2, ["verdict", "run", "published"]] = "better", "quick", 777.0  # passed before the first recorded step
    quick.view.done["ended"] = "2026-01-02T00:00"
    return finding.page("ashman2020", evidence, card, [quick], CONF, "none\n")


def test_a_difference_of_what_is_better_when_higher_is_shown_as_it_is_and_not_as_a_loss(quick):
    """For 54 % of effective draws against 0.4 % a page had "HMC v2 < ELL-SS, -53.6"."""
    (result,) = judged([quick], metric="accuracy")
    loss, (*_, relation, label, shown, _, _, _, _) = result.difference, finding._difference(result)
    assert loss.mean < 0
    assert (relation, label) == ("DSVI (2 layers) > SVGP", "accuracy")
    assert shown == f"{-loss.mean:+.3f} [{-loss.upper:+.3f}, {-loss.lower:+.3f}]"
    assert finding._datasets([result], 1) == f"boston {-loss.mean:+.2f} [{-loss.upper:+.2f}, {-loss.lower:+.2f}]"


def test_a_page_shows_verdict_statistic_and_evidence_of_each_claim(text, quick):
    d = judged([quick])[0].difference
    row = (
        f"| 1 | common | boston | DSVI (2 layers) &lt; SVGP | MNLL | {d.mean:+.3f} [{d.lower:+.3f}, {d.upper:+.3f}] | "
    )
    assert row in text
    assert "| Two layers win. | Table 4 | - | holds (1 holds, 1 not run) at budget quick (1) |" in text
    assert "quick, budget quick, commit 0123abc |" in text
    assert "- `snakemake --cores 2 --config study=uci_common`" in text
    assert "**The finding is older than its evidence**: quick (2026-01-02)" in text


@pytest.mark.parametrize("of", ["finding", "untested"])
def test_a_run_that_a_finding_names_is_listed(quick, of):
    claim = Claim("Chains agree.", "Figure 5", untested="quick alone" if of == "untested" else "no score")
    evidence = Evidence("2020-01-01", f"Chains of `{'quick' if of == 'finding' else 'none'}` agree.", [claim])
    page = finding.page("ashman2020", evidence, CARD.iloc[:0], [quick], CONF, "none\n")
    assert "| quick | common | quick |" in page.split("## Runs that this page uses")[1]


def test_worse_rows_stand_below_their_explanation_or_are_open(text):
    explained, left = text.split("It stops early. Shown by: experiment 1")[1].split("**Open**")
    assert explained.count("- Table 4, boston") == 1 == left.count("- Table 4, concrete")


def test_a_printed_number_that_training_passes_is_shown_with_its_step(text):
    table = text.split("numbers that training passes**")[1]
    assert "| Table 4 | boston | SGP 500 | test\\_loglik | 1.00 |" in table
    assert "777" not in table


def test_the_ledger_shows_what_each_protocol_adds(quick, tmp_path):
    (tmp_path / "numbers.csv").write_text("dataset,split,mnll\n" + "".join(f"yacht,{i},{i}\n" for i in range(5)))
    text = protocol.ledger([quick.view], CARD, tmp_path)
    assert "| boston | common | +0.693 |" in text
    mean = quick.view.per_split("mnll", "boston")["dsvi"]
    densities = f"{mean.mean():.3f} ± {mean.std():.3f} (5) | 0.250 ± 0.000 (5) | 0.500 ± 0.000 (5) |"
    assert f"| quick | boston | DSVI (2 layers) | {densities}" in text
    assert "Largest mean of a cell, either way: 0.250 and 0.500 nats." in text
    assert "| numbers | yacht | 1 | 5 | -1.500 | -1.000 | - |" in text
    assert "| rossi2021 | population sd | 8 | 1.07 |" in text
    assert "no record has it" in protocol.ledger([], CARD, tmp_path / "none")


def test_pages_are_made_from_the_files_alone(tmp_path):
    (tmp_path / "published").mkdir()
    shutil.copytree(REPOSITORY / "published" / "claims", tmp_path / "published" / "claims")
    (tmp_path / "conf").symlink_to(CONF)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "errata.md").write_text("## rossi2021\n\n| no. | a | proof |\n|---|---|---|\n| 1 | b | c |\n")
    pages = finding.pages(tmp_path, CARD[CARD["verdict"] != "better"], [])
    assert set(pages) == set(CARD["source"])
    assert "| 1 | b |\n\nProofs" in pages["rossi2021"]
    assert "None noticed." in pages["ashman2020"]
    assert "8 claims: 8 not run" not in pages["ashman2020"]
    assert "of 7 claims: 7 not run" in pages["ashman2020"]


def test_many_data_sets_are_tested_together(quick):
    """The exact two-sided p of six differences with one sign is 2 / 2^6 = .031."""
    comparison = Comparison(["uci_common"], ("dsvi", "svgp"), "mnll")
    differences = [PairedDifference(-0.1 * i, -1.0, 1.0, 0.5, 5) for i in range(1, 7)]
    blank = claims.Result(comparison, "set7", "common", runs=(quick, quick))
    results = [replace(blank, dataset=f"set{i}", difference=d) for i, d in enumerate(differences)]
    assert claims.over_datasets(results) == ["DSVI (2 layers) is better than SVGP on 6 of 6, signed-rank p = 0.031"]
    assert claims.over_datasets(results[:5]) == []
    equal = replace(blank, difference=PairedDifference(0.0, -1.0, 1.0, 1.0, 5))
    assert claims.over_datasets([*results, equal])[0].startswith("DSVI (2 layers) is better than SVGP on 6 of 7")
    assert finding._datasets(results, 5) == "6 data sets (-0.60 to -0.10)"
    assert finding._datasets(results[:1], 5) == "set0 -0.10 [-1.00, +1.00]"


def test_our_findings_say_where_they_hold_with_the_differences(quick, tmp_path):
    path = tmp_path / "findings.yaml"
    found = {
        "claim": "Depth pays.",
        "where": "DSVI and SVGP",
        "comparisons": [BETTER | {"datasets": ["boston_uci", "energy"]}],
    }
    path.write_text(yaml.safe_dump({"claims": [found]}))
    text = finding.bullets(claims.ours(path, CONF), [quick], CONF)
    (energy,) = judged([quick], "energy")
    assert text == (
        f"- **Depth pays.** DSVI and SVGP: not run on boston_uci; holds on energy {energy.difference.mean:+.2f} "
        f"[{energy.difference.lower:+.2f}, {energy.difference.upper:+.2f}] ({quick.view.folder.name}, 5 splits).\n"
    )
    for n in range(60, 100):  # wherever the line ends
        path.write_text(yaml.safe_dump({"claims": [found | {"where": f"{'x' * n} DSVI - SVGP"}]}))
        text = finding.bullets(claims.ours(path, CONF), [quick], CONF)
        assert " - SVGP" in text or " -\n  SVGP" in text
        assert "\n  - " not in text
    path.write_text(yaml.safe_dump({"claims": [found | {"comparisons": [BETTER | {"methods": ["dsvi", "svpg"]}]}]}))
    with pytest.raises(UserError, match=r"unknown method 'svpg' in claim 1 of .*findings\.yaml; did you mean 'svgp'"):
        claims.ours(path, CONF)
