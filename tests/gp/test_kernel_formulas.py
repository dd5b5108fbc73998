"""Every kernel, and sums and products of them, against formulas on differences."""

import re

import numpy as np
import pytest
import torch
from arc_cosine import arc_cosine

from gpbench.gp import features, kernels, linalg
from gpbench.hyper import KERNELS

D = 3
SUM, PRODUCT = "matern52 + linear", "rbf * periodic"
FORMULAS = [*KERNELS, SUM, PRODUCT, "arccosine * matern32 + matern12 + periodic"]
EVERY = pytest.mark.parametrize("formula", FORMULAS)
PERIOD = np.array([0.7, 1.3, 2.0])


def direct(name: str, a: np.ndarray, b: np.ndarray, lengthscale: np.ndarray) -> np.ndarray:
    """A kernel without its outputscale, `[N, M]`."""
    apart = a[:, None] - b
    r = np.sqrt(((apart / lengthscale) ** 2).sum(-1))
    return {
        "rbf": lambda: np.exp(-0.5 * r**2),
        "matern12": lambda: np.exp(-r),
        "matern32": lambda: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
        "matern52": lambda: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
        "periodic": lambda: np.exp(-2 * ((np.sin(np.pi * apart / PERIOD) / lengthscale) ** 2).sum(-1)),
        "linear": lambda: (a / lengthscale**2) @ b.T,
        "arccosine": lambda: arc_cosine(*(torch.as_tensor(x)[None] for x in (a, b, lengthscale, np.float64(1))))[
            0
        ].numpy(),
    }[name]()


def kernel(formula: str, lengthscale: torch.Tensor, outputscale: torch.Tensor) -> kernels.Kernel:
    """Every part with this lengthscale, every term with this outputscale."""
    params = kernels.start(formula, lengthscale.log(), outputscale.log())
    for name in params:
        if name.endswith("log_period"):
            params[name] = torch.as_tensor(PERIOD).log().to(lengthscale).expand(*lengthscale.shape[:-1], D)
        if name.endswith("log_outputscale"):
            params[name] = outputscale.log()
    return kernels.read(formula, params)


def drawn(dtype=torch.float64) -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 5, D)), rng.normal(size=(2, 4, D)), rng.uniform(0.5, 2, (2, D)), np.array([0.7, 3.0])
    return [torch.as_tensor(value, dtype=dtype) for value in values]


@EVERY
def test_a_formula_adds_and_multiplies_its_parts(formula):
    x1, x2, lengthscale, outputscale = drawn()
    ours = kernel(formula, lengthscale, outputscale).covariance(x1, x2)
    for r in range(2):
        a, b, scale = x1[r].numpy(), x2[r].numpy(), lengthscale[r].numpy()
        parts = [[direct(name.strip(), a, b, scale) for name in term.split("*")] for term in formula.split("+")]
        expected = float(outputscale[r]) * sum(np.prod(term, axis=0) for term in parts)
        np.testing.assert_allclose(ours[r], expected, rtol=1e-12, atol=1e-13)


