import json
import shutil

import numpy as np
import pandas as pd
import pytest
from synthetic_study import DATASETS, METHODS, all_done, build, change_study, with_scores

from gpbench.errors import UserError
from gpbench.report.view import View, load
from gpbench.study.storage import parquet


def test_a_cell_is_the_mean_and_sample_sd_of_its_splits(view, study):
    raw = pd.read_parquet(study / "scores.parquet")
    values = raw[(raw["method"] == "svgp") & (raw["dataset"] == "boston")]["mnll"].to_numpy()
    cell = view.cells("mnll").set_index(["method", "dataset"]).loc[("svgp", "boston")]
    assert cell["mean"] == pytest.approx(sum(values) / 5, rel=1e-12)
    assert cell["sd"] == pytest.approx(np.sqrt(sum((values - sum(values) / 5) ** 2) / 4), rel=1e-12)
    assert (cell["n"], cell["expected"], bool(cell["complete"]), cell["statuses"]) == (5, 5, True, "")


def test_every_planned_fit_has_a_row(view):
    assert len(view.fits) == len(METHODS) * len(DATASETS) * 5
    row = view.fits.query("method == 'boosting' and dataset == 'banana' and split == 4").iloc[0]
    assert (row["status"], row["reason"]) == ("missing", "no result was collected")
    assert (row["label"], row["task"]) == ("Gradient boosting", "binary")


@pytest.mark.parametrize(
    ("method", "dataset", "n", "statuses"),
    [
        ("bsgp_2", "boston", 4, "1 diverged"),
        ("dsvi", "energy", 4, "1 stopped"),
        ("boosting", "banana", 4, "1 missing"),
        ("exact_gp", "banana", 0, "skipped: regression only"),
    ],
)
def test_unfinished_cells_say_why(view, method, dataset, n, statuses):
    cell = view.cells("mnll").set_index(["method", "dataset"]).loc[(method, dataset)]
    assert (cell["n"], cell["statuses"], bool(cell["complete"])) == (n, statuses, False)
    assert np.isnan(view.matrix("mnll").loc[dataset, method])


def test_splits_that_others_did_not_give_are_named(small, tmp_path):
    """They are no fits, so that they have no row, and what was given is not counted as ours."""
    scores, study = pd.read_parquet(small / "scores.parquet"), json.loads((small / "study.json").read_text())
    theirs = (scores["method"] == "svgp") & (scores["dataset"] == "boston")
    scores.loc[theirs, "family"] = "challenger"
    scores["jitter_times"], scores["jitter_largest"] = (~theirs).astype(int), 1e-6
    scores[~(theirs & (scores["split"] == 1))].to_parquet(tmp_path / "scores.parquet")
    study["expected"].remove(["svgp", "boston", 1])
    (tmp_path / "study.json").write_text(json.dumps(study))
    view, n = View(tmp_path), int((~theirs & (scores["status"] == "done")).sum())
    cell = view.cells("mnll").set_index(["method", "dataset"]).loc[("svgp", "boston")]
    assert (cell["n"], cell["expected"], cell["statuses"], bool(cell["complete"])) == (2, 3, "rest not given", False)
    assert f"{n} of {n} fits needed jitter" in view.needed_jitter
    view = View(tmp_path)
    view.fits.loc[(view.fits["method"] == "svgp") & (view.fits["split"] == 2), ["status", "reason"]] = "failed", "x"
    assert view.progress.set_index(["method", "dataset"]).loc[("svgp", "boston"), "statuses"] == "1 failed"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_split_without_a_finite_score_leaves_its_cell_incomplete(small, tmp_path, value):
    scores = pd.read_parquet(small / "scores.parquet")
    scores.loc[scores["fit_id"] == "svgp-boston-1", "mnll"] = value
    scores.to_parquet(tmp_path / "scores.parquet")
    (tmp_path / "study.json").write_text((small / "study.json").read_text())
    view = View(tmp_path)
    cell = view.cells_of("boston", "mnll").loc["svgp"]
    assert (cell["n"], cell["statuses"], bool(cell["complete"]), np.isfinite(cell["mean"])) == (2, "", False, True)
    for converged in (True, False):
        assert np.isnan(view.matrix("mnll", converged=converged).loc["boston", "svgp"])


