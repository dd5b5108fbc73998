"""Published numbers: the columns of `published/<citation key>.csv`, and how these files are read."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench import config
from gpbench.errors import UserError, unknown
from gpbench.evaluation.metrics import METRICS
from gpbench.study.results.printed_splits import released


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number: a row of `published/<citation key>.csv`."""

    source: str  # citation key of the paper
    item: str  # table, figure or section
    dataset: str  # `any` where the number is the same on each, such as a count of operations
    method_printed: str
    setting: str
    metric_printed: str
    protocol: str
    scale: str
    value: float  # as printed
    spread: float
    spread_kind: str
    splits: int  # runs that the spread is over: splits, or for samplers chains x data sets
    data_sets: int  # of which these runs are; 1 but for simulated ones that were drawn several times
    ours_method: str
    """our names for the method, `svgp|sgp_100`, of which a study has one; empty where we do not have the method"""
    ours_metric: str  # may be empty where `ours_method` is
    factor: float  # number in our unit = factor x printed number
    study: str  # the study in conf/study that reproduces it; may be empty
    reason: str  # why no study reproduces it; beside a study, why its number is shown and not judged
    note: str
    rounding: float = 0.0  # half a unit of the last printed digit; computed from `value`, no column of the files
    by_split: dict[int, float] = field(default_factory=dict)
    """split -> score in our unit, where authors released them and the splits are ours; no column of the files"""


COLUMNS = [column.name for column in fields(PublishedNumber) if column.name not in ("rounding", "by_split")]
NUMBERS = ("value", "spread", "splits", "data_sets", "factor")
SPREADS: dict[str, Callable[[int], float]] = {
    "sample sd": lambda n: 1.0,
    "population sd": lambda n: math.sqrt(n / max(n - 1, 1)),
    "standard error": math.sqrt,
}
"""Kind of a printed spread over n splits -> factor from it to the sample standard deviation."""
SCALES = ("original", "standardised")
SCALED = ("rmse", "mnll")  # that of standardised targets is `rmse_scaled`
HINTS = {
    "spread_kind": f" (one of {', '.join(SPREADS)})",
    "scale": f" (one of {', '.join(SCALES)}; ours_metric of the latter is rmse_scaled or mnll_scaled)",
}
KEYS = ("source", "item", "dataset", "method_printed", "setting", "metric_printed", "protocol", "scale")
"""Columns that name a printed number."""
TEXTS = ("ours_method", "ours_metric", "study", "reason", "note", "setting")  # columns that may be empty


def read_published(folder: str | Path, conf: Path | None = None) -> pd.DataFrame:
    """All rows of the CSV files in `folder`, with the columns `rounding` and `by_split`.

    Raises UserError for a missing folder, for wrong columns, for a row with `ours_method` but no number, and for one
    whose study, protocol or data set is not in `conf`, if that is given: a project need not have all studies."""
    paths = sorted(Path(folder).glob("*.csv"))
    if not paths:
        raise UserError(f"no published numbers: {folder}/*.csv does not exist; give their folder by --published")
    rows = pd.concat([_read_paper(path) for path in paths], ignore_index=True)
    rows["by_split"] = _by_split(Path(folder) / "per_split", rows)
    if conf is None:
        return rows
    for column in ("study", "protocol", "dataset"):
        known = [*config.options(conf, column), *(["any"] if column == "dataset" else [])]
        for row in rows[(rows["study"] != "") & ~rows[column].isin(known)].head(1).itertuples():
            raise unknown(column, str(getattr(row, column)), known, f"{folder}/{row.source}.csv, {row.item}")
    return rows


