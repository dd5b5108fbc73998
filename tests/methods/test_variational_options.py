"""What svgp's and dsvi's choices of q, its coordinates, the start and what stays of it, and of the noise do."""

import gp_cases as cases
import numpy as np
import pytest
import torch

from gpbench.gp import inducing, kernels, likelihoods
from gpbench.gp.layers import layer
from gpbench.methods import dsvi, sgpr, svgp
from gpbench.methods.base import State
from gpbench.study.fitting.loop import GradientLoop

CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}


def method(task: str = "regression", targets: int = 1, **settings) -> svgp.Method:
    hyper = svgp.Hyperparameters(**{"num_inducing": 6} | settings)
    return svgp.Method(hyper, task, CLASSES[task], num_targets=targets)


def deep(task: str = "regression", **settings) -> dsvi.Method:
    hyper = dsvi.Hyperparameters(**{"num_inducing": 6, "hidden_width": 2} | settings)
    return dsvi.Method(hyper, task, CLASSES[task])


def data():
    return cases.training_set(*cases.problem("regression"), [list(range(30)), list(range(10, 40))])


def dense_bound(state: State, r: int, mean: torch.Tensor, covariance: torch.Tensor) -> float:
    """The bound of replica r for q(u) = N(mean, covariance), by dense algebra in u."""
    x, y = (value[0] for value in (data().replica(r).x, data().replica(r).y))
    params = {name: value[r : r + 1] for name, value in state.params.items()}
    z, kernel = params["layer1.inducing_inputs"], kernels.read("rbf", params, "layer1.")
    kzz = kernel.covariance(z, z)[0] + 1e-6 * kernel.outputscale * torch.eye(len(z[0]))
    projection = torch.linalg.solve(kzz, kernel.covariance(z, x[None])[0])  # K_ZZ^-1 k(Z, x)
    prior = torch.distributions.MultivariateNormal(torch.zeros_like(mean), kzz)
    q = torch.distributions.MultivariateNormal(mean, covariance)
    left = kernel.outputscale - (projection * (kzz @ projection)).sum(0)
    variance = left + (projection * (covariance @ projection)).sum(0)
    noise = params["log_noise_variance"].exp()
    fits = torch.distributions.Normal(projection.T @ mean, noise.sqrt()).log_prob(y[:, 0]) - variance / (2 * noise)
    return float(fits.sum() - torch.distributions.kl_divergence(q, prior))


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("coordinates", ["whitened", "inducing"])
def test_bounds_are_those_of_dense_algebra_in_u(covariance, coordinates):
    ours = method(covariance=covariance, coordinates=coordinates)
    state = cases.perturbed(ours.start(data(), cases.keys(2)))
    losses, gradient = cases.loss_and_gradient(ours, state, data().full(), torch.empty(2, 0).double())
    assert all(value.abs().sum() > 0 for value in gradient.values())
    for r in range(2):
        mean = state.params[f"layer1.{coordinates}_mean"][r, :, 0]
        chol = state.params[f"layer1.{coordinates}_chol"][r, 0]
        root = chol.tril() if covariance == "full" else torch.diag(chol)
        if coordinates == "whitened":
            of_prior = layer(cases.replica(state, r).params, "layer1", 1e-6).chol_kzz[0]
            mean, root = of_prior @ mean, of_prior @ root
        assert -float(losses[r]) == pytest.approx(dense_bound(state, r, mean, root @ root.T), rel=1e-9)


def test_a_diagonal_is_a_full_factor_without_the_rest():
    full, diagonal = method("multiclass"), method("multiclass", covariance="diagonal")
    batch = cases.training_set(*cases.problem("multiclass")).full()
    start = diagonal.start(cases.training_set(*cases.problem("multiclass")), cases.keys(1))
    state = cases.perturbed(start)
    spread = state.params["layer1.whitened_chol"]
    assert spread.shape == (1, 3, 6)
    with_factor = State(state.params | {"layer1.whitened_chol": spread.diag_embed()})
    noise = torch.empty(1, 0).double()
    loss, gradient = cases.loss_and_gradient(diagonal, state, batch, noise)
    expected, by_factor = cases.loss_and_gradient(full, with_factor, batch, noise)
    torch.testing.assert_close(loss, expected)
    own = by_factor["layer1.whitened_chol"].diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(gradient["layer1.whitened_chol"], own)


