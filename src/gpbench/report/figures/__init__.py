"""Draw and write the registered figures of a study. Matplotlib is imported where it is used: Snakemake digests the code
of every figure when it starts, which imports this package, and would take a second more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpbench.config.validate import require_known
from gpbench.errors import UserError
from gpbench.places import write_aside
from gpbench.report.registry import FIGURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpbench.report.view import View

STYLE = Path(__file__).parent.parent / "gpbench.mplstyle"
KINDS = ("pdf", "png")
Kinds = tuple[str, ...]
Tags = dict[str, str]


def draw(view: View, name: str) -> Figure:
    """The registered figure `name` of a study in the common style, with its run and budget; UserError if unknown."""
    require_known("figure", [name], FIGURES)

    def stamped(view: View) -> Figure:
        figure = FIGURES[name].function(view)
        if not hasattr(figure, "savefig"):
            raise UserError(f"figure {name!r}: {FIGURES[name].source} returned {type(figure).__name__}, no Figure")
        text = "{name}: protocol {protocol}, budget {budget}".format_map(view.study)
        if figure.legends:  # above its entries: below them is no place
            figure.legends[-1].set_title(text, {"size": 5.5})
            figure.legends[-1].get_title().set_color("#777777")
        else:
            figure.supxlabel(text, x=0.99, ha="right", fontsize=5.5, color="#777777")
        return figure

    return drawn(stamped, view)


def drawn(function: Callable[[Any], Figure], content: Any) -> Figure:
    """What a function draws in the common style; a figure that says why, where there is nothing to draw."""
    from matplotlib import style

    from gpbench.report.figures import canvas

    with style.context(["default", STYLE]):
        try:
            return function(content)
        except canvas.Nothing as reason:
            return canvas.empty(str(reason))


def write_figure(view: View, name: str, folder: str | Path, kinds: Kinds = KINDS, **metadata: str) -> list[Path]:
    """Draw a figure into `folder`/name.pdf and .png (200 dpi, with this metadata); equal data give equal bytes."""
    return save(draw(view, name), Path(folder) / name, kinds, png=metadata)


def save(
    figure: Figure, stem: Path, kinds: Kinds = KINDS, pdf: Tags | None = None, png: Tags | None = None
) -> list[Path]:
    """Write `stem`.pdf and .png with their metadata (of a PDF Title, Subject, ...) but without dates and versions."""
    from matplotlib import style

    why_empty = {"Description": str(figure.get_label())} if figure.get_label() else {}  # set by `canvas.empty`
    metadata: dict[str, dict[str, str | None]] = {
        "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, **(pdf or {})},
        "png": {"Software": None, **why_empty, **(png or {})},
    }
    with style.context(["default", STYLE]):
        if engine := figure.get_layout_engine():  # once for both files
            engine.execute(figure)
            figure.set_layout_engine("none")
        paths = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in kinds}
        for kind, path in paths.items():
            with write_aside(path) as temporary:
                figure.savefig(temporary, format=kind, metadata=metadata[kind])
        return list(paths.values())


def noted(path: Path, key: str) -> str:
    """What a PNG holds under a key of its metadata; '' where it has none, or is absent."""
    from PIL import Image

    if not path.is_file():
        return ""
    with Image.open(path) as image:
        return str(image.info.get(key, ""))
