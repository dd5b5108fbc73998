"""A training step on a GPU beside one thread of the same machine's CPU: `python bench/gpu.py [ROW ...]`.

For the works of `steps.py` in float64, with one replica and with as many as a cell has splits: milliseconds of the wall
clock on each, the device waited for at the end of a turn, and their ratio; operations of a step and what each takes on
the GPU. Then steps whose loss is compiled into CUDA graphs (`trainer.compile`), beside the same that are not.
"""

from __future__ import annotations

import sys
import time
from itertools import count

import numpy as np
import torch
from steps import MANY, WORKS, Work, counts, loop_of
from timing import Step, interval_text

TURNS, TURN, WARMUP, COMPILED = 7, 0.1, 3, ("SVGP", "DSVI-2")


def step_of(work: Work, device: torch.device, compiled: bool = False) -> Step:
    """A step of the training loop of all replicas on a device, which is waited for."""
    loop, numbers = loop_of(work, torch.float64, device), count()
    if compiled:
        loss = torch.compile(loop.method.loss, mode="reduce-overhead")
        loop.method.loss = lambda *of: loss(*of).clone()  # as `GradientFit` does

    def step() -> None:
        number = next(numbers)
        loop.advance(*loop.draw(number), number)

    return step


def turns(steps: list[Step]) -> np.ndarray:
    """Milliseconds of each step `[turn, step]`, in turns of `TURN` seconds."""
    times = []
    for step in steps:
        for _ in range(WARMUP):
            step()
        times.append(max(1, round(TURN / seconds(step, 1))))
    return 1e3 * np.array([[seconds(*pair) for pair in zip(steps, times, strict=True)] for _ in range(TURNS)])


def seconds(step: Step, times: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    host, device = torch.device("cpu"), torch.device("cuda")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print("ms a step on the GPU, compiled, their ratio (median [95 % interval])")
    for row in COMPILED:
        plain, graphs = turns([step_of(WORKS[row], device), step_of(WORKS[row], device, compiled=True)]).T
        times = f"{np.median(plain):7.2f} {np.median(graphs):7.2f}  {interval_text(plain / graphs)}"
        print(f"  {row:26s} {times}", flush=True)
    print("ms a step on one CPU thread, on the GPU, their ratio; operations, µs each on the GPU")
    for row in sys.argv[1:] or WORKS:
        work = WORKS[row]
        for replicas in sorted({work.replicas, MANY}):
            several = work._replace(replicas=replicas)
            on_cpu, on_gpu = turns([step_of(several, host), step_of(several, device)]).T
            operations, _ = counts(step_of(several, host))
            each = 1e3 * np.median(on_gpu) / operations
            times = f"{np.median(on_cpu):8.1f} {np.median(on_gpu):7.2f}  {interval_text(on_cpu / on_gpu):24s}"
            print(f"  {row:26s} x {replicas:2d} {times} {operations:5d} {each:5.1f}", flush=True)


if __name__ == "__main__":
    main()
