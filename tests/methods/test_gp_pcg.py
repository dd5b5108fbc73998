"""GPs by preconditioned conjugate gradients beside the dense GP, whose gradients are checked by differences."""

import dataclasses

import numpy as np
import pytest
import torch
from gp_cases import flat_loss, keys, loss_and_gradient, perturbed, problem, training_set
from scipy.linalg import hadamard

from cases import Case
from gpbench.evaluation import metrics
from gpbench.methods import exact_gp, gp_cholesky, gp_pcg
from gpbench.methods.base import Noise, State
from gpbench.solvers import preconditioners, quadrature

TASKS = ("regression", "binary")
NONE = torch.zeros(1, 0)
REPEATS = 60
CHOICES = ("nystrom", "fitc", "pitc", "spectral", "partial_svd", "pivoted_cholesky", "block_jacobi", "none")


def made(task: str, n: int = 80, **settings):
    """gp_pcg, gp_cholesky, a state off its start, and the rows."""
    x, y = problem(task, n)
    data = training_set(x, y)
    dense = gp_cholesky.Method(gp_cholesky.Hyperparameters(), task)
    pcg = gp_pcg.Method(gp_pcg.Hyperparameters(**settings), task)
    return pcg, dense, perturbed(dense.start(data, keys(1))), data.full()


def probes(n: int, count: int, seed: int) -> torch.Tensor:
    return quadrature.rademacher(n, count, torch.Generator().manual_seed(seed))


def estimated(method, state, batch, count: int, seed: int, signs=None):
    """Loss, and gradient of the surrogate by name; signs `[n, N]` in place of random ones."""
    params = {name: value.clone().requires_grad_() for name, value in state.params.items()}
    signs = probes(batch.x.shape[1], count, seed) if signs is None else signs
    estimate = method.estimate(params, batch.x[0], batch.y[0], signs, torch.Generator().manual_seed(seed))
    return estimate, dict(zip(params, torch.autograd.grad(estimate.surrogate, list(params.values())), strict=True))


