"""What fits will cost: a Gaussian process over the measured ones. No torch.

    log(seconds a step) = log(rough seconds of the family) + p a + 0.4 b + g + m,   a = log(rows / 500),
                          b = log(columns / 10),  p: the family's power of the rows
    cov(g, g')          = [same family] (0.7² + 0.3² a a' + 0.3² b b' + 0.9² [same settings] + 0.5² [same data set])
                          + 0.25² [same cell]

m ~ N(0, 0.2²) is the same for all fits of a run: what else the machine does then. The logarithms have those standard
deviations because they were about the most likely ones for 323 cells of nine earlier runs on two cores; of these the
rough seconds alone were within a factor of three in four cells of five. Seconds are those of the clock: training, the
looks at held-out rows on the way, prediction and writing.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from gpbench import config
from gpbench.places import Places
from gpbench.study.storage import committed as recorded

# seconds a step on one CPU thread at 500 rows of 10 columns; of a closed form, seconds in all
SECONDS_PER_STEP = {
    "svgp": 0.004,
    "dsvi": 0.02,
    "dgp_rff": 0.003,
    "bsgp": 0.006,
    "fitc_svgp": 0.006,
    "ipvi_dgp": 0.02,
    "exact_gp": 0.014,
    "kiss_gp": 0.25,
    "dkl": 0.3,
    "sgpr": 0.005,
    "fitc": 0.006,
    "aep": 0.012,
    "dgp_meanfield": 0.04,
    "dgp_vae": 0.04,
    "dnn": 0.001,
    "bnn": 0.002,
    "dgp_mcmc": 0.002,
    "mcmc_svgp": 0.03,
    "mcmc_gp": 0.05,
    "ep_gp": 0.05,
    "gradient_boosting": 2.0,
    "svm": 0.5,
    "simple_mkl": 10.0,
    "linear": 0.05,
    "constant": 0.01,
}
UNKNOWN_FAMILY = 0.02
# steps that take all rows grow with them, those that factorise their kernel matrix faster still
ROWS_POWER = dict.fromkeys(("exact_gp", "mcmc_gp", "ep_gp", "multinomial_gp", "svm", "simple_mkl"), 2.0)
ROWS_POWER |= dict.fromkeys(("sgpr", "fitc", "aep"), 0.7)
MINI_BATCH_POWER, COLUMNS_POWER = 0.25, 0.4
FAMILY, SLOPE, SETTINGS, DATASET, CELL, MACHINE = 0.7, 0.3, 0.9, 0.5, 0.25, 0.2
UNMEASURED_MB = 2000
SECONDS_PER_FIT = 0.1  # a process of its own, and its folder in the store


@dataclasses.dataclass(frozen=True)
class Place:
    """What a fit's seconds and memory depend on."""

    family: str
    """and the device that it runs on"""
    settings: tuple[str, ...]
    dataset: str
    protocol: str
    rows: int = dataclasses.field(compare=False)
    """of training; folds differ by one"""


class Posterior(NamedTuple):
    """The measured places of a family, what they leave of the prior mean, weighted, and the Cholesky factor of their
    covariance."""

    places: list[Place]
    weighted: np.ndarray
    factor: np.ndarray


class Cost:
    """Predicted seconds and memory of fits.

    fits: place, steps (None: a closed form), seconds and peak_memory_mb of measured ones; columns: of each data set."""

    def __init__(self, fits: list[dict[str, Any]], columns: dict[str, int]) -> None:
        self.columns = columns
        self.rates: dict[str, dict[Place, list[float]]] = {}
        self.peak: dict[Place, float] = {}
        for fit in fits:
            place = fit["place"]
            rate = math.log(fit["seconds"] / (fit["steps"] or 1))
            self.rates.setdefault(place.family, {}).setdefault(place, []).append(rate)
            self.peak[place] = max(self.peak.get(place, 0.0), fit["peak_memory_mb"])
        self._posterior = functools.cache(self._learn)
        self._median = functools.cache(lambda place: float(np.exp(self.rate([place])[0][0])))

    def seconds(self, cell: dict[str, Any]) -> float:
        """Predicted seconds of one fit of a cell: the median."""
        return SECONDS_PER_FIT + self._median(place(cell)) * (cell["what"]["steps"] or 1)

    def memory_mb(self, cell: dict[str, Any]) -> int:
        """Memory to ask for: half as much again as the measured peak, or what is ample for small data."""
        peak = self.peak.get(place(cell))
        return UNMEASURED_MB if peak is None else math.ceil(1.5 * peak)

    def known(self, cell: dict[str, Any]) -> str:
        """measured, near (others of its family are) or unmeasured."""
        here = place(cell)
        return "measured" if here in self.peak else "near" if here.family in self.rates else "unmeasured"

    def rate(self, places: list[Place]) -> tuple[np.ndarray, np.ndarray]:
        """Mean `[C]` and covariance `[C, C]` of the log seconds a step of some places of one family."""
        mean, cov = self._mean(places), self._cov(places, places) + CELL**2 * np.eye(len(places))
        known = self._posterior(places[0].family)
        if not known.places:
            return mean, cov
        cross = self._cov(known.places, places)
        half = np.linalg.solve(known.factor, cross)
        return mean + cross.T @ known.weighted, cov - half.T @ half

    def held_out(self, quantile: float) -> tuple[int, int]:
        """How many measured places of a family with others lie in their interval when they alone are left out, in
        closed form, and how many there are; `quantile`: of a standard normal at the interval's end."""
        inside = total = 0
        for known in map(self._posterior, self.rates):
            if len(known.places) > 1:
                precision = np.diag(np.linalg.inv(known.factor @ known.factor.T))
                inside += int((np.abs(known.weighted) <= quantile * np.sqrt(precision)).sum())
                total += len(known.places)
        return inside, total

    def _learn(self, family: str) -> Posterior:
        measured = self.rates.get(family, {})
        places = list(measured)
        if not places:
            return Posterior([], np.zeros(0), np.zeros((0, 0)))
        left = np.array([np.mean(rates) for rates in measured.values()]) - self._mean(places)
        cov = self._cov(places, places) + CELL**2 * np.eye(len(places))
        return Posterior(places, np.linalg.solve(cov, left), np.linalg.cholesky(cov))

    def _mean(self, places: list[Place]) -> np.ndarray:
        family = places[0].family.split()[0]
        rows, columns = self._sizes(places)
        rough = math.log(SECONDS_PER_STEP.get(family, UNKNOWN_FAMILY))
        return rough + ROWS_POWER.get(family, MINI_BATCH_POWER) * rows + COLUMNS_POWER * columns

    def _cov(self, one: list[Place], other: list[Place]) -> np.ndarray:
        """Of g, without what a cell has of its own."""
        settings, dataset = (_same(one, other, key) for key in ("settings", "dataset"))
        sizes = sum(np.outer(a, b) for a, b in zip(self._sizes(one), self._sizes(other), strict=True))
        return FAMILY**2 + SLOPE**2 * sizes + SETTINGS**2 * settings + DATASET**2 * dataset

    def _sizes(self, places: list[Place]) -> tuple[np.ndarray, np.ndarray]:
        """log(rows / 500) and log(columns / 10)."""
        rows, columns = [p.rows for p in places], [self.columns[p.dataset] for p in places]
        return np.log(np.array(rows) / 500), np.log(np.array(columns) / 10)


