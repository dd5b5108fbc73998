"""RMHMC against HMC, which it is with a constant metric, and its implicit leapfrog against itself, backwards."""

import numpy as np
import torch

from gpbench.sampling import hmc
from gpbench.sampling.latent import rmhmc

F64 = torch.float64
ALL = torch.ones(4000, dtype=torch.bool)


def normals(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


class Constant:
    """log cosh wells, with a metric that is the same everywhere."""

    root = torch.linalg.cholesky(torch.tensor([[2.0, 0.5], [0.5, 0.7]], dtype=F64))

    def factor(self, position):
        return self.root.expand(len(position), -1, -1)

    def at(self, position):
        value, gradient = -position.cosh().log().sum(1), -position.tanh()
        zero = torch.zeros_like(position)
        return rmhmc.Point(position, value, gradient, self.factor(position), zero, zero)

    def quadratics(self, point, u):
        return torch.zeros_like(u)


class Bending(Constant):
    """A metric diag(1 + x_i^2)."""

    def factor(self, position):
        return torch.diag_embed((1 + position.square()).sqrt())

    def at(self, position):
        traces = 2 * position / (1 + position.square())
        return super().at(position)._replace(factor=self.factor(position), traces=traces)

    def quadratics(self, point, u):
        return 2 * point.position * u.square()


def test_with_a_constant_metric_it_is_hmc():
    target, position, normal = Constant(), normals(6, 2), normals(6, 2, seed=1)
    uniform, size = torch.linspace(0.05, 0.95, 6, dtype=F64), torch.full((6,), 0.8, dtype=F64)
    move = rmhmc.step(target.at(position), target, normal, uniform, size, 5)

    def density(w):  # w = root^T x has unit mass
        point = target.at(w @ torch.linalg.inv(target.root))
        return hmc.Point(w, point.value, point.gradient @ torch.linalg.inv(target.root).T)

    start = density(position @ target.root)
    end, acceptance = hmc.step(start, density, normal, uniform, size, torch.full((6,), 5))
    torch.testing.assert_close(move.acceptance, acceptance, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(move.position @ target.root, end.position, rtol=1e-10, atol=1e-12)
    assert (acceptance < 0.999).any()


def test_the_implicit_leapfrog_is_reversible(monkeypatch):
    monkeypatch.setattr(rmhmc, "TOLERANCE", 1e-13)
    monkeypatch.setattr(rmhmc, "MOST_ITERATIONS", 200)
    target, start = Bending(), Bending().at(normals(5, 2))
    momentum, size = normals(5, 2, seed=1), torch.full((5,), 0.2, dtype=F64)
    end, final, solved, _ = rmhmc.integrate(start, momentum, target, size, 6, ALL[:5])
    assert solved.all()
    assert ((end.position - start.position).abs().amax(1) > 0.1).all()
    back, reversed_momentum, _, _ = rmhmc.integrate(end, -final, target, size, 6, ALL[:5])
    torch.testing.assert_close(back.position, start.position, rtol=0, atol=1e-10)
    torch.testing.assert_close(reversed_momentum, -momentum, rtol=0, atol=1e-10)


def test_the_energy_error_falls_with_the_square_of_the_step():
    target, start, momentum = Bending(), Bending().at(normals(4, 2)), normals(4, 2, seed=1)
    errors = []
    for steps in (20, 40):
        size = torch.full((4,), 1.0 / steps, dtype=F64)
        end, final, _, _ = rmhmc.integrate(start, momentum, target, size, steps, ALL[:4])
        errors.append((rmhmc.energy(end, final) - rmhmc.energy(start, momentum)).abs())
    assert (errors[0] > 1e-6).all()
    ratio = errors[0].sum() / errors[1].sum()
    assert 3.5 < float(ratio) < 4.5


def test_an_unsolved_equation_rejects_only_its_own_trajectory():
    target, start = Bending(), Bending().at(torch.tensor([[0.1, 0.1], [0.1, 0.1], [torch.nan, 0.0]], dtype=F64))
    ones = torch.ones(3, dtype=F64)
    normal = torch.tensor([[0.3, 0.2], [40.0, 0.2], [0.1, 0.1]], dtype=F64)
    move = rmhmc.step(start, target, normal, 1e-300 * ones, torch.tensor([0.1, 3.0, 0.1], dtype=F64), 3)
    assert move.acceptance[0] > 0.9
    assert move.acceptance[1:].tolist() == [0, 0]
    assert (move.position[1] == start.position[1]).all()


def test_trajectories_that_do_not_lead_back_are_rejected():
    """At long steps some are solved forwards and not backwards, or come back elsewhere."""
    target, normal = Bending(), normals(4000, 2, seed=1)
    start, size = target.at(normals(4000, 2)), torch.full((4000,), 1.0, dtype=F64)
    end, final, forwards, _ = rmhmc.integrate(start, rmhmc.multiply(start.factor, normal), target, size, 3, ALL)
    back, _, backwards, _ = rmhmc.integrate(end, -final, target, size, 3, ALL)
    returned = backwards & ((back.position - start.position).abs().amax(1) < 1e-2)
    move = rmhmc.step(start, target, normal, torch.full_like(size, 1e-300), size, 3)
    lost = forwards & ~returned
    print(f"{lost.sum()} of {forwards.sum()} trajectories do not lead back")
    assert 40 < lost.sum() < 2000
    assert (move.acceptance[lost] == 0).all()
    assert (move.position[lost] == start.position[lost]).all()
    assert (move.acceptance[forwards & returned] > 0).all()


def test_metrics_are_counted_there_and_back():
    class Counting(Bending):
        metrics = 0

        def factor(self, position):
            self.metrics += 1
            return super().factor(position)

        def at(self, position):
            before, point = self.metrics, super().at(position)
            self.metrics = before + 1
            return point

    target = Counting()
    start, one = target.at(normals(1, 2)), torch.ones(1, dtype=F64)
    target.metrics = 0
    move = rmhmc.step(start, target, normals(1, 2, seed=1), 1e-300 * one, 0.2 * one, 3)
    assert move.acceptance > 0
    assert move.metrics.item() == target.metrics > 2 * 3 * 2


def test_fixed_points_are_solved_chain_by_chain():
    start, wanted = torch.tensor([[1.0], [1.0], [1.0]], dtype=F64), torch.tensor([True, True, False])
    factor = torch.tensor([[0.1], [-2.0], [0.1]], dtype=F64)
    x, found, tries = rmhmc.fixed_point(lambda x: 1 + factor * x, start, wanted)
    assert found.tolist() == [True, False, False]
    assert abs(float(x[0]) - 1 / 0.9) < 1e-4
    assert tries[0] < rmhmc.MOST_ITERATIONS == tries[1]
    assert tries[2] == 0
