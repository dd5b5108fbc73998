"""Preconditioned conjugate gradients: tolerance, columns by themselves, and when they end."""

import pytest
import torch
from solver_cases import SYSTEMS, dense, kernel, normals, system

from gpbench.solvers.conjugate_gradients import solve
from gpbench.solvers.preconditioners import Diagonal
from gpbench.solvers.products import KernelProduct


@pytest.mark.parametrize("kind", SYSTEMS)
def test_columns_reach_their_own_tolerance_and_count_their_own_iterations(kind):
    product, b = system(kind), normals(150, 3, seed=1)
    tolerance = torch.tensor([1e-2, 1e-6, 1e-10], dtype=torch.float64)
    together = solve(product, b, tolerance=tolerance, cap=1000)
    assert together.converged.all()
    assert ((b - dense(product) @ together.x).norm(dim=0) <= tolerance * (1 + 1e-6)).all()
    assert (together.iterations.diff() > 0).all()
    # iterates on the way are apart: conjugate gradients magnify how products of unlike widths are rounded
    alone = solve(product, b[:, 2:], tolerance=1e-10, cap=1000)
    torch.testing.assert_close(alone.x[:, 0], together.x[:, 2], rtol=1e-8, atol=1e-8)


def test_products_are_counted_by_column():
    product, b = system(), normals(150, 3, seed=1)
    solution = solve(product, b, tolerance=1e-6, cap=1000)
    # one an iteration, and one at the end to see the residual
    assert solution.products == product.products == solution.iterations.sum() + 3
    before, again = product.products, solve(product, b, start=solution.x, tolerance=1e-8, cap=1000)
    assert again.products == product.products - before


def test_the_matrix_itself_as_preconditioner_takes_one_step():
    product, b = system(), normals(150, 3, seed=1)
    chol = torch.linalg.cholesky(dense(product))
    for flexible in (False, True):
        solution = solve(
            product,
            b,
            precondition=lambda r: torch.cholesky_solve(r, chol),
            tolerance=1e-8,
            cap=10,
            flexible=flexible,
        )
        assert solution.iterations.tolist() == [1, 1, 1]
        assert solution.converged.all()


def test_a_start_at_the_solution_takes_no_step():
    product, b = system(), normals(150, 2, seed=1)
    x = torch.linalg.solve(dense(product), b)
    solution = solve(product, b, start=x, tolerance=1e-8, cap=10)
    assert (solution.iterations == 0).all()
    assert solution.converged.all()
    assert torch.equal(solution.x, x)
    zero = solve(product, torch.zeros_like(b), tolerance=0.0, cap=10)
    assert zero.converged.all()
    assert (zero.x == 0).all()


def test_increments_add_up_to_the_solution_and_a_watch_may_end_columns():
    product, b = system(), normals(150, 2, seed=1)
    start, total, norms = normals(150, 2, seed=2), torch.zeros_like(b), []

    def watch(iteration, increment, residual):
        total.add_(increment)
        norms.append(residual.clone())
        assert iteration == len(norms) - 1
        return torch.tensor([iteration == 4, False])

    solution = solve(product, b, start=start, tolerance=1e-8, cap=1000, watch=watch)
    torch.testing.assert_close(start + total, solution.x)
    assert solution.iterations[0] == 5
    assert solution.iterations[1] == len(norms)
    assert solution.converged.tolist() == [False, True]
    assert norms[-1][0] == norms[4][0] == solution.residual[0]


def test_a_residual_that_drifts_is_seen():
    """In single precision the recursion promises what the solution does not hold: no column is called converged."""
    x = normals(200, 2).float()
    values = kernel(width=2).map(lambda value: value.float())
    product = KernelProduct(values, x, 1e-4)
    b = normals(200, 2, seed=1).float()
    solution = solve(product, b, tolerance=1e-5, cap=300)
    true = (b - product(solution.x)).norm(dim=0)
    assert (true > 1e-5).all()
    assert not solution.converged.any()


