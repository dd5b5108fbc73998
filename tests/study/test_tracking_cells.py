"""Cells of MLflow: one model each, without means of what is not done; scores of training rows are called so."""

import os
from dataclasses import asdict, replace

import numpy as np
import pytest
from test_tracking import View, environment, live_cell, places, planned, spool  # noqa: F401

from gpbench.data.splits import Blocks
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study import tracking
from gpbench.study.planning import batches
from gpbench.study.records import Progress, identify
from gpbench.study.storage.store import Store


@pytest.fixture(scope="module")
def where(tmp_path_factory, environment):  # noqa: F811
    """A project with a cell of one fit, which is logged."""
    where = places(tmp_path_factory.mktemp("cells") / "project")
    spool(where, planned(where), 0, 2.0)
    tracking.drain(where)
    return where


def test_fits_of_changed_settings_are_of_another_cell(where):
    """A default that was edited is in no address; their mean would be of two models. MLflow takes 6,000 characters."""
    cell, before = planned(where), len(View(where).cells())
    what = replace(cell.what, method=replace(cell.what.method, hyper=cell.what.method.hyper | {"edited": "7" * 7000}))
    fit = replace(cell.fits[0], fit_id=identify(asdict(what), 0, 0))
    spool(where, replace(cell, what=what, fits=(fit,)), 0, 9.0)
    tracking.drain(where)
    names = [run.data.tags["mlflow.runName"] for run in View(where).cells()]
    assert names == ["constant boston common quick"] * (before + 1), "settings that are the usual ones name no cell"
    assert max(len(run.data.params.get("edited", "")) for run in View(where).cells()) == 6000


def test_an_experiment_of_somebody_else_stays(where):
    client = View(where).client
    default = client.get_experiment_by_name("Default").experiment_id
    client.restore_experiment(default)
    client.create_run(default)
    tracking.Writer(where)
    assert client.get_experiment(default).lifecycle_stage == "active"


def test_a_fit_that_asks_again_while_it_is_read_is_read_again(where, monkeypatch):
    fit_id, usual = spool(where, planned(where, "noise_block=12"), 0, 1.0), tracking.Writer.cells

    def cells(writer):
        usual(writer)
        os.utime(where.store / ".spool" / fit_id, ns=(1, 1))

    with monkeypatch.context() as patch:
        patch.setattr(tracking.Writer, "cells", cells)
        assert tracking.drain(where) == 1
    assert tracking.waiting(where) == [fit_id]
    assert tracking.drain(where) == 1
    assert tracking.waiting(where) == []


def test_a_cell_without_a_done_fit_has_no_means_and_an_experiment_that_was_deleted_is_restored(where):
    cell = planned(where, "noise_block=9")
    fit_id = spool(where, cell, 0, 4.0)
    tracking.drain(where)
    Store(where.store).clear([fit_id])
    view = View(where)
    view.client.delete_experiment(view.experiment)
    spool(where, cell, 0, status="failed", reason="killed")
    tracking.drain(where)
    (run,) = (run for run in View(where).cells() if "noise_block=9" in run.data.tags["mlflow.runName"])
    assert (run.info.status, run.data.tags["gpbench.done"]) == ("FAILED", "0 of 1")
    assert np.isnan(run.data.metrics["mnll"])


def test_scores_of_training_rows_are_called_so(where):
    cell = planned(where)
    final = replace(cell.what, protocol=replace(cell.what.protocol, splits=Blocks(50)))
    fit = replace(cell.fits[0], fit_id=identify(asdict(final), 0, 0))
    fit_id = spool(where, replace(cell, what=final, fits=(fit,)), 0, 1.0)
    tracking.drain(where)
    (run,) = (run for run in View(where).fits() if run.data.tags["gpbench.fit"] == fit_id)
    assert (run.data.params["split"], run.data.metrics["train.mnll"]) == ("all", 1.0)
    assert "mnll" not in run.data.metrics


def test_a_cell_that_was_deleted_comes_back_with_its_fits(where):
    view = View(where)
    cells, fits = ({run.info.run_id for run in runs} for runs in (view.cells(), view.fits()))
    for run in cells:
        view.client.delete_run(run)
    assert View(where).cells() == []
    tracking.drain(where, anew=True)
    assert {run.info.run_id for run in View(where).cells()} == cells
    assert {run.info.run_id for run in View(where).fits()} == fits


def test_more_values_than_one_write_takes_are_all_logged(where, monkeypatch):
    monkeypatch.setattr(tracking, "MOST_AT_ONCE", 2)
    fit_id = spool(where, planned(where, "noise_block=11"), 0, 3.0)
    tracking.drain(where)
    view = View(where)
    (run,) = (run for run in view.fits() if run.data.tags["gpbench.fit"] == fit_id)
    logged = {
        name: [(point.step, point.value) for point in view.client.get_metric_history(run.info.run_id, name)]
        for name in ("mnll", "trace.seconds", "trace.objective")
    }
    trace = {"trace.seconds": [(1, 0.1), (2, 0.2)], "trace.objective": [(1, -2.0), (2, -1.0)]}
    assert logged == {"mnll": [(0, 3.0)]} | trace


def test_a_live_stream_has_every_step_once_and_ends_with_its_fit(where):
    cell = live_cell(where)
    (group,) = batches.groups(Store(where.store), [cell], {cell.fits[0].fit_id})
    live = tracking.Live(where)
    for step, objective in ((1, -3.0), (1, -3.0), (5, -2.0)):
        live.see(group, Progress(step, 10, 0.1, [objective]))
    (run,) = (run for run in View(where).runs() if run.data.tags.get("gpbench.live") == cell.fits[0].fit_id)
    points = live.client.get_metric_history(run.info.run_id, "live.objective")
    assert [(point.step, point.value) for point in points] == [(1, -3.0), (5, -2.0)]
    live.end(group)
    ended = live.client.get_run(run.info.run_id)
    assert (ended.info.status, ended.data.tags["gpbench.superseded"]) == ("FINISHED", cell.fits[0].fit_id)


def test_a_path_that_is_no_address_of_a_database_is_one_line_unless_a_server_is_named(tmp_path, monkeypatch):
    where = Places(tmp_path / "what?now", tmp_path / "store")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=r"no database in \S+what\?now: it has a \?; rename it or set MLFLOW_"):
        tracking.uri(where)  # MLflow would write a database `what`, beside the project
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    assert tracking.uri(where) == "http://server"