@pytest.mark.parametrize("task", TASKS)
def test_dense_gradient_is_that_of_differences(task):
    _, dense, state, batch = made(task)
    _, gradient = loss_and_gradient(dense, state, batch, NONE)
    for name, value in state.params.items():
        for place in range(value.numel()):
            step = torch.zeros(value.numel(), dtype=value.dtype)
            step[place] = 1e-5
            up, down = (
                flat_loss(dense, State(state.params | {name: value + sign * step.view(value.shape)}, {}), batch, NONE)
                for sign in (1, -1)
            )
            slope = ((up - down) / 2e-5).item()
            assert gradient[name].flatten()[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_probes_that_are_orthogonal_give_the_exact_gradient(task):
    """Signs of which R R^T / N = I leave nothing to chance; those of a Hadamard matrix are as many as rows."""
    method, dense, state, batch = made(task, 16, tolerance=1e-10)
    _, exact = loss_and_gradient(dense, state, batch, NONE)
    _, found = estimated(method, state, batch, 16, 0, torch.from_numpy(hadamard(16)).double())
    for name, truth in exact.items():
        torch.testing.assert_close(-found[name], truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task", ["regression", pytest.param("binary", marks=pytest.mark.slow)])
def test_gradients_average_to_the_exact_one(task):
    """Within three standard errors of autograd of the dense evidence, every component; and so does the objective."""
    method, dense, state, batch = made(task, num_probes=4)
    loss, exact = loss_and_gradient(dense, state, batch, NONE)
    found = [estimated(method, state, batch, 4, seed) for seed in range(REPEATS)]
    for name, truth in exact.items():
        drawn = torch.stack([-gradient[name][0] for _, gradient in found])
        error = drawn.std(0) / REPEATS**0.5
        assert ((drawn.mean(0) - truth[0]).abs() <= 3 * error + 1e-8).all(), name
    losses = torch.stack([estimate.loss for estimate, _ in found])
    assert abs(losses.mean() - loss[0]) <= 3 * losses.std() / REPEATS**0.5 + 1e-4


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.slow
def test_the_preconditioner_changes_the_gradient_by_the_tolerance_only(name, task):
    method, _, state, batch = made(task, preconditioner=name, tolerance=1e-8)
    plain, _, _, _ = made(task, preconditioner="none", tolerance=1e-8)
    (one, gradient), (_, other) = (estimated(m, state, batch, 4, 0) for m in (method, plain))
    assert one.unsolved == 0
    for key, value in gradient.items():
        torch.testing.assert_close(value, other[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", CHOICES)
def test_the_preconditioner_is_the_one_set_of_the_rank_set(name, task, monkeypatch):
    """Of 2.5 sqrt(80) = 22.4 columns; of every system of a step and of predictions."""
    method, _, state, batch = made(task, preconditioner=name, rank=2.5)
    built, used, build, solve = [], [], preconditioners.build, gp_pcg.solve

    def keeping(kind, product, rank, generator):
        built.append((kind, rank, build(kind, product, rank, generator)))
        return built[-1][2]

    def noting(*words, precondition, **settings):
        used.append(precondition)
        return solve(*words, precondition=precondition, **settings)

    monkeypatch.setattr(preconditioners, "build", keeping)
    monkeypatch.setattr(gp_pcg, "solve", noting)
    estimated(method, state, batch, 4, 0)
    method.predict(state, batch.x[:, :5], keys(1)[0])
    assert {(kind, rank) for kind, rank, _ in built} == {(name, 23)}
    assert {id(one) for one in used} == {id(one) for _, _, one in built}


@pytest.mark.parametrize("task", TASKS)
def test_a_preconditioner_saves_iterations_and_more_so_of_a_larger_rank(task):
    found = []
    for settings in ({"preconditioner": "none"}, {"rank": 1.0}, {"rank": 4.0}):
        method, _, state, batch = made(task, **settings)
        found.append(float(estimated(method, state, batch, 4, 0)[0].iterations))
    none, small, large = found
    assert large < 0.6 * small
    assert small < 0.7 * none


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("task", TASKS)
def test_there_are_as_many_probes_as_set(task, count, monkeypatch):
    """Of the gradient, in the noise of a step, and of the log determinant, in its solves."""
    method, _, state, batch = made(task, num_probes=count)
    columns, solve = [], gp_pcg.solve

    def counting(product, b, **settings):
        columns.append(b.shape[1])
        return solve(product, b, **settings)

    monkeypatch.setattr(gp_pcg, "solve", counting)
    assert method.noise_shapes(state, 80, 0, 1).per_row == (count,)
    estimated(method, state, batch, 3, 0)
    most = {"regression": 1 + 3, "binary": 3 + 3}[task]  # targets or K r_j, and r_j
    assert max(columns) == most + count


@pytest.mark.parametrize("task", TASKS)
def test_predictions_are_those_of_the_dense_gp(task):
    method, dense, state, _ = made(task)
    x = torch.linspace(-2, 2, 300, dtype=torch.float64)[None, :, None].expand(1, 300, 3)  # more than a block of columns
    one, other = (m.predict(state, x, keys(1)[0]) for m in (method, dense))
    np.testing.assert_allclose(one.mean(), other.mean(), atol=1e-4)
    np.testing.assert_allclose(one.variance(), other.variance(), atol=1e-4)


def test_dense_regression_is_the_exact_gp():
    _, dense, state, batch = made("regression")
    exact = exact_gp.Method(exact_gp.Hyperparameters(), "regression")
    assert torch.equal(flat_loss(dense, state, batch, NONE), flat_loss(exact, state, batch, NONE))


def test_the_laplace_evidence_of_one_row():
    """log p(y | f) - f^2 / (2 k) - log(1 + W k) / 2 at the mode, by a grid."""
    dense = gp_cholesky.Method(gp_cholesky.Hyperparameters(), "binary")
    k = torch.tensor([[2.0]], dtype=torch.float64)
    f = torch.linspace(0, 2, 2_000_001, dtype=torch.float64)
    joint = torch.special.log_ndtr(f) - f.square() / 4
    at = f[joint.argmax()]
    w = dense.likelihood.curvature(torch.ones(()), at)
    truth = joint.max() - 0.5 * (1 + 2 * w).log()
    assert dense.log_evidence(k, torch.ones(1).double()).item() == pytest.approx(truth.item(), abs=1e-6)


def test_two_targets_add_up():
    x, y = problem("regression", 40)
    y = torch.cat([y, y.cos()], 1)
    batch = training_set(x, y).full()
    method = gp_pcg.Method(gp_pcg.Hyperparameters(tolerance=1e-9), "regression", num_targets=2)
    state = method.start(training_set(x, y), keys(1))
    both = estimated(method, state, batch, 4, 0)
    each = [estimated(method, state, dataclasses.replace(batch, y=y[None, :, p : p + 1]), 4, 0) for p in (0, 1)]
    torch.testing.assert_close(both[0].loss, each[0][0].loss + each[1][0].loss)
    for name, value in both[1].items():
        torch.testing.assert_close(value, each[0][1][name] + each[1][1][name], rtol=1e-6, atol=1e-6)


def test_a_step_is_that_of_adagrad():
    """The first moves every number by the learning rate, the second by g / sqrt(g_1^2 + g_2^2) of it."""
    method, _, state, batch = made("regression", learning_rate=0.5)
    state.memory = {f"squares.{name}": torch.zeros_like(value) for name, value in state.params.items()}
    state.memory |= {name: torch.zeros(1).double() for name in gp_pcg.COUNTED}
    noise = Noise(torch.zeros(1, 1).double(), probes(80, 4, 0)[None])
    before = {name: value.clone() for name, value in state.params.items()}
    method.step(state, batch, noise, 0, 2)
    for name, value in before.items():
        torch.testing.assert_close((state.params[name] - value).abs(), torch.full_like(value, 0.5))
    first = {name: value.clone() for name, value in state.params.items()}
    squares = {name: state.memory[f"squares.{name}"].clone() for name in first}
    method.step(state, batch, noise, 1, 2)
    for name, value in first.items():
        gained = state.memory[f"squares.{name}"] - squares[name]
        expected = 0.5 * (gained / (gained + squares[name])).sqrt()
        torch.testing.assert_close((state.params[name] - value).abs(), expected)
    assert method.report(state)["iterations"] > 0
    assert method.report(state)["unsolved"] == 0


def test_reports_are_means_over_steps(monkeypatch):
    x, y = problem("regression", 20)
    data, method = training_set(x, y), gp_pcg.Method(gp_pcg.Hyperparameters(), "regression")
    state, estimate = method.start(data, keys(1)), method.estimate
    noise = Noise(torch.zeros(1, 1).double(), probes(20, 4, 0)[None])
    for step, told in enumerate([(4.0, 1.0), (10.0, 0.5), (1.0, 0.0)]):
        counts = dict(zip(gp_pcg.COUNTED, torch.tensor(told), strict=True))
        monkeypatch.setattr(method, "estimate", lambda *given, counts=counts: estimate(*given)._replace(**counts))
        method.step(state, data.full(), noise, step, 3)
    assert {name: value.item() for name, value in method.report(state).items()} == {"iterations": 5.0, "unsolved": 0.5}


@pytest.mark.parametrize(("tolerance", "low", "high"), [(1e-5, 1.2, np.inf), (1e-8, 0.999, 1.001)])
def test_variances_without_noise_need_a_smaller_tolerance(tolerance, low, high):
    """A residual r adds r' K_y^-1 r to them, as docs/sharp-edges.md says."""
    pcg, dense, state, batch = made("regression", 200, tolerance=tolerance)
    at = {"log_noise_variance": np.log(1e-5), "log_outputscale": 0.0, "log_lengthscale": np.log(1.5)}
    state.params |= {name: torch.full_like(state.params[name], value) for name, value in at.items()}
    found, exact = (method.predict(state, batch.x[:, :50] + 0.01, keys(1)[0]).variance() for method in (pcg, dense))
    assert low < np.max(found / exact) < high


def test_a_cap_that_is_reached_is_reported():
    method, _, state, batch = made("regression", cap=1, preconditioner="none")
    estimate, _ = estimated(method, state, batch, 4, 0)
    assert estimate.iterations == 1
    assert estimate.unsolved == 1


@pytest.mark.parametrize(("cap", "share"), [(1, 1.0), (1000, 0.0)])
def test_a_fit_reports_systems_of_its_prediction_that_reached_the_cap(cap, share, tmp_path_factory):
    case = Case("gp_pcg", "regression", tmp_path_factory, hyper={"cap": cap, "preconditioner": "none"})
    told = case.alone[0].info["sampler"]
    assert told["unsolved_test"] == share
    assert told["unsolved"] == pytest.approx(share)
    assert metrics.efficiency(told)["unsolved_test"] == share


@pytest.mark.parametrize("task", TASKS)
def test_numbers_that_are_not_finite_are_passed_on(task):
    method, _, state, batch = made(task)
    bad = dataclasses.replace(batch, x=torch.where(torch.arange(80)[:, None] == 3, torch.nan, batch.x))
    estimate, _ = estimated(method, state, bad, 4, 0)
    assert not estimate.loss.isfinite()


@pytest.mark.parametrize("task", TASKS)
def test_one_row_and_repeated_rows(task):
    for n, repeats in ((1, 1), (20, 3)):
        x, y = problem(task, n)
        x, y = x.repeat(repeats, 1), y.repeat(repeats, 1)
        method = gp_pcg.Method(gp_pcg.Hyperparameters(noise_variance=1e-6), task)
        data = training_set(x, y)
        state = method.start(data, keys(1))
        shapes = method.noise_shapes(state, len(x), 0, 1)
        noise = shapes.split(
            torch.randn(1, shapes.size(len(x)), generator=torch.Generator().manual_seed(0)).double(), len(x)
        )
        assert method.step(state, data.full(), noise, 0, 1).isfinite().all()
        assert np.isfinite(method.predict(state, x[None], keys(1)[0]).mean()).all()


def test_many_rows_start_from_the_optimum_of_some(monkeypatch):
    monkeypatch.setattr("gpbench.methods.warm_start.MANY_ROWS", 60)
    monkeypatch.setattr("gpbench.methods.warm_start.START_ROWS", 50)
    x, y = problem("regression", 80)
    warm, given = (
        gp_pcg.Method(gp_pcg.Hyperparameters(warm_start=warm), "regression").start(training_set(x, y), keys(1))
        for warm in (True, False)
    )
    assert given.params["log_noise_variance"].item() == pytest.approx(np.log(0.1))
    assert warm.params["log_noise_variance"] < -4
