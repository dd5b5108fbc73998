import math

import gp_cases as cases
import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import GridInterpolationKernel, RBFKernel, ScaleKernel

from gpbench.errors import UserError
from gpbench.gp import structured
from gpbench.methods import exact_gp, kiss_gp
from gpbench.places import Places
from gpbench.study.planning import resolve
from projects import REPOSITORY

ITERATIVE = {"cholesky_rows": 0, "cg_tolerance": 1e-4}
EXACT = structured.Accuracy(cholesky_rows=1000, cg_tolerance=1e-10, num_probes=10, rank=1000)
PROBED = structured.Accuracy(cholesky_rows=0, cg_tolerance=1e-4, num_probes=10, rank=100)
STANDARD_ERRORS = 6.0


def method(**settings) -> kiss_gp.Method:
    return kiss_gp.Method(kiss_gp.Hyperparameters(**{"grid_size": 12} | settings), "regression")


def process(x: torch.Tensor, lengthscales: list[float], size: int) -> structured.Process:
    """Outputscale 1.3, noise variance 0.05."""
    factors = structured.kernel_factors(torch.tensor(lengthscales).to(x), torch.tensor(1.3).to(x), size)
    return structured.Process(structured.interpolate(x, size), factors, torch.tensor(0.05).to(x))


def unit(n: int, num_inputs: int, seed: int = 0) -> torch.Tensor:
    """Inputs in the unit cube."""
    return torch.as_tensor(np.random.default_rng(seed).uniform(size=(n, num_inputs)))


