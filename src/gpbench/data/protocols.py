"""Protocols: splits, scaling and outputs, apart from any method.

A file in conf/protocol says rules (`Protocol`); a planned fit holds facts (`freeze`: how many rows train, which
targets are predicted), and everything else here works on those. Splits come first: under `common` every statistic is
one of training rows.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpbench.errors import UserError
from gpbench.hyper import Fraction, NonNegativeInt, PositiveInt, dataclass

if TYPE_CHECKING:
    from gpbench.data.table import Table
    from gpbench.schema import Dataset


@dataclass(frozen=True)
class Splits:
    """How rows are split; the schemes are explained in `split_rows`."""

    scheme: Literal["permutation", "shuffle", "train_test_split", "k_fold"] = "permutation"
    seed: NonNegativeInt = 1
    count: PositiveInt = 20
    train_fraction: Fraction = 0.9
    test_rows: dict[str, PositiveInt] = field(default_factory=dict)
    """data set -> number of test rows, where it is no fraction"""
    sqrt_test: bool = False
    """round(sqrt(n)) test rows"""
    stratified: bool = False
    """`k_fold` deals each class over the folds"""
    official: bool = True
    """a data set with an official split has that one alone"""
    counts: Literal["rows", "thinning"] = "rows"
    """`thinning`: of data sets of counts no rows are held out but half of the events, at random; `train_fraction` and
    `test_rows` are for the others"""


@dataclass(frozen=True)
class Protocol:
    """conf/protocol/*.yaml: splits, scaling, outputs and leaks, and what a paper prints of the scores."""

    name: str
    title: str
    splits: Splits
    metrics: list[str]
    """that are reported"""
    spread: Literal["population sd", "sample sd", "standard error", "two sd"]
    """that is printed beside a mean over splits"""
    inputs: Literal["standardise"] = "standardise"
    targets: Literal["standardise"] = "standardise"
    outputs: Literal["first", "last", "all"] = "first"
    """targets that are predicted, where a data set has several"""
    leaks: list[Literal["test_x"]] = field(default_factory=list)


def freeze(protocol: Protocol, dataset: Dataset) -> dict[str, Any]:
    """What of a protocol decides a fit on one data set, as plain data: nothing of other data sets, nothing printed.

    outputs: columns of the targets. splits: {scheme: official, train}, {scheme: k_fold, seed, count, stratified},
    {scheme: thinning, seed, count} or {scheme, seed, train}, where train is the number of training rows.
    Raises UserError where the rules make no sense, or not on this data set."""
    columns = list(range(len(dataset.source.targets)))
    outputs = {"first": columns[:1], "last": columns[-1:], "all": columns}[protocol.outputs]
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
        return {"scheme": "thinning", "seed": rules.seed, "count": rules.count}
    if rules.scheme == "k_fold":
        if rules.sqrt_test or dataset.name in rules.test_rows:
            raise UserError(f"{where}: the folds of k_fold are its test rows; remove 'sqrt_test' and 'test_rows'")
        if rules.stratified and not dataset.classes:
            raise UserError(f"{where}: 'stratified' needs classes and the task is {dataset.task}; remove it")
        if not 2 <= rules.count <= n:
            raise UserError(f"{where}: {n} rows cannot be cut into {rules.count} folds; change 'count'")
        return {"scheme": "k_fold", "seed": rules.seed, "count": rules.count, "stratified": rules.stratified}
    train = _train_rows(rules, dataset)
    if not 0 < train < n:
        raise UserError(f"{where}: {n} rows cannot be cut into {train} that train and the rest to test")
    return {"scheme": rules.scheme, "seed": rules.seed, "train": train}


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
    """How many splits a data set has: `count`, or 1 where there is an official one."""
    return 1 if official(protocol, dataset) else protocol.splits.count


def sizes(splits: dict[str, Any], n: int) -> tuple[int, int]:
    """Number of (train, test) rows of split 0 of n rows; other folds of `k_fold` may test a row less."""
    if splits["scheme"] == "thinning":
        return n, n
    train = splits["train"] if "train" in splits else n - math.ceil(n / splits["count"])
    return train, n - train


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
    thinning: see `rows`."""
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


@dataclass(frozen=True)
class Scaling:
    """Affine scaling of one split: scaled = (raw - shift) / scale, a shift and scale a column."""

    x_shift: np.ndarray
    x_scale: np.ndarray
    y_shift: np.ndarray
    y_scale: np.ndarray

    def inputs(self, raw: np.ndarray) -> np.ndarray:
        return (raw - self.x_shift) / self.x_scale

    def targets(self, raw: np.ndarray) -> np.ndarray:
        return (raw - self.y_shift) / self.y_scale


def scaling(
    leaks: list[str], inputs: np.ndarray, targets: np.ndarray, train: np.ndarray, task: str, images: bool
) -> Scaling:
    """Scaling of one split from its training rows (population standard deviation; constant columns keep scale 1).

    Pixels are divided by the largest training value instead, so that 0..255 becomes 0..1 and a background of 0
    stays 0. Classes are never scaled. Where the protocol lists the leak `test_x`, input
    statistics come from all rows, as in the paper it copies."""
    seen = inputs if "test_x" in leaks else inputs[train]
    if images:
        x_shift, x_scale = np.zeros(inputs.shape[1]), np.full(inputs.shape[1], float(seen.max()) or 1.0)
    else:
        x_shift, x_scale = seen.mean(0), _spread(seen)
    if task == "regression":
        y_shift, y_scale = targets[train].mean(0), _spread(targets[train])
    else:
        y_shift, y_scale = np.zeros(targets.shape[1]), np.ones(targets.shape[1])
    return Scaling(x_shift, x_scale, y_shift, y_scale)


def _spread(rows: np.ndarray) -> np.ndarray:
    """Population standard deviation of every column, 1 for columns that do not vary (up to rounding)."""
    sd = rows.std(0)
    return np.where(sd > 1e-12 * np.abs(rows).max(0), sd, 1.0)


def check_classes(targets: np.ndarray, train: np.ndarray, classes: int, where: str) -> None:
    """A training part that lacks a class cannot be learned from."""
    present = np.unique(targets[train])
    if len(present) < classes:
        missing = sorted(set(range(classes)) - set(present.astype(int)))
        raise UserError(f"{where}: no training row of class {missing}; use another split or more rows")
