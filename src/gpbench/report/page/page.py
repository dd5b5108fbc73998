"""One self-contained page of a study, put together from the files beside it."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpbench import places
from gpbench.errors import UserError, count
from gpbench.report.export import citations
from gpbench.report.page import facts as about
from gpbench.report.page import sections as outline
from gpbench.report.registry import FIGURES, names
from gpbench.report.scorecard import one_run
from gpbench.report.significance.comparisons import COMPARISONS
from gpbench.report.significance.findings import basis, sentences
from gpbench.report.tables import chain_mixing
from gpbench.report.tables.render import NOTE, Table, number, to_html, write
from gpbench.report.view import View


@dataclass
class Section:
    """A heading and what stands below it, in this order; a section of which nothing is there is left out."""

    id: str
    title: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    findings: list[tuple[str, list[str]]] = field(default_factory=list)
    """(heading, sentences)"""
    tables: list[tuple[str, str]] = field(default_factory=list)
    """(file, HTML fragment)"""
    figures: list[dict[str, Any]] = field(default_factory=list)
    blank: list[tuple[str, str]] = field(default_factory=list)
    """(figure, why there is nothing to draw)"""
    commands: list[tuple[str, str]] = field(default_factory=list)
    """(what it is for, text to copy)"""

    def __bool__(self) -> bool:
        parts = (self.facts, self.warnings, self.findings, self.tables, self.figures, self.blank, self.commands)
        return any(parts)


def render(view: View) -> str:
    """HTML of the page; a part whose file is not there says so in its place."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gpbench.report.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(
        study=view.study, basis=basis(view), sections=[section for section in sections(view) if section]
    )


def sections(view: View) -> Iterator[Section]:
    """Every section of the page, what was found first."""
    findings = _findings(view)
    yield Section("summary", "Summary", facts=about.facts(view), warnings=about.warnings(view), findings=findings[:1])
    for part in outline.OUTLINE:
        made = Section(part.id, part.title)
        made.tables = list(_tables(view, part))
        for name in outline.figures(view, part):
            _add_figure(view, name, made)
        if part.id == "ranking":
            made.findings = findings[1:]
        if part.id == "chains" and "chains" not in view.study["tables"] and view.done["r_hat"].notna().any():
            made.tables.append(("scores.parquet", to_html(chain_mixing.chains(view))))
        if part.id == "differences" and (found := _statistics(view)["differences"]):
            made.tables.append(("statistics.json", _differences(view, found)))
        if part.id == "scorecard":
            _add_scorecard(view, made)
        yield made
    yield Section("provenance", "Provenance", facts=about.provenance(view), commands=about.commands(view))
    yield _citations(view)


def _fragment(path: Path) -> str:
    return path.read_text() if path.is_file() else f"{NOTE}{path.name} was not written.</p>"


def _tables(view: View, part: outline.Part) -> Iterator[tuple[str, str]]:
    """The tables of a part; a note that the table before has too is not said again."""
    said = ""
    for name in outline.tables(view, part):
        table, mark, note = _fragment(view.folder / "tables" / f"{name}.html").partition(NOTE)
        yield f"tables/{name}.csv", table + (mark + note if note != said else "")
        said = note


def _add_figure(view: View, name: str, section: Section) -> None:
    """A figure with its caption, which ends with the study: figures are passed on without their page."""
    path = view.folder / "figures" / f"{name}.png"
    if not path.is_file():
        section.blank.append((name, "its file was not written"))
    elif reason := blank(path):
        section.blank.append((name, reason))
    else:
        content, title = path.read_bytes(), name.replace("_", " ").capitalize()
        width, height = struct.unpack(">II", content[16:24])
        section.figures.append(
            {
                "name": name,
                "title": title,
                "caption": f"{FIGURES[name].caption} Study: {view.study['title']}.",
                "alt": f"{title}: {FIGURES[name].caption.split('. ')[0].rstrip('.')}.",
                "data": base64.b64encode(content).decode(),
                "width": width // 2,  # drawn at 200 dpi
                "height": height // 2,
                "command": outline.command(view, f"figures/{name}.pdf"),
            }
        )


