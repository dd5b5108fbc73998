"""STRIDE: limits in which it is the exact deep GP or the sparse GP, EM, what pCN leaves invariant, a step function."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from stride_cases import KEY, disturbed, exact, method, noise, rows, run, started

from gpbench.gp import greedy
from gpbench.methods import greedy_sgp, stride
from gpbench.methods.base import State
from gpbench.methods.cross_approximated_layers import CrossApproximation
from gpbench.methods.hidden_layers import Full, M, Sparse
from gpbench.methods.training_rows import Batch
from gpbench.sampling import pcn

ARCHITECTURES = ["composition", "convolution"]
HIDDEN = ["full", "aca", "sparse"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("layers", [2, 3])
def test_with_all_rows_as_inducing_points_it_is_the_exact_chain_step_by_step(architecture, layers):
    train, settings = rows(), {"architecture": architecture, "layers": layers}
    sparse, full = method(num_inducing=12, rounds=0, **settings), exact(**settings)
    one, other = started(sparse, train), started(full, train)
    for t in range(20):
        normals = noise(full, other, t, 20, t)
        both = [made.step(state, train, normals, t, 20) for made, state in ((sparse, one), (full, other))]
        torch.testing.assert_close(*both, rtol=1e-5, atol=1e-4)
        for name in one.params:
            assert torch.equal(one.params[name], other.params[name])
    assert not torch.equal(one.params["layer0"], started(full, train).params["layer0"])
    x = rows(5, seed=3).x
    found, expected = (made.predict(state, x, KEY) for made, state in ((sparse, one), (full, other)))
    assert found.mean() == pytest.approx(expected.mean(), abs=1e-5)
    assert found.variance() == pytest.approx(expected.variance(), abs=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("layers", [2, 3])
def test_at_the_start_it_is_the_greedy_sparse_gp(architecture, hidden, layers):
    """Its likelihood and predictions, but for what jitter and rank leave out of the start."""
    train, chosen = rows(), [1, 5, 9, 3]
    made = method(architecture=architecture, hidden=hidden, layers=layers, rank=12)
    state = started(made, train, chosen)
    params = {"log_lengthscale": torch.zeros(1, 1), "log_outputscale": torch.tensor([1.5]).log()}
    params = {
        name: value.double() for name, value in (params | {"log_noise_variance": torch.tensor([0.05]).log()}).items()
    }
    sgp = greedy_sgp.Method(greedy_sgp.Hyperparameters(num_inducing=4), "regression")
    buffers = {"x": train.x, "y": train.y, "mask": train.weight, greedy_sgp.Z: train.x[:, chosen]}
    model = made.regression(state.params, state.buffers)
    bound = greedy.bound(model, greedy.summarise(model, model.places(state.buffers[M])))
    expected = -sgp.profile(State(params, buffers), train)
    torch.testing.assert_close(bound, expected.expand(1, 3), rtol=0, atol=2e-3)
    x = rows(5, seed=3).x
    found, sparse = made.predict(state, x, KEY), sgp.predict(State(params, buffers), x, KEY)
    if hidden != "full" or architecture == "composition":
        tolerance = 0.05 if architecture == "convolution" and hidden == "aca" else 5e-3
        near = abs(x[0, :, 0].numpy()) < 1.5  # where a constant lengthscale is no extrapolation
        assert found.mean()[near] == pytest.approx(sparse.mean()[near], abs=tolerance)
        assert found.variance()[near] == pytest.approx(sparse.variance()[near], abs=tolerance)


def test_fully_sparse_with_all_rows_is_full_as_its_noise_vanishes():
    train = rows()
    full, sparse = method(num_inducing=12), method(num_inducing=12, hidden="sparse")
    one, other = started(full, train, noise_variance=1e-8), started(sparse, train, noise_variance=1e-8)
    shift = torch.randn(1, 3, 12, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for state in (one, other):
        state.params["layer0"] = state.params["layer0"] + shift
    values = [made.hidden.values(s.params, s.buffers)(slice(None)) for made, s in ((full, one), (sparse, other))]
    torch.testing.assert_close(*values, rtol=0, atol=1e-9)
    x = train.x[:, None, :5] + 1e-3
    found = [
        made.hidden.at_inputs(made.hidden.extension(s.params, s.buffers), s.buffers, x)[-1]
        for made, s in ((full, one), (sparse, other))
    ]
    torch.testing.assert_close(*found, rtol=0, atol=0.05)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("layers", [2, 3])
def test_predictions_at_training_inputs_see_the_values_of_the_rows(hidden, layers):
    train = rows(d=2)
    made = method(hidden=hidden, layers=layers)
    state = disturbed(started(made, train))
    values = made.hidden.values(state.params, state.buffers)(slice(None))
    found = made.hidden.at_inputs(made.hidden.extension(state.params, state.buffers), state.buffers, train.x[:, None])[
        -1
    ]
    if hidden == "sparse":  # the rows M keep their own values, which the interpolation smoothes
        values, found = values[:, :, 4:], found[:, :, 4:]
    torch.testing.assert_close(found, values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("layers", [2, 3])
def test_particles_batched_are_particles_alone(architecture, hidden, layers):
    train = rows(d=2)
    made = method(architecture=architecture, hidden=hidden, layers=layers)
    together = disturbed(started(made, train))
    value = made.log_likelihood(together.params, together.buffers)
    for s in range(3):
        params = {name: xi[:, s : s + 1] for name, xi in together.params.items()}
        pivots = {
            name: p[:, s : s + 1] for name, p in together.buffers.items() if name == "layer1.pivots" and p.shape[1] > 1
        }
        alone = made.log_likelihood(params, together.buffers | pivots)
        torch.testing.assert_close(alone[:, 0], value[:, s], rtol=1e-9, atol=0)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("layers", [2, 3])
def test_values_stay_what_they_were_in_an_m_step(hidden, layers):
    """Exactly in full; else as far as the new rows can say it; and where M stays, exactly."""
    train = rows(30, d=2)
    made = method(hidden=hidden, layers=layers, rank=25, num_inducing=12)
    state = disturbed(started(made, train), 0.05)
    state.params, kept = made.hidden.refresh(state.params, state.buffers, state.buffers)
    state.buffers |= kept
    before = made.hidden.values(state.params, state.buffers)(slice(None))
    same, _ = made.hidden.refresh(state.params, state.buffers, state.buffers)
    for name, xi in state.params.items():
        torch.testing.assert_close(same[name], xi, rtol=0, atol=1e-2 if hidden == "aca" else 1e-5)
    made.maximise(state, torch.randn(1, 30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    after = made.hidden.values(state.params, state.buffers)(slice(None))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12 if hidden == "full" else 0.2)
    fresh = made.log_likelihood(state.params, state.buffers)
    assert torch.equal(state.memory["value"], fresh)


def test_an_m_step_never_lowers_the_average_bound():
    train, made = rows(40, d=2), method(rounds=4, num_inducing=6)
    state = disturbed(started(made, train))

    def average() -> float:
        model = made.regression(state.params, state.buffers)
        return greedy.bound(model, greedy.summarise(model, model.places(state.buffers[M]))).mean().item()

    for seed in range(3):
        before = average()
        keys = torch.randn(1, 40, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        made.maximise(state, keys)
        assert average() >= before - 1e-9


@pytest.mark.parametrize("size", [0.7, 0.3])
def test_the_e_step_passes_a_joint_distribution_test(size):
    """With n = 4: y given the hidden layer is drawn anew after each transition; xi must stay N(0, I) (geweke2004)."""
    train, particles = rows(4), 4000
    made = method(num_inducing=2, particles=particles, em_iterations=1, rounds=0)
    state = started(made, train, [0, 2], noise_variance=0.3)
    generator = torch.Generator().manual_seed(3)
    xi = torch.randn(1, particles, 4, 1, generator=generator, dtype=torch.float64)
    for _ in range(25):
        y = drawn(made, xi, state.buffers, generator)
        xi = one_transition(made, xi, y, state.buffers, generator, size)
    moments = torch.stack([xi.mean(1), xi.square().mean(1) - 1, (xi**3).mean(1)])[..., 0, :, 0]
    errors = torch.tensor([1.0, 2.0, 15.0], dtype=torch.float64).sqrt()[:, None] / particles**0.5
    assert (moments.abs() < 4 * errors).all(), moments / errors


def sparse_covariance(made, xi, buffers):
    model = made.regression({"layer0": xi}, buffers)
    summary = greedy.summarise(model, model.places(buffers[M]))
    return greedy.features(model, summary.chol, summary.centres, slice(None))


def drawn(made, xi, buffers, generator):
    """y ~ N(0, Q + s I) of every particle `[S, n]`."""
    v = sparse_covariance(made, xi, buffers)[0]
    normal = torch.randn(v.shape[0], v.shape[1], generator=generator, dtype=v.dtype)
    noise = torch.randn(v.shape[0], v.shape[2], generator=generator, dtype=v.dtype)
    return (v.mT @ normal[..., None])[..., 0] + 0.3**0.5 * noise


def one_transition(made, xi, y, buffers, generator, size):
    """pCN with data of its own for every particle, by making replicas of particles."""
    replicas = {name: value.expand(len(y), *value.shape[1:]) for name, value in buffers.items()} | {"y": y}
    start = xi.transpose(0, 1)
    z = torch.randn(start.shape, generator=generator, dtype=xi.dtype)
    uniform = torch.rand(len(y), 1, generator=generator, dtype=xi.dtype)
    sizes = torch.full((len(y), 1), size, dtype=xi.dtype)
    log_likelihood = lambda position: made.log_likelihood({"layer0": position[0]}, replicas)  # noqa: E731
    (moved,), _, _ = pcn.step([start], log_likelihood([start]), log_likelihood, [z], uniform, sizes)
    return moved.transpose(0, 1)


def test_the_objective_is_minus_the_log_joint_of_the_state_left():
    """Of standard normal xi but for their constant, on average over particles."""
    train, made = rows(), method()
    state = disturbed(started(made, train))
    loss = made.step(state, train, noise(made, state, 0, 20, 0), 0, 20)
    prior = sum(torch.distributions.Normal(0, 1).log_prob(xi).sum((2, 3)) for xi in state.params.values())
    constant = 0.5 * math.log(2 * math.pi) * sum(xi[0, 0].numel() for xi in state.params.values())
    torch.testing.assert_close(loss, -(prior + constant + state.memory["value"]).mean(1))


def test_with_infinite_noise_every_proposal_is_accepted():
    train, made = rows(), method(em_iterations=1)
    state = started(made, train, noise_variance=1e12)
    run(made, state, train, 30)
    assert made.report(state)["acceptance_latents"].item() == 1.0


def test_a_constant_or_a_rotation_of_the_hidden_values_changes_nothing():
    train, made = rows(d=2), method()
    state = disturbed(started(made, train))
    model = made.regression(state.params, state.buffers)
    rotation = torch.linalg.qr(torch.randn(2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    moved = model._replace(places=lambda rows: model.places(rows) @ rotation + 3.0)
    values = [greedy.log_likelihood(m, greedy.summarise(m, m.places(state.buffers[M]))) for m in (model, moved)]
    torch.testing.assert_close(*values, rtol=1e-9, atol=0)


def test_step_sizes_stay_in_the_last_e_step_only():
    train, made = rows(), method(em_iterations=2, rounds=1)
    state = started(made, train)
    run(made, state, train, 400)
    assert not torch.equal(state.memory["size"], torch.full((1, 3), 0.1, dtype=torch.float64))
    grown = math.log(state.memory["size"].max().item() / 0.1) / math.log(1.25)
    assert round(grown) == pytest.approx(grown, abs=1e-9)
    assert abs(grown) <= 2  # adapted after 100 and 200 steps, not after 300 and 400
    assert state.memory["transitions"].tolist() == [[200.0] * 3]


def test_a_step_function_is_learnt():
    """As the scratch program of the sheet (section 11), whose height and lengthscale it does not say: the average bound
    rises, acceptance is 0.25 to 0.4, and |xi|^2 goes from well below its dimension to about it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 80, dtype=torch.float64)
    y = 0.5 * (x > 0) + 0.05 * torch.randn(80, generator=generator, dtype=torch.float64)
    train = Batch(x[None, :, None], y[None, :, None], torch.ones(1, 80, dtype=torch.float64))
    made = method(num_inducing=10, particles=8, em_iterations=6, rounds=3, candidates=80)
    state = started(made, train, list(range(3, 80, 8)), noise_variance=0.05**2)
    model = made.regression(state.params, state.buffers)
    start = greedy.bound(model, greedy.summarise(model, model.places(state.buffers[M]))).mean()
    run(made, state, train, 900)
    model = made.regression(state.params, state.buffers)
    end = greedy.bound(model, greedy.summarise(model, model.places(state.buffers[M]))).mean()
    assert start < 60
    assert end > 75
    report = made.report(state)
    assert 0.2 < report["acceptance_latents"].item() < 0.45
    assert report["whitened_norm_start"].item() < 0.4
    assert 0.7 < report["whitened_norm"].item() < 1.4


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"architecture": "convolution", "hidden_width": 3}, "one output"),
        ({"architecture": "convolution", "hidden_width": 1}, ""),
        ({"hidden_width": 3}, ""),
    ],
)
def test_impossible_settings(settings, reason):
    found = stride.Hyperparameters(**settings).impossible("regression")
    assert reason in found
    assert bool(found) == bool(reason)


