"""The request that a job ends soon, to which fits listen where they may stop: at the end of a block of noise.

Schedulers tell a job with SIGTERM that they will kill it; SIGUSR1 is what people and `sbatch --signal` send. A process
hands the request to its children, which inherit how it listens.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

from gpbench.config.schema import Trainer

GRACE_SECONDS = 20.0
"""From a signal until a fit is killed that has not stopped; Slurm kills a job 30 seconds after it told it to end."""
_request = SimpleNamespace(made=False, latest=math.inf)


def listen(seconds: float) -> None:
    """From now on signals make the request; it makes itself after so many seconds, and then kills nothing; 0: never."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: _ask(time.monotonic() + GRACE_SECONDS))
    signal.signal(signal.SIGALRM, lambda *_: _ask(math.inf))
    signal.setitimer(signal.ITIMER_REAL, seconds)


@contextlib.contextmanager
def by_hand() -> Iterator[None]:
    """Within, the first Ctrl-C makes the request, too, and the second interrupts at once."""
    mine, numbers = os.getpid(), (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if os.getpid() == mine:
            print("gpbench: stopping at the next checkpoint; Ctrl-C again stops at once", file=sys.stderr)
        _ask(time.monotonic() + GRACE_SECONDS)

    listen(0)
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ask(latest: float) -> None:
    _request.made, _request.latest = True, min(latest, _request.latest)
    for pid in [child.pid for child in multiprocessing.active_children() if child.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)


def is_requested() -> bool:
    """Whether this process is to end soon."""
    return bool(_request.made)


def is_late() -> bool:
    """Whether what has not stopped yet is to be killed."""
    return bool(time.monotonic() > _request.latest)


def reason(how: Trainer, step: int, steps: int) -> str:
    """Why and where a fit stopped."""
    why = "as its job had to end" if is_requested() else f"after {how.max_minutes} minutes"
    return f"stopped {why} at step {step} of {steps}"
