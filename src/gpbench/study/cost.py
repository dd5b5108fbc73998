"""What a fit will cost: from measured fits where there are any, from rough coefficients before."""

from __future__ import annotations

import math
from typing import Any

# seconds a step on one CPU thread, before anything is measured; only batching and estimates use them
SECONDS_PER_STEP = {"svgp": 0.006, "dsvi": 0.03, "dgp_rff": 0.004, "bsgp": 0.02, "exact_gp": 0.015}
SECONDS_PER_FIT = 1.0  # set-up, prediction and writing


class Cost:
    """Predicted seconds of a fit, learned from the records of finished ones."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.per_step: dict[tuple[str, str], list[float]] = {}
        for record in records:
            if record["status"] == "done":
                address, seconds = record["address"], record["seconds"]
                steps = max(record["what"].get("steps") or 1, 1)
                self.per_step.setdefault((address["method"], address["dataset"]), []).append(seconds["train"] / steps)

    def seconds(self, cell: dict[str, Any]) -> float:
        """Predicted seconds of one fit of a cell."""
        address = cell["address"]
        measured = self.per_step.get((address["method"], address["dataset"]))
        if measured:
            rate = sorted(measured)[len(measured) // 2]
        else:
            size = math.sqrt(max(cell["rows"], 100) / 500)
            rate = SECONDS_PER_STEP.get(cell["family"], 0.02) * size
        return SECONDS_PER_FIT + rate * (cell["what"].get("steps") or 1)
