"""The multinomial GP of several sources: what its settings say, its predictions by dense algebra, its report."""

import dataclasses

import numpy as np
import pytest
import torch
from gp_cases import noise_size, replica, split, training_set
from scipy import stats

from gpbench.errors import UserError
from gpbench.gp.jitter import DEFAULT_JITTER
from gpbench.methods import multinomial_gp
from gpbench.methods.multinomial_gp import Hyperparameters, Method
from gpbench.sampling.latent import multinomial
from gpbench.sampling.latent.weights import WeightsHMC, WeightsRMHMC, WeightsWalk
from gpbench.streams import Key

F64 = torch.float64
SOURCES, CLASSES, ROWS = (2, 3), 3, 12
KEYS = [Key("data", "protocol", split) for split in range(2)]


def data(rows=ROWS, replicas=2):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((rows, sum(SOURCES))))
    y = torch.from_numpy(rng.permutation(np.arange(rows) % CLASSES)).to(F64)
    return training_set(x, y[:, None], [list(range(rows))] * replicas)


def method(**hyper):
    return Method(Hyperparameters(**({"sources": SOURCES, "num_samples": 5} | hyper)), "multiclass", CLASSES)


def run(m, steps=10, history=None):
    """The state after some transitions, all kept after burn-in; history: a list that takes what is on the way."""
    rows = data()
    state, batch, rng = m.start(rows, KEYS), rows.full(), np.random.default_rng(1)
    for step in range(steps):
        noise = torch.from_numpy(rng.standard_normal((len(KEYS), noise_size(m, state, ROWS))))
        objective = m.step(state, batch, split(m, state, batch, noise), step, steps)
        assert objective.isfinite().all()
        if history is not None:
            history.append(state.memory | state.params | {"objective": objective, "noise": noise})
        if m.keep(step + 1, steps):
            for name, value in state.params.items():
                state.samples.setdefault(name, []).append(value.clone())
    return state


def grams(x):
    """C_s `[R, n, n]` of each source, scaled."""
    scaled = [part / part.square().sum(2).mean(1).sqrt()[:, None, None] for part in x.split(SOURCES, -1)]
    return [part @ part.mT + DEFAULT_JITTER * torch.eye(ROWS, dtype=F64) for part in scaled]


@pytest.mark.parametrize("approach", "abcdef")
def test_every_approach_moves_both_and_counts(approach):
    # with unit mass a step has to fit the directions of which the jitter is all the variance
    step_size = 0.001 if approach == "a" else 0.05
    m = method(approach=approach, leapfrogs=2, step_size=step_size, weight_step_size=0.05)
    state = run(m, steps=4)
    first = m.start(data(), KEYS)
    assert all((state.params[name] != first.params[name]).any() for name in ("f", "theta"))
    chol = m.model(state.buffers, data().full()).factor(state.params["theta"])
    torch.testing.assert_close(state.memory["chol"], chol)
    report = m.report(state)
    assert ((report["acceptance_latents"] > 0.5) & (report["acceptance_theta"] > 0.5)).all()
    assert (report["cholesky"] >= CLASSES).all()
    # a factor of a metric of f has the size of all functions together
    assert bool((report["cholesky"] >= CLASSES**3).all()) == (approach != "a")


def test_operations_of_the_recommended_approach():
    report = method().report(run(method()))
    assert report["cholesky"].tolist() == [CLASSES**3 + CLASSES] * 2
    assert report["product"].tolist() == [CLASSES**2] * 2
    assert "inverse" not in report


def test_unweighted_sources_have_weights_of_one():
    m = method(weights="unweighted")
    state = run(m)
    assert list(state.params) == ["f"]
    assert "acceptance_theta" not in m.report(state)
    batch = data().full()
    covariance = sum(grams(batch.x))
    chol = state.memory["chol"]
    torch.testing.assert_close(chol @ chol.mT, covariance[:, None].expand(-1, CLASSES, -1, -1))


def test_dirichlet_weights_stay_on_the_simplex():
    m = method(weights="dirichlet", tune=True)
    state = run(m, steps=20)
    first = m.start(data(), KEYS)
    for one in (first, state):
        torch.testing.assert_close(one.params["theta"].exp().sum(2), torch.ones(2, CLASSES, dtype=F64))
    assert (state.params["log_concentration"] != first.params["log_concentration"]).any()


def test_a_source_alone_is_that_source():
    torch.testing.assert_close(
        method(only=1).start(data(), KEYS).buffers["grams"], method().start(data(), KEYS).buffers["grams"][:, 1:]
    )


