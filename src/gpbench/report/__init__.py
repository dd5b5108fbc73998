"""Tables, figures, statistics, scorecard and page of a study, from the files that the collect stage writes.

Only names live here, so that a workflow can list its outputs without importing pandas or matplotlib.
"""

TABLE_NAMES = (
    "regression_mnll",
    "regression_rmse",
    "classification_mnll",
    "classification_error",
    "ranks",
    "cost",
    "status",
    "unfinished",
    "all_metrics",
)
FIGURE_NAMES = ("convergence", "log_density", "calibration", "pit", "cost", "critical_difference", "scorecard")
