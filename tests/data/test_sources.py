"""Every source gives what the catalogue says, and the same values as independent copies of the data."""

import functools
import re
import subprocess
import sys
import tarfile

import numpy as np
import pandas as pd
import pytest
import yaml

from gpbench.config.compose import compose, options
from gpbench.config.schema import Source
from gpbench.data import summary, table
from gpbench.data.prepare import prepare
from gpbench.data.readers import formats
from gpbench.data.readers import read as sources
from gpbench.data.table import Table
from gpbench.places import Places
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
CATALOGUE = {name: compose(CONF, "dataset", name) for name in options(CONF, "dataset")}
# draws of GP models have tests of their own
BUNDLED = [name for name, dataset in CATALOGUE.items() if not dataset.source.files and not dataset.truth]
MIRRORED = [name for name, dataset in CATALOGUE.items() if dataset.source.files and not dataset.on_request]
LIMITS = {"airline": 2000, "mnist": 500}
"""MB of memory that preparing may take"""
SLOW = {"airline_delay", "fashion_mnist_vae"}
"""airline with another target, and features of a network: test_airline.py and test_auto_encoder.py cover them"""
# (rows, inputs), classes: from the descriptions that the packages (or the UCI pages) print
SHAPES = {
    "auto_mpg": ((392, 7), 0),
    "boston": ((506, 13), 0),
    "composed_bumps": ((550, 1), 0),
    "diabetes": ((442, 10), 0),
    "digits": ((1797, 64), 10),
    "mnist_5k": ((5000, 784), 10),
    "mnist_5k_completion": ((1500, 200), 0),
    "modalities": ((62, 200), 4),
    "mountain_car": ((10_000, 2), 0),
    "piecewise_constant": ((500, 2), 0),
    "posterior_diabetes_100": ((100, 10), 0),
    "posterior_iris_100": ((100, 4), 2),
    "posterior_logit_100": ((100, 2), 2),
    "posterior_logit_50": ((50, 2), 2),
    "posterior_poisson_50": ((50, 2), 0),
    "posterior_probit_100": ((100, 2), 2),
    "posterior_probit_50": ((50, 2), 2),
    "posterior_wdbc_100": ((100, 2), 2),
    "regions": ((62, 240), 4),
    "three_classes": ((1500, 2), 3),
    "wdbc": ((569, 30), 2),
    "wine": ((178, 13), 3),
}


