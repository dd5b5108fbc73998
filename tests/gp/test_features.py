"""Random features against the kernels they estimate."""

import numpy as np
import pytest
import torch
from arc_cosine import arc_cosine

from gpbench.gp import features, kernels
from rates import exponent

KERNELS = {"rbf": kernels.rbf, "arc_cosine": arc_cosine}
LENGTHSCALE, OUTPUTSCALE = torch.tensor([[0.7, 1.3]]).double(), torch.tensor([1.7]).double()


def _inputs(rows: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).uniform(-2, 2, (1, rows, 2)))


def _estimates(kernel: str, x: torch.Tensor, count: int, replicas: int) -> torch.Tensor:
    """Phi Phi^T of independent draws of `count` frequencies, `[replicas, B, B]`."""
    normal = torch.from_numpy(np.random.default_rng(count).standard_normal((replicas, x.shape[-1], count)))
    omega, outputscale = normal / LENGTHSCALE[..., None], OUTPUTSCALE.expand(replicas)
    phi = features.random_features(kernel, x.expand(replicas, -1, -1), omega, outputscale)
    return phi @ phi.mT


def test_fourier_features_estimate_the_kernel_with_the_variance_of_their_closed_form():
    # E cos(d)^2 = (1 + E cos(2 d)) / 2, so one frequency has variance (1 + k(2 d)) / 2 - k(d)^2 at unit outputscale
    x, replicas = _inputs(30), 200
    kernel = kernels.rbf(x, x, LENGTHSCALE, OUTPUTSCALE)
    variance = (
        OUTPUTSCALE**2 * (1 + kernels.rbf(2 * x, 2 * x, LENGTHSCALE, torch.ones_like(OUTPUTSCALE))) / 2 - kernel**2
    )
    for count in (100, 1000):
        error = _estimates("rbf", x, count, replicas) - kernel
        assert abs(error.mean()) < 4 * (variance.mean() / count / replicas).sqrt()
        ratio = error.square().mean() * count / variance.mean()
        assert 0.85 < ratio < 1.15


def test_rectified_features_have_the_variance_of_their_closed_form():
    # on the diagonal one frequency gives 2 outputscale max(0, g)^2, g ~ N(0, |u|^2), whose variance is
    # 4 outputscale^2 (E g^4 / 2 - (E g^2 / 2)^2) = 5 k(x, x)^2
    x, replicas, count = _inputs(10), 400, 500
    diagonal = _estimates("arc_cosine", x, count, replicas).diagonal(dim1=1, dim2=2)
    expected = OUTPUTSCALE * (x / LENGTHSCALE).square().sum(-1)
    assert ((diagonal.mean(0) - expected).abs() < 5 * expected * (5 / count / replicas) ** 0.5).all()
    ratio = (diagonal / expected).var() * count / 5
    assert 0.85 < ratio < 1.15


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_error_falls_as_one_over_the_root_of_the_number_of_frequencies(kernel):
    x, counts, replicas = _inputs(8), np.array([100, 400, 1600, 6400]), 60
    exact = KERNELS[kernel](x, x, LENGTHSCALE, OUTPUTSCALE)
    squares = np.stack([(_estimates(kernel, x, n, replicas) - exact).square().mean((1, 2)) for n in counts])
    slope, error = exponent(counts, squares)
    assert error < 0.03
    assert abs(slope + 0.5) < 4 * error


def test_outputscale_is_the_exact_diagonal_of_fourier_features():
    x, omega = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 3, 7, dtype=torch.float64)
    outputscale = torch.tensor([0.3, 2.0], dtype=torch.float64)
    phi = features.fourier(x, omega, outputscale)
    torch.testing.assert_close(phi.square().sum(-1), outputscale[:, None].expand(2, 5))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sampled", ["inputs", "frequencies", "both"])
def test_samples_and_replicas_are_looped_over(kernel, sampled):
    x, omega = torch.randn(4, 2, 5, 3, dtype=torch.float64), torch.randn(4, 2, 3, 7, dtype=torch.float64)
    outputscale = torch.tensor([0.3, 2.0], dtype=torch.float64)
    x = x[0] if sampled == "frequencies" else x
    omega = omega[0] if sampled == "inputs" else omega
    together = features.random_features(kernel, x, omega, outputscale)
    assert together.shape == (4, 2, 5, 7 * features.FEATURES_PER_FREQUENCY[kernel])
    for s in range(4):
        for r in range(2):
            one = slice(r, r + 1)
            own_x, own_omega = (part[s, one] if part.ndim == 4 else part[one] for part in (x, omega))
            alone = features.random_features(kernel, own_x, own_omega, outputscale[one])[0]
            torch.testing.assert_close(together[s, r], alone, rtol=1e-12, atol=1e-14)
