"""Somebody else's predictions of our test rows: checked against the splits, scored as our fits are, and kept."""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from gpbench import config
from gpbench.config.compose import OWN_NAME, OWN_NAMES
from gpbench.config.schema import Dataset, Protocol
from gpbench.data import prepare, protocols, splits
from gpbench.data import table as tables
from gpbench.data.readers import formats
from gpbench.errors import UserError
from gpbench.evaluation import given
from gpbench.places import Places, write_text
from gpbench.predictive.distributions import Predictive
from gpbench.study import scoring
from gpbench.study.fitting.fold import Fold, make_fold
from gpbench.study.fitting.outcome import points_of
from gpbench.study.planning.resolve import prepared
from gpbench.study.records import What, to_json
from gpbench.study.storage import challengers, seals

KEYS = ("dataset", "split", "row")
QUANTILE, SAMPLE = re.compile(r"q(\d+(?:\.\d+)?)"), re.compile(r"s\d+")


class Rows:
    """The rows of a data set as the splits of a protocol cut it, prepared if they are not yet."""

    def __init__(self, where: Places, protocol: Protocol, name: str) -> None:
        self.dataset: Dataset = config.compose(where.conf, "dataset", name)
        prepare.ensure(self.dataset, where)
        frozen = protocols.freeze(protocol, self.dataset)
        self.count = protocols.num_splits(protocol, self.dataset)
        table = tables.load(where.prepared_file(name), self.dataset.md5)
        self.table = splits.numbered_rows(frozen.splits, table)
        self.data = prepared(self.dataset)
        self.protocol = frozen

    def fold(self, split: int) -> Fold:
        """One split; UserError for a number that the protocol does not have."""
        if not 0 <= split < self.count:
            raise UserError(f"{self.dataset.name} has splits 0 to {self.count - 1}, not {split}")
        return make_fold(cast(What, self), self.table, split, 0)  # a fold needs of `what` the data and the protocol

    def listed(self, split: int) -> pd.DataFrame:
        """Columns dataset, split, part (train, test), row, inputs and targets, in the order of the split."""
        fold = self.fold(split)
        rows = np.concatenate([fold.train, fold.test])
        parts = ["train"] * len(fold.train) + ["test"] * len(fold.test)
        keys = pd.DataFrame({"dataset": self.dataset.name, "split": split, "part": parts, "row": rows})
        shown = [f"{name}_input" if name in keys else name for name in self.table.input_names]
        inputs = pd.DataFrame(self.table.inputs[rows], columns=shown)
        names = [f"{n}_target" if (n := self.table.target_names[i]) in keys else n for i in self.protocol.outputs]
        numbers, classes = fold.targets[rows], self.dataset.classes
        targets = np.array(classes)[numbers.astype(int)] if classes else numbers
        return pd.concat([keys, inputs, pd.DataFrame(targets, columns=names)], axis=1)


def challenge(where: Places, path: Path, name: str, label: str, protocol_name: str) -> dict[tuple[str, int], dict]:
    """Check, score and keep the predictions in a CSV: (data set, split) -> scores.

    Columns dataset, split, row (its number in the data set), and mean and sd; or quantiles q05, q50, ... (in percent);
    or samples s0, s1, ...; or the probability p_CLASS of each class; optionally y, which is compared with our target
    (a class by its label or number). Raises UserError, with nothing written, where rows are not exactly the test rows
    of their split, for numbers that are no distribution, and for a name that is a method's or was added before."""
    protocol: Protocol = config.compose(where.conf, "protocol", protocol_name)
    if not OWN_NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a name of a challenger ({OWN_NAMES}); choose a --name")
    if name in config.options(where.conf, "method") or (where.per_split / f"{name}.yaml").is_file():
        raise UserError(f"{name!r} is the name of a method; choose another --name")
    if "$" in label or not (label.isprintable() and label.strip()):
        refusal = "must be one line of printed characters without a $, which figures take for mathematics"
        raise UserError(f"label {label!r} {refusal}; choose another --label")
    if (target := where.challengers / name).exists():
        raise UserError(f"{name!r} was added before; choose another --name, or delete {target}")
    with np.errstate(all="ignore"):  # of what is too large, an error tells
        outcomes = dict(_scored(where, _read(path), path, protocol))
    where.challengers.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=where.challengers) as folder:
        aside = Path(folder) / name
        for (dataset, split), scored in outcomes.items():
            write_text((one := aside / dataset / str(split)) / challengers.FACTS, json.dumps(scored.facts))
            scored.points.to_parquet(one / challengers.POINTS, index=False)
        of = {dataset: scored.of for (dataset, _), scored in outcomes.items()}
        about = challengers.About(label, protocol_name, seals.of_file(path), of)
        write_text(aside / challengers.ABOUT, to_json(about))
        try:
            aside.rename(target)
        except OSError as error:
            raise UserError(f"{target} cannot be made ({error.strerror}); did another process add {name!r}?") from error
    return {place: scored.scores for place, scored in outcomes.items()}