def test_every_bundled_set_has_a_shape_here():
    assert sorted(BUNDLED) == sorted(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_bundled_set_is_what_the_catalogue_says(name, tmp_path):
    dataset = CATALOGUE[name]
    where = Places(tmp_path, tmp_path / "store")
    assert prepare(dataset, where) == dataset.md5
    stored = table.load(where.prepared_file(name), dataset.md5)
    shape, classes = SHAPES[name]
    assert stored.inputs.shape == shape
    assert stored.targets.shape == (shape[0], len(dataset.source.targets))
    assert stored.inputs.dtype == np.float64
    assert stored.targets.dtype == (np.int64 if classes else np.float64)
    assert len(set(stored.input_names)) == shape[1]
    assert stored.target_names == dataset.source.targets
    assert len(dataset.classes) == classes


def test_known_rows():
    boston = sources.read(CATALOGUE["boston"], CONF)
    # the first line of the UCI file housing.data
    first = [0.00632, 18.0, 2.31, 0, 0.538, 6.575, 65.2, 4.09, 1, 296, 15.3, 396.9, 4.98]
    assert boston.input_names[:2] == ["CRIM", "ZN"]
    assert boston.inputs[0].tolist() == first
    assert boston.targets[0] == 24.0
    mpg = sources.read(CATALOGUE["auto_mpg"], CONF)
    assert "car_name" not in mpg.input_names
    assert mpg.inputs[0].tolist() == [8, 307, 130, 3504, 12, 70, 1]  # chevrolet chevelle malibu
    assert mpg.targets[0] == 18.0


def test_the_same_data_from_two_sources_are_pinned_by_the_same_md5():
    assert CATALOGUE["boston_uci"].md5 == CATALOGUE["boston"].md5
    assert CATALOGUE["wdbc_uci"].md5 == CATALOGUE["wdbc"].md5


def test_every_entry_is_complete():
    keys = set(re.findall(r"^@\w+\{([^,]+),", (CONF / "references.bib").read_text(), flags=re.M))
    pinned = {entry["path"]: entry for entry in yaml.safe_load((REPOSITORY / "data.dvc").read_text())["outs"]}
    for name, dataset in CATALOGUE.items():
        columns = {*dataset.units, *(dataset.expect.constant_inputs or [])}
        assert dataset.citation in keys, name
        assert dataset.licence, name
        assert dataset.url.startswith("http"), name
        assert bool(dataset.classes) == (dataset.task in ("binary", "multiclass")), name
        assert set(dataset.source.unpinned) <= set(dataset.source.files), name
        assert set(dataset.source.files) - set(dataset.source.unpinned) <= set(pinned), name
        assert dataset.md5 or dataset.on_request, name
        if dataset.source.names:
            assert columns <= {*dataset.source.names, *dataset.source.targets}, name


@functools.cache
def read(name: str, raw) -> Table:
    """A table, read once for all tests that look at it."""
    return sources.read(CATALOGUE[name], raw)


@pytest.mark.mirror
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in sorted(set(MIRRORED) - set(LIMITS))],
)
def test_a_mirrored_set_is_what_the_catalogue_says(name, raw):
    check(name, read(name, raw))


def check(name: str, made: Table) -> None:
    dataset = CATALOGUE[name]
    table.check(made, name, dataset.task, len(dataset.classes))
    assert made.inputs.shape == (dataset.rows, dataset.columns)
    assert made.md5 == dataset.md5
    assert made.target_names == dataset.source.targets
    summary.check(summary.statistics(made, dataset), dataset)
    assert set(dataset.units) <= {*made.input_names, *made.target_names}


def columns_of(path, **options) -> np.ndarray:
    return pd.read_csv(path, header=None, **options).to_numpy(float)


@pytest.mark.mirror
def test_the_literature_s_text_copies_hold_the_same_rows(raw):
    power, concrete, energy = (read(name, raw) for name in ("power", "concrete", "energy"))
    copy = columns_of(raw / "power/gal_data.txt", sep=r"\s+")
    assert np.array_equal(np.hstack([power.inputs, power.targets]), copy)
    rounded = read("concrete_rounded", raw)
    assert np.abs(concrete.inputs - rounded.inputs).max() <= 0.0500001
    assert np.abs(concrete.targets - rounded.targets).max() <= 0.00500001
    copy = columns_of(raw / "energy/gal_data.txt", sep=r"\s+")
    assert np.array_equal(energy.inputs, copy[:, :8])
    assert np.flatnonzero(energy.targets[:, 0] != copy[:, 8]).tolist() == [30]


@pytest.mark.mirror
def test_r_objects_hold_the_same_values_as_their_text_copies(raw):
    usps = read("usps", raw)
    parts = [columns_of(raw / f"usps/zip.{part}.txt", sep=r"\s+") for part in ("train", "test")]
    copy = np.vstack(parts)
    assert len(parts[0]) == CATALOGUE["usps"].train_rows
    assert np.array_equal(usps.targets[:, 0], copy[:, 0])
    assert np.abs(usps.inputs - copy[:, 1:]).max() < 1e-12
    ripley = read("pima_ripley", raw)
    frames = [pd.read_csv(raw / f"pima/Pima.{part}.csv") for part in ("tr", "te")]
    assert len(frames[0]) == CATALOGUE["pima_ripley"].train_rows
    frame = pd.concat(frames)
    assert ripley.input_names == list(frame.columns[:-1])
    assert np.array_equal(ripley.inputs, frame.iloc[:, :-1].to_numpy(float))
    assert np.array_equal(ripley.targets[:, 0], frame["type"] == "Yes")
    dates = [cells[0] for _, cells in formats.r_object(raw / "coal/coal.rda", Source(kind="r", targets=[]))[1]]
    assert np.abs(read("coal", raw).inputs[:, 0] - dates).max() < 5e-5


