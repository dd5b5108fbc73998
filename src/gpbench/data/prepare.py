"""Prepare a data set: read it, check it against the catalogue, write one file of typed arrays."""

import dataclasses
import sys
from pathlib import Path

from gpbench.config.compose import options
from gpbench.config.schema import Dataset
from gpbench.config.validate import require_known
from gpbench.data import summary, table
from gpbench.data.raw import fetch
from gpbench.data.raw.pins import pins
from gpbench.data.readers import read
from gpbench.errors import UserError
from gpbench.places import Places


def prepare(dataset: Dataset, places: Places) -> str:
    """Write data/prepared/NAME.npz and return the md5 of its arrays.

    Raises UserError if a raw file differs from its pin, or if shape, md5 or an expected statistic differ."""
    for item, wrong in raw_faults(dataset, places).items():
        remedy = "delete it and fetch it again" if item in pins(places) else f"run `gpbench data pin {dataset.name}`"
        raise UserError(f"{wrong}; {remedy}")
    where = f"data set {dataset.name!r}"
    if wrong := _contradiction(dataset):
        raise UserError(f"{where}: {wrong}; correct {_description(dataset, places)}")
    parsed = read.read(dataset, places.raw)
    known = {*parsed.input_names, *parsed.target_names, *dataset.drop, *dataset.source.categories}
    require_known("column", dataset.units, known, f"units of {where}")
    table.check(parsed, dataset.name, dataset.task, len(dataset.classes), len(dataset.truth))
    if parsed.inputs.shape != (expected := (dataset.rows, dataset.columns)):
        raise UserError(f"{where} has (rows, columns) {parsed.inputs.shape}, but the catalogue says {expected}")
    summary.check(summary.statistics(parsed, dataset), dataset)
    md5 = parsed.md5
    if dataset.md5 is None:
        entry = _description(dataset, places)
        raise UserError(f"{where} is not pinned; if the source is right, write md5: {md5} into {entry}")
    if md5 != dataset.md5:
        problem = f"md5 of the arrays is {md5}, but the catalogue says {dataset.md5}"
        raise UserError(f"{where}: {problem}; the source is not the one that was pinned")
    if dataset.task == "regression" and not dataset.images:
        for j in table.unvarying(parsed.targets[:, : len(dataset.source.targets)]):
            print(f"gpbench: {where}: target {parsed.target_names[j]!r} {table.UNVARYING}", file=sys.stderr)
    table.save(parsed, places.prepared_file(dataset.name), _entry(dataset))
    return md5


def _description(dataset: Dataset, places: Places) -> Path:
    """The file that describes a data set: of the project, or of the package of a plugin."""
    return options(places.conf, "dataset")[dataset.name]


def _contradiction(dataset: Dataset) -> str:
    """What in a catalogue entry contradicts itself; '' where nothing does."""
    source, task, classes = dataset.source, dataset.task, len(dataset.classes)
    if source.kind in ("sklearn", "mlxtend", "simulated"):
        if not source.item:
            return f"a source of kind {source.kind} needs `item`, the name of the data set there"
    elif source.kind != "completion" and not source.files:
        return f"a source of kind {source.kind} needs `files`, paths below data/raw"
    if source.kind in ("idx", "auto_encoder") and len(source.files) % 2:
        return f"the files of kind {source.kind} are pairs of images and labels, not {len(source.files)}"
    if source.kind == "airline" and len(source.files) != (1 if source.files[0].endswith(".npz") else 2):
        return "the files of kind airline are one .npz, or a table of flights and one of planes"
    if source.separator != "whitespace" and len(source.separator) != 1:
        return f"`separator` must be one character or `whitespace`, got {source.separator!r}"
    if dropped := set(dataset.drop) & set(source.targets):
        return f"{min(dropped)!r} of `drop` is a target"
    if not {"binary": classes == 2, "multiclass": classes >= 2}.get(task, classes == 0):
        return f"task {task} does not go with {classes} classes"
    if task != "events" and (not source.targets or (classes and source.targets[1:])):
        return f"task {task} does not go with {len(source.targets)} targets"
    return ""


def raw_faults(dataset: Dataset, places: Places) -> dict[str, str]:
    """Raw file -> how it differs from its pin; private data have none, the md5 of their arrays tells."""
    items = [] if dataset.private else dataset.source.files
    return {item: wrong for item in items if (wrong := fetch.verify(item, places))}


def require_current(dataset: Dataset, places: Places) -> None:
    """Raise UserError if a prepared file was made from another catalogue entry (columns, names, units, ...)."""
    path, entry = places.prepared_file(dataset.name), _entry(dataset)
    if {key: value for key, value in table.header(path).items() if key in entry} != entry:
        changed = f"{_description(dataset, places)} changed"
        raise UserError(f"{path} was prepared before {changed}; run `gpbench data prepare {dataset.name}`")


def ensure(dataset: Dataset, places: Places) -> None:
    """Fetch and prepare a data set unless it is prepared; UserError if its catalogue entry has changed since."""
    if places.prepared_file(dataset.name).is_file():
        require_current(dataset, places)
    else:
        fetch.fetch(dataset.source.files, places)
        prepare(dataset, places)


def _entry(dataset: Dataset) -> dict[str, object]:
    """The keys of a catalogue entry on which the prepared file depends, as plain data."""
    keys = ("task", "md5", "classes", "drop", "units")
    return {key: getattr(dataset, key) for key in keys} | {"source": dataclasses.asdict(dataset.source)}
