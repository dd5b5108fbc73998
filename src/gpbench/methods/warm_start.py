"""Where a fit starts: the optimum that a method of steps finds, with randomness of the stream `init`.

That of a chain is found by Adam; that of a fit by L-BFGS on some of its rows, where there are many, by L-BFGS too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import lbfgs
from gpbench.methods.base import GradientMethod, State
from gpbench.methods.training_rows import Batch, TrainingSet
from gpbench.streams import Key

START_ROWS = 1000
MANY_ROWS = 3000
"""Training rows above which L-BFGS begins with `START_ROWS` of them, drawn without replacement."""
ITERATIONS, LEAST_GAIN = 300, 0.01
"""Of L-BFGS on some rows: most iterations, and nats a datum that a tenth of them must gain for it to go on."""
Params = dict[str, Tensor]


def maximise(
    method: GradientMethod,
    data: TrainingSet,
    keys: list[Key],
    iterations: int,
    log_prior: Callable[[Params], Tensor] = lambda params: torch.zeros(()),
    still: Callable[[int], set[str]] = lambda step: set(),
) -> State:
    """State of a method after `iterations` updates for its objective + log_prior `[R]`.

    All rows, or mini-batches of `START_ROWS` where there are more; still(step) names the params that stay at a step."""
    state, full = method.start(data, keys), data.full()
    params = state.params = {name: value.contiguous().requires_grad_() for name, value in state.params.items()}
    adam = torch.optim.Adam(params.values(), lr=method.hyper.learning_rate, fused=True)
    rows = min(full.x.shape[1], START_ROWS)
    for step in range(iterations):
        batch = full if full.x.shape[1] <= START_ROWS else data.take(_positions(data, keys, step))
        shapes = method.noise_shapes(state, rows, step, iterations)
        normals = [streams.normal(key, "init", 1 + step, (1, shapes.size(rows)), like=full.x) for key in keys]
        adam.zero_grad()
        loss = method.loss(state, batch, shapes.split(torch.cat(normals), rows)) - log_prior(params)
        loss.sum().backward()
        for name in method.frozen(step, iterations) | still(step):
            params[name].grad = None
        adam.step()
    state.params = {name: value.detach() for name, value in params.items()}
    return state


def by_some_rows(method: GradientMethod, state: State, train: Batch, rng: np.random.Generator) -> State:
    """State of one replica for a fit by L-BFGS; of many rows, with the params that are best for a random part."""
    count = train.x.shape[1]
    if count <= MANY_ROWS or not method.hyper.takes_lbfgs(method.task, count):
        return state
    chosen = torch.from_numpy(rng.choice(count, START_ROWS, replace=False)).to(train.x.device)
    some = Batch(train.x[:, chosen], train.y[:, chosen], train.weight[:, chosen])
    start = {name: value for name, value in state.params.items() if name not in method.solved}
    objective = lbfgs.of_params(lambda params: method.profile(State(params, state.buffers), some), start)
    best = lbfgs.minimise(objective, lbfgs.flatten(start), ITERATIONS, LEAST_GAIN * START_ROWS)
    return State(state.params | lbfgs.unflatten(best, start), state.buffers)


def _positions(data: TrainingSet, keys: list[Key], step: int) -> Tensor:
    """Training rows of a mini-batch `[R, B]`, drawn with replacement."""
    rngs = [streams.rng(key, "init", 1 + step) for key in keys]
    drawn = [rng.integers(0, count, START_ROWS) for rng, count in zip(rngs, data.count.tolist(), strict=True)]
    return torch.stack([torch.from_numpy(rows) for rows in drawn]).to(data.rows)
