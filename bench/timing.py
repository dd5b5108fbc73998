"""Times of steps that are run in turns, so that a busy machine slows all alike; of the processor, on one thread."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import binom

NUM_INDUCING, DIM, REPEATS, WARMUP = 100, 8, 20, 5

Step = Callable[[], Any]


class Elsewhere(ABC):
    """A step in another process, which says how many seconds it took there."""

    def __call__(self) -> None:
        self.seconds(1)

    @abstractmethod
    def seconds(self, times: int) -> float:
        """Of so many steps."""


def seconds(step: Step, times: int = 1) -> float:
    """What a step takes, on average over so many."""
    if isinstance(step, Elsewhere):
        return step.seconds(times) / times
    start = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - start) / times


def interleaved(
    steps: dict[str, Step], repeats: int | None = None, turn: float = 0.0, warm_up: int = WARMUP
) -> dict[str, np.ndarray]:
    """Milliseconds `[repeats]` of each step, run in turns after `warm_up` that do not count.

    Each turn begins with one more that does not count, unless `warm_up` is 0, as for long steps: after a pause a step
    finds neither caches nor, on a virtual machine, its pages where they were (7 ms of SVGP were 61 after 0.8 seconds).
    turn: seconds that a step is repeated for in its turn, once at least."""
    for step in steps.values():
        for _ in range(warm_up):
            step()

    def one_turn(step: Step, times: int = 1) -> float:
        if warm_up:
            step()
        return 1e3 * seconds(step, times)

    times = [max(1, round(1e3 * turn / one_turn(step))) if turn else 1 for step in steps.values()]
    taken = np.array([list(map(one_turn, steps.values(), times)) for _ in range(repeats or REPEATS)])
    return dict(zip(steps, taken.T, strict=True))


def median_interval(sample: np.ndarray) -> tuple[float, float, float]:
    """Median and the order statistics that hold the true one in at least 95 of 100 cases (binomial, no model); of five
    numbers or fewer their range, which holds it in 94 (five), 88 (four) or 75 (three) of 100."""
    ordered = np.sort(sample)
    low = max(int(binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    return float(np.median(ordered)), float(ordered[low]), float(ordered[len(ordered) - 1 - low])


def called(turns: int) -> str:
    """What `median_interval` gives of so many turns."""
    return "95 % interval" if turns > 5 else "range"


def interval_text(sample: np.ndarray) -> str:
    """Median [95 % interval], or [range] of five numbers or fewer."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*median_interval(sample))


def report(title: str, times: dict[str, np.ndarray], base: str) -> None:
    """A line for each step: time in milliseconds, and how many times slower than `base` (pairs of one turn)."""
    print(f"{title} (median of {REPEATS} [{called(REPEATS)}])")
    for name, taken in times.items():
        milliseconds = "{:.1f} [{:.1f}, {:.1f}] ms".format(*median_interval(taken))
        print(f"  {name:24s} {milliseconds:28s} x {interval_text(taken / times[base])}")
