"""What a study will cost before anything runs: hours, memory and fits, by method and data set, with intervals."""

from typing import NamedTuple

import numpy as np

from gpbench.errors import count
from gpbench.study.planning import cost as costs
from gpbench.study.planning.plan import Plan
from gpbench.study.records import Cell

SECONDS_PER_JOB = 6.0  # a job imports torch and what the study is run by, once for its fits
DRAWS, LEVEL, QUANTILE = 2000, 0.9, 1.645


class Time(NamedTuple):
    """Seconds: median and the ends of the 90 % interval."""

    median: float
    low: float
    high: float


class Part(NamedTuple):
    """What one cell adds: seconds of one core `[DRAWS]` of all its fits, and of its longest one."""

    method: str
    dataset: str
    fits: int
    known: str
    memory_mb: int
    seconds: np.ndarray
    longest: np.ndarray


class Estimate:
    """Cost of what a study has still to run; of all of it with `everything`. Seconds are drawn from the joint posterior
    of the cost model: what is unknown of a family or of the machine is unknown of all its cells together."""

    def __init__(self, plan: Plan, everything: bool = False) -> None:
        self.plan = plan
        to_run = {fit_id for fit_id, state in plan.states.items() if everything or state.name == "pending"}
        wanted = []
        for cell in (cell for cell in plan.cells if not cell.skip):
            if own := to_run & {fit.fit_id for fit in cell.fits}:  # which other names may share: they run once
                made = [0 if everything else plan.states[fit_id].step for fit_id in own]
                wanted.append((cell, *np.unique(made, return_counts=True)))
                to_run -= own
        rng = np.random.default_rng(0)
        machine = np.exp(plan.cost.machine_sd * rng.standard_normal(DRAWS))
        rates = _rates(plan.cost, [cell for cell, *_ in wanted], rng)
        steps = self._steps([cell for cell, *_ in wanted], rng)
        self.parts = [
            self._part(cell, fits, machine * rate * np.maximum(number * cell.what.trainings - made[:, None], 0))
            for (cell, made, fits), rate, number in zip(wanted, rates, steps, strict=True)
        ]

    def _steps(self, cells: list[Cell], rng: np.random.Generator) -> list[np.ndarray | int]:
        """Draws of the steps of every cell; what is unknown of a family's is unknown of all its cells together."""
        families = dict.fromkeys(cell.family for cell in cells if cell.what.until_converged)
        deviations = {family: rng.standard_normal(DRAWS) for family in families}
        return [self.plan.cost.steps(cell, deviations.get(cell.family, 0.0)) for cell in cells]

    def _part(self, cell: Cell, fits: np.ndarray, training: np.ndarray) -> Part:
        """fits `[K]`: how many have as much left to train; training: draws of its seconds `[K, DRAWS]`."""
        how, workers = cell.how, cell.what.workers
        each = costs.SECONDS_PER_FIT + training
        start_up = 1 + SECONDS_PER_JOB / (60 * how.batch_minutes)  # every batch_minutes another job begins
        seconds = fits @ each * start_up * how.threads * workers
        known, memory = self.plan.cost.known(cell), self.plan.cost.memory_mb(cell)
        return Part(cell.method, cell.address.dataset, int(fits.sum()), known, memory, seconds, each.max(0))

    @property
    def core(self) -> Time:
        """Seconds of one core."""
        return _time(_total(self.parts))

    def wall(self, cores: int) -> Time:
        """Seconds by the clock on some cores, none idle before the last fit; no fit is split."""
        longest = np.max([part.longest for part in self.parts] or [np.zeros(1)], axis=0)
        return _time(np.maximum(_total(self.parts) / cores, longest))

    @property
    def memory_mb(self) -> int:
        """Of the job that asks for most."""
        return max((part.memory_mb for part in self.parts), default=0)


def _total(parts: list[Part]) -> np.ndarray:
    """Draws of the seconds of some parts together."""
    return sum((part.seconds for part in parts), np.zeros(1))


def _rates(cost: costs.CostModel, cells: list[Cell], rng: np.random.Generator) -> list[np.ndarray]:
    """Draws of the seconds a step of every cell; those of a family are drawn together."""
    places = [costs.place(cell) for cell in cells]
    rates: dict[costs.Place, np.ndarray] = {}
    for family in dict.fromkeys(place.family for place in places):
        alike = list(dict.fromkeys(place for place in places if place.family == family))
        mean, cov = cost.rate(alike)
        drawn = rng.multivariate_normal(mean, cov, DRAWS, method="cholesky")
        rates |= dict(zip(alike, np.exp(drawn).T, strict=True))
    return [rates[place] for place in places]


def _time(seconds: np.ndarray) -> Time:
    return Time(*np.quantile(seconds, [0.5, (1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist())


def content(estimate: Estimate, cores: int) -> dict[str, object]:
    """What `gpbench cost --json` prints: seconds as [median, low, high] of all, and of every cell."""
    cells = [
        {"method": p.method, "dataset": p.dataset, "fits": p.fits, "known": p.known, "memory_mb": p.memory_mb}
        | {"seconds": list(_time(p.seconds))}
        for p in estimate.parts
    ]
    totals = {"core": list(estimate.core), "wall": list(estimate.wall(cores)), "cores": cores}
    return {"name": estimate.plan.name, **totals, "memory_mb": estimate.memory_mb, "cells": cells}


def lines(estimate: Estimate, cores: int = 2) -> list[str]:
    """What `gpbench cost` prints."""
    plan, parts = estimate.plan, estimate.parts
    states = [state.name for state in plan.states.values()]
    kinds = [part.known for part in parts]
    inside, total = plan.cost.held_out(QUANTILE)
    head = [
        f"{plan.name}: {count(sum(part.fits for part in parts), 'fit')} of {count(len(parts), 'cell')}; of the "
        f"study's {len(states)}, {states.count('done')} are done",
        f"one core: {show(estimate.core)}",
        f"{cores} cores: {show(estimate.wall(cores))}",
        f"memory: a job asks for {estimate.memory_mb / 1024:.1f} GB at most",
        f"known from: {kinds.count('measured')} cells measured, {kinds.count('near')} near (others of the family are), "
        f"{kinds.count('unmeasured')} unmeasured (from what their methods declare, often wrong by a factor of 3)",
    ]
    if total:
        head.append(f"check: {inside} of {total} measured cells lie in their {LEVEL:.0%} interval when left out")
    return head + [line for key in ("method", "dataset") for line in _table(estimate, key)]


def _table(estimate: Estimate, key: str) -> list[str]:
    """A line for each method or data set."""
    lines = ["", f"{key:<28}{'fits':>6}  {'one core, ' + format(LEVEL, '.0%') + ' interval':<34}{'GB':>5}  measured"]
    for name in dict.fromkeys(getattr(part, key) for part in estimate.parts):
        parts = [part for part in estimate.parts if getattr(part, key) == name]
        known = f"{sum(part.known == 'measured' for part in parts)} of {len(parts)} cells"
        memory = max(part.memory_mb for part in parts) / 1024
        fits = sum(part.fits for part in parts)
        lines.append(f"{name:<28}{fits:>6}  {show(_time(_total(parts))):<34}{memory:>5.1f}  {known}")
    return lines


def show(time: Time) -> str:
    """A duration and its interval, in the unit that suits its median."""
    unit, seconds = next((u for u in UNITS if time.median >= u[1]), UNITS[-1])
    median, low, high = (format(value / seconds, ".1f" if value < 9.95 * seconds else ".0f") for value in time)
    return f"{median} {unit} ({low} to {high})"


UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
