"""SimpleMKL: the optimum of its weights by another optimiser, what held-out rows may know, sources that count."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.svm import SVC

from gpbench.errors import UserError
from gpbench.methods import simple_mkl

SOURCES = (6, 6, 6, 6)
TIGHT = 1e-5


def data(num_classes: int, rows: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four sources: two that know the class, the second less well, and two of noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % num_classes
    centres = np.random.default_rng(99).standard_normal((num_classes, SOURCES[0]))
    parts = [strength * centres[y] + rng.standard_normal((rows, 6)) for strength in (1.2, 0.8, 0.0, 0.0)]
    return np.concatenate(parts, 1), y


def problem(num_classes: int, C: float = 1.0, rows: int = 30) -> simple_mkl.Problem:
    x, y = data(num_classes, rows)
    kernels = np.stack([part @ part.T / np.trace(part @ part.T) * len(x) for part in np.split(x, 4, axis=1)])
    signs = np.where(y == np.arange(num_classes)[:, None], 1.0, -1.0)
    return simple_mkl.Problem(kernels, signs[1:] if num_classes == 2 else signs, C)


def method(task: str = "multiclass", num_classes: int = 3, **settings) -> simple_mkl.Method:
    hyper = simple_mkl.Hyperparameters(**{"sources": SOURCES, "folds": 3, "penalties": (1.0,)} | settings)
    return simple_mkl.Method(hyper, task, num_classes)


def fitted(x: np.ndarray, y: np.ndarray, task: str = "multiclass", num_classes: int = 3, **settings):
    one = method(task, num_classes, **settings)
    return one, one.fit(x, y, np.random.default_rng(0))


def dual(of: simple_mkl.Problem, weights: np.ndarray) -> float:
    """J."""
    beta, kernel = of.machines(weights).beta, simple_mkl.combine(weights, of.kernels)
    return float(np.abs(beta).sum() - 0.5 * np.sum(beta @ kernel * beta))


@pytest.mark.parametrize("C", [0.1, 10.0])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_weights_are_those_of_another_optimiser(num_classes, C):
    of = problem(num_classes, C)
    weights, _ = simple_mkl.learn_weights(of, TIGHT)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)

    def primal(weights):
        """1/2 ||w||^2 + C sum of hinges by scikit-learn's own decision values: equal to J at the optimum."""
        kernel, total = np.tensordot(weights, of.kernels, 1), 0.0
        for y in of.signs:
            machine = SVC(kernel="precomputed", C=C, tol=1e-8).fit(kernel, y)
            beta = np.zeros(len(y))
            beta[machine.support_] = machine.dual_coef_[0]
            hinge = np.maximum(0, 1 - y * machine.decision_function(kernel)).sum()
            total += 0.5 * beta @ kernel @ beta + C * hinge
        return total

    simplex = {"type": "eq", "fun": lambda weights: weights.sum() - 1}
    # differences long enough for LIBSVM's tolerance, which C multiplies
    settings = {"method": "SLSQP", "options": {"eps": 1e-3, "ftol": 1e-7}}
    found = minimize(primal, np.full(4, 0.25), bounds=[(0, 1)] * 4, constraints=simplex, **settings)
    assert dual(of, weights) == pytest.approx(found.fun, rel=1e-3)
    np.testing.assert_allclose(weights, found.x, atol=0.01)


@pytest.mark.parametrize("C", [1e-5, 1.0, 1e5])
def test_slopes_are_equal_at_the_optimum_and_no_less_where_a_weight_is_zero(C):
    of = problem(2, C)
    weights, machines = simple_mkl.learn_weights(of, TIGHT)
    slopes = of.gradient(machines)
    active = weights > 0
    np.testing.assert_allclose(slopes[active], slopes[weights.argmax()], rtol=0.01)
    assert (slopes[~active] > slopes[weights.argmax()]).all()


def test_the_gradient_is_that_of_finite_differences():
    of, weights = problem(3), np.array([0.4, 0.3, 0.2, 0.1])
    shifts = 0.02 * np.eye(4)  # long, for LIBSVM's tolerance
    found = [(dual(of, weights + shift) - dual(of, weights - shift)) / 0.04 for shift in shifts]
    np.testing.assert_allclose(of.gradient(of.machines(weights)), found, rtol=0.01)


@pytest.mark.parametrize(("folds", "num_classes", "rows"), [(None, 2, 12), (5, 3, 30)])
@pytest.mark.slow
def test_held_out_rows_are_unknown_to_weights_and_machines(folds, num_classes, rows):
    of, one = problem(num_classes, rows=rows), method(folds=folds)
    values, held = one._held_out(of), np.arange(rows) % (folds or rows) == 3
    other = one._held_out(of._replace(signs=np.where(held, -of.signs, of.signs)))
    np.testing.assert_array_equal(other[held], values[held])
    assert not np.allclose(other[~held], values[~held])
    weights, machines = simple_mkl.learn_weights(of.rows(~held), 0.01)
    expected = simple_mkl.combine(weights, of.kernels)[held][:, ~held] @ machines.beta.T + machines.b
    np.testing.assert_allclose(values[held], simple_mkl.every_class(expected), rtol=1e-9)


