"""How the fits that are to be run are cut: into groups that share one tensor batch, and into batches, one a job."""

import dataclasses
from collections.abc import Iterable

from gpbench import config
from gpbench.study.planning import identity
from gpbench.study.planning.cost import CostModel
from gpbench.study.records import Batch, Cell, Fit, Group
from gpbench.study.storage.store import Store

LEAST_SECONDS = 15.0  # a job is not made shorter than this so that all cores end together


def groups(store: Store, cells: Iterable[Cell], pending: set[str]) -> list[Group]:
    """Groups of the pending fits: those that were begun first and as they were, so that they resume bit for bit."""
    cells = list(cells)
    planned: list[Group] = []
    covered: set[str] = set()
    cell_of = {fit.fit_id: cell for cell in cells for fit in cell.fits}
    for group in store.groups():
        ids = {fit.fit_id for fit in group.fits}
        if ids & pending and not ids & covered:
            cell = cell_of[min(ids & pending)]  # a time cap, say, is of today; names may come from elsewhere
            today = {name: getattr(cell, name) for name in ("address", "label", "family", "how")}
            planned.append(dataclasses.replace(group, **today))
            covered |= ids
    for cell in cells:
        fits = [fit for fit in cell.fits if fit.fit_id in pending and fit.fit_id not in covered]
        for alike in _alike(fits, cell.what.kind):
            rows = alike[0].rows
            size = _replicas(cell, rows)
            for part in (tuple(alike[i : i + size]) for i in range(0, len(alike), size)):
                planned.append(group_of(cell, part, rows))
                covered |= {fit.fit_id for fit in part}
    return planned


def group_of(cell: Cell, fits: tuple[Fit, ...], rows: int) -> Group:
    """Some fits of a cell in one tensor batch."""
    group_id = identity.digest([fit.fit_id for fit in fits])
    return Group(cell.address, cell.label, cell.family, rows, cell.what, cell.how, group_id, fits)


def _alike(fits: list[Fit], kind: str) -> list[list[Fit]]:
    """Fits by their number of training rows, which in folds may differ by one; not so where each row is sampled."""
    tolerance = int(kind == "predict")
    parts: list[list[Fit]] = []
    for fit in sorted(fits, key=lambda fit: fit.rows):
        if not parts or fit.rows - parts[-1][0].rows > tolerance:
            parts.append([])
        parts[-1].append(fit)
    return parts


def _replicas(cell: Cell, rows: int) -> int:
    """How many fits of a cell with so many training rows share one tensor batch: many where a step is small, else
    one; if more than all chains of a split, then whole splits."""
    what, how = cell.what, cell.how
    if what.steps is None or what.trained_by != "single" or what.tune:
        return 1
    chains = max(fit.replica for fit in cell.fits) + 1
    hyper = config.hyperparameters(what.method.module)(**what.method.hyper)
    if hyper.takes_lbfgs(what.data.task, rows):
        return 1  # every replica is searched by itself
    if (width := hyper.width()) is not None:
        most = how.replicas if width * hyper.rows_per_step(rows) <= how.small else 1
    elif cell.sampler:
        most = min(max(how.replicas, chains), how.square // rows**2)
    else:
        return 1
    return max(most - most % chains if most > chains else most, 1)


def batches(store: Store, planned: list[Group], cost: CostModel) -> tuple[Batch, ...]:
    """Consecutive groups up to `batch_minutes`, and up to one `jobs`-th of what is left, so that no core waits long."""
    seconds = [cost.seconds(group, store.checkpoint(group.group_id)) * len(group.fits) for group in planned]
    left = sum(seconds)
    parts: list[tuple[list[Group], float]] = []
    for group, predicted in zip(planned, seconds, strict=True):
        cap = min(group.how.batch_minutes * 60, max(left / group.how.jobs, LEAST_SECONDS))
        together, total = parts.pop() if parts else ([], 0.0)
        if together and (together[-1].how.device != group.how.device or total + predicted > cap):
            parts.append((together, total))
            left -= total
            together, total = [], 0.0
        parts.append(([*together, group], total + predicted))
    return tuple(batch_of(together, total) for together, total in parts)


def batch_of(groups: list[Group], seconds: float) -> Batch:
    """What one job runs, named by the method and data set that it begins with, for people, and a digest of its fits."""
    first, fit_ids = groups[0].address, [fit.fit_id for group in groups for fit in group.fits]
    return Batch(f"{first.method}-{first.dataset}-{identity.digest(fit_ids)}", tuple(groups), seconds)
