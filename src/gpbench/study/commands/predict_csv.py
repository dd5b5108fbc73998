"""Use a kept model: read a table of new inputs, answer with mean, sd and quantiles, or class probabilities."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from gpbench import config
from gpbench.data import splits
from gpbench.data import table as tables
from gpbench.errors import UserError
from gpbench.places import Places, write_aside
from gpbench.predictive.distributions import Predictive
from gpbench.study.fitting.entries import entry
from gpbench.study.fitting.fold import make_fold
from gpbench.study.storage.store import Store

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}


def answer(where: Places, prefix: str, source: Path, target: Path | None) -> None:
    """Write the predictive of every row of a CSV, in original units, in the row order of the CSV.

    Columns mean, sd, q05 ... q95, under the name of each target (heating_load_mean, ...) where there are several."""
    import pandas as pd

    store = Store(where.store)
    fit_id = store.find(prefix)
    record = store.verified(fit_id)
    if record.status != "done":
        raise UserError(f"fit {fit_id} is {record.status}: {record.reason}; it has no model")
    what, address = record.what, record.address
    if what.kind != "predict":
        raise UserError(f"fit {fit_id} is of kind {what.kind}: its draws are kept, but no model that predicts")
    config.require_module(where.conf, address.method, what.method.module)
    dataset = config.compose(where.conf, "dataset", address.dataset)
    table = tables.load(where.prepared_file(dataset.name), str(what.data.md5))
    table = splits.numbered_rows(what.protocol.splits, table)
    fold = make_fold(what, table, record.split, record.replica)
    x = fold.scaling.inputs(read_inputs(source, table.input_names))
    fitting = entry(what)
    predictive = fitting.answer(what, store.folder(fit_id) / fitting.MODEL_FILE, x, fold.key)
    if what.data.task == "regression":
        predictive = predictive.affine(fold.scaling.y_scale, fold.scaling.y_shift)
    if dataset.classes:
        rows = pd.DataFrame(predictive.probabilities(), columns=[f"p_{name}" for name in dataset.classes])
    else:
        rows = pd.DataFrame(columns(predictive, [table.target_names[i] for i in what.protocol.outputs]))
    if target is None:
        rows.to_csv(sys.stdout, index=False)
        return
    with write_aside(target) as temporary:
        rows.to_csv(temporary, index=False)


def columns(predictive: Predictive, names: list[str]) -> dict[str, np.ndarray]:
    """Mean, sd and quantiles of each target, by the name of their column."""
    moments = [predictive.mean(), np.sqrt(predictive.variance()), *predictive.quantile(list(QUANTILES.values()))]
    by_kind = dict(zip(("mean", "sd", *QUANTILES), moments, strict=True))
    return {
        kind if len(names) == 1 else f"{name}_{kind}": values[:, number]
        for number, name in enumerate(names)
        for kind, values in by_kind.items()
    }


def read_inputs(path: Path, names: list[str]) -> np.ndarray:
    """Inputs `[T, D]` of a CSV whose header holds the data set's input names (others are passed over)."""
    import pandas as pd

    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
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
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise UserError(f"{path}: columns {missing} are missing; the model needs {', '.join(names)}")
    if frame.empty:
        raise UserError(f"{path} has no rows below its header")
    values = frame[names].apply(pd.to_numeric, errors="coerce").to_numpy(float)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise UserError(
            f"{path}, row {row + 1}, column {names[column]!r}: {frame[names].iloc[row, column]!r} is not a number"
        )
    return values
