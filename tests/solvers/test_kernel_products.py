"""Products with a kernel matrix that is never stored."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from solver_cases import SYSTEMS, dense, kernel, normals, system

from gpbench.gp.kernels import Kernel
from gpbench.solvers.products import KernelProduct

HERE = Path(__file__).parent
FORMULAS = ("rbf", "matern32", "matern52 + linear", "arccosine")


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("kind", SYSTEMS)
def test_products_are_those_of_the_dense_matrix(kind, formula):
    """For tiles that divide the rows, that do not, and one that holds them all."""
    for tile in ((50, 50), (32, 96), (7, 14), (1000, 1000)):
        product, v = system(kind, tile=tile, formula=formula), normals(150, 4, seed=1)
        torch.testing.assert_close(product(v), dense(product) @ v, rtol=1e-12, atol=1e-12)
        assert product.products == 4


@pytest.mark.parametrize("kind", SYSTEMS)
def test_rows_and_diagonal(kind):
    product = system(kind)
    truth = dense(product)
    torch.testing.assert_close(product.diagonal(), truth.diagonal())
    for index in (torch.tensor([3, 149, 0]), slice(10, 30), slice(None)):
        torch.testing.assert_close(product.rows(index), truth[index], rtol=1e-12, atol=1e-12)
    assert product.products == 0


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("kind", SYSTEMS)
def test_the_surrogate_has_the_gradient_of_the_dense_form(kind, formula):
    product, left, right = system(kind, formula=formula), normals(150, 2, seed=1), normals(150, 2, seed=2)
    leaves = [value.clone().requires_grad_() for value in (*product.kernel.values.values(), product.noise)]
    k, noise = Kernel(formula, dict(zip(product.kernel.values, leaves, strict=False))), leaves[-1]
    moved = KernelProduct(k, product.x, noise, product.scale, tile=(32, 64))
    form, truth = moved.bilinear(left, right), (left * (dense(product, k, noise) @ right)).sum()
    torch.testing.assert_close(form, truth, rtol=1e-11, atol=1e-11)
    both = (torch.autograd.grad(3 * of, leaves) for of in (form, truth))
    for gradient, exact in zip(*both, strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-10, atol=1e-10)


def test_rows_far_from_the_origin_and_repeated_rows_keep_their_digits():
    x = torch.cat([normals(40, 3), normals(40, 3)[:5]])
    near, far = (KernelProduct(kernel(), x + shift, 0.1) for shift in (0.0, 1e6))
    v = normals(45, 2, seed=1)
    torch.testing.assert_close(far(v), near(v), rtol=1e-8, atol=1e-8)


def test_a_number_that_is_not_finite_is_seen_wherever_it_is():
    for index in range(4):
        parts = [normals(5, 3), torch.ones(5).double(), torch.ones(5).double(), torch.ones(3).double()]
        assert KernelProduct(kernel(), *parts[:3]).is_finite()
        parts[index][1] = torch.nan
        values = kernel().values | {"lengthscale": parts[3]}
        assert not KernelProduct(Kernel("rbf", values), *parts[:3]).is_finite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_row(dtype):
    values = {name: value.to(dtype) for name, value in kernel().values.items()}
    product = KernelProduct(Kernel("rbf", values), torch.zeros(1, 3, dtype=dtype), 0.5)
    torch.testing.assert_close(product(torch.ones(1, 2, dtype=dtype)), torch.full((1, 2), 1.8, dtype=dtype))


PEAK = """
import resource, torch
from solver_cases import kernel
from gpbench.solvers.products import KernelProduct

def peak(rows):
    x = torch.randn(rows, 3, dtype=torch.float64)
    product = KernelProduct(kernel(), x, 0.1)
    product(x), product.bilinear(x, x)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

torch.set_num_threads(1)
before = peak(1000)
print(peak(15_000) - before)
"""


def test_memory_is_that_of_tiles_and_vectors():
    """15,000 rows, whose matrix would have 1,800 MB."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, cwd=HERE)
    assert float(done.stdout) < 20  # MB
