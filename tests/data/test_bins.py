"""Events counted in bins: right numbers at right places, and one line for what does not fit."""

import dataclasses

import numpy as np
import pytest
from entries import entry

from gpbench import config
from gpbench.data.readers import read as sources
from gpbench.data.table import Table, check
from gpbench.errors import UserError
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
COUNTED = {"bins": [4], "targets": ["count"], "names": ["t"]}
PLANE = {"bins": [2, 3], "targets": ["count"], "names": ["a", "b", "size"]}


def read(folder, text: str, source: dict, **changes) -> Table:
    (folder / "file.csv").write_text(text)
    return sources.read(entry(source, **({"task": "counts"} | changes)), folder)


def test_a_line(tmp_path):
    """A border belongs to the bin above it, the end of the window to the last bin."""
    made = read(tmp_path, "0\n0.5\n1\n1.2\n4\n", COUNTED, window=[[0, 4]])
    assert made.inputs.tolist() == [[0.5], [1.5], [2.5], [3.5]]
    assert made.targets.tolist() == [[2], [2], [0], [1]]
    assert (made.input_names, made.target_names) == (["t"], ["count"])
    assert made.targets.dtype == np.float64


def test_a_plane(tmp_path):
    text = "0.1,10,9\n0.2,29,9\n1.5,15,9\n1.6,15,9\n"
    made = read(tmp_path, text, PLANE, window=[[0, 2], [0, 30]], drop=["size"])
    assert made.inputs.tolist() == [[0.5, 5], [0.5, 15], [0.5, 25], [1.5, 5], [1.5, 15], [1.5, 25]]
    assert made.targets[:, 0].tolist() == [0, 1, 1, 0, 2, 0]
    assert made.input_names == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "changes", "said"),
    [
        (COUNTED | {"bins": [4, 4]}, {}, "2 bins and 1 pairs in window for 1 coordinates; give one of each"),
        (COUNTED, {"window": []}, "1 bins and 0 pairs in window for 1 coordinates"),
        (COUNTED, {"window": [[0, 1]]}, r"event 1 \(from 0\) at 3 lies outside the window \[\[0, 1\]\]"),
        (COUNTED, {"task": "regression"}, "'bins' needs the task counts and one target"),
        (COUNTED | {"targets": ["a", "b"]}, {}, "'bins' needs the task counts and one target"),
    ],
)
def test_inconsistent_entries_are_refused(tmp_path, source, changes, said):
    with pytest.raises(UserError, match=f"data set 'mine': {said}"):
        read(tmp_path, "0.5\n3\n", source, **({"window": [[0, 4]]} | changes))


@pytest.mark.parametrize(("pair", "place"), [("[1]", "0.1"), ("[1, 2, 3]", "0"), ("[1, late]", "0.1")])
def test_a_window_is_pairs_of_numbers(pair, place):
    with pytest.raises(UserError, match=rf"'coal'.*window.{place}: ") as told:
        config.compose(CONF, "dataset", "coal", (f"window=[{pair}]",))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("bins", ["0", "-3", "2.5", "many"])
def test_bins_are_positive_numbers(bins):
    with pytest.raises(UserError, match=r"coal_counts.*source.bins.0: .*given") as told:
        config.compose(CONF, "dataset", "coal_counts", (f"source.bins=[{bins}]",))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("value", "shown"), [(-1.0, "-1"), (1.5, "1.5")])
def test_targets_that_are_no_counts(value, shown):
    good = Table(np.zeros((3, 1)), np.array([[0.0], [2.0], [7.0]]), ["x"], ["y"])
    check(good, "mine", "counts", 0)
    bad = dataclasses.replace(good, targets=np.array([[0.0], [2.0], [value]]))
    with pytest.raises(UserError, match=f"target 'y' is {shown} in row 2, not a count 0, 1, ...; correct"):
        check(bad, "mine", "counts", 0)


@pytest.mark.mirror
@pytest.mark.parametrize(("name", "events"), [("coal_counts", "coal"), ("pines_counts", "pines")])
def test_every_event_of_the_catalogue_is_counted_where_it_lies(name, events, raw):
    """The bin of an event by division, without borders."""
    dataset, points = (config.compose(CONF, "dataset", one) for one in (name, events))
    there, counted = sources.read(points, raw), sources.read(dataset, raw)
    assert counted.targets.sum() == len(there.inputs) == points.rows
    assert counted.md5 == dataset.md5
    cells = []
    for column, bins, (low, high) in zip(there.inputs.T, dataset.source.bins, dataset.window, strict=True):
        cells.append(np.minimum(np.floor((column - low) / (high - low) * bins), bins - 1).astype(int))
    expected = np.zeros(dataset.source.bins)
    np.add.at(expected, tuple(cells), 1)
    np.testing.assert_array_equal(counted.targets[:, 0], expected.ravel())
