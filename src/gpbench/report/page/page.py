"""One self-contained page of a study, put together from the files beside it."""

import base64
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench import places
from gpbench.errors import UserError, count
from gpbench.places import write_text
from gpbench.report.export import citations
from gpbench.report.figures import noted, write_figure
from gpbench.report.page import facts, sections
from gpbench.report.registry import FIGURES, names
from gpbench.report.scorecard import one_run, verdicts
from gpbench.report.significance.comparisons import COMPARISONS, Comparison, write_statistics
from gpbench.report.significance.findings import basis, sentences
from gpbench.report.tables.convergence import chains
from gpbench.report.tables.render import NOTE, Table, number, to_html
from gpbench.report.tables.standard import write_table
from gpbench.report.view import AGAIN, View, load

UNWRITTEN = "its file was not written"


@dataclass
class Section:
    """A heading and its content, in this order; an empty section is left out."""

    id: str
    title: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    findings: list[tuple[str, list[str]]] = field(default_factory=list)  # (heading, sentences)
    tables: list[tuple[str, str]] = field(default_factory=list)  # (file, HTML fragment)
    figures: list[dict[str, str | int]] = field(default_factory=list)
    blank: list[tuple[str, str]] = field(default_factory=list)  # (figure or table, why there is nothing to show)
    commands: list[tuple[str, str]] = field(default_factory=list)  # (purpose, text to copy)

    def __bool__(self) -> bool:
        return any(list(vars(self).values())[2:])


