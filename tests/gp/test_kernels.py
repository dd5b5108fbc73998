import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from gpbench.gp import kernels


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
