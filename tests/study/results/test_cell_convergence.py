"""Whether fits have converged, from their records to the scores, the command line and the committed records."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from gpbench import places
from gpbench.study.commands import certify
from gpbench.study.fitting.convergence import CONVERGED, IMPROVING, NOT_JUDGED
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect, convergence
from gpbench.study.storage import committed
from gpbench.study.storage.store import Store
from handmade import CELL, WHAT, finish, planned, record_of

SMALL = "methods=[constant,svgp] datasets=[boston] splits=3"
NOTED = (
    {"convergence": CONVERGED, "gain": 0.004, "not_judged_because": "", "steps_done": 1800},
    {"convergence": IMPROVING, "gain": 0.13, "not_judged_because": "", "steps_done": 2000},
    {"convergence": NOT_JUDGED, "gain": math.nan, "not_judged_because": "100 steps are too few", "steps_done": 100},
)
WORDS = ("converged", "still improving (about 0.13 nats)", "not judged (100 steps are too few)")


def finished(overrides: str) -> planning.Plan:
    """The plan of three svgp fits that are done, each as it noted, and of three constant ones."""
    where = places.find()
    plan = planning.make(where, "default", overrides)
    for cell in plan.cells:
        for fit, noted in zip(cell.fits, NOTED, strict=True):
            finish(Store(where.store), cell, fit, **noted if cell.method == "svgp" else {})
    planning.freeze(plan, where)
    return plan


def scores(plan: planning.Plan) -> pd.DataFrame:
    where = places.find()
    collect.collect(where, plan.name)
    return pd.read_parquet(where.results / plan.name / "scores.parquet").query("method == 'svgp'").set_index("split")


@pytest.mark.parametrize(("limit", "gates"), [(None, ["", "", ""]), (0.02, ["passed", "failed", "failed"])])
def test_the_limit_of_the_budget_decides_what_fails(project, limit, gates):
    plan = finished(f"{SMALL} budget.gain={limit or 'null'}")
    rows = scores(plan)
    assert rows["gate"].tolist() == gates
    assert rows["convergence"].tolist() == [noted["convergence"] for noted in NOTED]
    assert rows["steps_done"].tolist() == [1800, 2000, 100]
    assert rows["gain"].iloc[1] == 0.13
    lines = collect.not_converged(places.find(), plan.name)
    expected = [f"svgp on boston, split {i}: {WORDS[i]}; the limit is 0.02 nats" for i in (1, 2)]
    assert lines == ([f"not converged: {text}" for text in expected] if limit else [])


def test_a_larger_limit_lets_a_fit_pass_that_improves_less(project):
    assert scores(finished(f"{SMALL} budget.gain=0.2"))["gate"].tolist() == ["passed", "passed", "failed"]


def test_a_fit_by_steps_that_notes_nothing_is_not_judged(project):
    where = places.find()
    plan = planning.make(where, "default", "methods=[constant,svgp] datasets=[boston] splits=1")
    for cell in plan.cells:
        finish(Store(where.store), cell, cell.fits[0])
    planning.freeze(plan, where)
    row = scores(plan).loc[0]
    assert (row["convergence"], row["not_judged_because"]) == (NOT_JUDGED, "its training measures none")


def test_the_command_line_says_it(project, gpbench):
    overrides = f"{SMALL} budget.gain=0.02"
    plan = finished(overrides)
    for words in (("plan", "--overrides", overrides), ("why", "svgp/boston")):
        out = gpbench(*words).out
        assert all(text in out for text in WORDS), words
    assert "6 done (1 still improving)" in gpbench("status", "--overrides", overrides).out
    answer = gpbench("verdict", plan.name)
    assert answer.code == 0
    assert "every fit is done, but the fits of 2 splits have not converged" in answer.out
    assert answer.err.count("not converged: svgp on boston") == 2


def test_records_keep_it(project):
    where, plan = places.find(), finished(f"{SMALL} budget.gain=0.02")
    collect.record(where, plan)
    kept = committed.read(committed.folder(where, plan.name) / "scores.csv")
    rows = {row["split"]: row for row in kept if row["method"] == "svgp"}
    assert [rows[i]["convergence"] for i in range(3)] == [noted["convergence"] for noted in NOTED]
    assert (rows[0]["steps_done"], rows[1]["gain"], rows[1]["gate"]) == (1800, 0.13, "failed")
    assert rows[2]["not_judged_because"] == "100 steps are too few"
    assert {row["convergence"] for row in kept if row["method"] == "constant"} == {""}


def test_chains_are_judged_by_their_r_hat_with_and_without_a_limit():
    mixed = {"chains": 4, "draws": 400, "ess_bulk": 300.0, "ess_tail": 100.0, "ess_every": 100.0}
    assert convergence.of_chains(mixed | {"r_hat": 1.04}, None) == {"convergence": CONVERGED, "gate": ""}
    assert convergence.of_chains(mixed | {"r_hat": 1.04}, 1.01)["gate"] == "failed"
    assert convergence.of_chains(mixed | {"r_hat": 1.2}, None)["convergence"] == convergence.NOT_CONVERGED
    few = convergence.of_chains(mixed | {"r_hat": 1.04, "ess_every": 99.0}, 1.05)
    assert (few["convergence"], few["gate"]) == (convergence.NOT_CONVERGED, "failed")
    assert few["reason"] == "99 effective draws, of which 100 are needed (4 chains of 400 draws)"
    stuck = convergence.of_chains(mixed | {"r_hat": math.nan, "draws": 1000.0}, 1.05)
    assert (stuck["gate"], stuck["not_judged_because"]) == ("failed", "no chain moved, or a draw is no number")
    short = convergence.of_chains(mixed | {"r_hat": math.nan, "draws": 3.0}, 1.05)
    assert (short["convergence"], short["gate"]) == (NOT_JUDGED, "failed")


def test_chains_at_the_limits_have_converged():
    mixed = {"chains": 4, "draws": 400, "ess_bulk": 100.0, "ess_tail": 100.0, "ess_every": 100.0}
    assert convergence.unmixed(mixed | {"r_hat": convergence.LARGEST_R_HAT}, None) == ""
    assert convergence.unmixed(mixed | {"r_hat": 1.2}, 1.2) == ""
    # four draws are two for each half of a chain
    why = [convergence.of_chains(mixed | {"r_hat": math.nan, "draws": n}, None)["not_judged_because"] for n in (3, 4)]
    assert why == ["too few draws for an R-hat", "no chain moved, or a draw is no number"]


def test_a_certificate_is_made_once_and_joins_the_scores(project, monkeypatch, gpbench):
    where, plan = places.find(), finished(SMALL)
    (cell,) = (cell for cell in plan.cells if cell.method == "svgp")
    store = Store(where.store)
    (longer,) = planning.make(where, "default", f"{SMALL} svgp.steps=7200 only=[svgp]").cells
    made = []

    def refit(where, store, record):
        made.append(record.fit_id)
        finish(store, longer, longer.fits[0])
        return record_of(longer, longer.fits[0])

    monkeypatch.setattr(certify, "refitted", refit)
    for _ in range(2):
        answer = gpbench("certify", "--overrides", SMALL)
        assert answer.out == (
            "svgp on boston, split 0: 7200 steps gain +0.0000 nats a datum of the objective and change the MNLL by "
            "+0.0000\n"
        )
    assert made == [cell.fits[0].fit_id]
    assert scores(plan)["certificate_steps"].tolist()[0] == 7200
    assert store.has(cell.fits[0].fit_id)


def test_a_certificate_says_what_the_last_tenth_of_the_steps_gained(tmp_path, monkeypatch):
    short, long = record_of(CELL, planned(0)), record_of(replace(CELL, what=replace(WHAT, steps=400)), planned(1))
    traces = {
        short.fit_id: pd.DataFrame({"step": [50, 91, 100], "objective": [0.0, -20.0, -16.0]}),
        long.fit_id: pd.DataFrame({"step": [300, 361, 400], "objective": [0.0, -8.0, -1.0]}),
    }
    mnll = {short.fit_id: 2.5, long.fit_id: 2.25}
    monkeypatch.setattr(certify.arrays, "trace", lambda folder: traces[folder.name])
    monkeypatch.setattr(certify.scoring, "scores", lambda store, record: {"mnll": mnll[record.fit_id]})
    # of nine training rows: 13.5 nats more
    gained = {"certificate_steps": 400, "certificate_objective": 1.5, "certificate_mnll": -0.25}
    assert certify.compared(Store(tmp_path), short, long) == gained


def test_without_a_finished_fit_there_is_nothing_to_certify(project, gpbench):
    words = "methods=[bsgp_1] datasets=[boston] splits=1 budget=smoke"
    (cell,) = planning.make(places.find(), "default", words).cells
    finish(Store(places.find().store), cell, cell.fits[0])  # of a Markov chain
    assert "has no finished fit by gradients in the store" in gpbench("certify", "--overrides", words).err
    assert "has no finished fit by gradients in the store; run it first" in gpbench("certify").err


def test_a_search_that_ended_by_itself_passes_every_limit():
    """At a stationary point there is nothing to double, so that no gain is predicted."""
    noted = {"convergence": CONVERGED, "gain": math.nan, "not_judged_because": "", "steps_done": 36}
    assert convergence.of_optimised(noted, 0.02)["gate"] == "passed"


@pytest.mark.parametrize(
    ("status", "gain", "limit", "gate"),
    [
        ("still improving", 0.012, 0.02, "failed: still improving (about 0.012 nats); the limit is 0.005 nats"),
        ("not judged", 0.003, 0.02, "failed: not judged (too noisy); the limit is 0.02 nats"),
        ("still improving", 0.012, 0.05, "passed: "),
        ("still improving", 0.05, 0.05, "failed: still improving (about 0.05 nats); the limit is 0.05 nats"),
        ("still improving", 0.06, 0.05, "failed: still improving (about 0.06 nats); the limit is 0.05 nats"),
        ("converged", 0.004, 0.02, "passed: "),
    ],
)
def test_no_fit_passes_that_improves_more_than_one_that_fails(status, gain, limit, gate):
    """L-BFGS must gain less than 0.005: one of 0.012 passed the limit of 0.02 where quieter ones of 0.003 did not."""
    because = "too noisy" if status == "not judged" else ""
    found = convergence.of_optimised({"convergence": status, "gain": gain, "not_judged_because": because}, limit)
    assert f"{found['gate']}: {found.get('reason', '')}" == gate
