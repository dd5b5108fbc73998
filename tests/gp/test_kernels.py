import numpy as np
import pytest
import torch
from arc_cosine import arc_cosine
from scipy.integrate import quad
from scipy.spatial.distance import cdist

from gpbench.gp import kernels, linalg


def inputs(dtype=torch.float64):
    rng = np.random.default_rng(0)
    draw = (rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 4, 3)), rng.uniform(0.5, 2, (2, 3)), np.array([0.7, 3.0]))
    return [torch.as_tensor(a, dtype=dtype) for a in draw]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_rbf_is_the_formula_on_scipys_distances(dtype, tolerance):
    x1, x2, lengthscale, outputscale = inputs(dtype)
    ours = kernels.rbf(x1, x2, lengthscale, outputscale)
    for r in range(2):
        distance = cdist(x1[r] / lengthscale[r], x2[r] / lengthscale[r])
        expected = float(outputscale[r]) * np.exp(-0.5 * distance**2)
        np.testing.assert_allclose(ours[r], expected, rtol=tolerance)


def test_rbf_gradient_agrees_with_finite_differences():
    assert torch.autograd.gradcheck(kernels.rbf, [t.requires_grad_() for t in inputs()])


def test_variance_is_the_outputscale_far_from_the_origin_too():
    x = torch.full((1, 1, 2), 1e3, dtype=torch.float64)
    one = torch.ones(1, 2, dtype=torch.float64)
    assert float(kernels.rbf(x, x, one, one[:, 0])) == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_arc_cosine_is_its_integral(dtype, tolerance):
    # 2 E max(0, w u) max(0, w v) over w ~ N(0, I) in the plane: in polar coordinates int r^3 exp(-r^2 / 2) dr = 2
    rng = np.random.default_rng(0)
    x1, x2, lengthscale, outputscale = rng.normal(size=(4, 2)), rng.normal(size=(3, 2)), np.array([0.5, 2.0]), 0.7
    arguments = [torch.as_tensor(a, dtype=dtype)[None] for a in (x1, x2, lengthscale, outputscale)]
    ours = arc_cosine(*arguments)[0]

    def integrand(angle, u, v):
        direction = np.array([np.cos(angle), np.sin(angle)])
        return max(0.0, direction @ u) * max(0.0, direction @ v) * 4 / (2 * np.pi)

    for i, u in enumerate(x1 / lengthscale):
        for j, v in enumerate(x2 / lengthscale):
            kinks = [np.arctan2(w[1], w[0]) + sign * np.pi / 2 for w in (u, v) for sign in (1, -1)]
            integral, _ = quad(integrand, 0, 2 * np.pi, args=(u, v), points=np.mod(kinks, 2 * np.pi), epsabs=1e-12)
            assert float(ours[i, j]) == pytest.approx(outputscale * integral, rel=tolerance, abs=tolerance)


def test_arc_cosine_of_one_point_is_its_squared_length_and_of_opposite_points_nothing():
    x, _, lengthscale, outputscale = inputs()
    squared = (x / lengthscale[:, None]).square().sum(-1) * outputscale[:, None]
    same = arc_cosine(x, x, lengthscale, outputscale).diagonal(dim1=1, dim2=2)
    opposite = arc_cosine(x, -x, lengthscale, outputscale).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(same, squared, rtol=1e-12, atol=0)
    torch.testing.assert_close(opposite, torch.zeros_like(squared), rtol=0, atol=1e-12)


def test_arc_cosine_of_the_origin_is_zero():
    _, x, lengthscale, outputscale = inputs()
    assert (arc_cosine(torch.zeros_like(x), x, lengthscale, outputscale) == 0).all()


def test_the_factor_of_a_kernel_and_its_gradient_are_those_by_way_of_the_matrix():
    generator = torch.Generator().manual_seed(0)
    z, lengthscale, outputscale = (
        (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()
        for shape in [(2, 4, 3), (2, 3), (2,)]
    )
    weight, jitter = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64), 0.01
    by_way = linalg.cholesky(kernels.rbf(z, z, lengthscale, outputscale), "layer1", jitter * outputscale)
    factor = kernels.rbf_factor(z, lengthscale, outputscale, jitter, "layer1")
    torch.testing.assert_close(factor, by_way, rtol=1e-13, atol=1e-13)
    leaves = [z, lengthscale, outputscale]
    gradients = [torch.autograd.grad((weight * value).sum(), leaves) for value in (factor, by_way)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda *leaves: kernels.rbf_factor(*leaves, jitter, "layer1"), leaves)


@pytest.mark.parametrize("data", [(), (0,), (1,), (0, 1)])
def test_gradient_agrees_with_finite_differences(data):
    """Also where inputs are data, and broadcast against kernels of their own."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 1, 4, 3), (2, 1, 5, 3), (2, 2, 3), (2, 2)]
    values = [0.5 + torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    inputs = [value.requires_grad_(number not in data) for number, value in enumerate(values)]
    assert torch.autograd.gradcheck(kernels.rbf, inputs)


def test_a_lengthscale_starts_at_the_root_of_the_total_variance_of_the_inputs():
    x = np.random.default_rng(0).normal(size=(2, 50, 3)) * [1.0, 5.0, 0.2] + [3.0, -7.0, 0.0]
    found = kernels.start_lengthscale(torch.from_numpy(x))
    np.testing.assert_allclose(found, np.sqrt(x.var(1).sum(1)), rtol=1e-12)
    np.testing.assert_array_equal(kernels.start_lengthscale(torch.from_numpy(x), 0.7), [0.7, 0.7])