@pytest.mark.mirror
def test_what_the_notes_say_of_single_sets(raw):
    pima = read("pima", raw)
    zeros = {name: int((column == 0).sum()) for name, column in zip(pima.input_names, pima.inputs.T, strict=True)}
    assert [zeros[n] for n in ("glucose", "blood_pressure", "skin_thickness", "insulin", "bmi")] == [
        5,
        35,
        227,
        374,
        11,
    ]
    clean, whole = read("eeg", raw), read("eeg_all", raw)
    rows = np.flatnonzero(~np.isin(np.arange(len(whole.inputs)), [898, 10386, 11509]))
    assert np.array_equal(whole.inputs[rows], clean.inputs)
    assert clean.inputs.max() < 10_000 < 600_000 < whole.inputs.max()
    far = np.abs(clean.inputs - clean.inputs.mean(axis=0)) / clean.inputs.std(axis=0)
    assert list(np.flatnonzero((far > 10).any(axis=1))) == [13179 - 3]  # the glitch that is left
    energy = read("energy", raw).inputs
    assert np.abs(energy[:, 1] - energy[:, 2] - 2 * energy[:, 3]).max() < 1e-9
    five, whole = read("usps_3v5", raw), read("usps", raw)
    assert np.array_equal(five.inputs, whole.inputs[np.isin(whole.targets[:, 0], [3, 5])])
    approval = pd.read_csv(raw / "credit_approval/crx.data", header=None, na_values="?")
    assert (len(approval), int(approval.isna().to_numpy().sum())) == (690, 67)
    assert len(approval.dropna()) == CATALOGUE["credit_approval"].rows
    flights = np.load(raw / "airline_2008/airline_2008_janapr.npz")
    delay = flights["arr_delay_min"]  # the figures of the mirror's catalogue are of all flights
    assert (len(delay), delay.mean().round(3), delay.std().round(3)) == (2_319_121, 10.274, 39.634)
    assert int((flights["plane_year"] >= 1950).sum()) == CATALOGUE["airline"].rows


@pytest.mark.mirror
def test_the_literature_s_indices_name_the_columns(raw):
    """index_features.txt and index_target.txt of the split archives say which columns they speak of."""
    for name, target in (("protein", 9), ("naval", 16), ("kin8nm", 8), ("boston", 13)):
        with tarfile.open(raw / name / "splits.tar.gz") as archive:
            inputs, output = (
                np.loadtxt(archive.extractfile(f"splits/index_{what}.txt"), ndmin=1) for what in ("features", "target")
            )
        assert inputs.tolist() == list(range(CATALOGUE[name].columns))
        assert output == [target]


# VmHWM starts anew with a program; ru_maxrss would still hold what the process that started it had
MEASURE = """
import sys
from gpbench.cli import main as cli
code = cli.main(["data", "prepare", sys.argv[1]])
if sys.platform == "linux":
    print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.mirror
@pytest.mark.parametrize("name", LIMITS)
def test_a_large_mirrored_set_too_and_preparing_it_takes_little_memory(name, mirror, project, monkeypatch):
    monkeypatch.setenv("GPBENCH_MIRROR", str(mirror))
    ran = subprocess.run([sys.executable, "-c", MEASURE, name], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert sys.platform != "linux" or int(ran.stdout.split()[-1]) < LIMITS[name]
    stored = table.load(project / f"data/prepared/{name}.npz", CATALOGUE[name].md5)
    assert stored.inputs.shape == (CATALOGUE[name].rows, CATALOGUE[name].columns)
