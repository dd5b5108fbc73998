"""A study's collected results, and the rules by which fits are averaged into cells.

A folder `results/<study>/` holds `study.json`, `scores.parquet` (one row per fit), `traces.parquet` (one row per logged
step), `points.parquet` (one row per test point), `scorecard.csv` and the results of probes, such as `bounds.parquet`
(see `gpbench.study.results.probes`). A study of kind `sample` has `prefixes.parquet` and `draws.parquet` instead of
points (see `gpbench.study.results.chain_file`), one of kind `solve` `systems.parquet`. A folder of committed records,
`docs/results/<run>/`, has `study.json`, `scores.csv` and, of its curves, `traces.csv`, `calibration.csv` and
`systems.csv` (see `gpbench.study.results.curves`). Nothing else is read.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import numpy as np
import pandas as pd
from pyarrow import ArrowException

from gpbench import config
from gpbench.errors import UserError, count
from gpbench.evaluation.calibration import histograms
from gpbench.evaluation.metrics import METRICS
from gpbench.places import read_json
from gpbench.study.fitting.convergence import IMPROVING as STILL
from gpbench.study.fitting.convergence import NOT_JUDGED
from gpbench.study.records import CONVERGENCE, JITTER, Setting
from gpbench.study.results import collect, convergence, curves
from gpbench.study.storage import challengers, committed, parquet

UNMIXED = "not converged"
"""Status of a finished fit that does not converge as its budget requires: the chains of its split by their R-hat, a fit
by gradients by its predicted gain."""
IMPROVING = "↗"  # mark of a cell with fits that still improve, where the budget requires no convergence
JITTERED = "†"  # mark of a cell with fits whose matrices needed jitter beyond the method's own
STATUSES = ("done", UNMIXED, "stopped", "diverged", "out-of-memory", "failed", "skipped", "missing")
SCORED = ("done", UNMIXED)
MIXING = ("chains", "draws", "r_hat", "r_hat_row", "r_hat_row_sd", "ess_bulk", "ess_tail", "ess_every")
MIXING_REPORTED = ("r_hat_covariance", "ess_covariance", "mcse")
CERTIFICATE = ("certificate_steps", "certificate_objective", "certificate_mnll")
FACTS = (
    *("commit", "dirty", "processor", "gpu", "overrides", "steps", "staleness_mean", "restarts", "gate"),
    *(*MIXING, *MIXING_REPORTED, *CONVERGENCE, *CERTIFICATE, *JITTER),
)
AGAIN = "delete it, and snakemake makes it again"


def load(path: Path) -> Any:
    """The content of a JSON, CSV or parquet file of a study's results. UserError where it cannot be read."""
    remedy = committed.RESTORE if (path.parent / "scores.csv").is_file() else AGAIN
    if path.suffix == ".json":
        return read_json(path, remedy)
    try:
        return pd.read_csv(path) if path.suffix == ".csv" else parquet.read(path)
    except (ValueError, OSError, ArrowException) as error:
        raise UserError(f"{path} is damaged ({error}); {remedy}") from error


class StudyRecord(TypedDict, total=False):
    """Content of `study.json`."""

    name: str
    title: str
    kind: str
    command: str
    datasets: list[str]
    methods: list[str]
    labels: dict[str, str]
    protocol: str
    budget: str
    splits: int
    figures: list[str]
    tables: list[str]
    pairs: list[tuple[str, str]]
    published: list[str] | None
    settings: dict[str, dict[str, Setting]]
    reported: dict[str, list[str] | str]
    r_hat: float | None
    gain: float | None
    expected: list[tuple[str, str, int]]
    commit: str
    dirty: bool
    created: str
    machine: dict[str, str | int | float]
    versions: dict[str, str]


