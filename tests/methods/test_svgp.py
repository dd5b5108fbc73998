import gp_cases as cases
import gpytorch
import numpy as np
import pytest
import torch

from gpbench.gp import kernels, lbfgs, linalg
from gpbench.gp.layers import init_layer
from gpbench.methods import sgpr, svgp, warm_start
from gpbench.methods.base import GradientMethod, State
from gpbench.methods.training_rows import Batch, TrainingSet

NO_NOISE = torch.empty(1, 0, dtype=torch.float64)
CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}


def method(task: str = "regression", **settings) -> svgp.Method:
    return svgp.Method(svgp.Hyperparameters(**{"num_inducing": 6} | settings), task, CLASSES[task])


def toy(z: torch.Tensor = cases.Z) -> tuple[svgp.Method, Batch, State]:
    """The toy at its optimal q: S = (K_ZZ^-1 + A A^T / noise)^-1, m = S A y / noise, A = K_ZZ^-1 K_ZX."""
    toy_method = method(num_inducing=len(z), jitter=1e-14)
    scales = cases.X.new_tensor([[cases.LENGTHSCALE]]), cases.X.new_tensor([cases.OUTPUTSCALE])
    kzz, kzx = kernels.rbf(z[None], z[None], *scales)[0], kernels.rbf(z[None], cases.X[None], *scales)[0]
    projection = torch.linalg.solve(kzz, kzx)
    covariance = torch.linalg.inv(torch.linalg.inv(kzz) + projection @ projection.T / cases.NOISE_VARIANCE)
    mean = covariance @ projection @ cases.Y / cases.NOISE_VARIANCE
    chol_kzz, root = torch.linalg.cholesky(kzz), torch.linalg.cholesky(covariance)
    params = init_layer("layer1", z[None], 1, scales[0][0], cases.OUTPUTSCALE)
    params["layer1.whitened_mean"] = torch.linalg.solve_triangular(chol_kzz, mean, upper=False)[None]
    params["layer1.whitened_chol"] = torch.linalg.solve_triangular(chol_kzz, root, upper=False)[None, None]
    params["log_noise_variance"] = cases.X.new_tensor([cases.NOISE_VARIANCE]).log()
    return toy_method, cases.training_set(cases.X, cases.Y).full(), State(params)


def elbo(parts: tuple[svgp.Method, Batch, State]) -> float:
    toy_method, batch, state = parts
    return -float(cases.flat_loss(toy_method, state, batch, NO_NOISE))


def test_optimal_bound_is_titsias_bound():
    # golden: closed form log N(y; 0, Q + noise I) - tr(K - Q) / (2 noise) of the toy, six decimals
    assert elbo(toy()) == pytest.approx(cases.TITSIAS_BOUND, abs=1e-6)


def test_optimal_posterior_of_the_toy():
    toy_method, _, state = toy()
    with torch.no_grad():
        mean, variance = toy_method.marginals(state, cases.Z[None], cases.keys(1)[0])
    # golden: closed form of m and S at Z, six decimals
    np.testing.assert_allclose(mean.flatten(), [-0.991832, 0, 0.991832], atol=1e-6)
    np.testing.assert_allclose(variance.sqrt().flatten(), [0.195442, 0.174476, 0.195442], atol=1e-6)


def test_bound_with_all_inputs_inducing_is_the_evidence():
    assert elbo(toy(cases.X)) == pytest.approx(cases.EVIDENCE, abs=1e-6)


def test_posterior_with_all_inputs_inducing_is_the_exact_one():
    toy_method, _, state = toy(cases.X)
    x = torch.tensor([-1.3, -1.0, 0.2, 0.5, 2.0]).double()[:, None]
    with torch.no_grad():
        mean, variance = toy_method.marginals(state, x[None], cases.keys(1)[0])
    scales = cases.X.new_tensor([[cases.LENGTHSCALE]]), cases.X.new_tensor([cases.OUTPUTSCALE])
    noisy = kernels.rbf(cases.X[None], cases.X[None], *scales)[0] + cases.NOISE_VARIANCE * torch.eye(5).double()
    cross = kernels.rbf(cases.X[None], x[None], *scales)[0]
    solved = torch.linalg.solve(noisy, torch.cat([cases.Y, cross], 1))
    torch.testing.assert_close(mean[0, 0], cross.T @ solved[:, :1])
    torch.testing.assert_close(variance[0, 0, :, 0], cases.OUTPUTSCALE - (cross * solved[:, 1:]).sum(0))


