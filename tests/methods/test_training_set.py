"""Training rows of replicas: scaled, weighted for a mini-batch, padded."""

import numpy as np
import pytest
import torch

from gpbench.methods.training_rows import TrainingSet, stack

RNG = np.random.default_rng(0)
INPUTS, TARGETS = RNG.normal(size=(9, 2)), RNG.normal(size=(9, 1))
ROWS = [[3, 1, 8, 0], [2, 7, 5]]
X_SHIFT, X_SCALE, Y_SHIFT, Y_SCALE = (RNG.uniform(1, 3, size=(2, width)) for width in (2, 2, 1, 1))
SET = TrainingSet(
    *map(torch.from_numpy, (INPUTS, TARGETS)),
    torch.tensor([ROWS[0], [*ROWS[1], 0]]),
    torch.tensor([4, 3]),
    *map(torch.from_numpy, (X_SHIFT, X_SCALE, Y_SHIFT, Y_SCALE)),
)


def scaled(r: int, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return (INPUTS[rows] - X_SHIFT[r]) / X_SCALE[r], (TARGETS[rows] - Y_SHIFT[r]) / Y_SCALE[r]


@pytest.mark.parametrize("r", [0, 1])
def test_rows_of_a_replica_are_scaled_by_its_own_moments_and_padded_with_nothing(r):
    x, y = scaled(r, ROWS[r])
    alone, full = SET.replica(r), SET.full()
    for ours, expected in ((alone.x[0], x), (alone.y[0], y), (full.x[r, : len(x)], x), (full.y[r, : len(x)], y)):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)
    assert full.weight[r].tolist() == [1.0] * len(x) + [0.0] * (4 - len(x))
    assert not full.x[r, len(x) :].any()


def test_a_row_of_a_mini_batch_stands_for_as_many_as_the_batch_leaves_out():
    batch = SET.take(torch.tensor([[3, 0], [2, 2]]))
    for r, rows in enumerate(([0, 3], [5, 5])):
        x, y = scaled(r, rows)
        np.testing.assert_allclose(batch.x[r], x, rtol=1e-12)
        np.testing.assert_allclose(batch.y[r], y, rtol=1e-12)
    assert batch.weight.tolist() == [[2.0, 2.0], [1.5, 1.5]]


def test_tensors_of_unlike_sizes_are_padded_at_their_ends():
    together = stack([torch.ones(1, 1, 3), 2 * torch.ones(1, 2, 2)])
    assert together.tolist() == [[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], [[2.0, 2.0, 0.0], [2.0, 2.0, 0.0]]]
