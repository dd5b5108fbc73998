"""Stochastic dual descent finds the dense solution, its objective has no bias, its step is stable."""

import itertools

import pytest
import torch

from gpbench.gp.kernels import Kernel
from gpbench.solvers import dual_descent
from gpbench.solvers.products import KernelProduct

MOMENTUM = 0.9


def system(n=60, lengthscale=0.5, noise=0.1) -> tuple[KernelProduct, torch.Tensor, torch.Tensor]:
    """A product, A itself and two right-hand sides."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    kernel = Kernel("matern32", {"lengthscale": x.new_tensor([lengthscale]), "outputscale": x.new_tensor(1.0)})
    product = KernelProduct(kernel, x, noise)
    return product, product.rows(slice(None)), torch.randn(n, 2, generator=generator, dtype=torch.float64)


def begin(b: torch.Tensor) -> dual_descent.Iterate:
    return dual_descent.Iterate(*(torch.zeros_like(b) for _ in range(3)))


def descend(product, b, steps, size, averaging) -> dual_descent.Iterate:
    generator, now = torch.Generator().manual_seed(1), begin(b)
    blocks = (torch.randperm(product.n, generator=generator)[:size] for _ in itertools.count())
    beta = dual_descent.step_size(product, next(blocks), MOMENTUM)
    for block in itertools.islice(blocks, steps):
        now, _ = dual_descent.step(product, b, now, block, beta, MOMENTUM, averaging)
    return now


@pytest.mark.parametrize("lengthscale", [0.01, 0.5, 20.0])
@pytest.mark.parametrize("size", [1, 60])
@pytest.mark.slow
def test_it_finds_the_dense_solution(lengthscale, size):
    product, matrix, b = system(lengthscale=lengthscale)
    exact = torch.linalg.solve(matrix, b)
    found = descend(product, b, 4000, size, 100 / 4000).mean
    assert ((found - exact).norm(dim=0) / exact.norm(dim=0)).max() < 1e-2
    # predictions, which live where K is large, are found first
    image = matrix - 0.1 * torch.eye(60, dtype=b.dtype)
    assert (image @ (found - exact)).abs().max() < 1e-2


def test_an_average_over_all_blocks_is_the_gradient_and_the_objective():
    """By enumeration of all blocks of 2 of 5 rows."""
    product, matrix, b = system(n=5)
    generator = torch.Generator().manual_seed(2)
    now = dual_descent.Iterate(*(torch.randn(5, 2, generator=generator, dtype=b.dtype) for _ in range(3)))
    ahead, beta = now.alpha + MOMENTUM * now.velocity, torch.tensor(0.01)
    blocks = [torch.tensor(rows) for rows in itertools.combinations(range(5), 2)]
    steps = [dual_descent.step(product, b, now, block, beta, MOMENTUM, 0.5) for block in blocks]
    velocity = torch.stack([moved.velocity for moved, _ in steps]).mean(0)
    torch.testing.assert_close(velocity, MOMENTUM * now.velocity - 0.01 * (matrix @ ahead - b), rtol=1e-6, atol=1e-9)
    objective = torch.stack([value for _, value in steps]).mean(0)
    exact = 0.5 * (ahead * (matrix @ ahead)).sum(0) - (ahead * b).sum(0)
    torch.testing.assert_close(objective, exact)
    for moved, _ in steps:
        torch.testing.assert_close(moved.alpha, now.alpha + moved.velocity)
        torch.testing.assert_close(moved.mean, 0.5 * (moved.alpha + now.mean))


def test_right_hand_sides_do_not_meet():
    product, _, b = system()
    together = descend(product, b, 50, 8, 0.1)
    for column in range(2):
        alone = descend(product, b[:, [column]], 50, 8, 0.1)
        torch.testing.assert_close(together.mean[:, [column]], alone.mean, rtol=1e-9, atol=1e-12)


def test_the_step_is_that_of_the_paper_where_rows_are_unlike():
    """n beta = 51 for blocks of 512 and momentum 0.9: the paper's, tuned by hand, lie between 10 and 100."""
    product, _, _ = system(n=700, lengthscale=1e-4, noise=0.0)
    assert 700 * float(dual_descent.step_size(product, torch.arange(512), MOMENTUM)) == pytest.approx(51.2, rel=1e-3)


def test_the_step_is_bounded_by_the_eigenvalues_of_a_block_and_by_the_largest_variance():
    """Of 20 equal rows lambda_max is 20.1; of rows that are unlike one alone has a variance of 10."""
    alike = KernelProduct(system()[0].kernel, torch.zeros(60, 2, dtype=torch.float64), 0.1)
    assert 60 * float(dual_descent.step_size(alike, torch.arange(20), MOMENTUM)) == pytest.approx(20 / 20.1)
    unlike, _, _ = system(lengthscale=1e-4)
    unlike = KernelProduct(unlike.kernel, unlike.x, torch.tensor([0.0] * 59 + [9.0], dtype=torch.float64))
    assert 60 * float(dual_descent.step_size(unlike, torch.arange(20), MOMENTUM)) == pytest.approx(20 * 0.1 / 10)


def test_one_row_and_repeated_rows():
    for product in (KernelProduct(system()[0].kernel, torch.zeros(n, 2, dtype=torch.float64), 0.1) for n in (1, 6)):
        b = torch.ones(product.n, 1, dtype=torch.float64)
        found = descend(product, b, 2000, min(product.n, 3), 0.05).mean
        torch.testing.assert_close(found, torch.full_like(b, 1 / (product.n + 0.1)), rtol=1e-3, atol=0)
