"""Read the source of a data set into a table: the order of the rows is kept, nothing is scaled."""

from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gpbench.config.schema import Dataset
from gpbench.config.validate import require_known
from gpbench.data.readers import airline, auto_encoder, bins, completion, encode, formats
from gpbench.data.readers.encode import Row
from gpbench.data.simulated import generators
from gpbench.data.table import Table
from gpbench.errors import UserError, unknown

# column names, which mlxtend does not provide
MLXTEND_NAMES = {
    "boston_housing": "CRIM ZN INDUS CHAS NOX RM AGE DIS RAD TAX PTRATIO B LSTAT",
    "autompg": "cylinders displacement horsepower weight acceleration model_year origin car_name",
}


def read(dataset: Dataset, raw: Path) -> Table:
    """The table of a data set; `raw` is the folder of fetched files."""
    if dataset.source.bins:
        return bins.count(read(bins.events(dataset), raw), dataset)
    readers: dict[str, Callable[[Dataset, Path], Table]] = {
        "sklearn": _sklearn,
        "mlxtend": _mlxtend,
        "simulated": lambda dataset, raw: _bundled(dataset, *generators.draw(dataset.source.item)),
        "idx": _idx,
        "auto_encoder": _encoded,
        "svmlight": _svmlight,
        "airline": airline.read,
        "completion": completion.read,
    }
    return readers.get(dataset.source.kind, _cells)(dataset, raw)


def _cells(dataset: Dataset, raw: Path) -> Table:
    """Rows of cells of several files (text, Excel, R): one after the other, or side by side."""
    source = dataset.source
    read_file = {"table": formats.text, "excel": formats.excel, "r": formats.r_object}[source.kind]
    files = [read_file(raw / name, source) for name in source.files]
    parts = [rows for _, rows in files]
    names = list(chain.from_iterable(names for names, _ in files)) if source.beside else files[0][0]
    rows = _beside(parts) if source.beside else chain.from_iterable(parts)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{raw / source.files[0]} has no rows")
    numbered = [f"x{i}" for i in range(len(first[1]) - len(source.targets))]
    default = [*source.targets, *numbered] if source.targets_first else [*numbered, *source.targets]
    return encode.build(dataset, source.names or names or default, chain([first], rows))


def _beside(parts: list[Iterator[Row]]) -> Iterator[Row]:
    """Rows of several files, side by side; UserError if the files have different numbers of rows."""
    for rows in zip_longest(*parts):
        if None in rows:
            where = " and ".join(row[0] for row in rows if row)
            raise UserError(f"{where}: another file has fewer rows; all must hold columns of the same rows")
        yield " and ".join(where for where, _ in rows), [cell for _, cells in rows for cell in cells]


def _sklearn(dataset: Dataset, raw: Path) -> Table:
    """A data set of scikit-learn, by the name of its loader (diabetes in its original units)."""
    from sklearn import datasets

    item = dataset.source.item
    loader = _loader(datasets, f"load_{item}", dataset)
    bunch = loader(**({"scaled": False} if item == "diabetes" else {}))
    return _bundled(dataset, bunch.data, bunch.target, [str(name).replace(" ", "_") for name in bunch.feature_names])


def _mlxtend(dataset: Dataset, raw: Path) -> Table:
    """A data set of mlxtend, by the name of its loader."""
    import mlxtend.data

    inputs, targets = _loader(mlxtend.data, f"{dataset.source.item}_data", dataset)()
    numbered = " ".join(f"x{i}" for i in range(inputs.shape[1]))
    return _bundled(dataset, inputs, targets, MLXTEND_NAMES.get(dataset.source.item, numbered).split())


def _loader(package: ModuleType, name: str, dataset: Dataset) -> Callable[..., Any]:
    """What loads a data set of a package; UserError with the nearest name where nothing of this name does."""
    prefix, _, suffix = name.partition(dataset.source.item)
    loaders = [other for other in dir(package) if other.startswith(prefix) and other.endswith(suffix)]
    if name not in loaders:
        items = [other.removeprefix(prefix).removesuffix(suffix) for other in loaders]
        raise unknown("item", dataset.source.item, items, f"{package.__name__}, data set {dataset.name!r}")
    return getattr(package, name)


def _bundled(dataset: Dataset, inputs: np.ndarray, targets: np.ndarray, names: list[str]) -> Table:
    require_known("column", dataset.drop, names, f"the columns of data set {dataset.name!r}")
    keep = [i for i, name in enumerate(names) if name not in dataset.drop]
    x = np.ascontiguousarray(np.asarray(inputs, float)[:, keep])
    y = np.asarray(targets, np.int64 if dataset.classes and not dataset.truth else float).reshape(len(x), -1)
    return Table(x, y, [names[i] for i in keep], [*dataset.source.targets, *dataset.truth])


def _idx(dataset: Dataset, raw: Path) -> Table:
    """Pairs of IDX files (images, labels), one pair after the other."""
    return _images(_pairs(raw, dataset.source.files), dataset)


def _encoded(dataset: Dataset, raw: Path) -> Table:
    """Pairs of IDX files: features of the images by an auto-encoder, and the number of the class as a target."""
    images = _idx(dataset, raw)
    names = [f"z{i}" for i in range(auto_encoder.FEATURES)]
    return Table(auto_encoder.features(images.inputs), images.targets.astype(float), names, images.target_names)


def _svmlight(dataset: Dataset, raw: Path) -> Table:
    """A text file of images (official training part), followed by pairs of IDX files (test part)."""
    first, *rest = dataset.source.files
    train = formats.svmlight(raw / first, dataset.train_rows or 0, dataset.columns)
    return _images([train, *_pairs(raw, rest)], dataset)


def _pairs(raw: Path, files: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pixels `[n, d]` and labels `[n]` of files that alternate between images and labels."""
    parts = []
    for images, labels in zip(files[::2], files[1::2], strict=True):
        pixels, classes = formats.idx(raw / images), formats.idx(raw / labels)
        if len(pixels) != len(classes):
            raise UserError(f"{raw / images} has {len(pixels)} images, but {raw / labels} has {len(classes)} labels")
        parts.append((pixels.reshape(len(pixels), -1), classes))
    return parts


def _images(parts: list[tuple[np.ndarray, np.ndarray]], dataset: Dataset) -> Table:
    pixels = np.concatenate([pixels for pixels, _ in parts])
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)[:, None]
    return Table(pixels, labels, [f"x{i}" for i in range(pixels.shape[1])], list(dataset.source.targets))
