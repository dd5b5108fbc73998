"""Overhead of the training loop: `python bench/loop.py`.

The same SVGP fit (10 inducing inputs, mini-batches of 20 rows) as `gpbench` runs it (LightningModule, blocks of
noise, trace, divergence checks) and as a bare loop over the same loss and the same Adam. Runs alternate.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from gpbench import places
from gpbench.data.table import Table
from gpbench.study.fitting import lightning_module
from gpbench.study.planning.batches import group_of
from gpbench.study.planning.resolve import resolve
from gpbench.study.records import Group

STEPS, REPEATS = 1000, 7


def group() -> Group:
    """One fit on boston's 506 rows, as it would be planned; the rows themselves are made up."""
    words = (
        f"methods=[svgp] datasets=[boston] splits=1 svgp.num_inducing=10 svgp.batch_size=20 svgp.steps={STEPS} "
        "svgp.optimiser=adam svgp.full_batch_rows=0 trainer.checkpoint_seconds=1e9 trainer.eval_points=0"
    )
    (cell,) = resolve(places.find(), "default", words).cells
    return group_of(cell, cell.fits, cell.rows)


def table() -> Table:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((506, 13))
    return Table(x, np.sin(x).sum(1, keepdims=True), [f"x{i}" for i in range(13)], ["y"])


def lightning_seconds(data: Table) -> float:
    with tempfile.TemporaryDirectory() as work:
        return lightning_module.run(group(), data, Path(work))[0].seconds["train"]


def bare_seconds(data: Table) -> float:
    with tempfile.TemporaryDirectory() as work:
        fit = lightning_module.GradientFit(group(), data, Path(work), torch.device("cpu"))
        adam = torch.optim.Adam(fit.state.params.values(), lr=0.01, fused=True)
        positions = torch.as_tensor(np.random.default_rng(0).integers(0, 455, (STEPS, 1, 20)))
        _, noise = fit.draw(0)
        started = time.perf_counter()
        for position in positions:
            adam.zero_grad()
            fit.method.loss(fit.state, fit.data.take(position), noise).sum().backward()
            adam.step()
        return time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(1)
    data = table()
    lightning_seconds(data), bare_seconds(data)
    pairs = np.array([(lightning_seconds(data), bare_seconds(data)) for _ in range(REPEATS)]) / STEPS * 1e3
    loop, bare = np.median(pairs, axis=0)
    low, high = np.sort(pairs[:, 0] - pairs[:, 1])[[0, -1]]
    print(f"training loop, {STEPS} steps, median of {REPEATS} alternating runs (and the range of their differences)")
    print(f"  gpbench {loop:.3f} ms a step, bare loop {bare:.3f}; overhead {loop - bare:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