def blank(path: Path) -> str:
    """Why a figure shows nothing, as it says in its own file; '' where it shows something."""
    from PIL import Image

    with Image.open(path) as image:
        return image.text.get("Description", "")


def _statistics(view: View) -> dict:
    """What statistics.json says of predictions; nothing is compared where samplers are run for their efficiency."""
    path = view.folder / "statistics.json"
    if view.study["kind"] != "predict" or not path.is_file():
        return {"comparisons": {}, "differences": []}
    return json.loads(path.read_text())


def _findings(view: View) -> list[tuple[str, list[str]]]:
    """(heading, sentences) of every comparison that the study has data sets for."""
    comparisons = _statistics(view)["comparisons"].values()
    tasks = {spec.title: spec.tasks for spec in COMPARISONS}
    return [(one["title"], sentences(one, view)) for one in comparisons if view.datasets_of(*tasks[one["title"]])]


def _differences(view: View, found: list[dict]) -> str:
    rows = [
        {
            "data set": row["dataset"],
            "metric": row["metric"],
            "method": view.labels[row["method"]],
            "best": view.labels[row["best"]],
            "difference": number(row["difference"]),
            "95 % interval": f"{number(row['lower'])} to {number(row['upper'])}",
            "p": number(row["p"], 2),
            "splits": row["n"],
        }
        for row in found
    ]
    note = (
        "Paired over splits; corrected resampled t interval (Nadeau and Bengio 2003), not corrected for many methods."
    )
    frame = pd.DataFrame(rows)
    return to_html(Table(frame, frame, "Each method minus the best of its data set (lower is better)", note))


def _add_scorecard(view: View, section: Section) -> None:
    """Every verdict counted, and the published numbers that this study has one beside; the others fill many pages."""
    path = view.folder / "scorecard.json"
    card = pd.DataFrame(json.loads(path.read_text()) if path.is_file() else []).fillna(np.nan)
    if card.empty:
        return
    verdicts = card["verdict"].str.split(":| \\(").str[0].value_counts()
    section.facts = [(str(verdict), count(n, "published number")) for verdict, n in verdicts.items()]
    if len(found := card[card["ours_n"] > 0]):
        section.tables.append(("scorecard.csv, which has all of them", to_html(one_run.to_table(found))))


def _citations(view: View) -> Section:
    """BibTeX of what was used, or why it cannot be given: a method may have left conf/ since."""
    made = Section("citations", "Citations")
    presets = view.fits["preset"].dropna().unique() if "preset" in view.fits else view.methods
    try:
        where = places.find()
        wanted = citations.used(where, presets, view.datasets, view.study["protocol"])
        made.commands = [("BibTeX", citations.bibtex(where, wanted, view.study["commit"]))]
    except UserError as error:
        made.warnings = [str(error)]
    return made


def write_page(view: View, folder: str | Path, published: str | Path = "published") -> Path:
    """Write `folder`/report.html; of committed records, whose folder holds no table or figure, all is made for it."""
    if not view.recorded:
        return write(Path(folder) / "report.html", render(view))
    with tempfile.TemporaryDirectory() as name:
        for file in ("study.json", "scores.csv"):
            shutil.copy(view.folder / file, name)
        return write(Path(folder) / "report.html", render(_completed(View(name), Path(published))))


def _completed(view: View, published: Path) -> View:
    """The same view after every output of the study was written beside it."""
    from gpbench.report.figures import write_figure
    from gpbench.report.scorecard.one_run import write_scorecard
    from gpbench.report.significance.comparisons import write_statistics
    from gpbench.report.tables.standard import write_table

    write_statistics(view, view.folder)
    write_scorecard(view, published, view.folder)
    for name in names(view.study, "tables"):
        write_table(view, name, view.folder / "tables")
    for name in names(view.study, "figures"):
        write_figure(view, name, view.folder / "figures", kinds=("png",))
    return view
