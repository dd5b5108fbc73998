"""Small chains of the two-layer deep GP with known covariances, and the dense algebra they are held against."""

import numpy as np
import torch
from gp_cases import noise_size, split, training_set

from gpbench.data.simulated import generators
from gpbench.methods import dgp_mcmc
from gpbench.methods.base import State
from gpbench.methods.dgp_mcmc import Hyperparameters, Method
from gpbench.methods.training_rows import TrainingSet

JITTER = 1e-6
SCALES = {"layer1": (0.7, 0.9), "layer2": (0.8, 1.2)}
"""Lengthscale and outputscale of both layers."""
NOISE_VARIANCE = 0.05


def bumps(n: int = 12, rows: list[list[int]] | None = None, dtype=torch.float64) -> TrainingSet:
    x, y, _ = generators.draw("composed_bumps")
    return training_set(torch.from_numpy(x[:n]).to(dtype), torch.from_numpy(y[:n, None]).to(dtype), rows)


def covariance(replicas: int, noise_variance: float = NOISE_VARIANCE, dtype=torch.float64) -> dict[str, torch.Tensor]:
    found = {"log_noise_variance": torch.full((replicas,), noise_variance, dtype=dtype).log()}
    for layer, (lengthscale, outputscale) in SCALES.items():
        found[f"{layer}.log_lengthscale"] = torch.full((replicas, 1), lengthscale, dtype=dtype).log()
        found[f"{layer}.log_outputscale"] = torch.full((replicas,), outputscale, dtype=dtype).log()
    return found


def method(**hyper) -> Method:
    return Method(Hyperparameters(**({"jitter": JITTER, "num_samples": 10} | hyper)), "regression")


def chains(data: TrainingSet, noise_variance: float = NOISE_VARIANCE, scale: float = 1.0, **hyper) -> State:
    """Chains at a random function, the same in every replica."""
    batch = data.full()
    hidden = scale * torch.sin(2 * batch.x[..., 0]) * batch.weight
    return method(**hyper).chains(batch, covariance(len(batch.x), noise_variance, batch.x.dtype), hidden)


def run(m: Method, data: TrainingSet, state: State, steps: int, first: int = 0) -> torch.Tensor:
    """Objectives `[R, steps]` of replicas numbered from `first`; noise belongs to (replica, step), more rows lengthen
    it."""
    batch, counts, losses = data.full(), data.count.tolist(), []
    for step in range(steps):
        noise = torch.zeros(len(counts), noise_size(m, state, max(counts)), dtype=batch.x.dtype)
        for r, count in enumerate(counts):
            size = noise_size(m, state, count)
            noise[r, :size] = torch.from_numpy(
                np.random.default_rng((step, first + r)).standard_normal(noise.shape[1])
            )[:size]
        losses.append(m.step(state, batch, split(m, state, batch, noise), step, steps))
        if m.keep(step + 1, steps):
            for name, value in state.params.items():
                state.samples.setdefault(name, []).append(value.clone())
    return torch.stack(losses, 1)


def gram(layer: str, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    """Dense RBF covariance `[N, M]` of x1 `[N]` and x2 `[M]`."""
    lengthscale, outputscale = SCALES[layer]
    return outputscale * torch.exp(-0.5 * ((x1[:, None] - x2[None]) / lengthscale) ** 2)


def prior(x: torch.Tensor) -> torch.Tensor:
    return gram("layer1", x, x) + JITTER * SCALES["layer1"][1] * torch.eye(len(x), dtype=x.dtype)


def hidden_of(state: State) -> torch.Tensor:
    """F1 `[R, n]`."""
    return dgp_mcmc.hidden_values(state.params["v"], state.buffers)[..., 0]
