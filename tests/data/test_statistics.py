"""Statistics of a table, against pandas and the standard library; expected figures in the digits given."""

import dataclasses
import statistics as standard
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from entries import entry

from gpbench.config import validate
from gpbench.config.schema import Expect
from gpbench.data import table as tables
from gpbench.data.summary import Statistics, check, class_counts, columns, statistics
from gpbench.data.table import Table
from gpbench.errors import UserError


def made(inputs: np.ndarray, targets: np.ndarray) -> Table:
    return Table(inputs, targets, [f"x{i}" for i in range(inputs.shape[1])], [f"y{i}" for i in range(targets.shape[1])])


def some(rows: int, kind: type, seed: int = 0) -> Table:
    """Few distinct values, so that rows repeat; one input is constant."""
    generator = np.random.default_rng(seed)
    inputs = generator.integers(0, 4, (rows, 4)).astype(kind)
    inputs[:, 2] = 3
    return made(inputs, generator.integers(0, 3, (rows, 2)).astype(float))


@pytest.mark.parametrize("kind", [float, np.uint8, np.int16])
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_duplicates_are_those_of_pandas(monkeypatch, kind, chunk):
    monkeypatch.setattr(tables, "CHUNK", chunk)  # many pieces, or one
    one = some(100, kind)
    found = statistics(one, entry())
    inputs = pd.DataFrame(one.inputs)
    rows = pd.concat([inputs, pd.DataFrame(one.targets)], axis=1)
    assert 0 < rows.duplicated().sum() < inputs.duplicated().sum() < 100
    assert found.duplicate_rows == rows.duplicated().sum()
    assert found.duplicate_inputs == inputs.duplicated().sum()
    assert found.constant_inputs == ["x2"]


@pytest.mark.parametrize(
    ("first", "second", "repeats"),
    [
        ([0.0, 1.0], [-0.0, 1.0], 1),
        ([1.0, 2.0], [2.0, 1.0], 0),
        ([0.0, 0.0], [0.0, 5e-324], 0),
        ([1.0, 1.0], [1.0, np.nextafter(1, 2)], 0),
        ([0.0, 1.0], [1.0, 0.0], 0),
    ],
)
def test_which_rows_are_duplicates(first, second, repeats):
    found = statistics(made(np.array([first, second]), np.zeros((2, 1))), entry())
    assert (found.duplicate_rows, found.duplicate_inputs) == (repeats, repeats)


def test_targets_of_regression():
    one = some(50, float)
    found = statistics(one, entry())
    assert (found.rows, found.inputs, found.targets) == (50, 4, 2)
    for j, values in enumerate(one.targets.T.tolist()):
        assert found.target_mean[j] == pytest.approx(standard.fmean(values), rel=1e-14)
        assert found.target_sd[j] == pytest.approx(standard.pstdev(values), rel=1e-14)
        assert (found.target_min[j], found.target_max[j]) == (min(values), max(values))
    assert found.class_counts == []


def test_columns_of_the_truth_make_no_row_another():
    rows = np.array([[1.0, 5.0], [1.0, 6.0], [2.0, 7.0]])
    found = statistics(made(np.array([[0.0], [0.0], [1.0]]), rows), entry(truth=["y1"]))
    assert (found.targets, found.target_mean, found.duplicate_rows) == (1, [4 / 3], 1)


def test_classes_are_counted_in_their_order():
    one = made(np.arange(6.0)[:, None], np.array([[2], [0], [2], [2], [0], [2]]))
    dataset = entry(task="multiclass", classes=["a", "b", "c"])
    found = statistics(one, dataset)
    assert found.class_counts == [2, 0, 4]
    assert class_counts(one, dataset).tolist() == [2, 0, 4]
    assert found.target_mean == []


def test_events_have_no_targets():
    found = statistics(made(np.array([[1.0], [2.0], [1.0]]), np.zeros((3, 0))), entry(task="events"))
    assert (found.targets, found.target_sd, found.class_counts) == (0, [], [])
    assert (found.duplicate_rows, found.duplicate_inputs) == (1, 1)


