"""Frozen protocols: which rows of one data set train and test, as plain facts. NumPy only.

A protocol's rules (`gpbench.data.protocols`) become one of these schemes for one data set. A scheme of n rows answers
`sizes(n, split)`, the numbers of training and test rows, and `rows(n, split, labels)`, their row numbers; labels `[n]`
are the classes, which stratified and balanced schemes need. The n rows of `sizes` are those of the data
set, those of `rows` are `numbered_rows`: under `thinning` there are more of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpbench.errors import UserError

if TYPE_CHECKING:
    from gpbench.data.table import Table

Rows = tuple[np.ndarray, np.ndarray]  # row numbers (train, test)


@dataclass(frozen=True)
class Official:
    """The first `train` rows train, the others test."""

    train: int
    scheme: Literal["official"] = "official"

    def sizes(self, n: int, split: int = 0) -> tuple[int, int]:
        return self.train, n - self.train

    def rows(self, n: int, split: int, labels: np.ndarray | None = None) -> Rows:
        order = np.arange(n)
        return order[: self.train], order[self.train :]


@dataclass(frozen=True)
class Shuffled:
    """The first `train` rows of a random order train.

    permutation: RandomState(seed), then one `choice(n, n, replace=False)` a split, in turn (hernandezlobato2015, whose
    index files these reproduce). shuffle: RandomState(seed + split) shuffles (ashman2020). train_test_split:
    scikit-learn's with random_state = seed + split; here the first rows of the order test."""

    scheme: Literal["permutation", "shuffle", "train_test_split"]
    seed: int
    train: int

    def sizes(self, n: int, split: int = 0) -> tuple[int, int]:
        return self.train, n - self.train

    def rows(self, n: int, split: int, labels: np.ndarray | None = None) -> Rows:
        order = self._order(n, split)
        if self.scheme == "train_test_split":
            return order[n - self.train :], order[: n - self.train]
        return order[: self.train], order[self.train :]

    def _order(self, n: int, split: int) -> np.ndarray:
        if self.scheme != "permutation":
            return np.random.RandomState(self.seed + split).permutation(n)
        state = np.random.RandomState(self.seed)
        for _ in range(split + 1):
            order = state.choice(n, n, replace=False)
        return order


@dataclass(frozen=True)
class KFold:
    """scikit-learn's `KFold(count, shuffle=True, random_state=seed)`, rows in ascending order.

    stratified: the rows, shuffled and then sorted by class, are dealt to the folds in turn."""

    seed: int
    count: int
    stratified: bool
    scheme: Literal["k_fold"] = "k_fold"

    def sizes(self, n: int, split: int = 0) -> tuple[int, int]:
        test = n // self.count + (split < n % self.count)
        return n - test, test

    def rows(self, n: int, split: int, labels: np.ndarray | None = None) -> Rows:
        fold = self._folds(n, labels)
        return np.flatnonzero(fold != split), np.flatnonzero(fold == split)

    def _folds(self, n: int, labels: np.ndarray | None) -> np.ndarray:
        """The fold in which each row is tested `[n]`."""
        order = np.random.RandomState(self.seed).permutation(n)
        fold = np.empty(n, dtype=int)
        if self.stratified:
            assert labels is not None, "stratified folds need the classes of the rows"
            fold[order[np.argsort(labels[order], kind="stable")]] = np.arange(n) % self.count
        else:
            sizes = [n // self.count + (i < n % self.count) for i in range(self.count)]
            fold[order] = np.repeat(np.arange(self.count), sizes)
        return fold


@dataclass(frozen=True)
class Thinning:
    """Every bin of counts trains and tests: half of its events train, at random, and the other half tests."""

    seed: int
    count: int
    scheme: Literal["thinning"] = "thinning"

    def sizes(self, n: int, split: int = 0) -> tuple[int, int]:
        return n, n

    def rows(self, n: int, split: int, labels: np.ndarray | None = None) -> Rows:
        bins = n // (2 * self.count)
        train = 2 * bins * split + np.arange(bins)
        return train, train + bins


@dataclass(frozen=True)
class Blocks:
    """The `train` rows of one block after the other train and test."""

    train: int
    scheme: Literal["blocks"] = "blocks"

    def sizes(self, n: int, split: int = 0) -> tuple[int, int]:
        return self.train, self.train

    def rows(self, n: int, split: int, labels: np.ndarray | None = None) -> Rows:
        block = self.train * split + np.arange(self.train)
        return block, block


@dataclass(frozen=True)
class Balanced:
    """Equally many training rows of each class; training sizes take turns, so that training parts grow with them.

    split = repetition x number of sizes + place of the size s; RandomState(seed + repetition) shuffles, the first s / C
    rows of each of C classes train, the others test."""

    seed: int
    train_sizes: tuple[int, ...]
    scheme: Literal["balanced"] = "balanced"

    def sizes(self, n: int, split: int = 0) -> tuple[int, int]:
        train = self.train_sizes[split % len(self.train_sizes)]
        return train, n - train

    def rows(self, n: int, split: int, labels: np.ndarray | None = None) -> Rows:
        assert labels is not None, "balanced splits need the classes of the rows"
        repetition, turn = divmod(split, len(self.train_sizes))
        order = np.random.RandomState(self.seed + repetition).permutation(n)
        classes = np.unique(labels)
        each = self.train_sizes[turn] // len(classes)
        trains = np.zeros(n, dtype=bool)
        for label in classes:
            trains[np.flatnonzero(labels[order] == label)[:each]] = True
        return order[trains], order[~trains]


Splits = Official | Shuffled | KFold | Thinning | Blocks | Balanced


@dataclass(frozen=True)
class FrozenProtocol:
    """What of a protocol decides a fit on one data set; outputs: columns of the targets that are predicted."""

    name: str
    inputs: str
    targets: str
    leaks: tuple[str, ...]
    outputs: tuple[int, ...]
    splits: Splits


def numbered_rows(splits: Splits, table: Table) -> Table:
    """The rows that a scheme numbers: those of the table, but under `thinning`, where every bin trains and tests.

    thinning: for each split in turn all rows with the counts that train, ~ Binomial(count, 1/2) by RandomState(seed),
    and again with the rest of the counts; so rows 2 n split, ..., 2 n (split + 1) - 1 are those of a split."""
    if not isinstance(splits, Thinning):
        return table
    counts, state = table.targets, np.random.RandomState(splits.seed)
    trained = (state.binomial(counts.astype(int), 0.5).astype(float) for _ in range(splits.count))
    targets = np.concatenate([part for train in trained for part in (train, counts - train)])
    return replace(table, inputs=np.tile(table.inputs, (2 * splits.count, 1)), targets=targets)


def check_classes(targets: np.ndarray, train: np.ndarray, classes: int, where: str) -> None:
    """Raise UserError where the training rows lack a class, which cannot be learned then."""
    present = np.unique(targets[train, 0])
    if len(present) < classes:
        missing = sorted(set(range(classes)) - set(present.astype(int)))
        raise UserError(f"{where}: no training row of class {missing}; use another split or more rows")
