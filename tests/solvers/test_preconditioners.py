"""Preconditioners: what they are, that they are applied exactly, and that they shorten conjugate gradients."""

import pytest
import torch
from solver_cases import SYSTEMS, dense, kernel, normals, seeded, system

from gpbench.errors import UserError
from gpbench.gp.kernels import Kernel
from gpbench.solvers import blocks, preconditioners
from gpbench.solvers.conjugate_gradients import solve
from gpbench.solvers.preconditioners import BUILD, INNER_TOLERANCE, Factored, Interpolated, build
from gpbench.solvers.products import KernelProduct
from gpbench.solvers.quadrature import rademacher

NAMES = tuple(BUILD)
RANK = 20


def built(name: str, product: KernelProduct, rank: int = RANK):
    return build(name, product, rank, seeded(1))


@pytest.mark.parametrize("kind", SYSTEMS)
@pytest.mark.parametrize("name", NAMES)
def test_application_is_that_of_the_dense_inverse(name, kind):
    preconditioner, r = built(name, system(kind)), normals(150, 3, seed=2)
    p = preconditioner.dense()
    torch.testing.assert_close(p, p.mT, rtol=1e-10, atol=1e-12)
    truth = torch.linalg.solve(p, r)
    if preconditioner.flexible:
        assert ((p @ preconditioner(r) - r).norm(dim=0) <= INNER_TOLERANCE * r.norm(dim=0) * (1 + 1e-6)).all()
        assert preconditioner.inner > 0
    else:
        torch.testing.assert_close(preconditioner(r), truth, rtol=1e-8, atol=1e-8)
        assert preconditioner.inner == 0


@pytest.mark.parametrize("kind", SYSTEMS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "ski")) for n in NAMES])
def test_the_tolerance_is_reached_with_every_one(name, kind):
    product, b = system(kind), normals(150, 3, seed=2)
    preconditioner = built(name, product)
    solution = solve(
        product, b, precondition=preconditioner, tolerance=1e-7, cap=5000, flexible=preconditioner.flexible
    )
    assert solution.converged.all()
    assert ((b - dense(product) @ solution.x).norm(dim=0) <= 1.001e-7).all()


@pytest.mark.parametrize("kind", SYSTEMS)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("ski", "regularised")])
def test_determinant_and_root(name, kind):
    """The root R by its action on the signs that it draws: rows of R R^T average to P."""
    preconditioner = built(name, system(kind, n=40), 5)
    p = preconditioner.dense()
    assert isinstance(preconditioner, Factored)
    torch.testing.assert_close(preconditioner.log_determinant(), torch.logdet(p), rtol=1e-10, atol=1e-8)
    drawn = preconditioner.probes(20_000, seeded(3))
    estimate = drawn @ drawn.mT / 20_000
    error = ((p.diagonal()[:, None] * p.diagonal() + p.square()) / 20_000).sqrt()  # at most, that of normals
    assert ((estimate - p).abs() <= 5 * error + 1e-12).all()


@pytest.mark.parametrize("name", ["nystrom", "fitc", "pitc", "partial_svd", "pivoted_cholesky"])
def test_a_rank_above_the_number_of_rows_is_the_matrix_itself(name):
    product = system(n=40)
    preconditioner = built(name, product, rank=1000)
    torch.testing.assert_close(preconditioner.dense(), dense(product), rtol=1e-6, atol=1e-6)
    solution = solve(product, normals(40, 1), precondition=preconditioner, tolerance=1e-5, cap=10)
    assert int(solution.iterations) <= 2


