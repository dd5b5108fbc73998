"""Use a kept model: read a table of new inputs, answer with mean, sd and quantiles, or class probabilities."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpbench import config
from gpbench.data import splits
from gpbench.data import table as tables
from gpbench.data.readers.encode import indicated
from gpbench.data.readers.formats import separator
from gpbench.errors import UserError
from gpbench.places import Places, write_aside
from gpbench.predictive.distributions import Predictive
from gpbench.study.fitting.entries import entry
from gpbench.study.fitting.fold import make_fold
from gpbench.study.storage.store import Store

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}


def answer(where: Places, name: str, source: Path, target: Path | None) -> None:
    """Write the predictive of every row of a CSV, in original units, in the row order of the CSV.

    Columns mean, sd, q05 ... q95, under the name of each target (heating_load_mean, ...) where there are several."""
    rows = Model(where, name).predict_csv(source)
    if target is None:
        rows.to_csv(sys.stdout, index=False)
        return
    with write_aside(target) as temporary:
        rows.to_csv(temporary, index=False)


class Model:
    """A kept fit, by the beginning of its identity or as method/dataset (`find`), and what it answers."""

    def __init__(self, where: Places, name: str) -> None:
        self.store = Store(where.store)
        self.record = self.store.verified(find(self.store, name))
        what, fit_id = self.record.what, self.record.fit_id
        if self.record.status != "done":
            raise UserError(f"fit {fit_id} is {self.record.status}: {self.record.reason}; it has no model")
        if what.kind != "predict":
            raise UserError(f"fit {fit_id} is of kind {what.kind}: its draws are kept, but no model that predicts")
        config.require_module(where.conf, self.record.address.method, what.method.module)
        self.dataset = config.compose(where.conf, "dataset", self.record.address.dataset)
        table = tables.load(where.prepared_file(self.dataset.name), str(what.data.md5))
        self.table = splits.numbered_rows(what.protocol.splits, table)
        self.fold = make_fold(what, self.table, self.record.split, self.record.replica)

    def predict_csv(self, source: Path) -> pd.DataFrame:
        """The predictive of every row of a CSV; UserError with file, row and column for what is no input."""
        return self.predict(read_inputs(source, self.table.input_names, self.dataset.source.categories))

    def predict_frame(self, frame: pd.DataFrame, where: str) -> pd.DataFrame:
        """The predictive of every row of a frame with the columns of the data set's table; `where` for messages."""
        values = inputs(frame, self.table.input_names, self.dataset.source.categories, where)
        return self.predict(values).set_index(frame.index)

    def predict(self, inputs: np.ndarray) -> pd.DataFrame:
        """The predictive of every row of inputs `[T, D]` in original units: mean, sd, quantiles, or probabilities."""
        import pandas as pd

        what, fitting = self.record.fitted, entry(self.record.what)
        x = self.fold.scaling.inputs(inputs)
        path = self.store.folder(self.record.fit_id) / fitting.MODEL_FILE
        predictive = fitting.answer(what, path, x, self.fold.key)
        if what.data.task == "regression":
            predictive = predictive.affine(self.fold.scaling.y_scale, self.fold.scaling.y_shift)
        if classes := self.dataset.classes:
            return pd.DataFrame(predictive.probabilities(), columns=[f"p_{name}" for name in classes])
        return pd.DataFrame(columns(predictive, [self.table.target_names[i] for i in what.protocol.outputs]))


def find(store: Store, name: str) -> str:
    """The identity that begins with `name`; of method/dataset that of the last fit of all rows, or else of the last."""
    method, slash, dataset = name.partition("/")
    if not slash:
        return store.find(name)
    cell = [r for r in store.records()[0] if (r.address.method, r.address.dataset) == (method, dataset)]
    kept = [r for r in cell if r.status == "done" and r.what.kind == "predict"]
    if not kept:
        command = f"gpbench fit method={method} dataset={dataset} split=all"
        raise UserError(f"no finished fit of {method} on {dataset} in {store.root}; run `{command}`")
    return max(kept, key=lambda r: (isinstance(r.what.protocol.splits, splits.Blocks), r.provenance.ended)).fit_id


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
    import pandas as pd

    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, delimiter=separator(stream.readline()))
            stream.seek(0)
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path}: {reason}; give a CSV with the columns {', '.join(names)}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV table: {error}") from error
    if not lines:
        raise UserError(f"{path} is not a CSV table: it is empty; give one with the columns {', '.join(names)}")
    (_, header), *rows = lines
    for line, cells in rows:
        if len(cells) != len(header):
            raise UserError(f"{path}, line {line}: {len(cells)} cells under a header of {len(header)} names")
    frame = pd.DataFrame([cells for _, cells in rows], columns=header)
    if repeated := sorted({name for name in names if header.count(name) > 1}):
        raise UserError(f"{path}: columns {repeated} stand in the header more than once; leave out all but one")
    if frame.empty:
        raise UserError(f"{path} has no rows below its header")
    return inputs(frame, names, categories, str(path))


def inputs(frame: pd.DataFrame, names: list[str], categories: dict[str, list[str]], where: str) -> np.ndarray:
    """Inputs `[T, D]` of the columns `names` of a frame; `categories` as in `read_inputs`, `where` for messages."""
    import pandas as pd

    frame, whole = frame.copy(), {f"{c}={v}": c for c, values in categories.items() for v in indicated(values)}
    for column, values in categories.items():
        if column in frame.columns:
            cells = frame[column].astype(str).str.strip()
            for row in np.flatnonzero(~cells.isin(values)):
                raise UserError(
                    f"{where}, row {row + 1}, column {column!r}: {cells.iloc[row]!r} is not one of {values}"
                )
            for value in indicated(values):
                frame[f"{column}={value}"] = (cells == value).astype(float)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        absent, needed = ([*dict.fromkeys(whole.get(name, name) for name in part)] for part in (missing, names))
        raise UserError(f"{where}: columns {absent} are missing; the model needs {', '.join(needed)}")
    values = frame[names].apply(pd.to_numeric, errors="coerce").to_numpy(float)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise UserError(
            f"{where}, row {row + 1}, column {names[column]!r}: {str(frame[names].iloc[row, column])!r} is not a number"
        )
    return values
