"""Preconditioned conjugate gradients beside those without (cutajar2016, section 4.1).

For studies of kind `solve` whose methods differ in `preconditioner`. Iterations of solvers within a preconditioner count.
"""

import numpy as np
import pandas as pd

from gpbench.report.tables.render import Table, number
from gpbench.report.view import View

SYSTEM = ["dataset", "split", "replica", "lengthscale", "noise"]
MEASURED = {"iterations": ["iterations", "inner"], "seconds": ["setup_seconds", "solve_seconds"]}
LONG = 1.0


def relative_to_cg(view: View) -> pd.DataFrame:
    """A row for each system of each method: SYSTEM, method, iterations and seconds, their ratios `relative_*` to those of
    conjugate gradients on the same system (1 where both ended at the cap), stopped, cg_stopped.

    Empty where no fit without a preconditioner is finished."""
    systems, grid = view.probe("systems"), view.grid("preconditioner")
    if systems.empty or grid.empty:
        return pd.DataFrame(columns=[*SYSTEM, "method"])
    systems = systems.assign(**{name: systems[parts].sum(axis=1) for name, parts in MEASURED.items()})
    alone = grid.loc[grid["preconditioner"] == "none", "method"]
    cg = systems[systems["method"].isin(alone)].drop_duplicates(SYSTEM)[[*SYSTEM, *MEASURED, "stopped"]]
    both = systems[[*SYSTEM, "method", *MEASURED, "stopped"]].merge(cg, on=SYSTEM, suffixes=("", "_cg"))
    capped = (both["stopped"] == 1) & (both["stopped_cg"] == 1)
    # a system that is solved at the start takes no iterations
    ratios = {f"relative_{m}": (both[m] / both[f"{m}_cg"]).where(np.maximum(both[m], both[f"{m}_cg"]) > 0, 1.0) for m in MEASURED}
    ratios["relative_iterations"] = ratios["relative_iterations"].mask(capped, 1.0)
    return both.assign(**ratios).rename(columns={"stopped_cg": "cg_stopped"})


def preconditioners(view: View) -> Table:
    """By how much each preconditioner cuts iterations and time at long lengthscales, and how many systems it leaves."""
    systems = relative_to_cg(view)
    long = systems[systems["lengthscale"] >= LONG] if len(systems) else systems
    rows, shown = [], []
    for method in view.methods:
        texts = {"method": view.labels[method]}
        for dataset in view.datasets:
            cell = {"method": method, "dataset": dataset}
            of_cell, of_long = (part[(part["method"] == method) & (part["dataset"] == dataset)] for part in (systems, long))
            texts[dataset] = _text(of_cell, of_long) if len(of_long) else "-"
            rows.append(cell | _numbers(of_cell, of_long) if len(of_long) else cell)
        shown.append(texts)
    note = (
        f"Median over systems of lengthscale {LONG:g} or more (scaled inputs) of the iterations of conjugate gradients over "
        "those of the method, with smallest and largest; then the same of seconds; then on how many of all systems it "
        "ended at the cap. ≥: conjugate gradients ended at the cap in half of these systems or more."
    )
    return Table(pd.DataFrame(rows), pd.DataFrame(shown), "Iterations and seconds saved by preconditioners", note)


def _numbers(systems: pd.DataFrame, long: pd.DataFrame) -> dict[str, float]:
    """Factors by which a method is quicker than conjugate gradients, and counts."""
    saved = {name: 1 / long[f"relative_{name}"] for name in MEASURED}
    statistics = {f"{name}_{what}": float(getattr(saved[name], what)()) for name in saved for what in ("median", "min", "max")}
    counts = {"systems": len(systems), "stopped": int(systems["stopped"].sum())}
    return statistics | counts | {"cg_stopped_long": float(long["cg_stopped"].mean())}


def _text(systems: pd.DataFrame, long: pd.DataFrame) -> str:
    found = _numbers(systems, long)
    mark = "≥" * (found["cg_stopped_long"] >= 0.5)
    spread = f"({number(found['iterations_min'], 2)} to {number(found['iterations_max'], 2)})"
    times = f"{mark}{number(found['iterations_median'], 2)} {spread}; {number(found['seconds_median'], 2)}"
    return f"{times}; {found['stopped']} of {found['systems']} stopped"
