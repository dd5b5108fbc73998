"""Cells of MLflow: one model each, without means of what is not done; scores of training rows are called so."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from test_tracking import View, environment, places, planned, spool  # noqa: F401

from gpbench.data.splits import Blocks
from gpbench.study import tracking
from gpbench.study.records import identify
from gpbench.study.storage.store import Store


@pytest.fixture(scope="module")
def where(tmp_path_factory, environment):  # noqa: F811
    """A project with a cell of one fit, which is logged."""
    where = places(tmp_path_factory.mktemp("cells") / "project")
    spool(where, planned(where), 0, 2.0)
    tracking.drain(where)
    return where


def test_fits_of_changed_settings_are_of_another_cell(where):
    """A default that was edited is in no address; their mean would be of two models."""
    cell, before = planned(where), len(View(where).cells())
    what = replace(cell.what, method=replace(cell.what.method, hyper=cell.what.method.hyper | {"edited": 7}))
    fit = replace(cell.fits[0], fit_id=identify(asdict(what), 0, 0))
    spool(where, replace(cell, what=what, fits=(fit,)), 0, 9.0)
    tracking.drain(where)
    assert len(View(where).cells()) == before + 1


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
