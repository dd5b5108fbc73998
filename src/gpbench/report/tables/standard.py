"""Scores, ranks, cost and status: tables of every study, and every table by its name."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from gpbench import config
from gpbench.errors import UserError, count
from gpbench.evaluation.compare import ROUNDING, min_datasets
from gpbench.evaluation.metrics import CLASSIFICATION, COUNTS, METRICS, REGRESSION
from gpbench.evaluation.practical import DECIDED, ROPES
from gpbench.report.registry import TABLES
from gpbench.report.significance.comparisons import compare, compared, complete_losses, differences_to_best, posteriors
from gpbench.report.significance.findings import BY_CHANCE, left_out
from gpbench.report.tables.render import Table, decimals, mean_sd, number, write_formats
from gpbench.report.view import IMPROVING, JITTERED, STATUSES, UNMIXED, View


def scores(view: View, metric: str, tasks: tuple[str, ...], title: str) -> Table:
    """Methods in rows, data sets in columns: mean ± sd (n splits); the best complete cell is bold."""
    cells = _mark(view, metric, view.cells(metric, *tasks))
    places = {dataset: decimals(column["sd"]) for dataset, column in cells[cells["n"] > 0].groupby("dataset")}
    texts = [_score_text(cell, places.get(cell.dataset, 0)) for cell in cells.itertuples()]
    shown = cells.assign(shown=texts).pivot(index="method", columns="dataset", values="shown")
    shown = shown.reindex(index=view.methods, columns=view.datasets_of(*tasks)).fillna("not planned")
    shown = shown.rename_axis(columns=None)
    shown.insert(0, "method", [view.labels[method] for method in view.methods])
    kind = METRICS[metric]
    sense = {"min": "lower is better", "max": "higher is better", "target": f"{kind.target} is best"}[kind.direction]
    unit = {"": "", "y": ", in the unit of the target"}.get(kind.unit, f", in {kind.unit}")
    return Table(
        cells,
        shown,
        f"{title}: {kind.label} on test rows{unit} ({sense})",
        "Mean ± standard deviation over splits (number of splits). Bold: best mean among complete cells. "
        "≈: the 95 % Nadeau-Bengio interval of the paired difference to the best contains 0 (not corrected for the "
        "number of methods nor for the choice of the best). Cells with unfinished splits are not compared, nor those "
        "marked ✗, in which some fits have not converged or are not done. (printed): its authors' scores by split.",
    )


def _mark(view: View, metric: str, cells: pd.DataFrame) -> pd.DataFrame:
    """Columns best and tied: complete cells only, by mean and by the paired interval."""
    loss = METRICS[metric].loss(cells["mean"].where(cells["complete"]))
    least = loss.groupby(cells["dataset"]).transform("min")
    tied = {
        (row.method, row.dataset)
        for dataset in cells["dataset"].unique()
        for row in differences_to_best(view, metric, dataset).itertuples()
        if row.lower <= 0 <= row.upper
    }
    marks = [(cell.method, cell.dataset) in tied for cell in cells.itertuples()]
    return cells.assign(best=loss - least <= ROUNDING * least.abs(), tied=marks)


def _score_text(cell: Any, places: int) -> str:
    if cell.n == 0:
        # the reason of a missing cell is always the same
        return "missing" if cell.statuses.startswith("missing:") else cell.statuses or "undefined"
    if cell.n < cell.expected:
        return mean_sd(cell.mean, cell.sd, f"{cell.n}/{cell.expected}, {cell.statuses or 'rest undefined'}", places)
    text = mean_sd(cell.mean, cell.sd, cell.n, places)
    if not cell.complete:
        return f"{text} ✗ {cell.statuses}"
    text += f" {IMPROVING}" * bool(cell.improving) + f" {JITTERED}" * bool(cell.jittered)
    return f"**{text}**" if cell.best else text + " ≈" * cell.tied


def rank_table(view: View) -> Table:
    """Mean rank of each method in each comparison, with a bootstrap interval over data sets."""
    rows, shown, notes = [], pd.DataFrame({"method": [view.labels[m] for m in view.methods]}), []
    for spec in compared(view):
        comparison = compare(view, spec)
        ranked, datasets = {row["method"]: row for row in comparison.get("ranks", [])}, len(comparison["datasets"])
        rows += [{"comparison": spec.name, "datasets": datasets, **row} for row in ranked.values()]
        heading = f"{spec.title} ({count(datasets, 'data set')})"
        shown[heading] = [_rank(**ranked[m]) if m in ranked else "-" for m in view.methods]
        if comparison["dropped"]:
            notes.append(f"{spec.title}: left out because incomplete: {left_out(comparison, view)}.")
    columns = ["comparison", "datasets", "method", "mean_rank", "lower", "upper", "firsts"]
    note = (
        f"1 is best; 95 % bootstrap interval over data sets, of {min_datasets(2)} at least; it is too short where they "
        "are few. Only data sets that every ranked method finished count. "
    )
    return Table(pd.DataFrame(rows, columns=columns), shown, "Mean ranks over data sets", note + " ".join(notes))


def _rank(mean_rank: float, lower: float, upper: float, **_: object) -> str:
    return f"{mean_rank:.2f}" + (f" [{lower:.1f}, {upper:.1f}]" if lower <= upper else "")


def bayes(view: View) -> Table:
    """Methods in rows, comparisons in columns: is the first in mean rank practically better, equal or worse?"""
    frames, shown = [], pd.DataFrame({"method": [view.labels[method] for method in view.methods]})
    for spec in compared(view):
        tests = posteriors(view, spec, best_only=True)
        if tests.empty:
            continue
        frames.append(tests.assign(comparison=spec.name))
        first, by_method = tests["a"].iloc[0], tests.set_index("b")
        n = len(complete_losses(view, spec)[0])
        cells = [
            "(first)" if method == first else _odds(by_method.loc[method], n) if method in by_method.index else "-"
            for method in view.methods
        ]
        shown[f"{spec.title} ({count(n, 'data set')}): {view.labels[first]} against it"] = cells
    columns = ["comparison", "a", "b", "a_better", "equal", "b_better", "decision"]
    ropes = ", ".join(f"{metric} {rope.in_words}" for metric, rope in ROPES.items())
    return Table(
        pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns),
        shown,
        "Practical differences over data sets",
        "Probability that the method with the best mean rank is practically better / equal / worse, by Bayesian "
        "signed-rank tests over the data sets that every ranked method finished. Equal: within a region fixed "
        f"beforehand ({ropes}). Bold: one of the probabilities is at least {DECIDED:g}, of {min_datasets(2)} data sets "
        f"or more. There is no correction for choosing the first on the same data: {BY_CHANCE}. statistics.json has "
        "all pairs.",
    )


def _odds(test: pd.Series, datasets: int) -> str:
    text = " / ".join(f"{test[key]:.2f}" for key in ("a_better", "equal", "b_better"))
    return text if test["decision"] == "undecided" or datasets < min_datasets(2) else f"**{text}**"


def cost(view: View) -> Table:
    """Seconds and memory of finished fits by method."""
    cells = view.done.groupby(["method", "dataset"])
    means = cells[["seconds_train", "seconds_predict", "peak_memory_mb"]].mean()
    data = means.assign(fits=cells.size()).reset_index()
    shown = []
    for method in view.methods:
        fits = view.done[view.done["method"] == method]
        train = fits["seconds_train"]
        row = {
            "method": view.labels[method],
            "data sets": fits["dataset"].nunique(),
            "finished fits": len(fits),
            "training s per fit": number(train.median()),
            "range": f"{number(train.min(), 2)} to {number(train.max(), 2)}" if train.notna().any() else "-",
            "training s in total": number(train.sum(min_count=1)),
            "prediction s per fit": number(fits["seconds_predict"].median()),
            "peak memory MB": number(fits["peak_memory_mb"].max()),
        }
        shown.append(row)
    note = (
        "Medians over the finished fits of a method, so over other data sets where their number differs; peak memory "
        "is the maximum over fits. The CSV has every cell."
    )
    if gpus := int((view.done["gpu"].astype(bool) & view.done["gpu"].notna()).sum()):
        note += f" {count(gpus, 'fit')} took a GPU, with its seconds and the memory of its host."
    return Table(data, pd.DataFrame(shown), "Cost of training and prediction", note)


def status(view: View) -> Table:
    """How many fits of each method ended in each status, and how many of those that are judged have converged."""
    counts = view.fits.groupby(["method", "status"]).size().unstack(fill_value=0)
    counts = counts.reindex(index=view.methods, columns=list(STATUSES), fill_value=0)
    counts["planned"] = counts.sum(axis=1)
    data = counts.rename_axis(index="method", columns=None).reset_index()
    used = [name for name in STATUSES if name == "done" or data[name].any()]
    judged = view.fits[view.fits["convergence"] != ""].groupby(["method", "convergence"]).size().unstack(fill_value=0)
    judged = judged.reindex(index=view.methods, fill_value=0).add_prefix("of them ").reset_index(drop=True)
    data = data.join(judged)
    shown = data[["method", "planned", *used, *judged]].assign(method=data["method"].map(view.labels))
    note = (
        f"Every planned fit is counted once. Means are over fits that are done or {UNMIXED}, the latter marked ✗. Of "
        "them: what the rule of convergence says of fits with iterations, at every budget; not judged: it cannot tell."
    )
    return Table(data, shown, "Fits by status", note)


def unfinished(view: View) -> Table:
    """Every fit that is not done or has not converged, with its reason, those left out by design last; splits of a data
    set, and data sets with the same splits, share a printed row."""
    fits = view.fits[view.fits["status"] != "done"]
    fits = fits.sort_values("status", key=lambda status: status == "skipped", kind="stable")
    data = fits[["method", "dataset", "split", "status", "reason", "fit_id"]]
    groups = fits.groupby(["method", "dataset", "status", "reason"], sort=False)["split"]
    datasets: dict[tuple[str, ...], list[str]] = {}
    for (method, dataset, state, reason), splits in groups:
        alike = (view.labels[method], ", ".join(map(str, sorted(set(splits)))), state, reason or "-")
        datasets.setdefault(alike, []).append(dataset)
    rows = [[method, ", ".join(names), *ending] for (method, *ending), names in datasets.items()]
    names = ["method", "data set", "splits", "status", "reason"]
    counts = fits["status"].value_counts().reindex(STATUSES).dropna().astype(int)
    listed = ", ".join(f"{n} {name}" for name, n in counts.items()) or "none"
    return Table(data, pd.DataFrame(rows, columns=names), f"Fits that are not done or have not converged: {listed}")


def all_metrics(view: View) -> Table:
    """All metrics: per fit in the CSV, mean and sd per cell as text."""
    keys = ["fit_id", "method", "dataset", "split", "replica"]
    data = view.done.melt(id_vars=keys, value_vars=list(METRICS), var_name="metric").dropna(subset="value")
    cells = data.groupby(["dataset", "method", "metric"], sort=False)["value"].agg(["mean", "std", "count"])
    shown = cells.reset_index()
    shown = shown.assign(
        method=shown["method"].map(view.labels),
        metric=[METRICS[name].label for name in shown["metric"]],
        mean=shown["mean"].map(number),
        sd=shown["std"].map(partial(number, digits=2)),
        fits=shown["count"],
    ).drop(columns=["std", "count"])
    return Table(data, shown, "All metrics of all cells", "Finished fits only; sample standard deviation (ddof = 1).")


regression_mnll = partial(scores, metric="mnll", tasks=REGRESSION, title="Regression")
regression_rmse = partial(scores, metric="rmse", tasks=REGRESSION, title="Regression")
classification_mnll = partial(scores, metric="mnll", tasks=CLASSIFICATION, title="Classification")
classification_error = partial(scores, metric="error", tasks=CLASSIFICATION, title="Classification")
counts_mnll = partial(scores, metric="mnll", tasks=COUNTS, title="Counts")


def table(view: View, name: str) -> Table:
    """The registered table `name` of a study; the note of every table names what has not converged."""
    config.require_known("table", [name], TABLES)
    plain = TABLES[name].function(view)
    if not isinstance(plain, Table):
        raise UserError(f"table {name!r}: {TABLES[name].source} returned {type(plain).__name__}, no `render.Table`")
    return replace(plain, note=" ".join(filter(None, (plain.note, view.warning))))


def write_table(view: View, name: str, folder: str | Path) -> list[Path]:
    """Write a table to `folder`/name.csv, .md, .html and .tex."""
    return write_formats(table(view, name), Path(folder) / name)
