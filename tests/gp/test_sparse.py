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
    kernel = rbf(lengthscale, outputscale)
    return sparse.conditional(x, sparse.Layer(inducing_inputs, chol_kzz, whitened_mean, whitened_chol, kernel))


def rbf(lengthscale, outputscale) -> kernels.Kernel:
    return kernels.Kernel("rbf", {"lengthscale": lengthscale, "outputscale": outputscale})


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


def composed(x, inducing_inputs, chol_kzz, whitened_mean, whitened_chol, lengthscale, outputscale):
    """`conditional` and `kl_whitened` by differentiable operations, a formula a line."""
    apart = (inducing_inputs[:, :, None] - x[:, None]) / lengthscale[:, None, None]
    kzx = outputscale[:, None, None] * torch.exp(-0.5 * apart.square().sum(-1))
    a = torch.linalg.solve_triangular(chol_kzz, kzx, upper=False)
    variance = outputscale[:, None, None] - a.square().sum(1, keepdim=True)
    if whitened_chol is None:
        return a.mT @ whitened_mean, variance.clamp_min(0.0).mT.expand(-1, -1, Q), torch.zeros(R)
    variance = variance + (whitened_chol.mT @ a[:, None]).square().sum(2)
    log_det = whitened_chol.diagonal(dim1=-2, dim2=-1).abs().log().sum((1, 2))
    squares = whitened_chol.square().sum((1, 2, 3)) + whitened_mean.square().sum((1, 2))
    kl = 0.5 * (squares - Q * whitened_mean.shape[1]) - log_det
    return a.mT @ whitened_mean, variance.clamp_min(0.0).mT, kl


@pytest.mark.parametrize("without", [(), ("x",), ("x", "inducing_inputs"), ("whitened_chol",)])
@pytest.mark.parametrize("num_inducing", [7, 140])
def test_gradient_by_hand_is_that_of_the_operations(num_inducing, without):
    """Also where rows or inducing inputs are data, and where there are factors enough for blocks of columns."""
    given = layer(num_inducing=num_inducing)
    given["x"] = given["x"][0]
    scales = given["lengthscale"], given["outputscale"]
    kzz = kernels.rbf(given["inducing_inputs"], given["inducing_inputs"], *scales)
    given["chol_kzz"] = linalg.cholesky(kzz, "test", 1e-2 * given["outputscale"])
    leaves = {n: v.clone().requires_grad_(n not in without) for n, v in given.items()}
    if "whitened_chol" in without:
        leaves["whitened_chol"] = None
    kernel = rbf(leaves["lengthscale"], leaves["outputscale"])
    part = sparse.Layer(*(leaves[n] for n in sparse.Layer._fields[:-1]), kernel)
    moments, kl = sparse.conditional(leaves["x"], part), torch.zeros(R)
    if part.whitened_chol is not None:
        kl = sparse.kl_whitened(part.whitened_mean, part.whitened_chol)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(part.shape, generator=generator) for part in (*moments, kl)]
    found, wanted = [
        sum((w * part).sum() for w, part in zip(weights, parts, strict=True))
        for parts in ((*moments, kl), composed(leaves["x"], *part[:-1], *kernel.values.values()))
    ]
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    trained = {n: value for n, value in leaves.items() if value is not None and value.requires_grad}
    gradients = [torch.autograd.grad(value, list(trained.values())) for value in (found, wanted)]
    for name, ours, theirs in zip(trained, *gradients, strict=True):
        parts = (ours.tril(), theirs.tril()) if "chol" in name else (ours, theirs)  # a factor is triangular
        torch.testing.assert_close(*parts, rtol=1e-10, atol=1e-10 * float(theirs.abs().max()), msg=name)


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


def own_kernels(shared_inputs: bool) -> dict[str, torch.Tensor]:
    """A layer whose outputs have kernels, and unless `shared_inputs` inducing inputs, of their own."""
    rng, given = np.random.default_rng(2), layer()
    given["lengthscale"] = torch.as_tensor(rng.uniform(0.5, 1.5, (R, Q, D)))
    given["outputscale"] = torch.as_tensor(rng.uniform(0.5, 2.0, (R, Q)))
    if not shared_inputs:
        given["inducing_inputs"] = torch.as_tensor(rng.normal(size=(R, Q, M, D)))
    return given


