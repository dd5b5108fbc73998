"""The picture of a data set: its images (whole, or inputs and targets), columns, events or bins."""

import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, StrMethodFormatter

from gpbench.config.schema import Dataset
from gpbench.data.summary import class_counts
from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.places import write_aside
from gpbench.report.figures import STYLE

WIDTH = 6.0  # inches: 1200 pixels
BLUE, ORANGE = "#0072B2", "#D55E00"
INPUTS, PER_ROW = 16, 4  # panels of inputs
EXAMPLES, LINES = 10, 5  # images of a class, or of a line; lines where there are no classes
SAMPLE, POINTS = 50_000, 3_000  # rows that stand for all in distributions, and in a scatter plot
BINS = 30


def save(table: Table, dataset: Dataset, path: Path) -> None:
    """Write the picture of a data set as PNG, 1200 pixels wide."""
    with style.context(["default", STYLE, {"text.parse_math": False}]), write_aside(path) as temporary:
        draw(table, dataset).savefig(temporary, format="png")


def draw(table: Table, dataset: Dataset) -> Figure:
    """The picture as a figure: images, events, bins or columns, whichever the data set consists of."""
    if dataset.task == "events":
        figure = _events(table, dataset)
    elif dataset.images:
        figure = (_images if dataset.classes else _completed)(table, dataset)
    else:
        figure = (_bins if dataset.source.bins else _columns)(table, dataset)
    inputs = "" if dataset.task == "events" else f", {table.inputs.shape[1]:,} inputs"
    title = f"{dataset.title} ({dataset.name}): {len(table.inputs):,} rows{inputs}"
    figure.suptitle(textwrap.fill(title, 70), fontweight="bold")
    return figure


def _figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def _images(table: Table, dataset: Dataset) -> Figure:
    """The first images of every class, one row per class, beside the number of rows of each class."""
    counts = class_counts(table, dataset)
    figure = _figure(0.9 + 0.42 * len(counts))
    left, right = figure.subplots(1, 2, width_ratios=[3, 1])
    members = [np.flatnonzero(table.targets[:, 0] == label)[:EXAMPLES] for label in range(len(counts))]
    grid, side = mosaic(table.inputs, members, EXAMPLES)
    paint(left, grid)
    left.set_title(f"the first {EXAMPLES} of each class, {side} x {side} pixels", loc="left")
    left.set_yticks([side / 2 + i * (side + 1) for i in range(len(counts))], _short(dataset.classes))
    right.set_box_aspect(3 * grid.shape[0] / grid.shape[1])  # as high as the images, a bar beside its row
    _class_bars(right, counts, [""] * len(counts))
    return figure


def _completed(table: Table, dataset: Dataset) -> Figure:
    """Images spread evenly over the rows; input pixels are above the line, target pixels below."""
    chosen = np.linspace(0, len(table.inputs) - 1, LINES * EXAMPLES).round().astype(int)
    grid, side = mosaic(np.hstack([table.inputs, table.targets]), np.split(chosen, LINES), EXAMPLES)
    figure = _figure(0.9 + 0.62 * LINES)
    axis = figure.subplots()
    paint(axis, grid)
    axis.set_title(f"{side} x {side} pixels: inputs above the lines, targets below", loc="left")
    for line in range(LINES):
        axis.axhline(line * (side + 1) + table.inputs.shape[1] / side - 0.5, color=ORANGE, linewidth=0.8)
    return figure


def _events(table: Table, dataset: Dataset) -> Figure:
    """Events in their window: counts above a rug in one dimension, else a map of the first two dimensions."""
    labels = [_label(dataset, name) for name in table.input_names]
    window = dataset.window or [(column.min(), column.max()) for column in table.inputs.T]
    if len(labels) == 1:
        figure = _figure(3.2)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        upper.hist(table.inputs[:, 0], bins=BINS, range=window[0], color=BLUE)
        upper.set_ylabel("events")
        lower.eventplot(table.inputs[:, 0], colors=BLUE, linewidths=0.6)
        lower.set(xlabel=labels[0], yticks=[], xlim=window[0])
        return figure
    figure = _figure(6.0)
    axis = figure.subplots()
    x, y = table.inputs[_sample(len(table.inputs), SAMPLE), :2].T
    axis.scatter(x, y, s=8, color=BLUE, alpha=0.7, linewidths=0)
    axis.set(xlabel=labels[0], ylabel=labels[1], xlim=window[0], ylim=window[1], aspect="equal")
    axis.spines[:].set_visible(True)
    return figure