OPTIONS = [
    {"covariance": "diagonal"},
    {"coordinates": "inducing", "separate": "all"},
    {"covariance": "diagonal", "coordinates": "inducing"},
    {"inducing_start": "greedy", "fixed": "kernel"},
    {"inducing_start": "rows", "noise": "each"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()))
@pytest.mark.parametrize("make", [method, deep])
@pytest.mark.slow
def test_batched_is_looped(make, options):
    cases.assert_batched_is_looped(make(**options), "regression")


@pytest.mark.parametrize(
    ("fixed", "moves"),
    [
        ("none", {"inducing_inputs", "log_lengthscale", "log_outputscale", "log_noise_variance"}),
        ("inducing_inputs", {"log_lengthscale", "log_outputscale", "log_noise_variance"}),
        ("kernel", {"inducing_inputs", "log_noise_variance"}),
        ("all", set()),
    ],
)
def test_what_is_fixed_stays_and_the_rest_moves(fixed, moves):
    loop = GradientLoop()
    loop.method = deep(fixed=fixed)
    training = cases.training_set(*cases.problem("regression"))
    loop.prepare(training, cases.keys(1), 5, 5)
    loop.hold(cases.perturbed(loop.method.start(training, cases.keys(1))))
    loop.start_adam()
    before = {name: value.detach().clone() for name, value in loop.state.params.items()}
    for step in range(5):
        loop.advance(*loop.draw(step), step)
    moved = {name for name, value in loop.state.params.items() if not torch.equal(value, before[name])}
    assert {name.split(".")[-1] for name in moved} == moves | {"whitened_mean", "whitened_chol"}
    assert not {name.split(".")[-1] for name in before.keys() - moved} & moves


def test_a_noise_a_target_is_a_likelihood_a_target():
    y, mean, variance = (torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(k)).double() for k in range(3))
    variance, noise = variance.exp()[None], torch.tensor([[0.1, 1.0, 3.0], [0.2, 0.5, 0.7]]).double()
    together, alone = likelihoods.Gaussian(3), likelihoods.Gaussian()
    for name, power in (("expected_log_prob", ()), ("log_power_prob", (0.5,)), ("log_expected_prob", ())):
        parts = [
            getattr(alone, name)(
                y[..., p : p + 1], mean[None, ..., p : p + 1], variance[..., p : p + 1], noise[:, p], *power
            )
            for p in range(3)
        ]
        ours = getattr(together, name)(y, mean[None], variance, noise, *power)
        torch.testing.assert_close(ours, sum(parts))
    predictive = together.predictive(mean[None, 0], variance[:, 0], noise[:1])
    np.testing.assert_allclose(predictive.component_variance, variance[:, 0] + noise[0])


def test_equal_noises_are_one_noise():
    x, y = cases.problem("regression")
    training = cases.training_set(x, torch.cat([y, y.square()], 1))
    one, each = method(targets=2), method(targets=2, noise="each")
    state, no_noise = cases.perturbed(one.start(training, cases.keys(1))), torch.empty(1, 0).double()
    repeated = {"log_noise_variance": state.params["log_noise_variance"][:, None].repeat(1, 2)}
    assert each.start(training, cases.keys(1)).params["log_noise_variance"].shape == (1, 2)
    loss, gradient = cases.loss_and_gradient(one, state, training.full(), no_noise)
    ours, by_target = cases.loss_and_gradient(each, State(state.params | repeated), training.full(), no_noise)
    torch.testing.assert_close(ours, loss)
    torch.testing.assert_close(by_target["log_noise_variance"].sum(1), gradient["log_noise_variance"])