def test_raw_sources_are_not_scaled():
    scaled, raw = (method(scaled=scaled).start(data(), KEYS).buffers for scaled in (True, False))
    torch.testing.assert_close(
        raw["grams"],
        scaled["grams"] * raw["grams"].diagonal(dim1=2, dim2=3).mean(2)[..., None, None] / (1 + DEFAULT_JITTER),
    )
    torch.testing.assert_close(
        scaled["grams"].diagonal(dim1=2, dim2=3).mean(2), torch.full((2, 2), 1 + 1e-6, dtype=F64)
    )
    for s, part in enumerate(data().full().x.split(SOURCES, -1)):
        nugget = DEFAULT_JITTER * part.square().sum(2).mean(1)[:, None, None] * torch.eye(ROWS, dtype=F64)
        torch.testing.assert_close(raw["grams"][:, s], part @ part.mT + nugget)


def test_weights_start_at_draws_from_their_prior():
    keys = [Key("data", "protocol", split) for split in range(200)]
    learned, dirichlet = (
        method(weights=kind).start(data(replicas=200), keys).params for kind in ("learned", "dirichlet")
    )
    assert stats.kstest(learned["theta"].exp().flatten(), stats.gamma(2, scale=0.5).cdf).pvalue > 1e-4
    alpha = dirichlet["log_concentration"].exp().numpy()
    assert stats.kstest(alpha, "expon").pvalue > 1e-4
    # of two weights on the simplex, the first is Beta(alpha, alpha)
    ranks = stats.beta.cdf(dirichlet["theta"][:, :, 0].exp().numpy(), alpha[:, None], alpha[:, None])
    assert stats.kstest(ranks.flatten(), "uniform").pvalue > 1e-4


def log_prior(chain, kind):
    """log p(theta) `[R]`, with what moves it."""
    if kind == "learned":
        law = torch.distributions.Gamma(torch.tensor(2.0, dtype=F64), 2.0)
        return (law.log_prob(chain["theta"].exp()) + chain["theta"]).sum((1, 2))
    if kind == "unweighted":
        return torch.zeros(2, dtype=F64)
    alpha = chain["log_concentration"].exp()
    law = torch.distributions.Dirichlet(alpha[:, None, None].expand(-1, CLASSES, 2))
    return law.log_prob(chain["theta"].exp()).sum(1) - alpha + chain["log_concentration"]


@pytest.mark.parametrize("kind", ["learned", "unweighted", "dirichlet"])
def test_a_step_returns_the_log_density_of_the_state_it_leaves(kind):
    history, batch = [], data().full()
    run(method(weights=kind), steps=6, history=history)
    labels, expected = batch.y[..., 0].long(), []
    for chain in history:
        theta = chain.get("theta", torch.zeros(2, CLASSES, 2, dtype=F64))
        covariance = torch.einsum("rcs,srij->rcij", theta.exp(), torch.stack(grams(batch.x)))
        of_f = torch.distributions.MultivariateNormal(torch.zeros(ROWS, dtype=F64), covariance).log_prob(chain["f"])
        of_y = torch.distributions.Categorical(logits=chain["f"].mT).log_prob(labels).sum(1)
        expected.append(of_y + of_f.sum(1) + log_prior(chain, kind))
    expected, objective = torch.stack(expected), torch.stack([chain["objective"] for chain in history])
    assert expected.std() > 0.5
    constants = objective + expected
    torch.testing.assert_close(constants, constants[0, 0].expand_as(constants), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("approach", "of_f", "of_theta"),
    [
        ("a", multinomial.HMC, WeightsHMC),
        ("b", multinomial.HMC, WeightsHMC),
        ("c", multinomial.RMHMC, WeightsHMC),
        ("d", multinomial.RMHMC, WeightsRMHMC),
        ("e", multinomial.HMC, WeightsWalk),
        ("f", multinomial.RMHMC, WeightsWalk),
    ],
)
def test_approaches_are_the_rows_of_the_published_table(approach, of_f, of_theta):
    """filippone2012, table 1; a has the mass I, and b and e that of the class frequencies."""
    m, rows = method(approach=approach, leapfrogs=7), data()
    latents, theta = m.operator(m.model(m.start(rows, KEYS).buffers, rows.full())).parts
    assert (type(latents), type(theta)) == (of_f, of_theta)
    assert {part.leapfrogs for part in (latents, theta) if hasattr(part, "leapfrogs")} == {7}
    assert getattr(latents, "homogeneous", None) == {"a": False, "b": True, "e": True}.get(approach)


