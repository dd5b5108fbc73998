import gp_cases as cases
import gpytorch
import numpy as np
import pytest
import torch

from gpbench.methods import dkl, kiss_gp
from gpbench.methods.base import State

SMALL = {"hidden_units": (8, 6), "grid_size": 8}
ITERATIVE = {"cholesky_rows": 0, "cg_tolerance": 1e-4}


def method(**settings) -> dkl.Method:
    return dkl.Method(dkl.Hyperparameters(**SMALL | settings), "regression")


def of_network(state: State, weights: dict[str, torch.Tensor]) -> State:
    return State(state.params | weights, state.buffers)


def test_with_an_identity_for_a_network_it_is_kiss_gp():
    x, y = cases.problem("regression", num_inputs=2)
    data, noise = cases.training_set(x, y), torch.empty(1, 0)
    kiss = kiss_gp.Method(kiss_gp.Hyperparameters(grid_size=8), "regression")
    plain, identity = kiss.start(data, cases.keys(1)), torch.eye(2).double()
    # relu(x) - relu(-x) = x
    both = torch.cat([identity, -identity], 1)
    weights = {
        "layer1": torch.cat([both, torch.zeros(1, 4)])[None],
        "layer2": torch.cat([both.T, torch.zeros(1, 2)])[None],
        "log_lengthscale": plain.params["log_lengthscale"] / 10,  # the ratio of the rates
    }
    deep = method(hidden_units=(4,), outputscale=1.0, noise_variance=0.1)
    state = of_network(deep.start(data, cases.keys(1)), weights)
    torch.testing.assert_close(
        cases.flat_loss(deep, state, data.full(), noise), cases.flat_loss(kiss, plain, data.full(), noise)
    )
    ours, expected = (m.predict(s, x[None, :9] + 0.1, cases.keys(1)[0]) for m, s in ((deep, state), (kiss, plain)))
    np.testing.assert_allclose(ours.mean(), expected.mean(), rtol=1e-9)
    np.testing.assert_allclose(ours.variance(), expected.variance(), rtol=1e-9)


def test_gradient_agrees_with_finite_differences():
    data = cases.training_set(*cases.problem("regression", n=8))
    made = method(hidden_units=(3,))
    state = cases.perturbed(made.start(data, cases.keys(1)))

    def loss(*values):
        return cases.flat_loss(
            made, State(dict(zip(state.params, values, strict=True))), data.full(), torch.empty(1, 0)
        )

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()])


def test_iterations_give_the_network_the_gradient_of_the_dense_evidence():
    """Mean over many probes, to six standard errors."""
    data = cases.training_set(*cases.problem("regression"))
    gradients = []
    for settings, draws in (({}, 1), (ITERATIVE, 30)):
        made = method(**settings)
        state = cases.perturbed(made.start(data, cases.keys(1)))
        noises = torch.arange(draws, dtype=torch.float64)[:, None, None]
        found = [cases.loss_and_gradient(made, state, data.full(), noise)[1]["layer1"][0] for noise in noises]
        gradients.append(torch.stack(found))
    (exact,), estimated = gradients
    error = estimated.std(0) / len(estimated) ** 0.5
    assert error.max() > 0
    assert ((estimated.mean(0) - exact).abs() <= 6 * error + 1e-4 * exact.abs().max()).all()


def noise_variance(made: dkl.Method, state: State) -> torch.Tensor:
    return made.process(kiss_gp.replica(state.params, 0), torch.zeros(1, 2).double()).noise_variance.detach()


def test_network_and_gp_move_at_their_rates():
    """Adam's first step is its rate, whatever the gradient."""
    data = cases.training_set(*cases.problem("regression"))
    made = method(learning_rate=0.002, gp_learning_rate=0.03)
    state = cases.with_gradient(made.start(data, cases.keys(1)))
    before = noise_variance(made, state)
    weight = state.params["layer3"].detach().clone()
    optimiser = torch.optim.Adam(state.params.values(), lr=made.hyper.learning_rate)
    cases.flat_loss(made, state, data.full(), torch.empty(1, 0)).sum().backward()
    optimiser.step()
    after = noise_variance(made, state)
    assert float((after / before).log().abs()) == pytest.approx(0.03, rel=1e-4)
    assert float((state.params["layer3"].detach() - weight)[0, :-1].abs().max()) == pytest.approx(0.002, rel=1e-4)


@pytest.mark.parametrize("settings", [{}, ITERATIVE], ids=["few", "many"])
def test_batched_is_looped(settings):
    cases.assert_batched_is_looped(method(**settings), "regression")


@pytest.mark.parametrize("settings", [{}, ITERATIVE], ids=["few", "many"])
def test_nan_stays_in_its_replica(settings):
    cases.assert_nan_stays_in_its_replica(method(**settings), "regression")


def test_weights_start_with_the_variance_that_keeps_the_size_of_rectified_features():
    data = cases.training_set(*cases.problem("regression"))
    params = method(hidden_units=(400, 300)).start(data, cases.keys(1)).params
    for name, inputs in (("layer1", 3), ("layer2", 400), ("layer3", 300)):
        weight = params[name][0]
        assert weight[:-1].std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.1)
        assert not weight[-1].any()


def test_the_gp_starts_where_gpytorchs_does():
    """Its lengthscale in ranges of features from -0.95 to 0.95."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    noise = gpytorch.likelihoods.GaussianLikelihood()
    hyper = dkl.Hyperparameters()
    expected = kernel.base_kernel.lengthscale.item() / 1.9, kernel.outputscale.item(), noise.noise.item()
    assert (hyper.lengthscale, hyper.outputscale, hyper.noise_variance) == pytest.approx(expected, abs=0.006)


def test_a_grid_that_is_too_large_is_refused():
    assert dkl.Hyperparameters(num_outputs=3).impossible("regression") == ""
    assert "a grid of 100000000 points" in dkl.Hyperparameters(num_outputs=4).impossible("regression")
