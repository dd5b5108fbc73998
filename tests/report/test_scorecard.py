import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t
from synthetic_samplers import build_samplers
from synthetic_study import all_done, build, change_scores, change_study

from gpbench.errors import UserError
from gpbench.report.figures import draw
from gpbench.report.scorecard import verdicts
from gpbench.report.scorecard.counterparts import run_settings, why_not_judged
from gpbench.report.scorecard.one_run import scorecard, to_table, write_scorecard
from gpbench.report.scorecard.published import COLUMNS, read_published, rounding, sample_sd
from gpbench.report.view import View
from gpbench.sampling.diagnostics import gelman_rubin

PUBLISHED = Path(__file__).parents[2] / "published"
SD = 0.01 * np.sqrt(2.5)


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    """SVGP on boston: an MNLL of 2.5 with a standard deviation of SD over five splits."""
    folder = build(tmp_path_factory.mktemp("steady") / "s", ["svgp"], ["boston"])
    change_scores(folder, mnll=2.5 + 0.01 * np.array([-2, -1, 0, 1, 2]))
    return View(folder)


def row(view, **changes):
    """A printed number that equals ours exactly, with a small spread."""
    mean = view.cells("mnll").set_index(["method", "dataset"]).loc[("svgp", "boston"), "mean"]
    base = dict.fromkeys(COLUMNS, "") | {"source": "someone2020", "item": "Table 1", "dataset": "boston"}
    base |= {"protocol": "common", "value": -mean, "spread": 0.001, "spread_kind": "sample sd"}
    base |= {"splits": 5, "data_sets": 1, "ours_method": "svgp", "ours_metric": "mnll", "factor": -1}
    return base | changes


def card(view, **changes):
    return scorecard(view, pd.DataFrame([row(view, **changes)])).iloc[0]


def verdict(view, **changes):
    return card(view, **changes)["verdict"]


def test_another_protocol_is_not_judged(view):
    found = scorecard(view, pd.DataFrame([row(view, protocol="ashman2020", splits=20)])).iloc[0]
    assert found["verdict"] == "other protocol (ours common, published ashman2020)"
    assert found["difference"] == pytest.approx(0, abs=1e-12)
    assert found["compared"] == "5 of 20 splits"


def test_a_method_that_is_known_to_differ_is_shown_and_not_judged(steady):
    """Beside a study that runs it; a reason alone says why none does."""
    found = card(steady, study=run_settings(steady.study["command"])[0], reason="another likelihood")
    assert found["verdict"] == "not judged: another likelihood"
    assert found["difference"] == pytest.approx(0, abs=1e-12)
    assert verdict(steady, reason="its study leaves it out") == "agrees"
    rows = read_published(PUBLISHED).query("method_printed == 'DGP-EP'").set_index("dataset")
    assert (rows["reason"] != "").to_dict() == {"power": False, "protein": False, "spambase": True, "eeg": True}


def test_another_number_of_splits_is_judged_and_printed(steady):
    found = card(steady, splits=20)
    assert (found["verdict"], found["compared"]) == ("agrees", "5 of 20 splits")
    assert card(steady, splits=3)["compared"] == "5 splits against 3"
    assert card(steady)["compared"] == ""
    error = np.sqrt(SD**2 / 5 + 0.001**2 / 20)
    assert found["standard_error"] == pytest.approx(error)
    assert found["upper"] == pytest.approx(verdicts.interval(0, *verdicts.combined(SD, 5, 0.001, 20)[:2])[1])


