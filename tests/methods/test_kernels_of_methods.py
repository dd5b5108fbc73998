"""Exact and sparse GPs with other kernels than RBF, some beside GPyTorch at the same hyperparameters."""

import dataclasses

import gp_cases as cases
import gpytorch
import numpy as np
import pytest
import torch

from gpbench.hyper import KERNELS
from gpbench.methods import dsvi, exact_gp, fitc, fitc_svgp, ipvi_dgp, sgpr, svgp
from gpbench.methods.base import State

NO_NOISE = torch.empty(1, 0, dtype=torch.float64)
N, D, NUM_TEST = 30, 2, 8
LENGTHSCALE, OUTPUTSCALE, NOISE = [0.7, 1.4], 1.3, 0.05
NU = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
FORMULAS = [*NU, "matern52 + linear", "matern52 * periodic"]
EVERY = pytest.mark.parametrize("formula", FORMULAS)


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training inputs and targets, test inputs, inducing inputs."""
    rng = np.random.default_rng(0)
    x, test, z = (torch.as_tensor(rng.normal(size=(rows, D))) for rows in (N, NUM_TEST, 7))
    y = torch.sin(2 * x[:, :1]) + 0.3 * x[:, 1:] + 0.1 * torch.as_tensor(rng.normal(size=(N, 1)))
    return x, y, test, z


def theirs(formula: str) -> gpytorch.kernels.Kernel:
    """GPyTorch's kernel with parameters as `given` has them."""
    gpk, lengthscale = gpytorch.kernels, torch.tensor([LENGTHSCALE]).double()

    def part(name: str) -> gpytorch.kernels.Kernel:
        if name == "linear":
            made = gpk.LinearKernel(ard_num_dims=D).double()
            made.variance = (1 / lengthscale.square())[:, None]
        elif name == "periodic":
            made = gpk.PeriodicKernel(ard_num_dims=D).double()
            made.lengthscale, made.period_length = lengthscale.square(), torch.tensor([[1.5, 1.5]])  # theirs is squared
        else:
            made = gpk.MaternKernel(nu=NU[name], ard_num_dims=D).double()
            made.lengthscale = lengthscale
        return made

    def scaled(base: gpytorch.kernels.Kernel) -> gpytorch.kernels.Kernel:
        made = gpk.ScaleKernel(base).double()
        made.outputscale = OUTPUTSCALE
        return made

    terms = []
    for term in formula.split("+"):
        first, *others = (part(name.strip()) for name in term.split("*"))
        for other in others:
            first = first * other
        terms.append(scaled(first))
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def given(state: State) -> State:
    """The state with the hyperparameters of `theirs`."""
    values = {"log_lengthscale": [LENGTHSCALE], "log_outputscale": [OUTPUTSCALE], "log_period": [[1.5, 1.5]]}
    values["log_noise_variance"] = [NOISE]
    for name, value in state.params.items():
        for ending, number in values.items():
            if name.endswith(ending):
                state.params[name] = torch.tensor(number).to(value).log()
    return state


def started(module, formula: str, **settings):
    x, y, _, z = data()
    ours = module.Method(module.Hyperparameters(kernel=formula, jitter=1e-12, **settings), "regression")
    state = given(ours.start(cases.training_set(x, y), cases.keys(1)))
    for name in state.params:
        if name.endswith("inducing_inputs"):
            state.params[name] = z[None].clone()
    return ours, state


class Reference(gpytorch.models.ExactGP):
    def __init__(self, formula: str, z: torch.Tensor | None = None) -> None:
        x, y, *_ = data()
        super().__init__(x, y[:, 0], gpytorch.likelihoods.GaussianLikelihood().double())
        self.likelihood.noise = NOISE
        base = theirs(formula)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = (
            base if z is None else gpytorch.kernels.InducingPointKernel(base, z.clone(), self.likelihood)
        )

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def objective(self) -> float:
        self.train()
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self)
        return float(mll(self(self.train_inputs[0]), self.train_targets)) * N

    def predictive(self, test: torch.Tensor):
        self.eval()
        self.likelihood.eval()
        return self.likelihood(self(test))


