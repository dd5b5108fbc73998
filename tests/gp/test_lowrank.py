import torch

from gpbench.gp import lowrank


def test_gradient_of_the_log_density_agrees_with_finite_differences():
    generator = torch.Generator().manual_seed(0)
    a, y, variance = (torch.rand(shape, generator=generator).double() for shape in [(2, 4, 6), (2, 6, 3), (2, 6)])
    leaves = a.requires_grad_(), (0.1 + variance).requires_grad_()
    ones = torch.ones(2, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, variance: lowrank.log_density(a, y, variance, ones, "test"), leaves)
