"""Flights of 2008: eight features and the delay, from an archive of columns or from the Data Expo's tables.

The features are those of hensman2013: age of the aircraft (2008 - year of manufacture), distance, air time,
departure and arrival time in minutes after midnight (hhmm 2400 is 1440), day of the week, day of the month, month.
Flights without a delay, an air time, a departure or an arrival time (cancelled, diverted) are left out, as are those
of an aircraft whose year of manufacture is unknown or before 1950. Row order is that of the source.
Targets: `delay`, minutes late at arrival (negative: early), or `delayed`, whether that is above 0.
"""

from pathlib import Path

import numpy as np

from gpbench.config.schema import Dataset
from gpbench.data.table import DAMAGED, Table
from gpbench.errors import UserError

YEAR, OLDEST, LARGEST = 2008, 1950, np.iinfo(np.int16).max
# inputs -> arrays of the archive
FEATURES = {
    "age": "plane_year", "distance": "distance_mi", "air_time": "air_time_min", "dep_time": "dep_time_hhmm",
    "arr_time": "arr_time_hhmm", "day_of_week": "day_of_week", "day_of_month": "day_of_month", "month": "month",
}  # fmt: skip
# names in the arrays of the archive -> columns of the Data Expo's table
EXPO = {
    "month": "Month", "day_of_month": "DayofMonth", "day_of_week": "DayOfWeek", "dep_time_hhmm": "DepTime",
    "arr_time_hhmm": "ArrTime", "air_time_min": "AirTime", "distance_mi": "Distance", "arr_delay_min": "ArrDelay",
}  # fmt: skip


def read(dataset: Dataset, raw: Path) -> Table:
    """The table of an .npz archive of columns, or of the two CSV files of the Data Expo; UserError for bad ones."""
    files = [raw / name for name in dataset.source.files]
    for path in files:
        if not path.is_file():
            raise UserError(f"{path} is missing; run `gpbench data fetch {dataset.name}`")
    flights = _archive(*files) if files[0].suffix == ".npz" else _expo(*files)
    for name, values in flights.items():
        _check(name, values, files[0])
    known = flights["plane_year"] >= OLDEST
    inputs = np.empty((int(known.sum()), len(FEATURES)), np.int16)
    for column, name in enumerate(FEATURES.values()):
        values = flights[name][known]
        if name == "plane_year":
            values = YEAR - values
        inputs[:, column] = minutes(values) if name.endswith("hhmm") else values
    delay = flights["arr_delay_min"][known][:, None]
    (target,) = dataset.source.targets
    targets = delay.astype(float) if target == "delay" else (delay > 0).astype(np.int64)
    return Table(inputs, targets, [*FEATURES], [target])


def minutes(hhmm: np.ndarray) -> np.ndarray:
    """Minutes after midnight of a time written as the number hhmm."""
    return hhmm // 100 * 60 + hhmm % 100


def _check(name: str, values: np.ndarray, path: Path) -> None:
    """Raise UserError for values that are no int16, times that do not exist, and years after that of the flights."""
    wrong = (values != np.floor(values)) | (np.abs(values) > LARGEST)
    if name.endswith("hhmm"):
        wrong |= (values < 0) | (values > 2400) | (values % 100 > 59)
    if name == "plane_year":
        wrong |= values > YEAR
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UserError(f"{path}: invalid {name} {values[row]} in complete flight {row} (counted from 0)")


def _archive(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in (*EXPO, "plane_year")}
    except DAMAGED as error:
        raise UserError(f"{path} cannot be read: {error}; delete it and fetch it again") from error


def _expo(table: Path, planes: Path) -> dict[str, np.ndarray]:
    """Columns of the Data Expo's table of flights, with the year of the aircraft looked up by tail number."""
    import pandas as pd

    try:
        years = pd.read_csv(planes, usecols=["tailnum", "year"], index_col="tailnum")["year"]
        years = pd.to_numeric(years, errors="coerce").fillna(0)
        if years.index.has_duplicates:
            raise ValueError(f"the tail number {years.index[years.index.duplicated()][0]} occurs twice")
        parts = []
        for part in pd.read_csv(table, usecols=["TailNum", *EXPO.values()], chunksize=500_000):
            part = part.dropna(subset=list(EXPO.values()))
            year = part["TailNum"].map(years).fillna(0)
            parts.append(part[list(EXPO.values())].astype(np.float32).assign(plane_year=year.astype(np.float32)))
    except (ValueError, EOFError, OSError, pd.errors.ParserError) as error:
        raise UserError(f"{table} or {planes} cannot be read: {error}") from error
    flights = pd.concat(parts)
    flights.columns = [*EXPO, "plane_year"]
    return {name: flights[name].to_numpy() for name in flights}
