"""What fits will cost: a Gaussian process over the measured ones. No torch.

    log(seconds a step) = log(seconds_per_step) + p a + 0.4 b + g + m,  a = log(rows / 500), b = log(columns / 10),
                          with seconds_per_step and the power p of the rows as the method declares them
    cov(g, g')          = [same family] (0.7² + 0.3² a a' + 0.3² b b' + 1.2² [same settings] + 0.35² [same data set]
                                         + 0.3² [same of both]) + 0.25² [same fit]

m ~ N(0, 0.2² + v) is the same for all fits of a run: what else the machine does then, and v, the posterior variance of
the log factor ~ N(0, 0.7²) by which this machine is slower than those of committed fits, whose seconds are multiplied
by it. It is learnt from fits of the store whose settings were measured elsewhere, too. The other standard deviations
were about the most likely ones for the 846 cells that several machines had recorded by November 2026; of three in five
of these the declared seconds alone are within a factor of three. Seconds are by the clock, with looks and writing.

A fit that ends once it has converged takes at most the steps of its budget. How many is learnt from the fits of its
family and budget, of its own place where there are some:

    log steps ~ N(s, 0.5²) of each fit, and s ~ N(log(LIKELY_STEPS), 2²) of its family before any is seen
"""

import dataclasses
import datetime
import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpbench import config
from gpbench.places import Places
from gpbench.study.records import Address, Cell, Cost, FitRecord, Planned
from gpbench.study.storage import committed

COLUMNS_POWER = 0.4
FAMILY, SLOPE, SETTINGS, DATASET, CELL, FIT, MACHINE = 0.7, 0.3, 1.2, 0.35, 0.3, 0.25, 0.2
ELSEWHERE = 0.7
UNMEASURED_MB = 2000
LIKELY_STEPS, STEPS_OF_FAMILY, STEPS_OF_FIT = 2000, 2.0, 0.5
MEASURED = ("started", "ended", "seconds_train", "seconds_predict", "seconds_shared_by", "peak_memory_mb", "n_train")
"""Columns of a scores.csv without which a row tells nothing of cost, as a score of others."""
SECONDS_PER_FIT = 0.1  # to start its process and to write its folder in the store


@dataclasses.dataclass(frozen=True)
class Place:
    """What a fit's seconds and memory depend on; family: and the device that it runs on."""

    family: str
    settings: tuple[str, ...]
    dataset: str
    protocol: str
    rows: int = dataclasses.field(compare=False)
    """of training; folds differ by one"""


class Posterior(NamedTuple):
    """The measured places of a family, their weighted residuals, and the Cholesky factor of their covariance."""

    places: list[Place]
    weighted: np.ndarray
    factor: np.ndarray


@dataclasses.dataclass(frozen=True)
class Measured:
    """A measured fit; steps: that it made, None of a closed form; is_here: whether this machine's store has it."""

    place: Place
    budget: str
    steps: int | None
    seconds: float
    peak_memory_mb: float
    is_here: bool = True