@pytest.mark.parametrize(("approach", "weights"), [*((name, "learned") for name in "abcdef"), ("e", "dirichlet")])
def test_step_sizes_are_those_set(approach, weights):
    m = method(approach=approach, weights=weights, step_size=0.3, weight_step_size=0.07)
    memory = m.start(data(), KEYS).memory
    for name, size in (("latents", 0.3), ("theta", 0.07)):
        torch.testing.assert_close(memory[f"{name}.log_step_size"].exp(), torch.full((2,), size, dtype=F64))


def test_walks_of_weights_are_as_long_as_their_step_size():
    """Hardly anything of so short a step is rejected: theta moves by its size times the normals of the step."""
    history, size = [], 1e-6
    run(method(weight_step_size=size), steps=2, history=history)
    normals = history[1]["noise"][:, 1 : 1 + 2 * CLASSES].reshape(2, CLASSES, 2)
    torch.testing.assert_close(history[1]["theta"] - history[0]["theta"], size * normals, rtol=1e-6, atol=1e-15)


def test_burn_in_alone_changes_step_sizes_and_only_where_they_are_tuned():
    for tune in (True, False):
        history = []
        run(method(tune=tune), steps=10, history=history)
        for name in ("latents", "theta"):
            sizes = torch.stack([chain[f"{name}.log_step_size"] for chain in history])
            assert (sizes[:2] != sizes[1:3]).all() == tune
            assert (sizes[3:] == sizes[2]).all()
            assert (sizes == sizes[0]).all() != tune


@pytest.mark.parametrize("rows", [3, ROWS])
def test_predictions_by_dense_algebra(rows):
    m = method(samples_test=20_000)
    state = m.start(data(rows), KEYS)
    batch, x = data(rows).full(), torch.from_numpy(np.random.default_rng(2).standard_normal((2, 3, sum(SOURCES))))
    probabilities = m.predict(replica(state, 0), x[:1], KEYS[0]).probabilities()
    mean, deviation = torch.zeros(CLASSES, 3, dtype=F64), torch.zeros(CLASSES, 3, dtype=F64)
    for c, weights in enumerate(state.params["theta"][0].exp()):
        scale = torch.cat(
            [
                part[0].square().sum() / rows / w * torch.ones(part.shape[2])
                for part, w in zip(batch.x.split(SOURCES, -1), weights, strict=True)
            ]
        )
        kernel = lambda a, b, scale=scale: (a / scale) @ b.mT  # noqa: E731
        train = kernel(batch.x[0], batch.x[0]) + DEFAULT_JITTER * weights.sum() * torch.eye(rows, dtype=F64)
        cross = kernel(x[0], batch.x[0])
        mean[c] = cross @ torch.linalg.solve(train, state.params["f"][0, c])
        variance = kernel(x[0], x[0]) - cross @ torch.linalg.solve(train, cross.T)
        deviation[c] = (variance.diagonal() + DEFAULT_JITTER * weights.sum()).sqrt()
    # fewer rows than columns leave directions of which nothing is known
    assert bool(deviation.min() > 0.1) == (rows < sum(SOURCES))
    rng = np.random.default_rng(3)
    f = mean + deviation * torch.from_numpy(rng.standard_normal((200_000, CLASSES, 1)))
    drawn = f.softmax(1)
    error = drawn.std(0).T * (1 / 20_000 + 1 / 200_000) ** 0.5
    assert ((torch.from_numpy(probabilities) - drawn.mean(0).T).abs() < 4 * error + 1e-9).all()
    assert np.abs(probabilities - 1 / CLASSES).max() > 0.05


def test_variables_have_names():
    assert method().variables("theta", 6)[3] == "log weight[1,1]"
    assert method().variables("f", 6)[5] == "f[2,1]"
    assert method().variables("log_concentration", 1) == ["log concentration"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"only": 2}, "only must be below the number of sources, 2, got 2"),
        ({"weights": "dirichlet", "only": 0}, "at least two sources"),
        ({"weights": "dirichlet", "approach": "d"}, "approach e or f"),
        ({}, ""),
        ({"only": 1}, ""),
    ],
)
def test_settings_that_fit_no_data(settings, reason):
    said = Hyperparameters(**{"sources": SOURCES} | settings).impossible("multiclass")
    assert reason in said
    assert bool(reason) == bool(said)


def test_sources_must_make_up_the_columns():
    with pytest.raises(UserError, match="sources hold 4 columns, the data have 5"):
        method(sources=(2, 2)).start(data(), KEYS)


def test_defaults_are_the_published_settings():
    hyper = dataclasses.asdict(multinomial_gp.Hyperparameters())
    wanted = {"approach": "e", "leapfrogs": 10, "step_size": 0.5, "weight_step_size": 0.2}
    assert {name: hyper[name] for name in wanted} == wanted
