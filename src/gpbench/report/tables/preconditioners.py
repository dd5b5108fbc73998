"""Preconditioned conjugate gradients beside those without (cutajar2016, section 4).

For studies of kind `solve` whose methods differ in `preconditioner`. Iterations of solvers within one count as its own.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from gpbench.report.tables.render import Table, number
from gpbench.report.view import View

SYSTEM = ["dataset", "split", "replica", "lengthscale", "noise"]
MEASURED = {"iterations": ["iterations", "inner"], "seconds": ["setup_seconds", "solve_seconds"]}
LONG = 10.0  # of scaled inputs


def relative_to_cg(view: View) -> pd.DataFrame:
    """A row for each system of each method that conjugate gradients were tried on: SYSTEM, method, stopped, stopped_cg;
    iterations, seconds, and `relative_*`, their ratios to those of CG (of iterations 1 where neither converged)."""
    systems, grid = view.probe("systems"), view.grid("preconditioner")
    if systems.empty or grid.empty:
        return pd.DataFrame(columns=[*SYSTEM, "method"])
    systems = systems.assign(**{name: systems.reindex(columns=parts).sum(axis=1) for name, parts in MEASURED.items()})
    systems = systems[[*SYSTEM, "method", *MEASURED, "stopped"]]
    alone = grid.loc[grid["preconditioner"] == "none", "method"]
    cg = systems[systems["method"].isin(alone[:1])].drop(columns="method")  # the first, where a study has several
    both = systems.merge(cg, on=SYSTEM, suffixes=("", "_cg"))
    for name in MEASURED:
        both[f"relative_{name}"] = both[name].clip(lower=1e-9) / both[f"{name}_cg"].clip(lower=1e-9)
    capped = both["stopped"] + both["stopped_cg"] == 2
    return both.assign(relative_iterations=both["relative_iterations"].mask(capped, 1.0))


def preconditioners(view: View) -> Table:
    """By how much each preconditioner cuts iterations and time at long lengthscales, and where it is stopped."""
    rows, shown = [], pd.DataFrame({"method": [view.labels[method] for method in view.methods]})
    systems = dict(iter(relative_to_cg(view).groupby(["method", "dataset"])))
    for dataset in view.datasets:
        cells = [_saved(systems[method, dataset]) if (method, dataset) in systems else {} for method in view.methods]
        rows += [{"method": m, "dataset": dataset, **cell} for m, cell in zip(view.methods, cells, strict=True)]
        shown[dataset] = [_text(cell) if cell else "-" for cell in cells]
    note = (
        f"Iterations of conjugate gradients over those of the method: median (smallest to largest) over systems of "
        f"lengthscale {LONG:g} or more, of scaled inputs; then the median of the same of seconds; then on how many of "
        "all systems it did not converge. ≥: conjugate gradients did not on half of the former or more."
    )
    return Table(pd.DataFrame(rows), shown, "Iterations and seconds saved by preconditioners", note)


def _saved(systems: pd.DataFrame) -> dict[str, Any]:
    """Factors by which a method is quicker than conjugate gradients at long lengthscales, and how often it stopped."""
    long = systems[systems["lengthscale"] >= LONG]
    statistics = {
        f"{name}_{what}": (1 / long[f"relative_{name}"]).agg(what)
        for name in MEASURED
        for what in ("median", "min", "max")
    }
    stopped = {"systems": len(systems), "stopped": int(systems["stopped"].sum())}
    return statistics | stopped | {"cg_stopped": float(long["stopped_cg"].mean())}


def _text(cell: Mapping[str, Any]) -> str:
    median, least, most, seconds = (
        number(cell[name], 2) for name in ("iterations_median", "iterations_min", "iterations_max", "seconds_median")
    )
    mark = "≥" * (cell["cg_stopped"] >= 0.5)
    return f"{mark}{median} ({least} to {most}); {seconds}; {cell['stopped']} of {cell['systems']}"
