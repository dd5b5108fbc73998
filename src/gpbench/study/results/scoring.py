"""Scores of a finished fit: of one that predicts from its points alone, of its Markov chain from its draws alone, of a
solver from its trace.

Both are kept beside the fit with the digest of the code that made them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

from gpbench.errors import UserError
from gpbench.study.planning import identity
from gpbench.study.records import FitRecord
from gpbench.study.results import parquet
from gpbench.study.storage import seals
from gpbench.study.storage.store import Store

CUBIC = ("cholesky", "inverse", "product")
"""Operations of O(n^3) that samplers count."""


def digest() -> str:
    """Digest of the scoring code: a new or changed metric rescores, and refits nothing."""
    return identity.digest(identity.whole_code("gpbench.evaluation.metrics", "gpbench.sampling.diagnostics"))


class Undefined(UserError):
    """Predictions that have no score."""


def scores(store: Store, record: FitRecord) -> dict[str, float]:
    """Metric -> value of one fit (NaN is kept as NaN); empty where the fit is not done. Raises Undefined."""
    if record.status != "done":
        return {}
    make = {"predict": _of_points, "sample": _of_draws, "solve": _of_systems}[record.what.kind]
    return _kept(store.folder(record.fit_id) / "scores.json", lambda: make(store, record))


def reported(record: FitRecord) -> dict[str, float]:
    """What a sampler reports of a transition: acceptance, counts of operations, and `cubic`, all those of O(n^3)."""
    means: dict[str, float] = record.info.get("sampler", {})
    counts = [means[name] for name in CUBIC if name in means]
    return means | ({"cubic": sum(counts)} if counts else {})


def has_chain(store: Store, fit_id: str) -> bool:
    """Whether a fit is done and was made by a Markov chain."""
    return (store.folder(fit_id) / "chain.npz").is_file()


def mixing(store: Store, fit_ids: list[str]) -> dict[str, float]:
    """How the chains of some fits of one posterior (or a single one) have mixed: `diagnostics.mixing` of predictions,
    `diagnostics.convergence` of what is sampled; and the bulk ESS of a chain per operation and per second.

    Kept beside the first of them; none where the first has no chain."""
    if not has_chain(store, fit_ids[0]):
        return {}
    name = f"mixing-{identity.digest(fit_ids, 6)}.json"
    return _kept(store.folder(fit_ids[0]) / name, lambda: _mixing(store, fit_ids))


def _kept(path: Path, make: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The scores in a file if today's code made them; otherwise they are computed and written."""
    stored = seals.read(path, is_needed=True)
    if stored and stored["code"] == digest():
        return dict(stored["scores"])
    values = make()
    with contextlib.suppress(UserError):  # who may only read a store computes them each time
        seals.write(path, {"code": digest(), "scores": values}, lasting=False)
    return values


def _of_points(store: Store, record: FitRecord) -> dict[str, float]:
    """Scores of the predictions of held-out rows, and what the fit's sampler reports."""
    from gpbench.evaluation.metrics import efficiency, score
    from gpbench.evaluation.pointwise import QUANTILE_COLUMNS

    # no metric needs quantiles, which are nine columns of ten
    points = parquet.read(store.folder(record.fit_id) / "points.parquet", without=QUANTILE_COLUMNS)
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


def _of_draws(store: Store, record: FitRecord) -> dict[str, float]:
    """Efficiency of the draws of one chain."""
    import numpy as np

    from gpbench.evaluation.metrics import efficiency

    chain, means = np.load(store.folder(record.fit_id) / "chain.npz"), reported(record)
    ess, iterations = float(chain["ess"].min()), int(chain["iterations"][-1])
    return efficiency(
        means
        | {
            "iterations": iterations,
            "ess_min": ess,
            "ess_percent": 100 * ess / iterations,
            "ess_per_cubic": _ratio(ess, means.get("cubic", 0.0)),
            "ess_percent_per_cubic": _ratio(100 * ess / iterations, means.get("cubic", 0.0)),
            "ess_per_second": _ratio(ess, record.seconds.train),
        }
    )


def _of_systems(store: Store, record: FitRecord) -> dict[str, float]:
    """How many systems a solver was tried on, on how many it ended at its cap, and its iterations on all of them."""
    systems = parquet.read(store.folder(record.fit_id) / "trace.parquet")
    sums = systems[["stopped", "iterations"]].sum().astype(float)
    return {"systems": float(len(systems)), "stopped": sums["stopped"], "total_iterations": sums["iterations"]}


def _mixing(store: Store, fit_ids: list[str]) -> dict[str, float]:
    import numpy as np

    from gpbench.sampling import diagnostics

    records = [store.record(fit_id) for fit_id in fit_ids]
    chains = [dict(np.load(store.folder(fit_id) / "chain.npz")) for fit_id in fit_ids]
    judge = {"predict": diagnostics.mixing, "sample": diagnostics.convergence}[records[0].what.kind]
    values = judge(chains)
    operations = sum(reported(record).get("cubic", 0.0) for record in records)
    seconds = sum(record.seconds.train for record in records)
    each = {"ess_bulk_per_cubic": _ratio(values["ess_bulk"], operations)}
    return values | each | {"ess_bulk_per_second": _ratio(values["ess_bulk"], seconds)}


def _ratio(value: float, cost: float) -> float:
    """value / cost; NaN where there is no cost."""
    return value / cost if cost else math.nan
