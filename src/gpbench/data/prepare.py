"""Prepare a data set: read it, check it against the catalogue, write one file of typed arrays."""

from __future__ import annotations

import dataclasses

from gpbench.config.schema import Dataset
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
    parsed, where = read.read(dataset, places.raw), f"data set {dataset.name!r}"
    table.check(parsed, dataset.name, dataset.task, len(dataset.classes), len(dataset.truth))
    if parsed.inputs.shape != (expected := (dataset.rows, dataset.columns)):
        raise UserError(f"{where} has shape {parsed.inputs.shape}, but the catalogue says {expected}")
    summary.check(summary.statistics(parsed, dataset), dataset)
    md5 = parsed.md5
    if dataset.md5 is None:
        entry = f"conf/dataset/{dataset.name}.yaml"
        raise UserError(f"{where} is not pinned; if the source is right, write md5: {md5} into {entry}")
    if md5 != dataset.md5:
        problem = f"md5 of the arrays is {md5}, but the catalogue says {dataset.md5}"
        raise UserError(f"{where}: {problem}; the source is not the one that was pinned")
    table.save(parsed, places.prepared_file(dataset.name), _entry(dataset))
    return md5


def raw_faults(dataset: Dataset, places: Places) -> dict[str, str]:
    """Raw file -> how it differs from its pin; private data have none, the md5 of their arrays tells."""
    items = [] if dataset.private else dataset.source.files
    return {item: wrong for item in items if (wrong := fetch.verify(item, places))}


def require_current(dataset: Dataset, places: Places) -> None:
    """Raise UserError if a prepared file was made from another catalogue entry (columns, names, units, ...)."""
    path, entry = places.prepared_file(dataset.name), _entry(dataset)
    if {key: value for key, value in table.header(path).items() if key in entry} != entry:
        changed = f"conf/dataset/{dataset.name}.yaml changed"
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