class View:
    """A study's results, loaded when first needed; only finished fits enter a mean.

    Fits that have not converged as the budget requires enter it too, but their cell is not complete: it is marked, and
    neither ranked nor compared. Where it requires nothing, cells that still improve are marked and ranked all the same.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._all_cells = cache(self._summarise)

    def _path(self, name: str) -> Path:
        if not (path := self.folder / name).is_file():
            raise UserError(f"{path} is missing; run the study's collect step first (snakemake)")
        return path

    @cached_property
    def study(self) -> StudyRecord:
        """`study.json`."""
        remedy = committed.RESTORE if self.recorded else AGAIN
        return cast(StudyRecord, committed.facts(self._path("study.json").parent, remedy, committed.FACTS))

    @cached_property
    def _scores(self) -> pd.DataFrame:
        if self.recorded:
            return pd.DataFrame(committed.read(self.folder / "scores.csv"))
        return load(self._path("scores.parquet"))

    @property
    def recorded(self) -> bool:
        """Whether these are committed records, which have no points and thinned traces."""
        return (self.folder / "scores.csv").is_file()

    @cached_property
    def fits(self) -> pd.DataFrame:
        """The scores of the study's kind, with a row of status `missing` for every expected fit without a result; the
        status of a finished fit that fails the gate of its budget is `not converged`. Column `convergence` is empty for
        closed forms and gradient fits recorded before it was noted; `unmixed`: why chains do not count as converged."""
        scores = self._scores[self._scores["kind"] == self.study["kind"]]
        # a study without finished fits, or without some task, lacks columns
        scores = scores.reindex(columns=dict.fromkeys([*scores.columns, *METRICS, *FACTS]))
        config.require_known("status", sorted(set(scores["status"])), STATUSES, "scores.parquet")
        scores["status"] = scores["status"].mask((scores["gate"] == "failed") & (scores["status"] == "done"), UNMIXED)
        scores["convergence"] = scores["convergence"].astype(object).where(scores["convergence"].notna(), "")
        drawn, limit = scores[["r_hat", "draws"]].notna().any(axis=1), self.study.get("r_hat")
        drawn &= scores["status"].isin(SCORED)
        chains = scores.loc[drawn, list(MIXING)].astype(float).to_dict("records")
        scores["unmixed"] = ""
        scores.loc[drawn, "unmixed"] = [convergence.unmixed(mixing, limit) for mixing in chains]
        scores.loc[drawn, "convergence"] = [convergence.of_chains(mixing, limit)["convergence"] for mixing in chains]
        keys = ["method", "dataset", "split", "replica"]
        # a split is expected once for each of its replicas, which count from 0
        expected = pd.DataFrame(self.study["expected"], columns=keys[:3]).astype({"split": "int64"})
        expected["replica"] = expected.groupby(keys[:3]).cumcount()
        fits = expected.merge(scores, how="outer", on=keys)
        missing = fits["status"].isna()
        fits.loc[missing, ["status", "reason"]] = ["missing", "no result was collected"]
        fits["kind"] = self.study["kind"]
        fits = fits.fillna({"reason": "", "convergence": "", "unmixed": ""})
        fits["label"] = fits["label"].fillna(fits["method"].map(self.labels))
        fits["task"] = fits["task"].fillna(fits["dataset"].map(self.tasks))
        order = {"method": self.methods, "dataset": self.datasets}
        places = {key: pd.Series(range(len(names)), names) for key, names in order.items()}
        return fits.sort_values(keys, key=lambda c: c.map(places[c.name]) if c.name in places else c, ignore_index=True)

    @cached_property
    def traces(self) -> pd.DataFrame:
        """`traces.parquet`: fit_id, step, seconds, objective, mnll, rmse, error."""
        return curves.read_traces(self.folder) if self.recorded else load(self._path("traces.parquet"))

    @cached_property
    def points(self) -> pd.DataFrame:
        """`points.parquet` of finished fits, with the fit's method, dataset, task and split."""
        names = ["fit_id", *collect.NUMBER_POINTS, *collect.CLASS_POINTS]
        points = pd.DataFrame(columns=names) if self.recorded else load(self._path("points.parquet"))
        return points.merge(self.done[["fit_id", "method", "dataset", "task", "split"]], on="fit_id")

    @cached_property
    def calibration(self) -> pd.DataFrame:
        """Histograms of finished fits: `curves.BIN_COLUMNS`, with the fit's method, dataset, task and split."""
        if self.recorded:
            bins = curves.read_bins(self.folder)
        else:
            by_fit = self.points.groupby(["fit_id", "task"], sort=False)
            bins = curves.joined(
                (fit_id, of, table)
                for (fit_id, task), points in by_fit
                for of, table in histograms(points, task).items()
            )
        return bins.merge(self.done[["fit_id", "method", "dataset", "task", "split"]], on="fit_id")

    def unrecorded(self, curve: Literal["traces", "calibration"]) -> str:
        """How many finished fits have no such curve in their records; '' where all have."""
        if not self.recorded:
            return ""
        fits = {
            "traces": self.done[self.done["steps"].notna()],
            "calibration": self.done[self.done["seconds_train"].notna() & (self.done["task"] != "counts")],
        }[curve]
        absent = int((~fits["fit_id"].isin(getattr(self, curve)["fit_id"])).sum())
        text = f"{absent} of {count(len(fits), 'fit')} have no {curve} here: recorded before curves were kept."
        return text if absent else ""

    def grid(self, *keys: str) -> pd.DataFrame:
        """The methods for which the study sets all these keys, with their values: columns method and keys."""
        settings = [(name, self.study["settings"][name]) for name in self.methods]
        rows = [[name, *map(setting.get, keys)] for name, setting in settings if setting.keys() >= set(keys)]
        return pd.DataFrame(rows, columns=["method", *keys])

    def probe(self, name: str) -> pd.DataFrame:
        """A further file of finished fits (`bounds`, ...) with method, dataset, split and replica; empty without it."""
        path, places = self.folder / f"{name}.parquet", self.done[["fit_id", "method", "dataset", "split", "replica"]]
        if name == "systems" and self.recorded:
            return curves.read_systems(self.folder).merge(places, on="fit_id")
        return load(path).merge(places, on="fit_id") if path.is_file() else pd.DataFrame()

    @cached_property
    def card(self) -> pd.DataFrame:
        """`scorecard.csv`; empty before it is written."""
        path = self.folder / "scorecard.csv"
        columns = ["dataset", "method_printed", "protocol", "ours_method", "ours_metric", "published", "ours", "reason"]
        return load(path) if path.is_file() else pd.DataFrame(columns=columns)

    def error_metric(self, dataset: str) -> str:
        """The metric beside MNLL: `rmse` or `error`."""
        return "rmse" if self.tasks.get(dataset) in ("regression", "counts") else "error"

    @cached_property
    def done(self) -> pd.DataFrame:
        """Finished fits; UserError if they mix protocols, budgets or settings and so cannot be compared."""
        done = self.fits[self.fits["status"].isin(SCORED)]
        for column in ("protocol", "budget"):
            self._check_one(done[column], column, "the study")
        words = done["overrides"].fillna("").astype(str).str.split().map(sorted).str.join(" ")  # in any order the same
        cells = done.assign(overrides=words).groupby(["method", "dataset"])["overrides"]
        for method, dataset in cells.nunique().loc[lambda n: n > 1].index:
            self._check_one(cells.get_group((method, dataset)), "overrides", f"cell {method} x {dataset}")
        return done

    def _check_one(self, values: pd.Series, what: str, where: str) -> None:
        if len(counts := values.value_counts().sort_index()) > 1:
            mixed = ", ".join(f"{name!r} ({n} fits)" for name, n in counts.items())
            raise UserError(f"{self.folder}: {where} mixes {what} {mixed}, not comparable; collect each separately")

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
        planned = {name: name for name in self.methods} | self.study.get("labels", {})  # older records lack them
        return planned | dict(self._scores[["method", "label"]].dropna().to_numpy())

    @cached_property
    def tasks(self) -> dict[str, str]:
        """Task of each data set; a data set without any collected fit is absent."""
        return dict(self._scores[["dataset", "task"]].dropna().to_numpy())

    def datasets_of(self, *tasks: str) -> list[str]:
        """The study's data sets with one of these tasks (all data sets without a task)."""
        return [name for name in self.datasets if not tasks or self.tasks.get(name) in tasks]

    def per_split(self, metric: str, dataset: str) -> pd.DataFrame:
        """Finite scores of finished fits `[splits, methods]`, averaged over replicas of a split; NaN without any."""
        config.require_known("metric", [metric], METRICS)
        rows = self.done.loc[self.done["dataset"] == dataset, ["split", "method", metric]]
        rows = rows[np.isfinite(rows[metric].astype(float))]
        scores = rows.pivot_table(index="split", columns="method", values=metric, aggfunc="mean")
        return scores.reindex(columns=self.methods).astype(float)

    def cells(self, metric: str, *tasks: str) -> pd.DataFrame:
        """One row per method and data set: mean, sd (ddof = 1), n and expected splits, statuses, complete: whether
        every fit is done and every split has a value, improving: in how many splits done fits still improve, and
        jittered: in how many done fits needed jitter."""
        cells = self._all_cells(metric)
        return cells[cells["dataset"].isin(self.datasets_of(*tasks))].reset_index(drop=True)

    def cells_of(self, dataset: str, metric: str) -> pd.DataFrame:
        """The `cells` of a data set, by method."""
        cells = self.cells(metric)
        return cells[cells["dataset"] == dataset].set_index("method")

    def _summarise(self, metric: str) -> pd.DataFrame:
        scores = {dataset: self.per_split(metric, dataset) for dataset in self.datasets}
        parts = [
            pd.DataFrame({"dataset": dataset, "mean": values.mean(), "sd": values.std(ddof=1), "n": values.count()})
            for dataset, values in scores.items()
        ]
        cells = pd.concat(parts).rename_axis("method").reset_index()
        cells = cells.merge(self.progress, on=["method", "dataset"], how="left")
        cells["expected"] = cells["expected"].fillna(0).astype(int)
        cells["statuses"] = cells["statuses"].fillna("not planned")
        cells[["improving", "jittered"]] = cells[["improving", "jittered"]].fillna(0).astype(int)
        cells["complete"] = (cells["n"] == cells["expected"]) & (cells["n"] > 0) & (cells["statuses"] == "")
        return cells

    @cached_property
    def progress(self) -> pd.DataFrame:
        """Per cell: splits of its data set, why some are not ('': all are), in how many they improve, had jitter."""
        keys = ["method", "dataset"]
        by_cell = self.fits.assign(expected=self.fits.groupby("dataset")["split"].transform("nunique")).groupby(keys)
        cells = by_cell["expected"].first().to_frame()
        of_cells = by_cell[["split", "status", "reason"]]
        cells["statuses"] = [describe_statuses(list(fits.itertuples()), 68) for _, fits in of_cells]
        given = by_cell["split"].nunique()  # of others, only the splits that they gave are rows
        cells.loc[(given < cells["expected"]) & (cells["statuses"] == ""), "statuses"] = "rest not given"
        for name, fits in {"improving": self.improving, "jittered": self.jittered}.items():
            cells[name] = fits.groupby(keys)["split"].nunique()  # none where a cell is absent
        return cells.fillna(0).astype({"improving": int, "jittered": int}).reset_index()

    @property
    def improving(self) -> pd.DataFrame:
        """Fits that are done, enter every comparison, and still improve."""
        return self.fits[(self.fits["status"] == "done") & self.fits["convergence"].isin([STILL, UNMIXED])]

    @property
    def jittered(self) -> pd.DataFrame:
        """Finished fits whose matrices needed jitter."""
        return self.done[self.done["jitter_times"].fillna(0).astype(float) > 0]

    @property
    def needed_jitter(self) -> str:
        """A sentence that counts the fits whose matrices needed jitter, with the largest; '' without any."""
        if self.jittered.empty:
            return ""
        ours = self.done[~self.done["family"].isin(challengers.NOT_OURS)]
        largest, counted = self.jittered["jitter_largest"].astype(float).max(), count(len(ours), "fit")
        return f"{JITTERED} {len(self.jittered)} of {counted} needed jitter to factor a matrix, at most {largest:.1g}."

    @cached_property
    def failing(self) -> str:
        """A sentence that counts the cells of which a fit has not converged as the budget requires; '' without any."""
        scored = self.fits[self.fits["status"].isin(SCORED)]
        cells = (scored["status"] == UNMIXED).groupby([scored["dataset"], scored["method"]]).any()
        return f"✗ In {cells.sum()} of {count(len(cells), 'cell')} fits have not converged." if cells.any() else ""

    @cached_property
    def warning(self) -> str:
        """Sentences that name the cells that have not converged as the budget requires, and count those that still
        improve and the fits that needed jitter; '' without any."""
        unmixed = self.fits.loc[self.fits["status"] == UNMIXED, ["method", "dataset"]].drop_duplicates()
        failed = f"✗ Not converged: {self.cells_in_words(unmixed.to_numpy())}." if len(unmixed) else ""
        return " ".join(filter(None, (failed, self.still_improving, self.needed_jitter)))

    def cells_in_words(self, cells: Iterable[tuple[str, str]]) -> str:
        """Cells (method, data set), as 'AEP, BSGP-1 on all 13 data sets; SVGP on naval'; all: those with a score."""
        scored = self.fits[self.fits["status"].isin(SCORED)].groupby("method")["dataset"].nunique()
        by_method, alike = defaultdict(list), defaultdict(list)
        for method, dataset in cells:
            by_method[method].append(dataset)
        for method, names in by_method.items():
            every = 2 < len(names) == scored[method]
            where = f"all {count(len(names), 'data set')}" if every else ", ".join(names)
            alike[where].append(self.labels[method])
        return "; ".join(f"{', '.join(labels)} on {where}" for where, labels in alike.items())

    @property
    def still_improving(self) -> str:
        """A sentence that counts the cells that still improve and are ranked all the same; '' without any."""
        keys = ["dataset", "method"]
        if self.improving.empty:
            return ""
        judged = self.fits[~self.fits["convergence"].isin(("", NOT_JUDGED))].drop_duplicates(keys)
        n = len(self.improving.drop_duplicates(keys))
        return f"{IMPROVING} {n} of {count(len(judged), 'judged cell')} had not converged at the last step."

    def matrix(self, metric: str, *tasks: str, converged: bool = True) -> pd.DataFrame:
        """Mean scores `[datasets, methods]`; NaN for incomplete cells, never imputed. converged=False: a cell counts
        where every split has a score, of whatever fit."""
        cells = self.cells(metric, *tasks)
        counted = cells["complete"] if converged else (cells["n"] == cells["expected"]) & (cells["n"] > 0)
        matrix = cells.assign(mean=cells["mean"].where(counted)).pivot(index="dataset", columns="method", values="mean")
        return matrix.reindex(index=self.datasets_of(*tasks), columns=self.methods)

    def test_fraction(self, dataset: str) -> float:
        """Test rows over all rows of a split (mean over the splits of a data set that some method has finished)."""
        rows = self.done[self.done["dataset"] == dataset].drop_duplicates("split")
        return float((rows["n_test"] / (rows["n_train"] + rows["n_test"])).mean())


