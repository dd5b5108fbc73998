"""The tour: `python docs/website/notebook.py OUT.ipynb` runs docs/tour.ipynb; `page` makes Markdown of what it made."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import nbformat

TOUR = Path(__file__).parents[1] / "tour.ipynb"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def execute(source: Path, target: Path) -> None:
    """Run every cell of a notebook in the folder of the project; an error of a cell ends it."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.read(source, as_version=4)
    private = Config({"KernelManager": {"transport": "ipc"}})  # no port that others on the machine could reach
    place = {"metadata": {"path": str(TOUR.parents[1])}}
    NotebookClient(notebook, config=private, timeout=600, resources=place).execute()
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


def page(notebook: nbformat.NotebookNode) -> str:
    """Markdown of a notebook and its outputs."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.source:
            parts.append(f"```python\n{cell.source}\n```")
            parts += [text for output in cell.outputs if (text := shown(output, cell.metadata.get("alt", "")))]
    return "\n\n".join(parts) + "\n"


def shown(output: nbformat.NotebookNode, alt: str) -> str:
    """One output of a cell: a picture with its text, a table or text; nothing of what goes to standard error."""
    if output.output_type == "stream":
        return _text(output.text) if output.name == "stdout" else ""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data["image/png"].strip()}">'
    if "text/html" in data:
        table = re.search(r"<table.*</table>", data["text/html"], re.DOTALL)
        return f'<div class="scroll" tabindex="0">{_plain(table[0])}</div>' if table else _text(data["text/plain"])
    return _text(data.get("text/plain", ""))


def _plain(table: str) -> str:
    """A table of pandas without its border and empty lines."""
    return re.sub(r' border="1" class="dataframe"', ' class="frame"', re.sub(r"\n\s*", "\n", table))


def _text(text: str) -> str:
    text = COLOUR.sub("", text).rstrip()
    return f"```text\n{text}\n```" if text else ""


if __name__ == "__main__":
    execute(TOUR, Path(sys.argv[1]))
