"""Scores of a finished fit: of one that predicts from its points alone, of its Markov chain from its draws alone, of a
solver from its trace.

All are kept with the digest of the code that made them: in the record of the fit, where it was made as the fit ended,
else in a file beside it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpbench.errors import UserError
from gpbench.places import read_json
from gpbench.study.planning import identity
from gpbench.study.records import FitRecord, Scored
from gpbench.study.storage import arrays, challengers, parquet, seals
from gpbench.study.storage.store import Store

if TYPE_CHECKING:
    import pandas as pd

CUBIC = ("cholesky", "inverse", "product")
"""Operations of O(n^3) that samplers count."""


def digest() -> str:
    """Digest of the scoring code: a new or changed metric rescores, and refits nothing."""
    metrics = identity.whole_code("gpbench.evaluation.metrics", "gpbench.sampling.diagnostics")
    return identity.digest(metrics | {__name__: identity.module_code(__name__)})


class Undefined(UserError):
    """Predictions that have no score."""


def scores(store: Store, record: FitRecord) -> dict[str, float]:
    """Metric -> value of one fit (NaN is kept as NaN); empty where the fit is not done. Raises Undefined."""
    if record.status != "done":
        return {}
    if record.scored and record.scored.code == digest():
        return dict(record.scored.scores)
    folder = store.folder(record.fit_id)
    return _kept(folder / "scores.json", lambda: _scores(folder, record))


def at_end(folder: Path, record: FitRecord) -> Scored | None:
    """Scores of a fit that has just left its files in a folder; None where there are none; collecting says why."""
    if record.status == "done":
        with contextlib.suppress(UserError):
            chain = _mixing([folder], [record]) if arrays.has(folder, "chain") else {}
            return Scored(digest(), _scores(folder, record), chain)
    return None


def of_challenger(folder: Path) -> dict[str, float]:
    """Scores of the predictions of somebody else, in a folder of `storage.challengers`."""

    def make() -> dict[str, float]:
        facts = read_json(folder / challengers.FACTS, challengers.REMEDY)
        try:
            return of_points_alone(parquet.read(folder / challengers.POINTS), facts)
        except (ValueError, KeyError, OSError) as error:
            raise UserError(f"{folder} is damaged ({error}); {challengers.REMEDY}") from error

    return _kept(folder / challengers.SCORES, make)


def of_points_alone(points: pd.DataFrame, facts: Mapping[str, object]) -> dict[str, float]:
    """Finite scores of predictions of which nobody measured the cost; ValueError for those that have none."""
    from gpbench.evaluation.metrics import score

    unmeasured = dict.fromkeys(("seconds_train", "seconds_predict", "peak_memory_mb"), math.nan)
    return {name: value for name, value in score(points, {**unmeasured, **facts}).items() if math.isfinite(value)}


def reported(record: FitRecord) -> dict[str, float]:
    """What a sampler reports of a transition: acceptance, counts of operations, and `cubic`, all those of O(n^3)."""
    means: dict[str, float] = record.info.get("sampler", {})
    counts = [means[name] for name in CUBIC if name in means]
    return means | ({"cubic": sum(counts)} if counts else {})


def has_chain(store: Store, fit_id: str) -> bool:
    """Whether a fit is done and was made by a Markov chain."""
    return arrays.has(store.folder(fit_id), "chain")


def mixing(store: Store, records: list[FitRecord]) -> dict[str, float]:
    """How the chains of some fits of one posterior (or a single one) have mixed: `diagnostics.mixing` of predictions,
    `diagnostics.convergence` of what is sampled; and the bulk ESS of a chain per operation and per second.

    Of several they are kept beside the first; none where the first has no chain."""
    first = records[0]
    if len(records) == 1 and first.scored and first.scored.code == digest():
        return dict(first.scored.mixing)
    if not has_chain(store, first.fit_id):
        return {}
    folders = [store.folder(record.fit_id) for record in records]
    name = f"mixing-{identity.digest([record.fit_id for record in records], 6)}.json"
    return _kept(folders[0] / name, lambda: _mixing(folders, records))


def _kept(path: Path, make: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The scores in a file if today's code made them; otherwise they are computed and written."""
    stored = seals.read(path)
    if stored and stored["code"] == digest():
        return dict(stored["scores"])
    values = make()
    with contextlib.suppress(UserError):  # who may only read a store computes them each time
        seals.write(path, {"code": digest(), "scores": values}, lasting=False)
    return values


