"""Constant, linear and boosted-tree baselines."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from gpbench.errors import UserError
from gpbench.methods import constant, gradient_boosting, linear

SMALL = {constant: {}, linear: {}, gradient_boosting: {"trials": 2, "folds": 3, "iterations": 20}}
TASKS = {"regression": 0, "binary": 2, "multiclass": 3}


def data(task: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 3))
    y = x[:, :1] + 0.3 * np.sin(3 * x[:, 1:2]) + 0.1 * rng.standard_normal((120, 1))
    if task == "regression":
        return x, y
    return x, np.digitize(y[:, 0], np.quantile(y, [0.5] if task == "binary" else [0.3, 0.6])).astype(float)


def build(module, task: str):
    return module.Method(module.Hyperparameters(**SMALL[module]), task, TASKS[task])


def fitted(module, task: str, seed: int = 0):
    method = build(module, task)
    return method, method.fit(*data(task), np.random.default_rng(seed))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("module", [linear, gradient_boosting])
def test_beats_the_constant(module, task):
    x, y = data(task)
    method, model = fitted(module, task)
    baseline, frequencies = fitted(constant, task)
    gain = method.predict(model, x).log_prob(y).mean() - baseline.predict(frequencies, x).log_prob(y).mean()
    assert gain > 0.3


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("module", SMALL)
def test_same_seed_same_model_and_it_survives_pickling(module, task):
    x, y = data(task)
    method, model = fitted(module, task)
    _, again = fitted(module, task)
    restored = pickle.loads(pickle.dumps(model))
    log_prob = method.predict(model, x).log_prob(y)
    np.testing.assert_array_equal(log_prob, method.predict(again, x).log_prob(y))
    np.testing.assert_array_equal(log_prob, method.predict(restored, x).log_prob(y))


def test_constant_has_the_moments_of_the_targets():
    x, y = data("regression")
    method, model = fitted(constant, "regression")
    predictive = method.predict(model, x[:2])
    np.testing.assert_allclose(predictive.mean(), np.full((2, 1), y.mean()))
    np.testing.assert_allclose(predictive.variance(), np.full((2, 1), y.var()))


def test_constant_smooths_class_frequencies():
    method = build(constant, "multiclass")
    model = method.fit(np.zeros((4, 1)), np.array([0.0, 0.0, 0.0, 1.0]), np.random.default_rng(0))
    np.testing.assert_allclose(model["probs"], [4 / 7, 2 / 7, 1 / 7])


def test_linear_predictive_is_that_of_the_weight_space_posterior():
    # Bayesian linear regression at the precisions found, by dense algebra (Bishop 2006, eqs. 3.50-3.59)
    x, y = data("regression")
    method, model = fitted(linear, "regression")
    (estimator,) = model["estimators"]
    alpha, penalty = estimator.alpha_, estimator.lambda_
    centred = x - x.mean(0)
    covariance = np.linalg.inv(penalty * np.eye(3) + alpha * centred.T @ centred)
    weights = alpha * covariance @ centred.T @ (y - y.mean())
    new = np.array([[0.3, -1.0, 2.0]])
    predictive = method.predict(model, new)
    np.testing.assert_allclose(predictive.mean(), y.mean() + (new - x.mean(0)) @ weights, rtol=1e-6)
    expected = 1 / alpha + np.einsum("nd,de,ne->n", new - x.mean(0), covariance, new - x.mean(0))
    np.testing.assert_allclose(predictive.variance()[:, 0], expected, rtol=1e-3)


def test_boosting_variance_is_held_out_error():
    x, y = data("regression")
    method, model = fitted(gradient_boosting, "regression")
    predictive = method.predict(model, x)
    assert np.unique(predictive.variance()) == pytest.approx(model["held_out_loss"])
    # in-sample residuals are smaller than the held-out ones that set the variance
    assert ((predictive.mean() - y) ** 2).mean() < model["held_out_loss"][0]


def test_boosting_variance_is_honest_on_new_rows():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (2400, 1))
    y = np.sin(4 * x) + 0.2 * rng.standard_normal(x.shape)
    method = gradient_boosting.Method(gradient_boosting.Hyperparameters(trials=2, folds=3), "regression")
    predictive = method.predict(method.fit(x[:400], y[:400], rng), x[400:])
    error = ((predictive.mean() - y[400:]) ** 2).mean()
    # 400 held-out squares have a relative standard error of sqrt(2 / 400) = 7 %
    assert predictive.variance()[0, 0] == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize("module", [linear, gradient_boosting])
def test_a_class_unseen_in_training_keeps_some_mass(module):
    x, y = data("binary")
    method = build(module, "multiclass")
    probs = method.predict(method.fit(x, 2 * y, np.random.default_rng(0)), x).probabilities()
    np.testing.assert_allclose(probs[:, 1], 1 / 123)
    np.testing.assert_allclose(probs.sum(1), 1)


def test_linear_refuses_a_single_class():
    with pytest.raises(UserError, match="single class"):
        build(linear, "binary").fit(np.zeros((9, 1)), np.zeros(9), np.random.default_rng(0))


def test_controls_import_no_torch():
    code = (
        "import sys; from gpbench.methods import constant, linear, gradient_boosting; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
