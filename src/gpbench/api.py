"""gpbench from Python: what its commands do, with pandas and NumPy in place of words and files.

Every function works on the project that `gpbench.places.find` finds, and calls what the command of its name calls."""

from __future__ import annotations

from typing import Any

import pandas as pd
from numpy.typing import ArrayLike

from gpbench import config, places
from gpbench.errors import UserError
from gpbench.evaluation.metrics import METRICS
from gpbench.report import registry
from gpbench.study.commands import fit_one, predict_csv
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect

METHOD_COLUMNS = ["label", "tasks", "kinds", "max_rows", "max_inputs", "max_outputs", "module", "reference"]
DATASET_COLUMNS = ["title", "task", "rows", "columns", "private", "licence", "citation"]


def list_methods() -> pd.DataFrame:
    """The methods and presets of conf/method by name: label, tasks, limits, module and citation key."""
    conf = places.find().conf
    headers = {name: config.compose(conf, "method", name).header for name in config.options(conf, "method")}
    return pd.DataFrame.from_dict({n: vars(h) for n, h in headers.items()}, "index")[METHOD_COLUMNS].rename_axis("name")


def list_datasets() -> pd.DataFrame:
    """The data sets of conf/dataset by name: title, task, size, licence, citation key and whether they are prepared."""
    where = places.find()
    entries = {name: config.compose(where.conf, "dataset", name) for name in config.options(where.conf, "dataset")}
    table = pd.DataFrame.from_dict({n: vars(d) for n, d in entries.items()}, "index")[DATASET_COLUMNS]
    return table.assign(prepared=[where.prepared_file(name).is_file() for name in entries]).rename_axis("name")


def plan(study: str = "default", overrides: str = "") -> pd.DataFrame:
    """A row for every fit of a study, or of a run of one: fit_id, method, dataset, split, replica, state, reason, and
    expected minutes of one core where it is pending. Nothing is run."""
    return pd.DataFrame(registry.planned(places.find(), study, overrides).rows())


def fit(method: str, dataset: str, split: int | str = 0, **settings: Any) -> pd.Series:
    """Fit one cell, or find it in the store: fit_id, status and scores.

    split: a number, or 'all' for a final model of every row. settings: protocol, budget, trainer, replica, kind, dtype,
    noise_block, tune, and else hyperparameters of the method (`num_inducing=50`); `**{'protocol.outputs': 'all'}` sets
    a key of a group. Raises UserError for what is unknown, and for a fit that failed."""
    from gpbench.study.commands import job

    words = [f"method={method}", f"dataset={dataset}", f"split={split}"]
    for key, value in settings.items():
        of_cell = key in (*fit_one.CHOICES, *fit_one.VALUES) or "." in key
        words.append(f"{key if of_cell else f'method.{key}'}={config.setting(value)}")
    where = places.find()
    record, result = job.run_words(where, words)
    job.require_done(where, record)
    return pd.Series(result)


def predict(fit: str, inputs: pd.DataFrame | ArrayLike) -> pd.DataFrame:
    """Answer with a kept model in original units: mean, sd, q05 ... q95, or p_CLASS.

    fit: beginning of an identity, or method/dataset. inputs: a frame with the columns of the data set's table,
    categories as they are there, or an array `[T, D]` of its prepared inputs. Raises UserError for what is no input."""
    return predict_csv.Model(places.find(), str(fit)).predict_table(inputs)


def results(study: str = "default", overrides: str = "") -> pd.DataFrame:
    """A row for every fit that a study, or a run of one, wants, as the store and the committed records have it now: the
    columns of scores.parquet (docs/api.md). Nothing is run."""
    where = places.find()
    planned = registry.planned(where, study, overrides)
    return pd.DataFrame(collect.score_rows(where, collect.Ended(where, planned.name), planned))


def compare(study: str = "default", overrides: str = "", metric: str = "mnll") -> pd.DataFrame:
    """Every method of a study, or of a run of one, against the best of each data set, paired over splits.

    Columns dataset, metric, method, best, difference (of losses), lower, upper (95 %), p (Nadeau and Bengio), n, and
    the probabilities that it is better, practically equal, worse (of mnll, rmse and error, by a margin). The study is
    collected first, into results/NAME. Raises UserError where no data set has two methods on two splits."""
    from gpbench.report.significance import comparisons
    from gpbench.report.view import View

    config.require_known("metric", [str(metric)], METRICS)
    where = places.find()
    planned = registry.planned(where, study, overrides)
    planning.freeze(planned, where)
    collect.collect(where, planned.name)
    differences = comparisons.differences(View(where.results / planned.name), {metric: METRICS[metric].tasks})
    if differences.empty:
        message = f"{planned.name}: no data set has two methods with {metric} on two splits"
        raise UserError(f"{message}; `{planned.command}` runs what is missing")
    return differences
