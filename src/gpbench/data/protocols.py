"""Protocols: from the rules in conf/protocol to the facts of one data set (`gpbench.data.splits`).

Splits come first: under `common` every statistic is one of training rows. How columns are scaled: `scaling`.
"""

import math

from gpbench.config.schema import Dataset, Protocol, SplitRules
from gpbench.data.splits import Balanced, Blocks, FrozenProtocol, KFold, Official, Shuffled, Splits, Thinning
from gpbench.errors import UserError

LEFT = 10  # rows of the rarest class that `balanced` leaves to test


def freeze(protocol: Protocol, dataset: Dataset) -> FrozenProtocol:
    """What of a protocol decides a fit on one data set: nothing of other data sets, nothing that is only printed.

    Raises UserError where the rules make no sense, or not on this data set."""
    columns = tuple(range(len(dataset.source.targets)))
    truth = tuple(range(len(columns) + len(dataset.truth)))
    outputs = {"first": columns[:1], "last": columns[-1:], "all": columns, "truth": truth}[protocol.outputs]
    splits = _freeze_splits(protocol, dataset)
    return FrozenProtocol(protocol.name, protocol.inputs, protocol.targets, tuple(protocol.leaks), outputs, splits)


def _freeze_splits(protocol: Protocol, dataset: Dataset) -> Splits:
    rules, n = protocol.splits, dataset.rows
    where = f"protocol {protocol.name!r} on data set {dataset.name!r}"
    if rules.stratified and rules.scheme != "k_fold":
        raise UserError(f"{where}: 'stratified' goes with scheme k_fold, not {rules.scheme}; remove one of them")
    if official(protocol, dataset):
        assert dataset.train_rows is not None
        return Official(dataset.train_rows)
    if rules.counts == "thinning" and dataset.task == "counts":
        if dataset.truth:
            raise UserError(f"{where}: halves of simulated counts are drawn from other parameters; set counts to rows")
        return Thinning(rules.seed, rules.count)
    if rules.scheme == "k_fold":
        if rules.sqrt_test or dataset.name in rules.test_rows:
            raise UserError(f"{where}: the folds of k_fold are its test rows; remove 'sqrt_test' and 'test_rows'")
        if rules.stratified and not dataset.classes:
            raise UserError(f"{where}: 'stratified' needs classes and the task is {dataset.task}; remove it")
        if not 2 <= rules.count <= n:
            raise UserError(f"{where}: {n} rows cannot be cut into {rules.count} folds; change 'count'")
        return KFold(rules.seed, rules.count, rules.stratified)
    if rules.scheme == "blocks":
        if n % rules.count:
            raise UserError(f"{where}: {n} rows cannot be cut into {rules.count} equal blocks; change 'count'")
        return Blocks(n // rules.count)
    if rules.scheme == "balanced":
        return Balanced(rules.seed, _balanced_sizes(rules, dataset, where))
    train = _train_rows(rules, dataset)
    if not 0 < train < n:
        raise UserError(f"{where}: {n} rows cannot be cut into {train} training rows and the rest to test")
    return Shuffled(rules.scheme, rules.seed, train)


def _balanced_sizes(rules: SplitRules, dataset: Dataset, where: str) -> tuple[int, ...]:
    """Training rows, equally many of each class, of which at least `LEFT` rows are left to test."""
    if not rules.sizes or not dataset.expect.class_counts:
        raise UserError(f"{where}: balanced needs 'sizes' here and 'class_counts' in the 'expect' of the data set")
    classes, most = len(dataset.classes), min(dataset.expect.class_counts) - LEFT
    each = dict.fromkeys(min(size // classes, most) for size in rules.sizes)
    if min(each) < 1:
        raise UserError(f"{where}: sizes {rules.sizes} and {most + LEFT} rows of the rarest class leave one untrained")
    return tuple(classes * size for size in each)


def official(protocol: Protocol, dataset: Dataset) -> bool:
    """Whether the data set has an official split and the protocol takes it."""
    return protocol.splits.official and dataset.train_rows is not None


def _train_rows(rules: SplitRules, dataset: Dataset) -> int:
    """Number of training rows; a fraction is rounded as in the program that the scheme comes from."""
    n = dataset.rows
    if dataset.name in rules.test_rows:
        return n - rules.test_rows[dataset.name]
    if rules.sqrt_test:
        return n - round(math.sqrt(n))
    if rules.scheme == "train_test_split":
        return n - math.ceil(round(1 - rules.train_fraction, 12) * n)
    return round(rules.train_fraction * n) if rules.scheme == "permutation" else int(rules.train_fraction * n)


def num_splits(protocol: Protocol, dataset: Dataset) -> int:
    """How many splits a data set has: `count` (of every size), or 1 where there is an official one."""
    if official(protocol, dataset):
        return 1
    splits = _freeze_splits(protocol, dataset)
    return protocol.splits.count * (len(splits.train_sizes) if isinstance(splits, Balanced) else 1)