def _bins(table: Table, dataset: Dataset) -> Figure:
    """Counts of bins: bars in one dimension, else a map of the first two dimensions."""
    *inputs, count = (_label(dataset, name) for name in (*table.input_names, table.target_names[0]))
    bins, window = dataset.source.bins, dataset.window
    figure = _figure(3.2 if len(bins) == 1 else 5.9)
    axis = figure.subplots()
    if len(bins) == 1:
        axis.bar(table.inputs[:, 0], table.targets[:, 0], width=np.diff(window[0]) / bins[0], color=BLUE)
    else:
        grid = table.targets.reshape(*bins[:2], -1).sum(-1).T  # the second coordinate in rows
        (left, right), (bottom, top) = window[:2]
        painted = axis.imshow(grid, "Blues", origin="lower", extent=(left, right, bottom, top), interpolation="nearest")
        figure.colorbar(painted, label=count, ticks=MaxNLocator(integer=True), shrink=0.8)
        axis.grid(False)
    axis.set(xlabel=inputs[0], ylabel=(*inputs, count)[1], xlim=window[0])
    return figure


def _columns(table: Table, dataset: Dataset) -> Figure:
    """Targets, the first target against its most correlated input, and the distributions of up to 16 inputs."""
    rows = _sample(len(table.inputs), SAMPLE)
    predicted = len(table.target_names) - len(dataset.truth)
    inputs, targets = table.inputs[rows].astype(float), table.targets[rows, :predicted]
    share = _explained(inputs, targets[:, 0], bool(dataset.classes))
    chosen = np.sort(np.argsort(-share, kind="stable")[:INPUTS])
    lines = -(-len(chosen) // PER_ROW)
    first = max(2.0, 0.8 + 0.22 * len(dataset.classes))
    figure = _figure(first + 1.25 * lines + 0.5)
    (above,), (below,) = figure.subfigures(2, 1, squeeze=False, height_ratios=[first, 1.25 * lines + 0.2])

    panels = above.subplots(1, targets.shape[1] + 1, squeeze=False)[0]
    if dataset.classes:
        _class_bars(panels[0], class_counts(table, dataset), _short(dataset.classes))
    else:
        for axis, name, values in zip(panels, table.target_names, targets.T, strict=False):
            _histogram(axis, values, f"target {_label(dataset, name)}", ORANGE)
        panels[0].set_ylabel(f"rows of {len(rows):,}")
    if dataset.classes and inputs.shape[1] == 2:
        _map(panels[-1], inputs, targets[:, 0], table, dataset)
    else:
        _strongest(panels[-1], inputs, targets[:, 0], share, table, dataset)

    if len(chosen) < inputs.shape[1]:
        text = f"the {INPUTS} inputs of {inputs.shape[1]} that correlate most with the target"
        below.suptitle(text, fontsize="medium")
    axes = list(below.subplots(lines, PER_ROW, squeeze=False).flat)
    for axis, j in zip(axes, chosen, strict=False):
        _histogram(axis, inputs[:, j], _label(dataset, table.input_names[j]), BLUE)
    for axis in axes[len(chosen) :]:
        axis.set_axis_off()
    return figure


def _explained(inputs: np.ndarray, target: np.ndarray, classes: bool) -> np.ndarray:
    """Share of the variance of each input `[D]` explained by the target: r^2, or eta^2 for classes."""
    centred = inputs - inputs.mean(0)
    total = (centred**2).sum(0)
    if classes:
        members = [centred[target == label] for label in np.unique(target)]
        common = sum(len(rows) * rows.mean(0) ** 2 for rows in members)
    else:
        deviation = target - target.mean()
        common = (deviation @ centred) ** 2 / max(deviation @ deviation, np.finfo(float).tiny)
    return np.divide(common, total, out=np.zeros(len(total)), where=np.ptp(inputs, 0) > 0)


def _strongest(axis: Axes, x: np.ndarray, y: np.ndarray, share: np.ndarray, table: Table, dataset: Dataset) -> None:
    best = int(np.argmax(share))
    if dataset.classes:
        places = range(len(dataset.classes))
        box: dict[str, Any] = {"orientation": "horizontal", "showfliers": False, "medianprops": {"color": ORANGE}}
        axis.boxplot([x[y == label, best] for label in places], positions=places, widths=0.6, **box)
        axis.set_yticks(places, [""] * len(places))
        axis.set_ylim(len(places) - 0.5, -0.5)
    else:
        rows = _sample(len(x), POINTS)
        axis.scatter(x[rows, best], y[rows], s=5, color=ORANGE, alpha=0.4, linewidths=0)
        axis.set_ylabel(_label(dataset, table.target_names[0]))
    axis.set_xlabel(_label(dataset, table.input_names[best]))
    axis.set_title(f"largest {'η²' if dataset.classes else 'r²'}: {share[best]:.2f}", loc="left")


def _map(axis: Axes, inputs: np.ndarray, target: np.ndarray, table: Table, dataset: Dataset) -> None:
    rows = _sample(len(inputs), POINTS)
    for label, name in enumerate(dataset.classes):
        x, y = inputs[rows[target[rows] == label]].T
        axis.scatter(x, y, s=5, alpha=0.6, linewidths=0, color=f"C{label}", label=name)
    axis.set(xlabel=_label(dataset, table.input_names[0]), ylabel=_label(dataset, table.input_names[1]))
    axis.legend(loc="upper left", markerscale=2)


def _class_bars(axis: Axes, counts: np.ndarray, names: list[str]) -> None:
    bars = axis.barh(range(len(counts)), counts, color=ORANGE)
    axis.bar_label(bars, [f"{n:,}" for n in counts], padding=2, fontsize="small")
    axis.set_yticks(range(len(counts)), names)
    axis.set(xlabel="rows", ylim=(len(counts) - 0.5, -0.5))
    axis.margins(x=0.25)
    axis.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.grid(False, axis="y")


def _histogram(axis: Axes, values: np.ndarray, label: str, color: str) -> None:
    """Bars at the distinct values where these lie on a coarse grid, else bins of equal width.

    Only the middle 99 % are drawn where a few outliers would squeeze the rest into one or two bars."""
    low, high = np.percentile(values, [0.5, 99.5])
    if 0 < high - low < np.ptp(values) / 4:
        values = values[(values >= low) & (values <= high)]
        axis.text(1, 1, "middle 99 %", transform=axis.transAxes, ha="right", va="top", fontsize="x-small")
    distinct, counts = np.unique(values, return_counts=True)
    gap = np.diff(distinct).min() if len(distinct) > 1 else 1.0
    if 2 * BINS * gap >= np.ptp(distinct):
        axis.bar(distinct, counts, width=0.8 * gap, color=color)
    else:
        axis.hist(values, bins=BINS, color=color)
    whole = bool(np.all(distinct == np.round(distinct)))
    axis.set_xlabel(label)
    few = len(distinct) <= 2
    axis.xaxis.set_major_locator(FixedLocator(distinct.tolist()) if few else MaxNLocator(3, integer=whole))
    axis.yaxis.set_major_locator(MaxNLocator(3, integer=True))


def _label(dataset: Dataset, name: str) -> str:
    """Name and unit, wrapped to a panel's width after underscores."""
    unit = dataset.units.get(name)
    text = f"{name} [{unit.replace(' ', chr(0xA0))}]" if unit else name
    return textwrap.fill(text.replace("_", "_ "), 20, break_long_words=False).replace("_ ", "_")


def _short(names: list[str]) -> list[str]:
    return [name if len(name) <= 18 else f"{name[:17]}…" for name in names]


def _sample(rows: int, size: int) -> np.ndarray:
    """At most `size` row numbers, sorted, always the same ones."""
    return np.arange(rows) if rows <= size else np.sort(np.random.default_rng(0).choice(rows, size, replace=False))


def mosaic(pixels: np.ndarray, lines: list[np.ndarray], across: int) -> tuple[np.ndarray, int]:
    """A grid of square images and the side of one; lines: for each line of the grid, rows of pixels `[N, side^2]`.

    The grid is `[lines (side + 1), across (side + 1)]`, blank (NaN) between images and where a line is short; NaN
    pixels stay blank. Raises UserError where images are not square."""
    side = math.isqrt(pixels.shape[1])
    if side**2 != pixels.shape[1]:
        raise UserError(f"{pixels.shape[1]} pixels do not make a square image; check 'images' in the catalogue entry")
    grid = np.full((len(lines) * (side + 1), across * (side + 1)), np.nan)
    for line, rows in enumerate(lines):
        for i, row in enumerate(rows):
            y, x = line * (side + 1), i * (side + 1)
            grid[y : y + side, x : x + side] = pixels[row].reshape(side, side)
    return grid, side


def paint(axis: Axes, grid: np.ndarray, cmap: str = "gray_r", **options) -> None:
    """Draw a mosaic, by default in shades of grey, dark for large values, without axes; options go to imshow."""
    axis.imshow(grid, cmap=cmap, interpolation="nearest", aspect="equal", **options)
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    axis.spines[:].set_visible(False)
