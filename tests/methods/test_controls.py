"""Constant, linear and boosted-tree baselines."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_predict

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


@pytest.mark.parametrize(("task", "loss"), [("regression", "mean_squared_error"), ("binary", "log_loss")])
def test_boosting_takes_the_setting_and_the_number_of_trees_of_the_least_held_out_loss(task, loss, monkeypatch):
    """Of two settings, by scikit-learn's cross-validation; the fast one overfits before its trees are over."""
    x, y = data(task)
    settings = iter([{"learning_rate": 1e-3}, {"learning_rate": 0.7}])
    monkeypatch.setattr(gradient_boosting, "draw_setting", lambda rng: {"min_samples_leaf": 3, **next(settings)})
    _, model = fitted(gradient_boosting, task)
    (chosen,), (held_out,) = model["estimators"], model["held_out_loss"]
    assert chosen.learning_rate == 0.7
    assert 1 < chosen.n_iter_ < SMALL[gradient_boosting]["iterations"]
    folds = KFold(3, shuffle=True, random_state=chosen.random_state)
    losses = []
    for trees in range(chosen.n_iter_ - 1, chosen.n_iter_ + 2):
        of_trees = clone(chosen).set_params(max_iter=trees)
        how = {"cv": folds, "method": "predict" if task == "regression" else "predict_proba"}
        losses.append(getattr(metrics, loss)(y, cross_val_predict(of_trees, x, y.squeeze(), **how)))
    assert losses[1] == min(losses) == pytest.approx(held_out)


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


def test_logistic_regression_has_the_penalty_of_the_best_held_out_log_probability():
    x, y = data("multiclass")
    method, model = fitted(linear, "multiclass")
    seed = int(np.random.default_rng(0).integers(2**31))
    folds = KFold(5, shuffle=True, random_state=seed)
    machines = [LogisticRegression(C=strength, max_iter=2000) for strength in linear.STRENGTHS]
    held_out = [cross_val_predict(one, x, y, cv=folds, method="predict_proba") for one in machines]
    best = machines[int(np.argmin([metrics.log_loss(y, probs) for probs in held_out]))].fit(x, y)
    assert model["strength"] == best.C not in (linear.STRENGTHS[0], linear.STRENGTHS[-1])
    np.testing.assert_allclose(method.predict(model, x).probabilities(), best.predict_proba(x), atol=1e-3)


def test_several_targets_have_a_fit_each():
    x, y = data("regression")
    both = np.column_stack([y, np.cos(x[:, 2])])
    for module in (linear, gradient_boosting):
        method = module.Method(module.Hyperparameters(**SMALL[module]), "regression", num_targets=2)
        predictive = method.predict(method.fit(x, both, np.random.default_rng(0)), x)
        error = ((predictive.mean() - both) ** 2).mean(0)
        assert (error < both.var(0)).all()
        assert (np.abs(np.log(predictive.variance().mean(0) / error)) < 1.5).all()


def test_counts_have_the_posterior_mean_rate_of_jeffreys_prior():
    """Gamma(sum y + 1/2, rate n)."""
    method = constant.Method(constant.Hyperparameters(), "counts")
    model = method.fit(np.zeros((4, 1)), np.array([[0.0], [3.0], [1.0], [2.0]]), np.random.default_rng(0))
    predictive = method.predict(model, np.zeros((2, 1)))
    np.testing.assert_allclose(predictive.mean(), stats.gamma(6.5, scale=1 / 4).mean())
    np.testing.assert_allclose(predictive.log_prob([[2.0], [0.0]])[:, 0], stats.poisson.logpmf([2, 0], 6.5 / 4))


def test_linear_refuses_a_single_class():
    with pytest.raises(UserError, match="single class"):
        build(linear, "binary").fit(np.zeros((9, 1)), np.zeros(9), np.random.default_rng(0))


def test_controls_import_no_torch():
    code = (
        "import sys; from gpbench.methods import constant, linear, gradient_boosting; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
