"""MLflow as a view of the store: each fit once whoever drains the spool, however often."""

import datetime
import itertools
import json
import multiprocessing
import re
import statistics
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from gpbench.cli.main import main
from gpbench.errors import UserError
from gpbench.places import Places, write_text
from gpbench.study import scoring, tracking
from gpbench.study.commands import progress
from gpbench.study.planning import batches, plan
from gpbench.study.records import FitRecord, Progress, from_json, identify, to_json
from gpbench.study.storage import arrays, seals
from gpbench.study.storage.store import Store, Unreadable
from handmade import finish
from projects import copy_project

DATASET, SPLITS = "boston", 8
SCORES = [2.0 + 0.1 * split for split in range(SPLITS)]


def places(root: Path) -> Places:
    return Places(copy_project(root), root / "store")


def planned(where: Places, overrides: str = "") -> dict:
    """A cell of eight fits."""
    made = plan.make(where, "default", f"methods=[constant] datasets=[{DATASET}] splits={SPLITS} {overrides}")
    return made.cells[0]


def spool(where: Places, cell: dict, split: int, score: float = 0.0, status: str = "done", reason: str = "") -> str:
    """A fit ends and asks to be tracked; it has one score."""
    store = Store(where.store)
    fit_id = finish(store, cell, cell.fits[split], status, reason)
    kept = {"code": scoring.digest(), "scores": {"mnll": score}}
    seals.write(store.folder(fit_id) / "scores.json", kept)
    store.spool(fit_id)
    return fit_id


def finish_and_drain(where: Places, cell: dict, split: int, barrier) -> None:
    """What each of eight processes does at once."""
    barrier.wait()
    spool(where, cell, split, SCORES[split])
    tracking.drain(where)


class View:
    """What is in MLflow for a project."""

    def __init__(self, where: Places) -> None:
        self.client = tracking.connect(where)
        self.experiment = self.client.get_experiment_by_name(DATASET).experiment_id

    def runs(self) -> list:
        return list(self.client.search_runs([self.experiment], max_results=1000))

    def fits(self) -> list:
        return [run for run in self.runs() if "gpbench.fit" in run.data.tags]

    def cells(self) -> list:
        return [run for run in self.runs() if "gpbench.cell" in run.data.tags]


@pytest.fixture(scope="module", autouse=True)
def environment():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
        yield


