"""SGPR and FITC, which share their algebra."""

import gp_cases as cases
import gpytorch
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from gpbench.gp import linalg
from gpbench.methods import exact_gp, fitc, sgpr, svgp
from gpbench.methods.base import State
from gpbench.methods.training_rows import Batch

NO_NOISE = torch.empty(1, 0, dtype=torch.float64)
BOTH = pytest.mark.parametrize("module", [sgpr, fitc], ids=["sgpr", "fitc"])
# golden: closed forms of the toy, six decimals
FITC_EVIDENCE = -4.699464
PREDICTIONS = {sgpr: (0.342187, 0.145115), fitc: (0.311039, 0.156836)}
POSTERIORS = {  # means and sds of u
    sgpr: ([-0.991832, 0, 0.991832], [0.195442, 0.174476, 0.195442]),
    fitc: ([-0.901548, 0, 0.901548], [0.213752, 0.207580, 0.213752]),
}
TOY = {"lengthscale": cases.LENGTHSCALE, "outputscale": cases.OUTPUTSCALE, "noise_variance": cases.NOISE_VARIANCE}


def method(module, **settings) -> sgpr.Method:
    return module.Method(module.Hyperparameters(**{"num_inducing": 6} | settings), "regression")


def toy(module, z: torch.Tensor = cases.Z) -> tuple[sgpr.Method, State]:
    ours = method(module, num_inducing=len(z), jitter=1e-14, **TOY)
    state = ours.start(cases.training_set(cases.X, cases.Y), cases.keys(1))
    state.params["inducing_inputs"] = z[None].clone()
    return ours, state


def objective(ours: sgpr.Method, state: State) -> float:
    return -float(ours.loss(state, Batch(*(state.buffers[name] for name in ("x", "y", "mask"))), NO_NOISE))


def random_problem(seed: int, num_inducing: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict]:
    """Inputs, two targets, inducing inputs and scales."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(9, 2)), rng.normal(size=(num_inducing, 2))
    y = np.column_stack([np.sin(x.sum(1)), np.cos(2 * x[:, 0])]) + 0.1 * rng.normal(size=(9, 2))
    scales = dict(zip(TOY, rng.uniform([0.5, 0.5, 0.05], [2.0, 2.0, 0.5]), strict=True))
    return *map(torch.as_tensor, (x, y, z)), scales


def solved(module, seed: int, z: torch.Tensor | None = None) -> tuple[sgpr.Method, State]:
    x, y, inducing, scales = random_problem(seed)
    inducing = inducing if z is None else z
    ours = method(module, num_inducing=len(inducing), jitter=1e-12, **scales)
    state = ours.start(cases.training_set(x, y), cases.keys(1))
    state.params["inducing_inputs"] = inducing[None].clone()
    return ours, state


def evidence(seed: int) -> float:
    """Of the exact GP."""
    x, y, _, scales = random_problem(seed)
    ours = exact_gp.Method(exact_gp.Hyperparameters(jitter=1e-14, **scales), "regression", num_targets=2)
    data = cases.training_set(x, y)
    return -float(ours.loss(ours.start(data, cases.keys(1)), data.full(), NO_NOISE))


def rbf(a: np.ndarray, b: np.ndarray, scales: dict) -> np.ndarray:
    square = ((a[:, None] - b[None]) ** 2).sum(-1)
    return scales["outputscale"] * np.exp(-0.5 * square / scales["lengthscale"] ** 2)


def dense(module, seed: int, test: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Objective, and mean and variance of f at test rows, from N x N matrices with explicit inverses."""
    x, y, z, scales = random_problem(seed)
    x, y, z = x.numpy(), y.numpy(), z.numpy()
    kzz, kzx, kzt = rbf(z, z, scales), rbf(z, x, scales), rbf(z, test, scales)
    rest = np.diag(rbf(x, x, scales) - kzx.T @ np.linalg.solve(kzz, kzx))
    variance = scales["noise_variance"] + (rest if module is fitc else np.zeros(len(x)))
    covariance = kzx.T @ np.linalg.solve(kzz, kzx) + np.diag(variance)
    value = sum(multivariate_normal.logpdf(target, cov=covariance) for target in y.T)
    if module is sgpr:
        value -= 2 * rest.sum() / (2 * scales["noise_variance"])
    cross = kzt.T @ np.linalg.solve(kzz, kzx)
    mean = cross @ np.linalg.solve(covariance, y)
    # Q_** - Q_*x (Q + Lambda)^-1 Q_x* is what y tells of u; the rest of k_** it does not touch
    return value, mean, scales["outputscale"] - np.diag(cross @ np.linalg.solve(covariance, cross.T))


