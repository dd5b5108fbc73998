"""How the cost of a step of DGP-RFF grows: `python bench/rff.py`.

A step is noise, forward, backward and Adam of a deep GP with one hidden layer of 3 GPs and 8 inputs, in double
precision on one thread. It should be linear in features, samples and batch (cutajar2017, section 3.4: exponent 1).
Each is doubled from a size at which overhead is small; an exponent is the slope of log seconds over log size, fitted
to each of the interleaved repeats. All numbers of samples are more than fit in one piece, so that all are computed
twice.
"""

from __future__ import annotations

import numpy as np
import torch
from timing import DIM, REPEATS, Step, interleaved, median_interval

from gpbench.gp.features import FEATURES_PER_FREQUENCY
from gpbench.methods import dgp_rff
from gpbench.methods.training_rows import TrainingSet
from gpbench.streams import Key

BASE = {"frequencies": 100, "samples": 1, "batch": 1000}
SWEEPS = {
    "frequencies": [{"frequencies": size} for size in (125, 250, 500, 1000)],
    "batch": [{"batch": size} for size in (2000, 4000, 8000, 16000)],
    "samples": [{"samples": size, "frequencies": 250} for size in (6, 12, 24)],
}


def rff_step(kernel: str, frequencies: int, samples: int, batch: int) -> Step:
    x = torch.randn(batch, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, zeros, ones = torch.arange(batch)[None], torch.zeros(1, DIM).double(), torch.ones(1, DIM).double()
    y = x.sin().sum(-1, keepdim=True)
    data = TrainingSet(x, y, rows, torch.tensor([batch]), zeros, ones, zeros[:, :1], ones[:, :1])
    features = 2 * frequencies // FEATURES_PER_FREQUENCY[kernel]  # as many columns of Phi for both kernels
    hyper = dgp_rff.Hyperparameters(kernel=kernel, num_features=features, samples_train=samples)
    method = dgp_rff.Method(hyper, "regression")
    state, full = method.start(data, [Key("bench", "bench", 0)]), data.full()
    optimiser = torch.optim.Adam([p.requires_grad_() for p in state.params.values()], lr=0.01)
    shapes = method.noise_shapes(state, batch, 0, 1)

    def step() -> None:
        optimiser.zero_grad()
        noise = shapes.split(torch.randn(1, shapes.size(batch), dtype=torch.float64), batch)
        method.loss(state, full, noise).sum().backward()
        optimiser.step()

    return step


def bench_sweep(kernel: str, name: str) -> None:
    sizes = [BASE | changed for changed in SWEEPS[name]]
    times = interleaved({str(size[name]): rff_step(kernel, **size) for size in sizes})
    seconds, axis = np.log(np.array(list(times.values()))), np.log([size[name] for size in sizes])
    centred = axis - axis.mean()
    exponents = centred @ seconds / (centred**2).sum()
    milliseconds = ", ".join(f"{size}: {np.median(taken):.1f}" for size, taken in times.items())
    median, low, high = median_interval(exponents)
    print(f"  {kernel:10s} {name:11s} exponent {median:.2f} [{low:.2f}, {high:.2f}]   ms at {milliseconds}")


def main() -> None:
    torch.set_num_threads(1)
    print(f"DGP-RFF step, cost ~ size^exponent (median of {REPEATS} repeats [95 % interval])")
    for kernel in FEATURES_PER_FREQUENCY:
        for name in SWEEPS:
            bench_sweep(kernel, name)


if __name__ == "__main__":
    main()
