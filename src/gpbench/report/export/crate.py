"""A finished study as an RO-Crate 1.1: one zip with its results, software, data sources and citations."""

from __future__ import annotations

import hashlib
import io
import mimetypes
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from gpbench import config
from gpbench.errors import UserError, count
from gpbench.places import Places, write_aside
from gpbench.report.export import citations
from gpbench.report.registry import names
from gpbench.report.view import AGAIN, View, commits, load
from gpbench.study.storage import committed

if TYPE_CHECKING:
    from rocrate.model.entity import Entity
    from rocrate.rocrate import ROCrate

# terms missing from the context of RO-Crate 1.1
TERMS = {"sha256": "https://schema.org/sha256"}
FORMATS = {".parquet": "application/vnd.apache.parquet", ".md": "text/markdown", ".bib": "application/x-bibtex"}
"""Media types that the standard library does not know."""
ENDS = {".png": (b"IEND\xaeB`\x82",), ".pdf": (b"%%EOF\n",), ".html": (b"</html>", b"</div>\n", b"</p>\n")}
"""How whole files end; others, which are lines of text, by a line end."""
ABOUT = {
    "study.json": "The study: methods, data sets, protocol, budget, versions, machine",
    "scores.parquet": "Scores, seconds, memory, status and commit of every fit",
    "report.html": "The report, to be opened in a browser; needs no network",
    "plan.json": "The frozen plan: every setting of every fit, and its identity",
    "citations.bib": "BibTeX of the methods, data sets and protocol used",
}


def write(where: Places, name: str) -> Path:
    """Write results/`name`/crate.zip; UserError where a fit or a file of the study is missing, or one is damaged."""
    view = View(where.results / name)
    parts = files(view, where.plans / f"{name}.json")
    _require_finished(view, parts)
    _require_sound(parts)
    committed.by_fit(where, name)  # raises UserError where the run has records and they are damaged
    target = view.folder / "crate.zip"
    with write_aside(target) as temporary:
        _crate(view, where, parts).write_zip(temporary)
    return target


def files(view: View, plan: Path) -> dict[str, Path]:
    """Path in the crate -> file, for all files of a finished study; plan: its frozen plan."""
    paths = ["report.html", "study.json", "scores.parquet", "statistics.json", "statistics.md"]
    paths += [f"scorecard.{kind}" for kind in ("csv", "md", "html", "json")]
    paths += [f"tables/{name}.{kind}" for name in names(view.study, "tables") for kind in ("csv", "md", "html", "tex")]
    paths += [f"figures/{name}.{kind}" for name in names(view.study, "figures") for kind in ("pdf", "png")]
    return {path: view.folder / path for path in paths} | {"plan.json": plan}


def _require_finished(view: View, files: dict[str, Path]) -> None:
    statuses = view.fits["status"].value_counts()
    missing = [f"{count(int(statuses[s]), 'fit')} {s}" for s in ("missing", "stopped") if s in statuses]
    plan = load(files["plan.json"])["cells"] if files["plan.json"].is_file() else []
    if later := {fit["fit_id"] for cell in plan for fit in cell["fits"]} - set(view.fits["fit_id"]):
        missing.append(f"{count(len(later), 'fit')} of a later plan not collected")
    if absent := [path for path, file in files.items() if not file.is_file()]:
        missing.append(f"{count(len(absent), 'file')} not written ({absent[0]}{', ...' if absent[1:] else ''})")
    if missing:
        raise UserError(f"{view.folder} is not finished: {', '.join(missing)}; run `{view.study['command']}` first")


def _require_sound(files: dict[str, Path]) -> None:
    """Refuse files that cannot be read or are cut short; scores.parquet, of which the view is, was read as a whole."""
    for file in files.values():
        if file.suffix == ".json":
            load(file)
        elif file.suffix != ".parquet" and not file.read_bytes().endswith(ENDS.get(file.suffix, (b"\n",))):
            raise UserError(f"{file} is damaged (it is cut short); {AGAIN}")


