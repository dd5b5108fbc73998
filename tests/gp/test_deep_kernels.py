"""Composition and convolution: their limits, invariances, and that the convolution is a covariance."""

import math

import pytest
import torch

from gpbench.gp.deep_kernels import DeepKernel

ONE = torch.ones(1, 1, dtype=torch.float64)


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("lengthscale", [0.5, 2.0])
@pytest.mark.parametrize("architecture", ["composition", "convolution"])
def test_at_the_start_it_is_stationary(architecture, lengthscale):
    kernel, x = DeepKernel(architecture, lengthscale * ONE), normals(1, 1, 9, 3)
    places = kernel.places(x, kernel.start(x))
    expected = 1.7 * torch.exp(-0.5 * torch.cdist(x, x).square() / lengthscale**2)
    torch.testing.assert_close(kernel.covariance(places, places, 1.7 * ONE), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(kernel.stationary(x, x, 1.7 * ONE), expected)


def test_composition_sees_distances_only():
    kernel, u = DeepKernel("composition", ONE), normals(1, 2, 9, 3)
    rotation = torch.linalg.qr(normals(3, 3, seed=1))[0]
    moved = u @ rotation + 5.0
    torch.testing.assert_close(kernel.covariance(u, u, ONE), kernel.covariance(moved, moved, ONE))


def fields(n, d, seed):
    x = normals(1, 1, n, d, seed=seed)
    return x, normals(1, 20, n, 1, seed=100 + seed).exp()


@pytest.mark.parametrize("d", [1, 2, 5])
def test_convolution_is_a_covariance(d):
    kernel = DeepKernel("convolution", ONE)
    x, u = fields(60, d, d)
    places = kernel.places(x, u)
    k = kernel.covariance(places, places, 2.0 * ONE)
    torch.testing.assert_close(k.diagonal(dim1=-2, dim2=-1), torch.full((1, 20, 60), 2.0, dtype=k.dtype))
    assert torch.linalg.eigvalsh(k).min() > -1e-10
    h = u.clamp(0.1, 10.0)[0, 0].square()
    total, squares = h + h.mT, torch.cdist(x[0, 0], x[0, 0]).square()
    expected = 2 * (2 * (h * h.mT).sqrt() / total) ** (d / 2) * torch.exp(-squares / total)
    torch.testing.assert_close(k[0, 0], expected, rtol=1e-9, atol=1e-12)


def test_the_printed_convolution_is_none():
    """rho(2 |x - x'| / (h + h')) with the same factor before it has negative eigenvalues."""
    x, u = fields(60, 2, 2)
    for s in range(20):
        h = u.clamp(0.1, 10.0)[0, s].square()
        total = h + h.mT
        argument = 2 * torch.cdist(x[0, 0], x[0, 0]) / total
        printed = 2 * (h * h.mT).sqrt() / total * torch.exp(-0.5 * argument.square())
        assert torch.linalg.eigvalsh(printed).min() < -1e-8


def test_local_lengthscales_stay_within_their_range():
    kernel, x = DeepKernel("convolution", 2.0 * ONE), normals(1, 1, 3, 2)
    u = torch.tensor([-1.0, 3.0, 1e6], dtype=torch.float64).view(1, 1, 3, 1)
    assert kernel.places(x, u)[0, 0, :, -1].tolist() == pytest.approx([0.2, 3.0, 20.0])
    assert math.isfinite(kernel.covariance(kernel.places(x, u), kernel.places(x, u), ONE).sum().item())