def test_a_fit_without_a_score_has_diverged_whatever_its_gate_says(small, tmp_path):
    """The gate of a budget is of fits that are done; one whose predictions overflow is no fit with a score."""
    scores = pd.read_parquet(small / "scores.parquet").assign(gate="failed")
    scores.loc[scores["fit_id"] == "svgp-boston-1", ["status", "mnll"]] = "diverged", np.nan
    statuses = View(with_scores(small, scores, tmp_path)).fits.set_index("fit_id")["status"]
    assert statuses.pop("svgp-boston-1") == "diverged"
    assert set(statuses) == {"not converged"}


def test_the_test_fraction_counts_every_split_once(small, tmp_path):
    """Splits of several sizes: it is the same whatever else has finished some of them."""
    scores = pd.read_parquet(small / "scores.parquet").assign(n_train=90, n_test=10)
    scores.loc[scores["split"] == 0, ["n_train", "n_test"]] = 10, 90
    lacking = scores[(scores["method"] == "svgp") | (scores["split"] == 0)]
    for number, rows in enumerate((scores, lacking)):
        (tmp_path / str(number)).mkdir()
        assert View(with_scores(small, rows, tmp_path / str(number))).test_fraction("boston") == pytest.approx(1.1 / 3)


def test_all_data_sets_are_named_as_such_from_three_on(small_view, view):
    assert small_view.cells_in_words([("svgp", "boston"), ("svgp", "banana")]) == "SVGP on boston, banana"
    every = [("svgp", dataset) for dataset in DATASETS]
    assert view.cells_in_words([*every, ("dsvi", "boston")]) == "SVGP on all 7 data sets; DSVI (2 layers) on boston"


def test_fits_to_counts_have_no_calibration_to_lack(small, tmp_path):
    scores = pd.read_parquet(small / "scores.parquet")
    scores["task"] = scores["task"].replace("regression", "counts")
    scores.to_csv(tmp_path / "scores.csv", index=False)
    (tmp_path / "study.json").write_text((small / "study.json").read_text())
    assert View(tmp_path).unrecorded("calibration").startswith("6 of 6 fits have no calibration here")


def test_replicas_of_a_split_are_averaged_first(small, tmp_path):
    scores = pd.read_parquet(small / "scores.parquet")
    extra = scores[(scores["method"] == "svgp") & (scores["dataset"] == "boston") & (scores["split"] == 0)]
    doubled = pd.concat([scores, extra.assign(replica=1, fit_id="other", mnll=extra["mnll"] + 3.0)])
    views = View(small), View(with_scores(small, doubled, tmp_path))
    before, after = (view.per_split("mnll", "boston") for view in views)
    assert after.loc[0, "svgp"] == pytest.approx(before.loc[0, "svgp"] + 1.5)
    assert after.loc[1:].equals(before.loc[1:])


def test_replicas_of_a_split_have_one_row_each(probed, tmp_path):
    folder = shutil.copytree(probed, tmp_path / "replicas")
    (folder / "bounds.parquet").unlink()
    # a plan lists every replica
    change_study(folder, expected=View(probed).study["expected"] + [["bsgp_2", "boston", 0]] * 3)
    view = View(folder)
    assert not view.fits["fit_id"].duplicated().any()
    assert len(view.probe("layers")) == len(pd.read_parquet(probed / "layers.parquet"))
    assert view.probe("bounds").empty


def test_chains_that_were_not_run_are_counted_one_by_one(tmp_path):
    """Of two splits with ten chains each, one was run: 10 of 20 fits."""
    build(tmp_path, ["bsgp_1"], ["boston"], 1, all_done)
    scores = pd.read_parquet(tmp_path / "scores.parquet")
    pd.concat([scores.assign(replica=r, fit_id=f"chain-{r}") for r in range(10)]).to_parquet(
        tmp_path / "scores.parquet"
    )
    change_study(tmp_path, expected=[["bsgp_1", "boston", split] for split in (0, 1) for _ in range(10)])
    fits = View(tmp_path).fits
    assert fits["status"].value_counts().to_dict() == {"done": 10, "missing": 10}
    assert fits.groupby(["split", "status"])["replica"].apply(sorted).tolist() == [[*range(10)]] * 2


def test_a_grid_holds_the_methods_that_set_all_its_keys(probed_view):
    assert probed_view.grid("scheme", "workers").to_numpy().tolist() == [
        *(["dgp_rff", "asynchronous", 2], ["exact_gp", "asynchronous", 10], ["boosting", "synchronous", 2])
    ]
    assert probed_view.grid("scheme", "num_features").empty


