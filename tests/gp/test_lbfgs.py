"""L-BFGS on functions whose minimum is known."""

import numpy as np
import pytest
import torch
from scipy.optimize import rosen, rosen_der

from gpbench.gp import lbfgs


def rosenbrock(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """scipy's, with its gradient."""
    return torch.tensor(rosen(x.numpy())), torch.as_tensor(rosen_der(x.numpy()))


@pytest.mark.parametrize("size", [2, 10, 50])
def test_it_finds_the_minimum_of_rosenbrock(size):
    search = lbfgs.start(rosenbrock, torch.full((size,), -0.5, dtype=torch.float64))
    for _ in range(500):
        search = lbfgs.step(rosenbrock, search)
    assert search.ended  # to the precision of f
    np.testing.assert_allclose(search.x, np.ones(size), atol=1e-6)


def test_values_fall_and_no_more_pairs_than_allowed_are_kept():
    search, values = lbfgs.start(rosenbrock, torch.zeros(30, dtype=torch.float64)), []
    for _ in range(40):
        search = lbfgs.step(rosenbrock, search)
        values.append(float(search.loss))
    assert values == sorted(values, reverse=True)
    assert len(search.pairs) == lbfgs.PAIRS
    assert all(s @ y > 0 for s, y in search.pairs)


def test_a_quadratic_takes_about_as_many_iterations_as_it_has_directions():
    scales = torch.tensor([1.0, 10.0, 100.0, 1000.0], dtype=torch.float64)
    search = lbfgs.start(lambda x: (0.5 * scales @ x**2, scales * x), torch.ones(4, dtype=torch.float64))
    for _ in range(30):
        search = lbfgs.step(lambda x: (0.5 * scales @ x**2, scales * x), search)
    assert float(search.loss) < 1e-12


def test_where_f_is_not_finite_is_too_far():
    """minus log x + x has its minimum, 1, at 1, and no value at x <= 0."""

    def barrier(x):
        return (x - x.log()).sum(), 1 - 1 / x

    search = lbfgs.start(barrier, torch.tensor([30.0], dtype=torch.float64))
    for _ in range(60):
        search = lbfgs.step(barrier, search)
    assert float(search.x) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_start_without_a_finite_gradient_ends_at_once(value):
    def nowhere(x):
        return x.new_tensor(value), torch.full_like(x, torch.nan)

    start = torch.ones(3, dtype=torch.float64)
    search = lbfgs.step(nowhere, lbfgs.start(nowhere, start))
    assert search.ended
    assert torch.equal(search.x, start)


def test_at_a_minimum_it_ends_and_stays():
    search = lbfgs.start(rosenbrock, torch.ones(5, dtype=torch.float64))
    ended = lbfgs.step(rosenbrock, search)
    assert ended.ended
    assert lbfgs.step(rosenbrock, ended) is ended


def test_minimise_stops_where_little_is_gained():
    calls = []

    def counted(x):
        calls.append(x)
        return rosenbrock(x)

    x = lbfgs.minimise(counted, torch.full((2,), -0.5, dtype=torch.float64), 500, 1e-9)
    np.testing.assert_allclose(x, np.ones(2), atol=1e-3)
    assert len(calls) < 300


def test_tensors_by_name_are_flattened_and_back():
    like = {"a": torch.randn(1, 3, 2, dtype=torch.float64), "b": torch.randn(1, dtype=torch.float64)}
    flat = lbfgs.flatten(like)
    assert all(torch.equal(value, like[name]) for name, value in lbfgs.unflatten(flat, like).items())
    value, gradient = lbfgs.of_params(lambda params: params["a"].square().sum()[None] + 3 * params["b"], like)(flat)
    assert float(value) == pytest.approx(float(like["a"].square().sum() + 3 * like["b"]))
    torch.testing.assert_close(gradient, lbfgs.flatten({"a": 2 * like["a"], "b": torch.full_like(like["b"], 3.0)}))


@pytest.mark.parametrize(("tolerance", "steps"), [(1e9, 5), (0.0, 50)])
def test_it_ends_where_a_tenth_of_the_iterations_gains_too_little(tolerance, steps):
    start = torch.full((10,), -0.5, dtype=torch.float64)
    search = lbfgs.start(rosenbrock, start)
    for _ in range(steps):
        search = lbfgs.step(rosenbrock, search)
    assert not search.ended
    assert torch.equal(lbfgs.minimise(rosenbrock, start, 50, tolerance), search.x)


def test_a_step_along_which_f_curves_down_leaves_no_pair():
    """The cosine from its top: with such a pair the inverse Hessian would not be definite."""
    search = lbfgs.start(lambda x: (x.cos().sum(), -x.sin()), torch.tensor([0.1], dtype=torch.float64))
    search = lbfgs.step(lambda x: (x.cos().sum(), -x.sin()), search)
    assert 0.1 < search.x < 1
    assert search.pairs == []
