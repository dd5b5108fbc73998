"""Flights: the features are what the source says, from both of its forms."""

import bz2

import numpy as np
import pandas as pd
import pytest
from entries import entry

from gpbench.data.readers import airline, read
from gpbench.errors import UserError

EXPO = ["2008.csv.bz2", "plane-data.csv"]
# Month, DayofMonth, DayOfWeek, DepTime, ArrTime, TailNum, AirTime, ArrDelay, Distance
FLIGHTS = [
    (1, 3, 4, 2003, 2211, "N1", 116, -14, 810),
    (1, 3, 4, 754, 1002, "N2", 113, 2, 810),
    (2, 29, 5, None, None, "N1", None, None, 515),  # cancelled
    (3, 1, 6, 2400, 5, "N3", 78, 0, 515),  # year not known
    (4, 30, 3, 5, 100, "N4", 50, 61, 300),  # built before 1950
    (4, 30, 3, 2400, 59, "N1", 50, 61, 300),
    (5, 1, 4, 1200, 1301, "N5", 61, 0, 300),  # of the oldest aircraft, on time
]


def flights(targets: list[str], files: list[str]):
    return entry({"kind": "airline", "targets": targets, "files": files})


@pytest.fixture
def folder(tmp_path):
    names = ["Month", "DayofMonth", "DayOfWeek", "DepTime", "ArrTime", "TailNum", "AirTime", "ArrDelay", "Distance"]
    text = pd.DataFrame(FLIGHTS, columns=names).assign(Origin="IAD").to_csv(index=False)
    (tmp_path / EXPO[0]).write_bytes(bz2.compress(text.encode()))
    (tmp_path / EXPO[1]).write_text("tailnum,type,year\nN1,Corporation,1998\nN2,,2008\nN3,,None\nN4,,1946\nN5,,1950\n")
    return tmp_path


def test_features_and_both_targets(folder):
    made = read.read(flights(["delayed"], EXPO), folder)
    assert made.input_names == list(airline.FEATURES)
    assert made.inputs.tolist() == [
        [10, 810, 116, 20 * 60 + 3, 22 * 60 + 11, 4, 3, 1],
        [0, 810, 113, 7 * 60 + 54, 10 * 60 + 2, 4, 3, 1],
        [10, 300, 50, 1440, 59, 3, 30, 4],
        [58, 300, 61, 12 * 60, 13 * 60 + 1, 4, 1, 5],
    ]
    assert made.targets.tolist() == [[0], [1], [1], [0]]
    assert read.read(flights(["delay"], EXPO), folder).targets.tolist() == [[-14], [2], [61], [0]]


def test_both_forms_give_the_same_arrays(folder):
    whole = [f for f in FLIGHTS if f[3] is not None]
    years = {"N1": 1998, "N2": 2008, "N3": 0, "N4": 1946, "N5": 1950}
    order = dict(zip(airline.EXPO, (0, 1, 2, 3, 4, 6, 8, 7), strict=True))
    columns = {name: np.array([f[place] for f in whole], np.int16) for name, place in order.items()}
    np.savez(folder / "flights.npz", plane_year=np.array([years[f[5]] for f in whole], np.int16), **columns)
    one, two = (read.read(flights(["delay"], files), folder) for files in (["flights.npz"], EXPO))
    assert one.md5 == two.md5


def test_what_cannot_be_read(folder):
    with pytest.raises(UserError, match=r"flights\.npz is missing; run `gpbench data fetch mine`"):
        read.read(flights(["delay"], ["flights.npz"]), folder)
    (folder / "flights.npz").write_bytes(b"PK\3\4")
    with pytest.raises(UserError, match=r"flights\.npz cannot be read: "):
        read.read(flights(["delay"], ["flights.npz"]), folder)
    (folder / EXPO[0]).write_bytes(bz2.compress(b"Month,Year\n1,2008\n"))
    with pytest.raises(UserError, match=r"2008\.csv\.bz2 or .* cannot be read: "):
        read.read(flights(["delay"], EXPO), folder)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("AirTime", 40000, "invalid air_time_min 40000.0 in complete flight 1 "),
        ("Distance", 90.5, "invalid distance_mi 90.5 in complete flight 1 "),
        ("DepTime", 975, "invalid dep_time_hhmm 975.0 in complete flight 1 "),
        ("ArrTime", 2401, "invalid arr_time_hhmm 2401.0 in complete flight 1 "),
    ],
)
def test_values_that_no_flight_has(folder, column, value, said):
    table = pd.read_csv(folder / EXPO[0]).astype({column: float})
    table.loc[1, column] = value
    (folder / EXPO[0]).write_bytes(bz2.compress(table.to_csv(index=False).encode()))
    with pytest.raises(UserError, match=said):
        read.read(flights(["delay"], EXPO), folder)


def test_aircraft_that_cannot_be(folder):
    (folder / EXPO[1]).write_text("tailnum,year\nN1,1998\nN2,2099\n")
    with pytest.raises(UserError, match=r"invalid plane_year 2099.0 in complete flight 1 "):
        read.read(flights(["delay"], EXPO), folder)
    (folder / EXPO[1]).write_text("tailnum,year\nN1,1998\nN1,1999\n")
    with pytest.raises(UserError, match="the tail number N1 occurs twice"):
        read.read(flights(["delay"], EXPO), folder)
