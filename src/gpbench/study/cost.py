"""What a fit will cost: from measured fits where there are any, from rough coefficients before."""

from __future__ import annotations

import math
from typing import Any

# seconds a step on one CPU thread, before anything is measured; only batching and estimates use them
SECONDS_PER_STEP = {
    "svgp": 0.004,
    "dsvi": 0.02,
    "dgp_rff": 0.003,
    "bsgp": 0.006,
    "fitc_svgp": 0.006,
    "ipvi_dgp": 0.008,
    "exact_gp": 0.014,
    "kiss_gp": 0.25,
    "dkl": 0.3,
    "sgpr": 0.005,
    "fitc": 0.006,
    "aep": 0.012,
    "dgp_meanfield": 0.04,
    "dgp_vae": 0.04,
    "dnn": 0.002,
    "bnn": 0.004,
    "dgp_mcmc": 0.002,
    "mcmc_svgp": 0.03,
    "mcmc_gp": 0.0008,
    "ep_gp": 0.05,
    "gradient_boosting": 5.0,
    "svm": 0.5,
    "simple_mkl": 10.0,
}
UNMEASURED_MB = 2000
SECONDS_PER_FIT = 0.3  # set-up, prediction and writing


class Cost:
    """Predicted seconds and memory of a fit, learned from the records of finished ones."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.per_step: dict[tuple[str, ...], list[float]] = {}
        self.peak: dict[tuple[str, ...], float] = {}
        for record in records:
            if record["status"] == "done":
                place = _place(record["address"])
                steps = record["what"].get("steps") or 1
                self.per_step.setdefault(place, []).append(record["seconds"]["train"] / steps)
                self.peak[place] = max(self.peak.get(place, 0.0), record["peak_memory_mb"])

    def seconds(self, cell: dict[str, Any]) -> float:
        """Predicted seconds of one fit of a cell."""
        measured = self.per_step.get(_place(cell["address"]))
        if measured:
            rate = sorted(measured)[len(measured) // 2]
        else:
            size = math.sqrt(max(cell["rows"], 100) / 500)
            rate = SECONDS_PER_STEP.get(cell["family"], 0.02) * size
        return SECONDS_PER_FIT + rate * (cell["what"].get("steps") or 1)

    def memory_mb(self, cell: dict[str, Any]) -> int:
        """Memory to ask for: half as much again as the measured peak, or what is ample for small data."""
        peak = self.peak.get(_place(cell["address"]))
        return UNMEASURED_MB if peak is None else math.ceil(1.5 * peak)


def _place(address: dict[str, str]) -> tuple[str, ...]:
    return tuple(address[k] for k in ("method", "dataset", "overrides"))
