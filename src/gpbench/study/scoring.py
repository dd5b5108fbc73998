"""Scores of a finished fit, from its points alone, and of its Markov chain, from its draws alone.

Both are kept beside the fit with the digest of the code that made them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpbench.places import write_text
from gpbench.study import identity
from gpbench.study.store import Store


def digest() -> str:
    """Digest of the scoring code: a new or changed metric rescores, and refits nothing."""
    return identity.digest(identity.code("gpbench.evaluation.metrics", "gpbench.sampling.diagnostics"))


def scores(store: Store, record: dict[str, Any]) -> dict[str, float]:
    """Metric -> value of one fit (NaN is kept as NaN); empty where the fit is not done."""
    if record["status"] != "done":
        return {}
    return _kept(store.folder(record["fit_id"]) / "scores.json", lambda: _scores(store, record))


def has_chain(store: Store, fit_id: str) -> bool:
    """Whether a fit is done and was made by a Markov chain."""
    return (store.folder(fit_id) / "chain.npz").is_file()


def mixing(store: Store, fit_ids: list[str]) -> dict[str, float]:
    """How the chains of some fits of one posterior (or a single one) have mixed: `diagnostics.mixing`.

    Kept beside the first of them; none where the first has no chain."""
    if not has_chain(store, fit_ids[0]):
        return {}
    name = f"mixing-{identity.digest(fit_ids, 6)}.json"
    return _kept(store.folder(fit_ids[0]) / name, lambda: _mixing(store, fit_ids))


def _kept(path: Path, make: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What is kept in a file, if today's code made it; else it is made anew."""
    if path.is_file():
        kept = json.loads(path.read_text())
        if kept["code"] == digest():
            return kept["scores"]
    values = make()
    write_text(path, json.dumps({"code": digest(), "scores": values}, indent=1))
    return values


def _scores(store: Store, record: dict[str, Any]) -> dict[str, float]:
    import pandas as pd

    from gpbench.evaluation.metrics import score

    points = pd.read_parquet(store.folder(record["fit_id"]) / "points.parquet")
    info = {
        "task": record["what"]["data"]["task"],
        "num_classes": record["what"]["data"]["classes"],
        "seconds_train": record["seconds"]["train"],
        "seconds_predict": record["seconds"]["predict"],
        "peak_memory_mb": record["peak_memory_mb"],
        **record["info"],
    }
    return score(points, info)


def _mixing(store: Store, fit_ids: list[str]) -> dict[str, float]:
    import numpy as np

    from gpbench.sampling import diagnostics

    return diagnostics.mixing([dict(np.load(store.folder(fit_id) / "chain.npz")) for fit_id in fit_ids])
