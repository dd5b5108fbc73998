"""Speed of a training step beside GPyTorch on the same work: `python bench/bench.py`.

A step is forward, backward and Adam of a two-layer deep GP with 100 inducing points a layer, 8 inputs, 8 hidden
outputs, a batch of 1,000 rows and one Monte Carlo sample, on one thread. GPyTorch is laid out as in its deep-GP
tutorial (a kernel and inducing inputs for each hidden output), and with one kernel shared by the outputs of a
layer, which is the work that `dsvi` does. Steps alternate, so that a busy machine slows all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gpytorch
import numpy as np
import torch
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from scipy.stats import binom
from torch import Tensor

from gpbench.methods import dsvi
from gpbench.methods.base import TrainingSet
from gpbench.streams import Key

NUM_INDUCING, BATCH, DIM, REPEATS, WARMUP = 100, 1000, 8, 20, 5

Step = Callable[[], None]


def training_data(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64).to(dtype)
    return x, x.sin().sum(-1, keepdim=True)


def gpbench_step(dtype: torch.dtype) -> Step:
    x, y = training_data(dtype)
    rows, zeros, ones = torch.arange(BATCH)[None], torch.zeros(1, DIM, dtype=dtype), torch.ones(1, DIM, dtype=dtype)
    data = TrainingSet(x, y, rows, torch.tensor([BATCH]), zeros, ones, zeros[:, :1], ones[:, :1])
    method = dsvi.Method(dsvi.Hyperparameters(num_inducing=NUM_INDUCING, hidden_width=DIM), "regression")
    state, batch = method.start(data, [Key("bench", "bench", 0)]), data.full()
    parameters = [parameter.requires_grad_() for parameter in state.params.values()]
    optimiser = torch.optim.Adam(parameters, lr=0.01)
    shapes = method.noise_shapes(state, BATCH, 0, 1)

    def step() -> None:
        optimiser.zero_grad()
        noise = shapes.split(torch.randn(1, shapes.size(BATCH), dtype=dtype), BATCH)
        method.loss(state, batch, noise).sum().backward()
        optimiser.step()

    return step


class Layer(DeepGPLayer):
    """Layer of the tutorial; `shared` leaves one kernel and one set of inducing inputs to all outputs."""

    def __init__(self, output_dims: int | None, linear_mean: bool, shared: bool) -> None:
        outputs = torch.Size([] if output_dims is None else [output_dims])
        kernels = torch.Size([]) if shared else outputs
        super().__init__(
            VariationalStrategy(
                self,
                torch.randn(*kernels, NUM_INDUCING, DIM),
                CholeskyVariationalDistribution(NUM_INDUCING, batch_shape=outputs),
                learn_inducing_locations=True,
            ),
            DIM,
            output_dims,
        )
        self.mean_module = gpytorch.means.LinearMean(DIM) if linear_mean else gpytorch.means.ConstantMean()
        base = gpytorch.kernels.RBFKernel(batch_shape=kernels, ard_num_dims=DIM)
        self.covar_module = gpytorch.kernels.ScaleKernel(base, batch_shape=kernels)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class TwoLayers(DeepGP):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.hidden = Layer(DIM, linear_mean=True, shared=shared)
        self.last = Layer(None, linear_mean=False, shared=shared)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.last(self.hidden(x))


def gpytorch_step(dtype: torch.dtype, shared: bool) -> Step:
    x, y = training_data(dtype)
    torch.manual_seed(0)
    model = TwoLayers(shared).to(dtype)
    bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, BATCH)
    objective = gpytorch.mlls.DeepApproximateMLL(bound)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimiser.zero_grad()
        with gpytorch.settings.num_likelihood_samples(1):
            (-objective(model(x), y[:, 0])).backward()
        optimiser.step()

    return step


def interleaved(steps: dict[str, Step]) -> dict[str, np.ndarray]:
    """Milliseconds `[REPEATS]` of each step, run in turns."""
    for step in steps.values():
        for _ in range(WARMUP):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(REPEATS):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: np.array(taken) for name, taken in times.items()}


def median_interval(sample: np.ndarray) -> tuple[float, float, float]:
    """Median and the order statistics that hold the true one in at least 95 of 100 cases (binomial, no model)."""
    ordered = np.sort(sample)
    low = max(int(binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    return float(np.median(ordered)), float(ordered[low]), float(ordered[len(ordered) - 1 - low])


def report(title: str, times: dict[str, np.ndarray], base: str) -> None:
    """A line for each step: time in milliseconds, and how many times slower than `base` (pairs of one turn)."""
    print(f"{title} (median of {REPEATS} [95 % interval])")
    for name, taken in times.items():
        milliseconds = "{:.1f} [{:.1f}, {:.1f}] ms".format(*median_interval(taken))
        ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*median_interval(taken / times[base]))
        print(f"  {name:24s} {milliseconds:28s} x {ratio}")


def bench_dsvi_step() -> None:
    for dtype in (torch.float64, torch.float32):
        # GPyTorch makes part of its constants in the default type
        torch.set_default_dtype(dtype)
        steps = {
            "gpbench": gpbench_step(dtype),
            "gpytorch, tutorial": gpytorch_step(dtype, shared=False),
            "gpytorch, shared kernel": gpytorch_step(dtype, shared=True),
        }
        report(f"two-layer DSVI step, {str(dtype).removeprefix('torch.')}", interleaved(steps), base="gpbench")


def main() -> None:
    torch.set_num_threads(1)
    bench_dsvi_step()


if __name__ == "__main__":
    main()
