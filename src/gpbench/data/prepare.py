"""From raw to prepared: parse, check against the catalogue, write one file of typed arrays."""

from __future__ import annotations

from gpbench.data import sources, table
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.schema import Dataset


def prepare(dataset: Dataset, places: Places) -> str:
    """Write data/prepared/NAME.npz and return the md5 of its arrays.

    Raises UserError where the shape or the md5 differs from the catalogue."""
    parsed = sources.read(dataset, places.raw)
    table.check(parsed, dataset.name, dataset.task, len(dataset.classes))
    if parsed.inputs.shape != (dataset.rows, dataset.columns):
        found, expected = parsed.inputs.shape, (dataset.rows, dataset.columns)
        raise UserError(f"data set {dataset.name!r} has (rows, inputs) = {found}, the catalogue says {expected}")
    if dataset.md5 is None:
        raise UserError(
            f"data set {dataset.name!r} is not pinned; if the source is right, "
            f"write md5: {parsed.md5} into conf/dataset/{dataset.name}.yaml"
        )
    if parsed.md5 != dataset.md5:
        raise UserError(
            f"data set {dataset.name!r}: md5 of the arrays is {parsed.md5}, the catalogue says {dataset.md5}; "
            "the source is not the one that was pinned"
        )
    table.save(parsed, places.prepared / f"{dataset.name}.npz")
    return parsed.md5
