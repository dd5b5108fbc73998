"""Protocols: the literature's splits, and scaling that no test row can touch."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from gpbench.data import protocols
from gpbench.data.protocols import Protocol, Splits, check_classes, scaling, split_rows
from gpbench.errors import UserError
from projects import REPOSITORY

COMMON = protocols.from_dict(yaml.safe_load((REPOSITORY / "conf/protocol/common.yaml").read_text()))


def test_common_is_the_literature_s_protocol():
    assert COMMON.splits == Splits("permutation", seed=1, train_fraction=0.9, count=20)
    assert (COMMON.inputs, COMMON.targets, COMMON.leaks) == ("standardise", "standardise", [])


def test_first_splits_of_506_rows_written_out():
    # hernandez-lobato2015's script: np.random.seed(1), then a choice of all rows a split, int(round(n * 0.9)) train
    np.random.seed(1)  # noqa: NPY002 - the published generator
    for split in range(3):
        order = np.random.choice(range(506), 506, replace=False)  # noqa: NPY002
        train, test = split_rows(COMMON.splits, 506, split)
        assert train.tolist() == order[:455].tolist()
        assert test.tolist() == order[455:].tolist()


@pytest.mark.mirror
def test_splits_of_boston_are_the_index_files(mirror: Path):
    with tarfile.open(mirror / "boston/splits.tar.gz") as archive:
        files = {Path(m.name).name: archive.extractfile(m).read().split() for m in archive.getmembers() if m.isfile()}
    for split in range(20):
        train, test = split_rows(COMMON.splits, 506, split)
        assert train.tolist() == [int(float(i)) for i in files[f"index_train_{split}.txt"]]
        assert test.tolist() == [int(float(i)) for i in files[f"index_test_{split}.txt"]]


@pytest.mark.parametrize("rows", [2, 10, 178, 5000])
@pytest.mark.parametrize("split", [0, 19])
def test_a_split_is_disjoint_complete_and_repeats(rows, split):
    splits = Splits(train_fraction=0.5 if rows == 2 else 0.9)
    train, test = split_rows(splits, rows, split)
    assert sorted([*train, *test]) == list(range(rows))
    assert len(train) == round(splits.train_fraction * rows)
    again = split_rows(splits, rows, split)
    assert np.array_equal(train, again[0])
    assert np.array_equal(test, again[1])


def test_splits_differ_by_number_and_seed():
    first = split_rows(COMMON.splits, 100, 0)[1]
    assert set(first) != set(split_rows(COMMON.splits, 100, 1)[1])
    assert set(first) != set(split_rows(Splits(seed=2), 100, 0)[1])


@pytest.mark.parametrize("split", [-1, 20])
def test_a_split_that_is_not_there(split):
    with pytest.raises(UserError, match=f"split {split} does not exist; the protocol has splits 0 to 19"):
        split_rows(COMMON.splits, 100, split)


def test_too_few_rows_to_cut():
    with pytest.raises(UserError, match="1 rows cannot be cut into 90% train and the rest test"):
        split_rows(COMMON.splits, 1, 0)


@pytest.fixture
def rows():
    """inputs [40, 3] (the last column constant), targets [40, 2], training rows."""
    rng = np.random.default_rng(0)
    inputs = np.column_stack([rng.normal(5, 3, 40), rng.exponential(2, 40), np.full(40, 7.0)])
    return inputs, rng.normal(-2, 4, (40, 2)), np.arange(30)


def test_scaled_training_rows_have_mean_0_and_sd_1(rows):
    inputs, targets, train = rows
    made = scaling(COMMON, inputs, targets, train, "regression", images=False)
    x, y = made.inputs(inputs)[train], made.targets(targets)[train]
    np.testing.assert_allclose([x[:, :2].mean(0), y.mean(0)], 0, atol=1e-14)
    np.testing.assert_allclose([x[:, :2].std(0), y.std(0)], 1, rtol=1e-14)
    assert (x[:, 2] == 0).all()  # a constant column
    assert made.x_scale[2] == 1


@pytest.mark.parametrize(("task", "images"), [("regression", False), ("multiclass", True), ("binary", False)])
def test_test_rows_change_nothing(rows, task, images):
    inputs, targets, train = rows
    before = scaling(COMMON, inputs, targets, train, task, images)
    inputs, targets = inputs.copy(), targets.copy()
    inputs[30:], targets[30:] = 1e6, -1e6
    after = scaling(COMMON, inputs, targets, train, task, images)
    for name, value in vars(before).items():
        np.testing.assert_array_equal(value, vars(after)[name], err_msg=name)


def test_the_leak_of_a_paper_is_only_in_its_protocol(rows):
    inputs, targets, train = rows
    leaky = Protocol("leaky", "", Splits(), leaks=["test_x"])
    moved = inputs.copy()
    moved[30:] = 100.0
    one, two = (scaling(leaky, x, targets, train, "regression", False) for x in (inputs, moved))
    assert (one.x_shift[:2] != two.x_shift[:2]).all()
    assert (one.y_shift == two.y_shift).all()


def test_pixels_are_divided_by_the_largest_training_value():
    inputs = np.array([[0.0, 8.0], [4.0, 16.0], [0.0, 200.0]])
    made = scaling(COMMON, inputs, np.zeros((3, 1)), np.array([0, 1]), "multiclass", images=True)
    np.testing.assert_array_equal(made.inputs(inputs), [[0, 0.5], [0.25, 1], [0, 12.5]])
    assert scaling(COMMON, inputs * 0, np.zeros((3, 1)), np.array([0]), "multiclass", True).x_scale.tolist() == [1, 1]


def test_classes_are_not_scaled(rows):
    inputs, _, train = rows
    classes = np.arange(40.0)[:, None] % 3
    made = scaling(COMMON, inputs, classes, train, "multiclass", images=False)
    assert np.array_equal(made.targets(classes), classes)


def test_a_training_part_without_a_class():
    targets = np.array([[0.0], [0.0], [1.0], [2.0]])
    check_classes(targets, np.array([0, 2, 3]), 3, "split 4")
    with pytest.raises(UserError, match=r"split 4: no training row of class \[1, 2\]"):
        check_classes(targets, np.array([0, 1]), 3, "split 4")
