"""Models of closed forms are data: they come back as they were, and name no code."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from gpbench.errors import UserError
from gpbench.methods import gradient_boosting, linear, svm
from gpbench.study.fitting import plain_model

FORMS = {
    "linear": (linear.Method(linear.Hyperparameters(), "regression", 0, 2), "regression"),
    "classes": (linear.Method(linear.Hyperparameters(folds=2), "multiclass", 3, 1), "multiclass"),
    "trees": (gradient_boosting.Method(gradient_boosting.Hyperparameters(1, 2, 3), "regression", 0, 2), "regression"),
    "tree classes": (gradient_boosting.Method(gradient_boosting.Hyperparameters(1, 2, 3), "binary", 2, 1), "binary"),
    "svm": (svm.Method(svm.Hyperparameters(folds=2), "binary", 2, 1), "binary"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_stored_model_predicts_bit_for_bit(name, tmp_path):
    method, task = FORMS[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = rng.normal(size=(40, 2)) if task == "regression" else np.arange(40) % method.num_classes
    model = method.fit(x, y, rng)
    plain_model.save(model, tmp_path / "model.npz")
    before, after = (method.predict(m, x) for m in (model, plain_model.load(tmp_path / "model.npz")))
    if task == "regression":
        np.testing.assert_array_equal(after.mean(), before.mean())
        np.testing.assert_array_equal(after.variance(), before.variance())
    else:
        np.testing.assert_array_equal(after.probabilities(), before.probabilities())


OTHERS = ["os.Popen", "gpbench.places.Places", "sklearnish.Popen", "sklearn.clone", "sklearn.gone.Gone"]


@pytest.mark.parametrize("name", [*OTHERS, "sklearn.base.defaultdict", "sklearn.datasets._base.Path"])
def test_a_model_that_names_other_code_or_a_function_is_refused(name, tmp_path):
    structure = json.dumps({"object": [*name.rsplit(".", 1), {"dict": []}]})
    np.savez(tmp_path / "model.npz", structure=structure)
    with pytest.raises(UserError, match=f"names {name}, which is not a class of sklearn; it is not used"):
        plain_model.load(tmp_path / "model.npz")


@pytest.mark.parametrize("value", [Fraction(1, 2), len, np.array([None])])
def test_what_is_no_data_is_not_written(value, tmp_path):
    with pytest.raises(UserError, match="a closed form's model holds|holds objects"):
        plain_model.save({"value": value}, tmp_path / "model.npz")
    assert not (tmp_path / "model.npz").exists()