def test_splits_of_which_scores_were_released_are_paired(steady):
    """What is easy or hard about a split is then no part of the difference."""
    ours = steady.per_split("mnll", "boston")["svgp"]
    theirs = dict(zip((1, 2, 3), ours[[1, 2, 3]] - [0.030, 0.032, 0.031], strict=True)) | {7: 2.0}
    found = card(steady, by_split=theirs, spread=np.nan, spread_kind="", splits=20)
    assert (found["compared"], found["spread_assumed"]) == ("paired on 3 splits", "")
    assert found["difference"] == pytest.approx(0.031)
    assert found["standard_error"] == pytest.approx(0.001 / np.sqrt(3))
    assert found["upper"] == pytest.approx(0.031 + t.ppf(0.975, 2) * 0.001 / np.sqrt(3))
    assert found["verdict"] == "agrees"
    assert "by_split" not in found
    other = card(steady, by_split=theirs, splits=20, protocol="ashman2020")  # whose splits are not those of common
    assert (other["compared"], other["difference"]) == ("5 of 20 splits", pytest.approx(0, abs=1e-12))
    assert card(steady, by_split={s: theirs[s] for s in (1, 2)}, splits=20)["standard_error"] == pytest.approx(0.001)
    alone = card(steady, by_split={1: 2.0, 9: 2.0}, splits=20)  # one common split says nothing of the spread
    assert (alone["compared"], alone["difference"]) == ("5 of 20 splits", pytest.approx(0, abs=1e-12))


def test_a_side_without_spread_is_given_that_of_the_other(steady):
    """Of a single published run this is the prediction interval of one more of ours."""
    found = card(steady, spread=np.nan, spread_kind="", splits=1)
    assert (found["spread_assumed"], found["compared"]) == ("published", "5 splits against 1")
    assert found["upper"] == pytest.approx(t.ppf(0.975, 4) * SD * np.sqrt(1 + 1 / 5))
    assert card(steady, spread=np.nan, spread_kind="", splits=20)["standard_error"] == pytest.approx(SD / 2)
    table = to_table(scorecard(steady, pd.DataFrame([row(steady, spread=np.nan, spread_kind="", splits=20)])))
    assert table.shown["verdict and note"][0] == "agrees; 5 of 20 splits; our spread used for theirs"


def test_without_any_spread_nothing_is_judged(tmp_path):
    """One split of ours, and then a published spread that stands in."""
    view = View(build(tmp_path / "s", ["svgp"], ["boston"], 1, all_done))
    assert verdict(view, spread=np.nan, spread_kind="", splits=20) == "not judged: no spread on either side"
    found = scorecard(view, pd.DataFrame([row(view, spread=0.01, splits=20)])).iloc[0]
    assert (found["verdict"], found["spread_assumed"]) == ("agrees", "ours")


def test_the_margin_is_at_least_the_rounding_of_what_is_printed(view):
    """An RMSE that is printed as 0.03 may have been 0.035."""
    rmse = {"ours_metric": "rmse_scaled", "factor": 1, "value": 0.03}
    assert scorecard(view, pd.DataFrame([row(view, **rmse, rounding=0.005)])).iloc[0]["margin"] == 0.005
    assert scorecard(view, pd.DataFrame([row(view, **rmse)])).iloc[0]["margin"] == pytest.approx(0.0015)
    assert [rounding(text) for text in ("2.50", "749", "0.1", "1e3")] == [0.005, 0.5, 0.05, 0.5]
    assert rounding(np.nan) == 0


def test_protocol_budget_and_commit_stand_beside_ours(view):
    found = scorecard(view, pd.DataFrame([row(view, dataset="naval"), row(view)]))
    assert found.iloc[1][["ours_protocol", "ours_budget", "ours_commit"]].tolist() == ["common", "quick", "0123abc"]
    table = to_table(found)
    assert table.note.startswith("Ours: protocol common, budget quick, commit 0123abc. ")
    assert table.shown["data set"].tolist() == ["boston", "naval"], "what has a number of ours comes first"


def test_settings_that_a_run_was_given_are_printed(tmp_path):
    """Not those of the study, such as its budget and its splits."""
    folder = build(tmp_path / "s", ["svgp"], ["boston"])
    given = "snakemake --config study=s overrides='budget=paper study.splits=8 svgp.batch_size=1000 *.steps=5'"
    change_study(folder, command=given)
    table = to_table(scorecard(View(folder), pd.DataFrame([row(View(folder))])))
    assert run_settings(f"{given[:-1]} study.tune=3'") == ("s", "svgp.batch_size=1000 *.steps=5 study.tune=3")
    assert table.data["ours_settings"][0] == "svgp.batch_size=1000 *.steps=5"
    assert table.shown["verdict and note"][0].endswith("; with svgp.batch_size=1000 *.steps=5")


