"""GP regression by stochastic dual descent: it ends at the exact GP with the same parameters."""

import numpy as np
import pytest
import torch

from gpbench import streams
from gpbench.gp import features
from gpbench.methods import gp_sdd
from gpbench.methods.base import Noise, State
from gpbench.methods.training_rows import Batch
from gpbench.solvers import dual_descent
from gpbench.streams import Key

KEY = Key("smooth", "common", 0)


def rows(n=60, targets=1) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, n, 2, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(1, n, targets, generator=generator, dtype=torch.float64)
    f = torch.cat([torch.sin(2 * x[..., :1]), x[..., 1:]], 2)[..., :targets]
    return Batch(x, f + noise, torch.ones(1, n, dtype=torch.float64))


def method(targets=1, **settings) -> gp_sdd.Method:
    small = {"num_features": 300, "start_iterations": 30}
    return gp_sdd.Method(gp_sdd.Hyperparameters(**small | settings), "regression", num_targets=targets)


def run(made: gp_sdd.Method, train: Batch, steps: int) -> State:
    state, n = made.init(train, KEY), train.x.shape[1]
    for step in range(steps):
        shapes = made.noise_shapes(state, n, step, steps)
        normals = streams.normal(KEY, "noise", step, (1, shapes.size(n)), like=train.x)
        made.step(state, train, shapes.split(normals, n), step, steps)
    return state


@pytest.mark.parametrize(("kernel", "coordinates", "steps"), [("rbf", 20, 1500), ("matern32", 60, 4000)])
@pytest.mark.slow
def test_it_ends_at_the_exact_gp(kernel, coordinates, steps):
    """Its variance to the error of 600 draws (0.06 of it) and of 300 random frequencies."""
    train, made = rows(targets=2), method(targets=2, kernel=kernel, coordinates=coordinates, draws=600)
    state = run(made, train, steps)
    x = torch.linspace(-1, 1, 7, dtype=torch.float64)[None, :, None].expand(-1, -1, 2)
    found, exact = made.predict(state, x, KEY), made.exact.predict(state_of(state, train), x, KEY)
    np.testing.assert_allclose(found.mean(), exact.mean(), atol=1e-2)
    np.testing.assert_allclose(found.variance(), exact.variance(), rtol=0.1)


def state_of(state: State, train: Batch) -> State:
    return State(state.buffers, {"x": train.x, "y": train.y, "mask": train.weight})


def test_the_variance_is_that_of_the_prior_far_from_all_rows():
    train, made = rows(), method(draws=600)
    found = made.predict(run(made, train, 50), train.x[:, :1] + 50.0, KEY)
    expected = made.exact.kernel(made.init(train, KEY).buffers).scale + made.exact.noise_variance(
        made.init(train, KEY).buffers
    )
    np.testing.assert_allclose(found.variance()[0, 0], float(expected), rtol=0.25)
    np.testing.assert_allclose(found.mean(), 0.0, atol=1e-6)


def test_at_the_solutions_of_its_systems_it_predicts_as_the_exact_gp():
    """Its variance to the error of 2000 draws (0.03 of it) and of 300 random frequencies."""
    train, made = rows(targets=2), method(targets=2, draws=2000)
    state = made.init(train, KEY)
    a = made.exact.kernel(state.buffers).covariance(train.x, train.x)
    noise = made.exact.noise_variance(state.buffers)
    state.params["mean"] = torch.linalg.solve(a + noise * torch.eye(60).double(), state.memory["b"])
    x = torch.linspace(-1, 1, 7, dtype=torch.float64)[None, :, None].expand(-1, -1, 2)
    found, exact = made.predict(state, x, KEY), made.exact.predict(state_of(state, train), x, KEY)
    np.testing.assert_allclose(found.mean(), exact.mean(), atol=1e-5)
    np.testing.assert_allclose(found.variance() - float(noise), exact.variance() - float(noise), rtol=0.2)


def test_draws_of_the_prior_are_the_same_functions_whenever_they_are_asked_for():
    train, made = rows(), method(draws=5)
    state = made.init(train, KEY)
    whole = made.prior(state.buffers)(train.x[0])
    assert torch.equal(made.prior(state.buffers)(train.x[0]), whole)
    torch.testing.assert_close(made.prior(state.buffers)(train.x[0, 7:9]), whole[7:9])
    drawn = state.memory["b"][0, :, 1:] - whole  # the noise of the targets
    assert float(drawn.std()) == pytest.approx(float(made.exact.noise_variance(state.buffers).sqrt()), rel=0.15)


