"""The sections of a study's page: which tables and figures each of them shows, and the commands that make them."""

from __future__ import annotations

from dataclasses import dataclass

from gpbench.evaluation.metrics import CLASSIFICATION, COUNTS, REGRESSION
from gpbench.report import names
from gpbench.report.view import View

TASKS = {"regression": REGRESSION, "classification": CLASSIFICATION, "counts": COUNTS}
"""First word of a table's name -> the tasks that it is for."""


@dataclass(frozen=True)
class Part:
    """A section with the names of its tables and figures."""

    id: str
    title: str
    tables: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


OUTLINE = (
    Part("status", "Status and failures", ("status", "unfinished")),
    Part(
        "scores",
        "Scores",
        ("regression_mnll", "regression_rmse", "classification_mnll", "classification_error", "counts_mnll"),
        ("log_density", "intervals", "boxes", "loglik_by_model", "error_by_model"),
    ),
    Part("ranking", "Ranking over data sets", ("ranks", "bayes"), ("critical_difference", "performance_profile")),
    Part("differences", "Paired differences", ("differences",)),
    Part("settings", "What the study varies"),
    Part("convergence", "Convergence", (), ("convergence", "error_over_time")),
    Part("calibration", "Calibration", (), ("calibration", "reliability", "pit", "abstention", "reject")),
    Part(
        "chains",
        "Sampler diagnostics",
        ("efficiency", "convergence_order", "chains", "diagnostics"),
        ("r_hat", "ess_per_operation", "chain_traces", "traces"),
    ),
    Part("cost", "Cost", ("cost",), ("cost", "pareto", "prediction_cost")),
    Part("scorecard", "Scorecard", (), ("scorecard",)),
)
REST = "settings"
"""The part of all tables and figures that no part names."""
LEFT_OUT = ("all_metrics",)
"""Tables that are for programs: a row for every metric of every cell."""


def tables(view: View, part: Part) -> list[str]:
    """The study's tables that belong to a part and have rows."""
    return [name for name in _of(part, names(view.study, "tables"), "tables") if _applies(view, name)]


def figures(view: View, part: Part) -> list[str]:
    """The study's figures that belong to a part."""
    return _of(part, names(view.study, "figures"), "figures")


def command(view: View, target: str = "") -> str:
    """The Snakemake command that makes the study, or one file of it."""
    whole = view.study["command"]
    # the target precedes --config, which takes all words that follow it
    return whole.replace("snakemake", f"snakemake results/{view.study['name']}/{target}", 1) if target else whole


def example(view: View) -> str:
    """The first figure of the study."""
    return names(view.study, "figures")[0]


def _of(part: Part, present: tuple[str, ...], kind: str) -> list[str]:
    """The present names of a part, in its order; for REST, all that no part names."""
    if part.id != REST:
        return [name for name in getattr(part, kind) if name in present]
    placed = {name for other in OUTLINE for name in getattr(other, kind)} | set(LEFT_OUT)
    return [name for name in present if name not in placed]


def _applies(view: View, name: str) -> bool:
    if name == "unfinished":
        return bool((view.fits["status"] != "done").any())
    tasks = TASKS.get(name.split("_")[0])
    return tasks is None or bool(view.datasets_of(*tasks))