def _same(one: list[Place], other: list[Place], key: str) -> np.ndarray:
    """Whether two places have the same `key`."""
    numbers = {value: number for number, value in enumerate({getattr(p, key) for p in (*one, *other)})}
    mine, theirs = (np.array([numbers[getattr(p, key)] for p in places]) for places in (one, other))
    return mine[:, None] == theirs


def place(cell: dict[str, Any]) -> Place:
    """The place of a planned cell, or of a group of its fits."""
    return _place(cell, cell["what"]["steps"], cell["rows"])


def _place(cell: dict[str, Any], steps: int | None, rows: int) -> Place:
    """How many steps there are does not say how long they are; the budget does of closed forms, which search."""
    address = cell["address"]
    words = _words(address["overrides"]) + (() if steps else (address["budget"],))
    family = f"{cell['family']} {cell['how']['device']}"
    return Place(family, (address["method"], *words), address["dataset"], address["protocol"], rows)


@functools.cache
def _words(overrides: str) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in config.split_overrides(overrides) if key != "steps")


def learn(where: Places, found: list[dict[str, Any]], cells: list[dict[str, Any]]) -> Cost:
    """The cost of some cells, from the store's records of their families and the committed ones of all runs."""
    families = {cell["family"] for cell in cells}
    done = {r["fit_id"]: _of_store(r) for r in found if r["status"] == "done" and r["family"] in families}
    for path in sorted((where.root / "docs" / "results").glob("*/scores.csv")):
        rows = (row for row in recorded.read(path) if row["status"] == "done" and row["family"] in families)
        done = {row["fit_id"]: _of_row(row) for row in rows} | done
    catalogue = config.options(where.conf, "dataset")
    names = {fit["place"].dataset for fit in done.values()} | {cell["address"]["dataset"] for cell in cells}
    shapes = {name: config.compose(where.conf, "dataset", name) for name in names if name in catalogue}
    fits = [fit for fit in done.values() if fit["place"].dataset in shapes and fit["seconds"] > 0]
    for fit in fits:
        here = fit["place"]
        fit["place"] = dataclasses.replace(here, rows=here.rows or shapes[here.dataset].rows)
    return Cost(fits, {name: shape.columns for name, shape in shapes.items()})


def _of_store(record: dict[str, Any]) -> dict[str, Any]:
    """A measured fit; rows are 0 where its split takes all of them but a fold."""
    steps, seconds = record["what"]["steps"], record["seconds"]
    return {
        "place": _place(record, steps, record["what"]["protocol"]["splits"].get("train", 0)),
        "steps": steps,
        "seconds": _seconds(record["provenance"], seconds["train"] + seconds["predict"], seconds["shared_by"]),
        "peak_memory_mb": record["peak_memory_mb"],
    }


def _of_row(row: dict[str, Any]) -> dict[str, Any]:
    """A measured fit, from its row of a scores.csv, which were made on a CPU."""
    address = {key: row.get(key, "") for key in ("dataset", "protocol", "budget", "overrides")}
    cell = {"address": address | {"method": row["preset"]}, "family": row["family"], "how": {"device": "cpu"}}
    return {
        "place": _place(cell, row.get("steps"), row["n_train"]),
        "steps": row.get("steps"),
        "seconds": _seconds(row, row["seconds_train"] + row["seconds_predict"], row["seconds_shared_by"]),
        "peak_memory_mb": row["peak_memory_mb"],
    }


def _seconds(times: dict[str, str], least: float, shared_by: int) -> float:
    """A fit's part of the time from `started` to `ended`; one that was resumed notes the last start only, so at least
    the seconds of training and prediction."""
    started, ended = (datetime.datetime.fromisoformat(times[key]) for key in ("started", "ended"))
    return max((ended - started).total_seconds() / shared_by, least)
