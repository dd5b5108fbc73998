"""Published numbers beside ours: row by row for one study, and all of them in a scatter plot."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import canvas
from gpbench.report.scorecard import verdicts
from gpbench.report.view import View


def scorecard(view: View) -> Figure:
    """Published means and ours for every row of the scorecard that has both."""
    rows = view.card[np.isfinite(view.card["ours"].astype(float))]
    canvas.require(len(rows), "No published number has a counterpart in this study.")
    groups = list(rows.groupby(["dataset", "ours_metric"], sort=False))
    heights = [len(group) + 1.2 for _, group in groups]
    figure, axes = canvas.panels(len(groups), 1, 1, height_ratios=heights, gridspec_kw={"hspace": 0.05})
    figure.set_figheight(0.8 + sum(0.24 * len(group) + 0.55 for _, group in groups))
    for axis, (name, group) in zip(axes[:, 0], groups, strict=True):
        _rows(axis, group.reset_index(drop=True))
        canvas.title(axis, f"{name[0]}, {METRICS[name[1]].label}")
    ink: canvas.Style = {"color": "black", "linestyle": "none", "marker": "o"}
    canvas.legend_of_marks(figure, [("published", ink | {"mfc": "white"}), ("ours", ink)], 2)
    return figure


def _rows(axis: Axes, rows: pd.DataFrame) -> None:
    y = np.arange(len(rows))
    options: canvas.Style = {"fmt": "o", "elinewidth": 0.9, "markersize": 4}
    bar = rows["published_sd"].fillna(0)
    axis.errorbar(rows["published"], y - 0.15, xerr=bar, mfc="white", color="#0072B2", **options)
    axis.errorbar(rows["ours"], y + 0.15, xerr=rows["ours_sd"].fillna(0), color="#D55E00", **options)
    axis.set_yticks(y, rows["source"] + ": " + rows["method_printed"] + " " + rows["setting"].astype(object).fillna(""))
    axis.set_ylim(len(rows) - 0.5, -0.5)
    for i, verdict in enumerate(rows["verdict"]):
        axis.text(1.01, i, verdict, transform=axis.get_yaxis_transform(), va="center", fontsize=7)


# in drawing order, so that later marks cover earlier ones
MARKS: dict[str, canvas.Style] = {
    "other protocol": {"color": "#999999", "marker": "+"},
    "not judged": {"color": canvas.GREY, "marker": "x"},
    "inconclusive": {"color": "#555555", "marker": "s", "mfc": "white"},
    "differs": {"color": "#CC79A7", "marker": "D"},
    "worse": {"color": "#D55E00", "marker": "v"},
    "better": {"color": "#009E73", "marker": "^"},
    "agrees": {"color": "#0072B2", "marker": "o"},
}
MARK: canvas.Style = {"markersize": 4, "mew": 0.9, "linestyle": "none"}


@dataclass(frozen=True)
class Family:
    """A panel: its title, the metric whose margin applies, which metrics belong, whether axes are logarithmic."""

    title: str
    metric: str
    holds: Callable[[str], bool]
    log: bool = True


PERFECT = ("accuracy", "balanced_accuracy", "auc")
FAMILIES = (
    Family("MNLL (nats)", "mnll", lambda name: name in verdicts.NATS, log=False),
    Family("RMSE", "rmse", lambda name: name.startswith("rmse")),
    Family("errors, Brier scores", "error", lambda name: name in ("error", "brier", *PERFECT)),
    Family("effective sample sizes", "ess_percent", lambda name: name.startswith("ess_")),
    Family("R-hat", "r_hat", lambda name: name.startswith("r_hat"), log=False),
    Family("acceptance rates", "acceptance_theta", lambda name: name.startswith("acceptance"), log=False),
    Family("other scores", "smse", lambda name: verdicts.group(name) == "predictions"),
    Family("operations, seconds", "cubic", lambda name: True),
)


def against(card: pd.DataFrame) -> Figure:
    """Every published score with a counterpart of ours, one panel per family of metrics; card: from `all_runs`."""
    rows = card[np.isfinite(card["ours"].astype(float)) & (card["ours_metric"].fillna("") != "")]
    canvas.require(len(rows), "No published number has a counterpart in the committed runs.")
    place = rows["ours_metric"].map(lambda name: next(i for i, family in enumerate(FAMILIES) if family.holds(name)))
    groups = [(FAMILIES[i], group) for i, group in rows.groupby(place)]
    figure, axes = canvas.titled([family.title for family, _ in groups], 2.3, 3)
    for axis, (family, group) in zip(axes, groups, strict=True):
        _family(axis, family, group)
    kinds = rows["verdict"].map(verdicts.kind).value_counts()
    shown = [(kind, mark | MARK) for kind, mark in reversed(MARKS.items()) if kind in kinds]
    canvas.legend_of_marks(figure, [(f"{kind} ({kinds[kind]})", mark) for kind, mark in shown], 4)
    return figure


def _family(axis: Axes, family: Family, rows: pd.DataFrame) -> None:
    points = _losses(rows)
    low, high = _limits(points, family.log)
    if family.log:
        _logarithmic(axis, high / low)
    line = (np.geomspace if family.log else np.linspace)(low, high, 100)
    width = np.array([verdicts.margin(family.metric, x) for x in line])
    axis.fill_between(line, line - width, line + width, color="#C8C8C8", linewidth=0, zorder=0.5)
    axis.plot(line, line, color=canvas.GREY, linewidth=0.6, zorder=0.6)
    for kind, mark in MARKS.items():
        of_kind = points[points["kind"] == kind]
        x, y = (of_kind[name].clip(low, high) for name in ("published", "ours"))
        axis.errorbar(x, y, yerr=of_kind["error"], elinewidth=0.6, **MARK, **mark)
    axis.set(xlim=(low, high), ylim=(low, high), xlabel="published", ylabel="ours", aspect="equal")
    canvas.remark(axis, f"{len(rows)}")


def _logarithmic(axis: Axes, ratio: float) -> None:
    """Logarithmic axes with plain numbers at their ticks; the larger the ratio of their ends, the fewer ticks."""
    axis.set(xscale="log", yscale="log")
    steps = (1, 1.5, 2, 3, 5, 7) if ratio < 8 else (1, 3) if ratio < 1000 else (1,)
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_locator(LogLocator(subs=steps, numticks=8))
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter(NullFormatter())


def _losses(rows: pd.DataFrame) -> pd.DataFrame:
    """published, ours (published + difference), its standard error or 0, of accuracies 1 - value; kind of verdict."""
    perfect, error = rows["ours_metric"].isin(PERFECT), rows["standard_error"].astype(float).fillna(0.0)
    numbers = rows.assign(ours=(rows["published"] + rows["difference"]).fillna(rows["ours"]))
    drawn = {name: numbers[name].astype(float).mask(perfect, 1 - numbers[name]) for name in ("published", "ours")}
    return pd.DataFrame(drawn | {"error": error}).assign(kind=rows["verdict"].map(verdicts.kind))


def _limits(points: pd.DataFrame, log: bool) -> tuple[float, float]:
    """Limits of both axes: the published numbers and the middle 96 % of ours."""
    ours = points["ours"].quantile([0.02, 0.98])
    values = np.concatenate([points["published"], ours])
    if log:
        values = values[values > 0] if (values > 0).any() else np.array([1.0])
        return float(values.min() / 1.3), float(values.max() * 1.3)
    room = 0.05 * max(np.ptp(values), 1.0)
    return float(values.min() - room), float(values.max() + room)
