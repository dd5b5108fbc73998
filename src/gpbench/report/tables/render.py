"""Files written aside and renamed, and one table printed as CSV, Markdown, HTML and LaTeX."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "−": r"$-$",
    "×": r"$\times$",
    "✗": r"$\times$",
    "…": r"\dots{}",
    "–": "--",
    "<": r"$<$",
    ">": r"$>$",
}


# a number that a space, a bracket, a sign of its own or nothing follows: '3-layer DGP' and '2024-01-01' are names
_NUMBER = re.compile(
    r"[<>≤≥≈~\s]*([-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?)(?=$|[\s(/%±≈✗,;])", re.IGNORECASE
)


NOTE = '<p class="note">'
WIDE = 8
"""Columns beyond which a table is printed across the page."""


@dataclass(frozen=True)
class Table:
    """data: numbers, for the CSV; shown: text cells (`**bold**` allowed); caption; note: how to read it."""

    data: pd.DataFrame
    shown: pd.DataFrame
    caption: str
    note: str = ""


def write(path: Path, content: str | bytes | Callable[[Path], None]) -> Path:
    """Write text, bytes or whatever `content(temporary)` saves to `path` by a rename, so no half file is ever seen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        if callable(content):
            content(aside)
        else:
            aside.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def write_formats(table: Table, stem: Path) -> list[Path]:
    """Write `stem`.csv, .md, .html and .tex."""
    texts = {
        ".csv": table.data.to_csv(index=False, lineterminator="\n"),
        ".md": to_markdown(table),
        ".html": to_html(table),
        ".tex": to_latex(table, stem.name),
    }
    return [write(stem.with_name(stem.name + suffix), text) for suffix, text in texts.items()]


def to_markdown(table: Table) -> str:
    """Pipe table with its caption above and its note below."""
    lines = [[_markdown_cell(cell) for cell in row] for row in _rows(table.shown)]
    head, body = lines[0], lines[1:]
    ruled = [head, ["---"] * len(head), *body]
    text = "\n".join("| " + " | ".join(row) + " |" for row in ruled)
    return "\n\n".join(part for part in (f"**{table.caption}**", text, table.note) if part) + "\n"


def to_html(table: Table) -> str:
    """HTML fragment: a sortable table with caption; the note is a paragraph below it."""
    head, *body = _rows(table.shown)
    cells = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    rows = "\n".join("<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in body)
    note = f"{NOTE}{html.escape(table.note)}</p>\n" if table.note else ""
    box = "scroll wide" if len(head) > WIDE else "scroll"
    return (
        f'<div class="{box}" tabindex="0"><table class="sortable">\n'
        f"<caption><span>{html.escape(table.caption)}</span></caption>\n"
        f"<thead><tr>{cells}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>\n{note}"
    )


def to_latex(table: Table, label: str) -> str:
    """LaTeX float for the package booktabs."""
    head, *body = ([_latex_cell(cell) for cell in row] for row in _rows(table.shown))
    lines = [" & ".join(row) + r" \\" for row in body]
    note = [rf"\par\smallskip {escape_latex(table.note)}"] if table.note else []
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\footnotesize",
            rf"\caption{{{escape_latex(table.caption)}}}\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            *note,
            r"\end{table}",
            "",
        ]
    )


def escape_latex(text: str) -> str:
    """Text in which every character that LaTeX reserves is escaped."""
    return "".join(_LATEX.get(character, character) for character in text)


def number(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits and no exponent between 1e-4 and 1e6; '-' where it is not known."""
    if value is None or not np.isfinite(value):
        return "-"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - _magnitude(value), 0)}f}"


def decimals(spreads: pd.Series | np.ndarray, fallback: int = 3) -> int:
    """Decimals that show two significant digits of the typical spread, at least 0 and at most 4."""
    spreads = np.asarray(spreads, dtype=float)
    spreads = spreads[np.isfinite(spreads) & (spreads > 0)]
    return int(np.clip(1 - _magnitude(np.median(spreads)), 0, 4)) if spreads.size else fallback


def _magnitude(value: float) -> int:
    return int(np.floor(np.log10(abs(value)))) if value else 0


def _rows(frame: pd.DataFrame) -> list[list[str]]:
    return [list(map(str, frame.columns)), *(list(map(str, row)) for row in frame.itertuples(index=False))]


def _bold(cell: str) -> tuple[str, bool]:
    bold = cell.startswith("**") and cell.endswith("**") and len(cell) > 4
    return (cell[2:-2], True) if bold else (cell, False)


def _markdown_cell(cell: str) -> str:
    text, bold = _bold(cell)
    text = " ".join(text.split()).replace("|", "\\|").replace("_", "\\_").replace("*", "\\*").replace("<", "&lt;")
    return f"**{text}**" if bold else text


def _html_cell(cell: str) -> str:
    text, bold = _bold(cell)
    value = leading_number(text)
    # the page sorts by data-value
    kind = "" if value is None else f' class="number" data-value="{value}"'
    text = html.escape(text)
    return f"<td{kind}><strong>{text}</strong></td>" if bold else f"<td{kind}>{text}</td>"


def leading_number(text: str) -> float | None:
    """What a cell is sorted by: its first number, of '2.31 ± 0.02 (5)' or '< 0.001' say; None for other text."""
    found = _NUMBER.match(text)
    return float(found[1].replace("−", "-").replace(",", "")) if found else None


def _latex_cell(cell: str) -> str:
    text, bold = _bold(cell)
    text = escape_latex(" ".join(text.split()))
    return rf"\textbf{{{text}}}" if bold else text
