"""Bayesian signed-rank tests of the method with the best mean rank against the others."""

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
        tests = posteriors(view, spec, best_only=True)
        if tests.empty:
            continue
        frames.append(tests.assign(comparison=spec.name))
        first, by_method = tests["a"].iloc[0], tests.set_index("b")
        cells = [
            "(first)" if method == first else _text(by_method.loc[method]) if method in by_method.index else "-"
            for method in view.methods
        ]
        datasets = count(len(complete_losses(view, spec)[0]), "data set")
        shown[f"{spec.title} ({datasets}): {view.labels[first]} against it"] = cells
    columns = ["comparison", "a", "b", "a_better", "equal", "b_better", "decision"]
    ropes = ", ".join(f"{metric} {rope.in_words}" for metric, rope in ROPES.items())
    return Table(
        pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns),
        shown,
        "Practical differences over data sets",
        "Probability that the method with the best mean rank is practically better / equal / worse, by Bayesian "
        "signed-rank tests over the data sets that every ranked method finished. Equal: within a region fixed "
        f"beforehand ({ropes}). Bold: one of the probabilities is at least {DECIDED:g}. The prior weighs half a data "
        "set, so even two data sets can decide; there is no correction for choosing the first on the same data. "
        "statistics.json has all pairs.",
    )


def _text(test: pd.Series) -> str:
    text = " / ".join(f"{test[key]:.2f}" for key in ("a_better", "equal", "b_better"))
    return text if test["decision"] == "undecided" else f"**{text}**"