def assert_predictions_agree(ours, state: State, expected, missing: float | torch.Tensor = 0.0) -> None:
    """missing: variance that GPyTorch leaves out."""
    predicted = ours.predict(state, data()[2][None], cases.keys(1)[0])
    np.testing.assert_allclose(predicted.mean()[:, 0], expected.mean.numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(predicted.variance()[:, 0], (expected.variance + missing).numpy(), rtol=0, atol=1e-6)


@EVERY
def test_exact_gps_are_gpytorchs(formula):
    ours, state = started(exact_gp, formula)
    reference, full = Reference(formula), cases.training_set(*data()[:2]).full()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        assert -float(ours.loss(state, full, NO_NOISE)) == pytest.approx(reference.objective(), rel=1e-6)
        assert_predictions_agree(ours, state, reference.predictive(data()[2]))


@EVERY
def test_sgpr_and_fitc_are_gpytorchs(formula):
    """GPyTorch's SGPR predicts without the variance k_** - q_** that u leaves, or else as FITC does."""
    x, y, test, z = data()
    ours, state = started(sgpr, formula, num_inducing=len(z))
    reference, full = Reference(formula, z), cases.training_set(x, y).full()
    fast = gpytorch.settings.fast_computations(False, False, False)
    with torch.no_grad(), fast, gpytorch.settings.cholesky_jitter(double_value=1e-12):
        assert -float(ours.loss(state, full, NO_NOISE)) == pytest.approx(reference.objective(), rel=1e-6)
        with gpytorch.settings.sgpr_diagonal_correction(False):
            expected = reference.predictive(test)
            left = theirs(formula)(test, diag=True) - reference.covar_module(test).to_dense().diagonal()
            assert_predictions_agree(ours, state, expected, left)
        reference = Reference(formula, z)
        assert_predictions_agree(*started(fitc, formula, num_inducing=len(z)), reference.predictive(test))


class ReferenceSVGP(gpytorch.models.ApproximateGP):
    def __init__(self, formula: str, state: State) -> None:
        layer = {name.removeprefix("layer1."): value[0] for name, value in state.params.items()}
        z = layer["inducing_inputs"]
        q = gpytorch.variational.CholeskyVariationalDistribution(len(z)).double()
        exact = {"learn_inducing_locations": False, "jitter_val": 1e-12}
        strategy = gpytorch.variational.VariationalStrategy(self, z, q, **exact)
        super().__init__(strategy)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), theirs(formula)
        strategy.variational_params_initialized.fill_(1)
        q.variational_mean.data = layer["whitened_mean"][:, 0]
        q.chol_variational_covar.data = layer["whitened_chol"][0]

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@EVERY
def test_svgp_is_gpytorchs(formula):
    x, y, test, z = data()
    ours, state = started(svgp, formula, num_inducing=len(z))
    rng = np.random.default_rng(1)
    state.params["layer1.whitened_mean"] = torch.as_tensor(rng.normal(size=(1, len(z), 1)))
    root = np.tril(0.3 * rng.normal(size=(len(z), len(z)))) + 0.5 * np.eye(len(z))
    state.params["layer1.whitened_chol"] = torch.as_tensor(root)[None, None]
    reference, likelihood = ReferenceSVGP(formula, state), gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    full = cases.training_set(x, y).full()
    with torch.no_grad(), gpytorch.settings.cholesky_jitter(double_value=1e-12):
        elbo = gpytorch.mlls.VariationalELBO(likelihood, reference, N)(reference(x), y[:, 0]) * N
        assert -float(cases.flat_loss(ours, state, full, NO_NOISE)) == pytest.approx(float(elbo), rel=1e-6)
        reference.eval()
        assert_predictions_agree(ours, state, likelihood.eval()(reference(test)))


@pytest.mark.parametrize("formula", [*KERNELS[1:], FORMULAS[-2]])
@pytest.mark.parametrize("module", [exact_gp, sgpr, fitc, svgp, dsvi, fitc_svgp, ipvi_dgp])
@pytest.mark.slow
def test_batched_is_looped_under_every_kernel(module, formula):
    """In training and prediction, with one lengthscale for all inputs, and two layers where there are layers."""
    sizes = {"num_inducing": 6, "layers": 2, "samples_test": 4}
    known = {field.name for field in dataclasses.fields(module.Hyperparameters)}
    settings = {name: size for name, size in sizes.items() if name in known} | {"kernel": formula, "ard": False}
    cases.assert_batched_is_looped(module.Method(module.Hyperparameters(**settings), "regression"), "regression")


def test_posterior_functions_are_drawn_under_other_kernels():
    """Their mean is that of the marginals."""
    draws, (x, y, test, _) = 400, data()
    settings = {"kernel": "matern32 + arccosine * linear", "num_inducing": 6, "samples_test": draws}
    ours = svgp.Method(svgp.Hyperparameters(**settings), "regression")
    state = cases.perturbed(ours.start(cases.training_set(x, y), cases.keys(1)))
    (f,) = ours.functions(state, test[None], cases.keys(1)[0])
    mean, variance = (moment[0, 0] for moment in ours.marginals(state, test[None], cases.keys(1)[0]))
    assert ((f[:, 0].mean(0) - mean).abs() < 4.5 * (variance / draws).sqrt()).all()