@pytest.mark.parametrize(("task", "num_classes"), [("binary", 2), ("multiclass", 4)])
def test_it_finds_the_sources_that_know_the_class(task, num_classes):
    x, y = data(num_classes, 40)
    one, model = fitted(x, y, task, num_classes, penalties=(0.01, 1.0))
    assert model["weights"].argmax() == 0
    assert model["weights"][2:].sum() < 0.2
    new, truth = data(num_classes, 400, seed=1)
    predictive = one.predict(model, new)
    alike, unweighted = fitted(x, y, task, num_classes, sources=())
    assert (predictive.modal() == truth).mean() >= (alike.predict(unweighted, new).modal() == truth).mean()
    assert predictive.log_prob(truth).mean() > 0.3 - np.log(num_classes)
    # the class is that of the largest decision value, whatever the probabilities
    values = simple_mkl.every_class(new @ model["coefficients"].T + model["intercepts"])
    np.testing.assert_array_equal(predictive.modal(), values.argmax(1))


def test_planes_are_the_machines_of_the_combined_kernel():
    x, y = data(3)
    _, model = fitted(x, y)
    of = problem(3)
    weights, machines = simple_mkl.learn_weights(of, 0.01)
    np.testing.assert_allclose(model["weights"], weights, atol=0.01)
    values = simple_mkl.combine(weights, of.kernels) @ machines.beta.T + machines.b
    np.testing.assert_allclose(x @ model["coefficients"].T + model["intercepts"], values, atol=0.03)


def test_unscaled_kernels_follow_the_units_of_their_source():
    x, y = data(3)
    x[:, :6] *= 1e-3
    assert fitted(x, y)[1]["weights"].argmax() == 0
    assert fitted(x, y, scaled=False)[1]["weights"][0] < 0.01


def test_the_sharpest_probabilities_that_held_out_values_allow():
    rng = np.random.default_rng(0)
    values, factor = rng.standard_normal((20_000, 3)), 2.5
    number = (softmax(factor * values, 1).cumsum(1) > rng.random((20_000, 1))).argmax(1)
    assert simple_mkl.sharpness(values, number) == pytest.approx(factor, rel=0.05)
    assert simple_mkl.sharpness(1e-9 * values, number) == pytest.approx(1e9 * factor, rel=0.05)
    # values that say nothing, and those that are always right: bounded
    assert simple_mkl.sharpness(values, rng.integers(3, size=20_000)) < 0.05
    sure = simple_mkl.sharpness(np.eye(3)[number[:30]], number[:30])
    assert 2 < sure < 10


def test_the_penalty_is_the_first_of_those_that_held_out_rows_bear_best(monkeypatch):
    """Of 30 rows in order of their class, 15, 24, 24 and 18 are told right."""
    right = {0.1: 15, 1.0: 24, 10.0: 24, 100.0: 18}
    x, y = data(3)
    order = np.sort(y)

    def held_out(_, problem):
        return np.eye(3)[np.where(np.arange(30) < right[problem.C], order, (order + 1) % 3)]

    monkeypatch.setattr(simple_mkl.Method, "_held_out", held_out)
    _, model = fitted(x, y, penalties=tuple(right))
    assert (model["C"], model["held_out"]) == (1.0, 0.8)


def test_the_order_of_the_rows_does_not_matter():
    x, y = data(3)
    order = np.random.default_rng(0).permutation(len(x))
    (_, one), (_, other) = fitted(x, y, penalties=(0.1, 10.0)), fitted(x[order], y[order], penalties=(0.1, 10.0))
    np.testing.assert_allclose(one["coefficients"], other["coefficients"], rtol=1e-9)


def test_a_source_without_information_is_no_division_by_zero():
    x, y = data(2)
    x[:, 6:12] = 0.0
    one, model = fitted(x, y, "binary", 2)
    assert one.predict(model, np.zeros((1, 24))).is_finite()
    nothing = one.fit(np.zeros_like(x), y, np.random.default_rng(0))
    np.testing.assert_allclose(one.predict(nothing, x).probabilities(), 0.5, atol=0.01)


def test_sources_must_be_all_columns():
    with pytest.raises(UserError, match=r"\[6, 6\] are 12 columns and the data have 24 inputs"):
        fitted(*data(3), sources=(6, 6))


def test_no_penalty_is_impossible():
    assert "penalties" in simple_mkl.Hyperparameters(penalties=()).impossible("binary")
    assert simple_mkl.Hyperparameters().impossible("binary") == ""
