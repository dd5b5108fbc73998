"""GP regression by stochastic dual descent: it ends at the exact GP with the same parameters."""

import numpy as np
import pytest
import torch

from gpbench import streams
from gpbench.methods import gp_sdd
from gpbench.methods.base import State
from gpbench.methods.training_rows import Batch
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


def test_draws_of_the_prior_are_the_same_functions_whenever_they_are_asked_for():
    train, made = rows(), method(draws=5)
    state = made.init(train, KEY)
    whole = made.prior(state.buffers)(train.x[0])
    assert torch.equal(made.prior(state.buffers)(train.x[0]), whole)
    torch.testing.assert_close(made.prior(state.buffers)(train.x[0, 7:9]), whole[7:9])
    drawn = state.memory["b"][0, :, 1:] - whole  # the noise of the targets
    assert float(drawn.std()) == pytest.approx(float(made.exact.noise_variance(state.buffers).sqrt()), rel=0.15)


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
