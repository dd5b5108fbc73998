"""Abstention: a worked example, the same curves by scikit-learn, and the corners."""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sklearn_metrics

from gpbench.evaluation import abstention
from gpbench.evaluation.metrics import METRICS

BINARY = {"task": "binary", "num_classes": 2}
# rho = 0 keeps all four, 0.03 drops the third, 0.06 the second too, 0.41 all
P, Y = [0.1, 0.45, 0.52, 0.9], [0, 1, 0, 1]


def table(p, y) -> pd.DataFrame:
    p, y = np.asarray(p, float), np.asarray(y)
    return pd.DataFrame({"y": y, "p0": 1 - p, "p1": p, "modal": (p > 0.5).astype(int)})


def accuracy(p, y) -> float:
    return float(np.mean((p > 0.5) == y))


def test_the_worked_example():
    abstained, scores = abstention.abstention_curve(P, Y, accuracy)
    steps = np.r_[0, np.flatnonzero(np.diff(abstained)) + 1]
    assert steps.tolist() == [0, 3, 6]
    np.testing.assert_allclose(abstained[steps], [0, 0.25, 0.5])
    np.testing.assert_allclose(scores[steps], [0.5, 2 / 3, 1])
    assert len(scores) == 41
    # trapezoids of 0.5, 2/3, 1 and of the areas 3/4, 1, 1 under the ROC curve, over 0.5
    assert METRICS["capacity_accuracy"](table(P, Y), BINARY) == pytest.approx(17 / 24)
    assert METRICS["capacity_auc"](table(P, Y), BINARY) == pytest.approx(15 / 16)


@pytest.mark.parametrize("seed", range(3))
def test_capacities_are_scikit_learns_areas(seed):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.7, 0.7, 400)
    y = (rng.random(400) < p**1.5).astype(int)
    curves = {"accuracy": [], "auc": []}
    for rho in np.linspace(0, 0.5, 51):
        rest = np.abs(p - 0.5) >= rho
        if len(np.unique(y[rest])) == 2:
            curves["accuracy"].append((1 - rest.mean(), sklearn_metrics.accuracy_score(y[rest], p[rest] > 0.5)))
            curves["auc"].append((1 - rest.mean(), sklearn_metrics.roc_auc_score(y[rest], p[rest])))
    for name, curve in curves.items():
        share, score = np.array(curve).T
        expected = sklearn_metrics.auc(share, score) / share.max()
        assert METRICS[f"capacity_{name}"](table(p, y), BINARY) == pytest.approx(expected, rel=1e-12)


def test_a_classifier_that_never_abstains_has_its_plain_scores():
    sure = table([0.0, 1.0, 1.0, 0.0], [0, 1, 0, 0])
    assert METRICS["capacity_accuracy"](sure, BINARY) == 0.75
    assert METRICS["capacity_auc"](sure, BINARY) == METRICS["auc"](sure, BINARY) == pytest.approx(5 / 6)
    # of no opinion at all: at rho = 0 nobody abstains, beyond it everybody
    assert METRICS["capacity_accuracy"](table([0.5] * 4, [0, 0, 0, 1]), BINARY) == 0.75


def test_an_uninformative_confidence_costs_capacity():
    rng = np.random.default_rng(0)
    f = 2 * rng.standard_normal(4000)
    y = rng.random(4000) < 1 / (1 + np.exp(-f))
    right, sign = 1 / (1 + np.exp(-f)), np.where(rng.random(4000) < 0.5, 1, 0.2)
    # the same decisions, but a random half of them is hardly sure: abstention then drops right ones too
    unsure = 1 / (1 + np.exp(-sign * f))
    assert METRICS["accuracy"](table(right, y), BINARY) == METRICS["accuracy"](table(unsure, y), BINARY)
    gap = METRICS["capacity_accuracy"](table(right, y), BINARY) - METRICS["capacity_accuracy"](table(unsure, y), BINARY)
    assert gap > 0.01


def test_without_both_classes_there_is_no_area():
    one = table(P, [1, 1, 1, 1])
    assert math.isnan(METRICS["capacity_auc"](one, BINARY))
    assert 0 <= METRICS["capacity_accuracy"](one, BINARY) <= 1
    # abstaining on 0.52 leaves one class, so that the curve is a single point
    assert METRICS["capacity_auc"](table([0.8, 0.9, 0.52], [1, 1, 0]), BINARY) == 1.0


def test_rejected_rows_and_the_accuracy_of_the_others():
    rejected, right = abstention.reject_curve([0.5, 0.6, 1.0], [False, True, False])
    assert len(rejected) == 100
    np.testing.assert_allclose(rejected[[0, 49, 50, 59, 60, 99]], [0, 0, 1 / 3, 1 / 3, 2 / 3, 2 / 3])
    np.testing.assert_allclose(right[[0, 49, 50, 59, 60, 99]], [1 / 3, 1 / 3, 0.5, 0.5, 0, 0])


@pytest.mark.parametrize("num_classes", [2, 4])
def test_balanced_accuracy_is_scikit_learns(num_classes):
    rng = np.random.default_rng(4)
    y = rng.choice(num_classes, 300, p=np.arange(1, num_classes + 1) / np.arange(1, num_classes + 1).sum())
    modal = np.where(rng.random(300) < 0.6, y, rng.integers(num_classes, size=300))
    points = pd.DataFrame({"y": y, "modal": modal})
    expected = sklearn_metrics.balanced_accuracy_score(y, modal)
    value = METRICS["balanced_accuracy"](points, {"task": "multiclass", "num_classes": num_classes})
    assert value == pytest.approx(expected, rel=1e-12)
    assert value != pytest.approx(METRICS["accuracy"](points, BINARY), rel=1e-3)