def test_the_partial_svd_takes_a_power_step():
    """Of S K S in the range of (S K S)^2 Omega (halko2011, algorithm 4.4), where the spectrum falls slowly."""
    product = system(formula="matern32")
    k = dense(product) - product.noise.diag()
    omega = rademacher(150, 15, seeded(1))
    basis, _ = torch.linalg.qr(k @ (k @ omega))
    values, vectors = torch.linalg.eigh(basis.mT @ k @ basis)
    phi = basis @ vectors[:, -5:] * values[-5:].sqrt()
    found = built("partial_svd", product, 5).dense() - product.noise.diag()
    torch.testing.assert_close(found, phi @ phi.mT, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_one_row_and_repeated_rows(name):
    for x in (torch.zeros(1, 3, dtype=torch.float64), torch.ones(12, 3, dtype=torch.float64)):
        product = KernelProduct(kernel(), x, 1e-4)
        b = torch.ones(len(x), 1, dtype=torch.float64)
        preconditioner = built(name, product)
        solution = solve(
            product, b, precondition=preconditioner, tolerance=1e-8, cap=100, flexible=preconditioner.flexible
        )
        assert solution.converged.all()
        torch.testing.assert_close(solution.x, torch.linalg.solve(dense(product), b), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_is_no_hang(name):
    """Neither where the preconditioner can be built nor where it cannot."""
    product = system()
    x = product.x.clone()
    x[7, 0] = torch.nan
    bad = KernelProduct(product.kernel, x, product.noise)
    preconditioner = built(name, bad)
    assert preconditioner(normals(150, 1)).isnan().all()
    solution = solve(
        bad, normals(150, 1), precondition=preconditioner, tolerance=1e-8, cap=10**6, flexible=preconditioner.flexible
    )
    assert not solution.converged.any()
    assert (solution.iterations <= 1).all()


@pytest.mark.parametrize("formula", ["matern32", "matern52 + linear"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "ski"])
@pytest.mark.slow
def test_other_kernels(name, formula):
    if (name, formula) == ("spectral", "matern52 + linear"):
        pytest.skip("its features are those of kernels of distances")
    product, b = system(formula=formula), normals(150, 1, seed=2)
    preconditioner = built(name, product)
    solution = solve(
        product, b, precondition=preconditioner, tolerance=1e-7, cap=5000, flexible=preconditioner.flexible
    )
    assert ((b - dense(product) @ solution.x).norm(dim=0) <= 1.001e-7).all()


def test_refusals_are_one_line():
    with pytest.raises(UserError, match=r"unknown preconditioner 'nystroem'; did you mean 'nystrom'\?"):
        built("nystroem", system())
    with pytest.raises(UserError, match="ski needs kernel rbf .* not matern32"):
        built("ski", system(formula="matern32"))
    wide = KernelProduct(kernel(width=57), normals(50, 57), 0.1)
    with pytest.raises(UserError, match=r"2\^57; leave it out"):
        built("ski", wide)


def test_products_inside_are_counted_over_all_applications():
    product, r = system(), normals(150, 2, seed=2)
    preconditioner = built("regularised", product)
    torch.testing.assert_close(preconditioner.dense(), dense(product) + 100 * product.noise.mean() * torch.eye(150))
    preconditioner(r), preconditioner(r)
    assert preconditioner.inner == product.products > 0


def test_blocks_are_the_root_of_the_rows_and_lie_together_in_lengthscales():
    assert len(built("block_jacobi", system()).index) == 12  # floor(sqrt(150))
    x = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 1.0], [10.0, 1.0]], dtype=torch.float64)
    values = {"lengthscale": x.new_tensor([1000.0, 0.1]), "outputscale": x.new_tensor(1.0)}
    index = built("block_jacobi", KernelProduct(Kernel("rbf", values), x, 0.1)).index
    assert index.tolist() == [[0, 1], [2, 3]], "100 times as far apart along the second input"


def test_a_grid_through_all_rows_is_the_kernel(monkeypatch):
    """Rows at the nodes of the grid, whose interpolation is exact."""
    steps = torch.linspace(-1, 1, 4, dtype=torch.float64)
    x = torch.cartesian_prod(steps, 2 * steps)  # 16 rows: floor(16 ** (1.5 / 3)) = 4 nodes an input
    product = KernelProduct(kernel(width=2), x, 0.1)
    torch.testing.assert_close(built("ski", product).dense(), dense(product), rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(preconditioners, "MOST_NODES", 15)
    with pytest.raises(UserError, match=r"a grid of at most 15 nodes, not rbf and 4\^2"):
        built("ski", product)


def test_grids_have_the_sizes_that_the_cost_allows():
    """About 3, 15 and 5 nodes an input on the three data sets of the paper, by their rows and inputs."""
    for n, d, size in ((1030, 8, 3), (9568, 4, 15), (45730, 9, 5)):
        assert Interpolated(KernelProduct(kernel(width=d), normals(n, d), 0.1)).size == size


def test_blocks_are_a_balanced_partition_of_rows_that_lie_together():
    x = normals(203, 2)
    index = blocks.partition(x, 14)
    sizes = (index < 203).sum(1)
    assert index[index < 203].sort().values.tolist() == list(range(203))
    assert sizes.min() >= 13
    assert sizes.max() <= 16
    spread = torch.stack([x[rows[rows < 203]].var(0).sum() for rows in index]).mean()
    assert spread < 0.2 * x.var(0).sum()
    values = normals(203, 3, seed=1)
    assert torch.equal(blocks.put(blocks.take(values, index), index, 203), values)


@pytest.mark.parametrize("name", ["nystrom", "fitc", "pitc"])
def test_long_lengthscales_take_a_fifth_of_the_iterations_at_most(name):
    """As on concrete and power (the study draws their heat maps); block Jacobi does not."""
    x = normals(400, 4)
    values = {"lengthscale": torch.full((1,), 10.0).double(), "outputscale": torch.ones(()).double()}
    product, b = KernelProduct(Kernel("rbf", values), x, 1e-2), normals(400, 1, seed=1)
    plain, with_it, jacobi = (
        int(solve(product, b, precondition=built(which, product), tolerance=2e-4, cap=10_000).iterations)
        for which in ("none", name, "block_jacobi")
    )
    assert with_it <= plain / 5
    assert jacobi > plain / 5
