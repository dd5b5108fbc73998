"""Use a kept model: read a table of new inputs, answer with mean, sd and quantiles, or class probabilities."""

import csv
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpbench import config
from gpbench.config.schema import Dataset
from gpbench.data import splits
from gpbench.data import table as tables
from gpbench.data.readers.encode import indicated
from gpbench.data.readers.formats import NOT_UTF_8, as_text, separator
from gpbench.errors import UserError, count
from gpbench.places import Places, write_aside
from gpbench.predictive.distributions import Predictive
from gpbench.study.fitting.entries import entry
from gpbench.study.fitting.fold import make_fold
from gpbench.study.fitting.outcome import points_of
from gpbench.study.planning import identity
from gpbench.study.planning.resolve import prepared, require_entry
from gpbench.study.records import FitRecord
from gpbench.study.storage.store import Store

SAME = 1e-4
"""Largest change of a prediction, in its sd, that counts as none: libraries and processors round differently."""
MASKED = "masked cells, which have no values; fill them or leave their rows out"
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}


def answer(where: Places, name: str, source: Path, target: Path | None) -> None:
    """Write the predictive of every row of a CSV, in original units, in the row order of the CSV.

    Columns mean, sd, q05 ... q95, of several targets under their names (heating_load_mean, ...); of classes p_CLASS."""
    if target and target.resolve() == source.resolve():
        raise UserError(f"--out {target} is the table to predict, which it would replace; name another file")
    model = Model(where, name)
    rows = model.predict(read_inputs(source, model.table.input_names, model.dataset.source.categories))
    if target is None:
        rows.to_csv(sys.stdout, index=False)
        return
    with write_aside(target.resolve() if target.is_file() else target) as temporary:  # a link stays
        rows.to_csv(temporary, index=False)
    print(f"{target}: {count(len(rows), 'row')} of {', '.join(rows.columns[:3])}{', ...' * (rows.shape[1] > 3)}")


class Model:
    """A kept fit, by the beginning of its identity or as method/dataset (`find`), and what it answers, with the names
    of that data set: columns, categories and classes. Fits are of arrays, which may have been added by other names."""

    def __init__(self, where: Places, name: str, dataset: str = "") -> None:
        self.store = Store(where.store)
        self.record = self.store.verified(find(self.store, name, where.conf))
        what, fit_id = self.record.what, self.record.fit_id
        if self.record.status != "done":
            raise UserError(f"fit {fit_id} is {self.record.status}: {self.record.reason}; it has no model")
        if what.kind != "predict":
            raise UserError(f"fit {fit_id} is of kind {what.kind}: its draws are kept, but no model that predicts")
        config.require_module(where.conf, self.record.address.method, what.method.module)
        self.dataset = _dataset(where, self.record, dataset or name.partition("/")[2])
        table = tables.load(where.prepared_file(self.dataset.name), self.dataset.md5)
        self.table = splits.numbered_rows(what.protocol.splits, table)
        self.fold = make_fold(what, self.table, self.record.split, self.record.replica)
        self._require_same_code()

    def predict_table(self, table: Any) -> pd.DataFrame:
        """The predictive of every row of a frame with the columns of the data set's table, or of an array `[T, D]` of
        its prepared inputs. UserError for what is neither."""
        names = self.table.input_names
        table = table.to_pandas() if hasattr(table, "to_pandas") else table  # of Arrow, Polars and others
        if isinstance(table, pd.DataFrame):
            values = inputs(table, names, self.dataset.source.categories, "inputs")
            return self.predict(values).set_index(table.index)
        if np.ma.is_masked(table):
            raise UserError(f"inputs have {MASKED}")
        try:
            x = np.asarray(table)
            x = x.astype(float, casting="same_kind" if x.dtype.kind in "mMc" else "unsafe")
        except (TypeError, ValueError, RuntimeError) as error:  # the last of a tensor with a gradient
            raise UserError(f"inputs are not a table of numbers: {error}") from error
        if x.ndim != 2 or x.shape[1] != len(names):
            raise UserError(f"inputs have shape {x.shape}; the model needs [rows, {len(names)}]: {', '.join(names)}")
        return self.predict(inputs(pd.DataFrame(x, columns=names), names, {}, "inputs"))

    def predict(self, inputs: np.ndarray) -> pd.DataFrame:
        """The predictive of every row of inputs `[T, D]` in original units: mean, sd, quantiles, or probabilities.

        Raises UserError with the first row whose prediction is not finite."""
        with np.errstate(all="ignore"):  # of what is too large, the error below tells
            predictive = self._scaled(inputs)
            if self.record.what.data.task == "regression":
                predictive = predictive.affine(self.fold.scaling.y_scale, self.fold.scaling.y_shift)
            if classes := self.dataset.classes:
                rows = pd.DataFrame(predictive.probabilities(), columns=[f"p_{name}" for name in classes])
            else:
                names = [self.table.target_names[i] for i in self.record.what.protocol.outputs]
                rows = pd.DataFrame(columns(predictive, names))
        require_finite(rows)
        return rows

    def _scaled(self, inputs: np.ndarray) -> Any:
        """The predictive, in scaled units, of inputs `[T, D]` in original units."""
        what, fitting = self.record.fitted, entry(self.record.what)
        path = self.store.folder(self.record.fit_id) / fitting.MODEL_FILE
        return fitting.answer(what, path, self.fold.scaling.inputs(inputs), self.fold.key)

    def _require_same_code(self) -> None:
        """Refuse a model of other code or libraries, unless today's predict its test rows as they were predicted."""
        record = self.record
        if not identity.changed(record.what):
            return
        try:
            change = self._change()
            fault = "" if change <= SAME else f"predicts its test rows up to {change:.2g} sd (of classes: p) away"
        except Exception as error:  # noqa: BLE001 - other code may stumble over a model anywhere
            fault = f"cannot use it ({type(error).__name__}: {error})"
        if fault:
            source = f"commit {record.provenance.commit[:7]}" if record.provenance.commit else "other code"
            remedy = f"`gpbench why {record.fit_id}` names what moved: fit it again, or use that code"
            raise UserError(f"fit {record.fit_id} was made by {source}; today's code {fault}; {remedy}")

    def _change(self) -> float:
        """Largest change of a mean or an sd, in sd, or of a probability, of a test row since the fit was made."""
        predictive = self._scaled(self.table.inputs[self.fold.test])
        today = points_of(predictive, self.fold, self.record.what.data.task)
        then = pd.read_parquet(self.store.folder(self.record.fit_id) / "points.parquet")
        kept = [name for name in today if re.fullmatch(r"mean|sd|p\d+", name)]
        return float(((today[kept] - then[kept]).abs().to_numpy().max(1) / np.asarray(then.get("sd", 1.0))).max())


