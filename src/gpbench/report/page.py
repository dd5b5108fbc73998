"""One self-contained page of a study, put together from the files beside it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pandas as pd

from gpbench.report import names
from gpbench.report.figures import FIGURES
from gpbench.report.statistics import sentences
from gpbench.report.view import SCORED, UNMIXED, View
from gpbench.report.writing import Table, number, to_html, write

MAIN_TABLES = {
    "predict": ("regression_mnll", "regression_rmse", "classification_mnll", "classification_error", "ranks"),
    "sample": ("efficiency", "convergence_order"),
}


def render(view: View) -> str:
    """HTML of the page; a part whose file is not there says so in its place."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("gpbench.report", "."), autoescape=True, undefined=StrictUndefined)
    environment.filters["number"] = number
    folder = view.folder
    return environment.get_template("report.html").render(
        study=view.study,
        facts=facts(view),
        unfinished=int((~view.fits["status"].isin(SCORED)).sum()),
        unmixed=int((view.fits["status"] == UNMIXED).sum()),
        status_tables=[_fragment(folder / "tables" / f"{name}.html") for name in ("status", "unfinished")],
        tables=[
            (name, _fragment(folder / "tables" / f"{name}.html"))
            for name in dict.fromkeys([*view.study["tables"], *MAIN_TABLES[view.study["kind"]]])
        ],
        figures=[_figure(view, name) for name in names(view.study, "figures")],
        findings=_findings(view),
        differences=_differences(view),
        scorecard=_fragment(folder / "scorecard.html"),
        cost=_fragment(folder / "tables" / "cost.html"),
        provenance=provenance(view),
    )


def facts(view: View) -> list[tuple[str, str]]:
    """What was planned and what was finished, as (word, text)."""
    done, planned = int((view.fits["status"] == "done").sum()), len(view.fits)
    return [
        ("fits", f"{done} of {planned} done"),
        ("methods", ", ".join(view.labels[method] for method in view.methods)),
        ("data sets", ", ".join(f"{name} ({view.tasks.get(name, 'task unknown')})" for name in view.datasets)),
        ("protocol", f"{view.study['protocol']}{reported(view)}"),
        ("budget", str(view.study["budget"])),
        ("splits", str(view.fits["split"].nunique())),
        ("training time", f"{number(view.done['seconds_train'].sum() / 60)} minutes in all finished fits"),
    ]


def reported(view: View) -> str:
    """What the protocol's source prints of predictions: metrics, and the spread over splits."""
    choice = view.study["reported"]
    said = f", which reports {', '.join(choice['metrics'])} and the {choice['spread']} over splits"
    return said if view.study["kind"] == "predict" else ""


def provenance(view: View) -> list[tuple[str, str]]:
    """Where the numbers come from, as (word, text)."""
    commits = sorted({str(commit) for commit in view.fits["commit"].dropna() if commit})
    dirty = int(view.fits["dirty"].eq(True).sum())
    overrides = sorted({text for text in view.fits["overrides"].dropna() if text})
    versions = view.study.get("versions", {})
    return [
        ("collected at commit", view.study["commit"] or "none: not a git checkout"),
        ("created", str(view.study["created"])),
        ("commits of the fits", ", ".join(commits) or "none"),
        ("fits from a changed working tree", str(dirty)),
        ("overrides", "; ".join(overrides) or "none"),
        *([("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))] if versions else []),
    ]


def _fragment(path: Path) -> str:
    return path.read_text() if path.is_file() else f'<p class="note">{path.name} was not written.</p>'


def _figure(view: View, name: str) -> dict:
    """A figure with its caption, which ends with the study: figures are passed on without their page."""
    path = view.folder / "figures" / f"{name}.png"
    data = base64.b64encode(path.read_bytes()).decode() if path.is_file() else ""
    return {"name": name, "caption": f"{FIGURES[name].caption} Study: {view.study['title']}.", "data": data}


def _statistics(view: View) -> dict:
    path = view.folder / "statistics.json"
    return json.loads(path.read_text()) if path.is_file() else {"comparisons": {}, "differences": []}


def _findings(view: View) -> list[tuple[str, list[str]]]:
    comparisons = _statistics(view)["comparisons"].values()
    return [(comparison["title"], sentences(comparison, view)) for comparison in comparisons]


def _differences(view: View) -> str:
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
        for row in _statistics(view)["differences"]
    ]
    if not rows:
        return '<p class="note">No data set has two methods with two finished splits each.</p>'
    note = (
        "Paired over splits; corrected resampled t interval (Nadeau and Bengio 2003), not corrected for many methods."
    )
    frame = pd.DataFrame(rows)
    return to_html(Table(frame, frame, "Each method minus the best of its data set (lower is better)", note))


def write_page(view: View, folder: str | Path) -> Path:
    """Write `folder`/report.html."""
    return write(Path(folder) / "report.html", render(view))
