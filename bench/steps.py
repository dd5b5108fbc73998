"""Steps of the methods as the training loop makes them: `python bench/steps.py`.

Time of a step beside that of GPyTorch on the same work (SVGP, SGPR, exact GP) and beside a DSVI-2 step (the rest), and
what a GPU would see of it: operations that are no views, each a launch, and how often the host waits for the device.
Steps alternate, so that a busy machine slows all alike; times are of the processor.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import torch
from bench import DIM, NUM_INDUCING, median_interval
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpbench.methods.base import SamplerMethod, TrainingSet
from gpbench.streams import Key
from gpbench.study.fitting.loop import GradientLoop, SamplerLoop

Step = Callable[[], Any]
REPEATS, WARMUP, ROWS, BLOCK = 15, 4, 4000, 500
VIEWS = {"view", "transpose", "unsqueeze", "squeeze", "expand", "slice", "select", "as_strided", "t", "permute"}
VIEWS |= {"detach", "_unsafe_view", "unbind", "split", "alias", "diagonal", "_reshape_alias", "split_with_sizes"}
METHODS: dict[str, tuple[str, int, dict[str, Any]]] = {  # row -> module, training rows, hyperparameters
    "DSVI-2": ("dsvi", ROWS, {"batch_size": 1000, "hidden_width": DIM}),
    "SVGP": ("svgp", ROWS, {"batch_size": 1000}),
    "SGPR, n 1000": ("sgpr", 1000, {}),
    "exact GP, n 1000": ("exact_gp", 1000, {}),
    "DGP-RFF": ("dgp_rff", ROWS, {"batch_size": 1000}),
    "BSGP-1": ("bsgp", ROWS, {"batch_size": 1000}),
    "BSGP-2": ("bsgp", ROWS, {"batch_size": 1000, "layers": 2, "hidden_width": DIM}),
    "AEP, batch 50, width 2": ("aep", ROWS, {"batch_size": 50, "hidden_width": 2}),
    "AEP, batch 1000, width 8": ("aep", ROWS, {"batch_size": 1000, "hidden_width": DIM}),
}


def training_set(rows: int, replicas: int, dtype: torch.dtype) -> TrainingSet:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, DIM, generator=generator, dtype=torch.float64).to(dtype)
    zeros, ones = x.new_zeros(replicas, DIM), x.new_ones(replicas, DIM)
    indices, count = torch.arange(rows).repeat(replicas, 1), torch.full((replicas,), rows)
    return TrainingSet(x, x.sin().sum(-1, keepdim=True), indices, count, zeros, ones, zeros[:, :1], ones[:, :1])


def our_step(row: str, dtype: torch.dtype, replicas: int = 1) -> Step:
    """A step of the training loop of some replicas, with its draws and checks."""
    name, rows, settings = METHODS[row]
    module = importlib.import_module(f"gpbench.methods.{name}")
    method = module.Method(module.Hyperparameters(**settings), "regression")
    loop: Any = type("Alone", (SamplerLoop if isinstance(method, SamplerMethod) else GradientLoop,), {})()
    loop.method, keys = method, [Key("bench", "bench", split) for split in range(replicas)]
    data = training_set(rows, replicas, dtype)
    loop.prepare(data, keys, 1_000_000, BLOCK)
    loop.hold(method.start(data, keys))
    if isinstance(loop, GradientLoop):
        loop.start_adam()
    steps = iter(range(1_000_000))

    def step() -> None:
        number = next(steps)
        loop.advance(*loop.draw(number), number)

    return step


class Sparse(gpytorch.models.ApproximateGP):
    """SVGP of GPyTorch's tutorial."""

    def __init__(self, inducing_inputs: Tensor) -> None:
        posterior = gpytorch.variational.CholeskyVariationalDistribution(NUM_INDUCING)
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing_inputs, posterior))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=DIM))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Exact(gpytorch.models.ExactGP):
    """Exact GP of GPyTorch's tutorial, or SGPR where there are inducing inputs."""

    def __init__(self, x: Tensor, y: Tensor, likelihood: Any, inducing_inputs: Tensor | None) -> None:
        super().__init__(x, y, likelihood)
        kernels = gpytorch.kernels
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernels.ScaleKernel(kernels.RBFKernel(ard_num_dims=DIM))
        if inducing_inputs is not None:
            self.covar_module = kernels.InducingPointKernel(self.covar_module, inducing_inputs, likelihood)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_step(row: str, dtype: torch.dtype) -> Step:
    """The same work by GPyTorch; factors by Cholesky."""
    data = training_set(METHODS[row][1], 1, dtype)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    x, y, z = data.inputs[:1000], data.targets[:1000, 0], data.inputs[:NUM_INDUCING].clone()
    if row == "SVGP":
        model: Any = Sparse(z).to(dtype)
        objective: Any = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=ROWS)
    else:
        model = Exact(x, y, likelihood, z if row.startswith("SGPR") else None).to(dtype)
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    adam = torch.optim.Adam({*model.parameters(), *likelihood.parameters()}, lr=0.01)

    def step() -> None:
        adam.zero_grad()
        with gpytorch.settings.max_cholesky_size(10_000):
            (-objective(model(x), y)).backward()
        adam.step()

    return step


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
    for _ in range(WARMUP):
        step()
    with Counter() as counter:
        step()
    return counter.operations, counter.waits


def interleaved(steps: dict[str, Step]) -> dict[str, np.ndarray]:
    """Milliseconds of the processor `[REPEATS]` of each step, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(WARMUP + REPEATS):
        for name, step in steps.items():
            start = time.thread_time()
            step()
            if repeat >= WARMUP:
                times[name].append(1e3 * (time.thread_time() - start))
    return {name: np.array(taken) for name, taken in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)  # GPyTorch makes part of its constants in the default type
        print(f"GPyTorch / ours, {str(dtype).removeprefix('torch.')} (median of {REPEATS} [95 % interval])")
        for row in ("SVGP", "SGPR, n 1000", "exact GP, n 1000"):
            times = interleaved({"ours": our_step(row, dtype), "theirs": gpytorch_step(row, dtype)})
            ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*median_interval(times["theirs"] / times["ours"]))
            print(f"  {row:26s} {ratio}", flush=True)
    torch.set_default_dtype(torch.float64)
    base = our_step("DSVI-2", torch.float64)
    print("method / DSVI-2, float64; operations (waits) a step with 1 and with 20 replicas")
    for row in METHODS:
        times = interleaved({"base": base, "step": our_step(row, torch.float64)})
        ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*median_interval(times["step"] / times["base"]))
        seen = ["{} ({})".format(*counts(our_step(row, torch.float64, replicas))) for replicas in (1, 20)]
        print(f"  {row:26s} {ratio:22s} {'  '.join(seen)}", flush=True)


if __name__ == "__main__":
    main()