def test_rows_that_settings_need():
    assert stride.Hyperparameters(num_inducing=70).least_rows() == 70
    assert stride.Hyperparameters(hidden="aca", rank=90).least_rows() == 90
    assert stride.Hyperparameters(rank=90).least_rows() == 50


@pytest.mark.parametrize("layers", [2, 3])
def test_only_approximated_hidden_layers_have_no_matrix_of_all_rows(layers):
    """Which the paper's claim of a cost linear in the rows needs; sampled in full there is a factor, O(n^3)."""
    train = rows(40)
    for hidden in HIDDEN:
        made = method(hidden=hidden, layers=layers)
        state = started(made, train)
        largest = max(value.numel() for value in state.buffers.values())
        assert (largest >= 40 * 40) == (hidden == "full")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_exact_likelihood_is_the_dense_one(architecture):
    train, made = rows(d=2), exact(architecture=architecture)
    state = disturbed(started(made, train))
    model = made.regression(state.params, state.buffers)
    places = model.places(slice(None))
    covariance = model.covariance(places, places)[0] + 0.05 * torch.eye(12, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros(3, 12, dtype=torch.float64), covariance)
    expected = normal.log_prob(train.y[0, :, 0])
    torch.testing.assert_close(made.log_likelihood(state.params, state.buffers)[0], expected, rtol=1e-10, atol=0)


