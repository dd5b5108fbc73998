"""Fits of real data sets from the mirror, as a batch of a study makes them, and their mean test scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cases import CONF
from gpbench import config
from gpbench.config.schema import Trainer
from gpbench.data import prepare, protocols, table
from gpbench.places import Places
from gpbench.study.fitting import lightning_module
from gpbench.study.fitting.outcome import Outcome
from gpbench.study.planning.batches import group_of
from gpbench.study.records import Fit, MethodSettings, PreparedData
from handmade import CELL, WHAT

TRAINER = Trainer("accuracy", checkpoint_seconds=1e9, log_points=2, eval_points=0)


def fit(
    places: Places, work, name: str, splits: list[int], steps: int, module: str, protocol: str, dtype: str, **hyper
) -> list[Outcome]:
    """Finished fits of one method with settings `hyper` (else its defaults) on some splits of data set `name`."""
    dataset = config.compose(CONF, "dataset", name)
    prepare.ensure(dataset, places)
    data = table.load(places.prepared_file(name), dataset.md5)
    what = replace(
        WHAT,
        method=MethodSettings(f"gpbench.methods.{module}", hyper),
        data=PreparedData(dataset.md5, dataset.task, dataset.images, len(dataset.classes)),
        protocol=protocols.freeze(config.compose(CONF, "protocol", protocol), dataset),
        steps=steps,
        dtype=dtype,
        trained_by="single",
    )
    fits = tuple(Fit(f"{name}-{split}", split, 0, *what.protocol.splits.sizes(dataset.rows, split)) for split in splits)
    group = group_of(replace(CELL, what=what, how=TRAINER), fits, fits[0].rows)
    outcomes = lightning_module.run(group, data, work)
    assert {outcome.status for outcome in outcomes} == {"done"}
    return outcomes


def scores(outcomes: list[Outcome], scaled: bool = False) -> np.ndarray:
    """Mean log density and RMSE (error rate of classes) a fit `[fits, 2]`; scaled: of standardised targets."""
    return np.array([_score(outcome, scaled) for outcome in outcomes])


def _score(outcome: Outcome, scaled: bool) -> tuple[float, float]:
    points = outcome.points
    if "modal" in points:
        return points["log_density"].mean(), (points["modal"] != points["y"]).mean()
    root = np.sqrt(((points["mean"] - points["y"]) ** 2).mean())
    if scaled:
        return points["log_density_scaled"].mean(), root / outcome.info["train_target_sd"][0]
    return points["log_density"].mean(), root
