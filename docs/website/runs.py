"""A page for every committed run, and the page on which all of them can be searched, paired and compared."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from gpbench.evaluation.compare import complete, ranks
from gpbench.evaluation.metrics import METRICS
from gpbench.report.export.documents import RUN
from gpbench.report.figures.ranks import mean_ranks
from gpbench.report.tables.render import Table, escape_markdown, signed, to_html
from gpbench.report.view import View
from gpbench.study.storage.committed import CURVES
from records import cells, chains, facts, linked, listed, mixing, pairs, scores


def page(view: View, table: pd.DataFrame, pages: dict[str, str]) -> str:
    """Markdown of one run."""
    rows = "\n".join(f"| {key} | {escape_markdown(text)} |" for key, text in facts(view).items())
    title = f"# {escape_markdown(view.study['title'])} (`{view.folder.name}`)"
    parts = [title, f"| property | value |\n| --- | --- |\n{rows}"]
    files = ["scores.csv", *(f"{curve}.csv" for curve in CURVES)]
    written = [name for name in files if (view.folder / name).is_file()]
    parts.append("Files: " + ", ".join(f"[{name}]({name})" for name in written) + ".")
    if (view.folder / "statistics.md").is_file():
        parts.append("Tests of its differences: [statistics](statistics.md).")
    own = table[(table["run"] == view.folder.name) & (table["n"] > 0)]
    if len(own):
        parts.append(linked(scores(own), pages, "../../"))
    elif len(sampled := chains([view])):
        parts.append(linked(mixing(sampled), pages, "../../"))
    return "\n\n".join(parts) + "\n"


def explorer(runs: list[View], pages: dict[str, str]) -> str:
    """Markdown and HTML of the page on all runs; what a script adds starts from what is there without one."""
    table = cells(runs)
    done = table[table["n"] > 0].sort_values(["protocol", "dataset", "budget", "mean"])
    parts = [
        "---\nhide: [navigation]\n---\n\n# Results",
        "All committed runs. Every number is a mean over held-out rows and splits, made from `scores.csv` of its run. "
        "MNLL: mean negative log likelihood; lower is better, of RMSE and error rate too. Scores of different "
        "protocols or budgets are not comparable.",
        "## Runs",
        linked(listed(runs), {view.folder.name: f"results/{view.folder.name}/index.html" for view in runs}, "../"),
        "## Search and sort",
        '<div class="explore" data-explore="filter"></div>',
        linked(scores(done), pages, "../").replace("<table ", '<table id="cells" ', 1),
        "## Two methods, paired",
        "The loss of the first minus that of the second on the same splits of a data set, with the 95 % interval of "
        "Nadeau and Bengio (not corrected for the number of data sets). Below zero the first is better. Left out are "
        "data sets on which fits of either are missing or have not converged as the budget asks.",
        *_pair(runs),
        "## Rank against budget",
        "Mean rank by MNLL over the data sets and methods that are complete at every budget. Rank 1 is best "
        "and on top: a method whose line rises gains from a larger budget.",
        '<div class="explore" data-explore="ranks"></div>',
        _rank_table(runs),
        _data(runs),
    ]
    return "\n\n".join(parts) + "\n"


def _pair(runs: list[View]) -> tuple[str, str]:
    """What the script fills, and the table of the pair that is shown first: the two best of the run in the README."""
    view = next(view for view in runs if view.folder.name == RUN)
    best = ranks(complete(METRICS["mnll"].loss(view.matrix("mnll")))).mean().nsmallest(2).index
    first, second = (name for name in view.methods if name in best)
    rows = [row for row in pairs(view) if row[0] == "mnll" and {row[2], row[3]} == {first, second}]
    shown = pd.DataFrame(
        {
            "data set": [row[1] for row in rows],
            "difference of MNLL": [signed(*row[4:7]) for row in rows],
            "p": [f"{row[7]:.2g}" for row in rows],
            "splits": [str(row[8]) for row in rows],
        }
    )
    caption = f"{view.labels[first]} minus {view.labels[second]}: {RUN}, protocol common, budget {view.study['budget']}"
    box = f'<div class="explore" data-explore="pair" data-pair="{RUN} {first} {second}"></div>'
    return box, to_html(Table(shown, shown, caption)).replace("<table ", '<table id="pairs" ', 1)


def _rank_table(runs: list[View]) -> str:
    view = next(view for view in runs if view.folder.name == RUN)
    of_protocol = [v for v in runs if v.study["kind"] == "predict" and v.study["protocol"] == view.study["protocol"]]
    # of each budget the largest run that has methods and data sets in common with the README's
    alike = sorted((v for v in of_protocol if len(mean_ranks([view, v]))), key=lambda v: len(v.done))
    ranked = mean_ranks(list({v.study["budget"]: v for v in alike}.values()))
    if ranked["budget"].nunique() < 2:
        return "No two budgets have methods and data sets in common yet."
    order = ranked["budget"].drop_duplicates()
    wide = ranked.pivot(index="method", columns="budget", values="rank")[list(order)]
    hours = ranked.drop_duplicates("budget").set_index("budget")["hours"]
    shown = wide.map("{:.2f}".format).rename(columns=lambda b: f"{b} ({hours[b]:.2g} h)")
    shown.insert(0, "method", [view.labels[name] for name in wide.index])
    caption = f"Mean rank of {len(wide)} methods on {ranked.attrs['datasets']} data sets, and hours of these fits"
    return to_html(Table(wide, shown, caption)).replace("<table ", '<table id="ranks" ', 1)


def _data(runs: list[View]) -> str:
    """What the script pairs, as JSON inside the page: files may not be fetched where there is no server."""
    predicting = [view for view in runs if view.study["kind"] == "predict"]
    held = {}
    for view in predicting:
        if rows := pairs(view):
            named = {row[i] for row in rows for i in (2, 3)}
            setting = f"{view.study['protocol']}, {view.study['budget']}"
            labels = {name: view.labels[name] for name in view.methods if name in named}
            # JSON has no infinity, which bounds a difference that is the same on all splits
            rows = [[None if x in (np.inf, -np.inf) else x for x in row] for row in rows]
            held[view.folder.name] = {"setting": setting, "labels": labels, "pairs": rows}
    text = json.dumps(held, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="paired">{text}</script>'