def test_greedy_rows_are_those_of_the_largest_dense_conditional_variance():
    x = np.random.default_rng(0).standard_normal((60, 2))
    scales = torch.tensor([[0.7, 1.5]]).double(), torch.tensor([2.0]).double()
    kernel = kernels.Kernel("rbf", dict(zip(("lengthscale", "outputscale"), scales, strict=True)))
    z = inducing.greedy(x, 12, np.random.default_rng(0), kernel)
    points = torch.from_numpy(np.unique(x, axis=0))
    k = kernel.covariance(points[None], points[None])[0]
    places = [int((points == row).all(1).nonzero()) for row in torch.from_numpy(z)]
    for size in range(1, 12):
        some = places[:size]
        left = k.diagonal() - (k[:, some] * torch.linalg.solve(k[some][:, some], k[some]).T).sum(1)
        assert places[size] == int(left.argmax())
    # what they leave unexplained is less than random rows do
    traces = []
    for chosen in (z, inducing.rows(x, 12, np.random.default_rng(0))):
        some = torch.from_numpy(chosen)[None]
        a = torch.linalg.solve_triangular(
            kernel.factor(some, 1e-9, "z"), kernel.covariance(some, points[None]), upper=False
        )
        traces.append(float((k.diagonal() - a.square().sum(1)[0]).sum()))
    assert traces[0] < traces[1]


@pytest.mark.parametrize("kind", ["rows", "greedy"])
def test_starts_are_rows_whatever_their_order_and_distinct_where_rows_repeat(kind):
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((40, 3)))
    shuffled = x[torch.randperm(40, generator=torch.Generator().manual_seed(0))]
    starts = [
        method(inducing_start=kind).start(cases.training_set(some, some[:, :1]), cases.keys(1))
        for some in (x, shuffled)
    ]
    z, again = (start.params["layer1.inducing_inputs"][0] for start in starts)
    torch.testing.assert_close(z, again, rtol=0, atol=0)
    assert {tuple(row) for row in z.tolist()} <= {tuple(row) for row in x.tolist()}
    few = method(inducing_start=kind, num_inducing=9).start(
        cases.training_set(x[:4].repeat(3, 1), x[:4, :1].repeat(3, 1)), cases.keys(1)
    )
    assert len(few.params["layer1.inducing_inputs"][0].unique(dim=0)) == 9


def test_sgpr_starts_greedily_too():
    training = cases.training_set(*cases.problem("regression"))
    starts = [
        kind.Method(kind.Hyperparameters(num_inducing=6, inducing_start="greedy"), "regression").start(
            training, cases.keys(1)
        )
        for kind in (sgpr, svgp)
    ]
    torch.testing.assert_close(starts[0].params["inducing_inputs"], starts[1].params["layer1.inducing_inputs"])


@pytest.mark.parametrize(
    ("make", "task", "settings", "says"),
    [
        (svgp, "binary", {"noise": "each"}, "noise: each target's own variance is for regression, not binary"),
        (svgp, "regression", {"covariance": "diagonal", "natural_gradients": "gaussian"}, "natural_gradients need"),
        (svgp, "binary", {"coordinates": "inducing", "natural_gradients": "all"}, "natural_gradients need"),
        (dsvi, "regression", {"covariance": "diagonal", "start_rows": 10}, "set start_rows=0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_a_line(make, task, settings, says):
    reason = make.Hyperparameters(**settings).impossible(task)
    assert says in reason
    assert "\n" not in reason


def test_settings_that_do_make_sense_are_not_refused():
    assert svgp.Hyperparameters(covariance="diagonal", natural_gradients="gaussian").impossible("binary") == ""
    assert dsvi.Hyperparameters(coordinates="inducing", start_rows=10).impossible("binary") == ""
    assert not svgp.Hyperparameters(optimiser="lbfgs", covariance="diagonal").takes_lbfgs("regression", 100)
    assert svgp.Hyperparameters(optimiser="lbfgs", inducing_start="greedy").takes_lbfgs("regression", 100)