class Reference(gpytorch.models.ExactGP):
    """The same model in GPyTorch, on the same grid."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, lengthscales: list[float], size: int) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        base = RBFKernel(ard_num_dims=x.shape[1])
        interpolated = GridInterpolationKernel(base, size, grid_bounds=[(0.0, 1.0)] * x.shape[1])
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), ScaleKernel(interpolated)
        self.double()
        interpolated.update_grid([structured.grid(size, x)] * x.shape[1])
        # GPyTorch 1.15 gives the first lengthscale to the last input: GridKernel reverses the Kronecker factors
        base.lengthscale = torch.tensor(lengthscales[::-1]).to(x)
        self.covar_module.outputscale, self.likelihood.noise = 1.3, 0.05

    def forward(self, x: torch.Tensor):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_evidence_and_predictions_are_gpytorchs():
    x, test, lengthscales = unit(40, 3), unit(7, 3, seed=1), [0.3, 0.6, 1.1]
    y = torch.sin(5 * x.sum(1, keepdim=True))
    ours = process(x, lengthscales, 9)
    reference = Reference(x, y[:, 0], lengthscales, 9)
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        prior = reference.likelihood(reference.train()(x))
        evidence = structured.log_density(ours, y, torch.empty(0), EXACT)
        assert float(evidence) == pytest.approx(float(prior.log_prob(y[:, 0])), rel=1e-8)
        expected = reference.eval()(test)
        mean, variance = structured.posterior(ours, y, structured.interpolate(test, 9), EXACT)
        torch.testing.assert_close(mean[:, 0], expected.mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(variance, expected.variance, rtol=0, atol=1e-6)


def test_products_are_those_of_the_dense_matrices():
    one = process(unit(30, 3), [0.3, 0.6, 1.1], 7)
    other = structured.interpolate(unit(20, 3, seed=1), 7)
    v = torch.as_tensor(np.random.default_rng(2).normal(size=(20, 4)))
    fast = structured.interpolated(one.points, other, one.factors)._matmul(v)
    torch.testing.assert_close(fast, structured.product(one.points, other, one.factors) @ v, rtol=1e-10, atol=1e-10)
    diagonal = structured.product(other, other, one.factors).diagonal()
    torch.testing.assert_close(structured.prior_variance(other, one.factors), diagonal, rtol=1e-10, atol=0)


def test_it_becomes_the_exact_gp_as_the_grid_gets_finer():
    """Cubic convolution is of third order (keys1981): half the cell, an eighth of the error."""
    x, y = cases.problem("regression", num_inputs=2)
    data, test = cases.training_set(x, y), x[None, :10] * 0.9
    settings = {"lengthscale": 1.0, "noise_variance": 0.05}
    exact = exact_gp.Method(exact_gp.Hyperparameters(**settings), "regression")
    expected = exact.predict(exact.start(data, cases.keys(1)), test, cases.keys(1)[0])
    cells_of_range = np.array([10, 20, 40])
    errors = []
    for count in cells_of_range:
        ours = method(grid_size=int(count) + 3, **settings)
        found = ours.predict(ours.start(data, cases.keys(1)), test, cases.keys(1)[0])
        moments = np.abs(found.mean() - expected.mean()), np.abs(found.variance() - expected.variance())
        errors.append([moment.max() for moment in moments])
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (orders > 2.5).all(), orders
    assert np.max(errors[-1]) < 1e-3


def estimates(made: kiss_gp.Method, data, draws: int) -> dict[str, np.ndarray]:
    """Loss and gradients `[draws, ...]` under many probes."""
    state = cases.perturbed(made.start(data, cases.keys(1)))
    found = []
    for noise in torch.arange(draws, dtype=torch.float64)[:, None, None]:
        loss, gradient = cases.loss_and_gradient(made, state, data.full(), noise)
        found.append({"loss": loss} | gradient)
    return {name: torch.stack([one[name][0] for one in found]).numpy() for name in found[0]}


def test_iterations_estimate_the_evidence_and_its_gradient_without_bias():
    data = cases.training_set(*cases.problem("regression", num_inputs=2))
    exact, estimated = (estimates(method(**how), data, n) for how, n in (({}, 1), (ITERATIVE, 30)))
    for name, values in estimated.items():
        error = values.std(0, ddof=1) / math.sqrt(len(values))
        assert (error > 0).all(), name
        assert (
            np.abs(values.mean(0) - exact[name][0]) <= STANDARD_ERRORS * error + 1e-4 * np.abs(exact[name]).max()
        ).all(), name


@pytest.mark.slow
def test_the_log_determinant_of_an_ill_conditioned_matrix_is_unbiased():
    """Twenty Lanczos steps, which linear_operator takes unless told otherwise, are too few."""
    x = unit(400, 2)
    made, zero = process(x, [0.15, 0.15], 40)._replace(noise_variance=torch.tensor(1e-3).to(x)), x.new_zeros(400, 1)
    dense = float(structured.log_density(made, zero, x.new_zeros(1), EXACT))
    probes = torch.arange(10, dtype=torch.float64)[:, None]
    found = np.array([float(structured.log_density(made, zero, one, PROBED)) for one in probes])
    assert abs(found.mean() - dense) < STANDARD_ERRORS * found.std(ddof=1) / math.sqrt(10)


def test_probes_come_from_the_noise_alone():
    made, data = method(**ITERATIVE), cases.training_set(*cases.problem("regression", num_inputs=2))
    state = made.start(data, cases.keys(1))
    first, second = torch.tensor([[0.1], [0.2]], dtype=torch.float64)[:, None]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    losses = [float(cases.flat_loss(made, state, data.full(), noise)) for noise in (first, first, second)]
    assert torch.equal(torch.get_rng_state(), before)
    assert losses[0] == losses[1] != losses[2]


def test_both_precisions_have_the_same_probes():
    """By how much single precision changes the objective decides whether the convergence of a fit can be judged."""
    x = unit(200, 2)
    found = {}
    for dtype in (torch.float64, torch.float32):
        made, y = process(x.to(dtype), [0.4, 0.4], 12), torch.sin(5 * x.sum(1, keepdim=True)).to(dtype)
        noises = torch.tensor([[0.1], [0.2], [0.3]], dtype=torch.float32).to(dtype)
        found[dtype] = [float(structured.log_density(made, y, noise, PROBED)) for noise in noises]
    assert np.std(found[torch.float64]) > 0.1
    np.testing.assert_allclose(found[torch.float32], found[torch.float64], rtol=0, atol=0.01)


def test_a_low_rank_inverse_never_understates_a_variance():
    data, test = cases.training_set(*cases.problem("regression", num_inputs=2)), unit(20, 2, seed=3)[None]
    variances = []
    for settings in ({}, {**ITERATIVE, "lanczos_rank": 40}, {**ITERATIVE, "lanczos_rank": 5}):
        made = method(**settings)
        predictive = made.predict(made.start(data, cases.keys(1)), test, cases.keys(1)[0])
        variances.append(predictive.variance())
    exact, full, low = variances
    np.testing.assert_allclose(full, exact, rtol=1e-3)
    assert (low >= exact * (1 - 1e-6)).all()
    assert low.max() > 1.01 * exact.max()


@pytest.mark.parametrize("accuracy", [EXACT, PROBED])
def test_log_densities_of_targets_add_up_and_their_quadratic_forms_are_those_of_dense_solves(accuracy):
    x, noise = unit(40, 2), torch.zeros(1)
    made, y = process(x, [0.4, 0.4], 8), torch.stack([torch.sin(5 * x[:, 0]), x[:, 1] - 0.5, 0 * x[:, 0]], 1)
    one, other, zero = (float(structured.log_density(made, y[:, [p]], noise, accuracy)) for p in range(3))
    both = float(structured.log_density(made, y[:, :2], noise, accuracy))
    assert both == pytest.approx(one + other, rel=1e-3 if accuracy is PROBED else 1e-12)
    quadratic = y[:, 0] @ torch.linalg.solve(structured.dense(made), y[:, 0])
    assert 2 * (zero - one) == pytest.approx(float(quadratic), rel=1e-3)


def test_more_probes_have_less_noise():
    x = unit(40, 2)
    made, zero, spread = process(x, [0.4, 0.4], 8), x.new_zeros(40, 1), []
    for count in (1, 16):
        accuracy = PROBED._replace(num_probes=count)
        noises = torch.arange(20, dtype=torch.float64)[:, None]
        spread.append(np.std([float(structured.log_density(made, zero, noise, accuracy)) for noise in noises]))
    assert spread[0] > 2 * spread[1]  # 4 times as much


def test_predictions_by_iterations_are_exact_in_the_mean_and_of_the_rank_asked_for_in_the_variance():
    """Lanczos from y: the inverse on the span of y, K y and K^2 y, whatever the residual of training."""
    x, test = unit(40, 2), structured.interpolate(unit(7, 2, seed=1), 8)
    made, y = process(x, [0.4, 0.4], 8), torch.sin(5 * x.sum(1, keepdim=True))
    mean, variance = structured.posterior(made, y, test, PROBED._replace(cg_tolerance=0.5, rank=3))
    k, cross = structured.dense(made), structured.product(test, made.points, made.factors)
    torch.testing.assert_close(mean, cross @ torch.linalg.solve(k, y), rtol=0, atol=1e-3)
    basis, _ = torch.linalg.qr(torch.cat([y, k @ y, k @ k @ y], 1))
    known = cross @ basis
    left = structured.prior_variance(test, made.factors)
    expected = left - (known * torch.linalg.solve(basis.T @ k @ basis, known.T).T).sum(1)
    torch.testing.assert_close(variance, expected, rtol=1e-4, atol=1e-6)


def test_a_constant_target_has_the_variance_of_any_other():
    x, _ = cases.problem("regression", num_inputs=2)
    data, test = cases.training_set(x, torch.zeros_like(x[:, :1])), unit(20, 2, seed=3)[None]
    exact, many = (
        made.predict(made.start(data, cases.keys(1)), test, cases.keys(1)[0])
        for made in (method(), method(**ITERATIVE))
    )
    assert (many.mean() == 0).all()
    np.testing.assert_allclose(many.variance(), exact.variance(), rtol=1e-3)


@pytest.mark.parametrize("settings", [{}, ITERATIVE, {**ITERATIVE, "cholesky_rows": 29}], ids=["few", "many", "both"])
def test_batched_is_looped(settings):
    cases.assert_batched_is_looped(method(grid_size=6, **settings), "regression")


@pytest.mark.parametrize("settings", [{}, ITERATIVE], ids=["few", "many"])
def test_nan_stays_in_its_replica(settings):
    cases.assert_nan_stays_in_its_replica(method(grid_size=6, **settings), "regression")


def test_beyond_the_training_inputs_is_as_at_their_edge():
    data = cases.training_set(cases.X, cases.Y)
    state = method().start(data, cases.keys(1))
    found = method().predict(state, torch.tensor([[[1.0], [3.0]]]).double(), cases.keys(1)[0])
    assert found.mean()[0] == found.mean()[1]
    assert found.variance()[0] == found.variance()[1]
    exact = exact_gp.Method(exact_gp.Hyperparameters(), "regression")
    at_edge = exact.predict(exact.start(data, cases.keys(1)), torch.ones(1, 1, 1).double(), cases.keys(1)[0])
    np.testing.assert_allclose(found.mean()[0], at_edge.mean()[0], atol=5e-3)


def test_many_inputs_are_skipped_with_the_reason(tmp_path):
    study = resolve.resolve(Places(REPOSITORY, tmp_path), "default", "methods=[kiss_gp] datasets=[boston]")
    (cell,) = study.cells
    assert cell.skip == "13 inputs, at most 4"


def test_a_grid_is_not_smaller_than_its_interpolation():
    with pytest.raises(UserError, match="grid_size: .* greater than or equal to 5"):
        resolve.resolve(Places(REPOSITORY, REPOSITORY), "default", "methods=[kiss_gp] kiss_gp.grid_size=4")
