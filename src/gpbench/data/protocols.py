"""Protocols: splits and outputs, apart from any method (how columns are scaled: see `scaling`).

A file in conf/protocol says rules (`Protocol`); a planned fit holds facts (`freeze`: how many rows train, which
targets are predicted), and everything else here works on those. Splits come first: under `common` every statistic is
one of training rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpbench.errors import UserError

if TYPE_CHECKING:
    from gpbench.config.schema import Dataset, Protocol, Splits
    from gpbench.data.table import Table


LEFT = 10
"""rows of the rarest class that `balanced` leaves to test"""


def freeze(protocol: Protocol, dataset: Dataset) -> dict[str, Any]:
    """What of a protocol decides a fit on one data set, as plain data: nothing of other data sets, nothing printed.

    outputs: columns of the targets. splits: {scheme: official, train}, {scheme: k_fold, seed, count, stratified},
    {scheme: thinning, seed, count}, {scheme: blocks, train}, {scheme: balanced, seed, sizes} or {scheme, seed, train},
    where train (sizes: of one split after the other) is the number of training rows.
    Raises UserError where the rules make no sense, or not on this data set."""
    columns = list(range(len(dataset.source.targets)))
    truth = list(range(len(columns) + len(dataset.truth)))
    outputs = {"first": columns[:1], "last": columns[-1:], "all": columns, "truth": truth}[protocol.outputs]
    kept = {name: getattr(protocol, name) for name in ("name", "inputs", "targets", "leaks")}
    return kept | {"outputs": outputs, "splits": _freeze_splits(protocol, dataset)}


def _freeze_splits(protocol: Protocol, dataset: Dataset) -> dict[str, Any]:
    rules, n = protocol.splits, dataset.rows
    where = f"protocol {protocol.name!r} on data set {dataset.name!r}"
    if rules.stratified and rules.scheme != "k_fold":
        raise UserError(f"{where}: 'stratified' goes with scheme k_fold, not {rules.scheme}; remove one of them")
    if official(protocol, dataset):
        return {"scheme": "official", "train": dataset.train_rows}
    if rules.counts == "thinning" and dataset.task == "counts":
        if dataset.truth:
            raise UserError(f"{where}: halves of simulated counts are drawn from other parameters; set counts to rows")
        return {"scheme": "thinning", "seed": rules.seed, "count": rules.count}
    if rules.scheme == "k_fold":
        if rules.sqrt_test or dataset.name in rules.test_rows:
            raise UserError(f"{where}: the folds of k_fold are its test rows; remove 'sqrt_test' and 'test_rows'")
        if rules.stratified and not dataset.classes:
            raise UserError(f"{where}: 'stratified' needs classes and the task is {dataset.task}; remove it")
        if not 2 <= rules.count <= n:
            raise UserError(f"{where}: {n} rows cannot be cut into {rules.count} folds; change 'count'")
        return {"scheme": "k_fold", "seed": rules.seed, "count": rules.count, "stratified": rules.stratified}
    if rules.scheme == "blocks":
        if n % rules.count:
            raise UserError(f"{where}: {n} rows cannot be cut into {rules.count} equal blocks; change 'count'")
        return {"scheme": "blocks", "train": n // rules.count}
    if rules.scheme == "balanced":
        return {"scheme": "balanced", "seed": rules.seed, "sizes": _balanced_sizes(rules, dataset, where)}
    train = _train_rows(rules, dataset)
    if not 0 < train < n:
        raise UserError(f"{where}: {n} rows cannot be cut into {train} that train and the rest to test")
    return {"scheme": rules.scheme, "seed": rules.seed, "train": train}


def _balanced_sizes(rules: Splits, dataset: Dataset, where: str) -> list[int]:
    """Training rows, equally many of each class, of which at least `LEFT` rows are left to test."""
    if not rules.sizes or not dataset.expect.class_counts:
        raise UserError(f"{where}: balanced needs 'sizes' here and 'class_counts' in the 'expect' of the data set")
    classes, most = len(dataset.classes), min(dataset.expect.class_counts) - LEFT
    each = dict.fromkeys(min(size // classes, most) for size in rules.sizes)
    if min(each) < 1:
        raise UserError(f"{where}: sizes {rules.sizes} and {most + LEFT} rows of the rarest class leave one untrained")
    return [classes * size for size in each]


def official(protocol: Protocol, dataset: Dataset) -> bool:
    """Whether the data set has an official split and the protocol takes it."""
    return protocol.splits.official and dataset.train_rows is not None


def _train_rows(rules: Splits, dataset: Dataset) -> int:
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
    return protocol.splits.count * len(_freeze_splits(protocol, dataset).get("sizes", [0]))


def sizes(splits: dict[str, Any], n: int, split: int = 0) -> tuple[int, int]:
    """Number of (train, test) rows of one frozen split of n rows."""
    if splits["scheme"] == "thinning":
        return n, n
    if splits["scheme"] == "blocks":
        return splits["train"], splits["train"]
    if splits["scheme"] == "balanced":
        train = splits["sizes"][split % len(splits["sizes"])]
        return train, n - train
    if splits["scheme"] == "k_fold":
        test = n // splits["count"] + (split < n % splits["count"])
        return n - test, test
    return splits["train"], n - splits["train"]


def rows(splits: dict[str, Any], table: Table) -> Table:
    """The rows that `split_rows` numbers: those of the table, but under `thinning`, where every bin trains and tests.

    thinning: for each split in turn all rows with the counts that train, ~ Binomial(count, 1/2) by RandomState(seed),
    and again with the rest of the counts; so rows 2 n split, ..., 2 n (split + 1) - 1 are those of a split."""
    if splits["scheme"] != "thinning":
        return table
    counts, state = table.targets, np.random.RandomState(splits["seed"])
    kept = (state.binomial(counts.astype(int), 0.5).astype(float) for _ in range(splits["count"]))
    targets = np.concatenate([part for train in kept for part in (train, counts - train)])
    return replace(table, inputs=np.tile(table.inputs, (2 * splits["count"], 1)), targets=targets)


def split_rows(
    splits: dict[str, Any], n: int, split: int, labels: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (train, test) of one frozen split of n rows; labels `[n]` are the classes, for stratified folds.

    The n rows are those of `rows`.

    official: the first rows train.
    permutation: RandomState(seed), then one `choice(n, n, replace=False)` a split, in order; the first
    round(train_fraction n) rows train (hernandezlobato2015, whose index files these reproduce).
    shuffle: RandomState(seed + split) shuffles; the first int(train_fraction n) rows train (ashman2020).
    train_test_split: scikit-learn's with random_state = seed + split; the first rows of its permutation test.
    k_fold: scikit-learn's `KFold(count, shuffle=True, random_state=seed)`, rows in ascending order; stratified: the
    rows, shuffled and then sorted by class, are dealt to the folds in turn.
    thinning: see `rows`.
    blocks: the rows of one block after the other train and test.
    balanced: the sizes s take turns, split = repetition x number of sizes + place of s; RandomState(seed + repetition)
    shuffles, the first s / C rows of each of C classes train, the others test; so training parts grow with s."""
    if splits["scheme"] == "blocks":
        block = splits["train"] * split + np.arange(splits["train"])
        return block, block
    if splits["scheme"] == "balanced":
        return _balanced(splits, n, split, labels)
    if splits["scheme"] == "thinning":
        bins = n // (2 * splits["count"])
        train = 2 * bins * split + np.arange(bins)
        return train, train + bins
    if splits["scheme"] == "k_fold":
        fold = _folds(splits, n, labels)
        return np.flatnonzero(fold != split), np.flatnonzero(fold == split)
    order, train = _order(splits, n, split), splits["train"]
    if splits["scheme"] == "train_test_split":
        return order[n - train :], order[: n - train]
    return order[:train], order[train:]