def test_titsias_bound_of_the_toy():
    assert objective(*toy(sgpr)) == pytest.approx(cases.TITSIAS_BOUND, abs=1e-6)


def test_fitc_evidence_of_the_toy():
    assert objective(*toy(fitc)) == pytest.approx(FITC_EVIDENCE, abs=1e-6)


@BOTH
def test_predictions_of_the_toy(module):
    ours, state = toy(module)
    mean, variance = ours.marginals(state, cases.X.new_tensor([[[0.25]]]))
    assert (float(mean), float(variance)) == pytest.approx(PREDICTIONS[module], abs=1e-6)


@BOTH
def test_posterior_of_the_toy_at_its_inducing_inputs(module):
    ours, state = toy(module)
    mean, variance = ours.marginals(state, cases.Z[None])
    golden_mean, golden_sd = POSTERIORS[module]
    np.testing.assert_allclose(mean.flatten(), golden_mean, atol=1e-6)
    np.testing.assert_allclose(variance.sqrt().flatten(), golden_sd, atol=1e-6)


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_objective_and_predictions_are_the_dense_ones(module, seed):
    test = np.random.default_rng(9).normal(size=(5, 2))
    value, mean, variance = dense(module, seed, test)
    ours, state = solved(module, seed)
    ours_mean, ours_variance = ours.marginals(state, torch.as_tensor(test)[None])
    assert objective(ours, state) == pytest.approx(value, rel=1e-7)
    np.testing.assert_allclose(ours_mean[0], mean, atol=1e-7)
    np.testing.assert_allclose(ours_variance[0, :, 0], variance, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_bound_is_below_the_evidence_and_rises_with_the_inducing_inputs(seed):
    x, _, z, _ = random_problem(seed, num_inducing=6)
    bounds = [objective(*solved(sgpr, seed, z[:count])) for count in range(1, 7)]
    assert bounds == sorted(bounds)
    assert bounds[-1] < evidence(seed)
    assert objective(*solved(sgpr, seed, x)) == pytest.approx(evidence(seed), abs=1e-6)


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_with_all_inputs_inducing_it_is_the_exact_gp(module, seed):
    x, y, _, scales = random_problem(seed)
    ours, state = solved(module, seed, x)
    exact = exact_gp.Method(exact_gp.Hyperparameters(jitter=1e-14, **scales), "regression", num_targets=2)
    test = torch.as_tensor(np.random.default_rng(9).normal(size=(1, 5, 2)))
    expected = exact.predict(exact.start(cases.training_set(x, y), cases.keys(1)), test, cases.keys(1)[0])
    predictive = ours.predict(state, test, cases.keys(1)[0])
    assert objective(ours, state) == pytest.approx(evidence(seed), abs=1e-6)
    np.testing.assert_allclose(predictive.mean(), expected.mean(), atol=1e-6)
    np.testing.assert_allclose(predictive.variance(), expected.variance(), atol=1e-6)


def test_sgpr_is_svgp_at_its_best_q():
    x, y = cases.problem("regression")
    data = cases.training_set(x, y)
    ours = method(sgpr, lengthscale=1.0)
    state = ours.start(data, cases.keys(1))
    a = ours.features(state.params, x[None])
    precision = torch.eye(6) + a @ a.mT / 0.1
    other = svgp.Method(svgp.Hyperparameters(num_inducing=6, lengthscale=1.0, noise_variance=0.1), "regression")
    twin = other.start(data, cases.keys(1))
    twin.params["layer1.inducing_inputs"] = state.params["inducing_inputs"]
    twin.params["layer1.whitened_mean"] = torch.linalg.solve(precision, a @ y / 0.1)
    twin.params["layer1.whitened_chol"] = torch.linalg.cholesky(torch.linalg.inv(precision))[:, None]
    best = -float(cases.flat_loss(other, twin, data.full(), NO_NOISE))
    assert objective(ours, state) == pytest.approx(best, rel=1e-9)
    one, another = (m.predict(s, x[None], cases.keys(1)[0]) for m, s in ((ours, state), (other, twin)))
    np.testing.assert_allclose(one.mean(), another.mean(), atol=1e-9)
    np.testing.assert_allclose(one.variance(), another.variance(), atol=1e-9)


class Reference(gpytorch.models.ExactGP):
    """GPyTorch's SGPR: its covariance is Q in training, with a loss for the trace, and Q + diag(K - Q) afterwards."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, scales: dict) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.InducingPointKernel(base, z.clone(), self.likelihood)
        self.double()
        base.base_kernel.lengthscale, base.outputscale = scales["lengthscale"], scales["outputscale"]
        self.likelihood.noise = scales["noise_variance"]

    def forward(self, x: torch.Tensor):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("seed", range(3))
def test_objectives_and_the_gradient_in_the_inducing_inputs_are_gpytorchs(seed):
    x, y, z, scales = random_problem(seed)
    reference = Reference(x, y[:, 0], z, scales)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(reference.likelihood, reference)
    bound = mll(reference(x), y[:, 0]) * len(x)
    bound.backward()
    ours, data = method(sgpr, num_inducing=4, jitter=1e-12, **scales), cases.training_set(x, y[:, :1])
    state = ours.start(data, cases.keys(1))
    state.params["inducing_inputs"] = z[None].clone()
    loss, gradient = cases.loss_and_gradient(ours, state, data.full(), NO_NOISE)
    assert -float(loss) == pytest.approx(bound.item(), rel=1e-6)
    expected = reference.covar_module.inducing_points.grad
    torch.testing.assert_close(-gradient["inducing_inputs"][0], expected, rtol=1e-5, atol=1e-6)
    reference.covar_module.eval()
    corrected = gpytorch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), reference.covar_module(x))
    free = -float(method(fitc, num_inducing=4, jitter=1e-12, **scales).loss(state, data.full(), NO_NOISE))
    assert free == pytest.approx(reference.likelihood(corrected).log_prob(y[:, 0]).item(), rel=1e-6)


@BOTH
def test_gradient_agrees_with_finite_differences(module):
    ours = method(module, num_inducing=3)
    data = cases.training_set(*cases.problem("regression", n=8), [list(range(8)), list(range(7))])
    state = cases.perturbed(ours.start(data, cases.keys(2)))
    names = list(state.params)

    def loss(*values):
        return ours.loss(State(dict(zip(names, values, strict=True))), data.full(), NO_NOISE)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()], atol=1e-4)


@BOTH
def test_batched_is_looped_and_padding_changes_nothing(module):
    cases.assert_batched_is_looped(method(module), "regression")


@BOTH
def test_nan_stays_in_its_replica(module):
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(module), "regression")
    assert {(e["name"], e["replica"], e["failed"]) for e in linalg.events()} == {(sgpr.NAME, 1, True)}


@BOTH
def test_without_ard_there_is_one_lengthscale(module):
    data = cases.training_set(*cases.problem("regression"))
    one, many = (method(module, ard=ard) for ard in (False, True))
    states = [ours.start(data, cases.keys(1)) for ours in (one, many)]
    assert [state.params["log_lengthscale"].shape[1] for state in states] == [1, 3]
    assert objective(one, states[0]) == pytest.approx(objective(many, states[1]), rel=1e-12)


AWKWARD = {
    "fewer rows than inducing inputs": lambda x: x[:4],
    "a constant column": lambda x: torch.cat([x, torch.ones(len(x), 1).to(x)], 1),
    "every row four times": lambda x: x[:10].repeat(4, 1),
}


@BOTH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("what", AWKWARD)
def test_it_learns_from_awkward_inputs(module, what, dtype):
    x = AWKWARD[what](cases.problem("regression", dtype=dtype)[0])
    y = torch.sin(x.sum(-1, keepdim=True))
    state, losses = cases.train(method(module, num_inducing=20), cases.training_set(x, y), 40)
    assert losses[-1] < losses[0]
    predictive = method(module, num_inducing=20).predict(state, x[None], cases.keys(1)[0])
    assert predictive.is_finite()
    assert np.mean((predictive.mean() - y.numpy()) ** 2) < 0.5 * np.var(y.numpy())
