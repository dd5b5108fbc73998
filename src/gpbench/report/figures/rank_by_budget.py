"""Does the order of the methods depend on the budget? Mean ranks of runs of one study at several budgets."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gpbench.evaluation.compare import complete, ranks
from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import canvas
from gpbench.report.significance.comparisons import rankable
from gpbench.report.view import View, load

COMMITTED = Path("docs") / "results"
COLUMNS = ["budget", "hours", "method", "rank"]


def rank_by_budget(view: View) -> Figure:
    """Mean rank against training hours, a line a method; runs: folders beside the view's, and committed ones."""
    runs = runs_of(view)
    ranked = mean_ranks(runs)
    found = ", ".join(str(run.study["budget"]) for run in runs)
    reason = f"No comparison: runs of this study that share cells have one budget only ({found})."
    canvas.require(ranked["budget"].nunique() > 1, reason)
    figure, ((axis,),) = canvas.panels(1, 1, 3.2)
    for look, rows in canvas.by_method(view, ranked):
        axis.plot(rows["hours"], rows["rank"], **look.options, clip_on=False)
    of_run = ranked.drop_duplicates("budget")
    axis.set(xscale="log", ylabel="mean rank by test MNLL")
    axis.set_xlabel("training hours of these fits (logarithmic) and their budget")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(of_run["hours"], [f"{row.hours:.2g}\n{row.budget}" for row in of_run.itertuples()])
    axis.invert_yaxis()
    canvas.remark(axis, f"{ranked.attrs['datasets']} data sets")
    canvas.legend(figure, view, list(ranked["method"]))
    return figure


def runs_of(view: View) -> list[View]:
    """The view and one run of its study and protocol for each other budget.

    One study may build on the other (`defaults`); its title then begins with that of the other."""
    runs = {view.study["budget"]: view}
    beside = view.folder.absolute().parent
    for folder in (beside, beside.parent / COMMITTED):
        for path in sorted(folder.glob("*/study.json")):
            study = load(path)
            titles = sorted([study["title"], view.study["title"]], key=len)
            alike = all(study[key] == view.study[key] for key in ("kind", "protocol"))
            if alike and titles[1].startswith(titles[0]):
                runs.setdefault(study["budget"], View(path.parent))
    return list(runs.values())


def mean_ranks(runs: list[View]) -> pd.DataFrame:
    """COLUMNS over the data sets and methods that are complete in every run, in order of hours; no rows without two
    methods."""
    losses = [METRICS["mnll"].loss(run.matrix("mnll")) for run in runs]
    shared = complete(sum(losses[1:], start=losses[0]))  # a sum lacks what one of the runs lacks
    rows: list[list[object]] = []
    for run, loss in zip(runs if rankable(shared) else [], losses, strict=False):
        common = run.done["dataset"].isin(shared.index) & run.done["method"].isin(shared.columns)
        hours = float(run.done.loc[common, "seconds_train"].sum()) / 3600
        mean = ranks(loss.loc[shared.index, shared.columns]).mean()
        rows += [[run.study["budget"], hours, method, rank] for method, rank in mean.items()]
    ranked = pd.DataFrame(rows, columns=COLUMNS).sort_values("hours", kind="stable")
    ranked.attrs["datasets"] = len(shared)
    return ranked
