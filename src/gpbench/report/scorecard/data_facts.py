"""Printed facts of data, numbers of rows and of columns, beside those of our data sets (`conf/dataset`)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpbench import config
from gpbench.config.schema import Dataset
from gpbench.report.scorecard import verdicts
from gpbench.report.scorecard.one_run import Judgement, not_run
from gpbench.report.scorecard.published import PublishedNumber

FACTS: dict[str, Callable[[Dataset], int | None]] = {
    "n_points": lambda data: data.rows,
    "d_in": lambda data: data.columns,
    "d_out": lambda data: len(data.classes or data.source.targets),
    "n_train": lambda data: data.train_rows,
    "n_test": lambda data: data.train_rows and data.rows - data.train_rows,
}
"""Printed metric -> ours; None where our data set has no official split."""


def judged(printed: PublishedNumber, conf: Path) -> Judgement | None:
    """Whether a fact is that of our data set, exactly; None for what is no such fact, or of data that nobody pinned."""
    if printed.metric_printed not in FACTS or printed.dataset not in config.options(conf, "dataset"):
        return None
    data = config.compose(conf, "dataset", printed.dataset)
    ours = FACTS[printed.metric_printed](data)
    if data.md5 is None or ours is None:
        return None
    difference = ours - printed.value
    verdict = verdicts.judge(difference, difference, printed.rounding, "")
    result = replace(not_run(printed), ours=float(ours), ours_n=1, difference=difference, verdict=verdict)
    return replace(result, lower=difference, upper=difference, margin=printed.rounding, compared="a fact of the data")