def dense_values(architecture, state, train, particle: int) -> tuple[float, float]:
    """l_M and F_M of a particle of two layers in full, of one input, at the rows M and the numbers of `started`."""
    x, chosen, y = train.x[0].numpy(), state.buffers[M][0].numpy(), train.y[0, :, 0].numpy()
    k0 = np.exp(-np.square(x - x.T) / 2) + 1e-6 * np.eye(len(x))
    u = np.linalg.cholesky(k0) @ state.params["layer0"][0, particle].numpy()
    if architecture == "composition":
        k = 1.5 * np.exp(-np.square(u - u.T) / 2)
    else:
        h = np.clip(u, 0.1, 10.0) ** 2
        k = 1.5 * np.sqrt(2 * np.sqrt(h * h.T) / (h + h.T)) * np.exp(-np.square(x - x.T) / (h + h.T))
    q = k[:, chosen] @ np.linalg.solve(k[np.ix_(chosen, chosen)] + 1.5e-8 * np.eye(len(chosen)), k[chosen])
    likelihood = multivariate_normal.logpdf(y, np.zeros(len(y)), q + 0.05 * np.eye(len(y)))
    return likelihood, likelihood - np.trace(k - q) / (2 * 0.05)


@pytest.mark.parametrize(("objective", "place"), [("likelihood", 0), ("bound", 1)])
def test_values_are_those_of_dense_algebra(objective, place):
    """At one state, where those of the architectures differ, and the bound is below the likelihood."""
    train = rows()
    state, values = disturbed(started(method(), train)), []
    for architecture in ARCHITECTURES:
        made = method(architecture=architecture, objective=objective)
        dense = np.array([dense_values(architecture, state, train, particle) for particle in range(3)])
        values.append(made.log_likelihood(state.params, state.buffers)[0].numpy())
        np.testing.assert_allclose(values[-1], dense[:, place], rtol=1e-6)
        assert (dense[:, 0] > dense[:, 1] + 0.01).all()
    assert (abs(values[0] - values[1]) > 0.1).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("hidden", "kind"), [("full", Full), ("aca", CrossApproximation), ("sparse", Sparse)])