def _read(path: Path) -> pd.DataFrame:
    frame = formats.frame(path, "dataset", "y")
    if absent := [key for key in KEYS if key not in frame]:
        raise UserError(f"{path}: columns {absent} are missing; predictions need {', '.join(KEYS)} and, say, mean, sd")
    if frame.empty:
        raise UserError(f"{path} has no rows below its header")
    if len(empty := np.flatnonzero(frame["dataset"].isna())):
        raise UserError(f"{path}, line {empty[0] + 2}: the cell of column 'dataset' is empty")
    for key in ("split", "row"):
        numbers = pd.to_numeric(frame[key], errors="coerce")
        if len(bad := np.flatnonzero((numbers % 1 != 0) | (numbers.abs() > 2**53))):  # NaN and what overflows, too
            raise UserError(f"{path}, line {bad[0] + 2}: column {key!r} must hold whole numbers")
        frame[key] = numbers.astype(int)
    return frame


class Scored(NamedTuple):
    """Predictions of one split: what is kept of them, and of what they are."""

    points: pd.DataFrame
    facts: Mapping[str, object]
    scores: dict[str, float]
    of: str


def _scored(
    where: Places, frame: pd.DataFrame, path: Path, protocol: Protocol
) -> Iterator[tuple[tuple[str, int], Scored]]:
    """(data set, split) and what is kept of it, of each split in a file."""
    for name, of_dataset in frame.groupby("dataset", sort=False):
        config.require_option(where.conf, "dataset", str(name), str(path))
        rows = Rows(where, protocol, str(name))
        of = challengers.what_is_predicted(rows.dataset.md5, rows.protocol)
        for split, part in of_dataset.groupby("split"):
            fold, place = rows.fold(int(split)), f"{path}, {name} split {split}"
            ordered = _in_order(part, fold, place, rows.dataset.classes)
            predictive = _predictive(ordered, fold, rows.dataset, place)
            task = rows.dataset.task
            points = points_of(predictive, fold, task)
            trained = fold.targets[fold.train]
            facts = {"task": task, "num_classes": len(rows.dataset.classes)}
            facts |= {"train_target_mean": trained.mean(0).tolist(), "train_target_sd": trained.std(0).tolist()}
            try:
                scores = scoring.of_points_alone(points, facts)
            except ValueError as error:
                row = points["row"].iloc[int(points["log_density"].to_numpy().argmin())]
                least = "a probability or density of 0, or a number that is too large, cannot be scored"
                raise UserError(f"{place}: {error}; {least} (row {row})") from None
            yield (str(name), int(split)), Scored(points, facts, scores, of)


def _in_order(part: pd.DataFrame, fold: Fold, place: str, classes: Sequence[str] = ()) -> pd.DataFrame:
    """The predictions in the order of the fold's test rows; UserError where they are of other rows."""
    given_rows, wanted = part["row"], set(fold.test.tolist())
    if repeated := sorted(given_rows[given_rows.duplicated()].tolist()):
        raise UserError(f"{place}: row {repeated[0]} is predicted more than once")
    if foreign := sorted(set(given_rows) - wanted):
        raise UserError(f"{place}: row {foreign[0]} is not a test row of this split ({len(foreign)} such rows)")
    if absent := sorted(wanted - set(given_rows)):
        raise UserError(f"{place}: {len(absent)} of {len(wanted)} test rows are missing, the first is row {absent[0]}")
    ordered = part.set_index("row").loc[fold.test]
    if "y" in ordered:
        theirs, ours = pd.to_numeric(ordered["y"], errors="coerce"), fold.targets[fold.test][:, 0]
        # rounding is small beside the spread of the targets, which may be small beside the targets
        spread = np.ptp(np.quantile(fold.targets[:, 0], [0.25, 0.75])) or fold.targets[:, 0].std()
        close = np.isclose(theirs, ours, rtol=1e-12 if spread else 1e-6, atol=1e-3 * spread)
        labels = np.array(classes)[ours.astype(int)] if classes else ours
        named = (ordered["y"] == labels) | (theirs == pd.to_numeric(labels, errors="coerce"))
        close, ours = max((named.to_numpy(), labels), (close, ours), key=lambda way: way[0].sum())  # labels, numbers
        if len(bad := np.flatnonzero(~close)):
            row, y = fold.test[bad[0]], ordered["y"].iloc[bad[0]]
            raise UserError(f"{place}: y of row {row} is {y}, ours is {ours[bad[0]]}; are the rows ours?")
    return ordered


