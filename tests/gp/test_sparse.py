import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from gpbench.gp import kernels, linalg, sparse

S, R, B, D, M, Q = 2, 3, 6, 2, 7, 3


def layer(dtype=torch.float64, num_inducing: int = M) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(1)
    draw = {
        "x": rng.normal(size=(S, R, B, D)),
        "inducing_inputs": rng.normal(size=(R, num_inducing, D)),
        "whitened_mean": rng.normal(size=(R, num_inducing, Q)),
        "whitened_chol": np.tril(rng.normal(size=(R, Q, num_inducing, num_inducing))),
        "lengthscale": rng.uniform(0.5, 1.5, (R, D)),
        "outputscale": rng.uniform(0.5, 2.0, R),
    }
    return {name: torch.as_tensor(value, dtype=dtype) for name, value in draw.items()}


def conditional(x, inducing_inputs, whitened_mean, whitened_chol, lengthscale, outputscale):
    kzz = kernels.rbf(inducing_inputs, inducing_inputs, lengthscale, outputscale)
    chol_kzz = linalg.cholesky(kzz, "test", 1e-6 * outputscale)
    return sparse.conditional(x, inducing_inputs, chol_kzz, whitened_mean, whitened_chol, lengthscale, outputscale)


def dense(s: int, r: int, q: int, given: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Unwhitened textbook form: mean K_xz K_zz^-1 m, variance k_xx - K_xz K_zz^-1 (K_zz - S) K_zz^-1 K_zx."""
    one = {name: value[r : r + 1] for name, value in given.items() if name != "x"}
    scales = one["lengthscale"], one["outputscale"]
    kzz = kernels.rbf(one["inducing_inputs"], one["inducing_inputs"], *scales)[0].numpy()
    kzz += 1e-6 * float(one["outputscale"]) * np.eye(M)
    kzx = kernels.rbf(one["inducing_inputs"], given["x"][s, r][None], *scales)[0].numpy()
    chol = np.linalg.cholesky(kzz)
    m = chol @ one["whitened_mean"][0, :, q].numpy()
    root = chol @ one["whitened_chol"][0, q].numpy()
    alpha = np.linalg.solve(kzz, kzx)
    variance = float(one["outputscale"]) - np.einsum("mb,mk,kb->b", alpha, kzz - root @ root.T, alpha)
    return alpha.T @ m, variance


def test_conditional_is_the_unwhitened_dense_formula():
    given = layer()
    mean, variance = conditional(**given)
    assert mean.shape == variance.shape == (S, R, B, Q)
    for s, r, q in np.ndindex(S, R, Q):
        expected_mean, expected_variance = dense(s, r, q, given)
        np.testing.assert_allclose(mean[s, r, :, q], expected_mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(variance[s, r, :, q], expected_variance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("num_inducing", [1, 3, 11])
def test_gradient_agrees_with_finite_differences(num_inducing):
    given = layer(num_inducing=num_inducing)
    names = list(given)
    tensors = [value.requires_grad_() for value in given.values()]
    assert torch.autograd.gradcheck(
        lambda *values: conditional(
            **{n: v.tril() if n == "whitened_chol" else v for n, v in zip(names, values, strict=True)}
        ),
        tensors,
        atol=1e-4,
        rtol=1e-3,
    )


def test_without_a_factor_it_is_the_fitc_conditional():
    given = layer()
    mean, variance = conditional(**given | {"whitened_chol": None})
    zero = torch.zeros_like(given["whitened_chol"])
    expected_mean, expected_variance = conditional(**given | {"whitened_chol": zero})
    torch.testing.assert_close(mean, expected_mean)
    torch.testing.assert_close(variance, expected_variance)


def test_q_equal_to_p_gives_the_prior_and_no_kl():
    given = layer()
    mean, chol = torch.zeros_like(given["whitened_mean"]), torch.eye(M, dtype=torch.float64).expand(R, Q, M, M)
    prior_mean, prior_variance = conditional(**given | {"whitened_mean": mean, "whitened_chol": chol})
    torch.testing.assert_close(prior_mean, torch.zeros_like(prior_mean))
    torch.testing.assert_close(prior_variance, given["outputscale"][:, None, None].expand_as(prior_variance))
    torch.testing.assert_close(sparse.kl_whitened(mean, chol), torch.zeros(R, dtype=torch.float64))


def test_rows_are_chunked_in_prediction_without_changing_anything(monkeypatch):
    given = layer()
    expected = conditional(**{name: value.requires_grad_() for name, value in given.items()})
    monkeypatch.setattr(sparse, "CHUNK_ELEMENTS", R * M * Q * 5)
    with torch.no_grad():
        for ours, reference in zip(conditional(**given), expected, strict=True):
            torch.testing.assert_close(ours, reference.detach(), rtol=1e-12, atol=1e-12)


def test_kl_is_that_of_torch_distributions():
    given = layer()
    mean, chol = given["whitened_mean"], given["whitened_chol"]
    # scale_tril must have a positive diagonal: turning the sign of a column leaves the covariance as it is
    positive = chol * chol.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    q = MultivariateNormal(mean.mT, scale_tril=positive)
    p = MultivariateNormal(torch.zeros(M, dtype=torch.float64), torch.eye(M, dtype=torch.float64))
    torch.testing.assert_close(sparse.kl_whitened(mean, chol), kl_divergence(q, p).sum(-1))


def test_order_of_the_inducing_inputs_does_not_matter():
    given = layer()
    one = {name: value[:, :1] if name == "x" else value[:1] for name, value in given.items()}
    order = torch.randperm(M, generator=torch.Generator().manual_seed(0))
    kzz = kernels.rbf(one["inducing_inputs"], one["inducing_inputs"], one["lengthscale"], one["outputscale"])
    chol = linalg.cholesky(kzz, "test", 1e-6 * one["outputscale"])
    permuted = linalg.cholesky(kzz[:, order][:, :, order], "test", 1e-6 * one["outputscale"])
    u = (chol @ one["whitened_mean"])[:, order]
    # root root^T is the permuted covariance of u; a QR decomposition makes its root triangular without squaring it
    root = torch.linalg.qr((chol[:, None] @ one["whitened_chol"])[:, :, order].mT).R.mT
    moved = {
        "inducing_inputs": one["inducing_inputs"][:, order],
        "whitened_mean": torch.linalg.solve_triangular(permuted, u, upper=False),
        "whitened_chol": torch.linalg.solve_triangular(permuted[:, None], root, upper=False),
    }
    for ours, expected in zip(conditional(**one | moved), conditional(**one), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    kl = sparse.kl_whitened(moved["whitened_mean"], moved["whitened_chol"])
    torch.testing.assert_close(kl, sparse.kl_whitened(one["whitened_mean"], one["whitened_chol"]))


def test_float32_is_close_to_float64():
    for ours, expected in zip(conditional(**layer(torch.float32)), conditional(**layer()), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), expected, rtol=1e-2, atol=1e-2)