def test_what_was_not_run_says_why(view):
    assert verdict(view, ours_method="", reason="method not built yet") == "not run: method not built yet"
    assert verdict(view, dataset="naval") == "not run: svgp on naval is not in this study"
    assert verdict(view, ours_method="sgp|gp") == "not run: sgp or gp on boston is not in this study"
    found = verdict(view, ours_method="dgp_rff", dataset="yacht")
    assert found.startswith("not run: failed: layer 1: Cholesky failed")


def test_a_number_stands_for_the_method_that_the_study_has(view):
    """`svgp` is what one study calls it, `sgp_100` another; the card says which it found."""
    card = scorecard(view, pd.DataFrame([row(view, ours_method="sgp_100|svgp"), row(view, ours_method="sgp_100")]))
    assert card["ours_method"].tolist() == ["svgp", "sgp_100"]
    assert card["ours_n"].tolist() == [5, 0]


def test_a_study_may_be_compared_with_no_paper(published, tmp_path):
    folder = build(tmp_path / "s", ["svgp"], ["boston"])
    change_study(folder, published=[])
    write_scorecard(View(folder), published, folder)
    assert pd.read_csv(folder / "scorecard.csv").empty
    assert "compared with no paper" in (folder / "scorecard.md").read_text()
    for name in ("scorecard", "convergence"):
        assert draw(View(folder), name).axes


def test_same_splits_are_judged(steady):
    assert verdict(steady) == "agrees"
    assert verdict(steady, value=-2.3) == "worse"
    assert verdict(steady, value=-2.7) == "better"
    assert verdict(steady, value=-2.55) == "inconclusive"


def test_factor_turns_a_log_likelihood_into_mnll(view):
    found = scorecard(view, pd.DataFrame([row(view, value=-2.458)])).iloc[0]
    assert found["published"] == pytest.approx(2.458)


def test_small_numbers_have_digits_and_large_ones_no_decimals(steady):
    printed = [row(steady, value=value, factor=1, spread=value / 4) for value in (0.0002, 2.5, 5934530.0)]
    shown = to_table(scorecard(steady, pd.DataFrame(printed))).shown["published"].tolist()
    assert shown == ["0.00020 ± 0.00005 (5)", "2.500 ± 0.625 (5)", "5934530 ± 1483632 (5)"]


def test_a_factor_scales_the_spread_too(view):
    found = scorecard(view, pd.DataFrame([row(view, value=240.0, factor=0.01, spread=3.0)])).iloc[0]
    assert (found["published"], found["published_sd"]) == (pytest.approx(2.4), pytest.approx(0.03))


def test_what_is_no_score_needs_no_metric(view):
    weight = {"ours_method": "", "ours_metric": "", "metric_printed": "kernel_weight", "factor": 1, "value": 0.0}
    card = scorecard(view, pd.DataFrame([row(view, **weight, reason="a weight")]))
    assert card["verdict"].tolist() == ["not run: a weight"]
    assert to_table(card).shown["metric"].tolist() == ["kernel_weight"]
    with pytest.raises(UserError, match="published metric '' of someone2020 Table 1 is not in the registry"):
        scorecard(view, pd.DataFrame([row(view, ours_metric="")]))


def test_spreads_are_converted():
    values = np.array([1.0, 2.0, 4.0, 7.0])
    sd = values.std(ddof=1)
    assert sample_sd(values.std(ddof=0), "population sd", 4) == pytest.approx(sd)
    assert sample_sd(sd / 2, "standard error", 4) == pytest.approx(sd)
    assert np.isnan(sample_sd(np.nan, "", 4))