@pytest.mark.parametrize("seed", range(5))
def test_bound_is_below_the_evidence_for_any_inducing_inputs_and_any_q(seed):
    rng = np.random.default_rng(seed)
    n, num_inducing = rng.integers(3, 12), int(rng.integers(1, 10))
    x, y = (torch.as_tensor(rng.normal(size=(n, columns))) for columns in (2, 1))
    params = {
        "layer1.inducing_inputs": rng.normal(size=(1, num_inducing, 2)),
        "layer1.whitened_mean": rng.normal(size=(1, num_inducing, 1)),
        "layer1.whitened_chol": rng.normal(size=(1, 1, num_inducing, num_inducing)),
        "layer1.log_lengthscale": rng.normal(size=(1, 2)),
        "layer1.log_outputscale": rng.normal(size=1),
        "log_noise_variance": rng.normal(size=1) - 1,
    }
    state = State({name: torch.as_tensor(value) for name, value in params.items()})
    scales = (state.params[f"layer1.log_{name}"].exp() for name in ("lengthscale", "outputscale"))
    covariance = kernels.rbf(x[None], x[None], *scales)[0] + state.params["log_noise_variance"].exp() * torch.eye(n)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(n).double(), covariance).log_prob(y[:, 0])
    batch = cases.training_set(x, y).full()
    assert -cases.flat_loss(method(num_inducing=num_inducing), state, batch, NO_NOISE) < evidence


def test_bound_does_not_fall_when_inducing_inputs_are_added_and_stays_below_the_evidence():
    bounds = [
        elbo(toy(torch.tensor(z).double()[:, None])) for z in ([0.0], [-1.0, 0.0], [-1.0, 0.0, 1.0], [-1, -0.4, 0, 1])
    ]
    assert bounds == sorted(bounds)
    assert bounds[-1] < cases.EVIDENCE


def test_optimal_q_is_stationary():
    toy_method, batch, state = toy()
    _, gradient = cases.loss_and_gradient(toy_method, state, batch, NO_NOISE)
    for name in ("layer1.whitened_mean", "layer1.whitened_chol"):
        np.testing.assert_allclose(gradient[name], 0.0, atol=1e-8)


class Reference(gpytorch.models.ApproximateGP):
    """The same model in GPyTorch, with whitened q."""

    def __init__(self, z: torch.Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(z))
        super().__init__(gpytorch.variational.VariationalStrategy(self, z, distribution, jitter_val=1e-6))
        base = gpytorch.kernels.RBFKernel(ard_num_dims=z.shape[-1])
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(base)

    def forward(self, x: torch.Tensor):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_bound_is_gpytorchs_at_the_same_parameters():
    x, y = cases.problem("regression")
    ours = method(jitter=1e-6)
    data = cases.training_set(x, y)
    state = cases.perturbed(ours.start(data, cases.keys(1)))
    # GPyTorch adds its jitter to K_ZZ in absolute terms
    state.params["layer1.log_outputscale"] = torch.zeros(1).double()
    params = {name.removeprefix("layer1."): value[0] for name, value in state.params.items()}
    reference = Reference(params["inducing_inputs"]).double()
    q = reference.variational_strategy._variational_distribution
    q.variational_mean.data = params["whitened_mean"][:, 0]
    q.chol_variational_covar.data = params["whitened_chol"][0]
    reference.variational_strategy.variational_params_initialized.fill_(1)
    reference.covar_module.outputscale = 1.0
    reference.covar_module.base_kernel.lengthscale = params["log_lengthscale"].exp()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = params["log_noise_variance"].exp()
    bound = gpytorch.mlls.VariationalELBO(likelihood, reference, num_data=len(x))(reference(x), y[:, 0]) * len(x)
    assert -float(cases.flat_loss(ours, state, data.full(), NO_NOISE)) == pytest.approx(bound.item(), rel=1e-6)


def test_minibatch_estimates_average_to_the_full_batch():
    x, y = cases.problem("regression")
    ours, data = method(), cases.training_set(x, y)
    state = cases.perturbed(ours.start(data, cases.keys(1)))
    parts = [cases.flat_loss(ours, state, data.take(torch.arange(40)[None, k::4]), NO_NOISE) for k in range(4)]
    torch.testing.assert_close(sum(parts) / 4, cases.flat_loss(ours, state, data.full(), NO_NOISE))


@pytest.mark.parametrize("task", CLASSES)
def test_batched_is_looped_and_padding_changes_nothing(task):
    cases.assert_batched_is_looped(method(task), task)


def test_nan_stays_in_its_replica():
    linalg.events()
    cases.assert_nan_stays_in_its_replica(method(), "regression")
    assert {(e["name"], e["replica"], e["failed"]) for e in linalg.events()} == {("layer1", 1, True)}


