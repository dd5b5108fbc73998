"""A table as CSV, Markdown, HTML and LaTeX, and numbers as text."""

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from gpbench.places import write_text

_MATHS = (  # each character before what LaTeX sets in its place
    r"±\pm ≈\approx ≤\leq ≥\geq −- ×\times ✗\times ↗\nearrow †\dagger ∞\infty << >> "
    r"α\alpha β\beta γ\gamma δ\delta ε\epsilon ζ\zeta η\eta θ\theta ι\iota κ\kappa λ\lambda μ\mu ν\nu ξ\xi π\pi ρ\rho "
    r"σ\sigma τ\tau υ\upsilon φ\phi χ\chi ψ\psi ω\omega Γ\Gamma Δ\Delta Θ\Theta Λ\Lambda Ξ\Xi Π\Pi Σ\Sigma Υ\Upsilon "
    r"Φ\Phi Ψ\Psi Ω\Omega ⁰^0 ¹^1 ²^2 ³^3 ⁴^4 ⁵^5 ⁶^6 ⁷^7 ⁸^8 ⁹^9 ₀_0 ₁_1 ₂_2 ₃_3 ₄_4 ₅_5 ₆_6 ₇_7 ₈_8 ₉_9"
)
_LATEX = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"},
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{pair[0]: f"${pair[1:]}$" for pair in _MATHS.split()},
    **{"…": r"\dots{}", "–": "--"},
}
# a number at the start, followed by a space, a bracket, a mark or nothing: '3-layer DGP' and '2024-01-01' are names
_NUMBER = re.compile(
    r"[<>≤≥≈~\s]*([-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?)(?=$|[\s(/%±≈✗↗†,;])", re.IGNORECASE
)

NOTE = '<p class="note">'
WIDE = 8  # columns beyond which a table is printed across the page


@dataclass(frozen=True)
class Table:
    """data: numbers, for the CSV; shown: cells as text (`**bold**` allowed); caption; note: how to read the table."""

    data: pd.DataFrame
    shown: pd.DataFrame
    caption: str
    note: str = ""

    @classmethod
    def of(cls, rows: Sequence[object], columns: list[str], caption: str, note: str = "") -> Self:
        """A table whose numbers are shown as they are."""
        frame = pd.DataFrame(rows, columns=columns)
        return cls(frame, frame, caption, note)


def write_formats(table: Table, stem: Path) -> list[Path]:
    """Write `stem`.csv, .md, .html and .tex."""
    texts = {
        ".csv": table.data.to_csv(index=False, lineterminator="\n"),
        ".md": to_markdown(table),
        ".html": to_html(table),
        ".tex": to_latex(table, stem.name),
    }
    return [write_text(stem.with_name(stem.name + suffix), text) for suffix, text in texts.items()]


def to_markdown(table: Table) -> str:
    """Pipe table with its caption above and its note below."""
    head, *body = [[_markdown_cell(cell) for cell in row] for row in _rows(table.shown)]
    text = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])
    parts = (f"**{escape_markdown(table.caption)}**", text, escape_markdown(table.note))
    return "\n\n".join(filter(None, parts)) + "\n"


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
    shown = table.shown.map(_latex_cell).rename(columns=_latex_cell)
    columns = "l" + "r" * (len(shown.columns) - 1)
    caption = escape_latex(table.caption)
    text = shown.to_latex(index=False, column_format=columns, caption=caption, label=f"tab:{label}")
    note = rf"\par\smallskip {escape_latex(table.note)}" + "\n" if table.note else ""
    text = text.replace("\\begin{table}\n", "\\begin{table}\n\\centering\\footnotesize\n")
    return "% needs \\usepackage{booktabs}\n" + text.replace("\\end{table}", note + "\\end{table}")


def escape_markdown(text: str) -> str:
    """Text on one line of which nothing outside `code` is markup or HTML."""
    parts = re.split("(?<!`)(`[^`]+`)(?!`)", " ".join(text.split()))
    # `](` begins an address, and { attributes
    parts[::2] = [re.sub(r"[\\*_|{]|(?<=])\(", r"\\\g<0>", plain).replace("<", "&lt;") for plain in parts[::2]]
    return "".join(parts)


def escape_latex(text: str) -> str:
    """Text with LaTeX's reserved characters escaped."""
    return "".join(_LATEX.get(character, character) for character in text)


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits and no exponent between 1e-4 and 1e6; '-' where it is unknown."""
    if value is None or np.isnan(value):
        return "-"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - _magnitude(value), 0)}f}"


def moments(values: pd.Series) -> dict[str, Any]:
    """Mean, standard deviation (ddof = 1) and number of what is known."""
    return {"mean": values.mean(), "sd": values.std(ddof=1), "n": int(values.count())}


def mean_sd(mean: float, sd: float, n: int | str, places: int = 3) -> str:
    """'2.31 ± 0.02 (5)', without ± where the sd is unknown; '-' for an unknown mean."""
    if not np.isfinite(mean):
        return "-"
    spread = f" ± {sd:.{places}f}" if np.isfinite(sd) else ""
    return f"{mean:.{places}f}{spread} ({n})"


def signed(value: float, lower: float = math.nan, upper: float = math.nan, places: int = 3) -> str:
    """'+0.031 [-0.002, +0.064]', without brackets where the interval is unknown; '-' for an unknown value."""
    if not np.isfinite(value):
        return "-"
    return f"{value:+.{places}f}" + (f" [{lower:+.{places}f}, {upper:+.{places}f}]" if np.isfinite(lower) else "")


def decimals(spreads: pd.Series | np.ndarray) -> int:
    """Decimals that show two significant digits of the typical spread, at least 0 and at most 6; 3 without a spread."""
    spreads = np.asarray(spreads, dtype=float)
    spreads = spreads[np.isfinite(spreads) & (spreads > 0)]
    return int(np.clip(1 - _magnitude(np.median(spreads)), 0, 6)) if spreads.size else 3


def _magnitude(value: float) -> int:
    return int(np.floor(np.log10(abs(value)))) if value else 0


def _rows(frame: pd.DataFrame) -> list[list[str]]:
    return [list(map(str, frame.columns)), *(list(map(str, row)) for row in frame.itertuples(index=False))]


def _bold(cell: str) -> tuple[str, bool]:
    bold = cell.startswith("**") and cell.endswith("**") and len(cell) > 4
    return (cell[2:-2], True) if bold else (cell, False)


def _markdown_cell(cell: str) -> str:
    text, bold = _bold(cell)
    text = re.sub(r"(?<!\\)\|", r"\\|", escape_markdown(text))  # which ends a cell even in code
    return f"**{text}**" if bold else text


def _html_cell(cell: str) -> str:
    text, bold = _bold(cell)
    value = leading_number(text)
    # the page sorts by data-value
    kind = "" if value is None else f' class="number" data-value="{value}"'
    text = html.escape(text)
    return f"<td{kind}><strong>{text}</strong></td>" if bold else f"<td{kind}>{text}</td>"


def leading_number(text: str) -> float | None:
    """The number that a cell is sorted by, as in '2.31 ± 0.02 (5)' or '< 0.001'; None for other text."""
    match = _NUMBER.match(text)
    return float(match[1].replace("−", "-").replace(",", "")) if match else None


def _latex_cell(cell: object) -> str:
    text, bold = _bold(str(cell))
    text = escape_latex(" ".join(text.split()))
    text = "{}" * text.startswith(("[", "*")) + text  # after a line break these would be arguments of it
    return rf"\textbf{{{text}}}" if bold else text
