"""Tuned fits: trials on an inner split of the training rows, and the fit with the best settings."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from gpbench import places
from gpbench.data import table as tables
from gpbench.errors import UserError
from gpbench.study.commands import fit_one, predict_csv
from gpbench.study.fitting import inner_split, stopping, tuning
from gpbench.study.fitting.outcome import Outcome
from gpbench.study.planning.batches import group_of
from gpbench.study.planning.resolve import resolve
from gpbench.study.storage.store import Store
from projects import prepared_project

CELL = "methods=[dnn] datasets=[diabetes] splits=2 budget=smoke tune=3"


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    return prepared_project(tmp_path_factory.mktemp("tuned") / "project", "diabetes")


@pytest.fixture
def group(where):
    (cell,) = resolve(where, "default", CELL).cells
    return group_of(cell, cell.fits[1:], cell.fits[1].rows)


@pytest.fixture
def table(where, group):
    return tables.load(where.prepared_file("diabetes"), group.what.data.md5)


@pytest.fixture
def tried(monkeypatch):
    """Fits that score as the list says, in turn; what was asked of them."""

    def fake(scores: list[float | BaseException]) -> list:
        seen: list = []

        def run(group, table, work):
            seen.append((group, table))
            score = scores[len(seen) - 1] if len(seen) <= len(scores) else 0.0
            if isinstance(score, BaseException):
                raise score
            return [Outcome("done", points=pd.DataFrame({"log_density": [-score, -score]}))]

        monkeypatch.setattr(tuning, "entry", lambda what: SimpleNamespace(run=run))
        return seen

    return fake


def test_no_trial_depends_on_a_test_row(group, table, tmp_path):
    """Trials, choice and model are the same when the inputs and targets of all test rows are."""
    _, test = group.what.protocol.splits.rows(len(table.targets), group.fits[0].split)
    rng = np.random.default_rng(0)
    inputs, targets = table.inputs.copy(), table.targets.copy()
    inputs[test], targets[test] = rng.normal(5, 9, inputs[test].shape), rng.normal(500, 90, targets[test].shape)
    found = []
    for number, one in enumerate((table, replace(table, inputs=inputs, targets=targets))):
        (work := tmp_path / str(number)).mkdir()
        (outcome,) = tuning.run(group, one, work)
        scores = [trial["score"] for trial in json.loads((work / tuning.TRIALS_FILE).read_text())]
        found.append((outcome.info["tuned"], scores, outcome.model["params"]))
    assert len(set(found[0][1])) == 3  # the settings tried do make a difference
    assert found[0][:2] == found[1][:2]
    assert all((found[0][2][name] == found[1][2][name]).all() for name in found[0][2])


def test_the_best_setting_on_held_out_training_rows_makes_the_fit(group, table, tmp_path, tried):
    seen = tried([3.0, 1.0, 2.0])
    (outcome,) = tuning.run(group, table, tmp_path)
    train, _ = group.what.protocol.splits.rows(len(table.targets), 1)
    assert [len(part.targets) for _, part in seen] == [len(train)] * 3 + [len(table.targets)]
    assert [one.what.protocol.splits.sizes(len(train)) for one, _ in seen[:3]] == [(318, 80)] * 3
    candidates = group.what.tune.candidates
    last = seen[-1][0].what
    assert candidates[1].items() <= last.method.hyper.items()
    assert (last.protocol, last.tune, seen[-1][0].fits) == (group.what.protocol, None, group.fits)
    assert outcome.info["tuned"] == candidates[1]
    assert outcome.info["trials"] == 3
    assert outcome.seconds["train"] == outcome.info["seconds_tuning"] > 0


def test_an_interrupted_search_goes_on_where_it_was(group, table, tmp_path, tried, monkeypatch):
    seen = tried([3.0, KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        tuning.run(group, table, tmp_path)
    seen = tried([1.0])
    monkeypatch.setattr(stopping, "is_requested", lambda: True)
    assert [outcome.status for outcome in tuning.run(group, table, tmp_path)] == ["stopped"]
    monkeypatch.setattr(stopping, "is_requested", lambda: False)
    (outcome,) = tuning.run(group, table, tmp_path)
    assert len(seen) == 3  # two trials that were left, and the fit
    assert outcome.info["tuned"] == group.what.tune.candidates[2]


def test_settings_that_cannot_be_fitted_have_lost(group, table, tmp_path, tried):
    tried([ValueError("too wide"), 7.0, np.nan])
    (outcome,) = tuning.run(group, table, tmp_path)
    assert outcome.info["tuned"] == group.what.tune.candidates[1]
    with pytest.raises(UserError, match="none of the 2 settings tried could be scored: ValueError: too wide"):
        inner_split.best([np.inf, np.nan], ["ValueError: too wide", ""])


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_is_no_reason_why_settings_have_lost(group, table, tmp_path, tried, wrapped):
    full: Exception = OSError(errno.ENOSPC, "No space left on device")
    if wrapped:  # as `places.write_aside` does
        full, full.__cause__ = UserError("cannot write"), full
    tried([3.0, full])
    with pytest.raises(type(full), match=re.escape(str(full))):
        tuning.run(group, table, tmp_path)
    assert [trial["score"] for trial in json.loads((tmp_path / tuning.TRIALS_FILE).read_text())] == [3.0]


@pytest.mark.parametrize("text", ["[{", "3", '[{"score": 1.0}]', "\udcff"])
def test_trials_that_are_damaged_are_made_again(group, table, tmp_path, tried, text):
    (tmp_path / tuning.TRIALS_FILE).write_text(text, errors="surrogateescape")
    tried([3.0, 1.0, 2.0])
    (outcome,) = tuning.run(group, table, tmp_path)
    assert outcome.info["tuned"] == group.what.tune.candidates[1]


def test_a_tuned_fit_from_the_command_line_predicts_with_what_it_chose(where, gpbench, monkeypatch):
    monkeypatch.setenv("GPBENCH_ROOT", str(where.root))
    monkeypatch.setenv("GPBENCH_STORE", str(where.store))
    words = ["method=dnn", "dataset=diabetes", "budget=smoke", "tune=2"]
    answer = gpbench("fit", *words)
    assert answer.code == 0, answer.err
    shown = json.loads(answer.out, parse_constant=pytest.fail)  # neither NaN nor Infinity is JSON
    fit_id = shown["fit_id"]
    record = Store(where.store).record(fit_id)
    assert record.what.trainings == 3
    assert (shown["tuned"], shown["trials"]) == (record.info["tuned"], 2)
    assert record.fitted.method.hyper == record.what.method.hyper | record.info["tuned"]
    assert fit_one.what_now(places.find(), record) == record.what
    model = predict_csv.Model(places.find(), fit_id)
    assert np.isfinite(model.predict(model.table.inputs[:2])).all(axis=None)