def _predictive(part: pd.DataFrame, fold: Fold, dataset: Dataset, place: str) -> Predictive:
    """The distribution of each row, in the fold's scaled units; UserError where the numbers are none."""
    if fold.targets.shape[1] != 1 or dataset.task == "counts":
        raise UserError(f"{place}: one target of a regression or of classes can be scored; choose another --protocol")
    columns, given_as = _kind(part, dataset, place)
    scale, shift = 1 / fold.scaling.y_scale, -fold.scaling.y_shift / fold.scaling.y_scale

    def make(values: np.ndarray) -> Any:
        return given_as(values) if dataset.classes else given_as(values).affine(scale, shift)

    if len(truths := part[columns].select_dtypes(bool).columns):
        raise UserError(f"{place}: column {truths[0]!r} holds True and False, which are not numbers")
    values = part[columns].apply(pd.to_numeric, errors="coerce").to_numpy(float)
    if len(bad := np.argwhere(~np.isfinite(values))):
        raise UserError(f"{place}: {columns[bad[0][1]]} of row {fold.test[bad[0][0]]} is not a finite number")
    try:
        predictive = make(values)
    except ValueError as error:
        # what not even no rows make is wrong with the columns
        each = zip(fold.test, values[:, None], strict=True) if _is_distribution(make, values[:0]) else ()
        which = next((f", row {row}" for row, one in each if not _is_distribution(make, one)), "")
        raise UserError(f"{place}{which}: {error}") from None
    if not (dataset.classes or np.isfinite([predictive.mean(), predictive.variance()]).all()):
        raise UserError(f"{place}: a mean or sd is too large to be scored")
    return cast(Predictive, predictive)


def _is_distribution(make: Any, values: np.ndarray) -> bool:
    """Whether some rows of numbers alone make distributions."""
    try:
        make(values)
    except ValueError:
        return False
    return True


def _kind(part: pd.DataFrame, dataset: Dataset, place: str) -> tuple[list[str], Any]:
    """The columns of a prediction, and what makes a distribution of their values `[N, columns]`."""
    if dataset.classes:
        names = [f"p_{name}" for name in dataset.classes]
        if absent := [name for name in names if name not in part]:
            raise UserError(f"{place}: columns {absent} are missing; classes need {', '.join(names)}")
        return names, given.classes
    levels = {name: float(match[1]) / 100 for name in part if (match := QUANTILE.fullmatch(name))}
    drawn = [name for name in part if SAMPLE.fullmatch(name)]
    kinds = {"mean and sd": {"mean", "sd"} <= set(part), "quantiles": bool(levels), "samples": bool(drawn)}
    if sum(kinds.values()) != 1:
        shown = " and ".join(kind for kind, present in kinds.items() if present) or "none of them"
        raise UserError(f"{place}: give mean and sd, or quantiles q05, q50, ..., or samples s0, s1, ...; found {shown}")
    if kinds["quantiles"]:
        names = sorted(levels, key=lambda name: levels[name])
        if levels[names[-1]] <= 0.01:
            raise UserError(f"{place}: quantiles are in percent (q05, q50, ...); found {', '.join(names)}")
        return names, lambda values: given.Quantiles([levels[name] for name in names], values.T)
    if kinds["samples"]:
        return drawn, given.samples
    return ["mean", "sd"], lambda values: given.gaussian(values[:, 0], values[:, 1])
