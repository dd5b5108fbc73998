"""Deep models and chains that start at the optimum of a sparse GP regression."""

import gp_cases as cases
import numpy as np
import pytest
import torch

from gpbench import streams
from gpbench.methods import bsgp, dsvi, sgpr, warm_layer
from gpbench.methods.base import State

SMALL = {"num_inducing": 6, "start_rows": 1000, "start_iterations": 60}
EMPTY = torch.empty(1, 0, dtype=torch.float64)


def training(targets: int = 1, rows: int = 40):
    x, y = cases.problem("regression", rows)
    noisy = y + 0.1 * torch.as_tensor(np.random.default_rng(1).normal(size=(rows, 1)))
    return cases.training_set(x, torch.cat([noisy, noisy.square()], 1)[:, :targets])


def optimum_of(batch, **settings) -> dict[str, torch.Tensor]:
    return warm_layer.optimum(dsvi.Hyperparameters(**SMALL | settings), batch, cases.keys(1)[0])


@pytest.mark.parametrize("targets", [1, 2])
def test_one_layer_starts_with_the_bound_of_sgpr_where_q_is_stationary(targets):
    data = training(targets)
    method = dsvi.Method(dsvi.Hyperparameters(layers=1, **SMALL), "regression", num_targets=targets)
    state, best = method.start(data, cases.keys(1)), optimum_of(data.full())
    collapsed = sgpr.Method(sgpr.Hyperparameters(num_inducing=6), "regression", num_targets=targets)
    bound = cases.flat_loss(collapsed, State(best), data.full(), EMPTY)
    loss, gradient = cases.loss_and_gradient(method, state, data.full(), EMPTY)
    torch.testing.assert_close(loss, bound, rtol=1e-9, atol=1e-9)
    for name in ("layer1.whitened_mean", "layer1.whitened_chol"):
        np.testing.assert_allclose(gradient[name].tril(), 0.0, atol=1e-6)
    cold = collapsed.start(data, cases.keys(1))
    assert bound < cases.flat_loss(collapsed, cold, data.full(), EMPTY) - 5


def test_q_is_that_of_all_rows_whatever_rows_the_optimum_is_of(monkeypatch):
    batch, rows, profile = training(rows=40).full(), set(), sgpr.Method.profile

    def seeing(method, state, some):
        rows.add(some.x.shape[1])
        return profile(method, state, some)

    monkeypatch.setattr(sgpr.Method, "profile", seeing)
    best = optimum_of(batch, start_rows=25)
    assert rows == {25}
    method = sgpr.Method(sgpr.Hyperparameters(num_inducing=6), "regression")
    a, unexplained = method.rows(best, batch.x)
    precision = torch.eye(6) + a @ a.mT / best["log_noise_variance"].exp()
    covariance = best["whitened_chol"][:, 0] @ best["whitened_chol"][:, 0].mT
    torch.testing.assert_close(covariance, torch.linalg.inv(precision), rtol=1e-7, atol=1e-9)
    mean = covariance @ a @ batch.y / best["log_noise_variance"].exp()
    torch.testing.assert_close(best["whitened_mean"], mean, rtol=1e-7, atol=1e-7)
    monkeypatch.setattr(warm_layer, "CHUNK_ROWS", 7)
    for name, value in optimum_of(batch, start_rows=25).items():
        torch.testing.assert_close(best[name], value, rtol=1e-9, atol=1e-9)


def test_outputs_with_kernels_of_their_own_start_alike():
    data = training(2)
    method = dsvi.Method(dsvi.Hyperparameters(separate="all", **SMALL), "regression", num_targets=2)
    params, best = method.start(data, cases.keys(1)).params, optimum_of(data.full())
    for name in ("inducing_inputs", "log_lengthscale", "log_outputscale"):
        for output in range(2):
            assert torch.equal(params[f"layer2.{name}"][:, output], best[name])


