"""Collecting: every fit of the study has its row, whatever became of it, and scores follow their code."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gpbench import places
from gpbench.errors import UserError
from gpbench.evaluation.metrics import METRICS
from gpbench.study import scoring
from gpbench.study.planning import identity
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from gpbench.study.storage import parquet, seals
from gpbench.study.storage.store import Store
from handmade import finish

STUDY = "methods=[constant,exact_gp,svgp] datasets=[boston,wine] splits=2"
IDENTITY = ["fit_id", "kind", "label", "family", "method", "dataset", "protocol", "budget", "overrides"]
FATE = ["split", "replica", "task", "status", "reason", "steps", "n_train", "n_test"]
COST = ["seconds_train", "seconds_predict", "seconds_shared_by", "peak_memory_mb"]


@pytest.fixture
def study(project):
    """A planned study: constant is done, svgp on boston diverged and was interrupted, on wine failed and is new."""
    where = places.find()
    plan = planning.make(where, "default", STUDY)
    planning.freeze(plan, where)
    store = Store(where.store)
    cells = {(c.address.method, c.address.dataset): c for c in plan.cells}
    for dataset in ("boston", "wine"):
        for fit in cells["constant", dataset].fits:
            finish(store, cells["constant", dataset], fit)
    finish(store, cells["svgp", "boston"], cells["svgp", "boston"].fits[0], "diverged", "not finite at step 7")
    finish(store, cells["svgp", "wine"], cells["svgp", "wine"].fits[0], "failed", "ValueError: no")
    groups = [g for b in plan.batches for g in b.groups if g.address.dataset == "boston"]
    begun = next(g for g in groups if g.fits[0] == cells["svgp", "boston"].fits[1])
    (store.begin(begun) / "checkpoint-000000050.pt").touch()
    return where, plan.name, store


def test_scores_have_a_row_for_every_fit(study):
    where, name, _ = study
    counts = collect.collect(where, name)
    scores = pd.read_parquet(where.results / name / "scores.parquet")
    assert {*IDENTITY, *FATE, *COST, "commit", "dirty", "started", "ended"} <= set(scores.columns)
    fates = scores.set_index(["method", "dataset", "split"])[["status", "reason"]].apply(tuple, axis=1)
    assert fates["constant", "wine", 1] == ("done", "")
    assert fates["exact_gp", "wine", 0] == ("skipped", "regression only")
    assert fates["exact_gp", "boston", 0] == ("missing", "not run yet")
    assert fates["svgp", "boston", 0] == ("diverged", "not finite at step 7")
    assert fates["svgp", "boston", 1][1].startswith("interrupted at step 50 of ")
    assert fates["svgp", "wine", 0] == ("failed", "ValueError: no")
    timed = {status for status, part in scores.groupby("status") if part["seconds_train"].notna().all()}
    assert timed == {"done", "diverged", "failed"}  # what has ended has taken its time
    assert len(scores) == 12
    assert counts == scores["status"].value_counts().to_dict()


def test_a_damaged_fit_costs_no_other_and_is_planned_again(study, gpbench):
    where, name, store = study
    plan = collect.read_plan(where, name)
    hurt, *sound = [fit.fit_id for cell in plan.cells if cell.method == "constant" for fit in cell.fits]
    (store.folder(hurt) / "points.parquet").write_bytes(b"")
    assert collect.stamp(where, name).is_file() is False
    answer = gpbench("collect", name)
    assert answer.code == 0
    assert answer.err.count("\n") == 1
    assert f"{hurt} is damaged (points.parquet was changed after it was written); moved to" in answer.err
    scores = pd.read_parquet(where.results / name / "scores.parquet").set_index("fit_id")
    assert scores.loc[hurt, "status"] == "missing"
    assert "points.parquet was changed" in scores.loc[hurt, "reason"]
    assert (scores.loc[sound, "status"] == "done").all()
    # Snakemake looks at records alone, and finds the collection up to date until the fit is there again
    assert collect.seen(collect.Ended(where, name, read=False), plan) == collect.stamp(where, name).read_text()
    assert planning.make(where, "default", STUDY).states[hurt].name == "pending"


def test_a_fit_without_a_score_has_diverged_and_costs_no_other(study, gpbench):
    where, name, store = study
    plan = collect.read_plan(where, name)
    hurt, *sound = [fit.fit_id for cell in plan.cells if cell.method == "constant" for fit in cell.fits]
    path = store.folder(hurt) / "points.parquet"
    pd.read_parquet(path).assign(mean=1e200, log_density=-np.inf).to_parquet(path)
    seals.seal(path.parent)
    assert gpbench("collect", name) == (0, f"{name}: 2 diverged, 3 done, 1 failed, 4 missing, 2 skipped\n", "")
    scores = pd.read_parquet(where.results / name / "scores.parquet").set_index("fit_id")
    assert tuple(scores.loc[hurt, ["status", "reason"]]) == (
        "diverged",
        f"fit {hurt}: the RMSE of its predictions is inf",
    )
    assert (scores.loc[sound, "status"] == "done").all()
    assert f"diverged: constant on boston, split 0 ({hurt}): fit {hurt}: the RMSE" in gpbench("verdict", name).err
    assert hurt not in set(pd.read_parquet(where.results / name / "points.parquet")["fit_id"])


def test_a_fit_without_a_score_says_so_whatever_its_training_notes(study):
    """Whether an optimised fit has converged, and the gate of its budget, are of fits that are done."""
    where, name, store = study
    plan = collect.read_plan(where, name)
    plan = replace(plan, cells=tuple(replace(cell, gain=0.01) for cell in plan.cells))
    sound, hurt = (
        finish(store, cell, cell.fits[1], convergence="not judged", not_judged_because="too few steps")
        for cell in plan.cells
        if cell.method == "svgp"
    )
    path = store.folder(hurt) / "points.parquet"
    pd.read_parquet(path).assign(log_density=-np.inf).to_parquet(path)
    seals.seal(path.parent)
    rows = {row["fit_id"]: row for row in collect.score_rows(where, collect.Ended(where, name), plan)}
    assert [rows[sound][k] for k in ("status", "gate", "convergence")] == ["done", "failed", "not judged"]
    assert rows[hurt]["status"] == "diverged"
    assert rows[hurt]["reason"] == f"fit {hurt}: the MNLL of its predictions is inf"
    assert not {"gate", "convergence"} & set(rows[hurt])


def test_scores_are_those_of_the_points(study):
    where, name, _ = study
    collect.collect(where, name)
    scores = pd.read_parquet(where.results / name / "scores.parquet").set_index(["method", "dataset", "split"])
    points = pd.read_parquet(where.results / name / "points.parquet").set_index("fit_id")
    row = scores.loc["constant", "boston", 0]
    own = points.loc[row["fit_id"]]
    # the predictive of these points is a standard normal
    mnll = (0.5 * np.log(2 * np.pi) + own["y"] ** 2 / 2).mean()
    np.testing.assert_allclose([row["mnll"], row["rmse"]], [mnll, np.sqrt((own["y"] ** 2).mean())], rtol=1e-12)
    assert set(METRICS) & set(scores.columns) >= {"mnll", "rmse", "error"}
    assert scores.loc[("svgp", "wine", 0), ["mnll", "error"]].isna().all()


def test_traces_and_points_are_of_finished_fits(study):
    where, name, _ = study
    collect.collect(where, name)
    folder = where.results / name
    done = pd.read_parquet(folder / "scores.parquet").query("status == 'done'")
    points, traces = pd.read_parquet(folder / "points.parquet"), pd.read_parquet(folder / "traces.parquet")
    assert set(points["fit_id"]) == set(traces["fit_id"]) == set(done["fit_id"])
    assert list(traces.columns) == ["fit_id", "step", "seconds", "objective", "mnll", "rmse", "error"]
    classes = points[points["fit_id"].isin(done.query("dataset == 'wine'")["fit_id"])]
    assert classes["confidence"].between(1 / 3, 1).all()
    assert (classes["p_true"] <= classes["confidence"]).all()
    probabilities = classes[["p0", "p1", "p2"]].to_numpy()
    assert classes["p_true"].tolist() == probabilities[range(len(classes)), classes["y"].astype(int)].tolist()


def test_study_json_lists_the_expected_fits(study):
    where, name, _ = study
    collect.collect(where, name)
    facts = json.loads((where.results / name / "study.json").read_text())
    assert facts["name"] == name
    assert facts["datasets"] == ["boston", "wine"]
    assert ["svgp", "wine", 1] in facts["expected"]
    assert facts["labels"]["svgp"] == "SVGP"
    assert len(facts["expected"]) == 12
    assert {"numpy", "torch"} <= set(facts["versions"])


def test_a_study_without_finished_fits_is_collected(project):
    where = places.find()
    plan = planning.make(where, "default", STUDY)
    planning.freeze(plan, where)
    assert collect.collect(where, plan.name) == {"missing": 10, "skipped": 2}
    assert pd.read_parquet(where.results / plan.name / "points.parquet").empty


def test_verdict_lists_failed_and_missing_fits(study, gpbench):
    where, name, store = study
    lines = collect.not_done(where, name)
    assert len(lines) == 6
    failed = next(line for line in lines if line.startswith("failed"))
    fit_id = next(i for i in store.ids() if store.record(i).status == "failed")
    assert failed == f"failed: svgp on wine, split 0 ({fit_id}): ValueError: no"
    answer = gpbench("verdict", name)
    assert answer.code == 1
    assert answer.err.splitlines()[:-1] == lines
    last = answer.err.splitlines()[-1]
    assert last.startswith(f"gpbench: 6 fits of {name} failed or are missing; `gpbench retry` clears what failed, ")
    assert f"`{collect.read_plan(where, name).command}` goes on" in last


def test_verdict_of_a_complete_study(project, gpbench):
    where = places.find()
    plan = planning.make(where, "default", "methods=[constant,exact_gp] datasets=[wine] splits=1")
    planning.freeze(plan, where)
    finish(Store(where.store), plan.cells[0], plan.cells[0].fits[0])
    assert gpbench("verdict", plan.name) == (0, f"{plan.name}: every fit is done\n", "")
    (where.results / plan.name).mkdir(parents=True)
    (where.results / plan.name / "report.html").touch()
    assert gpbench("verdict", plan.name).out.endswith(f"is done; open results/{plan.name}/report.html\n")


def test_verdict_of_a_study_of_which_one_fit_is_missing_or_nothing_can_be_fitted(project, gpbench):
    where = places.find()
    for method, said in (
        ("constant", "1 fit of {} failed or is missing; `gpbench retry` clears"),
        ("exact_gp", "{}: every fit is skipped, the first because: regression only"),
    ):
        plan = planning.make(where, "default", f"methods=[{method}] datasets=[wine] splits=1")
        planning.freeze(plan, where)
        answer = gpbench("verdict", plan.name)
        assert (answer.code, said.format(plan.name) in answer.err) == (1, True)


def test_seen_depends_on_the_store_and_on_the_scoring_code(study, monkeypatch):
    where, name, store = study
    plan = collect.read_plan(where, name)
    before = collect.seen(collect.Ended(where, plan.name), plan)
    ended = collect.Ended(where, plan.name)
    assert before == collect.seen(ended, plan)
    for limit in ({"r_hat": 1.3}, {"gain": 0.3}):
        assert collect.seen(ended, replace(plan, cells=tuple(replace(cell, **limit) for cell in plan.cells))) != before
    store.clear([next(i for i in store.ids() if store.record(i).status == "failed")])
    after = collect.seen(collect.Ended(where, plan.name), plan)
    assert after != before
    store.certify(store.ids()[0], {"certificate_steps": 8})
    before, after = after, collect.seen(collect.Ended(where, plan.name), plan)
    assert after != before
    monkeypatch.setattr(scoring, "digest", lambda: "another metric")
    assert collect.seen(collect.Ended(where, plan.name), plan) != after


def test_scores_are_kept_until_their_code_changes(study, monkeypatch):
    where, _, store = study
    record = store.record(next(i for i in store.ids() if store.record(i).status == "done"))
    first = scoring.scores(store, record)
    path = store.folder(record.fit_id) / "scores.json"
    kept = json.loads(path.read_text())
    assert kept["code"] == scoring.digest()
    seals.write(path, {"code": kept["code"], "scores": {"mnll": 0.0}})
    assert scoring.scores(store, record) == {"mnll": 0.0}
    monkeypatch.setattr(scoring, "digest", lambda: "another metric")
    np.testing.assert_equal(scoring.scores(store, record), first)
    assert json.loads(path.read_text())["code"] == "another metric"


def test_scores_in_a_record_are_used_until_their_code_changes(study, monkeypatch):
    where, _, store = study
    record = store.record(next(i for i in store.ids() if store.record(i).status == "done"))
    folder = store.folder(record.fit_id)
    scored = scoring.at_end(folder, record)
    np.testing.assert_equal(scored.scores, scoring.scores(store, record))
    assert scored.code == scoring.digest()
    assert scoring.at_end(folder, replace(record, status="failed")) is None
    kept = replace(record, scored=replace(scored, scores={"mnll": 0.0}))
    assert scoring.scores(store, kept) == {"mnll": 0.0}
    monkeypatch.setattr(scoring, "digest", lambda: "another metric")
    np.testing.assert_equal(scoring.scores(store, kept), scored.scores)


def test_a_metric_that_fails_loses_no_fit_and_is_named(study, monkeypatch):
    where, name, store = study
    record = store.record(next(i for i in store.ids() if store.record(i).status == "done"))
    monkeypatch.setitem(METRICS, "mine", replace(METRICS["mnll"], name="mine", function=lambda points, info: info["x"]))
    monkeypatch.setattr(scoring, "digest", lambda: "with another metric")
    assert scoring.at_end(store.folder(record.fit_id), record) is None, "the fit is kept"
    with pytest.raises(UserError, match="metric 'mine' fails: KeyError: 'x'"):
        collect.collect(where, name)


def test_a_metric_that_is_called_as_a_column_is_refused(study, monkeypatch):
    where, name, _ = study
    monkeypatch.setitem(METRICS, "split", replace(METRICS["mnll"], name="split"))
    monkeypatch.setattr(scoring, "digest", lambda: "with another metric")
    with pytest.raises(UserError, match="metric 'split' is called as a column of the scores; rename it"):
        collect.collect(where, name)


def test_the_code_of_scores_is_also_what_hands_metrics_their_table(monkeypatch):
    before = scoring.digest()
    monkeypatch.setattr(identity, "module_code", lambda module: f"another {module}")
    assert scoring.digest() != before


def test_a_study_that_was_not_planned(project):
    with pytest.raises(UserError, match=r"plans/nothing\.json is missing; `snakemake"):
        collect.collect(places.find(), "nothing")


def test_tables_are_written_in_chunks_as_they_would_be_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(collect, "CHUNK", 3)
    numbers = pd.DataFrame({"fit_id": "a", "row": [4, 5], "output": [0, 0], "mean": [0.5, 1.5]})
    classes = pd.DataFrame({"fit_id": "b", "row": [4, 5], "modal": [1, 0], "p0": [0.25, 0.5]})
    columns = ["fit_id", "row", "output", "mean", "modal", "p0", "p1"]
    for parts in ([numbers, numbers, classes, classes, numbers], [classes, classes, numbers], [numbers], []):
        together = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        chunks = list(collect._chunks(iter(parts), columns))
        assert max(map(len, chunks)) < 2 * collect.CHUNK
        parquet.write(tmp_path / "table.parquet", iter(chunks))
        read = pd.read_parquet(tmp_path / "table.parquet")
        pd.testing.assert_frame_equal(read, together.reindex(columns=columns), check_dtype=bool(parts))


def test_a_table_without_rows_names_fits_by_text(tmp_path):
    """So that it can be joined with fits that have no rows either: every fit of a run may be skipped."""
    parquet.write(tmp_path / "none.parquet", collect._chunks([], ["fit_id", "step"]))
    empty = parquet.read(tmp_path / "none.parquet")
    assert list(empty) == ["fit_id", "step"]
    assert empty.merge(pd.DataFrame({"fit_id": ["a"]}), on="fit_id").empty
