"""Fits of real data sets from the mirror, as a batch of a study makes them, and their mean test scores."""

from __future__ import annotations

import numpy as np

from cases import CONF
from gpbench import config
from gpbench.config.schema import Dataset
from gpbench.data import prepare, protocols, table
from gpbench.places import Places
from gpbench.study.fitting import lightning_module

TRAINER = {"device": "cpu", "threads": 1, "checkpoint_seconds": 1e9, "max_minutes": None}


def fit(
    places: Places, work, name: str, splits: list[int], steps: int, module: str, protocol: str, dtype: str, **hyper
) -> list[lightning_module.Outcome]:
    """Finished fits of one method with settings `hyper` (else its defaults) on some splits of data set `name`."""
    dataset = config.compose(CONF, "dataset", name)
    prepare.ensure(dataset, places)
    data = table.load(places.prepared_file(name), dataset.md5)
    method = {"module": f"gpbench.methods.{module}"} | hyper
    outcomes = lightning_module.run(_group(dataset, splits, steps, method, protocol, dtype), data, work)
    assert {outcome.status for outcome in outcomes} == {"done"}
    return outcomes


def _group(dataset: Dataset, splits: list[int], steps: int, method: dict, protocol: str, dtype: str) -> dict:
    what = {
        "method": method,
        "data": {"md5": dataset.md5, "task": dataset.task, "images": dataset.images, "classes": len(dataset.classes)},
        "protocol": protocols.freeze(config.compose(CONF, "protocol", protocol), dataset),
        "steps": steps,
        "dtype": dtype,
        "noise_block": 50,
    }
    fits = [{"split": split, "replica": 0, "fit_id": f"{dataset.name}-{split}"} for split in splits]
    return {"what": what, "how": TRAINER | {"log_points": 2, "eval_points": 0}, "fits": fits}


def scores(outcomes: list[lightning_module.Outcome], scaled: bool = False) -> np.ndarray:
    """Mean log density and RMSE (error rate of classes) a fit `[fits, 2]`; scaled: of standardised targets."""
    return np.array([_score(outcome, scaled) for outcome in outcomes])


def _score(outcome: lightning_module.Outcome, scaled: bool) -> tuple[float, float]:
    points = outcome.points
    if "modal" in points:
        return points["log_density"].mean(), (points["modal"] != points["y"]).mean()
    root = np.sqrt(((points["mean"] - points["y"]) ** 2).mean())
    if scaled:
        return points["log_density_scaled"].mean(), root / outcome.info["train_target_sd"][0]
    return points["log_density"].mean(), root
