"""Tables, figures, statistics, scorecard and page of a study, from the files that the collect stage writes.

Only names live here, so that a workflow can list its outputs without importing pandas or matplotlib.
"""

from gpbench.errors import unknown

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

# what a study may ask for besides, by `figures` and `tables` in its file
MORE_TABLES = ("counts_mnll", "chains", "diagnostics", "differences", "features", "p_values", "workers")
MORE_FIGURES = (
    "error_over_time",
    "features",
    "bounds",
    "layers",
    "surfaces",
    "inducing",
    "covariance",
    "pictures",
    "workers",
    "loglik_by_model",
    "error_by_model",
    "reliability",
    "traces",
    "intervals",
    "boxes",
    "num_inducing",
    "depth",
    "p_values",
    "prediction_cost",
)


def names(study: dict, kind: str) -> tuple[str, ...]:
    """The figures or tables (`kind`) of a study: its own first, then those of every study."""
    common, more = {"figures": (FIGURE_NAMES, MORE_FIGURES), "tables": (TABLE_NAMES, MORE_TABLES)}[kind]
    for name in study[kind]:
        if name not in more:
            raise unknown(kind.removesuffix("s"), name, more, f"{kind} of study {study['name']!r}")
    return (*dict.fromkeys(study[kind]), *common)