def _scores(folder: Path, record: FitRecord) -> dict[str, float]:
    return {"predict": _of_points, "sample": _of_draws, "solve": _of_systems}[record.what.kind](folder, record)


def _of_points(folder: Path, record: FitRecord) -> dict[str, float]:
    """Scores of the predictions of held-out rows, and what the fit's sampler reports."""
    from gpbench.evaluation.metrics import METRICS, efficiency, score
    from gpbench.evaluation.pointwise import QUANTILE_COLUMNS

    # quantiles are nine columns of ten
    asked = any(metric.quantiles for metric in METRICS.values() if record.what.data.task in metric.tasks)
    points = parquet.read(folder / "points.parquet", without=() if asked else QUANTILE_COLUMNS)
    info = {
        "task": record.what.data.task,
        "num_classes": record.what.data.classes,
        "seconds_train": record.seconds.train,
        "seconds_predict": record.seconds.predict,
        "peak_memory_mb": record.peak_memory_mb,
        **record.info,
    }
    try:
        return score(points, info) | efficiency(reported(record))
    except ValueError as error:
        raise Undefined(f"fit {record.fit_id}: {error}") from error


def _of_draws(folder: Path, record: FitRecord) -> dict[str, float]:
    """Efficiency of the draws of one chain."""
    from gpbench.evaluation.metrics import efficiency
    from gpbench.sampling.diagnostics import chain_efficiency

    chain, means = arrays.read(folder, "chain", only=("ess", "iterations")), reported(record)
    of_chain = chain_efficiency(
        float(chain["ess"].min()), transitions(record), means.get("cubic", 0.0), record.seconds.train
    )
    return efficiency(means | {"iterations": int(chain["iterations"][-1])} | of_chain)


def transitions(record: FitRecord) -> int:
    """Those of a chain after burn-in (`SamplerMethod.burn_in`), of which `num_samples` may be kept; else all."""
    steps, burn_in = record.what.steps or 1, cast(float, record.fitted.method.hyper.get("burn_in", 0.0))
    return steps - min(round(burn_in * steps), steps - 1)


def _of_systems(folder: Path, record: FitRecord) -> dict[str, float]:
    """How many systems a solver was tried on, on how many it did not converge, and its iterations on all of them, with
    those of solvers within its preconditioner."""
    systems = arrays.trace(folder)
    sums = systems.reindex(columns=["stopped", "iterations", "inner"], fill_value=0).sum().astype(float)
    iterations = sums["iterations"] + sums["inner"]
    return {"systems": float(len(systems)), "stopped": sums["stopped"], "total_iterations": iterations}


def _mixing(folders: list[Path], records: list[FitRecord]) -> dict[str, float]:
    from gpbench.sampling import diagnostics

    chains = [arrays.read(folder, "chain") for folder in folders]
    is_sample = records[0].what.kind == "sample"
    values = diagnostics.convergence(chains, transitions(records[0])) if is_sample else diagnostics.mixing(chains)
    operations = sum(reported(record).get("cubic", 0.0) for record in records)
    seconds = sum(record.seconds.train for record in records)
    each = {"ess_bulk_per_cubic": _ratio(values["ess_bulk"], operations)}
    return values | each | {"ess_bulk_per_second": _ratio(values["ess_bulk"], seconds)}


def _ratio(value: float, cost: float) -> float:
    """value / cost; NaN where there is no cost."""
    return value / cost if cost else math.nan
