"""The support vector machine: its tuning, its probabilities, small and awkward training sets."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.svm import SVC

from gpbench.errors import UserError
from gpbench.methods import svm


def data(rows: int, num_classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Balanced classes by thresholds of a smooth function."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3))
    f = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    return x, np.searchsorted(np.quantile(f, np.arange(1, num_classes) / num_classes), f)


def fitted(x: np.ndarray, y: np.ndarray, num_classes: int = 2, **settings):
    method = svm.Method(svm.Hyperparameters(**settings), "binary" if num_classes == 2 else "multiclass", num_classes)
    return method, method.fit(x, y, np.random.default_rng(1))


def test_it_learns_what_no_plane_separates():
    x, y = data(600)
    method, model = fitted(x[:200], y[:200])
    predictive = method.predict(model, x[200:])
    assert (predictive.modal() == y[200:]).mean() > 0.85
    assert predictive.log_prob(y[200:]).mean() > -0.4


def test_the_setting_has_the_best_likelihood_of_the_grid_under_platts_curve():
    x, y = data(60)
    _, model = fitted(x, y)
    target = np.where(y == 1, 1 - 1 / (y.sum() + 2), 1 / ((y == 0).sum() + 2))
    losses = {}
    for C in 10.0 ** np.arange(-2, 4):
        for gamma in 10.0 ** np.arange(-4, 2):
            values = held_out(SVC(C=C, gamma=gamma), x, y)
            values = values / np.abs(values).max()

            def loss(curve, values=values):
                z = np.exp(curve[0]) * values + curve[1]
                return -np.mean(target * log_expit(z) + (1 - target) * log_expit(-z))

            losses[C, gamma] = min(minimize(loss, [start, 0.0]).fun for start in (0.0, 2.0))
    machine = model["machine"]
    assert losses[machine.C, machine.gamma] == pytest.approx(min(losses.values()), rel=1e-6)
    assert model["curves"][0].loss == pytest.approx(min(losses.values()), rel=1e-6)
    assert max(losses.values()) > 1.2 * min(losses.values())


def held_out(machine: SVC, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Decision values by the folds that `fitted` has."""
    folds = StratifiedKFold(5, shuffle=True, random_state=int(np.random.default_rng(1).integers(2**31)))
    return cross_val_predict(machine, x, y, cv=folds, method="decision_function")


def test_probabilities_are_those_of_the_librarys_calibration():
    x, y = data(80)
    method, model = fitted(x, y)
    folds = StratifiedKFold(5, shuffle=True, random_state=int(np.random.default_rng(1).integers(2**31)))
    library = CalibratedClassifierCV(model["machine"], method="sigmoid", cv=folds, ensemble=False).fit(x, y)
    new = data(50, seed=5)[0]
    expected = library.predict_proba(new)
    np.testing.assert_allclose(method.predict(model, new).probabilities(), expected, atol=1e-3)
    assert expected.std() > 0.2


@pytest.mark.parametrize("unit", [1e-26, 1.0, 1e6])
def test_platts_curve_follows_the_unit_of_the_decision_values(unit):
    values = np.linspace(-1, 1, 40)
    positive = np.sin(np.arange(40)) / 2 < values
    curve, expected = svm.platt(unit * values, positive), svm.platt(values, positive)
    np.testing.assert_allclose([curve.slope * unit, curve.offset], [expected.slope, expected.offset], rtol=1e-6)
    assert expected.slope > 1


def test_decision_values_that_mistake_the_classes_make_a_flat_curve():
    values, positive = np.linspace(-1, 1, 30), np.arange(30) < 10
    curve = svm.platt(values, positive)
    assert curve.slope == 0
    # of Platt's targets 11 / 12 and 1 / 22
    assert expit(curve.offset) == pytest.approx((10 * 11 / 12 + 20 / 22) / 30)
    assert svm.platt(np.zeros(30), positive)[:2] == pytest.approx(curve[:2])


def test_three_classes_have_their_own_curves():
    x, y = data(300, 3)
    method, model = fitted(x[:150], y[:150], 3)
    predictive = method.predict(model, x[150:])
    assert (predictive.modal() == y[150:]).mean() > 0.7
    slope, offset, _ = np.array(model["curves"]).T
    curves = expit(model["machine"].decision_function(x[150:]) * slope + offset)
    np.testing.assert_allclose(predictive.probabilities(), curves / curves.sum(1, keepdims=True), rtol=1e-9)


def test_folds_are_as_many_as_the_smallest_class_has_rows():
    x, _ = data(20)
    y = (np.arange(20) < 2).astype(int)
    (_, most), (_, two) = fitted(x, y), fitted(x, y, folds=2)
    assert most["curves"] == two["curves"]
    x, y = data(60)
    assert fitted(x, y, folds=2)[1]["curves"] != fitted(x, y, folds=3)[1]["curves"]


@pytest.mark.parametrize("num_classes", [2, 3])
def test_ten_training_rows_are_enough(num_classes):
    x, y = data(10, num_classes)
    method, model = fitted(x, y, num_classes)
    probs = method.predict(model, data(40)[0]).probabilities()
    assert np.isfinite(np.log(probs)).all()
    np.testing.assert_allclose(probs.sum(1), 1)


def test_a_class_unseen_in_training_keeps_some_mass():
    x, y = data(40)
    method, model = fitted(x, 2 * y, 3)
    probs = method.predict(model, x).probabilities()
    np.testing.assert_allclose(probs[:, 1], 1 / 43)


@pytest.mark.parametrize(("positives", "said"), [(0, "single class"), (1, "class 1 has a single training row")])
def test_what_cannot_be_held_out_is_refused(positives, said):
    x, _ = data(12)
    with pytest.raises(UserError, match=said):
        fitted(x, (np.arange(12) < positives).astype(int))
