import gp_cases as cases
import gpytorch
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from gpbench.gp import linalg
from gpbench.methods import exact_gp

HYPER = exact_gp.Hyperparameters(
    lengthscale=cases.LENGTHSCALE, outputscale=cases.OUTPUTSCALE, noise_variance=cases.NOISE_VARIANCE, jitter=1e-12
)
NO_NOISE = torch.empty(1, 0, dtype=torch.float64)


def method(hyper: exact_gp.Hyperparameters = HYPER) -> exact_gp.Method:
    return exact_gp.Method(hyper, "regression")


class Reference(gpytorch.models.ExactGP):
    """The same model in GPyTorch."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, hyper: exact_gp.Hyperparameters) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        base = gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[-1])
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(base)
        self.double()
        base.lengthscale, self.covar_module.outputscale = hyper.lengthscale, hyper.outputscale
        self.likelihood.noise = hyper.noise_variance

    def forward(self, x: torch.Tensor):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_evidence_is_the_golden_number_and_the_normal_density():
    data = cases.training_set(cases.X, cases.Y)
    state = method().start(data, cases.keys(1))
    evidence = -float(method().loss(state, data.full(), NO_NOISE))
    distance = (cases.X - cases.X.T).numpy()
    covariance = 1.3 * np.exp(-0.5 * (distance / 0.6) ** 2) + 0.05 * np.eye(5)
    assert evidence == pytest.approx(multivariate_normal.logpdf(cases.Y[:, 0], cov=covariance), abs=1e-8)
    # golden: closed form of the toy, six decimals
    assert evidence == pytest.approx(cases.EVIDENCE, abs=1e-6)


def test_evidences_of_targets_add_up():
    y = torch.cat([cases.Y, cases.X.square() - 0.3], 1)
    ours = exact_gp.Method(HYPER, "regression", num_targets=2)
    both = cases.training_set(cases.X, y)
    covariance = 1.3 * np.exp(-0.5 * ((cases.X - cases.X.T).numpy() / 0.6) ** 2) + 0.05 * np.eye(5)
    expected = sum(multivariate_normal.logpdf(column, cov=covariance) for column in y.T)
    loss = ours.loss(ours.start(both, cases.keys(1)), both.full(), NO_NOISE)
    assert -float(loss) == pytest.approx(expected, rel=1e-8)


def test_evidence_gradient_and_predictions_are_gpytorchs():
    x, y = cases.problem("regression")
    data = cases.training_set(x, y)
    state = method().start(data, cases.keys(1))
    loss, gradient = cases.loss_and_gradient(method(), state, data.full(), NO_NOISE)
    reference = Reference(x, y[:, 0], HYPER)
    reference.train()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(reference.likelihood, reference)(reference(x), y[:, 0]) * len(x)
    assert -float(loss) == pytest.approx(evidence.item(), rel=1e-6)
    evidence.backward()
    raw = reference.covar_module.base_kernel.raw_lengthscale
    # d/d log l = l d/dl, and d/d raw = sigmoid(raw) d/dl under GPyTorch's softplus
    expected = HYPER.lengthscale * raw.grad / torch.sigmoid(raw)
    torch.testing.assert_close(-gradient["log_lengthscale"], expected.detach(), rtol=1e-6, atol=1e-6)
    reference.eval()
    test = torch.linspace(-2, 2, 15, dtype=torch.float64).reshape(5, 3)
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        expected = reference.likelihood(reference(test))
    ours = method().predict(state, test[None], cases.keys(1)[0])
    np.testing.assert_allclose(ours.mean()[:, 0], expected.mean, atol=1e-6)
    np.testing.assert_allclose(ours.variance()[:, 0], expected.variance, atol=1e-6)


def test_gradient_agrees_with_finite_differences():
    data = cases.training_set(*cases.problem("regression", n=8), [list(range(8)), list(range(7))])
    state = cases.perturbed(method().start(data, cases.keys(2)))
    names = list(state.params)

    def loss(*values):
        return method().loss(exact_gp.State(dict(zip(names, values, strict=True))), data.full(), NO_NOISE)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()])


def test_batched_is_looped_and_padding_changes_nothing():
    cases.assert_batched_is_looped(method(), "regression")


def test_nan_stays_in_its_replica():
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(), "regression")
    assert {(e["name"], e["replica"], e["failed"]) for e in linalg.events()} == {("exact_gp", 1, True)}


def test_without_noise_it_interpolates():
    hyper = exact_gp.Hyperparameters(lengthscale=0.6, noise_variance=1e-10, jitter=1e-12)
    state = method(hyper).start(cases.training_set(cases.X, cases.Y), cases.keys(1))
    predictive = method(hyper).predict(state, cases.X[None], cases.keys(1)[0])
    np.testing.assert_allclose(predictive.mean(), cases.Y, atol=1e-6)
    np.testing.assert_allclose(predictive.variance(), 0.0, atol=1e-8)


def test_jitter_is_part_of_the_noise_that_is_predicted():
    hyper = exact_gp.Hyperparameters(lengthscale=0.6, outputscale=2.0, noise_variance=0.3, jitter=0.1)
    state = method(hyper).start(cases.training_set(cases.X, cases.Y), cases.keys(1))
    far = method(hyper).predict(state, cases.X[None] + 100, cases.keys(1)[0])
    np.testing.assert_allclose(far.variance(), 2.0 + 0.3 + 0.1 * 2.0)


def test_start_lengthscale_is_the_root_of_the_total_variance():
    x, y = cases.problem("regression")
    state = method(exact_gp.Hyperparameters()).start(
        cases.training_set(x, y, [list(range(40)), list(range(39))]), cases.keys(2)
    )
    expected = [x[:n].var(0, correction=0).sum().sqrt().item() for n in (40, 39)]
    np.testing.assert_allclose(state.params["log_lengthscale"].exp(), np.repeat(np.array(expected)[:, None], 3, axis=1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_training_raises_the_evidence(dtype):
    x, y = cases.problem("regression", dtype=dtype)
    state, losses = cases.train(method(exact_gp.Hyperparameters()), cases.training_set(x, y), 30)
    assert losses[-1] < losses[0] - 1
    assert state.params["log_lengthscale"].dtype == dtype