def test_hidden_layers_are_those_set(architecture, hidden, kind):
    made = method(architecture=architecture, hidden=hidden, layers=3, rank=6)
    assert type(made.hidden) is kind
    assert made.hidden.architecture == architecture
    assert made.hidden.names == ["layer0", "layer1"]
    state = started(made, rows())
    size = {"full": 12, "aca": 6, "sparse": 4}[hidden]
    assert [xi.shape for xi in state.params.values()] == 2 * [(1, 3, size, 1)]


@pytest.mark.parametrize(("width", "outputs"), [(None, 3), (2, 2)])
def test_the_start_has_the_width_set_and_is_that_of_a_sparse_gp_with_the_same_settings(width, outputs, monkeypatch):
    made, settings, fit = method(hidden_width=width, restarts=2, ascent_iterations=7, jitter=1e-6), [], greedy_sgp.fit

    def keeping(hyper, train, key):
        settings.append(hyper)
        return fit(hyper, train, key)

    monkeypatch.setattr(greedy_sgp, "fit", keeping)
    state = made.init(rows(d=3), KEY)
    assert state.params["layer0"].shape == (1, 3, 12, outputs)
    assert settings == [
        greedy_sgp.Hyperparameters(num_inducing=4, candidates=5, jitter=1e-6, restarts=2, ascent_iterations=7)
    ]


