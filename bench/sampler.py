"""Cost of BSGP: `python bench/sampler.py`.

A step of one layer with 100 inducing inputs and a batch of 1,000, on 10^4, 10^5 and 10^6 training rows: it draws row
numbers with replacement, so it should cost the same. And a prediction from 256 kept states, one and two layers, 1,000
test rows: batched over states as `gpbench` makes it, beside a loop over them with the same numbers. Double precision,
one thread; turns alternate.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import torch
from timing import DIM, NUM_INDUCING, Step, interleaved, report
from torch import Tensor

from gpbench import places, streams
from gpbench.data.splits import Official
from gpbench.data.table import Table
from gpbench.methods import bsgp
from gpbench.methods.base import State
from gpbench.methods.training_rows import TrainingSet
from gpbench.streams import Key
from gpbench.study.fitting import lightning_module
from gpbench.study.planning.batches import group_of
from gpbench.study.planning.resolve import resolve

ROWS, STEPS_A_TURN = (10_000, 100_000, 1_000_000), 50
STATES, TEST_ROWS, KEY = 256, 1000, Key("bench", "bench", 0)


def steps(rows: int, work: Path) -> Step:
    """A turn of a fit of so many training rows: one block of noise, and its steps."""
    words = "methods=[bsgp_1] datasets=[boston] splits=1 dtype=float64 trainer.log_points=1 trainer.eval_points=0"
    words += f" noise_block={STEPS_A_TURN} bsgp_1.steps=100000 bsgp_1.batch_size=1000"
    (cell,) = resolve(places.find(), "default", words).cells
    what = replace(cell.what, protocol=replace(cell.what.protocol, splits=Official(rows)))
    group = group_of(replace(cell, what=what), cell.fits, rows)
    x = np.random.default_rng(0).standard_normal((rows + 1, DIM))
    table = Table(x, np.sin(x).sum(1, keepdims=True), [f"x{i}" for i in range(DIM)], ["y"])
    fit, numbers = lightning_module.SamplerFit(group, table, work, torch.device("cpu")), count()

    def turn() -> None:
        for _ in range(STEPS_A_TURN):
            fit.training_step(next(numbers))

    return turn


def fitted(layers: int) -> tuple[bsgp.Method, State]:
    """A method and a chain whose states scatter around the initial one."""
    x = torch.randn(TEST_ROWS, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    zeros, ones = torch.zeros(1, DIM).double(), torch.ones(1, DIM).double()
    y = x.sin().sum(-1, keepdim=True)
    rows = torch.arange(TEST_ROWS)[None]
    data = TrainingSet(x, y, rows, torch.tensor([TEST_ROWS]), zeros, ones, zeros[:, :1], ones[:, :1])
    method = bsgp.Method(bsgp.Hyperparameters(layers=layers, num_inducing=NUM_INDUCING), "regression")
    state = method.start(data, [KEY])
    state.samples = {k: [v + 0.1 * torch.randn_like(v) for _ in range(STATES)] for k, v in state.params.items()}
    return method, state


@torch.no_grad()
def looped(method: bsgp.Method, state: State, x: Tensor) -> np.ndarray:
    """Means of the components `[S, T, 1]`, one state after the other, by the noise that `predict` draws for blocks."""
    generator, elements = streams.generator(KEY, "eval"), bsgp.PREDICT_ELEMENTS // NUM_INDUCING
    block = max(1, elements // bsgp.PREDICT_ROWS)
    rows, buffers, means = max(1, elements // block), {k: v[0] for k, v in state.buffers.items()}, []
    for first in range(0, STATES, block):
        size = min(block, STATES - first)
        shapes = [(method.hyper.layers - 1, size, len(part), method.hyper.hidden_width) for part in x[0].split(rows)]
        noise = torch.cat([torch.randn(shape, generator=generator, dtype=x.dtype) for shape in shapes], 2)
        for number in range(size):
            layers = method.layers({name: values[first + number] for name, values in state.samples.items()})
            means.append(method.propagate(layers, buffers, x, noise[:, number : number + 1])[0])
    return torch.cat(means).numpy()


def bench_steps() -> None:
    with tempfile.TemporaryDirectory() as work:
        turns = {f"{rows:,} rows": steps(rows, Path(work)) for rows in ROWS}
        report(f"{STEPS_A_TURN} steps of BSGP", interleaved(turns), base=f"{ROWS[0]:,} rows")


def bench_prediction(layers: int) -> None:
    method, state = fitted(layers)
    x = torch.randn(1, TEST_ROWS, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    np.testing.assert_allclose(method.predict(state, x, KEY).component_mean, looped(method, state, x), 1e-9, 1e-9)
    turns = {
        "batched over states": lambda: method.predict(state, x, KEY),
        "one by one": lambda: looped(method, state, x),
    }
    title = f"{TEST_ROWS:,} rows predicted by {STATES} states, {layers} layer(s)"
    report(title, interleaved(turns), base="batched over states")


def main() -> None:
    torch.set_num_threads(1)
    bench_steps()
    for layers in (1, 2):
        bench_prediction(layers)


if __name__ == "__main__":
    main()
