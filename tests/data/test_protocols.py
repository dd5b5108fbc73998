"""Protocols: published splits row for row, every scheme against its source, and what a fit keeps of the rules."""

import dataclasses
import functools
import hashlib
import tarfile
from pathlib import Path

import numpy as np
import pytest
from sklearn import model_selection
from sklearn.model_selection import train_test_split

from gpbench import config
from gpbench.config.schema import Protocol, SplitRules
from gpbench.data import protocols
from gpbench.data.protocols import freeze
from gpbench.data.splits import FrozenProtocol, KFold, Official, Shuffled, Splits
from gpbench.errors import UserError
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
EVERY = sorted(config.options(CONF, "protocol"))
OTHERS = {"all_rows", "filippone2013", "filippone2013_real", "filippone2014", "posterior"}
"""whose rows train and test at once, or train more and more: see test_growing_splits"""
PARTITIONS = [name for name in EVERY if name not in OTHERS]
BOSTON, ENERGY, WINE, MNIST, COAL, AIRLINE, SPAM = (
    config.compose(CONF, "dataset", name)
    for name in ("boston", "energy", "wine", "mnist", "coal", "airline", "spambase")
)


@functools.cache
def repository(name: str) -> Protocol:
    return config.compose(CONF, "protocol", name)


def protocol(name: str, **splits) -> Protocol:
    """A protocol of the repository with other rules of splitting."""
    plain = repository(name)
    return dataclasses.replace(plain, splits=dataclasses.replace(plain.splits, **splits))


def frozen(name: str, rows: int, **splits) -> Splits:
    """Frozen splits of a data set with so many rows, and with classes where they count."""
    rules = protocol(name, **splits)
    return freeze(rules, dataclasses.replace(WINE if rules.splits.stratified else BOSTON, rows=rows)).splits


def parts(name: str, rows: int, split: int, **splits) -> tuple[np.ndarray, np.ndarray]:
    return frozen(name, rows, **splits).rows(rows, split, np.arange(rows) % 3)


def test_common_is_the_literature_s_protocol():
    common = config.compose(CONF, "protocol", "common")
    assert common.splits == SplitRules("permutation", seed=1, train_fraction=0.9, count=20)
    assert (common.inputs, common.targets, common.outputs, common.leaks) == ("standardise", "standardise", "first", [])


def test_only_one_paper_scales_with_test_rows():
    assert {name: protocol(name).leaks for name in EVERY if protocol(name).leaks} == {"rossi2021": ["test_x"]}


def test_first_splits_of_506_rows_written_out():
    # hernandezlobato2015's script: np.random.seed(1), then a choice of all rows a split, int(round(n * 0.9)) train
    np.random.seed(1)  # noqa: NPY002 - the published generator
    for split in range(3):
        order = np.random.choice(range(506), 506, replace=False)  # noqa: NPY002
        train, test = parts("common", 506, split)
        assert train.tolist() == order[:455].tolist()
        assert test.tolist() == order[455:].tolist()


@pytest.mark.mirror
@pytest.mark.parametrize(
    "name", ["boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine_red", "yacht"]
)
def test_the_published_index_files(mirror: Path, name):
    dataset = config.compose(CONF, "dataset", name)
    splits = freeze(protocol("common"), dataset).splits
    with tarfile.open(mirror / name / "splits.tar.gz") as archive:
        files = {Path(m.name).name: archive.extractfile(m).read().split() for m in archive.getmembers() if m.isfile()}
    count = int(files["n_splits.txt"][0])
    assert count == (5 if name == "protein" else 20)
    for split in range(count):
        train, test = splits.rows(dataset.rows, split)
        assert np.array_equal(train, np.array(files[f"index_train_{split}.txt"], float))
        assert np.array_equal(test, np.array(files[f"index_test_{split}.txt"], float))


