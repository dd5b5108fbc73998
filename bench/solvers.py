"""What linear solvers cost: `python bench/solvers.py [product|gradient [DATA SET]|protein|memory]`; all but the third
without an argument.

product    a product of the kernel matrix of 10,000 rows of 8 columns with 8 vectors, beside products of large matrices
           with as many floating-point operations (distances and vectors; exponentials count for nothing), and beside
           that of a matrix that is stored
gradient   a stochastic gradient of the marginal likelihood on rows like those of protein, by gp_pcg and by GPyTorch's
           conjugate gradients: the same residual, probes and rank of the preconditioner; and by a Cholesky factor; on
           rows of a prepared data set, standardised, where one is named
protein    such a gradient on 45,730 rows beside GPyTorch with the kernels of KeOps, which store no matrix either;
           half an hour, after `pip install pykeops==2.3`
memory     peak memory of a process that takes such a gradient, at the sizes of power and protein
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import gpytorch
import torch
from timing import Step, interleaved, interval_text
from torch import Tensor

from gpbench import config, places
from gpbench.data import table
from gpbench.gp.kernels import Kernel
from gpbench.methods import exact_gp, gp_pcg
from gpbench.methods.base import Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.solvers import quadrature
from gpbench.solvers.products import KernelProduct

ROWS, VECTORS, TURNS = 10_000, 8, 11
GRADIENT_ROWS, GRADIENT_TURNS = 6_000, 3
PROBES, RANK, TOLERANCE = 4, 100, 1e-4
SIZES = {"power": (9_568, 4), "protein": (45_730, 9)}
ITERATIONS = 3
"""Of conjugate gradients where memory is measured, which no iteration adds to."""


def problem(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Normal inputs, and a function of them with noise of variance .1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    return x, torch.sin(x.sum(1, keepdim=True) / 2) + 0.1**0.5 * noise


def bench_product() -> None:
    x, _ = problem(ROWS, 8)
    values = {"lengthscale": torch.full((8,), 8**0.5).double(), "outputscale": torch.ones(()).double()}
    product, v = KernelProduct(Kernel("rbf", values), x, 0.1), torch.randn(ROWS, VECTORS).double()
    size = min(1024, ROWS)
    square = torch.randn(size, size).double()
    # of distances (8 columns, and two for squares and the outputscale) and of the product
    count = 2 * ROWS**2 * (8 + 2 + VECTORS)
    stored = product.rows(slice(None))
    steps = {"product": lambda: product(v), "matrices": lambda: square @ square, "stored": lambda: stored @ v}
    times = interleaved(steps, TURNS, warm_up=1)
    ideal, ours = times["matrices"] * count / (2 * size**3), times["product"]
    print(
        f"product, {ROWS} rows: {interval_text(ours)} ms; of a stored matrix x {interval_text(times['stored'] / ours)}"
    )
    print(
        f"as many operations of large matrices {interval_text(ideal)} ms: {interval_text(ideal / ours)} of their rate"
    )


def prepared(dataset: str) -> tuple[Tensor, Tensor]:
    """Rows of a prepared data set by chance, inputs and target standardised over them."""
    where = places.find()
    data = table.load(where.prepared_file(dataset), config.compose(where.conf, "dataset", dataset).md5)
    rows = torch.randperm(len(data.inputs), generator=torch.Generator().manual_seed(0))[:GRADIENT_ROWS]
    both = (torch.as_tensor(part).double()[rows] for part in (data.inputs, data.targets))
    x, y = ((part - part.mean(0)) / part.std(0) for part in both)
    return x, y


def params(columns: int, like: Tensor) -> dict[str, Tensor]:
    return {
        "log_lengthscale": like.new_full((1, columns), 0.5 * math.log(columns)),
        "log_outputscale": like.new_zeros(1),
        "log_noise_variance": like.new_full((1,), math.log(0.1)),
    }


def our_gradient(x: Tensor, y: Tensor, **settings: object) -> Step:
    """Surrogate and its gradient; residuals are relative to vectors of norm sqrt(n), as those of GPyTorch."""
    rank = RANK / math.sqrt(len(x))
    hyper = gp_pcg.Hyperparameters(**{"tolerance": TOLERANCE, "rank": rank, "num_probes": PROBES} | settings)
    method, generator = gp_pcg.Method(hyper, "regression"), torch.Generator().manual_seed(1)

    def step() -> gp_pcg.Estimate:
        leaves = {name: value.requires_grad_() for name, value in params(x.shape[1], x).items()}
        estimate = method.estimate(leaves, x, y, quadrature.rademacher(len(x), PROBES, generator), generator)
        torch.autograd.grad(estimate.surrogate, list(leaves.values()))
        return estimate

    return step


def gpytorch_gradient(x: Tensor, y: Tensor, kernel: type[gpytorch.kernels.Kernel] = gpytorch.kernels.RBFKernel) -> Step:
    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y[:, 0], gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel(ard_num_dims=x.shape[1]))

        def forward(self, rows: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(rows), self.covar_module(rows))

    model = Model().double()
    model.covar_module.base_kernel.lengthscale = x.shape[1] ** 0.5
    model.covar_module.outputscale, model.likelihood.noise = 1.0, 0.1
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

    def step() -> None:
        model.zero_grad()
        with (
            gpytorch.settings.max_cholesky_size(1),
            gpytorch.settings.cg_tolerance(TOLERANCE),
            gpytorch.settings.max_cg_iterations(1000),
            gpytorch.settings.num_trace_samples(PROBES),
            gpytorch.settings.max_preconditioner_size(RANK),
            gpytorch.settings.min_preconditioning_size(0),
        ):
            objective(model(x), y[:, 0]).backward()

    return step


def dense_gradient(x: Tensor, y: Tensor) -> Step:
    method, one = exact_gp.Method(exact_gp.Hyperparameters(), "regression"), torch.ones(1, len(x)).double()

    def step() -> None:
        leaves = {name: value.requires_grad_() for name, value in params(x.shape[1], x).items()}
        loss = method.loss(State(leaves), Batch(x[None], y[None], one), Noise(one[:, :0], one[:, :0]))
        torch.autograd.grad(loss.sum(), list(leaves.values()))

    return step


def bench_gradient(dataset: str = "") -> None:
    x, y = prepared(dataset) if dataset else problem(GRADIENT_ROWS, 9)
    steps = {
        "GPyTorch": gpytorch_gradient(x, y),
        "gp_pcg": our_gradient(x, y),
        "gp_pcg, pivoted": our_gradient(x, y, preconditioner="pivoted_cholesky"),
        "gp_pcg, 4 sqrt(n)": our_gradient(x, y, rank=4.0),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = interleaved(steps, GRADIENT_TURNS, warm_up=0)
    times |= interleaved({"Cholesky": dense_gradient(x, y)}, 1, warm_up=0)
    which = f"gradient, {len(x)} rows of {dataset or f'{x.shape[1]} columns'}"
    print(f"{which}: ms, and times that of GPyTorch; {GRADIENT_TURNS} turns (range)")
    for name, taken in times.items():
        print(f"  {name:20s} {interval_text(taken):28s} x {interval_text(taken / times['GPyTorch'])}")


def keops_kernel() -> type[gpytorch.kernels.Kernel]:
    """Kernel of products by KeOps, which fails for the single rows that pivoted Cholesky asks for: those are dense."""
    from gpytorch.kernels.keops import rbf_kernel

    lazy = rbf_kernel._covar_func

    def covariance(left: Tensor, right: Tensor, **settings: object) -> object:
        if 1 in (left.shape[-2], right.shape[-2]):
            return (-0.5 * (left[..., :, None, :] - right[..., None, :, :]).square().sum(-1)).exp()
        return lazy(left, right, **settings)

    rbf_kernel._covar_func = covariance
    return rbf_kernel.RBFKernel


def bench_protein() -> None:
    x, y = problem(*SIZES["protein"])
    steps = {"GPyTorch, KeOps": gpytorch_gradient(x, y, keops_kernel()), "gp_pcg": our_gradient(x, y)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = interleaved(steps, 1, warm_up=0)
    print(f"gradient, {len(x)} rows of 9 columns: s, and times that of GPyTorch with KeOps; one turn")
    for name, taken in times.items():
        print(f"  {name:20s} {taken.mean() / 1e3:8.0f} x {(taken / times['GPyTorch, KeOps']).mean():.2f}")


def bench_memory() -> None:
    for name in SIZES:
        command = [sys.executable, str(Path(__file__)), "peak", name]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="")


def bench_peak(name: str = "power") -> None:
    rows, columns = SIZES[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    our_gradient(*problem(rows, columns), rank=4.0, cap=ITERATIONS)()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name}: peak memory {peak:.2f} GB at {rows} rows, of which {before:.2f} are the libraries")


BENCHES = {"product": bench_product, "gradient": bench_gradient, "protein": bench_protein}
BENCHES |= {"memory": bench_memory, "peak": bench_peak}

if __name__ == "__main__":
    torch.set_num_threads(1)
    name, *arguments = sys.argv[1:] or [""]
    if name:
        BENCHES[name](*arguments)
    else:
        for one in ("product", "gradient", "memory"):
            BENCHES[one]()
