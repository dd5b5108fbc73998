"""What cutajar2016 misprints, against what is used here (docs/errata.md; there the printed forms are seen to fail)."""

import torch
from solver_cases import dense, kernel, normals, seeded

from gpbench.gp.latent_likelihoods import Probit
from gpbench.solvers.conjugate_gradients import solve
from gpbench.solvers.preconditioners import Diagonal, build, subset_features
from gpbench.solvers.products import KernelProduct

LAMBDA = 0.1


def regression(n: int = 60, width: int = 3) -> KernelProduct:
    return KernelProduct(kernel(width=width), normals(n, width), LAMBDA)


def test_conjugate_gradients_follow_the_mended_listing():
    """Six steps of the listing with alpha = r'z / p'A p, r - alpha A p, beta = r'z / r'z of before, p = z + beta p."""
    product, b = regression(), normals(60, 1, seed=1)
    a, preconditioner = dense(product), Diagonal(torch.linspace(1, 5, 60, dtype=torch.float64))
    solution = solve(product, b, precondition=preconditioner, tolerance=0.0, cap=6)
    x, r = torch.zeros_like(b), b.clone()
    p = z = preconditioner(r)
    for _ in range(6):
        alpha = (r * z).sum() / (p * (a @ p)).sum()
        x, new = x + alpha * p, r - alpha * (a @ p)
        new_z = preconditioner(new)
        p, r, z = new_z + (new * new_z).sum() / (r * z).sum() * p, new, new_z
    torch.testing.assert_close(solution.x, x)
    z = preconditioner(b)
    printed = (b * z).sum() / (b * (a @ z)).sum()  # r'A z below alpha
    assert abs(printed / solution.alpha[0, 0] - 1) > 0.1


def test_nystrom_has_lambda_before_k_uu():
    product, r = regression(), normals(60, 2, seed=1)
    u = product.x[torch.randperm(60, generator=seeded(1))[:6]]
    cross, inner = (product.kernel.covariance(one, u) for one in (product.x, u))
    ours = build("nystrom", product, 6, seeded(1))(r)
    mended, printed = (
        (r - cross @ torch.linalg.solve(scale * inner + cross.mT @ cross, cross.mT @ r)) / LAMBDA
        for scale in (LAMBDA, 1.0)
    )
    torch.testing.assert_close(ours, mended, rtol=1e-5, atol=1e-5)  # but for jitter
    assert (ours - printed).abs().max() > 0.1


def test_spectral_has_lambda_before_the_identity():
    product, r = regression(), normals(60, 2, seed=1)
    preconditioner = build("spectral", product, 6, seeded(1))
    phi = preconditioner.phi
    assert phi.shape == (60, 12)
    mended, printed = (
        (r - phi @ torch.linalg.solve(scale * torch.eye(12) + phi.mT @ phi, phi.mT @ r)) / LAMBDA
        for scale in (LAMBDA, 1.0)
    )
    torch.testing.assert_close(preconditioner(r), mended)
    assert (mended - printed).abs().max() > 0.1


def test_spectral_frequencies_have_a_lengthscale_an_input():
    """The paper's list of them ends with the number of rows: Phi Phi^T tends to K, of unlike lengthscales."""
    product = regression(n=20)
    drawn = [build("spectral", product, 500, seeded(seed)).phi for seed in range(40)]
    k = product.kernel.covariance(product.x, product.x)
    assert (torch.stack([phi @ phi.mT for phi in drawn]).mean(0) - k).abs().max() < 5 * 1.3 / (40 * 500) ** 0.5


def test_block_jacobi_has_the_noise_once():
    product = KernelProduct(kernel(), normals(3, 3), LAMBDA)  # one block
    preconditioner = build("block_jacobi", product, 1, seeded(1))
    torch.testing.assert_close(preconditioner.dense(), dense(product))


def test_third_derivatives_of_the_probit_are_those_of_the_sheet():
    """d3 log p / df3 = y rho [(z + rho)(z + 2 rho) - 1]; its negative is dW/df, by differences of W."""
    f, likelihood = torch.linspace(-3, 3, 13, dtype=torch.float64), Probit()
    for label in (0.0, 1.0):
        y, sign = torch.full_like(f, label), 2 * label - 1
        z = sign * f
        rho = (-0.5 * z.square() - torch.special.log_ndtr(z)).exp() / (2 * torch.pi) ** 0.5
        formula = sign * rho * ((z + rho) * (z + 2 * rho) - 1)
        torch.testing.assert_close(likelihood.third(y, f), formula, rtol=1e-9, atol=1e-12)
        slope = (likelihood.curvature(y, f + 1e-5) - likelihood.curvature(y, f - 1e-5)) / 2e-5
        torch.testing.assert_close(-likelihood.third(y, f), slope, rtol=1e-6, atol=1e-8)


def test_features_of_a_subset_are_those_of_the_subset_of_regressors():
    product = regression()
    phi = subset_features(product, 6, seeded(1))
    u = product.x[torch.randperm(60, generator=seeded(1))[:6]]
    cross, inner = (product.kernel.covariance(one, u) for one in (product.x, u))
    torch.testing.assert_close(phi @ phi.mT, cross @ torch.linalg.solve(inner, cross.mT), rtol=1e-5, atol=1e-6)
