"""Finished fits written by hand, for tests of what reads the store."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench.config.schema import Trainer
from gpbench.data.splits import FrozenProtocol, Official
from gpbench.evaluation.pointwise import pointwise
from gpbench.predictive.distributions import Categorical, GaussianMixture
from gpbench.study.records import (
    Address,
    Cell,
    Cost,
    Fit,
    FitRecord,
    MethodSettings,
    PreparedData,
    Reported,
    Seconds,
    What,
    identify,
    to_json,
)
from gpbench.study.storage import arrays, provenance, seals
from gpbench.study.storage.store import Store

PROTOCOL = FrozenProtocol("common", "standardise", "standardise", (), (0,), Official(9))
WHAT = What(
    kind="predict",
    method=MethodSettings("gpbench.methods.constant", {}),
    data=PreparedData("0" * 32, "regression", False, 0),
    protocol=PROTOCOL,
    steps=None,
    until_converged=False,
    dtype="float64",
    noise_block=50,
    trained_by="closed_form",
    workers=1,
    code={},
    versions={},
)
CELL = Cell(
    method="constant",
    settings={},
    address=Address("constant", "boston", "common", "quick", ""),
    label="Constant",
    family="constant",
    reported=Reported(["mnll"], "sample sd"),
    r_hat=None,
    gain=None,
    rows=9,
    test_rows=1,
    what=WHAT,
    how=Trainer("cpu"),
    cost=Cost(0.01, 0.25),
    sampler=False,
    skip="",
    fits=(),
)
"""A cell that nobody planned."""


def record_of(cell: Cell, fit: Fit, status: str = "done", reason: str = "", **info: object) -> FitRecord:
    """Record of a fit of a cell; info: what it noted."""
    return FitRecord.of(
        cell,
        fit,
        status=status,
        reason=reason,
        seconds=Seconds(train=2.0 * (cell.what.steps or 1), predict=0.5),
        peak_memory_mb=100.0,
        provenance=provenance.since(provenance.now(), Path("/")),
        info={"train_target_mean": [1.0], "train_target_sd": [2.0]} | info,
    )


def planned(split: int = 0, cell: Cell = CELL) -> Fit:
    """A fit of a cell, with its identity."""
    return Fit(identify(asdict(cell.what), split, 0), split, 0, 9, 1)


def finish(store: Store, cell: Cell, fit: Fit, status: str = "done", reason: str = "", **info: object) -> str:
    """Put a fit of a planned cell into the store, with points that a predictive of it could have."""
    with store.writing(fit.fit_id) as folder:
        if status == "done":
            points(cell.what.data).to_parquet(folder / "points.parquet", index=False)
            trace = {"step": [1, 2], "seconds": [0.1, 0.2], "objective": [-2.0, -1.0]}
            arrays.write(folder, {"trace": {name: np.array(values) for name, values in trace.items()}})
        (folder / "fit.json").write_text(to_json(record_of(cell, fit, status, reason, **info)))
    return fit.fit_id


FITS = {fit.fit_id: fit for fit in map(planned, range(5))}


def put(store: Store, fit_id: str, status: str = "done") -> None:
    """Put one of FITS into the store."""
    finish(store, CELL, FITS[fit_id], status)


def forget_scores(store: Store, fit_id: str) -> None:
    """Take the scores out of a fit's record, as if another scoring code had made them."""
    record = replace(store.record(fit_id), scored=None)
    (store.folder(fit_id) / "fit.json").write_text(to_json(record))
    seals.seal(store.folder(fit_id))


def points(data: PreparedData, rows: int = 12) -> pd.DataFrame:
    """Points of a standard normal, or of random class probabilities."""
    rng = np.random.default_rng(0)
    if data.task == "regression":
        y, scale = rng.normal(size=(rows, 1)), (np.zeros(1), np.ones(1))
        predictive = GaussianMixture(np.zeros((1, rows, 1)), np.ones((1, rows, 1)))
        return pointwise(predictive, y, task="regression", scaled_by=scale, rows=np.arange(rows))
    probabilities = rng.dirichlet(np.ones(data.classes), size=(1, rows))
    y = np.arange(float(rows))[:, None] % data.classes
    return pointwise(Categorical(probabilities), y, task=data.task, scaled_by=None, rows=np.arange(rows))