def _order(splits: dict[str, Any], n: int, split: int) -> np.ndarray:
    """The rows of a split in its order `[n]`."""
    if splits["scheme"] == "official":
        return np.arange(n)
    if splits["scheme"] != "permutation":
        return np.random.RandomState(splits["seed"] + split).permutation(n)
    state = np.random.RandomState(splits["seed"])
    for _ in range(split + 1):
        order = state.choice(n, n, replace=False)
    return order


def _folds(splits: dict[str, Any], n: int, labels: np.ndarray | None) -> np.ndarray:
    """The fold in which each row is tested `[n]`."""
    order, count = np.random.RandomState(splits["seed"]).permutation(n), splits["count"]
    fold = np.empty(n, dtype=int)
    if splits["stratified"]:
        fold[order[np.argsort(labels[order], kind="stable")]] = np.arange(n) % count
    else:
        fold[order] = np.repeat(np.arange(count), [n // count + (i < n % count) for i in range(count)])
    return fold


def _balanced(splits: dict[str, Any], n: int, split: int, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (train, test) with equally many training rows of each class, in the order of a shuffle."""
    repetition, turn = divmod(split, len(splits["sizes"]))
    order = np.random.RandomState(splits["seed"] + repetition).permutation(n)
    classes = np.unique(labels)
    each = splits["sizes"][turn] // len(classes)
    trains = np.zeros(n, dtype=bool)
    for label in classes:
        trains[np.flatnonzero(labels[order] == label)[:each]] = True
    return order[trains], order[~trains]


def check_classes(targets: np.ndarray, train: np.ndarray, classes: int, where: str) -> None:
    """A training part that lacks a class cannot be learned from."""
    present = np.unique(targets[train, 0])
    if len(present) < classes:
        missing = sorted(set(range(classes)) - set(present.astype(int)))
        raise UserError(f"{where}: no training row of class {missing}; use another split or more rows")
