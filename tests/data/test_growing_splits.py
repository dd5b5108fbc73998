"""Blocks of rows and balanced training sets that grow: how they are cut, and what simulated targets show."""

import dataclasses

import numpy as np
import pytest

from cases import CONF, Case, group
from gpbench import config, places
from gpbench.config.schema import Protocol
from gpbench.data import protocols
from gpbench.data.protocols import freeze, num_splits
from gpbench.data.splits import Balanced, Blocks, FrozenProtocol
from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.study.fitting.fold import make_fold
from gpbench.study.planning.resolve import resolve
from gpbench.study.records import Cell, PreparedData
from handmade import WHAT

BLOCKS, ALL, BALANCED, COMMON = (
    config.compose(CONF, "protocol", name)
    for name in ("filippone2013", "filippone2013_real", "filippone2014", "common")
)
LRG, LCX, PIMA, GLASS, BOSTON = (
    config.compose(CONF, "dataset", name) for name in ("lrg_100_2", "lcx_100_2", "pima", "glass_window", "boston")
)


def rules(protocol: Protocol, **splits) -> Protocol:
    return dataclasses.replace(protocol, splits=dataclasses.replace(protocol.splits, **splits))


def test_a_block_of_rows_trains_and_tests():
    splits = freeze(BLOCKS, LRG).splits
    assert splits == Blocks(100)
    assert num_splits(BLOCKS, LRG) == 10
    for split in range(10):
        train, test = splits.rows(1000, split)
        assert train.tolist() == test.tolist() == list(range(100 * split, 100 * split + 100))
        assert splits.sizes(1000, split) == (100, 100)


def test_all_rows_are_one_block():
    splits = freeze(ALL, BOSTON).splits
    assert splits == Blocks(506)
    assert num_splits(ALL, BOSTON) == 1
    train, test = splits.rows(506, 0)
    assert train.tolist() == test.tolist() == list(range(506))
    assert splits.sizes(506) == (506, 506)


def test_truth_is_handed_over_where_a_protocol_says_so():
    assert freeze(BLOCKS, LRG).outputs == (0, 1, 2, 3, 4)
    for outputs in ("first", "last", "all"):  # common predictors never see it
        assert freeze(dataclasses.replace(COMMON, outputs=outputs), LRG).outputs == (0,)
    assert freeze(BLOCKS, dataclasses.replace(BOSTON, rows=510)).outputs == (0,)


def test_rows_left_as_they_are_reach_a_method():
    rng = np.random.default_rng(0)
    targets = np.column_stack([rng.permutation(np.arange(40) % 2), rng.normal(size=(40, 2))])
    table = Table(rng.normal(3, 5, (40, 2)), targets, ["a", "b"], ["y", "f", "log_variance"])
    protocol = FrozenProtocol("", "as they are", "as they are", (), (0, 1, 2), Blocks(20))
    what = dataclasses.replace(WHAT, data=PreparedData("", "binary", False, 2), protocol=protocol)
    fold = make_fold(what, table, 1, 0)
    assert np.array_equal(fold.scaling.inputs(table.inputs), table.inputs)
    assert np.array_equal(fold.scaling.targets(fold.targets), targets)
    assert fold.train.tolist() == list(range(20, 40))
    targets[20:, 0] = 1
    with pytest.raises(UserError, match=r"split 1: no training row of class \[0\]"):
        make_fold(what, table, 1, 0)


@pytest.mark.parametrize(("dataset", "expected"), [(PIMA, [10, 20, 50, 100]), (GLASS, [10, 20, 50, 82])])
def test_sizes_leave_ten_rows_of_the_rarer_class(dataset, expected):
    splits = freeze(BALANCED, dataset).splits
    assert splits == Balanced(0, tuple(expected))
    assert num_splits(BALANCED, dataset) == 160
    assert [splits.sizes(dataset.rows, split)[0] for split in range(8)] == 2 * expected


def test_sizes_that_are_cut_to_the_same_are_one():
    few = dataclasses.replace(PIMA, expect=dataclasses.replace(PIMA.expect, class_counts=[500, 18]), rows=518)
    assert freeze(BALANCED, few).splits.train_sizes == (10, 16)
    assert num_splits(BALANCED, few) == 80


