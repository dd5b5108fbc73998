"""Critical-difference diagrams: mean ranks over data sets, and what they can show."""

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpbench.errors import count
from gpbench.report.figures import canvas
from gpbench.report.significance.comparisons import compare, compared
from gpbench.report.significance.findings import left_out
from gpbench.report.view import View

_SHOWN = ("all_mnll", "regression_mnll", "classification_mnll")


def critical_difference(view: View) -> Figure:
    """Rank diagrams by MNLL: over all data sets, regression and classification."""
    comparisons = [compare(view, spec) for spec in compared(view) if spec.name in _SHOWN]
    if all("reason" in comparison for comparison in comparisons):
        raise canvas.Nothing(f"No ranks: {comparisons[0]['reason']}.")
    height = 1.25 + 0.085 * len(view.methods) * canvas.row(view)
    figure, axes = canvas.panels(len(comparisons), 1, height)
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
    axis.text(0, -0.02, _reading(comparison, view), transform=axis.transAxes, va="top", fontsize=7, color="#333333")


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
    axis.set_yticks([])
    axis.set_xticks([])
    axis.plot([1, k], [0, 0], color="black", linewidth=0.8)
    for tick in range(1, k + 1):
        axis.plot([tick, tick], [0, 0.12], color="black", linewidth=0.8)
        axis.text(tick, 0.2, str(tick), ha="center", va="bottom", fontsize=7)
    axis.set(xlim=(1 - 0.4 * k, k + 0.4 * k), ylim=(bottom, 0.55))


def _reading(comparison: dict, view: View) -> str:
    dropped = left_out(comparison, view, reasons=False)
    rejected = sum(pair["reject"] for pair in comparison["pairs"])
    text = f"{rejected} of {count(len(comparison['pairs']), 'pair')} differ significantly. {comparison['power']}"
    text += f" Left out as incomplete: {dropped}." if dropped else ""
    return "\n".join(textwrap.wrap(text, 125))
