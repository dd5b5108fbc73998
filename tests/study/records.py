"""Finished fits written by hand, for tests of what reads the store."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pandas as pd

from gpbench.evaluation.pointwise import pointwise
from gpbench.predictive.distributions import Categorical, GaussianMixture
from gpbench.study.records import Cell, Fit, FitRecord, PreparedData, Provenance, Seconds, to_json
from gpbench.study.storage import provenance
from gpbench.study.storage.store import Store


def finish(store: Store, cell: Cell, fit: Fit, status: str = "done", reason: str = "") -> str:
    """Put a fit of a planned cell into the store, with points that a predictive of it could have."""
    now = provenance.now()
    record = FitRecord(
        fit_id=fit.fit_id,
        split=fit.split,
        replica=fit.replica,
        status=status,
        reason=reason,
        address=cell.address,
        label=cell.label,
        family=cell.family,
        rows=fit.rows,
        what=cell.what,
        how=cell.how,
        seconds=Seconds(train=2.0 * (cell.what.steps or 1), predict=0.5),
        peak_memory_mb=100.0,
        provenance=Provenance(now, now, "", False, **asdict(provenance.machine())),
        info={"train_target_mean": [1.0], "train_target_sd": [2.0]},
    )
    with store.writing(fit.fit_id) as folder:
        if status == "done":
            points(cell.what.data).to_parquet(folder / "points.parquet", index=False)
            trace = {"step": [1, 2], "seconds": [0.1, 0.2], "objective": [-2.0, -1.0]}
            pd.DataFrame(trace).to_parquet(folder / "trace.parquet", index=False)
        (folder / "fit.json").write_text(to_json(record))
    return fit.fit_id


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