def _dataset(where: Places, record: FitRecord, requested: str) -> Dataset:
    """The data set that was asked for, or else that of a fit's record. UserError where it is not there any more, has
    other data, or, not asked for, is one of several that give the fit's arrays different names."""
    name = requested or record.address.dataset
    require_entry(where, name, f"fit {record.fit_id}")
    dataset: Dataset = config.compose(where.conf, "dataset", name)
    if prepared(dataset) != record.what.data:
        raise UserError(f"fit {record.fit_id} was made of other data than {name} has today (or its task); fit it again")
    if requested:
        return dataset
    md5, entries = str(dataset.md5), config.options(where.conf, "dataset").items()
    alike = [n for n, path in entries if where.prepared_file(n).is_file() and md5 in path.read_text(encoding="utf-8")]
    alike = [n for n in alike if prepared(config.compose(where.conf, "dataset", n)) == record.what.data]
    if len({_names(where, other) for other in alike}) > 1:
        each = " or ".join(f"{record.address.method}/{other}" for other in alike)
        raise UserError(f"fit {record.fit_id} is of data with several names: say which to use, {each}")
    return dataset


def _names(where: Places, dataset: str) -> str:
    """Columns and classes of a prepared data set."""
    configured, header = config.compose(where.conf, "dataset", dataset), tables.header(where.prepared_file(dataset))
    several = configured.source.targets[1:] and configured.source.targets  # one alone names no column
    return f"{header['inputs']} {several} {configured.classes} {configured.source.categories}"


def require_finite(predictions: pd.DataFrame | np.ndarray) -> None:
    """Refuse predictions `[T, P]` that are no numbers, with the first such row."""
    if len(bad := np.flatnonzero(~np.isfinite(predictions).all(axis=1))):
        raise UserError(f"row {bad[0] + 1}: no finite prediction, as its inputs are too large; correct them")


def find(store: Store, name: str, conf: Path) -> str:
    """The identity that begins with `name`; of method/dataset that of a fit of all rows, or else of another; of several
    that of the last of today's code, or else of the last (damaged records are passed over, each with a line)."""
    method, slash, dataset = name.partition("/")
    if not slash:
        return store.find(name)
    records, damaged, _ = store.records()
    for line in damaged:
        print(f"gpbench: passed over: {line}", file=sys.stderr)
    known = dataset in config.options(conf, "dataset")
    data = prepared(config.compose(conf, "dataset", dataset)) if known else None  # by whatever name they came first
    cell = [r for r in records if r.address.dataset == dataset or (data and data.md5 and r.what.data == data)]
    kept = [r for r in cell if (r.address.method, r.status, r.what.kind) == (method, "done", "predict")]
    if not kept:
        config.require_option(conf, "method", method)
        config.require_option(conf, "dataset", dataset)
        command = f"gpbench fit method={method} dataset={dataset} split=all"
        raise UserError(f"no finished fit of {method} on {dataset} in {store.root}; run `{command}`")
    module = config.compose(conf, "method", method).header.module
    today = {r.fit_id for r in kept if r.what.method.module == module and not identity.changed(r.what)}
    worth = [(r.what.data == data, r.what.is_final, r.fit_id in today, r.provenance.ended, r.fit_id) for r in kept]
    return max(worth)[-1]


