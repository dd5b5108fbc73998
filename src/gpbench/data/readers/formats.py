"""File formats: text, sheets and R objects as column names and rows of cells; image files as arrays."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gpbench.config.schema import Source
from gpbench.data.readers.encode import Row
from gpbench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

OPENERS: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
NOT_UTF_8 = "not UTF-8 ({0.reason} at byte {0.start}); save it as a CSV in UTF-8"


def as_text(path: Path) -> IO[str]:
    """A text file, which may be compressed, without its byte-order mark; line ends as they are."""
    return OPENERS.get(path.suffix, open)(path, "rt", newline="", encoding="utf-8-sig")


def separator(header: str) -> str:
    """The character between the cells of a CSV, from its first line that is not blank."""
    return max(",;\t", key=re.sub('"[^"]*"', "", header).count)


def frame(path: Path, *texts: str) -> pd.DataFrame:
    """A CSV of somebody's program as pandas reads it, columns `texts` as text.

    UserError for what is no table, a name that stands in the header more than once, and cells beyond the header."""
    import pandas as pd

    try:
        with as_text(path) as stream:
            first = next(filter(str.strip, stream), "")
        mark = separator(first)
        names = next(csv.reader([first], delimiter=mark), [])
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(f"{path}: columns {repeated} stand in the header more than once; leave out all but one")
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of cells that it would leave out
            types, empty = dict.fromkeys(texts, str), {"keep_default_na": False, "na_values": [""]}  # NA may be a class
            return pd.read_csv(path, sep=mark, index_col=False, encoding="utf-8-sig", dtype=types, **empty)
    except pd.errors.ParserWarning:
        raise UserError(f"{path}: a line has more cells than the header has names") from None
    # ParserError, EmptyDataError and UnicodeDecodeError are ValueErrors
    except (OSError, EOFError, ValueError) as error:
        reason = NOT_UTF_8.format(error) if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None)
        raise UserError(f"{path} cannot be read as a CSV: {reason or error}") from None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The uncompressed bytes of a file; UserError if it is missing, truncated or not of the type of its suffix."""
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as stream:
            yield stream
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run `gpbench data fetch` for its data set") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise UserError(f"{path} cannot be uncompressed: {error}; get it anew (delete and fetch a raw file)") from error


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line; UserError for what is not UTF-8."""
    with opened(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}, line {number}: {NOT_UTF_8.format(error)}") from error


def text(path: Path, source: Source) -> tuple[list[str], Iterator[Row]]:
    """Column names (empty if the file has none) and rows of a text file; blank lines are skipped."""
    numbered = ((number, line) for number, line in lines(path) if line.strip())
    names: list[str] = []
    if source.header == "attributes":
        names = _attributes(path, numbered)
    elif source.header == "line":
        number, line = next(numbered, (0, ""))
        names = _split(line, source.separator, f"{path}, line {number}") if number else []
    return names, ((where := f"{path}, line {n}", _split(line, source.separator, where)) for n, line in numbered)


def _split(line: str, separator: str, where: str) -> list[str]:
    if separator == "whitespace":
        return line.split()
    if '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    try:
        return [c.strip() for c in next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True))]
    except csv.Error as error:
        raise UserError(f"{where}: {error}; a quoted cell must end on its line") from error


def _attributes(path: Path, numbered: Iterator[tuple[int, str]]) -> list[str]:
    """Names in the @attribute lines of an ARFF or KEEL file, which is read up to its line @data."""
    names: list[str] = []
    for number, line in numbered:
        word, _, declaration = line.strip().partition(" ")
        if word.lower() == "@data":
            return names
        if word.lower() == "@attribute" and declaration.strip():
            names.append(declaration.split()[0].strip("'\""))
        elif word.lower() == "@attribute" or not word.startswith(("@", "%")):
            raise UserError(f"{path}, line {number}: expected @attribute NAME, @data or a comment, got {word!r}")
    raise UserError(f"{path} has no line @data")


def excel(path: Path, source: Source) -> tuple[list[str], Iterator[Row]]:
    """Column names and rows, but empty ones, of a sheet (or the first) of an .xls or .xlsx file; else UserError."""
    import pandas as pd

    with opened(path):
        pass  # for its message about a missing file
    try:
        frame = pd.read_excel(path, sheet_name=source.sheet or 0, header=None, na_filter=False, dtype=object)
    except Exception as error:  # its readers end in whatever error a damaged byte leads to
        raise UserError(f"{path} cannot be read as an Excel file: {str(error) or type(error).__name__}") from error
    numbered = ((i, _trimmed(cells)) for i, cells in enumerate(frame.to_numpy().tolist(), 1))
    filled = ((i, cells) for i, cells in numbered if cells)
    names = [str(cell).strip() for cell in next(filled, (0, []))[1]] if source.header == "line" else []
    return names, ((f"{path}, sheet {source.sheet or 1}, row {i}", cells) for i, cells in filled)


def _trimmed(cells: list[Any]) -> list[Any]:
    """Cells without the empty ones at the end, which sheets keep after deletions."""
    while cells and cells[-1] in (None, ""):
        cells.pop()
    return cells


def r_object(path: Path, source: Source) -> tuple[list[str], Iterator[Row]]:
    """Column names and rows of the only data frame or numeric matrix in an R data file; else UserError."""
    import pandas as pd
    import rdata

    with opened(path):
        pass  # for its message about a missing file
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about attributes that rdata does not convert
            warnings.filterwarnings("error", message="Unknown file type")
            objects = rdata.read_rda(path, default_encoding="ASCII")
    except Exception as error:
        raise UserError(f"{path} cannot be read as an R data file: {str(error) or type(error).__name__}") from error
    if len(objects) != 1:
        raise UserError(f"{path} contains {len(objects)} objects ({', '.join(objects)}), expected one")
    (value,) = objects.values()
    frame = value if isinstance(value, pd.DataFrame) else pd.DataFrame(np.asarray(value))
    names = [] if frame.columns.dtype.kind == "i" else [str(name) for name in frame.columns]
    rows = zip(*(frame[column].tolist() for column in frame), strict=True)
    return names, ((f"{path}, row {i}", list(cells)) for i, cells in enumerate(rows, 1))


def idx(path: Path) -> np.ndarray:
    """The bytes in an IDX file (two zeros, type 8, number of dimensions, big-endian sizes, values); else UserError."""
    with opened(path) as stream:
        content = stream.read()
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise UserError(f"{path} is not an IDX file of unsigned bytes")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start].ljust(start - 4, b"\0"), ">u4").tolist()
    if len(content) < start or len(content) - start != np.prod(shape, dtype=np.int64):
        raise UserError(f"{path} is truncated or too long: {len(content)} bytes for an array of shape {tuple(shape)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def svmlight(path: Path, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels `[rows, columns]` (uint8) and labels `[rows]` of lines `label index:value ...`, index from 1, else 0.

    Raises UserError for a line of another form, and for another number of lines."""
    pixels, labels = np.zeros((rows, columns), np.uint8), np.zeros(rows, np.int64)
    count = 0
    for number, line in lines(path):
        where = f"{path}, line {number}"
        if count == rows:
            raise UserError(f"{where}: more than the {rows} expected rows")
        try:
            label, *pairs = line.split()
            labels[count] = int(label)
            if pairs:
                index, value = np.array([pair.split(":") for pair in pairs], dtype=np.int64).T
                if index.min() < 1 or index.max() > columns or value.min() < 0 or value.max() > 255:
                    raise ValueError("an index or a value is out of range")
                pixels[count, index - 1] = value
        except ValueError as error:
            raise UserError(f"{where}: not of the form `label index:value ...`: {error}") from error
        count += 1
    if count != rows:
        raise UserError(f"{path} has {count} rows, expected {rows}")
    return pixels, labels