def render(view: View) -> str:
    """HTML of the page; a missing file is reported in its place."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader, undefined = PackageLoader("gpbench.report.page", "."), StrictUndefined
    jinja = Environment(loader=loader, autoescape=True, undefined=undefined, trim_blocks=True, lstrip_blocks=True)
    filled = [section for section in _sections(view) if section]
    return jinja.get_template("report.html").render(study=view.study, basis=basis(view), sections=filled)


def _sections(view: View) -> Iterator[Section]:
    findings = _findings(view)
    yield Section("summary", "Summary", facts=facts.summary(view), warnings=facts.warnings(view), findings=findings[:1])
    for part, title in sections.OUTLINE.items():
        section = Section(part, title)
        _add_tables(view, part, section)
        for name in sections.figures(view, part):
            _add_figure(view, name, section)
        if part == "ranking":
            section.findings = findings[1:]
        if part == "chains" and "chains" not in view.study["tables"] and view.done["r_hat"].notna().any():
            section.tables.append(("scores.parquet", to_html(chains(view))))
        if part == "differences" and (differences := _statistics(view)["differences"]):
            section.tables.append(("statistics.json", _differences(view, differences)))
        if part == "scorecard":
            _add_scorecard(view, section)
        yield section
    yield Section("provenance", "Provenance", facts=facts.provenance(view), commands=facts.commands(view))
    yield _citations(view)


def _add_tables(view: View, part: str, section: Section) -> None:
    """Add the tables of a part; a note equal to that of the table before is not repeated."""
    previous = ""
    for name in sections.tables(view, part):
        path = view.folder / "tables" / f"{name}.html"
        if not path.is_file():
            section.blank.append((name, UNWRITTEN))
            continue
        table, mark, note = path.read_text(encoding="utf-8").partition(NOTE)
        section.tables.append((f"tables/{name}.csv", table + (mark + note if note != previous else "")))
        previous = note


def _add_figure(view: View, name: str, section: Section) -> None:
    """Add a figure, whose caption ends with the study because figures are passed on without their page."""
    path = view.folder / "figures" / f"{name}.png"
    if not path.is_file():
        section.blank.append((name, UNWRITTEN))
    elif reason := noted(path, "Description"):  # why it is empty; '' of one that shows something
        section.blank.append((name, reason))
    else:
        study = f"Study: {view.study['title']}."
        content, title = path.read_bytes(), name.replace("_", " ").capitalize()
        width, height = struct.unpack(">II", content[16:24])
        figure: dict[str, str | int] = {
            "name": name,
            "title": title,
            "caption": " ".join(filter(None, (FIGURES[name].caption, view.failing, view.still_improving, study))),
            "alt": f"{title}: {FIGURES[name].caption.split('. ')[0].rstrip('.')}.",
            "data": base64.b64encode(content).decode(),
            "width": width // 2,  # drawn at 200 dpi
            "height": height // 2,
            "command": sections.command(view, f"figures/{name}.pdf"),
        }
        section.figures.append(figure)


def _statistics(view: View) -> dict:
    """The content of statistics.json; without any where it is not written, and of kinds that predict nothing."""
    path = view.folder / "statistics.json"
    if view.study["kind"] != "predict" or not path.is_file():
        return {"comparisons": {}, "differences": []}
    content = load(path)
    if not isinstance(content, dict) or not {"comparisons", "differences"} <= content.keys():
        raise UserError(f"{path} is damaged (it holds no comparisons); {AGAIN}")
    return content


def _findings(view: View) -> list[tuple[str, list[str]]]:
    comparisons = _statistics(view)["comparisons"]
    specs: list[Comparison] = []
    for spec in COMPARISONS:  # "all data sets" follows the others: where one of these is all, it repeats
        held = view.datasets_of(*spec.tasks)
        alike = any(s.metric == spec.metric and view.datasets_of(*s.tasks) == held for s in specs)
        if spec.name in comparisons and held and not alike:
            specs.append(spec)
    return [(spec.title, sentences(comparisons[spec.name], view)) for spec in specs]


def _differences(view: View, differences: list[dict]) -> str:
    rows = []
    for row in differences:
        cells = [row["dataset"], row["metric"], view.labels[row["method"]], view.labels[row["best"]]]
        interval = f"{number(row['lower'])} to {number(row['upper'])}"
        rows.append([*cells, number(row["difference"]), interval, number(row["p"], 2), row["n"]])
    head = ["data set", "metric", "method", "best", "difference", "95 % interval", "p", "splits"]
    note = "Paired over splits; resampled t interval of Nadeau and Bengio (2003), not corrected for several methods."
    return to_html(Table.of(rows, head, "Each method minus the best of its data set (lower is better)", note))


def _add_scorecard(view: View, section: Section) -> None:
    """Add the counts of verdicts, and the published numbers that have a counterpart; the others would fill pages."""
    path = view.folder / "scorecard.json"
    card = pd.DataFrame(load(path) if path.is_file() else []).fillna(np.nan)
    if card.empty or not (card["ours_n"] > 0).any():  # nothing printed is about this study
        return
    kinds = card["verdict"].map(verdicts.kind).value_counts()
    section.facts = [(str(kind), count(n, "published number")) for kind, n in kinds.items()]
    with_ours = card[card["ours_n"] > 0]
    section.tables.append(("scorecard.csv (all published numbers)", to_html(one_run.to_table(with_ours))))


def _citations(view: View) -> Section:
    """BibTeX of what was used, or why it cannot be given: a method may have been removed from conf/."""
    section = Section("citations", "Citations")
    try:
        where = places.find()
        keys = citations.used(where, view.fits["preset"].dropna().unique(), view.datasets, view.study["protocol"])
        section.commands = [("BibTeX", citations.bibtex(where, keys, view.study["commit"]))]
    except UserError as error:
        section.warnings = [str(error)]
    return section


def write_page(view: View, folder: str | Path, published: str | Path = "published") -> Path:
    """Write `folder`/report.html; for committed records, which have no tables or figures, these are made first."""
    page = Path(folder) / "report.html"
    if not view.recorded:
        return write_text(page, render(view))
    with tempfile.TemporaryDirectory() as aside:
        for path in (view.folder / "study.json", *view.folder.glob("*.csv")):
            shutil.copy(path, aside)
        completed = View(aside)
        write_statistics(completed, aside)
        one_run.write_scorecard(completed, published, aside)
        view.card = completed.card  # figures are drawn of the folder itself: runs at other budgets are beside it
        for name in names(view.study, "tables"):
            write_table(completed, name, completed.folder / "tables")
        for name in names(view.study, "figures"):
            write_figure(view, name, completed.folder / "figures", kinds=("png",))
        return write_text(page, render(completed))
