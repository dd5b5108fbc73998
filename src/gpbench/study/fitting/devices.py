"""The device of a fit, on which the same fit gives the same numbers again, and the clock of its training."""

import os
import time

import torch

from gpbench.config.schema import Trainer


def of(how: Trainer) -> torch.device:
    """The device that a trainer names; on a GPU sums have one order, so that a resumed fit is the uninterrupted one."""
    if how.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device(how.device)


class Clock:
    """Seconds of training alone; waits for the device where it stops."""

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        self.device, self.seconds, self.since = device, seconds, time.perf_counter()

    def pause(self) -> float:
        """Add the time since the last `go` or `pause`, once the device has ended its work; the seconds so far."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now
        return self.seconds

    def go(self) -> None:
        self.since = time.perf_counter()
