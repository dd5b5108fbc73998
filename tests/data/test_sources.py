"""Sources: the bundled data sets are what the catalogue says, and text tables are read or refused."""

import dataclasses

import numpy as np
import pytest

from gpbench.config import compose, options
from gpbench.data import sources, table
from gpbench.data.prepare import prepare
from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.schema import Dataset, Source
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
# (rows, inputs), classes: from the descriptions that the packages (or the UCI pages) print
SHAPES = {
    "auto_mpg": ((392, 7), 0),
    "boston": ((506, 13), 0),
    "diabetes": ((442, 10), 0),
    "digits": ((1797, 64), 10),
    "mnist_5k": ((5000, 784), 10),
    "wdbc": ((569, 30), 2),
    "wine": ((178, 13), 3),
}
BUNDLED = [name for name in options(CONF, "dataset") if compose(CONF, "dataset", name).source.kind != "table"]


def test_every_bundled_set_has_a_shape_here():
    assert sorted(BUNDLED) == sorted(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_bundled_set_is_what_the_catalogue_says(name, tmp_path):
    dataset = compose(CONF, "dataset", name)
    where = Places(tmp_path, tmp_path / "store")
    assert prepare(dataset, where) == dataset.md5
    stored = table.load(where.prepared / f"{name}.npz", dataset.md5)
    shape, classes = SHAPES[name]
    assert stored.inputs.shape == shape
    assert stored.targets.shape == (shape[0], 1)
    assert stored.inputs.dtype == stored.targets.dtype == np.float64
    assert len(set(stored.input_names)) == shape[1]
    assert stored.target_names == [dataset.source.target]
    assert len(dataset.classes) == classes
    if classes:
        assert np.array_equal(np.unique(stored.targets), np.arange(classes))


def test_known_rows():
    boston = sources.read(compose(CONF, "dataset", "boston"), CONF)
    # the first line of the UCI file housing.data
    first = [0.00632, 18.0, 2.31, 0, 0.538, 6.575, 65.2, 4.09, 1, 296, 15.3, 396.9, 4.98]
    assert boston.input_names[:2] == ["CRIM", "ZN"]
    assert boston.inputs[0].tolist() == first
    assert boston.targets[0] == 24.0
    mpg = sources.read(compose(CONF, "dataset", "auto_mpg"), CONF)
    assert "car_name" not in mpg.input_names
    assert mpg.inputs[0].tolist() == [8, 307, 130, 3504, 12, 70, 1]  # chevrolet chevelle malibu
    assert mpg.targets[0] == 18.0


def test_md5_is_of_shapes_and_values():
    one = Table(np.arange(6.0).reshape(2, 3), np.zeros((2, 1)), list("abc"), ["y"])
    assert one.md5 == dataclasses.replace(one, inputs=np.asfortranarray(one.inputs), input_names=list("xyz")).md5
    assert one.md5 == dataclasses.replace(one, inputs=one.inputs.astype(">f8")).md5
    assert one.md5 != dataclasses.replace(one, inputs=one.inputs.reshape(3, 2)).md5
    assert one.md5 != dataclasses.replace(one, targets=one.targets + 1e-300).md5


def dataset(**changes) -> Dataset:
    """A catalogue entry of a text table in file.csv."""
    source = {"kind": "table", "item": "file.csv", "target": "y"} | changes.pop("source", {})
    plain = {"name": "mine", "title": "", "task": "regression", "md5": None, "rows": 3, "columns": 2}
    plain |= {"licence": "", "citation": "", "url": ""}
    return Dataset(source=Source(**source), **(plain | changes))


def read(folder, text: str | bytes, **changes) -> Table:
    content = text.encode() if isinstance(text, str) else text
    (folder / "file.csv").write_bytes(content)
    return sources.read(dataset(**changes), folder)


def test_a_text_table_without_header(tmp_path):
    made = read(tmp_path, "1, 2,3\n\n4,5, 6\n")
    assert made.inputs.tolist() == [[1, 2], [4, 5]]
    assert made.targets.tolist() == [[3], [6]]
    assert (made.input_names, made.target_names) == (["x0", "x1"], ["y"])


def test_a_text_table_with_header_names_and_classes(tmp_path):
    text = "a;y;b\n1;no;2\n3;yes;4\n"
    made = read(tmp_path, text, source={"header": True, "separator": ";"}, classes=["no", "yes"], task="binary")
    assert made.inputs.tolist() == [[1, 2], [3, 4]]
    assert made.targets.tolist() == [[0], [1]]
    assert made.input_names == ["a", "b"]


def test_a_column_is_dropped_by_name(tmp_path):
    assert read(tmp_path, "1,2,3\n", drop=["x0"]).inputs.tolist() == [[2]]
    with pytest.raises(UserError, match=r"'mine': cannot drop \['x9'\]; inputs are \['x0', 'x1'\]"):
        read(tmp_path, "1,2,3\n", drop=["x9"])


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        ("1,2,3\n4,five,6\n", {}, r"file\.csv, line 2, column 'x1': 'five' is not a number"),
        ("1,2,3\n\n4,5\n", {}, r"file\.csv, line 3: 2 columns, expected 3"),
        ("", {}, r"file\.csv is empty"),
        ("\xff".encode("latin-1") + b"\n", {}, r"file\.csv is not text: .* at byte 0"),
        ("a,b\n1,2\n", {"source": {"header": True}}, r"no column 'y'; columns are \['a', 'b'\]"),
        ("1,maybe\n", {"classes": ["no", "yes"]}, r"line 1, column 'y': 'maybe' is not one of \['no', 'yes'\]"),
    ],
)
def test_a_text_table_that_cannot_be_read(tmp_path, text, changes, said):
    with pytest.raises(UserError, match=said):
        read(tmp_path, text, **changes)


def test_a_missing_text_table(tmp_path):
    with pytest.raises(UserError, match=r"file\.csv is missing; run `gpbench fetch`"):
        sources.read(dataset(), tmp_path)
