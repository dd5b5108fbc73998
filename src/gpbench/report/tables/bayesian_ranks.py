"""The table of Bayesian signed-rank tests against the first in mean rank."""

from __future__ import annotations

import pandas as pd

from gpbench.errors import count
from gpbench.evaluation.practical import DECIDED, ROPES
from gpbench.report.significance.comparisons import COMPARISONS, complete_losses, posteriors
from gpbench.report.tables.render import Table
from gpbench.report.view import View


def bayes(view: View) -> Table:
    """Methods in rows, comparisons in columns: is the first in mean rank practically better, equal or worse?"""
    frames, shown = [], pd.DataFrame({"method": [view.labels[method] for method in view.methods]})
    for spec in COMPARISONS:
        found = posteriors(view, spec, best_only=True)
        if found.empty:
            continue
        frames.append(found.assign(comparison=spec.name))
        others = {row.b: row for row in found.itertuples()}
        first = found["a"].iloc[0]
        cells = ["(first)" if method == first else _text(others.get(method)) for method in view.methods]
        datasets = count(len(complete_losses(view, spec)[0]), "data set")
        shown[f"{spec.title} ({datasets}): {view.labels[first]} against it"] = cells
    columns = ["comparison", "a", "b", "a_better", "equal", "b_better", "decision"]
    ropes = ", ".join(f"{metric} {rope.said}" for metric, rope in ROPES.items())
    return Table(
        pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns),
        shown,
        "Practical differences over data sets",
        "Probability that the first in mean rank is practically better / equal / worse, by Bayesian signed-rank tests "
        f"over the data sets that every ranked method finished. Equal: within a region fixed beforehand ({ropes}). "
        f"Bold: one of them is at least {DECIDED:g}. The prior weighs half a data set, so that even two data sets can "
        "decide, and nothing is corrected for having chosen the first on the same data. All pairs: statistics.json.",
    )


def _text(row) -> str:
    if row is None:
        return "-"
    text = " / ".join(f"{p:.2f}" for p in (row.a_better, row.equal, row.b_better))
    return text if row.decision == "undecided" else f"**{text}**"