def test_little_noise_makes_hidden_layers_and_rates_small():
    best = {
        "log_lengthscale": torch.tensor([[1.0, 2.0]]).log(),
        "log_outputscale": torch.tensor([4.0]).log(),
        "log_noise_variance": torch.tensor([1e-6]).log(),
        "inducing_inputs": torch.zeros(1, 3, 2),
    }
    params = {"large": torch.tensor([0.01]).log(), "small": torch.tensor([1e-9]).log()}
    for name in params:
        warm_layer.limit(params, name, best)
    # a tenth of s / (outputscale * (1 / 1 + 1 / 4))
    torch.testing.assert_close(params["large"].exp(), torch.tensor([1e-7 / 5]), rtol=1e-4, atol=0)
    torch.testing.assert_close(params["small"].exp(), torch.tensor([1e-9]), rtol=1e-4, atol=0)
    torch.testing.assert_close(warm_layer.pace(best), torch.tensor([[10**-1.5]]))
    assert warm_layer.pace(best | {"log_noise_variance": torch.tensor([0.05]).log()}) == 1


def test_hidden_layers_add_a_tenth_of_the_noise_by_function_and_by_noise():
    method = dsvi.Method(dsvi.Hyperparameters(layer_noise_variance=1.0, **SMALL), "regression")
    state = method.start(training(), cases.keys(1))
    params = state.params
    slope = params["layer2.log_outputscale"].exp() * (-2 * params["layer2.log_lengthscale"]).exp().sum(1)
    for name in ("log_outputscale", "log_noise_variance"):
        added = params[f"layer1.{name}"].exp() * slope
        torch.testing.assert_close(added, 0.1 * params["log_noise_variance"].exp())
    state.buffers["pace"] = torch.tensor([[0.3]])
    assert method.pace(state).tolist() == pytest.approx([0.3])


def test_a_lengthscale_for_all_inputs_counts_for_each():
    shared = {
        "log_lengthscale": torch.tensor([[2.0]]).log(),
        "log_outputscale": torch.tensor([4.0]).log(),
        "log_noise_variance": torch.tensor([1e-6]).log(),
        "inducing_inputs": torch.zeros(1, 3, 5),
    }
    params = {"hidden": torch.tensor([0.01]).log()}
    warm_layer.limit(params, "hidden", shared)
    # a tenth of s / (outputscale * 5 / 2^2)
    torch.testing.assert_close(params["hidden"].exp(), torch.tensor([1e-7 / 5]), rtol=1e-4, atol=0)


def test_classes_have_no_such_start():
    data = cases.training_set(*cases.problem("binary"))
    for made in (dsvi.Method(dsvi.Hyperparameters(**SMALL), "binary", 2), bsgp.Method(chain(), "binary", 2)):
        state = made.start(data, cases.keys(1))
        assert "pace" not in state.buffers


def chain(**settings) -> bsgp.Hyperparameters:
    return bsgp.Hyperparameters(**SMALL | {"layers": 2, "hidden_width": 3} | settings)


def test_a_chain_starts_at_a_draw_from_q():
    data, key = training(), cases.keys(1)[0]
    method = bsgp.Method(chain(), "regression")
    state, best = method.init(data.replica(0), key), optimum_of(data.full())
    normal = streams.normal(key, "init", 0, (1, 1, 6, 1), like=best["whitened_mean"])
    drawn = best["whitened_mean"] + (best["whitened_chol"] @ normal)[..., 0].mT
    torch.testing.assert_close(state.params["layer2.whitened_values"], drawn)
    assert torch.equal(state.params["log_noise_variance"], best["log_noise_variance"])
    assert torch.equal(state.params["layer2.inducing_inputs"], best["inducing_inputs"])
    other = method.init(data.replica(0), key._replace(replica=1))
    assert not torch.equal(other.params["layer2.whitened_values"], drawn)


@pytest.mark.parametrize(("step", "factor"), [(0, 1.0), (5, 0.5), (10, 0.25), (15, 0.25)])
def test_steps_of_a_chain_fall_in_burn_in_and_with_the_noise(step, factor):
    """A transition is that of a chain with the shorter step."""
    data, pace, ends = training(), 0.1, []
    batch = data.full()
    for warm in (True, False):
        size = 0.03 if warm else 0.03 * factor * pace
        method = bsgp.Method(chain(step_size=size, step_decay=0.25, burn_in=0.5), "regression")
        state = method.init(data.replica(0), cases.keys(1)[0])
        state.buffers["pace"] = torch.tensor([[pace]], dtype=torch.float64)
        if not warm:
            del state.buffers["pace"]
        generator = torch.Generator().manual_seed(0)
        normals = torch.randn(1, cases.noise_size(method, state, 40), generator=generator, dtype=torch.float64)
        method.step(state, batch, cases.split(method, state, batch, normals, step, 20), step, 20)
        ends.append(state.params["layer2.whitened_values"])
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-12)
