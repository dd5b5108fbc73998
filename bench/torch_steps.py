"""The work of `steps.py` by GPyTorch, laid out as in its tutorials, and DGP-RFF by the least that PyTorch needs."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import gpytorch
import torch
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from timing import DIM, NUM_INDUCING, Step
from torch import Tensor

RFF_WIDTHS, RFF_FREQUENCIES = (3, 1), 100


def kernel(base: Any, shape: torch.Size | None = None) -> Any:
    """An RBF kernel that starts where ours do: at its own start, products in single precision are slow with numbers
    below the normal ones."""
    base.lengthscale = DIM**0.5
    return gpytorch.kernels.ScaleKernel(base, batch_shape=shape)


def rows(count: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs `[count, inputs]` and targets `[count, 1]`."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, inputs, generator=generator, dtype=torch.float64).to(dtype)
    return x, x.sin().sum(-1, keepdim=True)


class Sparse(gpytorch.models.ApproximateGP):
    """SVGP of GPyTorch's tutorial."""

    def __init__(self, inducing_inputs: Tensor) -> None:
        posterior = CholeskyVariationalDistribution(len(inducing_inputs))
        super().__init__(VariationalStrategy(self, inducing_inputs, posterior, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel(gpytorch.kernels.RBFKernel(ard_num_dims=DIM))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Exact(gpytorch.models.ExactGP):
    """Exact GP of GPyTorch's tutorial, or SGPR where there are inducing inputs."""

    def __init__(self, x: Tensor, y: Tensor, likelihood: Any, inducing_inputs: Tensor | None) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel(gpytorch.kernels.RBFKernel(ard_num_dims=DIM))
        if inducing_inputs is not None:
            self.covar_module = gpytorch.kernels.InducingPointKernel(self.covar_module, inducing_inputs, likelihood)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Layer(DeepGPLayer):
    """Layer of the tutorial; `shared` leaves one kernel and one set of inducing inputs to all outputs."""

    def __init__(self, output_dims: int | None, linear_mean: bool, shared: bool, num_inducing: int) -> None:
        outputs = torch.Size([] if output_dims is None else [output_dims])
        kernels = torch.Size([]) if shared else outputs
        super().__init__(
            VariationalStrategy(
                self,
                torch.randn(*kernels, num_inducing, DIM),
                CholeskyVariationalDistribution(num_inducing, batch_shape=outputs),
                learn_inducing_locations=True,
            ),
            DIM,
            output_dims,
        )
        self.mean_module = gpytorch.means.LinearMean(DIM) if linear_mean else gpytorch.means.ConstantMean()
        base = gpytorch.kernels.RBFKernel(batch_shape=kernels, ard_num_dims=DIM)
        self.covar_module = kernel(base, kernels)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class TwoLayers(DeepGP):
    def __init__(self, shared: bool, num_inducing: int) -> None:
        super().__init__()
        self.hidden = Layer(DIM, linear_mean=True, shared=shared, num_inducing=num_inducing)
        self.last = Layer(None, linear_mean=False, shared=shared, num_inducing=num_inducing)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.last(self.hidden(x))


def training(objective: Any, model: Any, x: Tensor, y: Tensor, *settings: Any) -> Step:
    """A step of Adam on all that model and likelihood train."""
    model.train()
    adam = torch.optim.Adam(set(objective.parameters()), lr=0.01)

    def step() -> None:
        adam.zero_grad()
        with settings[0] if settings else nullcontext():
            (-objective(model(x), y)).backward()
        adam.step()

    return step


def dsvi(dtype: torch.dtype, shared: bool, num_inducing: int = NUM_INDUCING, batch: int = 1000) -> Step:
    (x, y), model = rows(batch, DIM, dtype), TwoLayers(shared, num_inducing).to(dtype)
    bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, batch)
    objective = gpytorch.mlls.DeepApproximateMLL(bound)
    return training(objective, model, x, y[:, 0], gpytorch.settings.num_likelihood_samples(1))


def predict(dtype: torch.dtype) -> Step:
    """Means and variances of y at 1,000 rows, 100 samples of the hidden layer."""
    (x, _), model = rows(1000, DIM, dtype), TwoLayers(True, NUM_INDUCING).to(dtype).eval()

    def step() -> None:
        with torch.no_grad(), gpytorch.settings.num_likelihood_samples(100):
            y = model.likelihood(model(x))
            assert y.mean.shape == y.variance.shape == (100, 1000)

    return step


def svgp(dtype: torch.dtype, num_inducing: int = NUM_INDUCING, batch: int = 1000) -> Step:
    (x, y), likelihood = rows(batch, DIM, dtype), gpytorch.likelihoods.GaussianLikelihood()
    model = Sparse(x[:num_inducing].clone()).to(dtype)
    return training(gpytorch.mlls.VariationalELBO(likelihood, model, batch), model, x, y[:, 0])


def exact(dtype: torch.dtype, sparse: bool, cholesky: bool = True) -> Step:
    """SGPR or an exact GP, by Cholesky factors or, as GPyTorch does beyond 800 rows, by conjugate gradients."""
    (x, y), likelihood = rows(1000, DIM, dtype), gpytorch.likelihoods.GaussianLikelihood()
    model = Exact(x, y[:, 0], likelihood, x[:NUM_INDUCING].clone() if sparse else None).to(dtype)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return training(objective, model, x, y[:, 0], gpytorch.settings.max_cholesky_size(10_000 if cholesky else 800))


def looped(steps: list[Step]) -> Step:
    """One step of each model, one after the other."""

    def step() -> None:
        for one in steps:
            one()

    return step


def rff(dtype: torch.dtype, inputs: int) -> Step:
    """DGP-RFF (two layers, RBF features, fixed draws of the frequencies) without streams, checks and replicas."""
    x, y = rows(1000, inputs, dtype)
    layers, width = [], inputs
    for outputs in RFF_WIDTHS:
        starts = [torch.full((width, 1), 0.5 * math.log(width)), torch.zeros(())]  # log lengthscale, outputscale
        for shape in ((2 * RFF_FREQUENCIES, outputs), (width, RFF_FREQUENCIES)):  # means and log variances of W, Omega
            starts += [0.01 * torch.randn(shape), torch.full(shape, math.log(1e-4))]
        parts = [start.to(dtype).requires_grad_() for start in starts]
        layers.append((parts, torch.randn(width, RFF_FREQUENCIES, dtype=dtype)))
        width = outputs
    log_noise = torch.tensor(-2.0, dtype=dtype, requires_grad=True)
    adam = torch.optim.Adam([log_noise, *(part for parts, _ in layers for part in parts)], lr=0.01)

    def kl(mean: Tensor, log_variance: Tensor, prior: Tensor | float) -> Tensor:
        gap = log_variance - prior
        return 0.5 * (gap.exp() + mean.square() * torch.as_tensor(-prior).exp() - 1 - gap).sum()

    def step() -> None:
        adam.zero_grad()
        f, total = x, torch.zeros((), dtype=dtype)
        for (scale, output, mean, log_variance, frequency, frequency_log_variance), noise in layers:
            angle = f @ (frequency + (0.5 * frequency_log_variance).exp() * noise)
            phi = (output.exp() / RFF_FREQUENCIES).sqrt() * torch.cat([angle.cos(), angle.sin()], -1)
            f = phi @ (mean + (0.5 * log_variance).exp() * torch.randn_like(mean))
            total = total + kl(mean, log_variance, 0.0) + kl(frequency, frequency_log_variance, -2 * scale)
        quadratic = (y - f).square() / log_noise.exp()
        (total + 0.5 * (quadratic + log_noise + math.log(2 * math.pi)).sum()).backward()
        adam.step()

    return step
