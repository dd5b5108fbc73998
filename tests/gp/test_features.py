"""Random Fourier features against the kernel they estimate."""

import numpy as np
import torch

from gpbench.gp import features, kernels


def _frequencies(replicas: int, lengthscale: torch.Tensor, count: int) -> torch.Tensor:
    normal = np.random.default_rng(0).standard_normal((replicas, len(lengthscale), count))
    return torch.from_numpy(normal) / lengthscale[:, None]


def test_features_estimate_the_kernel_with_the_variance_of_their_closed_form():
    # E cos(d)^2 = (1 + E cos(2 d)) / 2, so one frequency has variance (1 + k(2 d)) / 2 - k(d)^2 at unit outputscale
    x = torch.from_numpy(np.random.default_rng(1).uniform(-2, 2, (1, 30, 2)))
    lengthscale, outputscale = torch.tensor([[0.7, 1.3]], dtype=x.dtype), torch.tensor([1.7], dtype=x.dtype)
    kernel = kernels.rbf(x, x, lengthscale, outputscale)
    variance = (
        outputscale**2 * (1 + kernels.rbf(2 * x, 2 * x, lengthscale, torch.ones_like(outputscale))) / 2 - kernel**2
    )
    for count in (100, 2500):
        replicas = 200
        omega = _frequencies(replicas, lengthscale[0], count)
        phi = features.fourier(x.expand(replicas, -1, -1), omega, outputscale.expand(replicas))
        error = phi @ phi.mT - kernel
        assert abs(error.mean()) < 4 * (variance.mean() / count / replicas).sqrt()
        ratio = error.square().mean() * count / variance.mean()
        assert 0.85 < ratio < 1.15


def test_outputscale_is_the_exact_diagonal():
    x, omega = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 3, 7, dtype=torch.float64)
    outputscale = torch.tensor([0.3, 2.0], dtype=torch.float64)
    phi = features.fourier(x, omega, outputscale)
    torch.testing.assert_close(phi.square().sum(-1), outputscale[:, None].expand(2, 5))


def test_samples_and_replicas_are_looped_over():
    x, omega = torch.randn(4, 2, 5, 3, dtype=torch.float64), torch.randn(2, 3, 7, dtype=torch.float64)
    outputscale = torch.tensor([0.3, 2.0], dtype=torch.float64)
    together = features.fourier(x, omega, outputscale)
    for s in range(4):
        for r in range(2):
            alone = features.fourier(x[s, r : r + 1], omega[r : r + 1], outputscale[r : r + 1])[0]
            torch.testing.assert_close(together[s, r], alone, rtol=1e-12, atol=1e-14)