class CostModel:
    """Predicted seconds and memory of fits.

    columns: of each data set; declared: what methods declare of their cost, by family."""

    def __init__(self, fits: list[Measured], columns: dict[str, int], declared: dict[str, Cost]) -> None:
        self.columns, self.declared, self.machine_sd = columns, declared, MACHINE
        if elsewhere := [dataclasses.replace(fit, is_here=True) for fit in fits if not fit.is_here]:
            fits = [fit for fit in fits if fit.is_here]
            log_factor, sd = CostModel(elsewhere, columns, declared).log_factor(fits)
            self.machine_sd = math.hypot(MACHINE, sd)
            fits += [dataclasses.replace(fit, seconds=fit.seconds * math.exp(log_factor)) for fit in elsewhere]
        self.rates: dict[str, dict[Place, list[float]]] = {}
        self.peak: dict[Place, float] = {}
        self.log_steps: dict[tuple[str | Place, str], list[float]] = {}
        for fit in fits:
            for like in (fit.place.family, fit.place):
                self.log_steps.setdefault((like, fit.budget), []).append(math.log(fit.steps or 1))
            rate = math.log(fit.seconds / (fit.steps or 1))
            self.rates.setdefault(fit.place.family, {}).setdefault(fit.place, []).append(rate)
            self.peak[fit.place] = max(self.peak.get(fit.place, 0.0), fit.peak_memory_mb)
        self._posterior = functools.cache(self._learn)
        self._median = functools.cache(lambda place: math.exp(self.mean(place)))

    def seconds(self, cell: Planned, ran: int = 0) -> float:
        """Predicted seconds of one fit of a cell that has made so many steps: the median."""
        return SECONDS_PER_FIT + self._median(place(cell)) * max(float(self.steps(cell)) * cell.what.trainings - ran, 0)

    def steps(self, cell: Planned, deviations: float | np.ndarray = 0.0) -> Any:
        """Predicted steps of a fit, at so many standard deviations of their logarithm; 1 of a closed form."""
        most = cell.what.steps or 1
        if not cell.what.until_converged:
            return most
        here, budget = place(cell), cell.address.budget
        seen = self.log_steps.get((here, budget)) or self.log_steps.get((here.family, budget), [])
        weight = len(seen) * (STEPS_OF_FAMILY / STEPS_OF_FIT) ** 2
        mean = (math.log(LIKELY_STEPS) + weight * (float(np.mean(seen)) if seen else 0.0)) / (1 + weight)
        spread = math.hypot(STEPS_OF_FAMILY / math.sqrt(1 + weight), STEPS_OF_FIT)
        return np.exp(np.minimum(mean + spread * np.asarray(deviations), math.log(most)))

    def memory_mb(self, cell: Planned) -> int:
        """Memory to ask for: half as much again as the measured peak, or what is ample for small data."""
        peak = self.peak.get(place(cell))
        return UNMEASURED_MB if peak is None else math.ceil(1.5 * peak)

    def known(self, cell: Cell) -> str:
        """measured, near (others of its family are) or unmeasured."""
        here = place(cell)
        return "measured" if here in self.peak else "near" if here.family in self.rates else "unmeasured"

    def mean(self, place: Place) -> float:
        """Mean of the log seconds a step of one place: that of `rate`, without its covariance."""
        known = self._posterior(place.family)
        return float((self._mean([place]) + self._cov([place], known.places) @ known.weighted)[0])

    def rate(self, places: list[Place]) -> tuple[np.ndarray, np.ndarray]:
        """Mean `[C]` and covariance `[C, C]` of the log seconds a step of some places of one family."""
        mean, cov = self._mean(places), self._cov(places, places) + FIT**2 * np.eye(len(places))
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

    def log_factor(self, fits: list[Measured]) -> tuple[float, float]:
        """By how much fits of another machine are slower than predicted here: its logarithm's posterior mean and sd."""
        precision, weighted = ELSEWHERE**-2, 0.0
        measured = {(place.family, place.settings) for rates in self.rates.values() for place in rates}
        fits = [fit for fit in fits if (fit.place.family, fit.place.settings) in measured]
        for rates in CostModel(fits, self.columns, self.declared).rates.values():
            mean, cov = self.rate(list(rates))
            weights = np.linalg.solve(cov, np.ones(len(mean)))
            precision += weights.sum()
            weighted += weights @ (np.array([np.mean(values) for values in rates.values()]) - mean)
        return float(weighted / precision), float(precision**-0.5)

    def _learn(self, family: str) -> Posterior:
        measured = self.rates.get(family, {})
        places = list(measured)
        if not places:
            return Posterior([], np.zeros(0), np.zeros((0, 0)))
        left = np.array([np.mean(rates) for rates in measured.values()]) - self._mean(places)
        cov = self._cov(places, places) + FIT**2 * np.eye(len(places))
        return Posterior(places, np.linalg.solve(cov, left), np.linalg.cholesky(cov))

    def _mean(self, places: list[Place]) -> np.ndarray:
        declared = self.declared[places[0].family.split()[0]]
        rows, columns = self._sizes(places)
        return math.log(declared.seconds_per_step) + declared.rows_power * rows + COLUMNS_POWER * columns

    def _cov(self, one: list[Place], other: list[Place]) -> np.ndarray:
        """Of g, without the term of single fits."""
        settings = np.array([[a.settings == b.settings for b in other] for a in one])
        data = np.array([[a.dataset == b.dataset for b in other] for a in one])
        sizes = sum(np.outer(a, b) for a, b in zip(self._sizes(one), self._sizes(other), strict=True))
        return np.asarray(FAMILY**2 + SLOPE**2 * sizes + (SETTINGS**2 + CELL**2 * data) * settings + DATASET**2 * data)

    def _sizes(self, places: list[Place]) -> tuple[np.ndarray, np.ndarray]:
        """log(rows / 500) and log(columns / 10)."""
        rows, columns = [p.rows for p in places], [self.columns[p.dataset] for p in places]
        return np.log(np.array(rows) / 500), np.log(np.array(columns) / 10)


