import pytest
import torch

from gpbench.gp import linalg


@pytest.fixture(autouse=True)
def no_events():
    linalg.events()


def definite(replicas: int = 3, size: int = 4, dtype=torch.float64) -> torch.Tensor:
    root = torch.randn(replicas, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (root @ root.mT + torch.eye(size, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_definite_matrices_get_their_factor_and_no_jitter(dtype):
    matrix = definite(dtype=dtype)
    factor = linalg.cholesky(matrix, "layer1")
    torch.testing.assert_close(factor @ factor.mT, matrix)
    assert linalg.events() == []


def test_jitter_goes_only_to_the_replica_that_needs_it():
    matrix = definite()
    matrix[1] = 2.0
    factor = linalg.cholesky(matrix, "layer2")
    (event,) = linalg.events()
    assert event == {"name": "layer2", "replica": 1, "jitter": pytest.approx(2e-8), "failed": False, "times": 1}
    assert torch.equal(factor[[0, 2]], linalg.cholesky(matrix[[0, 2]], "layer2"))
    torch.testing.assert_close(factor[1] @ factor[1].mT, matrix[1], rtol=0, atol=1e-7)


def test_what_happens_again_is_counted_and_the_largest_jitter_kept():
    singular = torch.full((2, 3, 3), 2.0, dtype=torch.float64)
    for scale in (1.0, 5.0, 3.0):
        linalg.cholesky(scale * singular, "layer1")
    with linalg.replicas_from(7):
        linalg.cholesky(singular[:1], "layer1")
    found = [(event["replica"], event["times"], event["jitter"]) for event in linalg.events()]
    assert found == [(0, 3, pytest.approx(1e-7)), (1, 3, pytest.approx(1e-7)), (7, 1, pytest.approx(2e-8))]


def test_jitter_is_raised_tenfold_until_it_is_enough():
    matrix = torch.diag(torch.tensor([3.0 + 3e-6, 1.0, -3e-6], dtype=torch.float64))[None]
    factor = linalg.cholesky(matrix, "layer1")
    (event,) = linalg.events()
    assert event["jitter"] == pytest.approx(1e-5 * 4 / 3)
    assert factor.isfinite().all()


@pytest.mark.parametrize(("least", "is_mended"), [(-1.8e-4, True), (-2.2e-4, False)])
def test_a_matrix_that_needs_more_than_1e_4_of_its_diagonal_has_no_factor(least, is_mended):
    matrix = torch.diag(torch.tensor([3.0 - least, 3.0, least], dtype=torch.float64))[None] / 2  # of mean diagonal 1
    assert bool(linalg.cholesky(matrix, "layer1").isfinite().all()) == is_mended


@pytest.mark.parametrize("broken", [float("nan"), -1.0])
def test_hopeless_replica_is_reported_and_leaves_factor_and_gradient_of_the_others_alone(broken):
    matrix = definite()
    matrix[1, 2, 2] = broken
    matrix.requires_grad_()
    factor = linalg.cholesky(matrix, "layer3")
    (event,) = linalg.events()
    assert (event["name"], event["replica"], event["failed"]) == ("layer3", 1, True)
    assert factor[1].isnan().all()
    factor[[0, 2]].square().sum().backward()
    alone = matrix.detach()[[0, 2]].requires_grad_()
    linalg.cholesky(alone, "layer3").square().sum().backward()
    assert torch.equal(matrix.grad[[0, 2]], alone.grad)


def test_replica_is_the_last_axis_in_front_of_the_matrix():
    matrix = definite(6).reshape(2, 3, 4, 4).clone()
    matrix[1, 2] = 1.0
    linalg.cholesky(matrix, "layer1")
    assert [event["replica"] for event in linalg.events()] == [2]


def test_base_jitter_is_added_always_and_not_recorded():
    matrix, jitter = definite(), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    factor = linalg.cholesky(matrix, "layer1", jitter)
    torch.testing.assert_close(factor @ factor.mT, matrix + jitter[:, None, None] * torch.eye(4, dtype=torch.float64))
    assert linalg.events() == []


def test_gradient_goes_through_the_jittered_factor():
    matrix = (definite(1, 3) + definite(1, 3).mT).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: linalg.cholesky((m + m.mT) / 2, "layer1"), matrix)
    singular = torch.full((1, 2, 2), 2.0, dtype=torch.float64, requires_grad=True)
    linalg.cholesky(singular, "layer1").sum().backward()
    assert singular.grad.isfinite().all()


def test_quadratic_and_log_det_with_their_gradients_are_those_of_the_matrix():
    matrix, y = definite(2, 3).requires_grad_(), torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    both = linalg.quadratic_and_log_det(matrix, y, "layer1")
    torch.testing.assert_close(both[0], (y * torch.linalg.solve(matrix, y)).sum((1, 2)))
    torch.testing.assert_close(both[1], torch.logdet(matrix))

    def of_symmetric(matrix, y):
        return linalg.quadratic_and_log_det((matrix + matrix.mT) / 2, y, "layer1")

    assert torch.autograd.gradcheck(of_symmetric, [matrix, y])


def test_events_can_be_read_without_clearing():
    linalg.cholesky(torch.ones(1, 2, 2, dtype=torch.float64), "layer1")
    assert linalg.events(clear=False) == linalg.events()
    assert linalg.events() == []


def test_where_checks_are_deferred_a_replica_without_a_factor_gets_nan_and_the_others_theirs():
    """Nothing is recorded and nothing mended: the step is made again outside."""
    matrix = definite()
    matrix[1] = 2.0
    expected = linalg.cholesky(matrix[[0, 2]], "layer1")
    with linalg.deferred_checks():
        factor = linalg.cholesky(matrix, "layer1")
    assert torch.equal(factor[[0, 2]], expected)
    assert factor[1, -1, -1].isnan()
    assert linalg.events() == []
    assert linalg.cholesky(matrix, "layer1").isfinite().all()
    assert len(linalg.events()) == 1
