"""Methods as scikit-learn estimators."""

import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from gpbench import GPBenchClassifier, GPBenchRegressor, estimators
from gpbench.errors import UserError
from gpbench.study.planning.batches import group_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = 100 + 10 * (np.sin(X[:, 0]) + 0.1 * RNG.normal(size=60))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (GPBenchRegressor("linear"), {}),
        (GPBenchClassifier("constant"), {"check_classifiers_train": "a constant learns nothing"}),
    ],
)
def test_scikit_learns_own_checks_pass(estimator, expected):
    found = check_estimator(estimator, on_fail=None, expected_failed_checks=expected)
    assert [(row["check_name"], row["exception"]) for row in found if row["status"] == "failed"] == []
    assert sum(row["status"] == "passed" for row in found) > 40


def test_a_method_with_updates_predicts_in_the_units_of_its_targets():
    settings = {"num_inducing": 10}
    model = clone(GPBenchRegressor("svgp", settings, budget="smoke")).fit(X, Y)
    mean, sd = model.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean - Y) ** 2)) < 0.5 * Y.std()
    assert (sd > 0).all()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), mean)
    other = GPBenchRegressor("svgp", settings, budget="smoke", random_state=1).fit(X, Y)
    assert not np.array_equal(other.predict(X), mean)


@pytest.mark.parametrize("y", [np.ones(60), 1e-200 * Y, np.column_stack([Y, np.full(60, 0.1)])])
def test_a_target_that_does_not_vary_is_warned_of(y):
    with pytest.warns(UserWarning, match="does not vary"):
        GPBenchRegressor("linear").fit(X, y)


def test_any_state_that_scikit_learn_takes_names_the_random_streams(monkeypatch):
    fitted = []

    def group(cell, fits, rows):
        fitted.extend(fits)
        return group_of(cell, fits, rows)

    monkeypatch.setattr(estimators, "group_of", group)
    for state in (20_000, np.int64(3), None, np.random.RandomState(3)):
        GPBenchRegressor("linear", random_state=state).fit(X, Y)
    assert [fit.replica for fit in fitted[:2]] == [20_000, 3]
    assert fitted[3].replica == np.random.RandomState(3).randint(2**31)


def test_a_classifier_stands_in_a_pipeline_and_keeps_its_labels():
    model = make_pipeline(StandardScaler(), GPBenchClassifier("gradient_boosting", budget="smoke"))
    labels = np.where(Y > 100, "high", "low")
    model.fit(X, labels)
    assert (model.predict(X) == labels).mean() > 0.9
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)


def test_a_fit_that_fails_leaves_no_model_of_before():
    for model, y in ((GPBenchRegressor("linear"), Y), (GPBenchClassifier("linear"), Y > 100)):
        model.fit(X, y).set_params(budget="nope")
        with pytest.raises(UserError, match="nope"):
            model.fit(X[:, ::-1], y)
        with pytest.raises(NotFittedError):
            model.predict(X)


def test_what_cannot_be_fitted_is_one_line():
    with pytest.raises(UserError, match="did you mean 'svgp'"):
        GPBenchRegressor("svpg").fit(X, Y)
    with pytest.raises(UserError, match="exact_gp cannot be fitted to these arrays: regression only"):
        GPBenchClassifier("exact_gp").fit(X, Y > 100)
    with pytest.raises(UserError, match="num_inducin"):
        GPBenchRegressor("svgp", {"num_inducin": 5}).fit(X, Y)
    with pytest.raises(UserError, match=r"target 'y0' is beyond 1e\+150 in row 0"):
        GPBenchRegressor("linear").fit(X, Y * 1e200)
    with pytest.raises(UserError, match="row 1: no finite prediction"):
        GPBenchRegressor("linear").fit(X, Y).predict(X[:1] * 1e308)
    lost = GPBenchClassifier("linear")
    lost._answer = lambda _: SimpleNamespace(probabilities=lambda: [[0.5, 0.5], [np.nan, np.nan]])
    with pytest.raises(UserError, match="row 2: no finite prediction"):
        lost.predict_proba(X)
    days = pd.date_range("2024-01-01", periods=len(X))
    for times in (pd.DataFrame({"t": days}), days.to_numpy()[:, None]):
        with pytest.raises(ValueError, match=r"X, (column 't'|array): values of .* are not real numbers"):
            GPBenchRegressor("linear").fit(times, Y)
    with pytest.raises(ValueError, match="X, masked cells, which have no values"):
        GPBenchRegressor("linear").fit(np.ma.masked_array(X, X > 0), Y)
    for estimator, y in ((GPBenchRegressor("linear"), Y), (GPBenchClassifier("linear"), Y > 0)):
        with pytest.raises(ValueError, match="y, masked cells, which have no values"):
            estimator.fit(X, np.ma.masked_array(y, np.arange(len(X)) < 5))
    with pytest.raises(ValueError, match="y, array: values of datetime64"):
        GPBenchRegressor("linear").fit(X, days)
    with pytest.raises(UserError, match="settings must be a dict"):
        GPBenchRegressor("svgp", "num_inducing=5").fit(X, Y)
