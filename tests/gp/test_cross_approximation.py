"""Adaptive cross approximation: the whole matrix at full rank, its error, given pivots, rewhitening."""

import torch

from gpbench.gp import cross_approximation as aca
from gpbench.gp.deep_kernels import DeepKernel


def matrix(n=20, particles=2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, particles, n, 2, generator=generator, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    return DeepKernel("composition", one).covariance(x, x, one)


def approximate(k: torch.Tensor, rank: int):
    def column(pivot):
        return k.gather(-1, pivot[..., None, None].expand(*k.shape[:-1], 1))[..., 0]

    return aca.pivots(column, k.diagonal(dim1=-2, dim2=-1), rank)


def test_full_rank_gives_the_matrix_and_its_factor_up_to_pivoting():
    k = matrix()
    pivots, columns, _ = approximate(k, 20)
    torch.testing.assert_close(columns @ columns.mT, k, rtol=0, atol=1e-10)
    for s in range(2):
        order = pivots[0, s]
        assert sorted(order.tolist()) == list(range(20))
        triangle = columns[0, s][order]
        assert triangle.triu(1).abs().max() < 1e-7
        factor = torch.linalg.cholesky(k[0, s][order][:, order])
        torch.testing.assert_close(triangle[:, :10], factor[:, :10], rtol=1e-6, atol=1e-8)


def test_the_trace_of_the_error_is_the_rest_of_the_diagonal_and_falls():
    k = matrix()
    before = torch.full((1, 2), torch.inf, dtype=torch.float64)
    for rank in range(1, 20):
        _, columns, rest = approximate(k, rank)
        error = (k - columns @ columns.mT).diagonal(dim1=-2, dim2=-1).sum(-1)
        torch.testing.assert_close(error, rest.sum(-1), rtol=1e-8, atol=1e-9)
        assert (error <= before + 1e-12).all()
        before = error


def test_the_first_columns_are_those_of_the_pivots():
    k = matrix()
    pivots, columns, _ = approximate(k, 6)
    for s in range(2):
        order = pivots[0, s]
        factor = torch.linalg.cholesky(k[0, s][order][:, order])
        given = torch.linalg.solve_triangular(factor.mT, k[0, s][:, order], upper=True, left=False)
        torch.testing.assert_close(given, columns[0, s], rtol=1e-9, atol=1e-10)


def test_a_matrix_of_low_rank_is_found_and_further_columns_are_no_numbers_of_note():
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(1, 1, 12, 3, generator=generator, dtype=torch.float64)
    pivots, columns, rest = approximate(root @ root.mT, 5)
    assert columns.isfinite().all()
    assert pivots.unique().numel() == 5  # no row twice, though no variance is left
    torch.testing.assert_close(columns[..., :3] @ columns[..., :3].mT, root @ root.mT, rtol=0, atol=1e-12)
    assert rest.max() < 1e-12


def test_rewhitening_onto_the_same_pivots_returns_the_same_variables():
    _, columns, _ = approximate(matrix(), 6)
    xi = torch.randn(1, 2, 6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(aca.rewhiten(columns, columns @ xi), xi, rtol=1e-8, atol=1e-8)


def test_rewhitening_with_jitter_solves_the_normal_equations_of_ridge_regression():
    _, columns, _ = approximate(matrix(), 6)
    u = torch.randn(1, 2, 20, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    expected = torch.linalg.solve(columns.mT @ columns + 0.3 * torch.eye(6).double(), columns.mT @ u)
    torch.testing.assert_close(aca.rewhiten(columns, u, 0.3), expected, rtol=1e-9, atol=1e-9)