@pytest.fixture(scope="module")
def where(tmp_path_factory, environment):
    """A project with eight fits of one cell, finished and drained by eight processes at the same time."""
    where = places(tmp_path_factory.mktemp("tracking") / "project")
    cell = planned(where)
    # the server imports MLflow once, its forks do the work
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow", "gpbench.study.tracking"])
    barrier = context.Barrier(SPLITS)
    processes = [
        context.Process(target=finish_and_drain, args=(where, cell, split, barrier)) for split in range(SPLITS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    return where


def test_each_fit_is_logged_once(where):
    fits = View(where).fits()
    assert sorted(run.data.tags["gpbench.fit"] for run in fits) == Store(where.store).ids()
    assert {run.data.tags["gpbench.status"] for run in fits} == {"done"}
    assert tracking.waiting(where) == []


def test_fits_are_nested_in_their_cell_with_its_means(where):
    view = View(where)
    (cell,) = view.cells()
    assert {run.data.tags["mlflow.parentRunId"] for run in view.fits()} == {cell.info.run_id}
    assert cell.data.tags["gpbench.done"] == "8 of 8"
    assert cell.data.metrics["mnll"] == pytest.approx(statistics.mean(SCORES))
    assert cell.data.metrics["mnll.sd"] == pytest.approx(statistics.stdev(SCORES))


def test_a_fit_has_its_parameters_scores_trace_data_and_record(where):
    view = View(where)
    for run in view.fits():
        record = Store(where.store).record(run.data.tags["gpbench.fit"])
        assert run.data.params | {"method": "constant", "dataset": DATASET, "dtype": "float64"} == run.data.params
        assert run.data.metrics["mnll"] == SCORES[record.split]
        trace = view.client.get_metric_history(run.info.run_id, "trace.objective")
        assert [(point.step, point.value) for point in trace] == [(1, -2.0), (2, -1.0)]
        (data,) = run.inputs.dataset_inputs
        assert (data.dataset.name, data.dataset.digest) == (DATASET, record.what.data.md5)
        (kept,) = (where.root / "mlartifacts" / DATASET / run.info.run_id / "artifacts").iterdir()
        assert from_json(FitRecord, kept.read_text(), kept) == record


def test_times_splits_data_and_columns_are_those_of_the_fits(where):
    view = View(where)
    (parent,) = view.cells()
    records = [Store(where.store).record(run.data.tags["gpbench.fit"]) for run in view.fits()]
    for run, record in zip(view.fits(), records, strict=True):
        began, ended = (
            datetime.datetime.fromisoformat(t) for t in (record.provenance.started, record.provenance.ended)
        )
        assert (run.info.start_time, run.info.end_time) == (
            round(1000 * began.timestamp()), round(1000 * ended.timestamp())
        )  # fmt: skip
        assert (run.data.params["split"], run.data.params["replica"]) == (str(record.split), "0")
    assert parent.info.end_time == max(run.info.end_time for run in view.fits())
    assert "split" not in parent.data.params
    assert [one.dataset.name for one in parent.inputs.dataset_inputs] == [DATASET]
    assert [experiment.name for experiment in view.client.search_experiments()] == [DATASET]  # and no empty Default
    tags = view.client.get_experiment(view.experiment).tags
    assert "params.`split`" in json.loads(tags[f"mlflow.sharedViewState.{tracking.VIEW}"])["selectedColumns"]
    assert tags["mlflow.experimentKind"] == "custom_model_development"


def test_draining_twice_adds_nothing(where):
    before = len(View(where).runs())
    assert tracking.drain(where) == 0
    assert tracking.drain(where, anew=True) == SPLITS
    assert len(View(where).runs()) == before


def test_a_database_that_was_lost_is_filled_again(where, monkeypatch, tmp_path):
    before = sorted(run.data.tags["gpbench.fit"] for run in View(where).fits())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new.db")
    assert tracking.drain(where, anew=True) == SPLITS
    assert sorted(run.data.tags["gpbench.fit"] for run in View(where).fits()) == before


def test_an_incomplete_run_of_a_killed_writer_is_replaced(where):
    view = View(where)
    half = view.fits()[0]
    view.client.delete_tag(half.info.run_id, "gpbench.complete")
    Store(where.store).spool(half.data.tags["gpbench.fit"])
    tracking.drain(where)
    fits = View(where).fits()
    assert len(fits) == SPLITS
    assert half.info.run_id not in [run.info.run_id for run in fits]
    assert all(run.data.tags["gpbench.complete"] == "yes" for run in fits)


def test_a_fit_cleared_before_it_was_read_is_skipped(where):
    before = len(View(where).runs())
    Store(where.store).spool("0123456789abcdef")
    (where.store / ".spool" / "of somebody else").mkdir()
    assert tracking.drain(where) == 0
    assert len(View(where).runs()) == before
    assert tracking.waiting(where) == []


def test_a_server_that_does_not_answer_is_one_line_and_the_spool_is_kept(where, monkeypatch, capfd):
    fit_id = Store(where.store).ids()[0]
    Store(where.store).spool(fit_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"MLflow at http://127.0.0.1:9 does not answer .* the spool is kept"):
        tracking.drain(where)
    assert tracking.waiting(where) == [fit_id]
    monkeypatch.setenv("GPBENCH_ROOT", str(where.root))
    monkeypatch.setenv("GPBENCH_STORE", str(where.store))
    capfd.readouterr()
    assert main(["track"]) == 1
    assert capfd.readouterr().err.count("\n") == 1
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    tracking.drain(where)


def test_a_fit_that_takes_the_place_of_another_tags_it_and_leaves_the_means(where):
    cell = planned(where)
    old = cell.fits[0].fit_id
    # the same address under another identity: its code has changed, say
    what = replace(cell.what, code={})
    fit = replace(cell.fits[0], fit_id=identify(asdict(what), 0, 0))
    new = spool(where, replace(cell, what=what, fits=(fit,)), 0, 9.0)
    tracking.drain(where)
    view = View(where)
    by_fit = {run.data.tags["gpbench.fit"]: run for run in view.fits()}
    assert len(by_fit) == SPLITS + 1
    assert by_fit[old].data.tags["gpbench.superseded"] == new
    assert [r for r in by_fit.values() if "gpbench.superseded" in r.data.tags] == [by_fit[old]]
    (parent,) = view.cells()
    assert parent.data.tags["gpbench.done"] == "8 of 8"
    assert parent.data.metrics["mnll"] == pytest.approx(statistics.mean([9.0, *SCORES[1:]]))


@pytest.mark.parametrize("lasts", [0, 1], ids=["the first is logged last", "the second is logged last"])
def test_the_fit_that_was_begun_last_is_the_current_one_in_whatever_order_they_are_logged(where, lasts):
    cell, fits = planned(where, f"noise_block={20 + lasts}"), []
    for code in ("a", "b"):
        what = replace(cell.what, code={"changed": code})
        fit = replace(cell.fits[0], fit_id=identify(asdict(what), 0, 0))
        fits.append(spool(where, replace(cell, what=what, fits=(fit,)), 0, float(len(fits))))
    later = where.store / ".spool" / fits[lasts]
    later.unlink()
    tracking.drain(where)
    Store(where.store).spool(fits[lasts])
    for anew in (False, True):
        tracking.drain(where, anew)
        view = View(where)
        runs = [run for run in view.fits() if run.data.tags["gpbench.fit"] in fits]
        superseded = {run.data.tags["gpbench.fit"]: run.data.tags.get("gpbench.superseded") for run in runs}
        assert superseded == {fits[0]: fits[1], fits[1]: None}
        (parent,) = (each for each in view.cells() if each.info.run_id == runs[0].data.tags["mlflow.parentRunId"])
        assert (parent.data.tags["gpbench.done"], parent.data.metrics["mnll"]) == ("1 of 1", 1.0)


def test_a_copy_that_was_adopted_takes_the_place_of_its_original_which_began_with_it(where):
    cell, store = planned(where, "noise_block=22"), Store(where.store)
    original, what = store.record(spool(where, cell, 0, 1.0)), replace(cell.what, code={"changed": "c"})
    origin = replace(original.provenance, adopted="of commit abcdef0; refitted 1")
    copy = replace(original, fit_id=identify(asdict(what), 0, 0), what=what, provenance=origin, sealed={})
    store.copy(original.fit_id, copy.fit_id, to_json(copy))
    tracking.drain(where)
    by_fit = {run.data.tags["gpbench.fit"]: run for run in View(where).fits()}
    for runs in itertools.permutations(by_fit[each.fit_id] for each in (original, copy)):
        assert tracking.Writer(where)._current(runs) == [by_fit[copy.fit_id]]


@pytest.mark.parametrize(("step", "block"), [("_log", 30), ("_data", 31), ("fit", 32), ("cells", 33)])
def test_what_a_killed_writer_left_is_completed_by_the_next(where, monkeypatch, step, block):
    """Before the parameters or the data of a cell, another fit or the means are written."""
    cell = planned(where, f"noise_block={block}")
    usual = getattr(tracking.Writer, step)
    fits = [spool(where, cell, split, float(split)) for split in (0, 1)]
    calls = []

    def killed(*words):
        calls.append(words)
        if step != "fit" or len(calls) > 1:
            raise KeyboardInterrupt
        return usual(*words)

    with monkeypatch.context() as patch:
        patch.setattr(tracking.Writer, step, killed)
        with pytest.raises(KeyboardInterrupt):
            tracking.drain(where)
    tracking.drain(where)
    view = View(where)
    runs = [run for run in view.fits() if run.data.tags["gpbench.fit"] in fits]
    (parent,) = (each for each in view.cells() if each.info.run_id == runs[0].data.tags["mlflow.parentRunId"])
    assert (parent.data.tags["gpbench.done"], parent.data.metrics["mnll"]) == ("2 of 2", 0.5)
    assert parent.data.params | {"method": "constant", "dataset": DATASET, "dtype": "float64"} == parent.data.params
    assert [one.dataset.name for one in parent.inputs.dataset_inputs] == [DATASET]


def test_a_fit_that_cannot_be_read_for_a_moment_is_logged_by_the_next(where, monkeypatch, capfd):
    fit_id = spool(where, planned(where, "noise_block=40"), 0)

    def refuse(*_: object) -> None:
        raise Unreadable("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "verified", refuse)
        assert tracking.drain(where) == 0
    assert "gpbench: too many open files" in capfd.readouterr().err
    assert tracking.waiting(where) == [fit_id]
    assert tracking.drain(where) == 1


def test_fits_of_one_address_with_other_settings_of_their_study_are_of_another_cell(where):
    cell, before = planned(where), len(View(where).cells())
    what = replace(cell.what, dtype="float32")
    fit = replace(cell.fits[0], fit_id=identify(asdict(what), 0, 0))
    new = spool(where, replace(cell, what=what, fits=(fit,)), 0, 9.0)
    tracking.drain(where)
    view = View(where)
    assert len(view.cells()) == before + 1
    (run,) = (run for run in view.fits() if run.data.tags["gpbench.fit"] == new)
    assert run.data.tags["mlflow.runName"].endswith("dtype=float32 split 0")
    assert new not in [each.data.tags.get("gpbench.superseded") for each in view.fits()]


def test_a_failed_fit_is_logged_with_its_reason_and_not_averaged(where):
    cell = planned(where)
    what = replace(cell.what, code={"changed": ""})  # another fit of the same cell
    fit = replace(cell.fits[3], fit_id=identify(asdict(what), 3, 0))
    changed = replace(cell, what=what, fits=(fit,))
    failed = spool(where, changed, 0, status="failed", reason="ArithmeticError: the sum is wrong")
    tracking.drain(where)
    view = View(where)
    (run,) = [run for run in view.fits() if run.data.tags["gpbench.fit"] == failed]
    assert run.info.status == "FAILED"
    assert run.data.tags["gpbench.reason"] == "ArithmeticError: the sum is wrong"
    (parent,) = (each for each in view.cells() if each.info.run_id == run.data.tags["mlflow.parentRunId"])
    assert parent.data.tags["gpbench.done"] == "7 of 8"


def test_a_fit_that_was_retried_takes_the_place_of_its_failure(where):
    cell = planned(where, "noise_block=8")
    fit_id = spool(where, cell, 4, status="failed", reason="killed")
    tracking.drain(where)
    Store(where.store).clear([fit_id])
    spool(where, cell, 4)
    tracking.drain(where)
    runs = [run for run in View(where).fits() if run.data.tags["gpbench.fit"] == fit_id]
    current = [run.data.tags["gpbench.status"] for run in runs if "gpbench.superseded" not in run.data.tags]
    assert current == ["done"]


def test_overrides_with_quotes_do_not_upset_the_search_for_their_cell(where):
    cell = planned(where, "'protocol.leaks=[test_x]'")
    assert "'" in cell.address.overrides
    fit_id = spool(where, cell, 0)
    tracking.drain(where)
    assert fit_id in [run.data.tags["gpbench.fit"] for run in View(where).fits()]


def test_a_chain_has_its_diagnostics_which_are_not_averaged_over_fits(where):
    fit_id = spool(where, planned(where, "noise_block=9"), 5)
    draws = np.random.default_rng(0).standard_normal((40, 3, 1))
    arrays.write(where.store / fit_id, {"chain": {"rows": np.arange(3), "mean": draws, "log_density": -(draws**2)}})
    seals.seal(where.store / fit_id)
    tracking.drain(where)
    view = View(where)
    (run,) = [run for run in view.fits() if run.data.tags["gpbench.fit"] == fit_id]
    found = scoring.mixing(Store(where.store), [Store(where.store).record(fit_id)])
    assert run.data.metrics["chain.r_hat"] == pytest.approx(found["r_hat"])
    assert run.data.metrics["chain.ess_bulk"] == pytest.approx(found["ess_bulk"])
    assert "chain.r_hat_covariance" not in run.data.metrics, "there is none"
    assert not any(name.startswith("chain.") for cell in view.cells() for name in cell.data.metrics)


def test_a_live_stream_that_fails_ends_no_batch(where, monkeypatch, capfd):
    """The server does not answer at all, or no more."""
    (group,) = batches.groups(Store(where.store), [live_cell(where)], {live_cell(where).fits[0].fit_id})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    progress.Watch([group], where).end(group)
    assert re.fullmatch(r"gpbench: no live stream to MLflow \(.*\); the fits go on\n", capfd.readouterr().err)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    watch = progress.Watch([group], where)
    store = Store(where.store)
    write_text(store.begin(group) / "progress.json", to_json(Progress(1, 2, 0.1, [0.0])))
    monkeypatch.setattr(watch.live.client, "log_metric", fails)
    watch.look(group)
    watch.looked = 0.0
    watch.look(group)
    watch.end(group)
    store.end(group.group_id)
    assert capfd.readouterr().err == "gpbench: no live stream to MLflow (it is gone); the fits go on\n"


def live_cell(where):
    """A cell of one fit that is streamed."""
    cell = planned(where)
    return replace(cell, how=replace(cell.how, live=True), fits=cell.fits[:1])


def fails(*_: object, **__: object) -> None:
    raise RuntimeError("it is gone")


def test_a_file_that_is_no_database_is_one_line_at_once(where, monkeypatch, tmp_path):
    path = tmp_path / "notes.db"
    path.write_text("not a database, but some notes")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    with pytest.raises(UserError, match=r"notes\.db is not an SQLite database; move it away"):
        tracking.connect(where)


def test_one_fit_is_said_to_be_one(gpbench, monkeypatch):
    monkeypatch.setattr(tracking, "drain", lambda *_: 1)
    assert gpbench("track").out == "1 fit logged\n"