def output(q: int, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Output q of such a layer as a layer of one output that shares nothing."""
    one = {name: value[:, q] for name, value in given.items() if name in ("lengthscale", "outputscale")}
    z = given["inducing_inputs"]
    one["inducing_inputs"] = z if z.ndim == 3 else z[:, q]
    one["whitened_mean"], one["whitened_chol"] = given["whitened_mean"][..., [q]], given["whitened_chol"][:, [q]]
    return one | {"x": given["x"]}


def whole_layer(x, inducing_inputs, whitened_mean, whitened_chol, lengthscale, outputscale) -> sparse.Layer:
    z = inducing_inputs if inducing_inputs.ndim == outputscale.ndim + 2 else inducing_inputs[:, None]
    kzz = kernels.rbf(z, z, lengthscale, outputscale)
    jitter = 1e-6 * outputscale[..., None, None] * torch.eye(M, dtype=torch.float64)
    chol_kzz = torch.linalg.cholesky(kzz + jitter)
    return sparse.Layer(inducing_inputs, chol_kzz, whitened_mean, whitened_chol, rbf(lengthscale, outputscale))


@pytest.mark.parametrize("shared_inputs", [True, False])
@pytest.mark.parametrize("fitc", [True, False])
def test_outputs_with_kernels_of_their_own_are_layers_of_one_output(shared_inputs, fitc, monkeypatch):
    given = own_kernels(shared_inputs)
    without = {"whitened_chol": None} if fitc else {}
    moments = sparse.conditional(given["x"], whole_layer(**given)._replace(**without))
    monkeypatch.setattr(sparse, "CHUNK_ELEMENTS", R * M * Q * 5)
    with torch.no_grad():
        chunked = sparse.conditional(given["x"], whole_layer(**given)._replace(**without))
    for q in range(Q):
        expected = conditional(**output(q, given) | without)
        for ours, theirs, one in zip(moments, chunked, expected, strict=True):
            torch.testing.assert_close(ours[..., q], one[..., 0], rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(theirs[..., q], one[..., 0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("own", [True, False])
def test_draws_of_functions_have_the_moments_of_the_posterior(own, monkeypatch):
    """Mean and the full covariance over inputs, which conditional's marginals are the diagonal of."""
    monkeypatch.setattr(sparse, "NUM_FREQUENCIES", 8)  # the moments are right with few
    given, draws = own_kernels(False) if own else layer(), 40_000
    one = {name: value[:1, :1] if name == "x" else value[:1] for name, value in given.items()}
    generator, single = torch.Generator().manual_seed(0), whole_layer(**one)

    def many(part):  # a draw a replica
        return part.map(many) if isinstance(part, kernels.Kernel) else part.expand(draws, *part.shape[1:])

    repeated = sparse.Layer(*map(many, single))
    drawn = sparse.draw(repeated, lambda *shape: torch.randn(shape, generator=generator).double())
    f = drawn(one["x"][0].expand(draws, -1, -1))
    mean, variance = (moment[0, 0] for moment in sparse.conditional(one["x"], single))
    assert f.shape == (draws, B, Q)
    assert ((f.mean(0) - mean).abs() < 4.5 * (variance / draws).sqrt()).all()
    for q in range(Q):
        expected = joint_covariance(output(q, one) if own else one | {"whitened_chol": one["whitened_chol"][:, [q]]})
        np.testing.assert_allclose(expected.diagonal(), variance[:, q], rtol=1e-6)
        centred = (f[..., q] - mean[:, q]).numpy()
        products = centred[:, :, None] * centred[:, None]
        assert (np.abs(products.mean(0) - expected) < 5 * products.std(0) / np.sqrt(draws)).all()
        assert (products.std(0) / np.sqrt(draws)).max() < 0.02 * expected.diagonal().max()
    # outputs are drawn independently
    first, second = (f - mean).numpy()[..., :2].transpose(2, 0, 1)
    products = first[:, :, None] * second[:, None]
    assert (np.abs(products.mean(0)) < 5 * products.std(0) / np.sqrt(draws)).all()


def joint_covariance(given: dict[str, torch.Tensor]) -> np.ndarray:
    """K_xx - K_xz K_zz^-1 (K_zz - S) K_zz^-1 K_zx of a layer of one output, one replica."""
    scales, z, x = (given["lengthscale"], given["outputscale"]), given["inducing_inputs"], given["x"][0]
    kzz = kernels.rbf(z, z, *scales)[0].numpy() + 1e-6 * float(given["outputscale"]) * np.eye(M)
    kzx, kxx = kernels.rbf(z, x, *scales)[0].numpy(), kernels.rbf(x, x, *scales)[0].numpy()
    root = np.linalg.cholesky(kzz) @ given["whitened_chol"][0, 0].numpy()
    alpha = np.linalg.solve(kzz, kzx)
    return kxx - alpha.T @ (kzz - root @ root.T) @ alpha


def test_a_draw_is_one_function_whatever_the_rows():
    given = own_kernels(False)

    def at(x: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        drawn = sparse.draw(whole_layer(**given), lambda *shape: torch.randn(shape, generator=generator).double())
        return drawn(x)

    x = given["x"][0]
    torch.testing.assert_close(at(x)[:, 2:4], at(x[:, 2:4]), rtol=1e-10, atol=1e-10)


def test_the_kl_is_that_of_the_unwhitened_values():
    given = layer()
    # so that neither K_zz nor S is nearly singular
    given["lengthscale"] = 0.3 * given["lengthscale"]
    given["whitened_chol"] = given["whitened_chol"] + 4 * torch.eye(M).double()
    whole = whole_layer(**given)
    mean = (whole.chol_kzz @ whole.whitened_mean).mT
    root = whole.chol_kzz[:, None] @ whole.whitened_chol
    covariance = root @ root.mT
    kzz = (whole.chol_kzz @ whole.chol_kzz.mT)[:, None]
    both = torch.linalg.solve(kzz, torch.cat([covariance, mean[..., None]], -1))
    quadratic = (mean[..., None, :] @ both[..., -1:])[..., 0, 0]
    trace = both[..., :-1].diagonal(dim1=-2, dim2=-1).sum(-1)
    expected = 0.5 * (trace + quadratic - M + torch.logdet(kzz) - torch.logdet(covariance)).sum(1)
    torch.testing.assert_close(sparse.kl_whitened(given["whitened_mean"], given["whitened_chol"]), expected)


def test_float32_is_close_to_float64():
    for ours, expected in zip(conditional(**layer(torch.float32)), conditional(**layer()), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), expected, rtol=1e-2, atol=1e-2)


def test_unexplained_variance_has_its_gradient_where_it_is_positive_and_none_where_it_is_cut():
    generator = torch.Generator().manual_seed(0)
    a = (0.3 * torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    same = torch.tensor([[1.5], [2.0]], dtype=torch.float64, requires_grad=True)
    for diagonal in (same, same.detach().repeat(1, 5).requires_grad_()):
        assert torch.autograd.gradcheck(sparse.unexplained, [a, diagonal])
        cut = sparse.unexplained(10 + a, diagonal)
        assert (cut == 0).all()
        assert not torch.autograd.grad(cut.sum(), a)[0].any()


def test_a_conditional_variance_that_is_cut_has_no_gradient():
    """As rounding may leave it below 0 at an inducing input: here the factor of K_ZZ is too small by design."""
    one = torch.ones(1, 1, dtype=torch.float64)
    x, chol = one[None].clone().requires_grad_(), 0.5 * one[None]
    part = sparse.Layer(one[None], chol, 2 * one[None], None, rbf(one, one[0]))
    mean, variance = sparse.conditional(x, part)
    # a = 1 / 0.5: 1 - 4 is less than nothing
    assert (mean.item(), variance.item()) == (4.0, 0.0)
    x = (one[None] + 0.1).requires_grad_()
    _, variance = sparse.conditional(x, part)
    assert variance == 0
    assert torch.autograd.grad(variance.sum(), x)[0] == 0
