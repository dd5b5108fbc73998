"""The sections of a study's page: which tables and figures each of them shows, and the commands that make them."""

from gpbench.evaluation.metrics import CLASSIFICATION, COUNTS, REGRESSION
from gpbench.report.registry import FIGURES, TABLES, names
from gpbench.report.view import View

TASKS = {"regression": REGRESSION, "classification": CLASSIFICATION, "counts": COUNTS}
"""First word of a table's name -> the tasks that it is for."""

OUTLINE = {
    "status": "Status and failures",
    "scores": "Scores",
    "ranking": "Ranking over data sets",
    "differences": "Paired differences",
    "settings": "What the study varies",
    "convergence": "Convergence",
    "calibration": "Calibration",
    "chains": "Sampler diagnostics",
    "solvers": "Linear solvers",
    "cost": "Cost",
    "scorecard": "Scorecard",
}
"""Section of the page, as the registry names it -> its title."""


def tables(view: View, section: str) -> list[str]:
    """The study's tables of a section that have rows."""
    of_study = names(view.study, "tables")
    return [n for n, entry in TABLES.items() if entry.section == section and n in of_study and _applies(view, n)]


def figures(view: View, section: str) -> list[str]:
    """The study's figures of a section."""
    of_study = names(view.study, "figures")
    return [name for name, entry in FIGURES.items() if entry.section == section and name in of_study]


def command(view: View, target: str = "") -> str:
    """The Snakemake command that makes the study, or one file of it."""
    whole = view.study["command"]
    # the target precedes --config, which takes all words that follow it
    return whole.replace("snakemake", f"snakemake results/{view.study['name']}/{target}", 1) if target else whole


def _applies(view: View, name: str) -> bool:
    if name == "convergence":
        return bool((view.done["convergence"] != "").any())
    if name == "unfinished":
        return bool((view.fits["status"] != "done").any())
    tasks = TASKS.get(name.split("_")[0])
    return tasks is None or bool(view.datasets_of(*tasks))