def columns(predictive: Predictive, names: list[str]) -> dict[str, np.ndarray]:
    """Mean, sd and quantiles of each target, by the name of their column."""
    moments = [predictive.mean(), np.sqrt(predictive.variance()), *predictive.quantile(list(QUANTILES.values()))]
    by_kind = dict(zip(("mean", "sd", *QUANTILES), moments, strict=True))
    return {
        kind if len(names) == 1 else f"{name}_{kind}": values[:, number]
        for number, name in enumerate(names)
        for kind, values in by_kind.items()
    }


def read_inputs(path: Path, names: list[str], categories: dict[str, list[str]]) -> np.ndarray:
    """Inputs `[T, D]` of a CSV whose header holds the data set's input names (others are passed over).

    categories: columns whose cells are one of some values; such a column stands for its indicators (`colour=red`)."""
    needed = _written(names, categories)
    try:
        with as_text(path) as stream:
            mark = separator(next(filter(str.strip, stream), ""))
            stream.seek(0)
            reader = csv.reader(stream, delimiter=mark, strict=True, skipinitialspace=True)
            stripped = ([*map(str.strip, cells)] for cells in reader)
            lines = [(reader.line_num, cells) for cells in stripped if cells[1:] or any(cells)]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; give a CSV with the columns {', '.join(needed)}") from None
    except (csv.Error, EOFError, UnicodeDecodeError) as error:
        reason = NOT_UTF_8.format(error) if isinstance(error, UnicodeDecodeError) else error
        raise UserError(f"{path} is not a CSV table: {reason}") from error
    if not lines:
        raise UserError(f"{path} is not a CSV table: it is empty; give one with the columns {', '.join(needed)}")
    (_, header), *rows = lines
    for line, cells in rows:
        if len(cells) != len(header):
            raise UserError(f"{path}, line {line}: {len(cells)} cells under a header of {len(header)} names")
    return inputs(pd.DataFrame([cells for _, cells in rows], columns=header), names, categories, str(path))


def _written(names: list[str], categories: dict[str, list[str]]) -> list[str]:
    """Input names as a user writes them: a column of values in place of its indicators."""
    whole = {f"{c}={v}": c for c, values in categories.items() for v in indicated(values)}
    return [*dict.fromkeys(whole.get(name, name) for name in names)]


def unreal(arrays: object) -> str:
    """What is wrong with a frame or array of times or complex numbers, '' if nothing: they would be converted, times to
    a count of whatever unit their type has; or with an array of masked cells, whose mask would be ignored."""
    if np.ma.is_masked(arrays):
        return MASKED
    frame = arrays.dtypes.items() if isinstance(arrays, pd.DataFrame) else ()
    types = {f"column {name!r}": kept for name, kept in frame} or {"array": np.asarray(arrays).dtype}
    odd = [place for place, t in types.items() if t.kind in "mMc" or isinstance(t, pd.PeriodDtype)]
    return f"{odd[0]}: values of {types[odd[0]]} are not real numbers" if odd else ""


def inputs(frame: pd.DataFrame, names: list[str], categories: dict[str, list[str]], where: str) -> np.ndarray:
    """Inputs `[T, D]` of the columns `names` of a frame; `categories` as in `read_inputs`, `where` for messages."""
    if not len(frame):
        raise UserError(f"{where}: there are no rows to predict")
    needed = _written(names, categories)
    if repeated := sorted({*frame.columns[frame.columns.duplicated()]} & {*needed}):
        raise UserError(f"{where}: columns {repeated} stand in the header more than once; leave out all but one")
    frame = frame.copy()
    for column, values in categories.items():
        if column in frame.columns:
            cells = frame[column].astype(str).str.strip()
            for i in np.flatnonzero(~cells.isin(values)):
                raise UserError(f"{where}, row {i + 1}, column {column!r}: {cells.iloc[i]!r} is not one of {values}")
            for value in indicated(values):
                frame[f"{column}={value}"] = (cells == value).astype(float)
    if missing := _written([name for name in names if name not in frame.columns], categories):
        raise UserError(f"{where}: columns {missing} are missing; the model needs {', '.join(needed)}")
    numbers = frame[names].apply(pd.to_numeric, errors="coerce")
    if odd := unreal(frame[names]) or unreal(numbers):  # the latter of complex numbers among objects
        raise UserError(f"{where}, {odd}")
    values = numbers.to_numpy(float)
    if len(bad := np.argwhere(~np.isfinite(values))):
        row, column = bad[0]
        cell = str(frame[names].iloc[row, column])
        raise UserError(f"{where}, row {row + 1}, column {names[column]!r}: {cell!r} is not a number")
    return values