def test_chains_of_samplers_are_runs(tmp_path):
    """Four chains on each of four data sets: an ESS is of a chain, an R-hat of a data set."""
    view = View(build_samplers(tmp_path / "s", ["svgp", "bsgp_2"], ["boston"]))
    fits = view.fits.query("method == 'svgp'")
    sampled = {"ours_method": "svgp", "factor": 1, "value": 30.0, "spread": 1.0, "splits": 100, "data_sets": 10}
    found = scorecard(
        view,
        pd.DataFrame(
            [
                row(view, **sampled | {"ours_metric": "ess_percent"}),
                row(view, **sampled | {"ours_metric": "r_hat_classic", "splits": 10}),
                row(view, **sampled | {"ours_metric": "ess_percent", "ours_method": "bsgp_2"}),
                row(view, **sampled | {"ours_metric": "r_hat_classic", "ours_method": "bsgp_2"}),
                row(view, **sampled | {"ours_metric": "ess_percent", "data_sets": 1}),
            ]
        ),
    )
    assert found["ours_n"].tolist() == [16, 4, 16, 4, 16]
    assert found["compared"].tolist()[:2] == ["16 of 100 runs", "4 of 10 splits"]
    assert found["ours"][0] == pytest.approx(fits["ess_percent"].mean())
    assert found["ours_sd"][0] == pytest.approx(fits["ess_percent"].std(ddof=1))
    # 100 runs are of ten data sets, beside our four, which lie closer together and are given their spread
    assert found["standard_error"][0] == pytest.approx(1.0 * np.sqrt(1 / 4 + 1 / 10))
    assert found["spread_assumed"].tolist()[::4] == ["ours", "published"]
    # of one data set: one more beside our four
    between = fits.groupby("split")["ess_percent"].mean().std()
    assert found["standard_error"][4] == pytest.approx(between * np.sqrt(1 + 1 / 4))
    assert card(view, **sampled, ours_metric="ess_tail")["ours_n"] == 4, "of all chains of a data set"
    # chains this short have no effective sample size worth a verdict; their R-hat says how far they are
    assert found["verdict"][2].startswith("not judged: chains of 2000 draws are 10 autocorrelation times long")
    assert verdicts.kind(found["verdict"][3]) in verdicts.JUDGED


def test_chains_of_one_data_set_tell_nothing_of_another(tmp_path):
    """However far apart: how fast they move is left open, but not their R-hat or operations, nor beside many sets."""
    view = View(build_samplers(tmp_path / "s", ["svgp"], ["boston"], splits=1))
    sampled = {"ours_method": "svgp", "factor": 1, "value": 300.0, "spread": 1.0, "splits": 4}
    for splits in (2, 4, 100):  # printed chains, whatever the number of ours
        found = verdict(view, **sampled | {"splits": splits}, ours_metric="ess_percent")
        assert found == "inconclusive: one data set on each side"
    assert verdict(view, **sampled, ours_metric="acceptance_theta") == "inconclusive: one data set on each side"
    assert verdict(view, **sampled, ours_metric="cubic") == "better"
    assert verdict(view, **sampled, ours_metric="r_hat_classic") == "better"
    assert verdict(view, **sampled | {"splits": 100, "data_sets": 10}, ours_metric="ess_percent") == "worse"


SAMPLED = {"ours_method": "svgp", "ours_metric": "ess_percent", "factor": 1, "value": 30.0, "spread": 1.0, "splits": 9}


def without_a_gate(folder, **changes):
    """A run of chains whose budget sets no limit, with other values in the second split."""
    build_samplers(folder, ["svgp"], ["boston"])
    change_study(folder, r_hat=None)
    scores = pd.read_parquet(folder / "scores.parquet").assign(gate="", chains=4.0, draws=2000.0)
    for name, value in changes.items():
        scores.loc[scores["split"] == 1, name] = value
    scores.to_parquet(folder / "scores.parquet")
    return View(folder)


def rows(fits):
    return list(fits.itertuples())