def place(planned: Planned) -> Place:
    """The place of a planned cell, of a group of its fits, or of a fit."""
    return _place(planned.address, planned.family, planned.how.device, planned.what.steps, planned.rows)


def _place(address: Address, family: str, device: str, steps: int | None, rows: int) -> Place:
    """How many steps there are does not say how long they are; the budget does of closed forms, which search."""
    words = _words(address.overrides) + (() if steps else (address.budget,))
    return Place(f"{family} {device}", (address.method, *words), address.dataset, address.protocol, rows)


@functools.cache
def _words(overrides: str) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in config.split_overrides(overrides) if key != "steps")


def learn(where: Places, records: list[FitRecord], cells: Iterable[Cell]) -> CostModel:
    """The cost of some cells, from the store's records of their families and the committed ones of all runs."""
    declared = {cell.family: cell.cost for cell in cells}
    done = {record.fit_id: _of_store(record) for record in records if record.status == "done"}
    for path in sorted((where.root / "docs" / "results").glob("*/scores.csv")):
        done = _committed(path, path.stat().st_mtime_ns) | done
    fits = [fit for fit in done.values() if fit.place.family.split()[0] in declared and fit.seconds > 0]
    catalogue = config.options(where.conf, "dataset")
    names = {fit.place.dataset for fit in fits} | {cell.address.dataset for cell in cells}
    columns = {name: config.compose(where.conf, "dataset", name).columns for name in names if name in catalogue}
    return CostModel([fit for fit in fits if fit.place.dataset in columns], columns, declared)


@functools.cache
def _committed(path: Path, changed: int) -> dict[str, Measured]:
    """Our finished fits in a scores.csv as it was changed last, by identity."""
    done = (row for row in committed.read(path) if row["status"] == "done")
    return {row["fit_id"]: _of_row(row) for row in done if all(row.get(key, "") != "" for key in MEASURED)}


def _of_store(record: FitRecord) -> Measured:
    """A measured fit of the store."""
    seconds, provenance = record.seconds, record.provenance
    return Measured(
        place=place(record),
        budget=record.address.budget,
        steps=record.info.get("steps_done", record.what.steps),
        seconds=_seconds(provenance.started, provenance.ended, seconds.train + seconds.predict, seconds.shared_by)
        / record.what.trainings,
        peak_memory_mb=record.peak_memory_mb,
    )


def _of_row(row: committed.Row) -> Measured:
    """A measured fit, from its row of a scores.csv, which names a GPU that it ran on."""
    address = Address(row["preset"], *(row.get(key, "") for key in ("dataset", "protocol", "budget", "overrides")))
    least = row["seconds_train"] + row["seconds_predict"]
    return Measured(
        place=_place(address, row["family"], "cuda" if row.get("gpu") else "cpu", row.get("steps"), row["n_train"]),
        budget=row["budget"],
        steps=row.get("steps_done", row.get("steps")),
        seconds=_seconds(row["started"], row["ended"], least, row["seconds_shared_by"]) / (1 + row.get("trials", 0)),
        peak_memory_mb=row["peak_memory_mb"],
        is_here=False,
    )


def _seconds(started: str, ended: str, least: float, shared_by: int) -> float:
    """A fit's part of the time from `started` to `ended`, at least `least`: one that resumed notes its last start."""
    elapsed = datetime.datetime.fromisoformat(ended) - datetime.datetime.fromisoformat(started)
    return max(elapsed.total_seconds() / shared_by, least)
