"""The softmax likelihood's derivatives by differentiation, and its dense algebra."""

import numpy as np
import torch

from gpbench.gp import multinomial

F64 = torch.float64
CHAINS, FUNCTIONS, ROWS = 2, 3, 4


def normals(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def latents():
    f = normals(CHAINS, FUNCTIONS, ROWS)
    y = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 2], [1, 1, 0, 2]]), FUNCTIONS).mT.to(F64)
    weight = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 0]], dtype=F64)
    return f, y * weight[:, None], weight


def test_gradient_and_information_are_derivatives_of_the_log_likelihood():
    f, y, weight = latents()
    found = torch.autograd.functional.jacobian(lambda f: multinomial.log_lik(f, y).sum(), f)
    torch.testing.assert_close(multinomial.gradient(f, y, weight), found)
    hessian = -torch.autograd.functional.jacobian(lambda f: multinomial.gradient(f, y, weight).sum(0), f)
    information = multinomial.information(weight[:, None] * f.softmax(1))
    for r in range(CHAINS):
        dense = torch.zeros(FUNCTIONS, ROWS, FUNCTIONS, ROWS, dtype=F64)
        for i in range(ROWS):
            dense[:, i, :, i] = information[r, :, :, i]
        torch.testing.assert_close(hessian[:, :, r], dense)


def test_derivatives_of_the_information():
    f, _, _ = latents()
    s = normals(CHAINS, FUNCTIONS, FUNCTIONS, ROWS, seed=1)
    s, u = s + s.transpose(1, 2), normals(CHAINS, FUNCTIONS, ROWS, seed=2)

    def contracted(f, inner):
        return (multinomial.information(f.softmax(1)) * inner).sum()

    outer = u[:, :, None] * u[:, None]
    for found, inner in (
        (multinomial.information_traces(f.softmax(1), s), s),
        (multinomial.information_quadratics(f.softmax(1), u), outer),
    ):
        wanted = torch.autograd.functional.jacobian(lambda f, inner=inner: contracted(f, inner), f)
        torch.testing.assert_close(found, wanted)


def test_precision_and_covariances_of_subjects_are_those_of_dense_matrices():
    f, _, weight = latents()
    pi = weight[:, None] * f.softmax(1)
    chol = normals(CHAINS, FUNCTIONS, ROWS, ROWS, seed=3).tril() + 2 * torch.eye(ROWS, dtype=F64)
    precision = multinomial.whitened_precision(chol, pi)
    blocks = multinomial.subject_covariances(chol, torch.linalg.cholesky(precision))
    for r in range(CHAINS):
        root, phi = torch.block_diag(*chol[r]), torch.diag_embed(pi[r]).flatten(0, 1)
        information = torch.diag(pi[r].flatten()) - phi @ phi.T
        torch.testing.assert_close(precision[r], torch.eye(len(root), dtype=F64) + root.T @ information @ root)
        covariance = torch.linalg.inv(torch.linalg.inv(root @ root.T) + information)
        grid = covariance.reshape(FUNCTIONS, ROWS, FUNCTIONS, ROWS)
        for i in range(ROWS):
            torch.testing.assert_close(blocks[r, :, :, i], grid[:, i, :, i])


def test_grams_are_those_of_groups_of_columns():
    x, other = normals(CHAINS, ROWS, 5), normals(CHAINS, 2, 5, seed=4)
    grams = multinomial.grams(x, other, [2, 3])
    torch.testing.assert_close(grams[:, 0], x[..., :2] @ other[..., :2].mT)
    torch.testing.assert_close(grams.sum(1), x @ other.mT)
    own = multinomial.grams(x, x, [2, 3]).diagonal(dim1=2, dim2=3)
    torch.testing.assert_close(multinomial.squares(x, [2, 3]), own)