def test_unmixed_chains_have_no_verdict_whatever_the_budget(tmp_path):
    view = without_a_gate(tmp_path / "s", r_hat=2.27)
    reason = "not judged: not converged in 1 split: R-hat 2.27 exceeds 1.05 (4 chains of 2000 draws)"
    assert verdict(view, **SAMPLED) == reason
    assert verdict(view, **SAMPLED | {"ours_metric": "acceptance_theta"}) == reason
    assert verdicts.kind(verdict(view, **SAMPLED | {"ours_metric": "r_hat_classic"})) in verdicts.JUDGED
    assert (view.fits["convergence"] == "not converged").sum() == 4 == len(view.improving)
    assert view.cells("ess_percent")["improving"].tolist() == [1], "splits"
    assert verdicts.kind(verdict(without_a_gate(tmp_path / "mixed"), **SAMPLED)) in verdicts.JUDGED


def test_equal_scores_of_a_few_splits_are_no_certainty(tmp_path):
    folder = build(tmp_path / "s", ["svgp"], ["boston"], 2)
    change_scores(folder, mnll=2.5, error=0.0, seconds_train=9.0)  # no test row wrong, seconds of one batch
    printed = [("mnll", 2.3), ("mnll", 2.5), ("error", 0.0), ("seconds_train", 12.0)]
    alone = {"spread": np.nan, "spread_kind": "", "factor": 1}
    found = [verdict(View(folder), ours_metric=metric, value=value, **alone) for metric, value in printed]
    assert found == ["not judged: no spread on either side"] * 4


@pytest.mark.parametrize("column", ["ess_bulk", "ess_tail", "ess_every"])
def test_what_chains_with_few_effective_draws_found_has_no_verdict(tmp_path, column):
    """How they move has one, as what it is about."""
    view = without_a_gate(tmp_path / "s", **{column: 99.0})
    found = why_not_judged(rows(view.fits), "mnll")
    assert found.endswith("99 effective draws, of which 100 are needed (4 chains of 2000 draws)")
    assert why_not_judged(rows(view.fits), "acceptance_theta") == ""


def test_how_chains_move_is_judged_up_to_the_r_hat_that_the_papers_asked_for(tmp_path):
    view = without_a_gate(tmp_path / "s", r_hat=1.1)
    assert why_not_judged(rows(view.fits), "mnll").startswith("not converged in 1 split: R-hat 1.1 exceeds 1.05")
    for metric in ("acceptance_theta", "cubic", "ess_percent", "r_hat_classic"):
        assert why_not_judged(rows(view.fits), metric) == ""
    worse = without_a_gate(tmp_path / "worse", r_hat=1.11)
    assert why_not_judged(rows(worse.fits), "cubic").startswith("not converged in 1 split: R-hat 1.11 exceeds 1.05")


@pytest.mark.parametrize("length", [{"ess_bulk": 4 * 49.0}, {"ess_min": 49.0}])
def test_effective_sample_sizes_of_short_chains_are_not_compared(tmp_path, length):
    """By whichever estimate of the autocorrelation time is longer; other metrics of these chains are compared."""
    view = without_a_gate(tmp_path / "s", **length)
    reason = "not judged: chains of 2000 draws are 49 autocorrelation times long, of which 50 are needed"
    assert verdict(view, **SAMPLED) == reason
    assert verdicts.kind(verdict(view, **SAMPLED | {"ours_metric": "acceptance_theta"})) in verdicts.JUDGED


def test_what_still_improves_is_judged_after_as_many_updates_as_were_published(tmp_path):
    folder = build(tmp_path / "s", ["svgp"], ["boston"])
    change_scores(folder, convergence="still improving", gate="failed")
    for budget, overrides, is_judged in (
        ("quick", "", False),
        ("paper", "jitter=1e-5", True),
        ("paper", "steps=9", False),
    ):
        change_scores(folder, budget=budget, overrides=overrides)
        found = card(View(folder))
        assert (verdicts.kind(found["verdict"]) in verdicts.JUDGED) == is_judged
        assert found["compared"] == "5 not converged"


def test_fits_without_a_record_of_their_convergence_are_judged_as_long_as_published_alone(tmp_path):
    folder = build(tmp_path / "s", ["svgp"], ["boston"])
    change_scores(folder, convergence="")
    assert verdict(View(folder)) == "not judged: no record says whether ours have converged"
    change_scores(folder, budget="paper")
    assert verdict(View(folder)) in verdicts.JUDGED
    change_scores(folder, budget="quick", steps=np.nan)  # of a closed form
    assert verdict(View(folder)) in verdicts.JUDGED