# made with the published generators alone: RandomState's choice and shuffle, and scikit-learn's splitters; the
# stratified one by sorting a shuffle by class (the row number modulo 3) and dealing it out in turn
GOLDEN = {
    ("common", 506, 2): "e05e460ecec8",
    ("common_all", 506, 2): "e05e460ecec8",
    ("ashman2020", 8192, 7): "15ba890d37e5",
    ("salimbeni2017", 8192, 7): "15ba890d37e5",
    ("rossi2021", 11934, 5): "ea8405dc4dbd",
    ("rossi2021", 1030, 0): "070aa034736b",
    ("urbainczyk2025", 768, 9): "4788a9344b68",
    ("cutajar2017", 506, 2): "e05e460ecec8",
    ("cutajar2016", 4601, 4): "82c293e192c8",
    ("hensman2015mcmc", 1000, 3): "31dac0db23d7",
    ("filippone2012", 62, 1): "cc4c2ee4ac44",
}


@pytest.mark.parametrize(("name", "rows", "split"), GOLDEN)
def test_golden_splits(name, rows, split):
    order = np.concatenate(parts(name, rows, split)).astype("<i8")
    assert hashlib.md5(order.tobytes()).hexdigest()[:12] == GOLDEN[name, rows, split]


def test_every_protocol_has_a_golden_split():
    assert {name for name, _, _ in GOLDEN} == set(PARTITIONS)


@pytest.mark.parametrize("rows", [5, 31, 90, 308, 1030, 1599])
def test_train_test_split_is_scikit_learns(rows):
    for fraction, size in ((0.8, 0.2), (0.9, 0.1), (0.7, 0.3)):
        for split in range(4):
            train, test = parts("rossi2021", rows, split, train_fraction=fraction, seed=2)
            expected = train_test_split(np.arange(rows), test_size=size, random_state=2 + split)
            assert train.tolist() == expected[0].tolist()
            assert test.tolist() == expected[1].tolist()


def test_sizes_of_train_test_split_are_scikit_learns():
    for rows in range(5, 2000, 3):
        train, test = train_test_split(np.zeros(rows), test_size=0.2, random_state=0)
        assert frozen("rossi2021", rows).sizes(rows) == (len(train), len(test))


@pytest.mark.parametrize(("rows", "count"), [(20, 10), (506, 10), (1030, 7), (5, 5)])
def test_k_fold_is_scikit_learns(rows, count):
    expected = list(model_selection.KFold(count, shuffle=True, random_state=3).split(np.arange(rows)))
    for split in range(count):
        train, test = parts("urbainczyk2025", rows, split, count=count, seed=3)
        assert np.array_equal(train, expected[split][0])
        assert np.array_equal(test, expected[split][1])


@pytest.mark.parametrize("count", [2, 4, 7])
def test_stratified_folds_share_every_class_evenly(count):
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [101, 30, 9, 2]))
    dataset = dataclasses.replace(WINE, rows=len(labels))
    splits = freeze(protocol("urbainczyk2025", count=count, stratified=True), dataset).splits
    folds = [splits.rows(len(labels), split, labels)[1] for split in range(count)]
    tables = np.array([np.bincount(labels[fold], minlength=4) for fold in folds])
    assert (tables.max(0) - tables.min(0) <= 1).all()
    assert len(folds[0]) == splits.sizes(len(labels))[1]
    assert np.ptp([len(fold) for fold in folds]) <= 1
    dealt = sorted(np.random.RandomState(0).permutation(len(labels)), key=lambda row: labels[row])
    assert [sorted(dealt[split::count]) for split in range(count)] == [fold.tolist() for fold in folds]
    plain = dataclasses.replace(splits, stratified=False).rows(len(labels), 0)[1]
    assert set(folds[0]) != set(plain)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("rows", [20, 178, 5000])
def test_a_split_is_disjoint_complete_and_repeats(name, rows):
    splits = frozen(name, rows)
    seen = []
    for split in range(protocol(name).splits.count):
        train, test = parts(name, rows, split)
        assert sorted([*train, *test]) == list(range(rows))
        again = parts(name, rows, split)
        assert np.array_equal(train, again[0])
        assert np.array_equal(test, again[1])
        assert splits.sizes(rows, split) == (len(train), len(test))
        seen.append(tuple(sorted(test)))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("scheme", ["permutation", "shuffle", "train_test_split", "k_fold"])
def test_splits_differ_by_seed(scheme):
    one, two = (parts("common", 100, 0, scheme=scheme, seed=seed)[1] for seed in (1, 2))
    assert set(one) != set(two)