def _crate(view: View, where: Places, files: dict[str, Path]) -> ROCrate:
    from rocrate.rocrate import ROCrate

    study = view.study
    crate = ROCrate(version="1.1")
    crate.metadata.extra_terms = TERMS
    crate.name, crate.datePublished = study["title"], study["created"]
    licence = metadata.metadata("gpbench")["License-Expression"]
    crate.license = _add(crate, f"https://spdx.org/licenses/{licence}", "CreativeWork")
    crate.description = (
        f"Study {study['name']}: {count(len(view.methods), 'method')} on {count(len(view.datasets), 'data set')}, "
        f"protocol {study['protocol']}, budget {study['budget']}; {len(view.done)} of {len(view.fits)} fits done."
    )
    sources, bibtex = _sources(crate, view, where)
    results = [_add_file(crate, path, file.read_bytes()) for path, file in files.items() if path != "plan.json"]
    results.append(_add_file(crate, "citations.bib", bibtex.encode()))
    plan = _add_file(crate, "plan.json", files["plan.json"].read_bytes())
    action = crate.add_action(_software(crate, view), "#run", [*sources, plan], results, _run(view))
    crate.root_dataset["mentions"] = action
    return crate


def _add(crate: ROCrate, identity: str, kind: str, **properties: object) -> Entity:
    from rocrate.model.contextentity import ContextEntity

    return crate.add(ContextEntity(crate, identity, {"@type": kind, **properties}))


def _add_file(crate: ROCrate, path: str, content: bytes) -> Entity:
    place = Path(path)
    properties = {
        "name": ABOUT.get(path, f"{place.stem.replace('_', ' ')} ({place.suffix[1:]})"),
        "contentSize": str(len(content)),
        "encodingFormat": FORMATS.get(place.suffix) or mimetypes.guess_type(path)[0],
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return crate.add_file(io.BytesIO(content), path, properties=properties)


def _sources(crate: ROCrate, view: View, where: Places) -> tuple[list[Entity], str]:
    """The data sets of the study with licence, checksum and citation, and the BibTeX of everything used."""
    keys = citations.used(where, view.fits["preset"].dropna().unique(), view.datasets, view.study["protocol"])
    known = citations.entries(where.conf)
    cited = {key: _add(crate, f"#{key}", "CreativeWork", name=key, text=known.get(key, "")) for key in keys}
    crate.root_dataset["citation"] = list(cited.values())
    sources = []
    for name in view.datasets:
        dataset = config.compose(where.conf, "dataset", name)
        about = {"name": dataset.title, "identifier": f"md5:{dataset.md5}"}
        if not dataset.private:
            about |= {"url": dataset.url, "license": dataset.licence, "citation": cited[dataset.citation]}
        about |= {"description": f"{dataset.rows} rows, {dataset.columns} inputs; the md5 is of the prepared arrays"}
        sources.append(_add(crate, f"#data-{name}", "Dataset", **about))
    return sources, citations.bibtex(where, keys, view.study["commit"])


def _software(crate: ROCrate, view: View) -> Entity:
    """gpbench at the commit that collected the study, with the packages that its fits depend on."""
    about = metadata.metadata("gpbench")
    packages = [
        _add(crate, f"#package-{name}", "SoftwareApplication", name=name, version=version)
        for name, version in view.study["versions"].items()
    ]
    properties = {
        "description": about["Summary"],
        "version": f"{about['Version']}, commit {view.study['commit'] or 'unknown'}",
        "releaseNotes": f"Commits of the fits: {', '.join(commits(view.fits)) or 'unknown'}",
        "softwareRequirements": packages,
    }
    return _add(crate, "#gpbench", "SoftwareApplication", name="gpbench", **properties)


def _run(view: View) -> dict[str, str]:
    machine = ", ".join(f"{name} {value}" for name, value in view.study["machine"].items())
    # all texts have one format and time zone, so their order is that of time
    started, ended = (view.fits.get(key, pd.Series(dtype=str)).dropna() for key in ("started", "ended"))
    times = {"startTime": started.min(), "endTime": ended.max()} if len(started) else {}
    return {
        "name": f"Run of study {view.study['name']}",
        "description": f"{view.study['command']}; {machine}",
        "actionStatus": "http://schema.org/CompletedActionStatus",
        **{key: pd.Timestamp(time).isoformat() for key, time in times.items()},
    }
