"""The classifiers of filippone2014 as the study configures them, on 20 rows of a made-up set of two classes."""

import numpy as np
import pytest
from scipy.special import expit

from cases import CONF
from gpbench.data.table import Table
from gpbench.evaluation.metrics import METRICS, score
from gpbench.places import Places
from gpbench.study.fitting.entries import entry
from gpbench.study.planning.batches import group_of
from gpbench.study.planning.resolve import resolve
from gpbench.study.records import Cell

STUDY, SIZES = "filippone2014_classification", (10, 20, 50, 100)
METHODS = ("pm_ep", "mcmc_ep", "ep_gp", "svm")


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> dict:
    """The study's cells of one data set, by method; its rows and classes are those of `made_up`."""
    places = Places(CONF.parent, tmp_path_factory.mktemp("places"))
    overrides = f"datasets=[ionosphere] budget=smoke splits={len(SIZES)}"
    return {cell.method: cell for cell in resolve(places, STUDY, overrides).cells}


def made_up() -> tuple[Table, np.ndarray]:
    """351 rows, 126 of the rarer class; and the probability of class 1 that they were drawn with, but for that."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((351, 4)) * [1.0, 20.0, 0.1, 5.0] + [0.0, 3.0, -1.0, 100.0]
    f = 4 * np.sin(x[:, 0]) + 0.15 * (x[:, 1] - 3) + 0.7
    order = np.argsort(f + rng.logistic(size=351))
    y = np.zeros(351)
    y[order[126:]] = 1.0
    return Table(x, y[:, None], list("abcd"), ["class"]), expit(f)


def fitted(cell: Cell, split: int, folder):
    fit = cell.fits[split]
    return entry(cell.what).run(group_of(cell, (fit,), fit.rows), made_up()[0], folder)[0]


def test_the_study_has_these_classifiers(planned):
    assert set(planned) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_probabilities_from_twenty_rows_are_sane(name, planned, tmp_path):
    outcome = fitted(planned[name], SIZES.index(20), tmp_path)
    assert outcome.status == "done", outcome.reason
    points, truth = outcome.points, made_up()[1]
    assert len(points) == 351 - 20
    assert ((points["p1"] > 0) & (points["p1"] < 1)).all()
    info = {"task": "binary", "num_classes": 2, "seconds_train": 0.0, "seconds_predict": 0.0, "peak_memory_mb": 0.0}
    scores = score(points, info)
    assert scores["mnll"] < np.log(2)  # that of a coin, which balanced training rows make of the constant predictor
    assert scores["auc"] > 0.7
    # abstaining where it is unsure leaves it right more often
    assert scores["capacity_accuracy"] > scores["accuracy"]
    assert scores["capacity_auc"] > scores["auc"]
    assert np.corrcoef(points["p1"], truth[points["row"]])[0, 1] > 0.5
    assert {metric for metric in METRICS if metric.startswith("capacity")} <= set(scores)


@pytest.mark.parametrize("name", ["ep_gp", "svm"])
def test_ten_rows_are_enough_to_be_fitted(name, planned, tmp_path):
    outcome = fitted(planned[name], SIZES.index(10), tmp_path)
    assert outcome.status == "done", outcome.reason
    assert np.isfinite(outcome.points["log_density"]).all()
