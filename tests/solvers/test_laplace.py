"""Newton's method where a whole step would go too far."""

import torch

from gpbench.gp.latent_likelihoods import LogGaussianCox
from gpbench.solvers import laplace


def test_steps_that_make_things_worse_are_halved():
    """Of large counts: from f = 0 the first step is to hundreds, where e^f is no number."""
    y = torch.tensor([5000.0, 3.0, 800.0], dtype=torch.float64)
    k = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 1.0], [0.5, 1.0, 5.0]], dtype=torch.float64)

    def solve(root, r):
        return torch.linalg.solve(torch.eye(3, dtype=torch.float64) + root[:, None] * k * root, r)

    mode = laplace.mode(lambda v: k @ v, solve, y, LogGaussianCox())
    # the mode is where f = K grad log p(y | f), of Poisson counts K (y - e^f)
    torch.testing.assert_close(mode.f, k @ (y - mode.f.exp()), rtol=0, atol=1e-4)
    torch.testing.assert_close(mode.gradient, y - mode.f.exp())
    assert torch.equal(mode.root, LogGaussianCox().curvature(y, mode.f).sqrt()), "of this f, not of the one before"