@pytest.mark.parametrize(("rounds", "candidates"), [(0, 5), (3, 2)])
def test_m_steps_exchange_rows_so_often_among_so_many_candidates(rounds, candidates, monkeypatch):
    train, made = rows(), method(rounds=rounds, candidates=candidates)
    numbers, exchange = [], greedy.exchange

    def counting(model, chosen, among):
        numbers.append(among.shape[1])
        return exchange(model, chosen, among)

    monkeypatch.setattr(greedy, "exchange", counting)
    run(made, started(made, train), train, 6)
    assert numbers == 2 * rounds * [candidates]


LAYERED = [*(method(layers=3, hidden=name) for name in HIDDEN), exact(layers=3)]


@pytest.mark.parametrize("made", LAYERED, ids=[*HIDDEN, "exact"])
def test_functions_are_those_of_all_layers(made):
    train, x = rows(d=2), rows(7, d=2, seed=5).x
    state = disturbed(started(made, train))
    found = made.functions(state, x, KEY)
    assert [tuple(layer.shape) for layer in found] == [(3, 1, 7, 2), (3, 1, 7, 2), (3, 1, 7, 1)]
    assert found[-1][:, 0].numpy() == pytest.approx(made.predict(state, x, KEY).component_mean)
    values = made.hidden.values(state.params, state.buffers)(slice(None))[0]
    at_rows = made.functions(state, train.x, KEY)[-2][:, 0]
    # fully sparse, the rows M keep their own values
    first = 4 if made.hyper.hidden == "sparse" else 0
    torch.testing.assert_close(at_rows[:, first:], values[:, first:], rtol=1e-3, atol=1e-3)


def test_many_test_rows_are_predicted_in_parts(monkeypatch):
    train, made, x = rows(d=2), method(), rows(30, d=2, seed=5).x
    state = disturbed(started(made, train))
    whole = made.predict(state, x, KEY)
    monkeypatch.setattr(greedy, "CHUNK_ELEMENTS", 60)
    parts = made.predict(state, x, KEY)
    assert parts.mean() == pytest.approx(whole.mean(), rel=1e-9)
    assert parts.variance() == pytest.approx(whole.variance(), rel=1e-9)
