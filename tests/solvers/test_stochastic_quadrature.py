"""Random probes, and log determinants by Lanczos quadrature."""

import math

import pytest
import torch
from solver_cases import SYSTEMS, dense, normals, seeded, system

from gpbench.solvers import quadrature
from gpbench.solvers.conjugate_gradients import solve
from gpbench.solvers.preconditioners import Diagonal, build


def test_probes_are_independent_signs_of_their_generator():
    probes = quadrature.rademacher(500, 40, seeded(0))
    assert set(probes.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(probes, quadrature.rademacher(500, 40, seeded(0)))
    products = probes.mT @ probes / 500
    assert (products - torch.eye(40)).abs().max() < 5 / 500**0.5


def test_a_generator_seeded_by_a_normal():
    one, other = (quadrature.seeded(normals(1, seed=s)) for s in (0, 1))
    assert one.initial_seed() == quadrature.seeded(normals(1)).initial_seed() != other.initial_seed()


@pytest.mark.parametrize("kind", SYSTEMS)
@pytest.mark.parametrize("name", ["none", "nystrom", "pitc", "block_jacobi"])
def test_log_determinant_lies_within_its_interval_of_the_cholesky_value(name, kind):
    product = system(kind)
    preconditioner = build(name, product, 20, seeded(1))
    probes = preconditioner.probes(50, seeded(2))
    mean, error = quadrature.log_determinant(product, probes, 60, preconditioner)
    truth = 2 * torch.linalg.cholesky(dense(product)).diagonal().log().sum()
    assert abs(mean - truth) <= 3 * error


def test_all_steps_of_lanczos_are_exact_for_every_probe():
    """z^T log(A) z by an eigendecomposition; a column of conjugate gradients that stops early gives the same."""
    product = system(n=30)
    probes = quadrature.rademacher(30, 4, seeded(2))
    theta, vectors = torch.linalg.eigh(dense(product))
    truth = ((vectors.mT @ probes).square() * theta.log()[:, None]).sum(0)
    for tolerance in (0.0, 1e-3):
        solution = solve(product, probes, tolerance=tolerance, cap=100)
        torch.testing.assert_close(quadrature.log_quadratics(solution, probes), truth, rtol=1e-6, atol=1e-6)


def test_a_coefficient_that_rounding_leaves_below_zero_is_none():
    """T = diag(1, 1/2) of two steps, of which the first alone counts."""
    one = torch.ones(2, dtype=torch.float64)
    found = quadrature._log_moment(one * torch.tensor([0.25, 2.0]), one * torch.tensor([-1e-20, 0.0]))
    assert found.item() == pytest.approx(math.log(4))


@pytest.mark.filterwarnings("ignore:std:UserWarning")  # of single probes
def test_the_standard_error_is_that_of_a_mean_over_probes():
    product, probes = system(n=30), quadrature.rademacher(30, 5, seeded(2))
    each = torch.stack([quadrature.log_determinant(product, probes[:, [c]], 40)[0] for c in range(5)])
    mean, error = quadrature.log_determinant(product, probes, 40)
    assert mean.item() == pytest.approx(each.mean().item(), rel=1e-9)
    assert error.item() == pytest.approx(((each - each.mean()).square().sum() / 4 / 5).sqrt().item(), rel=1e-6)


def test_a_diagonal_matrix_by_itself_has_no_error():
    d = torch.linspace(1, 5, 20, dtype=torch.float64)
    mean, error = quadrature.log_determinant(Diagonal(1 / d), Diagonal(d).probes(3, seeded(0)), 5, Diagonal(d))
    assert mean.item() == pytest.approx(d.log().sum().item(), rel=1e-12)
    assert error < 1e-12