def test_training_sets_are_balanced_grow_and_differ():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1], [163, 51]))
    splits = freeze(BALANCED, GLASS).splits
    seen = []
    for split in range(8):
        train, test = splits.rows(214, split, labels)
        size = splits.train_sizes[split % 4]
        assert np.bincount(labels[train]).tolist() == [size // 2, size // 2]
        assert sorted([*train, *test]) == list(range(214))
        seen.append(set(train))
    for first in (0, 4):
        assert seen[first] < seen[first + 1] < seen[first + 2] < seen[first + 3]
    assert seen[0] != seen[4]
    # the first rows of each class in a shuffle by NumPy's RandomState
    order = np.random.RandomState(1).permutation(214)
    assert seen[5] == {*order[labels[order] == 0][:10], *order[labels[order] == 1][:10]}


def test_three_classes_are_balanced_too():
    labels = np.arange(300) % 3
    train, test = Balanced(0, (30, 60)).rows(300, 3, labels)
    assert np.bincount(labels[train]).tolist() == [20, 20, 20]
    assert len(test) == 240


REFUSED = {
    "unequal blocks": (BLOCKS, PIMA, {}, "768 rows cannot be cut into 10 equal blocks; change 'count'"),
    "no sizes": (BALANCED, PIMA, {"sizes": []}, "balanced needs 'sizes' here and 'class_counts' in the 'expect'"),
    "no classes": (BALANCED, BOSTON, {}, "balanced needs 'sizes' here and 'class_counts' in the 'expect'"),
    "too small": (BALANCED, PIMA, {"sizes": [1, 10]}, r"sizes \[1, 10\] and 268 rows of the rarest class leave one"),
    "stratified": (ALL, PIMA, {"stratified": True}, "'stratified' goes with scheme k_fold, not blocks"),
    "thinned": (
        rules(BLOCKS, counts="thinning"),
        LCX,
        {},
        "halves of simulated counts are drawn from other parameters",
    ),
}


@pytest.mark.parametrize(("protocol", "dataset", "splits", "said"), REFUSED.values(), ids=REFUSED)
def test_invalid_rules_are_refused(protocol, dataset, splits, said):
    with pytest.raises(UserError, match=said) as caught:
        freeze(rules(protocol, **splits), dataset)
    assert str(caught.value).startswith(f"protocol {protocol.name!r} on data set {dataset.name!r}: ")


def test_fits_grow_with_their_split(tmp_path_factory):
    """Inputs and targets of test rows change nothing that is fitted to a balanced training set."""
    rng = np.random.default_rng(0)
    data = Table(rng.normal(size=(90, 2)), rng.permutation(np.repeat([0.0, 1.0], [60, 30]))[:, None], ["a", "b"], ["y"])
    protocol = rules(BALANCED, sizes=[10, 40], count=2)
    made = Case("linear", "binary", tmp_path_factory, data=data, protocol=("common",))
    splits = Balanced(0, (10, 40))
    assert (
        num_splits(protocol, dataclasses.replace(PIMA, expect=dataclasses.replace(PIMA.expect, class_counts=[60, 30])))
        == 4
    )
    what = made.cell.what
    what = dataclasses.replace(what, protocol=dataclasses.replace(what.protocol, splits=splits))
    for split in range(2):
        one = dataclasses.replace(group(made.cell, split), what=what)
        fold = make_fold(what, data, split, 0)
        inputs = data.inputs.copy()
        inputs[fold.test] += 100
        plain, other = (made.fit(one, each)[0] for each in (data, dataclasses.replace(data, inputs=inputs)))
        assert len(plain.points) == 90 - splits.train_sizes[split]
        assert np.array_equal(plain.model["estimator"].coef_, other.model["estimator"].coef_)


def test_studies_of_these_protocols_are_planned(project):
    def planned(words: str) -> tuple[Cell, ...]:
        return resolve(places.find(), "default", f"methods=[constant] presets={{}} splits_of={{}} {words}").cells

    (blocks,) = planned("datasets=[lrg_100_2] protocol=filippone2013 splits=10")
    assert (blocks.rows, blocks.test_rows, len(blocks.fits)) == (100, 100, 10)
    (whole,) = planned("datasets=[ionosphere] protocol=filippone2013_real splits=1")
    assert (whole.rows, whole.test_rows) == (351, 351)
    names = "pima,thyroid_normal,ionosphere,glass_window,usps_3v5,breast_wisconsin,abalone_sex"
    growing = planned(f"datasets=[{names}] protocol=filippone2014 splits=160")
    assert [cell.what.protocol.splits.train_sizes[-1] for cell in growing] == [100, 100, 100, 82, 100, 100, 100]
    with pytest.raises(
        UserError, match="splits 0 to 1 of 'ionosphere' are asked for; protocol 'filippone2013_real' has 0 to 0"
    ):
        planned("datasets=[ionosphere] protocol=filippone2013_real splits=2")
    assert protocols.official(BALANCED, config.compose(CONF, "dataset", "usps")) is False