@pytest.mark.parametrize("column", ["protocol", "budget", "overrides"])
def test_averaging_over_two_protocols_budgets_or_settings_is_refused(small, tmp_path, column):
    scores = pd.read_parquet(small / "scores.parquet")
    scores.loc[(scores["dataset"] == "boston") & (scores["split"] == 2), column] = "another"
    with pytest.raises(UserError, match=f"mixes {column} .*'another' .*fits.*not comparable"):
        View(with_scores(small, scores, tmp_path)).cells("mnll")


def test_the_same_settings_in_another_order_are_no_mixture(small, tmp_path):
    scores = pd.read_parquet(small / "scores.parquet")
    scores["overrides"] = ["layers=3 decay=.3", "decay=.3 layers=3"] * (len(scores) // 2) + [None] * (len(scores) % 2)
    one = scores[scores["overrides"].notna() & (scores["method"] == scores["method"][0])]
    assert one.groupby("dataset")["overrides"].nunique().max() == 2
    View(with_scores(small, scores, tmp_path)).cells("mnll")


def test_a_missing_file_and_an_unknown_status_are_reported(small, tmp_path):
    with pytest.raises(UserError, match=r"study.json is missing; run the study's collect step"):
        View(tmp_path).cells("mnll")
    with_scores(small, pd.read_parquet(small / "scores.parquet").assign(status="doen"), tmp_path)
    with pytest.raises(UserError, match="unknown status 'doen'.*did you mean 'done'"):
        View(tmp_path).cells("mnll")


def test_an_unknown_metric_is_reported(view):
    with pytest.raises(UserError, match="unknown metric 'mnl'.*did you mean 'mnll'"):
        view.cells("mnl")


def test_other_kinds_of_fits_stay_out(small, tmp_path):
    scores = pd.read_parquet(small / "scores.parquet")
    folder = with_scores(small, pd.concat([scores, scores.assign(kind="sample", mnll=99.0)]), tmp_path)
    pd.testing.assert_frame_equal(View(folder).cells("mnll"), View(small).cells("mnll"))


def test_order_is_the_study_s(tmp_path):
    folder = build(tmp_path / "s", ["constant", "svgp"], ["yacht", "boston"], splits=2)
    cells = View(folder).cells("mnll")
    assert list(cells["method"]) == ["constant", "svgp"] * 2
    assert list(cells["dataset"]) == ["yacht", "yacht", "boston", "boston"]
    assert json.loads((folder / "study.json").read_text())["methods"] == View(folder).methods


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 10**5, b'{"kind": "predict"}'])
def test_a_damaged_description_of_a_study_is_one_line(tmp_path, content):
    (tmp_path / "study.json").write_bytes(content)
    with pytest.raises(UserError, match=r"study\.json is damaged \(.*\); delete it, and snakemake makes it again"):
        assert View(tmp_path).study
    (tmp_path / "scores.csv").touch()
    with pytest.raises(UserError, match=r"study\.json is damaged \(.*\); restore it by `git checkout`"):
        assert View(tmp_path).study


@pytest.mark.parametrize("content", [b"", b"PAR1", bytes(200)])
def test_a_table_that_cannot_be_read_is_one_line(tmp_path, content):
    (tmp_path / "scores.parquet").write_bytes(content)
    with pytest.raises(UserError, match=r"scores\.parquet is damaged \(.*; delete it, and snakemake makes it again"):
        load(tmp_path / "scores.parquet")


def test_a_flipped_bit_of_a_table_is_never_another_number(tmp_path):
    rng = np.random.default_rng(0)
    ids = [f"{i // 5:016x}" for i in range(40)]
    table = pd.DataFrame({"fit_id": ids, "step": np.arange(40), "mnll": rng.normal(size=40), "rmse": np.nan})
    path = tmp_path / "traces.parquet"
    parquet.write(path, [table])
    content, refused = path.read_bytes(), 0
    pd.testing.assert_frame_equal(load(path), table, check_dtype=False)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found = load(path)
        except UserError as error:
            refused += "traces.parquet is damaged" in str(error)
        else:
            pd.testing.assert_frame_equal(found, table, check_dtype=False)
    assert refused > len(content) / 2
