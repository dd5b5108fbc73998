"""Every published number beside the best counterpart that any committed run has, and what became of it.

Reads `published/*.csv` and `docs/results/<run>/`, writes a scorecard (CSV, Markdown, figure) and a badge. Of several
runs with a counterpart of a row that one stands here which was judged, else which is not judged, else which is of
another protocol; of those the one with the larger budget, then with more runs. A row without any says which study has
it, at what budget and by which command, or why none does. All files follow from what is read: written twice, they are
the same bytes, but for the PNG, whose key `gpbench-data` is the SHA-256 of the CSV that it draws.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd

from gpbench import config
from gpbench.errors import count
from gpbench.report.scorecard import verdicts
from gpbench.report.scorecard.counterparts import Counterparts
from gpbench.report.scorecard.one_run import ADDED, COLUMNS, SPREAD_NOTE, compare, printed, read_published, show, wanted
from gpbench.report.tables.render import Table, to_markdown, write
from gpbench.report.view import View

BUDGETS = ("smoke", "quick", "check", "paper")
ALL = [*COLUMNS, *ADDED, "run", "command"]
KEY = "gpbench-data"
FIGURE = "scorecard.png"
REMAKE = "make docs"
FIGURE_CAPTION = (
    "Published numbers against ours, one standard error each way. On the line they are equal; grey: the margin of "
    "agreement. Of accuracy and area under the ROC curve, what they lack to 1. Marks at the edge of a panel lie beyond "
    "it."
)


def read_runs(folder: str | Path) -> list[View]:
    """The committed runs in `folder`, by name; none where there is no such folder."""
    return [View(path.parent) for path in sorted(Path(folder).glob("*/study.json"))]


def overall(runs: list[View], published: pd.DataFrame, conf: Path) -> pd.DataFrame:
    """The published rows in their order, with ADDED, `run` (the folder) and `command` (what made ours, or would)."""
    best: dict[int, tuple[tuple, dict[str, Any]]] = {}
    for view in runs:
        for i, found in _counterparts(view, published):
            rank = _rank(found)
            if i not in best or rank < best[i][0]:
                best[i] = rank, found
    studies = {name: _study(conf, name) for name in sorted(set(published["study"]) - {""})}
    rows = [
        row | printed(row) | ({"run": "", "command": ""} | studies.get(row["study"], {})) | best.get(i, ((), {}))[1]
        for i, row in zip(published.index, published.to_dict("records"), strict=True)
    ]
    return pd.DataFrame(rows, columns=ALL)


def _study(conf: Path, name: str) -> dict[str, str]:
    """Verdict and command of a published row that a study has and no run."""
    budget = config.compose(conf, "study", name).budget
    said = f"not run: study {name} has it, at budget {budget}"
    return {"verdict": said, "command": f"snakemake --cores 2 --config study={name}"}


def _counterparts(view: View, published: pd.DataFrame) -> list[tuple[int, dict[str, Any]]]:
    """(row, what this run has in its place) of every row of which it has a cell; a cell without a number counts under
    the published protocol alone."""
    ours, found = Counterparts(view), []
    source = {"run": view.folder.name, "command": view.study["command"]}
    rows = wanted(view, published)
    for i, row in zip(rows.index, rows.to_dict("records"), strict=True):
        named = row | {"ours_method": ours.name(row["ours_method"])}
        if ours.has(named["ours_method"], row["dataset"]):
            result = compare(ours, named)
            if result["ours_n"] or row["protocol"] == view.study["protocol"]:
                found.append((i, result | {"ours_method": named["ours_method"]} | source))
    return found


def _rank(found: dict[str, Any]) -> tuple:
    """Smaller is better."""
    kind = verdicts.kind(found["verdict"])
    place = -1 if kind in verdicts.JUDGED else verdicts.VERDICTS.index(kind)
    budget = BUDGETS.index(found["ours_budget"]) if found["ours_budget"] in BUDGETS else -1
    return place, -budget, -found["ours_n"], found["run"]


def counts(card: pd.DataFrame) -> pd.DataFrame:
    """Rows by paper and kind of verdict, with totals in the last row and column."""
    kinds = card["verdict"].map(verdicts.kind)
    table = pd.crosstab(card["source"], kinds).reindex(columns=verdicts.VERDICTS, fill_value=0)
    table.loc["all papers"] = table.sum()
    return table.assign(rows=table.sum(axis=1)).rename_axis(index="paper", columns=None)


def badge(card: pd.DataFrame) -> dict[str, Any]:
    """What a badge says, by the schema of shields.io's endpoint."""
    total = counts(card).loc["all papers"]
    judged = int(total[list(verdicts.JUDGED)].sum())
    message = f"{judged} of {total['rows']} judged, {total['agrees']} agree"
    return {"schemaVersion": 1, "label": "published numbers", "message": message, "color": "blue"}


