"""Fits of the kind `solve`: a solver is tried on linear systems, one after the other; nothing is predicted.

    trace    step (number of the system, from 1), seconds (of the fit so far), and what the method has measured

The checkpoint of a fit is its trace, written after each system; a system that was cut off is begun again.
"""

import math
from pathlib import Path

import torch

from gpbench.data.table import Table
from gpbench.methods.systems import SolveMethod
from gpbench.places import write_text
from gpbench.study.fitting import checkpoint, contract, devices, stopping
from gpbench.study.fitting.devices import Clock
from gpbench.study.fitting.fold import make_fold, make_method
from gpbench.study.fitting.outcome import Outcome
from gpbench.study.records import Fit, Group, Progress, to_json


def run(group: Group, table: Table, work: Path) -> list[Outcome]:
    """Measure the systems of every fit of a group (resuming where it was cut off)."""
    torch.set_num_threads(group.how.threads)
    return [_measure(group, fit, table, work) for fit in group.fits]


def _measure(group: Group, fit: Fit, table: Table, work: Path) -> Outcome:
    what, how, device = group.what, group.how, devices.of(group.how)
    fold, method = make_fold(what, table, fit.split, fit.replica), contract.held(make_method(what))
    assert isinstance(method, SolveMethod)
    like = torch.empty(0, dtype=getattr(torch, what.dtype), device=device)
    x = torch.as_tensor(fold.scaling.inputs(table.inputs[fold.train])).to(like)
    y = torch.as_tensor(fold.scaling.targets(fold.targets[fold.train])[:, 0]).to(like)
    saved = checkpoint.read(work, [fit.fit_id], device)
    trace = saved[0]["trace"] if saved else []
    clock, count = Clock(device, trace[-1]["seconds"] if trace else 0.0), method.count()
    for number in range(len(trace), count):
        if stopping.is_requested() or (how.max_minutes is not None and clock.pause() > 60 * how.max_minutes):
            return Outcome("stopped", stopping.reason(how, number, count))
        measured = method.measure(x.clone(), y.clone(), number, fold.key)  # a solver may work in their place
        trace.append({"step": number + 1, "seconds": clock.pause()} | measured)
        checkpoint.write(work, {"fits": [fit.fit_id], "step": number + 1, "trace": trace}, {})
        progress = Progress(number + 1, count, clock.seconds, [math.nan])  # there is no objective
        write_text(work / "progress.json", to_json(progress))
        clock.go()
    return Outcome("done", trace=trace, seconds={"train": clock.seconds})
