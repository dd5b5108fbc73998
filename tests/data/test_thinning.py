"""Thinning: half of the events of every bin are held out, the rows of all splits stand one after the other."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from cases import CONF, Case, group
from gpbench import config
from gpbench.data import protocols
from gpbench.data.splits import Official, Shuffled, Thinning, numbered_rows
from gpbench.data.table import Table
from gpbench.study.fitting.fold import make_fold

NAME = "hensman2015mcmc"
SPLITS = Thinning(0, 10)
PINES, BANANA, MNIST = (config.compose(CONF, "dataset", name) for name in ("pines_counts", "banana", "mnist"))


@pytest.fixture(scope="module")
def counts() -> Table:
    rng = np.random.default_rng(0)
    return Table(np.arange(600.0).reshape(300, 2), rng.poisson(3.0, (300, 1)).astype(float), ["a", "b"], ["count"])


def test_counts_are_thinned_and_other_tasks_split_by_rows():
    protocol = config.compose(CONF, "protocol", NAME)
    frozen = protocols.freeze(protocol, PINES).splits
    assert frozen == SPLITS
    assert frozen.sizes(1024) == (1024, 1024)
    assert protocols.freeze(protocol, BANANA).splits == Shuffled("shuffle", 0, 1000)
    assert protocols.freeze(protocol, MNIST).splits == Official(60_000)
    plain = dataclasses.replace(protocol, splits=dataclasses.replace(protocol.splits, counts="rows"))
    assert protocols.freeze(plain, PINES).splits == Shuffled("shuffle", 0, 512)


def test_every_bin_trains_and_tests_and_no_event_is_lost(counts):
    table, kept = numbered_rows(SPLITS, counts), []
    for split in range(10):
        train, test = SPLITS.rows(len(table.targets), split)
        assert not set(train) & set(test)
        for rows in (train, test):
            assert np.array_equal(table.inputs[rows], counts.inputs)
        assert np.array_equal(table.targets[train] + table.targets[test], counts.targets)
        assert (table.targets[test] >= 0).all()
        kept.append(table.targets[train, 0])
    assert len({tuple(one) for one in kept}) == 10
    # 10 x the events, each kept with probability 1/2
    events = int(10 * counts.targets.sum())
    assert stats.binomtest(int(np.sum(kept)), events).pvalue > 0.01


def test_a_split_does_not_depend_on_those_after_it(counts):
    few, many = (Thinning(3, count) for count in (2, 5))
    assert np.array_equal(numbered_rows(many, counts).targets[:1200], numbered_rows(few, counts).targets)
    other = numbered_rows(Thinning(4, 2), counts)
    assert not np.array_equal(numbered_rows(few, counts).targets, other.targets)


def test_other_schemes_keep_the_table(counts):
    assert numbered_rows(Shuffled("shuffle", 0, 5), counts) is counts


def test_fits_learn_from_one_half_and_are_scored_on_the_other(tmp_path_factory, counts):
    case = Case("constant", "counts", tmp_path_factory, data=counts, protocol=(NAME,))
    what = case.cell.what
    assert (case.cell.rows, case.cell.test_rows) == (300, 300)
    table = numbered_rows(what.protocol.splits, counts)
    for split, outcome in zip((0, 2), case.fit(group(case.cell, 0, 2), table), strict=True):
        fold = make_fold(what, table, split, 0)
        assert outcome.info["train_target_mean"] == [table.targets[fold.train].mean()]
        assert np.array_equal(outcome.points["y"], counts.targets[:, 0] - table.targets[fold.train, 0])
