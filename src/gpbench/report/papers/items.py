"""Figures and tables of papers by name: `snakemake -c2 figures/cutajar2017_fig4.pdf tables/cutajar2017_table1.csv`.

A name is a citation key and an item of conf/paper/<key>.yaml, which gives its study and the figure or table to make.
Snakemake knows its targets only after it has read the Snakefile, which plans one study: so the study is chosen by the
words of the command. This module imports only what that needs.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from gpbench import config
from gpbench.config import schema
from gpbench.errors import UserError
from gpbench.places import Places, write_if_changed
from gpbench.report.registry import FIGURES, TABLES
from gpbench.study.records import Cell

SUFFIXES = {"figures": ("pdf", "png", "md"), "tables": ("csv", "md", "html", "tex")}
PUBLISHED = "published"
_LIKE_ITEM = re.compile(r"(?:.*/)?[a-z]+[0-9]{4}[a-z]*_[a-z0-9_]+(?:\.\w+)?")
_TARGET = re.compile(r"(figures|tables)/([^/]+)\.(\w+)")


@dataclasses.dataclass(frozen=True)
class Named(schema.Item):
    """An item with its paper (citation key) and its name (`fig2`)."""

    paper: str = ""
    item: str = ""

    @property
    def name(self) -> str:
        """`cutajar2017_fig2`."""
        return f"{self.paper}_{self.item}"

    @property
    def target(self) -> str:
        """The target of Snakemake."""
        return f"tables/{self.name}.csv" if self.table else f"figures/{self.name}.pdf"


def registry(conf: Path) -> dict[str, Named]:
    """Name -> item, of all papers in their order; UserError for an invalid item."""
    items = {}
    for paper in config.options(conf, "paper"):
        for key, item in config.compose(conf, "paper", paper).items.items():
            named = Named(**dataclasses.asdict(item), paper=paper, item=key)
            _check(conf, named)
            items[named.name] = named
    return items


def find(conf: Path, name: str) -> Named:
    """The item with this name; UserError with the nearest name."""
    known = registry(conf)
    config.require_known("figure or table", [name], known, "conf/paper")
    return known[name]


def _check(conf: Path, item: Named) -> None:
    where = f"item {item.item!r} of conf/paper/{item.paper}.yaml"
    if bool(item.later) == bool(item.study) or (item.study and bool(item.figure) == bool(item.table)):
        raise UserError(f"{where} needs either `later` or `study` with one of `figure` and `table`")
    if item.lacks and item.printed:
        raise UserError(f"{where}: `lacks` is not for published tables, for which it follows from published/")
    if bool(item.printed) != (item.table == PUBLISHED):
        raise UserError(f"{where}: `printed` and `table: {PUBLISHED}` must be given together")
    if item.study:
        config.require_option(conf, "study", item.study, where)
    config.require_known("figure", filter(None, [item.figure]), FIGURES, where)
    config.require_known("table", filter(None, [item.table]), (*TABLES, PUBLISHED), where)


def requested(conf: Path, words: Iterable[str]) -> list[Named]:
    """The items among the words of a command; UserError for an unknown item, with the nearest name, for one that
    cannot be made yet, and for a wrong folder or suffix."""
    items = {}
    for word in words:
        if match := _TARGET.fullmatch(os.path.normpath(word)):
            folder, name, suffix = match.groups()
            item = find(conf, name)
            if item.later:
                raise UserError(f"{word} cannot be made yet: it needs {item.later}; docs/papers.md lists what can")
            if folder != item.target.split("/")[0] or suffix not in SUFFIXES[folder]:
                raise UserError(f"{word} has no rule; ask for {item.target}")
            items[name] = item
        elif _LIKE_ITEM.fullmatch(word) and (known := registry(conf).get(Path(word).stem)):
            raise UserError(f"{word} has no rule; ask for {known.target}")
    return list(items.values())


def refuse_skipped(items: list[Named], cells: Iterable[Cell]) -> None:
    """UserError where every fit of the run of some items is skipped: nothing could be shown."""
    skips = [cell.skip for cell in cells]
    if items and all(skips):
        raise UserError(f"{items[0].target} cannot be made: every fit is skipped, the first because: {skips[0]}")


def choose(items: list[Named], study: object, overrides: str) -> tuple[str, str]:
    """(study, overrides) of a command: those of its items, the given ones in their place; else study or `default`."""
    if not items:
        if study is not None and not (study and isinstance(study, str)):
            raise UserError(f"--config study={study} names no study; leave it out for `default`")
        return study or "default", overrides
    first = items[0]
    for other in items[1:]:
        if (other.study, other.overrides) != (first.study, first.overrides):
            raise UserError(
                f"{first.target} (study {first.study}) and {other.target} (study {other.study}) need different runs; "
                "make them one after the other"
            )
    if study not in (None, first.study):
        raise UserError(f"{first.target} belongs to study {first.study!r}, not {study!r}; leave study= out")
    return first.study, replaced(first.overrides, overrides)


def replaced(overrides: str, given: str) -> str:
    """The overrides of an item (without spaces in their values) and those given, which win where both have a key."""
    keys = {key for key, _ in config.split_overrides(given)}
    remaining = [word for word in overrides.split() if config.split_override(word)[0] not in keys]
    return " ".join(filter(None, (*remaining, given)))


def stamp(where: Places, items: list[Named], run: str) -> None:
    """Write plans/items/NAME.json, whose change makes Snakemake remake an item, for example from another run."""
    for item in items:
        content = dataclasses.asdict(item) | {"run": run}
        write_if_changed(where.plans / "items" / f"{item.name}.json", json.dumps(content, indent=1))