def test_the_official_split_is_the_first_rows():
    splits = freeze(protocol("cutajar2017"), MNIST).splits
    assert splits == Official(60_000)
    train, test = splits.rows(70_000, 0)
    assert np.array_equal(train, np.arange(60_000))
    assert np.array_equal(test, np.arange(60_000, 70_000))
    assert protocols.num_splits(protocol("cutajar2017"), MNIST) == 1
    other = protocol("cutajar2017", official=False)
    assert freeze(other, MNIST).splits == Shuffled("permutation", 1, 63_000)
    assert protocols.num_splits(other, MNIST) == protocols.num_splits(protocol("cutajar2017"), BOSTON) == 3


def test_numbers_of_test_rows():
    for name in ("rossi2021", "cutajar2017"):
        splits = freeze(protocol(name), AIRLINE).splits
        assert splits.sizes(AIRLINE.rows) == (AIRLINE.rows - 100_000, 100_000)
    assert freeze(protocol("cutajar2016"), SPAM).splits.sizes(SPAM.rows) == (4601 - 68, 68)  # sqrt(4601) = 67.8
    schemes = ("permutation", "shuffle", "train_test_split")  # 90 % of 13 rows are 11.7
    assert [frozen("common", 13, scheme=scheme).sizes(13) for scheme in schemes] == [(12, 1), (11, 2), (11, 2)]


def test_a_frozen_protocol_holds_what_decides_the_fit_and_nothing_else():
    made = freeze(protocol("rossi2021"), BOSTON)
    assert made == FrozenProtocol(
        name="rossi2021",
        inputs="standardise",
        targets="standardise",
        leaks=("test_x",),
        outputs=(0,),
        splits=Shuffled("train_test_split", seed=0, train=404),
    )
    assert freeze(protocol("rossi2021", test_rows={"airline": 7}, count=99), BOSTON) == made
    assert freeze(protocol("rossi2021", test_rows={"boston": 102}), BOSTON) == made
    assert freeze(protocol("rossi2021", test_rows={"boston": 7}), BOSTON) != made
    assert freeze(protocol("urbainczyk2025"), BOSTON).splits == KFold(0, 10, stratified=False)


@pytest.mark.parametrize(("outputs", "columns"), [("first", (0,)), ("last", (1,)), ("all", (0, 1))])
def test_outputs_are_columns_of_the_targets(outputs, columns):
    plain = dataclasses.replace(protocol("common"), outputs=outputs)
    assert freeze(plain, ENERGY).outputs == columns
    assert freeze(plain, BOSTON).outputs == (0,)
    assert freeze(plain, COAL).outputs == ()


REFUSED = {
    "stratified without folds": ("common", WINE, {"stratified": True}, "'stratified' goes with scheme k_fold, not per"),
    "stratified regression": ("urbainczyk2025", BOSTON, {"stratified": True}, "needs classes and the task is regress"),
    "folds and test rows": ("urbainczyk2025", BOSTON, {"test_rows": {"boston": 9}}, "the folds of k_fold are its test"),
    "folds and sqrt": ("urbainczyk2025", BOSTON, {"sqrt_test": True}, "remove 'sqrt_test' and 'test_rows'"),
    "one fold": ("urbainczyk2025", BOSTON, {"count": 1}, "506 rows cannot be cut into 1 folds"),
    "too many folds": ("urbainczyk2025", BOSTON, {"count": 507}, "506 rows cannot be cut into 507 folds"),
    "all rows test": ("common", BOSTON, {"test_rows": {"boston": 506}}, "506 rows cannot be cut into 0 training rows"),
    "more rows than there are": ("common", BOSTON, {"test_rows": {"boston": 600}}, "cut into -94 training rows"),
    "no test row": ("common", BOSTON, {"train_fraction": 0.9999}, "506 rows cannot be cut into 506 training rows"),
}


@pytest.mark.parametrize(("name", "dataset", "splits", "said"), REFUSED.values(), ids=REFUSED)
def test_invalid_rules_are_refused(name, dataset, splits, said):
    with pytest.raises(UserError, match=said) as caught:
        freeze(protocol(name, **splits), dataset)
    assert str(caught.value).startswith(f"protocol {name!r} on data set {dataset.name!r}: ")
