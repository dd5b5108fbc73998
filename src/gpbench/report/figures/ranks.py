"""Ranks of methods: critical-difference diagrams (mean ranks over data sets, and what they can show), and mean ranks of
runs of one study at several budgets (does the order of the methods depend on the budget?)."""

import textwrap
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gpbench.errors import count
from gpbench.evaluation.compare import complete, ranks
from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import canvas
from gpbench.report.significance.comparisons import compare, compared, rankable
from gpbench.report.significance.findings import left_out
from gpbench.report.view import View

_SHOWN = ("all_mnll", "regression_mnll", "classification_mnll")
COMMITTED = Path("docs") / "results"
COLUMNS = ["budget", "hours", "method", "rank"]


def critical_difference(view: View) -> Figure:
    """Rank diagrams by MNLL: over all data sets, regression and classification."""
    comparisons = [compare(view, spec) for spec in compared(view) if spec.name in _SHOWN]
    ranked = any("ranks" in comparison for comparison in comparisons)
    canvas.require(ranked, f"No ranks: {comparisons[0].get('reason')}.")
    figure, axes = canvas.panels(len(comparisons), 1, 1.25 + 0.085 * len(view.methods) * canvas.row(view))
    for axis, comparison in zip(axes[:, 0], comparisons, strict=True):
        _diagram(axis, comparison, view)
    return figure


def _diagram(axis: Axes, comparison: dict, view: View) -> None:
    canvas.title(axis, f"{comparison['title']} ({count(len(comparison['datasets']), 'data set')})")
    if "reason" in comparison:
        canvas.write_reason(axis, f"No ranks: {comparison['reason']}.")
        return
    rank = {row["method"]: row["mean_rank"] for row in comparison["ranks"]}
    k = len(rank)
    groups = comparison["groups"]
    depth, step = -0.45 - 0.25 * len(groups), 0.36 * canvas.row(view)
    for i, group in enumerate(groups):
        ends = [rank[group[0]] - 0.06, rank[group[-1]] + 0.06]
        axis.plot(ends, [-0.35 - 0.25 * i] * 2, color="black", linewidth=2.5, solid_capstyle="butt")
    half = (k + 1) // 2
    for i, (method, value) in enumerate(rank.items()):
        left = i < half
        row = depth - step * (i if left else k - 1 - i) - 0.2
        _name(axis, view, method, value, row, 1 - 0.1 * k if left else k + 0.1 * k, left)
    _axis(axis, k, depth - step * half - 0.1)
    rejected = sum(pair["reject"] for pair in comparison["pairs"])
    text = f"{rejected} of {count(len(comparison['pairs']), 'pair')} differ significantly. {comparison['power']}"
    if dropped := left_out(comparison, view, reasons=False):
        text += f" Left out as incomplete: {dropped}."
    text = "\n".join(textwrap.wrap(text, 125))
    axis.text(0, -0.02, text, transform=axis.transAxes, va="top", fontsize=7, color="#333333")


def _name(axis: Axes, view: View, method: str, rank: float, row: float, end: float, left: bool) -> None:
    look = canvas.looks(view)[method]
    axis.plot([rank, rank, end], [0, row, row], color=look.color, linewidth=0.9)
    axis.plot([rank], [0], look.marker, color=look.color, clip_on=False, zorder=3)
    label = canvas.broken(look.label)
    text, offset, ha = (f"{label}  {rank:.2f}", -3, "right") if left else (f"{rank:.2f}  {label}", 3, "left")
    axis.annotate(text, (end, row), (offset, 0), textcoords="offset points", ha=ha, va="center", fontsize=7)


def _axis(axis: Axes, k: int, bottom: float) -> None:
    axis.grid(False)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.plot([1, k], [0, 0], color="black", linewidth=0.8)
    for tick in range(1, k + 1):
        axis.plot([tick, tick], [0, 0.12], color="black", linewidth=0.8)
        axis.text(tick, 0.2, str(tick), ha="center", va="bottom", fontsize=7)
    canvas.note(axis, 1.02 * k + 0.1, 0, "mean rank (1 is best)", "left")
    axis.set(xlim=(1 - 0.4 * k, k + 0.4 * k), ylim=(bottom, 0.55), xticks=[], yticks=[])


def rank_by_budget(view: View) -> Figure:
    """Mean rank against training hours, a line a method; runs: folders beside the view's, and committed ones."""
    runs = runs_of(view)
    ranked = mean_ranks(runs)
    budgets = ", ".join(str(run.study["budget"]) for run in runs)
    reason = f"No comparison: runs of this study that share cells have one budget only ({budgets})."
    canvas.require(ranked["budget"].nunique() > 1, reason)
    figure, ((axis,),) = canvas.panels(1, 1, 3.2)
    for look, rows in canvas.by_method(view, ranked):
        axis.plot(rows["hours"], rows["rank"], **look.options, clip_on=False)
    of_run = ranked.drop_duplicates("budget")
    axis.set(xscale="log", ylabel="mean rank by test MNLL (1 is best)")
    axis.set_xlabel("training hours of these fits (logarithmic) and their budget")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(of_run["hours"], [f"{row.hours:.2g}\n{row.budget}" for row in of_run.itertuples()])
    axis.invert_yaxis()
    canvas.remark(axis, f"{ranked.attrs['datasets']} data sets")
    canvas.legend(figure, view, ranked["method"])
    return figure


def runs_of(view: View) -> list[View]:
    """The view and one run of its study and protocol for each other budget.

    One study may build on the other (`defaults`); its title then begins with that of the other."""
    runs = {view.study["budget"]: view}
    beside = view.folder.absolute().parent
    for folder in (beside, beside.parent / COMMITTED):
        for path in sorted(folder.glob("*/study.json")):
            run = View(path.parent)
            titles = sorted([run.study["title"], view.study["title"]], key=len)
            alike = all(run.study[key] == view.study[key] for key in ("kind", "protocol"))
            if alike and titles[1].startswith(titles[0]):
                runs.setdefault(run.study["budget"], run)
    return list(runs.values())


def mean_ranks(runs: list[View]) -> pd.DataFrame:
    """COLUMNS over the data sets and methods that are complete in every run, in order of hours; none without two."""
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
