"""Seconds of training, without those spent looking at the fit or writing checkpoints."""

import time

import torch


class Clock:
    """Seconds of training alone; waits for the device where it stops."""

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        self.device, self.seconds, self.since = device, seconds, time.perf_counter()

    def pause(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now
        return self.seconds

    def go(self) -> None:
        self.since = time.perf_counter()