@pytest.mark.parametrize(("averaging", "share"), [(3.0, 0.06), (100.0, 1.0)])
def test_a_step_has_the_momentum_the_averaging_and_the_block_that_are_set(averaging, share, monkeypatch):
    """In a fit of 50 steps, whose share in the mean is at most 1; the mean and the velocity are 0 before the first."""
    train, made = rows(), method(coordinates=7, momentum=0.6, averaging=averaging, draws=5)
    state, steps, step = made.init(train, KEY), [], dual_descent.step

    def keeping(product, b, now, block, beta, momentum, averaging):
        steps.append((block.tolist(), momentum, averaging))
        return step(product, b, now, block, beta, momentum, averaging)

    monkeypatch.setattr(dual_descent, "step", keeping)
    numbers = torch.randn(2, 60, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    made.step(state, train, Noise(numbers[:, :0, 0], numbers[:1]), 0, 50)
    first = state.memory["alpha"].clone()
    assert first.any(2).sum() == 7
    torch.testing.assert_close(state.params["mean"], share * first)
    made.step(state, train, Noise(numbers[:, :0, 0], numbers[1:]), 1, 50)
    largest = [set(numbers[t, :, 0].argsort()[-7:].tolist()) for t in range(2)]
    assert [set(block) for block, _, _ in steps] == largest
    assert [(momentum, averaging) for _, momentum, averaging in steps] == 2 * [(0.6, pytest.approx(share))]
    others = sorted(set(range(60)) - largest[1])
    torch.testing.assert_close(state.memory["velocity"][:, others], 0.6 * first[:, others])
    second = share * state.memory["alpha"] + (1 - share) * share * first
    torch.testing.assert_close(state.params["mean"], second)


def test_the_objective_is_the_dual_one_of_the_targets():
    """1/2 alpha^T A alpha - alpha^T y where a step takes all coordinates and has no momentum, alpha that before it."""
    train, made = rows(20, targets=2), method(targets=2, coordinates=20, momentum=0.0, draws=5)
    state, numbers = made.init(train, KEY), torch.randn(1, 20, 1, dtype=torch.float64)
    for step in range(2):
        alpha = state.memory["alpha"][0, :, :2].clone()
        objective = made.step(state, train, Noise(numbers[..., 0], numbers), step, 50)
    kernel, noise = made.exact.kernel(state.buffers), made.exact.noise_variance(state.buffers)
    a = kernel.covariance(train.x, train.x)[0] + noise * torch.eye(20).double()
    torch.testing.assert_close(objective[0], 0.5 * (alpha * (a @ alpha)).sum() - (alpha * train.y[0]).sum())


@pytest.mark.parametrize(("num_features", "draws"), [(3, 20), (300, 5)])
def test_draws_of_the_prior_are_of_so_many_features(num_features, draws):
    """A cosine and a sine of each frequency, which bound the rank of the draws at 60 rows."""
    train, made = rows(), method(num_features=num_features, draws=draws)
    state = made.init(train, KEY)
    drawn = made.prior(state.buffers)(train.x[0])
    assert drawn.shape == (60, draws)
    assert np.linalg.matrix_rank(drawn.numpy()) == min(2 * num_features, draws)
    assert state.memory["b"].shape == (1, 60, 1 + draws)
    assert torch.equal(state.memory["b"][..., :1], train.y)


def test_draws_of_the_prior_have_random_features_for_each_frequency(monkeypatch):
    made = method(num_features=17)
    state, numbers, draw = made.init(rows(), KEY), [], features.draw

    def counting(kernel, num_inputs, num, normal):
        numbers.append(num)
        return draw(kernel, num_inputs, num, normal)

    monkeypatch.setattr(features, "draw", counting)
    made.prior(state.buffers)
    assert numbers == [17]


def test_parameters_are_the_best_for_a_subset():
    train, made = rows(), method(start_rows=30, start_iterations=100)
    state = made.init(train, KEY)
    other = method(start_rows=1000, start_iterations=100).init(train, KEY)
    names = ("log_lengthscale", "log_outputscale", "log_noise_variance")
    assert not torch.equal(state.buffers[names[0]], other.buffers[names[0]])
    leaves = {name: other.buffers[name].requires_grad_() for name in names}
    made.exact.loss(State(leaves, {}), train, None).sum().backward()
    assert max(float(leaf.grad.abs().max()) for leaf in leaves.values()) < 0.1


@pytest.mark.parametrize("case", ["one row", "repeated rows", "no noise"])
def test_awkward_rows_end_with_numbers(case):
    train = rows(1 if case == "one row" else 20)
    if case == "repeated rows":
        train = Batch(train.x[:, :1].expand(-1, 20, -1), train.y[:, :1].expand(-1, 20, -1), train.weight)
    if case == "no noise":
        train = Batch(train.x, train.x[..., :1], train.weight)
    made = method(draws=8)
    state = run(made, train, 50)
    assert made.predict(state, train.x, KEY).is_finite()
