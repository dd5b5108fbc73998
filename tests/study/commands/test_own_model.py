"""From a CSV of one's own to predictions: `data add`, `fit split=all`, and `predict`, which takes raw cells."""

import csv
import errno
import io
import json
import multiprocessing
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gpbench import places
from gpbench.methods import linear
from gpbench.study.commands import job, predict_csv
from gpbench.study.fitting import closed_form, lightning_module
from gpbench.study.planning import plan as planning
from gpbench.study.records import identify
from gpbench.study.storage.store import Store
from handmade import CELL, WHAT, finish, planned

ROWS = [(i % 4, "red" if i % 3 else "blue", 2.0 * (i % 4) + 5.0 * bool(i % 3) + 0.01 * (-1) ** i) for i in range(24)]


def write(path: Path, rows, head=("size", "colour", "y"), delimiter=";") -> Path:
    with path.open("w", newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows([head, *rows])
    return path


@pytest.fixture
def own(project, gpbench):
    """A private data set; returns the command line."""
    path = write(project / "mine.csv", ROWS)
    assert gpbench("data", "add", str(path), "--target", "y", "--categorical", "colour").code == 0
    return gpbench


def test_three_commands_from_a_csv_to_predictions_of_a_model_of_all_rows(own):
    held_out = own("fit", "method=linear", "dataset=mine")
    assert "scored_on" not in json.loads(held_out.out)
    final = own("fit", "method=linear", "dataset=mine", "split=all")
    assert final.code == 0, final.err
    fit = json.loads(final.out)
    assert fit["scored_on"] == "training rows"
    record = json.loads(Path("store", fit["fit_id"], "fit.json").read_text())
    assert record["rows"] == len(ROWS)
    assert json.loads(own("fit", "method=linear", "dataset=mine", "split=all").out) == fit
    assert "nothing moved" in own("why", fit["fit_id"]).out
    write(Path("new.csv"), [("red", 3.0), ("blue", 0.0)], head=("colour", "size"), delimiter=",")
    again = own("fit", "method=linear", "dataset=mine", "split=1")  # made later, but not of all rows
    assert again.code == 0
    answer = own("predict", "linear/mine", "new.csv", "--out", "out.csv")
    assert answer.code == 0, answer.err
    assert answer.out == "out.csv: 2 rows of mean, sd, q05, ...\n"
    np.testing.assert_allclose(pd.read_csv("out.csv")["mean"], [11.0, 0.0], atol=0.05)
    Path("new.csv").write_text("\ncolour,size\n\nred,3.0\nblue,0.0\n\n")  # the same with empty lines
    assert own("predict", fit["fit_id"], "new.csv").out == Path("out.csv").read_text()


REFUSED = {
    "another value": ("size,colour\n1,green\n", "row 1, column 'colour': 'green' is not one of ['blue', 'red']"),
    "nothing": ("", "it is empty; give one with the columns size, colour\n"),
    "no such column": ("size\n1\n", "columns ['colour'] are missing; the model needs size, colour"),
    "huge": ("size,colour\n1,red\n1e308,red\n", "row 2: no finite prediction, as its inputs are too large"),
    "text": ("size,colour\nbig,red\n", "row 1, column 'size': 'big' is not a number"),
}


def test_raw_cells_that_are_no_input_are_one_line(own):
    own("fit", "method=linear", "dataset=mine", "split=all")
    for content, said in REFUSED.values():
        Path("new.csv").write_text(content)
        answer = own("predict", "linear/mine", "new.csv")
        assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
        assert said in answer.err
    absent = own("predict", "svgp/mine", "new.csv")
    assert "no finished fit of svgp on mine" in absent.err
    assert "gpbench fit method=svgp dataset=mine split=all" in absent.err
    for name, said in (("svpg/mine", "method 'svpg'; did you mean 'svgp'?"), ("svgp/mien", "dataset 'mien'")):
        assert own("predict", name, "new.csv").err.startswith(f"gpbench: unknown {said}")


def test_damaged_records_are_passed_over_unless_they_are_named(own):
    """Where a sound fit of the same cell is left it answers; none is taken for another by its identity."""
    own("fit", "method=linear", "dataset=mine", "split=0")
    held_out = own("predict", "linear/mine", "mine.csv")
    fit_id = json.loads(own("fit", "method=linear", "dataset=mine", "split=all").out)["fit_id"]
    record = Path("store", fit_id, "fit.json")
    record.write_bytes(record.read_bytes()[:90])
    answer = own("predict", "linear/mine", "mine.csv")
    assert (answer.code, answer.out, answer.err.count("\n")) == (0, held_out.out, 1)
    assert re.search(rf"^gpbench: passed over: .*{fit_id}/fit.json is damaged .*`gpbench retry {fit_id}`", answer.err)
    named = own("predict", fit_id, "mine.csv")
    assert (named.code, named.out, named.err.count("\n")) == (1, "", 1)
    assert re.search(rf"^gpbench: .*{fit_id}/fit.json is damaged .*moved to ", named.err)


def test_an_answer_goes_where_a_link_points_and_into_no_device(own):
    own("fit", "method=linear", "dataset=mine", "split=all")
    Path("real.csv").touch()
    Path("link.csv").symlink_to("real.csv")
    assert own("predict", "linear/mine", "mine.csv", "--out", "link.csv").code == 0
    assert Path("link.csv").is_symlink()
    assert len(pd.read_csv("real.csv")) == len(ROWS)
    itself = own("predict", "linear/mine", "mine.csv", "--out", str(Path("mine.csv").resolve()))
    assert (itself.code, "mine.csv is the table to predict, which it would replace" in itself.err) == (1, True)
    os.mkfifo("pipe")
    answer = own("predict", "linear/mine", "mine.csv", "--out", "pipe")
    assert (answer.code, Path("pipe").is_fifo()) == (1, True)
    assert "pipe: it is a device or a pipe; name a file" in answer.err


def test_a_model_of_other_data_under_the_same_name_says_so(own):
    fit_id = json.loads(own("fit", "method=linear", "dataset=mine", "split=all").out)["fit_id"]
    for made in ("conf/dataset/mine.yaml", "data/raw/mine/mine.csv"):
        Path(made).unlink()
    path = write(Path("mine.csv"), ROWS[1:])
    assert own("data", "add", str(path), "--target", "y", "--categorical", "colour").code == 0
    answer = own("predict", "linear/mine", "mine.csv")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert f"fit {fit_id} was made of other data than mine has today" in answer.err
    assert own("fit", "method=linear", "dataset=mine").code == 0
    assert own("predict", "linear/mine", "mine.csv").code == 0, "before one of all rows of the other data"


def test_a_model_of_all_rows_takes_no_test_rows_of_the_official_split(project, gpbench):
    """Every protocol's own way of holding rows out is replaced: folds, classes, official parts."""
    from gpbench import places
    from gpbench.study.commands.fit_one import cell_of

    for protocol, dataset in (("common", "probit_50_2"), ("filippone2014", "wine"), ("hensman2015mcmc", "coal_counts")):
        words = ["method=constant", f"dataset={dataset}", f"protocol={protocol}", "split=all"]
        cell = cell_of(places.find(), words)
        (fit,) = cell.fits
        assert fit.rows == fit.test_rows
        assert cell.what.protocol.splits.scheme == "blocks"


def test_a_model_of_other_code_answers_only_if_todays_code_predicts_the_same(own, monkeypatch):
    fit_id = json.loads(own("fit", "method=linear", "dataset=mine").out)["fit_id"]
    write(Path("new.csv"), [(3.0, "red")], head=("size", "colour"))
    answer = own("predict", fit_id, "new.csv").out
    monkeypatch.setattr(predict_csv.identity, "versions", lambda *modules: {"numpy": "0.1"})
    assert own("predict", fit_id, "new.csv").out == answer
    as_it_was = linear.Method.predict
    monkeypatch.setattr(linear.Method, "predict", lambda self, model, x: as_it_was(self, model, x + 0.1))
    moved = own("predict", fit_id, "new.csv")
    assert (moved.code, moved.out, moved.err.count("\n")) == (1, "", 1)
    assert "today's code predicts its test rows up to " in moved.err
    assert f"`gpbench why {fit_id}` names what moved" in moved.err
    monkeypatch.setattr(linear.Method, "predict", lambda self, model, x: model["outputs"])
    stumbles = own("predict", fit_id, "new.csv")
    assert (stumbles.code, stumbles.err.count("\n")) == (1, 1)
    assert "today's code cannot use it (KeyError: 'outputs')" in stumbles.err


@pytest.mark.parametrize(("change", "answers"), [(1e-5, True), (-1e-3, False), (np.nan, False)])
def test_a_change_is_counted_in_sds_of_the_row_that_changed_most(own, monkeypatch, change, answers):
    fit_id = json.loads(own("fit", "method=linear", "dataset=mine").out)["fit_id"]
    then = pd.read_parquet(Path("store", fit_id, "points.parquet"))
    changes = np.append(np.zeros(len(then) - 1), change)
    model = predict_csv.Model(places.find(), fit_id)
    monkeypatch.setattr(predict_csv.identity, "changed", lambda _: ["code"])
    monkeypatch.setattr(predict_csv, "points_of", lambda *_: then.assign(mean=then["mean"] + changes * then["sd"]))
    assert model._change() == pytest.approx(abs(change), nan_ok=True)
    assert (own("predict", fit_id, "mine.csv").code == 0) is answers


def test_a_fit_of_todays_code_answers_before_a_later_one_of_other_code(own, monkeypatch):
    fit_id = json.loads(own("fit", "method=linear", "dataset=mine").out)["fit_id"]
    where = places.find()
    with monkeypatch.context() as patch:
        patch.setattr(predict_csv.identity, "versions", lambda *modules: {"numpy": "0.1"})
        other = json.loads(own("fit", "method=linear", "dataset=mine").out)["fit_id"]
        assert predict_csv.find(Store(where.store), "linear/mine", where.conf) == other != fit_id
    assert predict_csv.find(Store(where.store), "linear/mine", where.conf) == fit_id
    with monkeypatch.context() as patch:
        patch.setattr(predict_csv.identity, "versions", lambda *modules: {"numpy": "0.1"})
        final = json.loads(own("fit", "method=linear", "dataset=mine", "split=all").out)["fit_id"]
    assert predict_csv.find(Store(where.store), "linear/mine", where.conf) == final, "as it has seen all rows"


def test_a_score_that_is_no_number_is_null(project, gpbench, monkeypatch):
    scores = {"status": "done", "mnll": np.nan, "rmse": np.inf, "error": 0.5}
    monkeypatch.setattr(job, "run_words", lambda *_, **__: (None, scores))
    monkeypatch.setattr(job, "require_done", lambda *_: None)
    shown = json.loads(gpbench("fit", "method=linear").out, parse_constant=pytest.fail)
    assert shown == {"status": "done", "mnll": None, "rmse": None, "error": 0.5}


def test_a_fit_says_that_its_predictions_are_constant(own):
    own("fit", "method=constant", "dataset=mine")
    own("fit", "method=linear", "dataset=mine")
    lines = own("plan", "--overrides", "methods=[constant,linear] datasets=[mine] splits=1").out.splitlines()
    assert "predicts the same for all 2 test rows" in lines[0]
    assert "predicts the same" not in lines[1]


EXTREMES = {
    "targets that are all the same": (lambda i: (i % 7, 1.0), ["failed", "done"]),
    "huge targets": (lambda i: (i % 7, (-1) ** i * (1.0 + i / 100) * 1e140), ["done", "done"]),
    "tiny targets": (lambda i: (i % 7, (1.0 + i / 7) * 1e-300), ["failed", "done"]),
    "huge inputs": (lambda i: (1e149 * (i % 7), i % 5), ["done", "done"]),
}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_numbers_stop_no_study(project, gpbench, name):
    """A fit that has no score says why, one whose predictions are all the same says so, and the rest is collected."""
    row, expected = EXTREMES[name]
    write(Path("mine.csv"), [row(i) for i in range(40)], head=("x", "y"), delimiter=",")
    assert gpbench("data", "add", "mine.csv", "--target", "y", "--task", "regression").code == 0
    assert gpbench("data", "prepare", "diabetes").code == 0
    where = places.find()
    plan = planning.make(where, "default", "methods=[constant,linear] datasets=[mine,diabetes] splits=1")
    planning.freeze(plan, where)
    job.run_groups(tuple(group for batch in plan.batches for group in batch.groups), where)
    answer = gpbench("collect", plan.name)
    assert (answer.code, answer.err) == (0, "")
    scores = pd.read_parquet(where.results / plan.name / "scores.parquet").set_index(["dataset", "method"])
    assert scores.loc["diabetes", "status"].tolist() == ["done", "done"]
    own = scores.loc["mine"]
    assert own.loc[["constant", "linear"], "status"].tolist() == expected
    assert np.isfinite(own.loc[own["status"] == "done", "mnll"]).all()
    assert own.loc[own["status"] != "done", "reason"].str.contains("variance must be positive|is nan").all()


def test_a_full_disk_is_no_result_of_a_fit(own, monkeypatch, capfd):
    """Fits stay as they were, to be resumed, with one line; what else a method raises is how its fit ended."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(closed_form, "run", full)
    answer = own("fit", "method=linear", "dataset=mine")
    assert (answer.code, answer.err.count("\n")) == (1, 2)
    assert "gpbench: [Errno 28] No space left on device" in answer.err
    assert "is not finished; run the same command again" in answer.err
    assert not list(Path("store").glob("*/fit.json"))


def test_a_process_that_ends_by_itself_fails_its_fit(own, monkeypatch):
    """It would be trained again by every run, to end no better."""
    monkeypatch.setattr(closed_form, "run", lambda *_: sys.exit(3))
    answer = own("fit", "method=linear", "dataset=mine")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "failed: ended by exit(3); `gpbench retry` continues" in answer.err
    (record,) = Path("store").glob("*/fit.json")
    said = own("predict", record.parent.name, "mine.csv").err
    assert said.startswith(f"gpbench: fit {record.parent.name} is failed: ended by exit(3)")
    assert said.endswith("; it has no model\n")


def test_draws_alone_predict_nothing(own):
    what = replace(WHAT, kind="sample")
    fit = replace(planned(), fit_id=identify(asdict(what), 0, 0))
    finish(Store(places.find().store), replace(CELL, what=what), fit)
    said = own("predict", fit.fit_id, "mine.csv").err
    assert "is of kind sample: its draws are kept, but no model that predicts" in said


def test_of_fits_of_todays_code_the_last_answers(own):
    """Whichever identity is the larger."""
    where, words = places.find(), ("fit", "method=linear", "dataset=mine")
    splits = {json.loads(own(*words, f"split={split}").out)["fit_id"]: split for split in range(2)}
    for fit_id in sorted(splits, reverse=True):
        Store(where.store).clear([fit_id])
        own(*words, f"split={splits[fit_id]}")
        assert predict_csv.find(Store(where.store), "linear/mine", where.conf) == fit_id


def test_a_daemonic_process_is_told_that_it_may_start_no_fit(own, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    answer = own("fit", "method=linear", "dataset=mine")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "take a concurrent.futures.ProcessPoolExecutor" in answer.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_model_for_which_the_disk_has_no_room_says_so():
    """torch's own writer raises a RuntimeError without the reason, which would be a traceback."""
    with pytest.raises(OSError, match="No space left on device"):
        lightning_module.save({"params": {"a": torch.ones(3)}}, Path("/dev/full"))


def test_a_fit_of_the_same_table_for_another_task_does_not_answer(project, gpbench):
    rows = [(x, y, int(x < y)) for x, y in np.random.default_rng(0).normal(size=(20, 2)).round(3)]
    new, path = (write(project / f"{len(r)}.csv", r, ("a", "b", "y")[: len(r[0])], ",") for r in ([(1, 2)], rows))
    for name in ("regression", "binary"):
        assert gpbench("data", "add", str(path), "--target", "y", "--task", name, "--name", name).code == 0
    assert gpbench("fit", "method=linear", "dataset=regression", "split=all").code == 0
    assert gpbench("predict", "linear/regression", str(new)).out.startswith("mean,sd,")
    assert "no finished fit of linear on binary in" in gpbench("predict", "linear/binary", str(new)).err


def test_the_same_arrays_under_other_names_are_asked_for_by_their_own(project, gpbench):
    """A fit is of arrays: whoever adds them again, their columns and classes named anew, meets fits that are there."""
    rng = np.random.default_rng(0)
    rows = [(a, b, "no" if a < b else "yes") for a, b in rng.normal(size=(30, 2)).round(3)]
    swapped = [(a, b, {"no": "Aa", "yes": "Bb"}[y]) for a, b, y in rows]
    new = write(project / "new.csv", [(2.0, -2.0)], ("a", "b"), ",")
    assert gpbench("data", "add", str(write(project / "plain.csv", rows, ("a", "b", "y"))), "--target", "y").code == 0
    fit = json.loads(gpbench("fit", "method=linear", "dataset=plain", "split=all").out)["fit_id"]
    assert gpbench("predict", fit, str(new)).code == 0
    path = write(project / "swapped.csv", swapped, ("b", "a", "y"))
    assert gpbench("data", "add", str(path), "--target", "y").code == 0
    assert json.loads(gpbench("fit", "method=linear", "dataset=swapped", "split=all").out)["fit_id"] == fit
    plain, other = (
        pd.read_csv(io.StringIO(gpbench("predict", f"linear/{n}", str(new)).out)) for n in ("plain", "swapped")
    )
    assert [*plain, *other] == ["p_no", "p_yes", "p_Aa", "p_Bb"]
    assert plain["p_yes"][0] > 0.5 > other["p_Bb"][0], "the same numbers in columns of other names"
    refused = gpbench("predict", fit, str(new))
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "of data with several names: say which to use, linear/plain or linear/swapped" in refused.err
    assert gpbench("pyfunc", "linear/swapped", str(project / "model")).code == 0
    (prepared,) = project.glob("model/artifacts/project/data/prepared/*.npz")
    assert prepared.stem == "swapped"
    assert f"as plain, protocol common, budget quick, split=all  {fit}  done" in gpbench("why", "linear/swapped").out
    (project / "conf/dataset/plain.yaml").unlink()
    assert gpbench("predict", "linear/swapped", str(new)).code == 0
    for words in (("predict", fit, str(new)), ("why", fit)):
        assert "is of data set 'plain', whose entry conf/dataset/plain.yaml is gone; put it back" in gpbench(*words).err
