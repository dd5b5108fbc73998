"""What STRIDE costs: `python bench/stride.py [cost|particles|standard|memory]`; all of it without an argument.

cost        the power of the rows that the time of a step grows with from 1,000 to 70,000 rows, by cross approximation
            and fully sparse, at 50 inducing points and rank 50: least squares in logarithms, in each of some turns
particles   a likelihood evaluation of 50 particles at once beside a loop over them: 700 rows, 50 inducing points; and
            the floor, what remains of it without kernel and factors: the products V V^T
standard    a transition, and the prediction of 77 rows, beside those of the standard deep GP: a fold of energy with its
            691 training rows, 50 inducing points, 50 particles, all kinds of hidden layers
memory      peak memory of a process with 63,000 rows, 125 inducing points and 10 particles, M-step included
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from timing import interleaved, interval_text, report, seconds
from torch import Tensor

from gpbench import config, places
from gpbench.data.prepare import ensure
from gpbench.data.table import load
from gpbench.gp import greedy
from gpbench.methods import deep_gp_mcmc, stride
from gpbench.methods.base import State
from gpbench.methods.hidden_layers import M
from gpbench.streams import Key

ROWS = (1_000, 3_000, 10_000, 30_000, 70_000)
TURNS = 9
KEY = Key("normal", "bench", 0)
ROWS_LARGE, COLUMNS_LARGE = 63_000, 30
LARGE = {"num_inducing": 125, "particles": 10, "hidden": "aca"}


def normal(rows: int, columns: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs `[1, rows, columns]` and targets `[1, rows]`."""
    x = torch.randn(1, rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, torch.sin(x.sum(-1))


def energy() -> tuple[Tensor, Tensor, Tensor]:
    """Standardised inputs and targets of nine tenths of energy, and inputs of its other rows (needs the raw file)."""
    where = places.find()
    dataset = config.compose(where.conf, "dataset", "energy")
    ensure(dataset, where)
    table = load(where.prepared_file("energy"), dataset.md5)
    order = torch.randperm(len(table.inputs), generator=torch.Generator().manual_seed(0))
    x, y = (torch.as_tensor(part, dtype=torch.float64)[order] for part in (table.inputs, table.targets[:, 0]))
    x, y, train = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std(), round(0.9 * len(y))
    return x[None, :train], y[None, :train], x[None, train:]


def chains(x: Tensor, y: Tensor, module: ModuleType = stride, **settings: object) -> tuple[stride.Method, State]:
    """Chains at given covariance parameters."""
    method = module.Method(module.Hyperparameters(**settings), "regression")
    generator, one = torch.Generator().manual_seed(0), torch.ones(1, 1, dtype=torch.float64)
    rows, columns = x.shape[1:]
    buffers = {"x": x, "y": y, "mask": torch.ones(1, rows, dtype=torch.float64)}
    buffers |= {"lengthscale": columns**0.5 * one, "outputscale": one, "noise_variance": 0.05 * one}
    buffers |= {"start_map": torch.eye(columns, dtype=torch.float64)[None]}
    buffers[M] = torch.randperm(rows, generator=generator)[: method.hyper.num_inducing][None]
    params, kept = method.hidden.begin(buffers)
    params = {name: xi.repeat(1, method.hyper.particles, 1, 1) for name, xi in params.items()}
    return method, method.chains(params, buffers | kept)


def step(method: stride.Method, state: State) -> Tensor:
    """A proposal and its likelihood, which is what a transition costs."""
    params = {name: 0.99 * xi + 0.1 * torch.randn_like(xi) for name, xi in state.params.items()}
    return method.log_likelihood(params, state.buffers)


def bench_cost() -> None:
    for hidden in ("aca", "sparse"):
        made = [chains(*normal(rows), hidden=hidden, particles=2) for rows in ROWS]
        for one in made:
            step(*one)
        turns = np.array([[seconds(lambda one=one: step(*one)) for one in made] for _ in range(TURNS)])
        powers = np.array([np.polyfit(np.log(ROWS), np.log(turn), 1)[0] for turn in turns])
        ends = np.log(turns[:, -1] / turns[:, 0]) / np.log(ROWS[-1] / ROWS[0])
        times = ", ".join(f"{1e3 * value:.1f}" for value in np.median(turns, axis=0))
        print(f"{hidden:8s} power of the rows {interval_text(powers)}, end to end {interval_text(ends)}; ms: {times}")


def bench_particles() -> None:
    method, state = chains(*normal(700), particles=50)
    alone = [{name: xi[:, s : s + 1] for name, xi in state.params.items()} for s in range(50)]
    v = torch.randn(*state.memory["value"].shape, method.hyper.num_inducing, 700, dtype=torch.float64)
    steps = {
        "batched": lambda: method.log_likelihood(state.params, state.buffers),
        "looped": lambda: [method.log_likelihood(params, state.buffers) for params in alone],
        "floor: V V^T": lambda: v @ v.mT,
        "floor: exp": lambda: v.exp(),
    }
    report("likelihood of 50 particles, 700 rows, 50 inducing points", interleaved(steps), "batched")


def bench_standard() -> None:
    kinds = {"standard": (deep_gp_mcmc, "full"), **{hidden: (stride, hidden) for hidden in ("full", "aca", "sparse")}}
    x, y, new = energy()
    made = {name: chains(x, y, module, hidden=hidden) for name, (module, hidden) in kinds.items()}
    for method, state in made.values():
        state.buffers |= method.condition(state.params, state.buffers)
    report("transition", interleaved({n: lambda m=m: step(*m) for n, m in made.items()}), "full")
    predictions = {n: lambda m=m: m[0].predict(m[1], new, KEY) for n, m in made.items()}
    report("prediction", interleaved(predictions), "full")


def bench_memory() -> None:
    """In a process of its own, whose peak nothing else has raised."""
    call = [sys.executable, __file__, "peak"]
    print(subprocess.run(call, capture_output=True, text=True, check=True, cwd=Path(__file__).parent).stdout, end="")


def peak() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    method, state = chains(*normal(ROWS_LARGE, COLUMNS_LARGE), **LARGE, candidates=100)
    step(method, state)
    method.maximise(state, torch.rand(1, ROWS_LARGE, 1, dtype=torch.float64))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {after:.2f} GB, of which {before:.2f} GB before; chunks of {greedy.CHUNK_ELEMENTS} numbers")


BENCHES = {
    "cost": bench_cost,
    "particles": bench_particles,
    "standard": bench_standard,
    "memory": bench_memory,
    "peak": peak,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        for name in sys.argv[1:] or ("cost", "particles", "standard", "memory"):
            BENCHES[name]()
