"""Scores of a finished fit, from its points alone; kept beside it with the digest of the code that made them."""

from __future__ import annotations

import json
from typing import Any

from gpbench.places import write_text
from gpbench.study import identity
from gpbench.study.store import Store


def digest() -> str:
    """Digest of the scoring code: a new or changed metric rescores, and refits nothing."""
    return identity.digest(identity.code("gpbench.evaluation.metrics"))


def scores(store: Store, record: dict[str, Any]) -> dict[str, float]:
    """Metric -> value of one fit (NaN is kept as NaN); empty where the fit is not done."""
    if record["status"] != "done":
        return {}
    path = store.folder(record["fit_id"]) / "scores.json"
    if path.is_file():
        kept = json.loads(path.read_text())
        if kept["code"] == digest():
            return kept["scores"]
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
    values = score(points, info)
    write_text(path, json.dumps({"code": digest(), "scores": values}, indent=1))
    return values
