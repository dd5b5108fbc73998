"""The sections of a study's page: which tables and figures each of them shows, and the commands that make them."""

from dataclasses import dataclass

from gpbench.evaluation.metrics import CLASSIFICATION, COUNTS, REGRESSION
from gpbench.report.registry import FIGURES, TABLES, Entry, names
from gpbench.report.view import View

TASKS = {"regression": REGRESSION, "classification": CLASSIFICATION, "counts": COUNTS}
"""First word of a table's name -> the tasks that it is for."""


@dataclass(frozen=True)
class Part:
    """A section of the page, which the registry names by its id."""

    id: str
    title: str


OUTLINE = (
    Part("status", "Status and failures"),
    Part("scores", "Scores"),
    Part("ranking", "Ranking over data sets"),
    Part("differences", "Paired differences"),
    Part("settings", "What the study varies"),
    Part("convergence", "Convergence"),
    Part("calibration", "Calibration"),
    Part("chains", "Sampler diagnostics"),
    Part("cost", "Cost"),
    Part("scorecard", "Scorecard"),
)


def tables(view: View, part: Part) -> list[str]:
    """The study's tables that belong to a part and have rows."""
    return [name for name in _of(part, TABLES, names(view.study, "tables")) if _applies(view, name)]


def figures(view: View, part: Part) -> list[str]:
    """The study's figures that belong to a part."""
    return _of(part, FIGURES, names(view.study, "figures"))


def command(view: View, target: str = "") -> str:
    """The Snakemake command that makes the study, or one file of it."""
    whole = view.study["command"]
    # the target precedes --config, which takes all words that follow it
    return whole.replace("snakemake", f"snakemake results/{view.study['name']}/{target}", 1) if target else whole


def example(view: View) -> str:
    """The first figure of the study."""
    return names(view.study, "figures")[0]


def _of(part: Part, registered: dict[str, Entry], present: tuple[str, ...]) -> list[str]:
    """The present names of a section, in the order of the registry."""
    return [name for name, entry in registered.items() if entry.section == part.id and name in present]


def _applies(view: View, name: str) -> bool:
    if name == "unfinished":
        return bool((view.fits["status"] != "done").any())
    tasks = TASKS.get(name.split("_")[0])
    return tasks is None or bool(view.datasets_of(*tasks))
