"""What the figures share: panels, titles and remarks, one look per method, legends, empty panels, cells."""

import itertools
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.typing import LineStyleType

from gpbench.errors import count
from gpbench.report.view import UNMIXED, View

WIDTH = 6.9  # inches: the text width of a page
GREY = "#777777"  # of remarks and reference lines
NO_CHAINS = "No chains: no sampler has enough finished ones, or these are committed records, which keep no draws."

Name = TypeVar("Name", str, int)
Style = dict[str, Any]  # keyword arguments of a matplotlib function, whose types only that function knows

# Okabe and Ito's palette; grey stands for its yellow, which is too pale on paper.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#808080")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
_LINES: list[LineStyleType] = ["-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1, 1, 1, 1, 1))]


class Nothing(Exception):
    """Why there is nothing to draw."""


def require(drawable: object, reason: str = "No fit of this study is finished.") -> None:
    """Raise Nothing, of which `figures.drawn` makes an empty figure, where nothing was found."""
    if not drawable:
        raise Nothing(reason)


@dataclass(frozen=True)
class Look:
    """Colour, marker and line of a method; markers and lines tell methods apart in greyscale."""

    label: str
    color: str
    marker: str
    linestyle: LineStyleType

    @property
    def options(self) -> Style:
        """Options of a matplotlib line."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.linestyle}


def looks(view: View) -> dict[str, Look]:
    """One look per method, the same in every figure of a study."""
    return looks_of({method: view.labels[method] for method in view.methods})


def looks_of(labels: dict[Name, str]) -> dict[Name, Look]:
    """One look per name, in this order; labels: name -> text of the legend."""
    return {name: Look(labels[name], _COLOURS[i % 8], _MARKERS[i % 9], _LINES[i % 5]) for i, name in enumerate(labels)}


def chain_looks(chains: Iterable[int]) -> dict[int, Look]:
    """One colour per chain, without markers."""
    looks = looks_of({chain: f"chain {chain + 1}" for chain in sorted(set(chains))})
    return {chain: replace(look, marker="", linestyle="-") for chain, look in looks.items()}


def panels(
    rows: int, columns: int, height: float, x: str = "", y: str = "", **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure of `rows x columns` axes, `height` inches a row, laid out without overlaps.

    x labels the panels of the last row, y those of the first column."""
    figure = Figure(figsize=(WIDTH, max(rows * height + 0.6, 1.5)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes[-1]:
        axis.set_xlabel(x)
    for axis in axes[:, 0]:
        axis.set_ylabel(y)
    return figure, axes


def titled(
    titles: Sequence[str], height: float, columns: int = 4, x: str = "", y: str = "", **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title, in rows of at most `columns`; the places left over stay blank.

    x labels the panels that have none below, y those of the first column."""
    columns = min(columns, len(titles))
    figure, axes = panels(-(-len(titles) // columns), columns, height, y=y, **options)
    for i, axis in enumerate(axes.flat):
        if i >= len(titles):
            axis.axis("off")
            continue
        title(axis, titles[i])
        axis.set_xlabel(x if i + columns >= len(titles) else "")
    return figure, list(axes.flat[: len(titles)])


def present(names: Iterable[str], column: Iterable[str]) -> list[str]:
    """The names that occur in a column, in their given order."""
    values = set(column)
    return [name for name in names if name in values]


def empty(reason: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    figure, axes = panels(1, 1, 1.2)
    figure.set_label(reason)  # becomes the description of the PNG, which the page reads
    write_reason(axes[0, 0], reason)
    return figure


def probed(view: View, content: str, *probes: str) -> list[pd.DataFrame]:
    """The results of probes; raises Nothing where a study lacks some."""
    results = [view.probe(probe) for probe in probes]
    files = " or ".join(f"{probe}.parquet" for probe in probes)
    request = f"`probes: [{', '.join(probes)}]` of the study"
    require(all(map(len, results)), f"No {content}: {files} is missing, or no fit is finished\n({request}).")
    return results


def write_reason(axis: Axes, reason: str) -> None:
    """Blank a panel but for its title and labels, and write why it is blank."""
    axis.tick_params(which="both", length=0, labelbottom=False, labelleft=False)  # ticks may be shared
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.text(0.5, 0.5, reason, ha="center", va="center", transform=axis.transAxes, color="#555555", wrap=True)


def legend(figure: Figure, view: View, methods: Iterable[str], lines: bool = True, marks: bool = True) -> None:
    """One legend of methods below all panels; lines, marks: whether the panels have them."""
    look = {method: look if marks else replace(look, marker="") for method, look in looks(view).items()}
    legend_of(figure, [look[method] for method in present(view.methods, methods)], lines)


def legend_of(figure: Figure, shown: list[Look], lines: bool = True) -> None:
    """One legend below all panels, in as many columns as its labels leave room for; none without entries."""
    if shown:
        columns = int(min(max(WIDTH / (0.06 * max(len(look.label) for look in shown) + 0.6), 1), 6))
        rows = -(-len(shown) // columns)
        figure.set_figheight(figure.get_figheight() + 0.16 * max(rows - 2, 0))  # panels keep their height
        entries = [(look.label, look.options | ({} if lines else {"linestyle": "none"})) for look in shown]
        legend_of_marks(figure, entries, -(-len(shown) // rows))


def legend_of_marks(figure: Figure, entries: Iterable[tuple[str, Style]], columns: int) -> None:
    """One legend below all panels; entries: label, and options of its line."""
    handles = [Line2D([], [], label=label, **style) for label, style in entries]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def broken(text: str, width: int = 26) -> str:
    """Text in lines of at most so many characters, but for longer words."""
    return "\n".join(textwrap.fill(line, width, break_long_words=False) for line in text.split("\n"))


def row(view: View) -> float:
    """Height of a row that holds the `broken` label of any method, relative to that of a single line."""
    return 1 + max(broken(label).count("\n") for label in view.labels.values()) / 2


def title(axis: Axes, text: str) -> None:
    """A bold title above a panel, on the left, in lines as wide as the panel."""
    width = round(18 * WIDTH * axis.get_position().width)  # of about 18 characters an inch, before panels are laid out
    axis.set_title(broken(text, width), loc="left", fontweight="bold")


def remark(axis: Axes, text: str) -> None:
    """A small grey line above a panel, on the right and below its title."""
    if text and (above := axis.get_title(loc="left")):
        title(axis, f"{above}\n")
    axis.set_title(text, loc="right", fontsize=6.5, color=GREY)


def log_x(axis: Axes) -> None:
    """A logarithmic axis of what is drawn; within two decades, where usual labels overlap, with a few plain numbers."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    if high < 100 * low:
        axis.xaxis.set_major_locator(MaxNLocator(3) if high < 10 * low else LogLocator(subs=(1, 3)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_locator(NullLocator())


def remark_incomplete(axis: Axes, cells: pd.DataFrame) -> None:
    """A remark that counts cells that lack splits (but not what no run makes), have not converged, or still improve."""
    unfinished = ~cells["complete"] & ~cells["statuses"].str.startswith(("skipped", "not planned"))
    unmixed = unfinished & (cells["n"] == cells["expected"]) & cells["statuses"].str.contains(UNMIXED)
    counts = {"incomplete": unfinished & ~unmixed, UNMIXED: unmixed, "still improving": cells["improving"] > 0}
    remark(axis, ", ".join(f"{which.sum()} {state}" for state, which in counts.items() if which.any()))


def headline(figure: Figure, text: str) -> None:
    """A small grey line above all panels, if there is anything to say."""
    if text:
        figure.suptitle(text, fontsize=6.5, color=GREY)


def note(axis: Axes, x: float, y: float, text: str, ha: str = "center", va: str = "center", **options: Any) -> None:
    """Small grey text inside or beside a panel."""
    axis.text(x, y, text, fontsize=6.5, color=GREY, ha=ha, va=va, **options)


def short_reason(cell: pd.Series, width: int = 34) -> str:
    """Why a cell has no score, in at most so many characters."""
    return textwrap.shorten(cell["statuses"], width, placeholder=" …")


def upright_reason(axis: Axes, x: float, cell: pd.Series) -> None:
    """Why a cell has no score, upwards in its column and below the title."""
    note(axis, x, 0.05, short_reason(cell, 20), va="bottom", rotation=90, transform=axis.get_xaxis_transform())


def name_rows(axis: Axes, view: View) -> None:
    """One row per method from top to bottom, with its label."""
    axis.set_yticks(range(len(view.methods)), [broken(view.labels[method]) for method in view.methods])
    axis.set_ylim(len(view.methods) - 0.4, -0.6)


def name_columns(axis: Axes, view: View, methods: Iterable[str]) -> None:
    """One column per method from 0 on, with its label."""
    labels = [broken(view.labels[method]) for method in methods]
    axis.set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=6)
    axis.set_xlim(-0.6, len(labels) - 0.4)


def box(axis: Axes, x: float, values: pd.Series, color: str, size: float) -> None:
    """Median, quartiles and whiskers of values at x, and points beyond them, `size` large, all in one colour."""
    lines: Style = dict.fromkeys(("boxprops", "whiskerprops", "capprops", "medianprops"), {"color": color})
    points = {"marker": ".", "markersize": size, "markeredgecolor": color}
    axis.boxplot([values], positions=[x], widths=0.5, flierprops=points, **lines)


def by_method(view: View, rows: pd.DataFrame) -> list[tuple[Look, pd.DataFrame]]:
    """The look and the rows of every method that has some, in the study's order."""
    groups = dict(iter(rows.groupby("method")))
    return [(look, groups[method]) for method, look in looks(view).items() if method in groups]


def by_dataset(axes: Iterable[Any], names: Iterable[str], rows: pd.DataFrame) -> list[tuple[Any, str, pd.DataFrame]]:
    """Each panel (or line of panels) with its data set and the rows of that."""
    return [(axis, name, rows[rows["dataset"] == name]) for axis, name in zip(axes, names, strict=True)]


def tick_settings(axis: Axes, values: pd.Series, scale: str = "linear") -> None:
    """An x axis with one tick per value of a setting."""
    axis.set_xscale(scale)
    axis.xaxis.set_minor_locator(NullLocator())
    ticks = sorted(values.unique())
    axis.set_xticks(ticks, [str(tick) for tick in ticks])


def by_cell(view: View, rows: pd.DataFrame, unfinished: bool = False) -> dict[tuple[str, str], pd.DataFrame]:
    """(data set, method) -> rows of its first split, of all chains, in the study's order.

    With `unfinished`, cells without a finished fit have no rows; finished cells without rows cannot be probed."""
    first = rows[rows["split"] == rows.groupby(["dataset", "method"])["split"].transform("min")]
    groups = {cell: group for cell, group in first.groupby(["dataset", "method"])}
    done = set(zip(view.done["dataset"], view.done["method"], strict=True))
    cells = itertools.product(view.datasets, view.methods)
    shown = [cell for cell in cells if cell in groups or (unfinished and cell not in done)]
    return {cell: groups.get(cell, rows.iloc[:0]) for cell in shown}


def cell_label(view: View, dataset: str, method: str) -> str:
    """The method's label, after the data set where the study has several."""
    return view.labels[method] if len(view.datasets) == 1 else f"{dataset}: {view.labels[method]}"


def mixing(view: View, rows: pd.DataFrame, column: str = "r_hat") -> str:
    """R-hat and number of the chains that a probe's rows come from; '' if they come from none."""
    fits = view.done[view.done["fit_id"].isin(rows["fit_id"])]
    value = float(fits[column].iloc[0])
    failed = f", {UNMIXED}" if (fits["status"] == UNMIXED).any() else ""
    return f"R-hat {value:.3f}, {count(len(fits), 'chain')}{failed}" if np.isfinite(value) else ""