def test_short_chains_are_compared_with_chains_as_short(tmp_path):
    """At budget `paper` both have as many draws, unless a user gives other ones."""
    fits = without_a_gate(tmp_path / "s", ess_min=20.0).fits
    assert why_not_judged(rows(fits), "ess_percent").endswith("20 autocorrelation times long, of which 50 are needed")
    assert why_not_judged(rows(fits.assign(budget="paper")), "ess_percent") == ""
    longer = fits.assign(budget="paper", overrides="layers=2 steps=9000")
    assert why_not_judged(rows(longer), "ess_percent").endswith("of which 50 are needed")
    short = without_a_gate(tmp_path / "short", ess_min=19.0).fits.assign(budget="paper")
    assert why_not_judged(rows(short), "ess_percent").endswith("19 autocorrelation times long, of which 20 are needed")


@pytest.mark.parametrize(("chains", "times"), [(10, 20), (4, 50)])
def test_the_spread_of_r_hat_follows_from_its_number_of_chains(chains, times):
    """Of 2,000 sets of chains of independent draws that differ in their means as much as autocorrelation lets them."""
    rng = np.random.default_rng(0)
    means = rng.normal(0, np.sqrt(1 / times), (chains, 2000))
    found = gelman_rubin(means, np.ones_like(means), 10_000)
    predicted = [verdicts.combined_r_hats(r, 1.0, chains)[0] for r in found]
    assert np.mean(predicted) == pytest.approx(found.std(), rel=0.1)


def test_one_r_hat_beside_one_r_hat_is_shown_by_the_number_of_chains(tmp_path):
    folder = build_samplers(tmp_path / "s", ["svgp"], ["boston"], splits=1)
    change_scores(folder, r_hat_classic=1.01, chains=10.0)
    printed = {"ours_method": "svgp", "ours_metric": "r_hat_classic", "factor": 1, "splits": 1, "spread": np.nan}
    cards = [card(View(folder), **printed | {"value": value, "spread_kind": ""}) for value in (1.02, 1.3, 2.0)]
    assert [found["verdict"] for found in cards] == ["inconclusive: one data set on each side"] * 3
    assert {found["spread_assumed"] for found in cards} == {"chains"}
    assert verdicts.combined_r_hats(1.01, 1.0, 1) == pytest.approx((np.nan, np.nan), nan_ok=True)
    assert verdicts.combined_r_hats(1.0, 1.0, 10) == (0.0, np.inf)


def test_a_number_is_needed_where_ours_stands_for_it(tmp_path):
    rows = pd.read_csv(PUBLISHED / "ashman2020.csv")
    rows.loc[1, "value"] = np.nan
    rows.to_csv(tmp_path / "ashman2020.csv", index=False)
    with pytest.raises(UserError, match=r"ashman2020.csv, line 3: ours_method is given without a value"):
        read_published(tmp_path)


def test_a_wrong_column_is_reported(tmp_path):
    pd.read_csv(PUBLISHED / "ashman2020.csv").rename(columns={"spread": "std"}).to_csv(
        tmp_path / "x2020.csv", index=False
    )
    with pytest.raises(UserError, match=r"x2020.csv: columns differ .*'spread', 'std'"):
        read_published(tmp_path)
    with pytest.raises(UserError, match="no published numbers"):
        read_published(tmp_path / "absent")


def test_files_hold_every_row(view, published, tmp_path):
    write_scorecard(view, published, tmp_path)
    rows = len(read_published(published))
    assert len(pd.read_csv(tmp_path / "scorecard.csv")) == rows
    assert len(json.loads((tmp_path / "scorecard.json").read_text())) == rows
    assert (tmp_path / "scorecard.html").read_text().count("<tr>") == rows + 1
    assert "not run: quoted from other work" in (tmp_path / "scorecard.md").read_text()
