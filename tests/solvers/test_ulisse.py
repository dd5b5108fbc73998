"""ULISSE has no bias (over all of its random choices, with their probabilities), and the variance that is derived."""

import math

import pytest
import torch

from gpbench.gp.kernels import Kernel
from gpbench.solvers import conjugate_gradients, ulisse
from gpbench.solvers.products import KernelProduct

THRESHOLD, TOLERANCE = 1.0, 1e-8
WEIGHTS = {"exp(0.3 r)": ulisse.exponential(0.3), "exp(r)": ulisse.exponential(1.0), "ratio": ulisse.constant(1.5)}


def system(n=40, lengthscale=0.6, noise=0.1) -> tuple[KernelProduct, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    kernel = Kernel("rbf", {"lengthscale": x.new_tensor([lengthscale]), "outputscale": x.new_tensor(1.0)})
    return KernelProduct(kernel, x, noise), torch.randn(n, 2, generator=generator, dtype=torch.float64)


def survival(weight: ulisse.Weight, terms: int) -> list[float]:
    """P_0 = 1, P_1, ..., by the product that defines them."""
    return [math.prod(1 / weight(r) for r in range(1, j + 1)) for j in range(terms)]


def estimates(product, b, start, weight, uniform, columns) -> torch.Tensor:
    watch = ulisse.Ulisse(weight, THRESHOLD, torch.tensor(uniform, dtype=b.dtype), torch.tensor(columns), start)
    conjugate_gradients.solve(product, b, start=start, tolerance=TOLERANCE, cap=400, watch=watch)
    return watch.estimates


def increments(product, b, start) -> tuple[torch.Tensor, list[int]]:
    """delta_1, delta_2, ... `[T, n, c]` of the converged solution, and l of each column."""
    seen, norms = [], []

    def watch(iteration, increment, residual):
        seen.append(increment)
        norms.append(residual.clone())

    conjugate_gradients.solve(product, b, start=start, tolerance=TOLERANCE, cap=400, watch=watch)
    below = torch.stack(norms) < THRESHOLD
    return torch.stack(seen), (below.int().argmax(0) + 1).tolist()


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("warm", [False, True])
def test_the_expectation_is_the_converged_solution(name, warm):
    """Over u in each interval between P_j+1 and P_j, whose length is its probability."""
    product, b = system()
    start = 0.5 * b if warm else torch.zeros_like(b)
    solution = conjugate_gradients.solve(product, b, start=start, tolerance=TOLERANCE, cap=400).x
    probabilities = [*survival(WEIGHTS[name], 35), 0.0]
    expectation = torch.zeros_like(b)
    for one, next_one in zip(probabilities, probabilities[1:], strict=False):
        middle = 0.5 * (one + next_one)
        expectation += (one - next_one) * estimates(product, b, start, WEIGHTS[name], [middle, middle], [0, 1])
    torch.testing.assert_close(expectation, solution, rtol=0, atol=1e-6)


def test_the_variance_is_the_one_derived_and_that_of_the_paper_is_astronomical():
    """Var = sum_j (1/P_j - 1) (delta_j^2 + 2 delta_j sum_{k>j} delta_k), against the enumerated second moment.

    One column: late increments are rounded by what stands beside them, and their weights are up to 1e90."""
    product, b = system(n=20)
    b = b[:, :1]
    start = torch.zeros_like(b)
    deltas, first = increments(product, b, start)
    derived = {}
    for name, weight in WEIGHTS.items():
        after = deltas[first[0] :, :, 0]
        probabilities = torch.tensor([*survival(weight, len(after) + 1), 0.0], dtype=b.dtype)
        later = after.flip(0).cumsum(0).flip(0) - after
        odds = (1 / probabilities[1:-1] - 1)[:, None]
        derived[name] = (odds * (after.square() + 2 * after * later)).sum(0)
        mean = second = torch.zeros_like(b[:, 0])
        for one, next_one in zip(probabilities.tolist(), probabilities[1:].tolist(), strict=False):
            found = estimates(product, b, start, weight, [0.5 * (one + next_one)], [0])[:, 0]
            mean, second = mean + (one - next_one) * found, second + (one - next_one) * found.square()
        torch.testing.assert_close(second - mean.square(), derived[name], rtol=1e-5, atol=1e-6)
    assert len(after) > 10  # further iterations
    assert derived["exp(r)"].max() > 1e40
    assert derived["ratio"].sum() < mean.square().sum()


def test_expected_further_terms():
    """The sheet's 1.4202 for beta = 1 and 1.0000 for beta = 100, whose weights overflow; a constant ratio."""
    of_beta = [(ulisse.exponential(1.0), 30, 1.4202), (ulisse.exponential(100.0), 5, 1.0)]
    for weight, terms, expected in (*of_beta, (ulisse.constant(1.5), 40, 3.0)):
        assert sum(survival(weight, terms)) == pytest.approx(expected, abs=5e-5)
    product, b = system()
    uniform = [0.3, 1e-100]  # between P_1 = e^-100 and P_2 = e^-300
    watch = ulisse.Ulisse(ulisse.exponential(100.0), THRESHOLD, b.new_tensor(uniform), torch.tensor([0, 1]), 0 * b)
    found = conjugate_gradients.solve(product, b, tolerance=TOLERANCE, cap=400, watch=watch)
    _, first = increments(product, b, 0 * b)
    assert found.iterations.tolist() == [first[0], first[1] + 1]
    assert watch.estimates.isfinite().all()


def test_two_accumulators_share_a_column_and_go_on_until_both_have_returned():
    product, b = system()
    weight, start = ulisse.exponential(1.0), torch.zeros_like(b)
    together = estimates(product, b, start, weight, [0.9, 1e-4, 0.2], [0, 0, 1])
    for place, (u, column) in enumerate([(0.9, 0), (1e-4, 0), (0.2, 1)]):
        alone = estimates(product, b[:, [column]], start[:, [column]], weight, [u], [0])
        torch.testing.assert_close(together[:, [place]], alone, rtol=1e-6, atol=1e-6)
    deltas, first = increments(product, b, start)
    torch.testing.assert_close(together[:, 0], deltas[: first[0], :, 0].sum(0))


def test_iterations_are_those_that_some_accumulator_takes():
    product, b = system()
    _, first = increments(product, b, torch.zeros_like(b))
    for further, u in enumerate((0.9, 0.2, 0.01)):  # e^-1 = 0.37, e^-3 = 0.05, e^-6 = 0.0025
        watch = ulisse.Ulisse(ulisse.exponential(1.0), THRESHOLD, b.new_tensor([u, u]), torch.tensor([0, 1]), 0 * b)
        found = conjugate_gradients.solve(product, b, tolerance=TOLERANCE, cap=400, watch=watch)
        assert found.iterations.tolist() == [one + further for one in first]


def test_a_start_that_has_converged_is_returned():
    product, b = system()
    solution = conjugate_gradients.solve(product, b, tolerance=1e-12, cap=400).x
    found = estimates(product, b, solution, ulisse.exponential(1.0), [0.5, 1e-6], [0, 1])
    assert torch.equal(found, solution)


def test_terms_end_though_the_residual_rises_again():
    """l is the first iteration below the threshold: from there on the probabilities of terms fall, 1/2, 1/4, ..."""
    early = ulisse.Ulisse(ulisse.constant(2.0), 1.0, torch.tensor([0.3]), torch.tensor([0]), torch.zeros(1, 1))
    going = [not bool(early(i, torch.ones(1, 1), torch.tensor([norm]))) for i, norm in enumerate((0.5, 2.0))]
    assert going == [True, False]
    assert early.estimates.tolist() == [[1 + 1 / 0.5]]
