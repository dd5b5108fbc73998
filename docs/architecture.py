"""Draw the picture of docs/architecture.md from the imports of the code: `python docs/architecture.py`.

A box is a stage, which is a folder of src/gpbench; the vocabulary that everybody imports is left out. An arrow leads
from a stage to one that imports it; an arrow that others imply is not drawn.
"""

from __future__ import annotations

import ast
from pathlib import Path

from gpbench.places import write_text

PAGE = Path(__file__).with_name("architecture.md")
SOURCE = PAGE.parent.parent / "src" / "gpbench"
BEGIN, END = "<!-- picture: python docs/architecture.py -->\n", "<!-- end -->"

# stage: what it makes of what the stages before it hand over
STAGES = {
    "config": "conf/ composed and validated",
    "data": "source files to data/raw to data/prepared",
    "predictive": "predictive distributions",
    "gp": "kernels, conditionals, likelihoods",
    "sampling": "transition operators, diagnostics",
    "solvers": "conjugate gradients, preconditioners, log determinants",
    "evaluation": "metrics, tests, calibration",
    "methods": "one file, one inference method",
    "study/planning": "study to plans/: fits, groups, batches",
    "study/scoring": "fit to scores",
    "study/fitting": "batch to fits",
    "study/storage": "store/, one folder a fit",
    "study/results": "store to results/STUDY/scores.parquet",
    "study/commands": "jobs and longer commands",
    "study/tracking": "finished fits to MLflow",
    "report": "results/STUDY to tables, figures, scorecard, report.html",
    "api": "import gpbench: pandas and NumPy",
    "estimators": "any method as a scikit-learn estimator",
    "cli": "the command gpbench",
}

VOCABULARY = ("errors", "hyper", "places", "streams", "records")


def stage_of(module: str) -> str | None:
    """The stage that a module belongs to; None for the vocabulary."""
    parts = module.split(".")[1:]
    return next((name for n in (2, 1) if (name := "/".join(parts[:n])) in STAGES), None)


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    return ".".join(("gpbench", *path.relative_to(SOURCE).with_suffix("").parts))


def is_homeless(path: Path) -> bool:
    """Whether a file belongs neither to a stage nor to the vocabulary."""
    return path.stem not in ("__init__", "__main__", *VOCABULARY) and stage_of(module_of(path)) is None


def imported_modules(path: Path) -> set[str]:
    """Dotted names that a file imports when it runs: imports for annotations only do not count."""
    tree = ast.parse(path.read_text())
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("gpbench.")}


def uses() -> dict[str, set[str]]:
    """Stage -> the stages that its files import."""
    graph: dict[str, set[str]] = {name: set() for name in STAGES}
    for path in sorted(SOURCE.rglob("*.py")):
        if stage := stage_of(module_of(path)):
            graph[stage] |= {used for name in imported_modules(path) if (used := stage_of(name)) not in (None, stage)}
    return graph


def reachable(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Stage -> all stages that it imports directly or through others."""
    closure = {stage: set(used) for stage, used in graph.items()}
    for middle in graph:
        for used in closure.values():
            if middle in used:
                used |= closure[middle]
    return closure


def arrows(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """(imported, importing) pairs of stages without those that a longer way implies."""
    closure = reachable(graph)

    def implied(stage: str, used: str) -> bool:
        between = (c for c in closure[stage] - {stage, used} if used in closure[c])
        return any(stage not in closure[c] and c not in closure[used] for c in between)

    return [(used, stage) for stage in graph for used in STAGES if used in graph[stage] and not implied(stage, used)]


def picture() -> str:
    """The picture as a Mermaid flowchart."""
    boxes = [f'    {name.replace("/", "_")}["<b>{name}</b><br>{text}"]' for name, text in STAGES.items()]
    lines = [f"    {a.replace('/', '_')} --> {b.replace('/', '_')}" for a, b in arrows(uses())]
    return "\n".join(["```mermaid", "flowchart TD", *boxes, *lines, "```", ""])


def page() -> str:
    """The page with the picture that the code has now."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + picture() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    write_text(PAGE, page())
