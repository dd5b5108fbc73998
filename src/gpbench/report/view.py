"""A study's collected results, and the rules by which fits are averaged into cells.

A folder `results/<study>/` holds `study.json`, `scores.parquet` (one row a fit), `traces.parquet` (one row a logged
step) and `points.parquet` (one row a test point), and what its fits were asked besides: `bounds.parquet` and others
(see `gpbench.study.results.probes`). A study of kind `sample` has no points, but `prefixes.parquet` and
`draws.parquet` (see `gpbench.study.results.chain_file`). A folder of committed records, `docs/results/<run>/`, has
`study.json` and `scores.csv` alone. Nothing else is read.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench.errors import UserError, unknown
from gpbench.evaluation.metrics import METRICS
from gpbench.study.results import collect
from gpbench.study.storage import committed

UNMIXED = "not converged"
"""A done fit by a Markov chain that fails, with the other chains of its split, the gate of its budget."""
STATUSES = ("done", UNMIXED, "stopped", "diverged", "out-of-memory", "failed", "skipped", "missing")
TASKS = ("regression", "binary", "multiclass", "counts")
SCORED = ("done", UNMIXED)
MIXING = ("chains", "draws", "r_hat", "r_hat_row", "r_hat_row_sd", "ess_bulk", "ess_tail")
MIXING_REPORTED = ("r_hat_covariance", "ess_covariance")
FACTS = ("commit", "dirty", "overrides", "staleness_mean", "restarts", "gate", *MIXING, *MIXING_REPORTED)


class View:
    """A study's results, loaded when first needed; only finished (`done`) fits enter a mean.

    Chains that have not converged enter it too, but a cell that has any is not complete: it is printed as failing,
    and neither ranked nor compared."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._cells: dict[str, pd.DataFrame] = {}

    def _path(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing; run the study's collect step first (snakemake)")
        return path

    @cached_property
    def study(self) -> dict:
        """`study.json`: name, title, kind, datasets, methods, protocol, what it reports, budget, splits, expected..."""
        return json.loads(self._path("study.json").read_text())

    @cached_property
    def _scores(self) -> pd.DataFrame:
        """`scores.parquet`, or of a folder of committed records `scores.csv`."""
        if self.recorded:
            return pd.DataFrame(committed.read(self.folder / "scores.csv"))
        return pd.read_parquet(self._path("scores.parquet"))

    @property
    def recorded(self) -> bool:
        """Whether these are committed records, which have scores and neither traces nor points."""
        return (self.folder / "scores.csv").is_file()

    @cached_property
    def fits(self) -> pd.DataFrame:
        """`scores.parquet`, of the study's kind only, with a `missing` row for every expected fit that has none; the
        status of a done fit whose chain fails the gate is `not converged`."""
        scores = self._scores[self._scores["kind"] == self.study["kind"]]
        # a study without a finished fit, or without a task, lacks columns
        scores = scores.reindex(columns=dict.fromkeys([*scores.columns, *METRICS, *FACTS]))
        self._check_statuses(scores)
        scores["status"] = scores["status"].mask(scores["gate"] == "failed", UNMIXED)
        keys = ["method", "dataset", "split"]
        # once for all replicas of a split: each of them has its row in what was collected
        expected = pd.DataFrame(self.study["expected"], columns=keys).astype({"split": "int64"}).drop_duplicates()
        fits = expected.merge(scores, how="outer", on=keys)
        absent = fits["status"].isna()
        fits.loc[absent, ["status", "reason"]] = ["missing", "no result was collected"]
        fits["kind"] = self.study["kind"]
        fits["replica"] = fits["replica"].fillna(0).astype("int64")
        fits["reason"] = fits["reason"].fillna("")
        fits["label"] = fits["label"].fillna(fits["method"].map(self.labels))
        fits["task"] = fits["task"].fillna(fits["dataset"].map(self.tasks))
        order = {"method": self.methods, "dataset": self.datasets}
        return fits.sort_values(keys, key=lambda column: _position(column, order.get(column.name)), ignore_index=True)

    @staticmethod
    def _check_statuses(scores: pd.DataFrame) -> None:
        for status in scores["status"].unique():
            if status not in STATUSES:
                raise unknown("status", status, STATUSES, "scores.parquet")

    @cached_property
    def traces(self) -> pd.DataFrame:
        """`traces.parquet`: fit_id, step, seconds, objective, mnll, rmse, error."""
        if self.recorded:
            return pd.DataFrame(columns=collect.TRACE_COLUMNS)
        return pd.read_parquet(self._path("traces.parquet"))

    @cached_property
    def points(self) -> pd.DataFrame:
        """`points.parquet` of finished fits, with the fit's method, dataset, task and split."""
        points = pd.DataFrame(columns=["fit_id", *collect.NUMBER_POINTS, *collect.CLASS_POINTS])
        if not self.recorded:
            points = pd.read_parquet(self._path("points.parquet"))
        return points.merge(self.done[["fit_id", "method", "dataset", "task", "split"]], on="fit_id")

    def grid(self, *keys: str) -> pd.DataFrame:
        """The methods of which the study sets all these keys, with their values: columns method and keys."""
        sets = self.study["settings"]
        rows = [[name, *(sets[name][key] for key in keys)] for name in self.methods if sets[name].keys() >= set(keys)]
        return pd.DataFrame(rows, columns=["method", *keys])

    def probe(self, name: str) -> pd.DataFrame:
        """What finished fits were asked, `bounds.parquet` say, or left (`prefixes`, `draws`), with each fit's method,
        dataset, split and replica; empty where the study has no such thing."""
        path = self.folder / f"{name}.parquet"
        if not path.is_file():
            return pd.DataFrame()
        return pd.read_parquet(path).merge(self.done[["fit_id", "method", "dataset", "split", "replica"]], on="fit_id")

    @cached_property
    def card(self) -> pd.DataFrame:
        """`scorecard.csv`; empty where it is not written yet."""
        path = self.folder / "scorecard.csv"
        columns = ["dataset", "method_printed", "protocol", "ours_method", "ours_metric", "published", "ours", "reason"]
        return pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=columns)

    def error_metric(self, dataset: str) -> str:
        """What papers draw beside MNLL: `rmse` or `error`."""
        return "rmse" if self.tasks.get(dataset) in ("regression", "counts") else "error"

    @cached_property
    def done(self) -> pd.DataFrame:
        """Finished fits, after the check that they may be compared."""
        done = self.fits[self.fits["status"].isin(SCORED)]
        for column in ("protocol", "budget"):
            self._check_one(done[column], column, "the study")
        cells = done.assign(overrides=done["overrides"].fillna("")).groupby(["method", "dataset"])["overrides"]
        for method, dataset in cells.nunique().loc[lambda n: n > 1].index:
            self._check_one(cells.get_group((method, dataset)), "overrides", f"cell {method} x {dataset}")
        return done

    def _check_one(self, values: pd.Series, what: str, where: str) -> None:
        counts = values.value_counts().sort_index()
        if len(counts) > 1:
            found = ", ".join(f"{name!r} ({n} fits)" for name, n in counts.items())
            raise UserError(
                f"{self.folder}: {where} mixes {what} {found}; their scores are not comparable: collect each by itself"
            )

    @property
    def methods(self) -> list[str]:
        """Method names in the study's order."""
        return list(self.study["methods"])

    @property
    def datasets(self) -> list[str]:
        """Data-set names in the study's order."""
        return list(self.study["datasets"])

    @cached_property
    def labels(self) -> dict[str, str]:
        """Printed label of each method."""
        scores = self._scores[["method", "label"]].dropna()
        return {name: name for name in self.methods} | dict(zip(scores["method"], scores["label"], strict=True))

    @cached_property
    def tasks(self) -> dict[str, str]:
        """Task of each data set; a data set without any collected fit is absent."""
        scores = self._scores[["dataset", "task"]].dropna()
        return dict(zip(scores["dataset"], scores["task"], strict=True))

    def datasets_of(self, *tasks: str) -> list[str]:
        """The study's data sets with one of these tasks (all where none is named)."""
        return [name for name in self.datasets if not tasks or self.tasks.get(name) in tasks]

    def per_split(self, metric: str, dataset: str) -> pd.DataFrame:
        """Finite scores of finished fits `[splits, methods]`, replicas of a split averaged; NaN where there is none."""
        if metric not in METRICS:
            raise unknown("metric", metric, METRICS)
        rows = self.done[self.done["dataset"] == dataset]
        rows = rows[np.isfinite(rows[metric].astype(float))]
        scores = rows.pivot_table(index="split", columns="method", values=metric, aggfunc="mean")
        return scores.reindex(columns=self.methods).astype(float)

    def cells(self, metric: str, *tasks: str) -> pd.DataFrame:
        """One row per method and data set: mean, sd (ddof = 1), n and expected splits, statuses, and complete: whether
        every fit is done and every split has a value."""
        if metric not in self._cells:
            self._cells[metric] = self._summarise(metric)
        cells = self._cells[metric]
        return cells[cells["dataset"].isin(self.datasets_of(*tasks))].reset_index(drop=True)

    def _summarise(self, metric: str) -> pd.DataFrame:
        parts = []
        for dataset in self.datasets:
            scores = self.per_split(metric, dataset)
            parts.append(
                pd.DataFrame({"dataset": dataset, "mean": scores.mean(), "sd": scores.std(ddof=1), "n": scores.count()})
            )
        cells = pd.concat(parts).rename_axis("method").reset_index()
        cells = cells.merge(self.progress, on=["method", "dataset"], how="left")
        cells["expected"] = cells["expected"].fillna(0).astype(int)
        cells["statuses"] = cells["statuses"].fillna("not planned")
        cells["complete"] = (cells["n"] == cells["expected"]) & (cells["n"] > 0) & (cells["statuses"] == "")
        return cells

    @cached_property
    def progress(self) -> pd.DataFrame:
        """Per cell: expected splits, and why fits of it are not done ('' where all are)."""
        keys = ["method", "dataset"]
        cells = self.fits.groupby(keys)["split"].nunique().rename("expected").reset_index()
        unlike = self.fits.loc[self.fits["status"] != "done", keys].drop_duplicates()
        said = {cell: describe_statuses(fits) for cell, fits in self.fits.merge(unlike, on=keys).groupby(keys)}
        return cells.assign(
            statuses=[said.get(cell, "") for cell in zip(cells["method"], cells["dataset"], strict=True)]
        )

    @cached_property
    def warning(self) -> str:
        """The cells whose chains have not converged, in a sentence; '' where there is none."""
        failing = (
            self.fits[self.fits["status"] == UNMIXED].groupby(["dataset", "method"], sort=False)["split"].nunique()
        )
        cells = [f"{self.labels[method]} on {dataset} ({n} splits)" for (dataset, method), n in failing.items()]
        return f"✗ Chains that have not converged: {', '.join(cells)}." if cells else ""

    def matrix(self, metric: str, *tasks: str) -> pd.DataFrame:
        """Mean scores `[datasets, methods]`; NaN where not every expected split is done, never imputed."""
        cells = self.cells(metric, *tasks)
        matrix = cells.assign(mean=cells["mean"].where(cells["complete"])).pivot(
            index="dataset", columns="method", values="mean"
        )
        return matrix.reindex(index=self.datasets_of(*tasks), columns=self.methods)

    def test_fraction(self, dataset: str) -> float:
        """Test rows over all rows of a split (mean over the finished fits of a data set)."""
        rows = self.done[self.done["dataset"] == dataset]
        return float((rows["n_test"] / (rows["n_train"] + rows["n_test"])).mean())


def _position(column: pd.Series, order: list[str] | None) -> pd.Series:
    if order is None:
        return column
    return column.map({name: i for i, name in enumerate(order)}).fillna(len(order))


def describe_statuses(fits: pd.DataFrame, width: int = 48) -> str:
    """Why fits of a cell are not done, e.g. '1 diverged' or 'skipped: regression only'; '' where all are done.

    Chains fail together: of those that have not converged, splits are counted."""
    others = fits[fits["status"] != "done"]
    if len(others) == len(fits) and len(others[["status", "reason"]].drop_duplicates()) == 1:
        status, reason = others.iloc[0][["status", "reason"]]
        text = f"{status}: {reason}" if reason else status
        return text if len(text) <= width else text[: width - 1] + "…"
    counts = others["status"].value_counts().astype(str)
    if UNMIXED in counts:
        failing = others.loc[others["status"] == UNMIXED, "split"].nunique()
        counts[UNMIXED] = f"{failing} of {fits['split'].nunique()}"
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if status in counts)
