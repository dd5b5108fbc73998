"""Small problems for STRIDE: rows of a step function, chains at given covariance parameters, their steps."""

import torch
from torch import Tensor

from gpbench.methods import deep_gp_mcmc, stride
from gpbench.methods.base import Noise, State
from gpbench.methods.hidden_layers import M
from gpbench.methods.training_rows import Batch
from gpbench.streams import Key

KEY = Key("steps", "common", 0)


def rows(n=12, d=1, seed=0) -> Batch:
    """A step in the first input."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, n, d, generator=generator, dtype=torch.float64)
    y = torch.where(x[..., :1] > 0.2, 1.0, -1.0).double()
    return Batch(
        x, y + 0.05 * torch.randn(1, n, 1, generator=generator, dtype=torch.float64), torch.ones(1, n).double()
    )


def method(**settings) -> stride.Method:
    small = {"num_inducing": 4, "particles": 3, "em_iterations": 2, "rounds": 2, "candidates": 5, "rank": 6}
    return stride.Method(stride.Hyperparameters(**small | settings), "regression")


def exact(**settings) -> deep_gp_mcmc.Method:
    small = {"particles": 3, "em_iterations": 2, "rounds": 0}
    return deep_gp_mcmc.Method(deep_gp_mcmc.Hyperparameters(**small | settings), "regression")


def started(made: stride.Method, train: Batch, chosen: list[int] | None = None, noise_variance=0.05) -> State:
    """Chains at lengthscale 1, outputscale 1.5 and given rows M (the first ones by default)."""
    number = min(made.hyper.num_inducing, train.x.shape[1])
    one = torch.ones(1, 1, dtype=torch.float64)
    buffers = {"lengthscale": one, "outputscale": 1.5 * one, "noise_variance": noise_variance * one}
    buffers |= {"x": train.x, "y": train.y[..., 0], "mask": train.weight}
    buffers[M] = torch.tensor([list(range(number)) if chosen is None else chosen])
    buffers["start_map"] = torch.eye(train.x.shape[-1], dtype=torch.float64)[None]
    params, kept = made.hidden.begin(buffers)
    params = {name: xi.repeat(1, made.hyper.particles, 1, 1) for name, xi in params.items()}
    return made.chains(params, buffers | kept)


def noise(made: stride.Method, state: State, step: int, steps: int, seed: int) -> Noise:
    n = state.buffers["x"].shape[1]
    shapes = made.noise_shapes(state, n, step, steps)
    generator = torch.Generator().manual_seed(seed)
    return shapes.split(torch.randn(1, shapes.size(n), generator=generator, dtype=torch.float64), n)


def run(made: stride.Method, state: State, train: Batch, steps: int, first=0) -> list[Tensor]:
    return [made.step(state, train, noise(made, state, t, steps, t), t, steps) for t in range(first, steps)]


def disturbed(state: State, size=0.3, seed=7) -> State:
    """The state with other whitened values, of every particle its own."""
    generator = torch.Generator().manual_seed(seed)
    for name, xi in state.params.items():
        state.params[name] = xi + size * torch.randn(xi.shape, generator=generator, dtype=xi.dtype)
    return state
