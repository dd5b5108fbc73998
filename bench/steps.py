"""Speed of a training step, and of a prediction, beside peers on the same work: `python bench/steps.py`.

Ours is the real training loop: draws of rows and noise, loss, gradient, checks and Adam. Peers are GPyTorch in this
process, and GPflow and GPflux in an environment of their own (`make peers`), with a mini-batch that is always the same
and without checks. All train inducing inputs, ARD kernels, q and the noise variance, by Adam, on one thread. Steps
alternate, so that a busy machine slows all alike; times are of the processor. Then what a GPU would see of a step:
operations that are no views, each a launch, and how often the host waits for the device.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch_steps
from timing import DIM, WARMUP, Elsewhere, Step, interleaved, interval_text
from torch.utils._python_dispatch import TorchDispatchMode

from gpbench.methods.base import SamplerMethod, TrainingSet
from gpbench.streams import Key
from gpbench.study.fitting.loop import GradientLoop, SamplerLoop

BENCH = Path(__file__).parent
PEERS = BENCH.parent / ".peers" / "bin" / "python"
CPU = torch.device("cpu")
BLOCK, MANY, TURN, DTYPES = 500, 20, 0.1, (torch.float64, torch.float32)
VIEWS = {"view", "transpose", "unsqueeze", "squeeze", "expand", "slice", "select", "as_strided", "t", "permute"}
VIEWS |= {"detach", "_unsafe_view", "unbind", "split", "alias", "diagonal", "_reshape_alias", "split_with_sizes"}


class Work(NamedTuple):
    """What a row does with which method: on training rows of so many inputs, in so many replicas at once."""

    method: str
    settings: dict[str, Any] = {}
    rows: int = 4000
    inputs: int = DIM
    replicas: int = 1


BIG, SMALL = {"batch_size": 1000}, {"batch_size": 100, "num_inducing": 20}
HIDDEN = {"hidden_width": DIM}
WORKS = {
    "DSVI-2": Work("dsvi", BIG | HIDDEN),
    "SVGP": Work("svgp", BIG),
    "SGPR": Work("sgpr", {"optimiser": "adam"}, rows=1000),
    "exact GP": Work("exact_gp", rows=1000),
    "20 splits of DSVI-2": Work("dsvi", SMALL | HIDDEN, replicas=MANY),
    "20 splits of SVGP": Work("svgp", SMALL, replicas=MANY),
    "DGP-RFF, 8 inputs": Work("dgp_rff", BIG),
    "DGP-RFF, 784 inputs": Work("dgp_rff", BIG, inputs=784),
    "BSGP-1": Work("bsgp", BIG),
    "BSGP-2": Work("bsgp", BIG | HIDDEN | {"layers": 2}),
    "AEP, batch 50, width 2": Work("aep", {"batch_size": 50, "hidden_width": 2}),
    "AEP, batch 1000, width 8": Work("aep", BIG | HIDDEN),
}
"""rows -> what we do; the first is also what predicts, and what those without a peer are compared with"""


def training_set(rows: int, inputs: int, replicas: int, dtype: torch.dtype, device: torch.device) -> TrainingSet:
    x, y = (part.to(device) for part in torch_steps.rows(rows, inputs, dtype))
    zeros, ones = x.new_zeros(replicas, inputs), x.new_ones(replicas, inputs)
    indices = torch.arange(rows, device=device).repeat(replicas, 1)
    counts = torch.full((replicas,), rows, device=device)
    return TrainingSet(x, y, indices, counts, zeros, ones, zeros[:, :1], ones[:, :1])


def loop_of(work: Work, dtype: torch.dtype, device: torch.device = CPU) -> Any:
    """The training loop of a work, at its start."""
    module = importlib.import_module(f"gpbench.methods.{work.method}")
    method = module.Method(module.Hyperparameters(**work.settings), "regression")
    loop: Any = type("Alone", (SamplerLoop if isinstance(method, SamplerMethod) else GradientLoop,), {})()
    loop.method, keys = method, [Key("bench", "bench", split) for split in range(work.replicas)]
    data = training_set(work.rows, work.inputs, work.replicas, dtype, device)
    loop.prepare(data, keys, 1_000_000, BLOCK)
    loop.hold(method.start(data, keys))
    if isinstance(loop, GradientLoop):
        loop.start_adam()
    return loop


def our_step(work: Work, dtype: torch.dtype, compiled: bool = False) -> Step:
    """A step of the training loop of all replicas, with its draws and checks; compiled: as by `trainer.compile`."""
    loop, steps = loop_of(work, dtype), count()
    if compiled:
        loss = torch.compile(loop.method.loss)
        loop.loss = lambda batch, noise: loss(loop.state, batch, noise).clone()

    def step() -> None:
        number = next(steps)
        loop.advance(*loop.draw(number), number)

    return step


def our_prediction(work: Work, dtype: torch.dtype) -> Step:
    """A prediction of 1,000 rows, 100 samples."""
    loop, (x, _) = loop_of(work, dtype), torch_steps.rows(1000, work.inputs, dtype)
    return lambda: loop.method.predict(loop.state, x[None], loop.keys[0])


class Child:
    """GPflow and GPflux in a process of their own, in one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        name = str(dtype).removeprefix("torch.")
        command, env = [str(PEERS), "gpflow_steps.py", name], os.environ | {"OMP_NUM_THREADS": "1"}
        pipe, hidden = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(command, cwd=BENCH, env=env, text=True, stdin=pipe, stdout=pipe, stderr=hidden)

    def seconds(self, work: str, times: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(times, work, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"GPflow failed at {work}: see `{PEERS} bench/gpflow_steps.py`")
        return float(answer)


class GPflowStep(Elsewhere):
    def __init__(self, child: Child, work: str) -> None:
        self.child, self.work = child, work

    def seconds(self, times: int) -> float:
        return self.child.seconds(self.work, times)


def gpytorch_steps(dtype: torch.dtype) -> dict[str, dict[str, Callable[[], Step]]]:
    """row -> peers in this process -> their step."""
    dsvi, svgp, exact = (partial(step, dtype) for step in (torch_steps.dsvi, torch_steps.svgp, torch_steps.exact))
    small = {"num_inducing": SMALL["num_inducing"], "batch": SMALL["batch_size"]}

    def many(step: Callable[..., Step], **settings: Any) -> Step:
        return torch_steps.looped([step(**settings, **small) for _ in range(MANY)])

    return {
        "DSVI-2": {
            "GPyTorch, tutorial": partial(dsvi, shared=False),
            "GPyTorch, shared kernel": partial(dsvi, shared=True),
        },
        "SVGP": {"GPyTorch": svgp},
        "SGPR": {"GPyTorch": partial(exact, sparse=True)},
        "exact GP": {
            "GPyTorch, Cholesky": partial(exact, sparse=False),
            "GPyTorch, CG": partial(exact, sparse=False, cholesky=False),
        },
        "predict": {"GPyTorch": partial(torch_steps.predict, dtype)},
        "20 splits of DSVI-2": {"GPyTorch, looped": partial(many, dsvi, shared=True)},
        "20 splits of SVGP": {"GPyTorch, looped": partial(many, svgp)},
        "DGP-RFF, 8 inputs": {"minimal PyTorch": partial(torch_steps.rff, dtype, 8)},
        "DGP-RFF, 784 inputs": {"minimal PyTorch": partial(torch_steps.rff, dtype, 784)},
    }


GPFLOW = {"DSVI-2": "GPflux", "SVGP": "GPflow", "SGPR": "GPflow", "exact GP": "GPflow", "predict": "GPflux"}
"""row -> what does it in the other environment"""
COMPILED = ("DSVI-2", "SVGP", "SGPR")
"""rows that `trainer.compile` is shown of, too"""


def bench_peers(dtype: torch.dtype) -> None:
    """A line for each peer of each row: its time by ours, and by our compiled one where that is shown, too."""
    torch.set_default_dtype(dtype)  # GPyTorch makes part of its constants in the default type
    child = Child(dtype) if PEERS.exists() else None
    for row, peers in gpytorch_steps(dtype).items():
        predicts = row == "predict"
        steps = {"ours": our_prediction(WORKS["DSVI-2"], dtype) if predicts else our_step(WORKS[row], dtype)}
        if row in COMPILED:
            steps["compiled"] = our_step(WORKS[row], dtype, compiled=True)
        ours = list(steps)
        steps |= {name: make() for name, make in peers.items()}
        if row in GPFLOW and child is not None:
            steps[GPFLOW[row]] = GPflowStep(child, row)
        times = interleaved(steps, 9 if predicts else None, TURN)
        for name in list(times)[len(ours) :]:
            ratios = [
                f"{interval_text(times[name] / times[our]):20s} {our} {np.median(times[our]):.1f} ms" for our in ours
            ]
            print(f"  {row:26s} {name:26s} {'; '.join(ratios)}", flush=True)
        if row in GPFLOW and child is None:
            print(f"  {row:26s} {GPFLOW[row]:26s} not built: make peers")


class Counter(TorchDispatchMode):
    """Counts operations that are no views, and those that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.operations += name not in VIEWS
        self.waits += name in ("_local_scalar_dense", "nonzero")
        return func(*args, **(kwargs or {}))


def counts(step: Step) -> tuple[int, int]:
    """Operations and waits of a step."""
    for _ in range(WARMUP):
        step()
    with Counter() as counter:
        step()
    return counter.operations, counter.waits


def bench_operations() -> None:
    """A line for each work: its time by that of DSVI-2, what it launches and how often it waits."""
    base = our_step(WORKS["DSVI-2"], torch.float64)
    for row, work in WORKS.items():
        times = interleaved({"base": base, "step": our_step(work, torch.float64)}, turn=TURN)
        seen = [
            "{} ({})".format(*counts(our_step(work._replace(replicas=replicas), torch.float64)))
            for replicas in (1, MANY)
        ]
        print(f"  {row:26s} {interval_text(times['step'] / times['base']):22s} {'  '.join(seen)}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for dtype in DTYPES:
        print(f"time of a peer / ours, {str(dtype).removeprefix('torch.')} (median [95 % interval])")
        bench_peers(dtype)
    torch.set_default_dtype(torch.float64)
    print(f"ours / DSVI-2, float64; operations (waits) a step with 1 and with {MANY} replicas")
    bench_operations()


if __name__ == "__main__":
    main()
