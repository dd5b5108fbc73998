"""Scaling: statistics of training rows alone, and what is not scaled."""

from dataclasses import replace

import numpy as np
import pytest

from gpbench.data.scaling import scaling
from gpbench.data.splits import FrozenProtocol, Official, check_classes
from gpbench.errors import UserError

PLAIN = FrozenProtocol("common", "standardise", "standardise", leaks=(), outputs=(0, 1), splits=Official(30))


@pytest.fixture
def rows():
    """inputs [40, 3] (the last column constant), targets [40, 2], training rows."""
    rng = np.random.default_rng(0)
    inputs = np.column_stack([rng.normal(5, 3, 40), rng.exponential(2, 40), np.full(40, 101325.7)])
    return inputs, rng.normal(-2, 4, (40, 2)), np.arange(30)


def test_scaled_training_rows_have_mean_0_and_sd_1(rows):
    inputs, targets, train = rows
    made = scaling(PLAIN, inputs, targets, train, "regression", images=False)
    x, y = made.inputs(inputs)[train], made.targets(targets)[train]
    np.testing.assert_allclose([x[:, :2].mean(0), y.mean(0)], 0, atol=1e-14)
    np.testing.assert_allclose([x[:, :2].std(0), y.std(0)], 1, rtol=1e-14)
    assert np.abs(x[:, 2]).max() < 1e-9  # a constant column, up to the rounding of its mean
    assert made.x_scale[2] == 1


@pytest.mark.parametrize(("task", "images"), [("regression", False), ("multiclass", True), ("binary", False)])
def test_test_rows_change_nothing(rows, task, images):
    inputs, targets, train = rows
    before = scaling(PLAIN, inputs, targets, train, task, images)
    inputs, targets = inputs.copy(), targets.copy()
    inputs[30:], targets[30:] = 1e6, -1e6
    after = scaling(PLAIN, inputs, targets, train, task, images)
    for name, value in vars(before).items():
        np.testing.assert_array_equal(value, vars(after)[name], err_msg=name)


def test_a_listed_leak_lets_test_inputs_in_and_no_targets(rows):
    inputs, targets, train = rows
    moved = inputs.copy()
    moved[30:] = 100.0
    one, two = (
        scaling(replace(PLAIN, leaks=("test_x",)), x, targets, train, "regression", False) for x in (inputs, moved)
    )
    assert (one.x_shift[:2] != two.x_shift[:2]).all()
    assert (one.y_shift == two.y_shift).all()


@pytest.mark.parametrize("dtype", [float, np.uint8])
def test_pixels_are_divided_by_the_largest_training_value(dtype):
    inputs = np.array([[0, 8], [4, 16], [0, 200]], dtype)
    made = scaling(PLAIN, inputs, np.zeros((3, 1)), np.array([0, 1]), "multiclass", images=True)
    np.testing.assert_array_equal(made.inputs(inputs), [[0, 0.5], [0.25, 1], [0, 12.5]])
    assert made.x_scale.dtype == np.float64
    assert scaling(PLAIN, inputs * 0, np.zeros((3, 1)), np.array([0]), "multiclass", True).x_scale.tolist() == [1, 1]


def test_classes_are_not_scaled(rows):
    inputs, _, train = rows
    classes = np.arange(40.0)[:, None] % 3
    made = scaling(PLAIN, inputs, classes, train, "multiclass", images=False)
    assert np.array_equal(made.targets(classes), classes)


def test_counts_are_not_scaled(rows):
    made = scaling(PLAIN, *rows, "counts", images=False)
    assert np.array_equal(made.targets(rows[1]), rows[1])


@pytest.mark.parametrize("images", [False, True])
def test_columns_may_stay_as_they_are(rows, images):
    inputs, targets, train = rows
    raw = replace(PLAIN, inputs="as they are", targets="as they are")
    made = scaling(raw, inputs, targets, train, "regression", images)
    assert np.array_equal(made.inputs(inputs), inputs)
    assert np.array_equal(made.targets(targets), targets)
    half = scaling(replace(PLAIN, targets="as they are"), inputs, targets, train, "regression", images)
    assert np.array_equal(half.targets(targets), targets)
    assert not np.array_equal(half.inputs(inputs), inputs)


def test_a_training_part_without_a_class():
    targets = np.array([[0.0], [0.0], [1.0], [2.0]])
    check_classes(targets, np.array([0, 2, 3]), 3, "split 4")
    with pytest.raises(UserError, match=r"split 4: no training row of class \[1, 2\]"):
        check_classes(targets, np.array([0, 1]), 3, "split 4")
    behind = np.column_stack([targets, [7.0, 8.0, 9.0, 10.0]])  # latent values, say
    check_classes(behind, np.array([0, 2, 3]), 3, "split 4")
    with pytest.raises(UserError, match=r"no training row of class \[2\]"):
        check_classes(behind, np.array([0, 2]), 3, "split 4")