def test_gradient_agrees_with_finite_differences():
    ours, data = method(num_inducing=3), cases.training_set(*cases.problem("regression", n=6))
    state = cases.perturbed(ours.start(data, cases.keys(1)))
    names = list(state.params)

    def loss(*values):
        return cases.flat_loss(ours, State(dict(zip(names, values, strict=True))), data.full(), NO_NOISE)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in state.params.values()], atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.slow
def test_training_beats_the_constant_predictor(task, dtype):
    x, y = cases.problem(task, n=80, dtype=dtype)
    ours = method(task)
    state, losses = cases.train(ours, cases.training_set(x, y), 100)
    assert losses[-1] < losses[0]
    assert {value.dtype for value in state.params.values()} == {dtype}
    predictive = ours.predict(state, x[None], cases.keys(1)[0])
    assert predictive.is_finite()
    if task == "regression":
        assert np.mean((predictive.mean() - y.numpy()) ** 2) < 0.5 * np.var(y.numpy())
    else:
        modal = float(y.flatten().mode().values)
        assert np.mean(predictive.modal() == y[:, 0].numpy()) > (y == modal).double().mean() + 0.1


def test_given_lengthscale_replaces_the_rule():
    x, y = cases.problem("regression")
    data = cases.training_set(x, y)
    given = method(lengthscale=0.7).start(data, cases.keys(1)).params["layer1.log_lengthscale"]
    np.testing.assert_allclose(given.exp(), 0.7)
    ruled = method().start(data, cases.keys(1)).params["layer1.log_lengthscale"]
    np.testing.assert_allclose(ruled.exp(), x.var(0, correction=0).sum().sqrt().item())


def by_lbfgs(method: GradientMethod, data: TrainingSet, iterations: int) -> tuple[State, float]:
    """State after some iterations, and its loss."""
    state, rows = method.start(data, cases.keys(1)), data.replica(0)
    start = {name: value for name, value in state.params.items() if name not in method.solved}
    objective = lbfgs.of_params(lambda params: method.profile(State(params, state.buffers), rows), start)
    search = lbfgs.start(objective, lbfgs.flatten(start))
    for _ in range(iterations):
        search = lbfgs.step(objective, search)
    moved = State(state.params | lbfgs.unflatten(search.x, start), state.buffers)
    return State(moved.params | method.solve(moved, rows), state.buffers), float(search.loss)


@pytest.mark.parametrize("num_targets", [1, 2])
def test_by_lbfgs_the_bound_is_that_of_sgpr_and_the_elbo_at_the_q_that_follows(num_targets):
    x, y = cases.problem("regression")
    data = cases.training_set(x, torch.cat([y, y.square()], 1)[:, :num_targets])
    settings = {"num_inducing": 6, "optimiser": "lbfgs", "noise_variance": 0.1}
    ours = svgp.Method(svgp.Hyperparameters(**settings), "regression", num_targets=num_targets)
    collapsed = sgpr.Method(sgpr.Hyperparameters(**settings), "regression", num_targets=num_targets)
    (state, loss), (_, expected) = (by_lbfgs(method, data, 60) for method in (ours, collapsed))
    assert loss == pytest.approx(expected, rel=1e-9)
    assert float(cases.flat_loss(ours, state, data.full(), torch.empty(1, 0).to(x))) == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("module", [svgp, sgpr])
def test_of_many_rows_it_starts_from_the_optimum_of_some(module, monkeypatch):
    monkeypatch.setattr(warm_start, "MANY_ROWS", 30)
    monkeypatch.setattr(warm_start, "START_ROWS", 20)
    data = cases.training_set(*cases.problem("regression"))
    method = module.Method(module.Hyperparameters(num_inducing=6, optimiser="lbfgs"), "regression")
    plain = module.Method(module.Hyperparameters(num_inducing=6, optimiser="adam"), "regression")
    losses = [float(m.profile(m.start(data, cases.keys(1)), data.replica(0))) for m in (method, plain)]
    assert losses[0] < losses[1] - 10


@pytest.mark.parametrize(
    ("task", "rows", "settings", "expected"),
    [
        ("regression", 20_000, {}, True),
        ("regression", 20_001, {}, False),
        ("binary", 100, {}, False),
        ("regression", 100, {"separate": "all"}, False),
        ("regression", 100, {"natural_gradients": True}, False),
        ("regression", 100, {"noise": "each"}, False),
        ("regression", 100, {"fixed": "kernel"}, False),
        ("regression", 100, {"optimiser": "adam"}, False),
    ],
)
def test_lbfgs_is_for_a_best_q_in_closed_form(task, rows, settings, expected):
    assert svgp.Hyperparameters(**{"optimiser": "lbfgs"} | settings).takes_lbfgs(task, rows) == expected
