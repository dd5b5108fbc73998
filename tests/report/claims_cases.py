"""Runs of which claims are judged."""

import numpy as np
import pandas as pd
from synthetic_study import all_done, build, change_study

from gpbench.config.evidence import Claim, Comparison
from gpbench.report.papers import claims
from gpbench.report.scorecard import all_runs
from gpbench.report.scorecard.counterparts import Counterparts
from gpbench.report.view import View
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
BETTER = {"studies": ["uci_common"], "methods": ["dsvi", "svgp"], "metric": "mnll", "datasets": ["boston_uci"]}
CARD = all_runs.read(REPOSITORY / "docs" / "scorecard" / "scorecard.csv")


def run(folder, budget="quick", splits=5, status=all_done, **columns):
    """DSVI, which is better by 0.5 nats and a little more, and SVGP, as a run of uci_common; columns: of the scores."""
    build(folder, ["svgp", "dsvi"], ["boston", "concrete", "energy"], splits, status)
    scores = pd.read_parquet(folder / "scores.parquet").assign(budget=budget)
    lead = (scores["method"] == "dsvi") * (0.5 + 0.02 * scores["split"])
    scores["mnll"] = (2 + 0.3 * scores["split"] - lead).where(scores["status"] == "done")
    scores.assign(**columns).to_parquet(folder / "scores.parquet")
    change_study(folder, budget=budget, command="x study=uci_common")
    return Counterparts(View(folder))


def quick_run(folder):
    """A run at budget quick with more scores, by which both methods are about as good or differ by a constant."""
    accuracy = {"accuracy": lambda scores: -scores["mnll"], "mnll_scaled": lambda scores: scores["mnll"] - np.log(2)}
    accuracy["rmse"] = lambda scores: 1 + (0.01 + 1e-4 * scores["split"]) * (scores["method"] == "dsvi")
    densities = {
        "mnll_gaussian": lambda scores: scores["mnll"] - 0.25,
        "mnll_draws": lambda scores: scores["mnll"] + 0.5,
    }
    return run(folder, **accuracy, **densities, ended="2026-01-02T00:00")


def judged(runs, *datasets, **changes):
    comparison = Comparison(**BETTER | {"datasets": list(datasets or ["boston"])} | changes)
    return claims.judge(Claim("c", "Table 1", [comparison]), runs, CONF)
