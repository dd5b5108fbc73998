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
    "bayes",
    "cost",
    "status",
    "unfinished",
    "all_metrics",
)
FIGURE_NAMES = (
    *("convergence", "log_density", "calibration", "pit", "cost"),
    *("critical_difference", "performance_profile", "pareto", "scorecard"),
)

# what a study may ask for besides, by `figures` and `tables` in its file
MORE_TABLES = (
    *("counts_mnll", "chains", "diagnostics", "differences", "features", "p_values", "workers"),
    *("scores_by_n", "efficiency", "convergence_order"),
)
MORE_FIGURES = (
    "error_over_time",
    "features",
    "bounds",
    "layers",
    "surfaces",
    "inducing",
    "covariance",
    "pictures",
    "rates",
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
    "score_against_n",
    "abstention",
    "reject",
    "r_hat",
    "ess_per_operation",
    "chain_traces",
    "estimator",
    "weights",
)


# of studies of kind `sample`, in which nothing is predicted
SAMPLE_TABLES = ("efficiency", "convergence_order", "cost", "status", "unfinished", "all_metrics")
SAMPLE_FIGURES = ("r_hat", "ess_per_operation", "chain_traces")


def names(study: dict, what: str) -> tuple[str, ...]:
    """The `figures` or `tables` of a study: its own first, then those of every study of its kind."""
    more = {"figures": MORE_FIGURES, "tables": MORE_TABLES}[what]
    for name in study[what]:
        if name not in more:
            raise unknown(what.removesuffix("s"), name, more, f"{what} of study {study['name']!r}")
    common = {
        "predict": {"figures": FIGURE_NAMES, "tables": TABLE_NAMES},
        "sample": {"figures": SAMPLE_FIGURES, "tables": SAMPLE_TABLES},
    }
    return tuple(dict.fromkeys([*study[what], *common[study["kind"]][what]]))