def _read_paper(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys((*TEXTS, "value"), "str"))
    except (OSError, ValueError) as error:  # pandas' own errors and those of the encoding are ValueErrors
        raise UserError(f"{path} cannot be read as a CSV: {error}") from error
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes the first of too many cells for an index
        raise UserError(f"{path}: its lines have more cells than its header; quote cells with a comma")
    if list(frame.columns) != COLUMNS:
        wrong = sorted(set(frame.columns) ^ set(COLUMNS)) or "their order"
        raise UserError(f"{path}: columns differ from the schema in {wrong}; see gpbench.report.scorecard.published")
    for column in NUMBERS:
        numbers = pd.to_numeric(frame[column], errors="coerce")
        if (wrong := frame[column].notna() & ~np.isfinite(numbers)).any():
            cell = str(frame[column][wrong.idxmax()])
            raise UserError(f"{path}, line {wrong.idxmax() + 2}, column {column!r}: {cell!r} is not a finite number")
    of_scaled = frame["ours_metric"].map(dict.fromkeys(SCALED, False) | {f"{name}_scaled": True for name in SCALED})
    possible = {
        "splits": frame["splits"] >= 1,
        "data_sets": frame["data_sets"].between(1, frame["splits"]),
        "factor": frame["factor"] != 0,
        "spread": ~(frame["spread"] < 0),
        "spread_kind": frame["spread"].isna() | frame["spread_kind"].isin(SPREADS),
        "source": frame["source"] == path.stem,
        "scale": frame["scale"].isin(SCALES) & (of_scaled.isna() | (of_scaled == (frame["scale"] == SCALES[1]))),
    }
    for column, fits in possible.items():
        if not fits.all():
            cell, hint = frame[column][fits.idxmin()], HINTS.get(column, "")
            raise UserError(f"{path}, line {fits.idxmin() + 2}: {column} cannot be {cell}{hint}; correct it")
    frame = frame.fillna(dict.fromkeys(TEXTS, ""))
    if (again := frame.duplicated(list(KEYS))).any():
        raise UserError(f"{path}, line {again.idxmax() + 2}: another line has the same {', '.join(KEYS)}; remove one")
    for metric in set(frame["ours_metric"].dropna()) - {*METRICS, ""}:
        raise unknown("metric", str(metric), METRICS, f"ours_metric of {path}")
    if (lost := frame["value"].isna() & (frame["ours_method"] != "")).any():
        line = f"{path}, line {lost.idxmax() + 2}"
        raise UserError(f"{line}: ours_method is given without a value; leave it empty and give a reason")
    return frame.assign(value=frame["value"].astype(float), rounding=frame["value"].map(rounding))


def _by_split(folder: Path, rows: pd.DataFrame) -> list[dict[int, float]]:
    """Of each row the scores by split, {} where none or those of other splits are in `folder`; UserError for what a
    file says of no row or without scores."""
    names = (rows["method_printed"] + " " + rows["setting"]).str.strip()
    keys = [*zip(rows["source"], names, rows["protocol"], rows["dataset"], rows["ours_metric"], strict=True)]
    by_key: dict[tuple[str, ...], dict[int, float]] = dict.fromkeys(keys, {})
    for stem in sorted({path.stem for path in folder.glob("[!.]*")}):
        whose, scores = config.printed_splits(folder, stem), released(folder / f"{stem}.csv")
        for dataset in whose.paired if whose.printed else ():
            splits = {split: scores[name, split] for name, split in scores if name == dataset}
            key = (whose.reference, whose.printed, whose.protocol, dataset)
            metrics = [metric for metric in next(iter(splits.values()), ()) if (*key, metric) in by_key]
            if not metrics:
                raise UserError(f"{folder}/{stem}: no score or no row {whose.printed!r} of {dataset}; correct `paired`")
            by_key |= {(*key, m): {split: score[m] for split, score in splits.items()} for m in metrics}
    return [by_key[key] for key in keys]


def rounding(printed: str | float) -> float:
    """Half a unit of the last printed decimal, 0.005 for '2.50'; 0 where nothing is printed."""
    return 0.5 * 10.0 ** min(int(Decimal(printed).as_tuple().exponent), 0) if isinstance(printed, str) else 0.0


def sample_sd(spread: float, kind: str, splits: int) -> float:
    """Standard deviation over splits (ddof = 1) of a printed spread; NaN where none was printed."""
    return math.nan if math.isnan(spread) else spread * SPREADS[kind](splits)
