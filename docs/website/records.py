"""What the pages show of committed runs (`docs/results`), as tables (nothing is computed that the report does not),
and of docs/sharp-edges.md."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench.evaluation.compare import paired_difference
from gpbench.evaluation.metrics import METRICS
from gpbench.places import Places
from gpbench.report.export.documents import RUNS
from gpbench.report.scorecard.all_runs import read_runs
from gpbench.report.scorecard.counterparts import run_settings
from gpbench.report.significance.comparisons import ALPHA
from gpbench.report.tables.render import Table, decimals, mean_sd, number, to_html
from gpbench.report.view import View, commits
from gpbench.study.storage.challengers import NOT_OURS

MOST_NAMED = 4  # methods or data sets of a run in the list of all
LINKED = re.compile(r"<td>([\w-]+)</td>")


def linked(table: Table, pages: dict[str, str], up: str) -> str:
    """A table as HTML in which cells that hold the name of a page are links to it.

    pages: name -> path from the root of the site; up: the way from the page of the table to that root."""

    def link(match: re.Match[str]) -> str:
        page = pages.get(match[1])
        return f'<td><a href="{up}{page}">{match[1]}</a></td>' if page else match[0]

    return LINKED.sub(link, to_html(table))


def committed(folder: Path) -> list[View]:
    """The committed runs of `docs/results/`."""
    return [run.view for run in read_runs(folder)]


def cells(runs: list[View]) -> pd.DataFrame:
    """A row for every cell of the runs that predict, with the means of its finished fits over splits."""
    parts = [_cells(view) for view in runs if view.study["kind"] == "predict"]
    return pd.concat(parts, ignore_index=True)


def _cells(view: View) -> pd.DataFrame:
    keys = ["method", "dataset"]
    fits, study = view.fits, view.study
    about = fits.groupby(keys).agg(preset=("preset", "first"), task=("task", "first")).reset_index()
    costs = view.done.groupby(keys).agg(seconds=("seconds_train", "median"), memory=("peak_memory_mb", "max"))
    table = about.merge(costs.reset_index(), how="left", on=keys)
    table = table.merge(view.cells("mnll").drop(columns=["jittered"]), on=keys)
    for metric in ("rmse", "error"):
        means = view.cells(metric)[[*keys, "mean", "sd"]]
        table = table.merge(means.rename(columns={"mean": metric, "sd": f"{metric}_sd"}), on=keys)
    table["label"] = table["method"].map(view.labels)
    table["preset"] = table["preset"].fillna(table["method"])
    return table.assign(run=view.folder.name, protocol=study["protocol"], budget=study["budget"])


def scores(table: pd.DataFrame, without: str = "") -> Table:
    """Cells as text, in their order; a metric that none of them has, and the column `without`, are left out."""
    shown = pd.DataFrame(
        {
            "data set": table["dataset"],
            "method": table["label"],
            "configuration": table["preset"],
            "MNLL": [mean_sd(c.mean, c.sd, c.n) for c in table.itertuples()],
            "RMSE": [mean_sd(c.rmse, c.rmse_sd, c.n, decimals([c.rmse_sd])) for c in table.itertuples()],
            "error rate": [mean_sd(c.error, c.error_sd, c.n) for c in table.itertuples()],
            "protocol": table["protocol"],
            "budget": table["budget"],
            "seconds a fit": table["seconds"].map(number),
            "MB": table["memory"].map(number),
            "run": table["run"],
            "state": [_state(cell) for cell in table.itertuples()],
        }
    )
    empty = [name for name in ("RMSE", "error rate") if (shown[name] == "-").all()]
    return Table(
        table,
        shown.drop(columns=[*empty, *([without] if without else [])]),
        "Scores on held-out rows",
        "Mean ± standard deviation over splits (number of splits); lower is better. RMSE in the unit of the target. "
        "Seconds: median of the training time of a fit, on a shared machine. ↗: fits still improved when the budget "
        "ended.",
    )


def _state(cell: object) -> str:
    statuses, improving = getattr(cell, "statuses", ""), getattr(cell, "improving", 0)
    return statuses or ("↗ still improving" if improving else "done")


def chains(runs: list[View]) -> pd.DataFrame:
    """A row for every cell of the runs of kind `sample`: how well its chains explored."""
    parts = []
    for view in runs:
        if view.study["kind"] == "sample" and len(view.done):
            columns = view.done.reindex(columns=["method", "dataset", "preset", *CHAINS.values(), "seconds_train"])
            columns = columns.astype(dict.fromkeys([*CHAINS.values(), "seconds_train"], float))
            groups = columns.groupby(["method", "dataset", "preset"])
            table = groups.median().assign(chains=groups.size()).reset_index()
            parts.append(table.assign(label=table["method"].map(view.labels), run=view.folder.name))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["preset", "dataset"])


CHAINS = {
    "R-hat": "r_hat",
    "least ESS, %": "ess_percent",
    "least ESS a second": "ess_per_second",
    "acceptance of parameters": "acceptance_theta",
}


def mixing(table: pd.DataFrame) -> Table:
    """Chains as text."""
    shown = table[["dataset", "label", "run", "chains"]].rename(columns={"dataset": "data set", "label": "method"})
    for name, column in CHAINS.items():
        shown[name] = table[column].map(number)
    shown["seconds a chain"] = table["seconds_train"].map(number)
    note = "Medians over chains. ESS: effective sample size, of the number that mixes worst, by Geyer's estimator."
    return Table(table, shown, "Efficiency of Markov chains", note)


def failures(runs: list[View], presets: set[str]) -> Table:
    """Fits of some configurations that are not done, by reason."""
    parts = []
    for view in runs:
        fits = view.fits[view.fits["preset"].fillna(view.fits["method"]).isin(presets)]
        unfinished = fits[fits["status"] != "done"]
        counted = unfinished.groupby(["dataset", "label", "status", "reason"]).size().rename("fits").reset_index()
        parts.append(counted.assign(run=view.folder.name))
    data = pd.concat(parts, ignore_index=True)
    shown = data.rename(columns={"dataset": "data set", "label": "method"}).astype({"fits": str})
    return Table(data, shown, "Fits that are not done, and why")


def listed(runs: list[View]) -> Table:
    """The runs, one row each, those with pages of statistics first."""
    rows = [
        {
            "run": view.folder.name,
            "what": view.study["title"],
            "methods": _some([view.labels[name] for name in view.methods if name in set(view.done["method"])]),
            "data sets": _some([name for name in view.datasets if name in set(view.done["dataset"])]),
            "budget and settings": " ".join([str(view.study["budget"]), run_settings(view.study["command"])[1]]),
            "fits done": _done(view),
        }
        for view in sorted(runs, key=lambda view: [name != view.folder.name for name in RUNS])
    ]
    data = pd.DataFrame(rows)
    return Table(data, data, "Committed runs")


def _some(names: list[str]) -> str:
    """All names, or the first of many and their number."""
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{', '.join(names[:MOST_NAMED])} ... ({len(names)})"


def _done(view: View) -> str:
    """Our fits that are done, of those planned; what others printed or predicted is not counted."""
    done, planned = (int((~fits["family"].isin(NOT_OURS)).sum()) for fits in (view.done, view.fits))
    return f"{done} of {planned}"


def facts(view: View) -> dict[str, str]:
    """What a run is and how to make it again."""
    study = view.study
    return {
        "protocol": f"`{study['protocol']}`",
        "budget": f"`{study['budget']}`",
        "fits done": _done(view),
        "commits of the fits": ", ".join(commits(view.done, 10)) or "none",
        "command": f"`{study['command']}`",
    }


def pairs(view: View) -> list[list[object]]:
    """Paired differences of every two methods on every data set: [metric, data set, first, second, difference, lower,
    upper, p, splits], the losses of the first minus those of the second with the interval of Nadeau and Bengio."""
    rows: list[list[object]] = []
    for metric in ("mnll", "rmse", "error"):
        complete = view.cells(metric).query("complete")
        for dataset, group in complete.groupby("dataset"):
            losses = METRICS[metric].loss(view.per_split(metric, dataset))
            fraction = view.test_fraction(dataset)
            for a, b in combinations([m for m in view.methods if m in set(group["method"])], 2):
                if len(losses) > 1 and np.isfinite(losses[[a, b]].to_numpy()).all():
                    paired = paired_difference(losses[a], losses[b], fraction, 1 - ALPHA)
                    values = [float(f"{x:.4g}") for x in (paired.mean, paired.lower, paired.upper, paired.p)]
                    rows.append([metric, dataset, a, b, *values, paired.n])
    return rows


def surprises(where: Places) -> list[str]:
    """The items of docs/sharp-edges.md, one line each, with links as a page in a folder of the site needs them."""
    text = (where.root / "docs" / "sharp-edges.md").read_text()
    items = re.findall(r"^- (.*?)(?=^- |^#|\Z|\n\n)", text, re.MULTILINE | re.DOTALL)
    return [" ".join(item.split()).replace("](", "](../") for item in items]