def commits(fits: pd.DataFrame, length: int = 40, mark_dirty: bool = False) -> list[str]:
    """The commits of fits in alphabetical order, `length` characters of each, with `+` for uncommitted changes."""
    known = {pair for pair in zip(fits["commit"], fits["dirty"], strict=True) if isinstance(pair[0], str) and pair[0]}
    return sorted({f"{commit[:length]}{'+' * (mark_dirty and dirty is True)}" for commit, dirty in known})


def describe_statuses(fits: list[Any], width: int = 1000) -> str:
    """Why fits of a cell (with `split`, `status`, `reason`) are not done, e.g. '1 diverged' or 'skipped: regression
    only'; '' if all are done. The chains of a split converge or fail together, so for them splits are counted."""
    whys = [(fit.status, fit.reason) for fit in fits if fit.status != "done"]
    if len(whys) == len(fits) and len(set(whys)) == 1:
        text = ": ".join(filter(None, whys[0]))
        return text if len(text) <= width else f"{text[:width].rsplit(maxsplit=1)[0]} …"
    counts: dict[str, int | str] = dict(Counter(status for status, _ in whys))
    if UNMIXED in counts:
        failing, splits = {fit.split for fit in fits if fit.status == UNMIXED}, {fit.split for fit in fits}
        counts[UNMIXED] = f"{len(failing)} of {len(splits)}"
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if status in counts)
