"""File formats are read, and what is damaged is refused in one line."""

import gzip

import numpy as np
import openpyxl
import pytest
from entries import entry

from gpbench.config.schema import Source
from gpbench.data.readers import formats, read
from gpbench.errors import UserError


def sheet(path, rows):
    book = openpyxl.Workbook()
    book.active.title = "first"
    second = book.create_sheet("second")
    for row in rows:
        second.append(row)
    book.save(path)


def test_a_sheet_by_name_without_the_empty_cells_at_its_end(tmp_path):
    sheet(tmp_path / "file.xlsx", [["a", "y", None], [1, 2.5, ""], [], [3, 4, None]])
    source = {"kind": "excel", "files": ["file.xlsx"], "sheet": "second", "header": "line"}
    made = read.read(entry(source), tmp_path)
    assert (made.inputs.tolist(), made.targets.tolist()) == ([[1], [3]], [[2.5], [4]])
    with pytest.raises(UserError, match=r"file\.xlsx cannot be read as an Excel file: .*third"):
        read.read(entry(source | {"sheet": "third"}), tmp_path)
    sheet(tmp_path / "file.xlsx", [["a", "y"], [1, 2], [3, "four"]])
    with pytest.raises(UserError, match=r"file\.xlsx, sheet second, row 3, column 'y': 'four' is not a finite"):
        read.read(entry(source), tmp_path)


@pytest.mark.parametrize("name", ["file.xls", "file.xlsx"])
def test_a_damaged_sheet(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\3\4 not really")
    with pytest.raises(UserError, match=rf"{name} cannot be read as an Excel file"):
        read.read(entry({"kind": "excel", "files": [name]}), tmp_path)


def test_a_sheet_with_a_flipped_byte_is_read_or_refused(tmp_path):
    """Its readers, of an archive of XML, end in many kinds of errors."""
    path, refused = tmp_path / "file.xlsx", []
    sheet(path, [["a", "y"], *([i, i / 7] for i in range(200))])
    whole = path.read_bytes()
    for place in range(100, len(whole), len(whole) // 25):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            list(formats.excel(path, Source(kind="excel", targets=["y"], sheet="second"))[1])
        except UserError as error:
            refused.append(str(error))
    assert len(refused) > 15
    assert all(said.startswith(f"{path} cannot be read as an Excel file: ") for said in refused)


@pytest.mark.parametrize("name", ["file.xls", "file.rda"])
def test_a_missing_binary_file(tmp_path, name):
    with pytest.raises(UserError, match=rf"{name} is missing; run `gpbench data fetch`"):
        read.read(entry({"kind": "excel" if "xls" in name else "r", "files": [name]}), tmp_path)


def test_a_damaged_r_file(tmp_path):
    (tmp_path / "file.rda").write_bytes(b"no R data")
    with pytest.raises(UserError, match=r"file\.rda cannot be read as an R data file"):
        formats.r_object(tmp_path / "file.rda", Source(kind="r", targets=[]))


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def test_idx_images_and_labels(tmp_path):
    images, labels = np.arange(24).reshape(3, 2, 4), np.array([1, 0, 1])
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx(images)))
    (tmp_path / "labels").write_bytes(idx(labels))
    pair = ["images.gz", "labels"]
    about = {"task": "binary", "classes": ["a", "b"]}
    made = read.read(entry({"kind": "idx", "files": [*pair, *pair]}, **about), tmp_path)
    assert made.inputs.dtype == np.uint8
    assert made.inputs.tolist() == 2 * images.reshape(3, 8).tolist()
    assert made.targets[:, 0].tolist() == [1, 0, 1, 1, 0, 1]
    (tmp_path / "labels").write_bytes(idx(labels[:2]))
    with pytest.raises(UserError, match=r"images\.gz has 3 images, but .*labels has 2 labels"):
        read.read(entry({"kind": "idx", "files": pair}, **about), tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (idx(np.arange(6))[:-1], r"truncated or too long: 13 bytes for an array of shape \(6,\)"),
        (idx(np.arange(6)) + b"x", "truncated or too long: 15 bytes"),
        (b"\0\0\x0d\1", "is not an IDX file of unsigned bytes"),
        (b"", "is not an IDX file"),
    ],
)
def test_a_damaged_idx_file(tmp_path, content, said):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=said):
        formats.idx(tmp_path / "file")


@pytest.mark.parametrize("cut", [slice(0, -9), slice(4, None)])
def test_a_compressed_file_that_is_damaged(tmp_path, cut):
    (tmp_path / "file.gz").write_bytes(gzip.compress(idx(np.arange(1000) % 7))[cut])
    with pytest.raises(UserError, match=r"file\.gz cannot be uncompressed: .*; get it anew"):
        formats.idx(tmp_path / "file.gz")


def test_svmlight(tmp_path):
    path = tmp_path / "file"
    path.write_text("5 1:7 4:255\n3\n")
    pixels, labels = formats.svmlight(path, 2, 4)
    assert (pixels.tolist(), labels.tolist()) == ([[7, 0, 0, 255], [0, 0, 0, 0]], [5, 3])
    assert pixels.dtype == np.uint8
    for rows, text, said in [
        (2, "5 1:7\n", "has 1 rows, expected 2"),
        (1, "5 1:7\n3\n", "line 2: more than the 1 expected rows"),
        (1, "5 5:7\n", "line 1: not of the form .*: an index or a value is out of range"),
        (1, "5 1:256\n", "line 1: not of the form .*: an index or a value is out of range"),
        (1, "5 1\n", "line 1: not of the form `label index:value ...`"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            formats.svmlight(path, rows, 4)