def test_a_large_set_is_not_copied():
    """As float64 at once, 4 MB of bytes would be 64 MB."""
    one = made(np.random.default_rng(0).integers(0, 255, (40_000, 200), dtype=np.uint8), np.zeros((40_000, 1)))
    tracemalloc.start()
    statistics(one, entry())
    columns(one)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


def test_columns_in_original_units():
    one = made(np.array([[1, 5], [3, 5], [3, 5]], np.int16), np.array([[0.5], [1.0], [-2.0]]))
    rows = columns(one)
    assert [row[0] for row in rows] == ["x0", "x1", "y0"]
    assert rows[0] == ("x0", pytest.approx(7 / 3), pytest.approx(standard.pstdev([1, 3, 3])), 1.0, 3.0, 2)
    assert rows[1] == ("x1", 5.0, 0.0, 5.0, 5.0, 1)
    assert rows[2][3] == -2.0


def stated(**figures) -> Expect:
    """As the catalogue's file would say it."""
    return validate.check(Expect, figures, "test")


FOUND = Statistics(
    rows=506,
    inputs=1,
    targets=1,
    target_mean=[22.53284],
    target_sd=[9.18801],
    target_min=[5.0],
    target_max=[50.0],
    input_min=[0.0],
    input_max=[1.0],
    class_counts=[],
    duplicate_rows=3,
    duplicate_inputs=3,
    constant_inputs=[],
)


@pytest.mark.parametrize(
    "expect",
    [
        {},
        {"target_mean": [22.5328], "target_sd": [9.188], "target_min": [5.0], "target_max": [50.0]},
        {"target_mean": [22.53]},
        {"target_mean": [22.53284]},
        {"target_mean": ["22.53284"], "target_sd": ["9.1880"], "target_min": [5], "target_max": ["50.00"]},
        {"duplicate_rows": 3, "constant_inputs": []},
    ],
)
def test_figures_that_agree(expect):
    check(FOUND, entry(expect=stated(**expect)))


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        ({"target_mean": [22.5329]}, r"target_mean is \[22.53284\].* says \[22.5329\]"),
        ({"target_mean": [22.54]}, r"target_mean is \[22.53284\]"),
        ({"target_sd": [9.1881]}, "target_sd"),
        ({"target_sd": ["9.18800"]}, "target_sd"),
        ({"target_mean": [23]}, r"target_mean is .* says \[23\]"),
        ({"target_mean": [22.5328, 1.0]}, "target_mean"),
        ({"class_counts": [3, 4]}, r"class_counts is \[\].* says \[3, 4\]"),
        ({"duplicate_rows": 0}, "duplicate_rows is 3.* says 0"),
        ({"constant_inputs": ["a"]}, r"constant_inputs is \[\].* says \[a\]"),
    ],
)
def test_figures_that_differ(expect, said):
    with pytest.raises(UserError, match=f"data set .mine.: {said}"):
        check(FOUND, entry(expect=stated(**expect)))


@pytest.mark.parametrize(("window", "fits"), [([0.0, 1.0], True), ([0.1, 1.0], False), ([0.0, 0.9], False)])
def test_events_lie_in_their_window(window, fits):
    """From 0 to 1, borders included."""
    dataset = entry(window=[window])
    if fits:
        check(FOUND, dataset)
    else:
        with pytest.raises(UserError, match="events lie outside the window"):
            check(FOUND, dataset)


@pytest.mark.parametrize(("mean", "fits"), [(0.00000123, True), (0.0000012300001, True), (0.00000124, False)])
def test_digits_of_small_numbers(mean, fits):
    """The last digit of 1.23e-6 stands for 10^-8."""
    found = dataclasses.replace(FOUND, target_mean=[mean])
    dataset = entry(expect=stated(target_mean=[1.23e-6]))
    if fits:
        check(found, dataset)
    else:
        with pytest.raises(UserError, match="target_mean"):
            check(found, dataset)
