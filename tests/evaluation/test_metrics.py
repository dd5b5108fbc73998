"""Metrics against scikit-learn, hand-computed numbers and the truth on simulated data."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from gpbench.errors import UserError
from gpbench.evaluation import metrics
from gpbench.evaluation.metrics import METRICS, TASKS, score
from gpbench.evaluation.pointwise import pointwise
from gpbench.predictive.distributions import Categorical, GaussianMixture

N = 1_000
COSTS = {"seconds_train": 3.0, "seconds_predict": 0.5, "peak_memory_mb": 300.0}


def regression_points(bias=0.0, spread=1.0):
    """Targets from N(f, 1), f known; the predictive is N(f + bias, spread^2), scored in units 10 times larger."""
    rng = np.random.default_rng(0)
    f = rng.standard_normal(N)
    y = f + rng.standard_normal(N)
    predictive = GaussianMixture((f + bias)[None, :, None], np.full((1, N, 1), spread**2))
    info = {"task": "regression", "num_classes": 0, "train_target_mean": [50.0], "train_target_sd": [10.0]}
    return pointwise(
        predictive, 50 + 10 * y, task="regression", scaled_by=(50.0, 10.0), rows=np.arange(N)
    ), info | COSTS


def class_points(num_classes, sharpness=1.0):
    """Classes drawn from known probabilities; the predictive is those to the power `sharpness`."""
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(num_classes), size=N)
    y = (probs.cumsum(axis=1) > rng.random((N, 1))).argmax(axis=1)
    stated = probs**sharpness
    task = "binary" if num_classes == 2 else "multiclass"
    predictive = Categorical(stated[None] / stated.sum(axis=1)[None, :, None])
    return pointwise(predictive, y, task=task, rows=np.arange(N)), {"task": task, "num_classes": num_classes, **COSTS}


def probabilities(points, num_classes):
    return points[[f"p{number}" for number in range(num_classes)]].to_numpy()


def test_every_metric_is_scored_for_its_tasks_only():
    for points, info in (regression_points(), class_points(2), class_points(4)):
        scores = score(points, info)
        assert set(scores) == {name for name, metric in METRICS.items() if info["task"] in metric.tasks}
        assert all(math.isfinite(value) for value in scores.values())
    assert all(name == metric.name and set(metric.tasks) <= set(TASKS) for name, metric in METRICS.items())


def test_regression_metrics_of_the_true_model():
    """Golden numbers: entropy and CRPS of a Gaussian with sd 10, in closed form; 5 standard errors of N draws."""
    points, info = regression_points()
    scores = score(points, info)
    error = 5 / math.sqrt(N)
    assert scores["rmse"] == pytest.approx(10, abs=10 * error)
    assert scores["rmse_scaled"] == pytest.approx(scores["rmse"] / 10)
    assert scores["mnll"] == pytest.approx(stats.norm(0, 10).entropy(), abs=error)
    assert scores["mnll_scaled"] == pytest.approx(scores["mnll"] - math.log(10))
    assert scores["crps"] == pytest.approx(10 / math.sqrt(math.pi), abs=10 * error)
    assert scores["smse"] == pytest.approx(1 - sklearn_metrics.r2_score(points["y"], points["mean"]))
    trivial = -stats.norm(50, 10).logpdf(points["y"]).mean()
    assert scores["msll"] == pytest.approx(scores["mnll"] - trivial)
    assert scores["seconds_train"] == 3.0


def test_densities_of_other_protocols_are_those_of_the_same_mixture():
    """Two components one sd off either side: the Gaussian of the same moments has variance 2."""
    y = np.random.default_rng(2).standard_normal(N)
    predictive = GaussianMixture(np.array([-1.0, 1.0])[:, None, None] * np.ones((2, N, 1)), np.ones((2, N, 1)))
    points, info = pointwise(predictive, y, task="regression", rows=np.arange(N)), regression_points()[1]
    scores = score(points, info)
    assert scores["mnll_gaussian"] == pytest.approx(-stats.norm(0, math.sqrt(2)).logpdf(y).mean())
    assert scores["mnll_draws"] == pytest.approx(-np.mean([stats.norm(m, 1).logpdf(y) for m in (-1, 1)]))
    assert scores["mnll_draws"] > scores["mnll"]
    single = score(*regression_points(bias=0.3))
    assert single["mnll_gaussian"] == pytest.approx(single["mnll"]) == pytest.approx(single["mnll_draws"])
    assert math.isnan(score(points.drop(columns="log_density_draws"), info)["mnll_draws"])


def test_two_targets_are_averaged_each_in_its_own_units():
    """Each metric of one target alone, from a table of its own, against that of both."""
    rng = np.random.default_rng(3)
    y = rng.standard_normal((N, 2)) * [1.0, 50.0] + [0.0, 1e3]
    predictive = GaussianMixture(np.zeros((1, N, 2)) + [0.2, 1010.0], np.ones((1, N, 2)) * [2.0, 1600.0])
    info = {"task": "regression", "num_classes": 0, **COSTS}
    both = info | {"train_target_mean": [0.1, 990.0], "train_target_sd": [1.1, 40.0]}
    points = pointwise(predictive, y, task="regression", rows=np.arange(N))
    together, alone = score(points, both), []
    for p in (0, 1):
        own = points[points["output"] == p].assign(output=0)
        facts = {name: [both[name][p]] for name in ("train_target_mean", "train_target_sd")}
        alone.append(score(own, info | facts))
    for name in ("mnll", "mnll_scaled", "msll", "smse", "crps", "coverage_90"):
        assert together[name] == pytest.approx(np.mean([each[name] for each in alone])), name
    for name in ("rmse", "rmse_scaled"):
        assert together[name] ** 2 == pytest.approx(np.mean([each[name] ** 2 for each in alone])), name
    # by hand: E (y - m)^2 over the variance, each target in units of its own
    expected = np.mean(((y - [0.2, 1010.0]) ** 2).mean(0) / y.var(0))
    assert together["smse"] == pytest.approx(expected)
    constant = pointwise(predictive, y * [1, 0] + [0, 3], task="regression", rows=np.arange(N))
    assert math.isnan(METRICS["smse"](constant, both))


@pytest.mark.parametrize("percent", [50, 80, 90, 95])
def test_coverage_of_the_true_model_is_nominal(percent):
    value = METRICS[f"coverage_{percent}"](*regression_points())
    low, high = stats.binom.interval(0.9999, N, percent / 100)
    assert low <= value * N <= high


def test_coverage_equals_counting_between_stored_quantiles():
    points, info = regression_points(bias=0.3, spread=0.8)
    inside = (points["y"] >= points["q05"]) & (points["y"] <= points["q95"])
    assert METRICS["coverage_90"](points, info) == pytest.approx(inside.mean())


@pytest.mark.parametrize("bias", [-0.2, 0.2])
def test_pit_ks_is_scipys_statistic(bias):
    points, info = regression_points(bias=bias)
    assert METRICS["pit_ks"](points, info) == pytest.approx(stats.kstest(points["pit"], "uniform").statistic)


@pytest.mark.parametrize("worse", [{"bias": 1.0}, {"spread": 0.4}, {"spread": 3.0}])
def test_regression_scores_prefer_the_truth(worse):
    good, bad = score(*regression_points()), score(*regression_points(**worse))
    for name in ("mnll", "mnll_scaled", "msll", "crps", "pit_ks", "coverage_90"):
        assert METRICS[name].loss(good[name]) < METRICS[name].loss(bad[name])


@pytest.mark.parametrize("num_classes", [2, 5])
def test_class_scores_are_scikit_learns(num_classes):
    points, info = class_points(num_classes)
    scores, p = score(points, info), probabilities(points, num_classes)
    one_hot = np.eye(num_classes)[points["y"]]
    assert scores["mnll"] == pytest.approx(sklearn_metrics.log_loss(points["y"], p))
    assert scores["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(points["y"], p.argmax(axis=1)))
    assert scores["error"] == pytest.approx(1 - scores["accuracy"])
    by_class = [sklearn_metrics.brier_score_loss(one_hot[:, c], p[:, c]) for c in range(num_classes)]
    assert scores["brier"] == pytest.approx(sum(by_class))
    if num_classes == 2:
        expected = sklearn_metrics.roc_auc_score(points["y"], p[:, 1])
    else:
        expected = sklearn_metrics.roc_auc_score(points["y"], p, multi_class="ovr", average="macro")
    assert scores["auc"] == pytest.approx(expected)


@pytest.mark.parametrize("sharpness", [0.3, 4.0])
def test_class_scores_prefer_the_truth(sharpness):
    good, bad = score(*class_points(3)), score(*class_points(3, sharpness))
    assert good["accuracy"] == bad["accuracy"]
    for name in ("mnll", "brier", "ece"):
        assert good[name] < bad[name]


def test_brier_and_ece_by_hand():
    points = pd.DataFrame({"y": [0, 1], "p0": [0.8, 0.9], "p1": [0.2, 0.1], "modal": [0, 0]})
    info = {"task": "binary", "num_classes": 2}
    assert METRICS["brier"](points, info) == pytest.approx((0.04 + 0.04 + 0.81 + 0.81) / 2)
    # 0.8 lies in the bin [12/15, 13/15) with one right answer, 0.9 in [13/15, 14/15) with one wrong
    assert METRICS["ece"](points, info) == pytest.approx((0.2 + 0.9) / 2)


def test_four_classes_alike_have_a_brier_score_of_three_quarters_and_a_quarter_right():
    points = pd.DataFrame({"y": [0, 1, 2, 3] * 2, "modal": [0] * 8} | {f"p{c}": [0.25] * 8 for c in range(4)})
    info = {"task": "multiclass", "num_classes": 4}
    assert METRICS["brier"](points, info) == pytest.approx(0.75)
    assert METRICS["balanced_accuracy"](points, info) == pytest.approx(0.25)


def test_ece_has_fifteen_bins():
    """0.61 and 0.66 share a bin of 15, [9/15, 10/15), and none of 14, 16 or 20."""
    points = pd.DataFrame({"y": [0, 1], "p0": [0.61, 0.66], "p1": [0.39, 0.34], "modal": [0, 0]})
    expected = abs(0.5 - (0.61 + 0.66) / 2)
    assert METRICS["ece"](points, {"task": "binary", "num_classes": 2}) == pytest.approx(expected)


def test_auc_counts_ties_half_and_is_undefined_without_both_classes():
    points = pd.DataFrame({"y": [0, 0, 1, 1], "p0": [0.5, 0.9, 0.5, 0.2], "p1": [0.5, 0.1, 0.5, 0.8]})
    info = {"task": "binary", "num_classes": 2}
    assert METRICS["auc"](points, info) == pytest.approx(3.5 / 4)
    assert math.isnan(METRICS["auc"](points[:2], info))
    several, facts = class_points(3)
    assert math.isnan(METRICS["auc"](several[several["y"] != 2], facts))


def test_an_impossible_probability_has_no_finite_loss():
    points = pointwise(Categorical([[[0.0, 1.0]]]), [0], task="binary", rows=[0])
    with pytest.raises(ValueError, match="the MNLL of its predictions is inf"):
        METRICS["mnll"](points, {"task": "binary", "num_classes": 2})


def test_what_constant_training_targets_leave_undefined_is_nan():
    points, info = regression_points()
    found = score(points, info | {"train_target_sd": [0.0] * len(info["train_target_sd"])})
    assert {name for name, value in found.items() if math.isnan(value)} == {"rmse_scaled", "msll"}


def test_values_outside_their_bounds_are_refused():
    points, info = regression_points()
    metric = METRICS["rmse"]
    for value in (-1.0, math.nan):
        with pytest.raises(ValueError, match=r"rmse = -1 lies outside|the RMSE of its predictions is nan"):
            replace(metric, function=lambda points, info, value=value: value)(points, info)
    assert math.isnan(replace(metric, function=lambda points, info: math.nan, nullable=True)(points, info))


def test_a_metric_that_changes_its_table_changes_no_other(monkeypatch):
    points, info = regression_points()
    before = score(points, info)

    def careless(points, info):
        points["sd"] *= 2
        points["mean"] = points["y"]
        return 0.0

    first = {"careless": replace(METRICS["rmse"], name="careless", function=careless)}
    monkeypatch.setattr(metrics, "METRICS", first | METRICS)
    assert score(points, info) == {"careless": 0.0} | before


def test_a_metric_that_fails_is_to_blame_and_not_the_predictions():
    points, info = regression_points()
    for function in (lambda points, info: info["typo"], lambda points, info: points["typo"].mean()):
        with pytest.raises(UserError, match=r"metric 'rmse' fails: KeyError: 'typo'; mend its function"):
            replace(METRICS["rmse"], function=function)(points, info)


def test_a_name_has_one_metric():
    with pytest.raises(UserError, match="metric 'rmse' is defined twice; rename one"):
        metrics._by_name(METRICS["rmse"], METRICS["crps"], replace(METRICS["mnll"], name="rmse"))


def test_loss_is_lower_for_better():
    assert METRICS["rmse"].loss(2.0) == 2.0
    assert METRICS["auc"].loss(0.8) == -0.8
    np.testing.assert_allclose(METRICS["coverage_90"].loss(np.array([0.8, 0.95])), [0.1, 0.05])


def test_unknown_task_and_empty_table_are_refused_in_one_line():
    points, info = regression_points()
    with pytest.raises(UserError, match="unknown task 'ranking'"):
        score(points, info | {"task": "ranking"})
    with pytest.raises(UserError, match="leaves no test rows"):
        score(points[:0], info)


def test_import_needs_neither_torch_nor_scipy_stats():
    code = "import sys, gpbench.evaluation.metrics; print({'torch', 'scipy', 'pandas', 'sklearn'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