@EVERY
def test_the_diagonal_is_that_of_the_covariance(formula):
    x, _, lengthscale, outputscale = drawn()
    k = kernel(formula, lengthscale, outputscale)
    expected = k.covariance(x, x).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(k.diagonal(x).expand_as(expected), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(k.covariance(x, x.clone()), k.covariance(x, x), rtol=1e-7, atol=1e-7)


@EVERY
def test_one_lengthscale_is_the_same_for_every_input_and_outputs_may_have_kernels_of_their_own(formula):
    x1, x2, lengthscale, outputscale = drawn()
    one = kernel(formula, lengthscale[:, :1].repeat(1, D), outputscale).covariance(x1, x2)
    torch.testing.assert_close(kernel(formula, lengthscale[:, :1], outputscale).covariance(x1, x2), one)
    own = kernel(formula, lengthscale[:, None].repeat(1, 2, 1), outputscale[:, None].repeat(1, 2))
    each = own.covariance(x1[:, None], x2[:, None])
    expected = kernel(formula, lengthscale, outputscale).covariance(x1, x2)
    torch.testing.assert_close(each, expected[:, None].expand_as(each))
    factor = own.factor(x1, 1e-3, "layer1")
    jitter = 1e-3 * own.scale[:, 0, None, None] * torch.eye(5)
    expected = kernel(formula, lengthscale, outputscale).covariance(x1, x1) + jitter
    torch.testing.assert_close((factor @ factor.mT)[:, 1], expected)


@EVERY
@pytest.mark.parametrize("mirrored", [True, False])
def test_gradients_agree_with_finite_differences_at_points_that_coincide_too(formula, mirrored):
    x1, x2, lengthscale, outputscale = drawn()
    x1[:, 1], x2[:, :2] = x1[:, 0], x1[:, 1:3]

    def value(x1, x2, *scales):
        return kernel(formula, *scales).covariance(x1, x1 if mirrored else x2)

    leaves = [leaf.requires_grad_() for leaf in (x1, x2, lengthscale, outputscale)]
    assert torch.autograd.gradcheck(value, leaves, atol=1e-6)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_finite_and_none_between_points_that_coincide(formula, dtype):
    x, _, lengthscale, outputscale = drawn(dtype)
    x[:, 1] = x[:, 0]
    x[:, 2] = 0
    x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
    k = kernel(formula, lengthscale.requires_grad_(), outputscale).covariance(x1, x2)
    assert all(part.isfinite().all() for part in torch.autograd.grad(k.sum(), [x1, x2, lengthscale], retain_graph=True))
    if not kernels.FROM_ORIGIN.keys() & {part.name for term in kernels.terms(formula) for part in term}:
        (slope,) = torch.autograd.grad(k[:, 0, 1].sum(), x1)
        assert slope.abs().max() < 1e-5


def test_periodic_repeats():
    x1, x2, lengthscale, outputscale = drawn()
    k = kernel("periodic", lengthscale, outputscale)
    torch.testing.assert_close(k.covariance(x1 + 3 * torch.as_tensor(PERIOD), x2), k.covariance(x1, x2))


def test_periodic_starts_as_the_rbf_of_near_inputs():
    """4 sin^2((a - b)/2) is (a - b)^2 but for a relative (a - b)^2/12."""
    x = 0.01 * torch.arange(10.0).double().view(1, 5, 2) ** 1.5
    start = kernels.start("periodic", torch.tensor([[0.7, 1.3]]).log().double(), torch.zeros(1).double())
    exponent = kernels.read("periodic", start).covariance(x, x.clone()).log()
    apart = (x[:, :, None] - x[:, None]) / torch.tensor([0.7, 1.3]).double()
    torch.testing.assert_close(exponent, -0.5 * apart.square().sum(-1), rtol=0.01, atol=1e-12)


def test_names_of_parameters_and_their_start():
    one = torch.zeros(1, D), torch.zeros(1)
    assert list(kernels.start("rbf", *one)) == ["log_lengthscale", "log_outputscale"]
    params = kernels.start("periodic * rbf + linear", *one)
    first, second, third = "", "part2.", "part3."
    expected = [f"{first}log_lengthscale", f"{first}log_outputscale", f"{first}log_period"]
    assert list(params) == [*expected, f"{second}log_lengthscale", f"{third}log_lengthscale", f"{third}log_outputscale"]
    assert float(params["log_outputscale"].exp()) == float(params["part3.log_outputscale"].exp()) == pytest.approx(0.5)
    assert float(kernels.read("periodic * rbf + linear", params).scale) == pytest.approx(1.0)


@EVERY
def test_random_features_estimate_the_kernel(formula):
    num, generator = 100_000, torch.Generator().manual_seed(0)
    x, _, lengthscale, outputscale = (part[:1] for part in drawn())
    k = kernel(formula, lengthscale, outputscale)
    phi = features.draw(k, D, num, lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64))(x)
    expected, scale = k.covariance(x, x), float(k.diagonal(x).max())
    torch.testing.assert_close(phi @ phi.mT, expected, rtol=0, atol=8 * scale / num**0.5)


@pytest.mark.parametrize("formula", [name for name in FORMULAS if not re.search("|".join(kernels.FROM_ORIGIN), name)])
@pytest.mark.parametrize("lengthscale", [1e-2, 1e-3, 1e-4])
def test_single_precision_bears_short_lengthscales_and_a_distant_origin(formula, lengthscale):
    """Without a centre and a bound k reached 1.22 of the outputscale on its diagonal, 7.4 beside it, and infinity."""
    x = 3 + 0.1 * torch.randn(1, 40, D, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    scales = torch.full((1, D), lengthscale), torch.full((1,), 1.7)
    k = kernel(formula, *scales)
    for other in (x, x.clone()):
        covariance = k.covariance(x, other)
        assert (covariance <= k.diagonal(x) * (1 + 1e-6)).all()
        exact = kernel(formula, *(part.double() for part in scales)).covariance(x.double(), other.double())
        if lengthscale >= 1e-2 and "periodic" not in formula:
            torch.testing.assert_close(covariance.double(), exact, rtol=0, atol=2e-3)
    diagonal = k.covariance(x, x).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal, k.diagonal(x).expand_as(diagonal), rtol=1e-6, atol=0)


def test_single_precision_factors_the_covariance_of_distant_inputs():
    z = 3 + 0.1 * torch.randn(1, 40, D, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    linalg.events()
    factor = kernels.rbf_factor(z, torch.full((1, D), 1e-2), torch.ones(1), 1e-6, "layer1")
    assert factor.isfinite().all()
    assert linalg.events() == []
    assert float((factor[0] @ factor[0].mT).diagonal().max()) == pytest.approx(1.0, rel=1e-5)