def badge_svg(said: dict[str, Any]) -> str:
    """The badge as a picture of its own."""
    label, message = said["label"], said["message"]
    left, right = (7 * len(text) + 12 for text in (label, message))  # 7: about a letter of 11 pixels
    text = 'y="14" text-anchor="middle" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {message}">\n'
        f"<title>{label}: {message}</title>\n"
        f'<rect width="{left}" height="20" fill="#444"/>\n'
        f'<rect x="{left}" width="{right}" height="20" fill="#0060a0"/>\n'
        '<g fill="#fff" font-family="DejaVu Sans, Verdana, sans-serif" font-size="11">\n'
        f'<text x="{left / 2:g}" {text} textLength="{left - 12}">{label}</text>\n'
        f'<text x="{left + right / 2:g}" {text} textLength="{right - 12}">{message}</text>\n'
        "</g>\n</svg>\n"
    )


def to_page(card: pd.DataFrame, runs: list[View]) -> str:
    """The scorecard in Markdown: counts, runs, the rows that are judged, and why the others are not."""
    summary = counts(card).reset_index()
    kinds = card["verdict"].map(verdicts.kind)
    judged = card[kinds.isin(verdicts.JUDGED)]
    beside = {"protocol": "ours_protocol", "budget": "ours_budget", "commit": "ours_commit", "run": "run"}
    made = pd.DataFrame({name: judged[column] for name, column in beside.items()})
    rest = card[~kinds.isin(verdicts.JUDGED)]
    reasons = rest.groupby(["source", "verdict", "command"], sort=False).size().rename("rows").reset_index()
    return "\n".join(
        [
            "# Published numbers beside ours\n",
            f"All {count(len(card), 'published number')} of `published/`, the best counterpart of each in "
            f"`docs/results/`; made by `{REMAKE}`. Every column is in [scorecard.csv](scorecard.csv).\n",
            "**A verdict is on the method at the budget that stands beside it.** Budgets below `paper` train for fewer "
            "updates than was published: there `worse` or `inconclusive` says what this budget reaches, not what the "
            "method does at its published one.\n",
            "The rules were fixed beforehand (`gpbench.report.scorecard.verdicts`). "
            f"Margins: {verdicts.MARGINS}. *agrees*: the "
            "95 % interval of ours - published lies inside the margin; *better*, *worse*, *differs* (of what has no "
            "direction): it lies beyond; *inconclusive*: neither. *not judged*: our fits are incomplete or have not "
            "converged, or no side prints a spread. *other protocol*: means that are not comparable.\n",
            f"![Published numbers against ours]({FIGURE})\n\n{FIGURE_CAPTION}\n",
            to_markdown(Table(summary, summary.astype(str), "Rows by paper and verdict")),
            to_markdown(_runs(runs)),
            to_markdown(Table(judged, show(judged).join(made), "The rows that are judged", SPREAD_NOTE)),
            to_markdown(Table(reasons, reasons.astype(str), "Why the others have no verdict")),
        ]
    )


def _runs(runs: list[View]) -> Table:
    """What each committed run is."""
    columns = ["run", "protocol", "budget", "fits done", "commits", "command"]
    rows = []
    for view in runs:
        commits = " ".join(sorted(view.done["commit"].dropna().str[:10].unique()))
        done = f"{len(view.done)} of {len(view.fits)}"
        facts = (view.study[key] for key in ("protocol", "budget"))
        rows.append([view.folder.name, *facts, done, commits, view.study["command"]])
    frame = pd.DataFrame(rows, columns=columns)
    return Table(frame, frame, "Committed runs")


def texts(card: pd.DataFrame, runs: list[View]) -> dict[str, str]:
    """Name -> content of every file but the figure."""
    said = badge(card)
    return {
        "scorecard.csv": card.to_csv(index=False, lineterminator="\n", float_format="%.6g"),
        "scorecard.md": to_page(card, runs),
        "badge.json": json.dumps(said, indent=1) + "\n",
        "badge.svg": badge_svg(said),
    }


def write_overall(results: Path, published: Path, conf: Path, folder: Path) -> list[Path]:
    """Write scorecard.csv, scorecard.md, badge.json, badge.svg and scorecard.png into `folder`."""
    card, runs = _read(results, published, conf)
    made = texts(card, runs)
    paths = [write(folder / name, text) for name, text in made.items()]
    return [*paths, _draw(card, folder / FIGURE, _digest(made["scorecard.csv"]))]


def _draw(card: pd.DataFrame, path: Path, digest: str) -> Path:
    from matplotlib import style

    from gpbench.report.figures import STYLE
    from gpbench.report.figures.scorecard import against

    with style.context(["default", STYLE]):
        figure = against(card)
        metadata = {"Software": None, KEY: digest}
        return write(path, lambda to: figure.savefig(to, format="png", metadata=metadata))


def stale(results: Path, published: Path, conf: Path, folder: Path) -> list[Path]:
    """The files in `folder` that are not what `write_overall` would make of today's numbers."""
    made = texts(*_read(results, published, conf))
    wrong = [folder / name for name, text in made.items() if not _same(folder / name, text)]
    picture = folder / FIGURE
    return wrong + [picture] * (drawn_from(picture) != _digest(made["scorecard.csv"]))


def drawn_from(path: Path) -> str:
    """The digest of its data that a figure carries; empty where there is none."""
    from PIL import Image

    if not path.is_file():
        return ""
    with Image.open(path) as image:
        return image.info.get(KEY, "")


def _read(results: Path, published: Path, conf: Path) -> tuple[pd.DataFrame, list[View]]:
    runs = read_runs(results)
    return overall(runs, read_published(published), conf), runs


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
