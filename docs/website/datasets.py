"""A page for every data set: what it is, its traps, how studies split it, and a leaderboard of committed runs."""

from __future__ import annotations

import re

import pandas as pd

from gpbench import config
from gpbench.config.schema import Dataset, Study
from gpbench.places import Places
from gpbench.report.datasets.catalogue import PACKAGES
from records import linked, scores, surprises


def page(dataset: Dataset, where: Places, studies: list[Study], cells: pd.DataFrame, pages: dict[str, str]) -> str:
    """Markdown of one data set."""
    rows = "\n".join(f"| {key} | {text} |" for key, text in _about(dataset).items() if text)
    parts = [f"# {dataset.title} (`{dataset.name}`)", f"| property | value |\n| --- | --- |\n{rows}"]
    named = (item for item in surprises(where) if f"`{dataset.name}`" in item)
    if traps := [text for text in (dataset.notes, *named) if text]:
        parts.append("## Traps\n\n" + "\n".join(f"- {text}" for text in traps))
    parts.append("## Splits\n\n" + _splits(dataset, where, studies))
    parts.append("## Leaderboard\n\n" + _leaderboard(dataset.name, cells, pages))
    ways = f"gpbench data show {dataset.name}\ngpbench fit method=svgp dataset={dataset.name} split=0 budget=smoke"
    parts.append(f"## Use it\n\n```sh\n{ways}\n```")
    return "\n\n".join(parts) + "\n"


def _about(dataset: Dataset) -> dict[str, str]:
    source = dataset.source
    many = len(source.targets) > 8
    targets = f"{len(source.targets)}: {source.targets[0]} to {source.targets[-1]}" if many else None
    return {
        "task": dataset.task,
        "rows": f"{dataset.rows:,}",
        "inputs": f"{dataset.columns:,}",
        "targets": targets or ", ".join(f"`{name}`" for name in source.targets),
        "classes": ", ".join(dataset.classes),
        "units": ", ".join(f"`{column}` in {unit}" for column, unit in dataset.units.items()),
        "columns left out": ", ".join(dataset.drop),
        "text columns": ", ".join(f"`{column}`: {', '.join(v)}" for column, v in source.categories.items()),
        "source": f"bundled with {PACKAGES[source.kind]}" if source.kind in PACKAGES else ", ".join(source.files),
        "page": f"<{dataset.url}>" if dataset.url.startswith("http") else dataset.url,
        "licence": dataset.licence,
        "citation": dataset.citation,
        "md5 of the prepared arrays": f"`{dataset.md5}`" if dataset.md5 else "not pinned",
    }


def _splits(dataset: Dataset, where: Places, studies: list[Study]) -> str:
    lines = ["| study | protocol | what it does | splits | test rows in scaling |", "| --- | --- | --- | --- | --- |"]
    for study in (study for study in studies if dataset.name in study.datasets):
        protocol = config.compose(where.conf, "protocol", study.protocol)
        splits = min(study.splits, study.splits_of.get(dataset.name, study.splits), protocol.splits.count)
        leaks = ", ".join(protocol.leaks) or "none"
        lines.append(f"| `{study.name}` | `{study.protocol}` | {protocol.title} | {splits} | {leaks} |")
    if len(lines) == 2:
        return "No study of `conf/study` uses it; `gpbench fit` takes any protocol of `conf/protocol`."
    official = f"Its official split trains on the first {dataset.train_rows:,} rows." if dataset.train_rows else ""
    return "\n".join([*lines, "", official]).rstrip()


def _leaderboard(name: str, cells: pd.DataFrame, pages: dict[str, str]) -> str:
    here = cells[(cells["dataset"] == name) & (cells["n"] > 0)]
    if here.empty:
        return "No committed run has predictions of it yet."
    return linked(scores(here.sort_values(["protocol", "budget", "mean"]), "data set"), pages, "../")


def index(datasets: list[Dataset]) -> str:
    """Markdown list of all data sets."""
    lines = ["| data set | title | task | rows | inputs | licence |", "| --- | --- | --- | --- | --- | --- |"]
    for d in datasets:
        licence = re.split(r";|,| \((?!>)", d.licence)[0]
        lines.append(f"| [{d.name}]({d.name}.md) | {d.title} | {d.task} | {d.rows:,} | {d.columns:,} | {licence} |")
    return "# Data sets\n\nA page for every entry of the catalogue.\n\n" + "\n".join(lines) + "\n"
