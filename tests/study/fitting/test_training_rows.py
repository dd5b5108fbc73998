"""What large data sets cost in memory."""

import tracemalloc

import numpy as np
import torch

from gpbench.data.scaling import Scaling
from gpbench.data.table import Table
from gpbench.streams import Key
from gpbench.study.fitting import loop
from gpbench.study.fitting.fold import Fold

ROWS, COLUMNS = 500_000, 8


def test_no_copy_of_all_rows_in_double_precision_is_made_on_the_way_to_single():
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, 1000, (ROWS, COLUMNS), dtype=np.int16), rng.standard_normal((ROWS, 1))
    shift, ones = np.arange(COLUMNS) / 3, np.ones(COLUMNS)
    fold = Fold(Key("a", "b", 0), np.arange(ROWS), np.arange(0), targets, Scaling(shift, ones, ones[:1], ones[:1]))
    table = Table(inputs, targets, list("abcdefgh"), ["y"])
    tracemalloc.start()
    data = loop.training_set(table, [fold], torch.float32, torch.device("cpu"))
    _, peak = tracemalloc.get_traced_memory()  # of NumPy: a tensor is not traced
    tracemalloc.stop()
    assert peak < 0.5 * 8 * inputs.size
    last = (inputs[-1] - shift).astype(np.float32)
    assert torch.equal(data.inputs[-1], torch.as_tensor(last))
    assert data.targets.dtype == torch.float32
