"""A page for every module of methods: equations, settings, results, cost, failures and code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pandas as pd

from gpbench import config
from gpbench.config import reference
from gpbench.config.compose import MethodConfig
from gpbench.config.method_source import source_path
from gpbench.places import Places
from gpbench.report.export import citations
from gpbench.report.tables.render import Table
from gpbench.report.view import View
from records import chains, failures, linked, mixing, scores, surprises

COMMON = {
    "batch_size": "rows of a mini-batch",
    "jitter": "added to the diagonal of a covariance matrix before it is factorised",
    "layers": "number of layers",
    "learning_rate": "rate of Adam",
    "lengthscale": "of the kernel, at the start",
    "multiclass": "likelihood of more than two classes",
    "noise_variance": "of the standardised target, at the start",
    "num_inducing": "number of inducing inputs",
    "optimiser": "Adam, or L-BFGS on all rows where that is possible",
    "outputscale": "variance of the kernel, at the start",
}
"""Settings that docstrings leave unexplained because the field knows their names."""


class Catalogue:
    """Everything that pages of methods are made from."""

    def __init__(
        self, where: Places, cells: pd.DataFrame, runs: list[View], pages: dict[str, str], settings: list[type]
    ) -> None:
        """settings: the hyperparameters of every method, which explain those that others inherit from them."""
        self.where, self.cells, self.runs, self.pages, self.settings = where, cells, runs, pages, settings
        self.chains = chains(runs)
        self.bibliography = citations.entries(where.conf)
        docs = where.root / "docs"
        self.surprises = surprises(where)
        self.decisions = (docs / "decisions.md").read_text().split("\n\n")
        self.errata = (docs / "errata.md").read_text()


def modules(where: Places) -> dict[str, list[MethodConfig]]:
    """Last part of a module -> its configurations, the one of the same name first."""
    found: dict[str, list[MethodConfig]] = {}
    for name in config.options(where.conf, "method"):
        method = config.compose(where.conf, "method", name)
        found.setdefault(method.header.module.rpartition(".")[2], []).append(method)
    return {key: sorted(group, key=lambda m: (m.header.name != key, m.header.name)) for key, group in found.items()}


def page(name: str, group: list[MethodConfig], catalogue: Catalogue) -> str:
    """Markdown of one module."""
    header, source = group[0].header, source_path(group[0].header.module)
    doc = ast.get_docstring(ast.parse(source.read_text())) or ""
    summary, _, rest = doc.partition("\n\n")
    presets = {method.header.name for method in group}
    parts = [f"# {header.label} (`{name}`)", " ".join(summary.split())]
    if rest:
        parts.append(f"## Model and equations\n\n```text\n{rest.strip()}\n```")
    parts += [f"## Configurations\n\n{_configurations(group)}", _settings(header.module, catalogue.settings)]
    parts += [part for part in (_remarks(presets | {name}, header.reference, catalogue),) if part]
    parts.append(_results(presets, catalogue))
    relative = source.relative_to(catalogue.where.root) if source.is_relative_to(catalogue.where.root) else source.name
    parts.append(f"## Code\n\n`{relative}`\n\n```python\n{source.read_text().strip()}\n```")
    keys = dict.fromkeys(method.header.reference for method in group)
    if entries := [catalogue.bibliography[key] for key in keys if key in catalogue.bibliography]:
        parts.append("## To cite\n\n```bibtex\n" + "\n".join(entries) + "\n```")
    return "\n\n".join(parts) + "\n"


def _configurations(group: list[MethodConfig]) -> str:
    lines = ["| name | label | tasks | most rows | settings unlike the defaults |", "| --- | --- | --- | --- | --- |"]
    for method in group:
        header, hyper = method.header, method.hyper
        differing = {
            f.name: value for f in dataclasses.fields(hyper) if (value := getattr(hyper, f.name)) != _default(f)
        }
        settings = " ".join(f"`{key}={value}`" for key, value in differing.items()) or "none"
        rows = f"{header.max_rows:,}" if header.max_rows else "no limit"
        lines.append(f"| `{header.name}` | {header.label} | {', '.join(header.tasks)} | {rows} | {settings} |")
    return "\n".join(lines)


def _default(field: dataclasses.Field) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _settings(module: str, every: list[type]) -> str:
    cls = config.hyperparameters(module)
    if not dataclasses.fields(cls):
        return "## Settings\n\nIt has none."
    about = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
    return f"## Settings\n\n{about}\n\n{reference.keys_table(cls, meanings(cls, every))}"


def meanings(cls: type, every: list[type]) -> dict[str, str]:
    """Hyperparameter -> its meaning, as the docstrings of its class, of those that it inherits from, or of others of
    `every` that inherit from these explain it: 'key, key: meaning; key: meaning'."""
    bases = tuple(base for base in cls.__mro__[:-1] if base.__module__ != "gpbench.hyper")
    found: dict[str, str] = {}
    for other in (*cls.__mro__[:-1], *(other for other in every if issubclass(other, bases))):
        for key, meaning in explained(other.__doc__ or "", [f.name for f in dataclasses.fields(other)]).items():
            found.setdefault(key, meaning)
    return {f.name: found.get(f.name, COMMON.get(f.name, "")).replace("|", "\\|") for f in dataclasses.fields(cls)}


def explained(doc: str, names: list[str]) -> dict[str, str]:
    """Name -> what a docstring says of it."""
    if not names:
        return {}
    either, text = "|".join(map(re.escape, names)), " ".join(doc.split())
    heads = list(re.finditer(rf"(?:^|(?<=[;.,:] ))((?:{either})(?:(?:, | and )(?:{either}))*)( null)?: ", text))
    return {
        key: "null: " * bool(head[2]) + text[head.end() : after.start() if after else None].strip(" ;.,")
        for head, after in pairwise([*heads, None])
        for key in re.split(", | and ", head[1])
    }


def _remarks(names: set[str], reference_key: str, catalogue: Catalogue) -> str:
    """What surprises, which decisions name it, and whether its paper has errata."""

    def named(text: str) -> bool:
        return any(f"`{name}`" in text for name in names)

    parts = [f"- {item}" for item in catalogue.surprises if named(item)]
    titles = [m[1] for text in catalogue.decisions if named(text) and (m := re.match(r"\*\*(.+?)\*\*", text, re.S))]
    parts += [f"- Decision of {' '.join(title.split())} ([all](../decisions.md))" for title in titles]
    if f"\n## {reference_key}\n" in catalogue.errata:
        parts.append(f"- [Errors found in its paper](../errata.md#{reference_key})")
    if (catalogue.where.root / "docs" / "papers" / f"{reference_key}.md").is_file():
        parts.append(f"- [What its paper claims, and what was found](../papers/{reference_key}.md)")
    return "## Deviations and surprises\n\n" + "\n".join(parts) if parts else ""


def _results(presets: set[str], catalogue: Catalogue) -> str:
    cells = catalogue.cells[catalogue.cells["preset"].isin(presets) & (catalogue.cells["n"] > 0)]
    sampled = catalogue.chains[catalogue.chains["preset"].isin(presets)]
    tables: list[Table] = []
    if len(cells):
        tables.append(scores(cells.sort_values(["dataset", "protocol", "budget", "method"])))
    if len(sampled):
        tables.append(mixing(sampled))
    unfinished = failures(catalogue.runs, presets)
    if len(unfinished.shown):
        tables.append(unfinished)
    if not tables:
        return "## Results, cost and failures\n\nNo committed run has fits of it yet."
    return "## Results, cost and failures\n\n" + "\n".join(linked(t, catalogue.pages, "../") for t in tables)


def index(groups: dict[str, list[MethodConfig]]) -> str:
    """Markdown list of all methods."""
    lines = ["| method | configurations | what | source |", "| --- | --- | --- | --- |"]
    for name, group in groups.items():
        doc = ast.get_docstring(ast.parse(Path(source_path(group[0].header.module)).read_text())) or ""
        summary = " ".join(doc.partition("\n\n")[0].split())
        presets = ", ".join(f"`{method.header.name}`" for method in group)
        lines.append(f"| [{group[0].header.label}]({name}.md) | {presets} | {summary} | {group[0].header.reference} |")
    return "# Methods\n\nA page for every inference method, with its presets.\n\n" + "\n".join(lines) + "\n"