def test_a_column_starts_anew_where_the_residual_has_drifted():
    """Products that are wrong at first, as rounded ones are: then the steps are those from there, and x is right."""
    values, b, calls = torch.arange(1.0, 6.0).double(), torch.ones(5, 1).double(), []

    def product(v):
        calls.append(v)
        return values[:, None] * v * (1.001 if len(calls) <= 5 else 1.0)

    solution = solve(product, b, tolerance=1e-9, cap=100)
    # five steps for five eigenvalues, twice, each time with one product more for the residual
    assert (solution.converged.tolist(), solution.iterations.tolist(), len(calls)) == ([True], [10], 12)
    assert solution.beta[4] == 0
    torch.testing.assert_close(solution.x, b / values[:, None], rtol=1e-9, atol=0)


@pytest.mark.parametrize(("shrinks", "ends"), [(0.7, ([False], [2])), (0.4, ([True], [10]))])
def test_a_column_ends_where_starting_anew_does_not_halve_the_residual(shrinks, ends):
    """x = 1 by products with directions that are too large, so that each start leaves this part of the residual."""
    calls = []

    def product(v):
        calls.append(v)
        return v / (1 - shrinks) if len(calls) % 2 else v

    solution = solve(product, torch.ones(1, 1).double(), tolerance=0.4**9.5, cap=100)
    assert (solution.converged.tolist(), solution.iterations.tolist()) == ends
    torch.testing.assert_close(solution.residual, torch.tensor([shrinks ** ends[1][0]]).double())


def test_flexible_steps_are_those_of_polak_and_ribiere():
    """beta = z'^T (r' - r) / z^T r, of a preconditioner that is another one every time."""
    product, b, scales = system(n=40), normals(40, 1, seed=1), 1 + normals(7, 40, seed=3).square()
    a, calls, watched = dense(product), iter(scales), iter(scales)
    solution = solve(product, b, precondition=lambda r: r * next(calls)[:, None], tolerance=0.0, cap=6, flexible=True)
    x, r = torch.zeros_like(b), b
    p = z = r * next(watched)[:, None]
    for _ in range(6):
        alpha = (r * z).sum() / (p * (a @ p)).sum()
        x, new = x + alpha * p, r - alpha * (a @ p)
        new_z = new * next(watched)[:, None]
        p, r, z = new_z + (new_z * (new - r)).sum() / (r * z).sum() * p, new, new_z
    torch.testing.assert_close(solution.x, x)


def test_the_cap_is_said():
    product, b = system(), normals(150, 2, seed=1)
    solution = solve(product, b, tolerance=1e-10, cap=3)
    assert solution.iterations.tolist() == [3, 3]
    assert not solution.converged.any()
    assert (solution.residual > 1e-10).all()


@pytest.mark.parametrize("where", ["inputs", "targets", "noise"])
def test_numbers_that_are_not_finite_end_at_once(where):
    product, b = system(), normals(150, 2, seed=1)
    x, noise = product.x.clone(), product.noise.clone()
    bad = {"inputs": x, "targets": b, "noise": noise}[where]
    bad[7] = torch.nan
    solution = solve(KernelProduct(product.kernel, x, noise), b, tolerance=1e-8, cap=10**6)
    assert not solution.converged.any()
    assert (solution.iterations <= 1).all()


def test_a_matrix_that_is_not_positive_definite_ends_at_once():
    solution = solve(Diagonal(-torch.ones(5)), torch.ones(5, 1), tolerance=1e-8, cap=10**6)
    assert solution.iterations.tolist() == [0]
    assert not solution.converged.any()
    ones = torch.ones(5, 1)  # nor a preconditioner
    assert solve(Diagonal(ones[:, 0]), ones, precondition=torch.neg, tolerance=1e-8, cap=9).iterations.tolist() == [0]


def test_repeated_rows_almost_without_noise():
    x = normals(30, 3)
    product = KernelProduct(kernel(), torch.cat([x, x]), 1e-8)
    b = torch.cat([normals(30, 1, seed=1)] * 2)  # in the range of K: the system has a solution of moderate size
    solution = solve(product, b, tolerance=1e-6, cap=20_000)
    assert solution.converged.all()
    torch.testing.assert_close(dense(product) @ solution.x, b, rtol=0, atol=1e-5)
