"""Scores against a setting that a study varies (features, workers, inducing inputs, layers), or the training rows;
paired and unpaired tests of two objectives by depth (rossi2021)."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.errors import count
from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import canvas
from gpbench.report.figures.published import OPEN, published_scores, score_limits
from gpbench.report.significance.comparisons import ALPHA
from gpbench.report.tables import objectives
from gpbench.report.tables.by_setting import by_size, in_capitals
from gpbench.report.view import View

OF_CLASSIFIERS = ("accuracy", "auc", "capacity_accuracy", "capacity_auc")
ONE_PROCESS = canvas.Look("one process", "#555555", "", "--")
PAIRED = canvas.Look("paired over splits", "#0072B2", "o", "-")
UNPAIRED = canvas.Look("unpaired resamples (public code)", "#D55E00", "s", (0, (5, 1.5)))
LEVEL = canvas.Look(f"p = {ALPHA}", canvas.GREY, "", ":")


def features(view: View) -> Figure:
    """Error and MNLL against the number of features, one line per treatment of the frequencies."""
    grid = view.grid("frequencies", "num_features")
    _require(view, grid, "frequencies and num_features")
    look = canvas.looks_of({name: in_capitals(name) for name in grid["frequencies"].unique()})
    figure, axes = canvas.panels(2, len(view.datasets), 1.9, "random features", sharex=True)
    for dataset, column in zip(view.datasets, axes.T, strict=True):
        for axis, metric in zip(column, (view.error_metric(dataset), "mnll"), strict=True):
            cells = grid.merge(view.cells(metric).query("dataset == @dataset"), on="method")
            _draw_lines(axis, cells, "frequencies", "num_features", look)
            axis.set_ylabel(f"test {METRICS[metric].label}")
        canvas.title(column[0], dataset)
    for axis in axes[-1]:
        canvas.tick_settings(axis, grid["num_features"], "log")
    canvas.legend_of(figure, list(look.values()))
    return figure


def workers(view: View) -> Figure:
    """Seconds, error and staleness against the number of workers, one line per scheme; dashed: one process."""
    grid = view.grid("scheme", "workers")
    _require(view, grid, "scheme and workers")
    look = canvas.looks_of({name: name for name in grid["scheme"].unique()})
    figure, axes = canvas.panels(len(view.datasets), 3, 1.9, "workers", sharex=True)
    for dataset, row in zip(view.datasets, axes, strict=True):
        error = view.error_metric(dataset)
        for axis, metric in zip(row, ("seconds_train", error), strict=False):
            cells = view.cells(metric).query("dataset == @dataset")
            _draw_lines(axis, grid.merge(cells, on="method"), "scheme", "workers", look)
            for mean in cells.loc[~cells["method"].isin(grid["method"]) & (cells["n"] > 0), "mean"]:
                axis.axhline(mean, **ONE_PROCESS.options, linewidth=0.9)
        _draw_staleness(row[2], view, grid, dataset, look)
        canvas.title(row[0], dataset)
        row[0].set_ylabel("training seconds")
        canvas.remark(row[0], f"{view.study['machine']['cores']} cores")
        row[1].set_ylabel(f"test {METRICS[error].label}")
    for axis in axes[-1]:
        canvas.tick_settings(axis, grid["workers"], "log")
    canvas.legend_of(figure, [*look.values(), *[ONE_PROCESS] * (len(grid) < len(view.methods))])
    return figure


def curves(view: View, key: str) -> pd.DataFrame:
    """The methods of which the study sets `key`, with their curve: the label without the word that is that value."""
    grid = view.grid(key)
    words = [(view.labels[row.method].split(), str(getattr(row, key))) for row in grid.itertuples()]
    return grid.assign(curve=[" ".join(word for word in label if word != value) for label, value in words])


def _require(view: View, grid: pd.DataFrame, keys: str) -> None:
    canvas.require(len(grid), f"No method of this study sets {keys}.")
    canvas.require(len(view.done))


def _draw_lines(axis: Axes, cells: pd.DataFrame, by: str, key: str, look: dict[str, canvas.Look]) -> None:
    """Mean and standard deviation of cells; lines slightly apart, so that each shows its spread."""
    finished = cells[cells["n"] > 0]
    for i, (name, line) in enumerate(look.items()):
        rows = finished[finished[by] == name].sort_values(key)
        x = rows[key].astype(float) * 1.02 ** (i - (len(look) - 1) / 2)
        axis.errorbar(x, rows["mean"], yerr=np.nan_to_num(rows["sd"]), **line.options, elinewidth=0.7)
    if incomplete := len(cells) - int(cells["complete"].sum()):
        canvas.remark(axis, f"{incomplete} of {len(cells)} not complete")


def _draw_staleness(axis: Axes, view: View, grid: pd.DataFrame, dataset: str, look: dict[str, canvas.Look]) -> None:
    """Updates by other workers between the fetch of the parameters and the push of their gradient."""
    fits = view.done[(view.done["dataset"] == dataset) & view.done["staleness_mean"].notna()]
    if fits.empty:
        canvas.write_reason(axis, "no staleness\nrecorded")
        return
    values = fits.astype({"staleness_mean": float}).groupby("method")["staleness_mean"]
    cells = values.agg(["mean", "std", "size"]).set_axis(["mean", "sd", "n"], axis=1).assign(complete=True)
    _draw_lines(axis, grid.merge(cells.reset_index(), on="method"), "scheme", "workers", look)
    axis.set_ylabel("mean staleness (updates)")


def _against(view: View, key: str, name: str, scale: str, metric: str = "mnll", sds: int = 1) -> Figure:
    """One panel per data set, bars of so many sds of a metric (or the protocol's `first`); lines: no such setting."""
    metric = view.study["reported"]["metrics"][0] if metric == "first" else metric
    grid, card = curves(view, key), published_scores(view, metric)
    _require(view, grid, key)
    drawn = {*view.cells(metric).query("n > 0")["method"], *card["ours_method"]}
    without = [method for method in view.methods if method in drawn - set(grid["method"])]
    grid = grid[grid["method"].isin(drawn)]
    names = [*grid["curve"], *(view.labels[name] for name in without)]
    look = canvas.looks_of(dict(zip(names, names, strict=True)))
    look |= {view.labels[name]: replace(look[view.labels[name]], marker="") for name in without}
    figure, axes = canvas.titled(view.datasets, 1.8, x=name, y=f"test {METRICS[metric].label}")
    for axis, dataset, printed in canvas.by_dataset(axes, view.datasets, card):
        cells = view.cells_of(dataset, metric)
        cells["sd"] *= sds
        published = printed.set_index("ours_method")["published"]
        if published.empty and not cells["n"].any():
            canvas.write_reason(axis, "no finished fit")
            continue
        for curve, rows in grid.set_index("method").groupby("curve", sort=False):
            line, ours = look[curve], rows.join(cells[cells["n"] > 0], how="inner").sort_values(key)
            axis.errorbar(ours[key], ours["mean"], yerr=np.nan_to_num(ours["sd"]), **line.options, elinewidth=0.7)
            theirs = rows[[key]].join(published, how="inner")
            axis.plot(theirs[key], theirs["published"], line.marker, color=line.color, **OPEN)
        for method in without:
            axis.axhline(cells.loc[method, "mean"], **look[view.labels[method]].options, linewidth=0.9)
        axis.set_ylim(score_limits(view.per_split(metric, dataset), published))
        canvas.remark_incomplete(axis, cells)
        canvas.tick_settings(axis, grid[key], scale)
    canvas.legend_of(figure, list(look.values()))
    return figure


def score_against_n(view: View) -> Figure:
    """Mean and standard error over the splits of one size, one line per method, one row per data set."""
    datasets = view.datasets_of("binary")
    canvas.require(datasets and len(view.done), "No fit to two classes is finished.")
    figure, axes = canvas.panels(len(datasets), len(OF_CLASSIFIERS), 1.6, "training rows")
    for row, dataset, fits in canvas.by_dataset(axes, datasets, view.done):
        for axis, metric in zip(row, OF_CLASSIFIERS, strict=True):
            _draw_sizes(axis, view, fits, metric)
        row[0].set_ylabel(dataset, fontweight="bold")
        most = fits.groupby(["method", "n_train"])["split"].nunique().max() if len(fits) else 0
        incomplete = int((~view.cells_of(dataset, "accuracy")["complete"]).sum())
        text = f"{count(most, 'split')} per size" + f", {incomplete} incomplete" * bool(incomplete)
        canvas.note(row[-1], 0.99, 0.02, text, "right", "bottom", transform=row[-1].transAxes)
    for axis, metric in zip(axes[0], OF_CLASSIFIERS, strict=True):
        axis.set_title(METRICS[metric].label.replace("area under ROC curve", "AUC"), loc="left")
    canvas.legend(figure, view, view.done["method"])
    return figure


def _draw_sizes(axis: Axes, view: View, fits: pd.DataFrame, metric: str) -> None:
    scores = by_size(fits, metric)
    if scores.empty:
        canvas.write_reason(axis, "undefined" if len(fits) else "no finished fit")
        return
    groups = canvas.by_method(view, scores)
    for i, (look, rows) in enumerate(groups):
        means = rows.groupby("n_train")["value"].agg(["mean", "sem"])
        x = means.index * 1.03 ** (i - (len(groups) - 1) / 2)  # shifted so that bars do not overlap
        bars = np.nan_to_num(means["sem"])
        axis.errorbar(x, means["mean"], yerr=bars, **look.options, elinewidth=0.7, markersize=3.5)
    canvas.tick_settings(axis, scores["n_train"].astype(int), "log")


def p_values(view: View) -> Figure:
    """p-values of "VFE is better than FITC" against depth, paired and not, one panel per data set."""
    tests = objectives.p_values(view).dropna(subset="p_paired")
    canvas.require(len(tests), "No FITC and VFE of the same depth are finished on the same two splits.")
    figure, axes = canvas.titled(view.datasets, 1.8, x="layers", y="p")
    least = tests[["p_paired", "p_unpaired_low"]].min(axis=None)
    for axis, _, rows in canvas.by_dataset(axes, view.datasets, tests):
        middle, low, high = (rows[f"p_unpaired{end}"] for end in ("", "_low", "_high"))
        bar = [middle - low, high - middle]  # the middle 90 % of the resamples
        axis.errorbar(rows["layers"] + 0.08, middle, yerr=bar, **UNPAIRED.options, elinewidth=0.7)
        axis.plot(rows["layers"] - 0.08, rows["p_paired"], **PAIRED.options)
        axis.axhline(ALPHA, **LEVEL.options, linewidth=0.9)
        axis.set(yscale="log", ylim=(least / 2, 1.5))
        canvas.remark(axis, count(rows["n"].min(), "split") if len(rows) else "no finished pair")
        canvas.tick_settings(axis, tests["layers"])
    canvas.legend_of(figure, [PAIRED, UNPAIRED, LEVEL])
    return figure


num_inducing = partial(_against, key="num_inducing", name="inducing inputs", scale="log")
error_by_inducing = partial(_against, key="num_inducing", name="inducing points", scale="linear", metric="first", sds=2)
depth = partial(_against, key="layers", name="layers", scale="linear")
