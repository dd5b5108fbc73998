"""The multinomial GP of several sources: what its settings say, its predictions by dense algebra, its report."""

import dataclasses

import numpy as np
import pytest
import torch
from gp_cases import noise_size, replica, split, training_set

from gpbench.errors import UserError
from gpbench.gp import multinomial
from gpbench.methods import multinomial_gp
from gpbench.methods.multinomial_gp import Hyperparameters, Method
from gpbench.streams import Key

F64 = torch.float64
SOURCES, CLASSES, ROWS = (2, 3), 3, 12
KEYS = [Key("data", "protocol", split) for split in range(2)]


def data():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((ROWS, sum(SOURCES))))
    y = torch.from_numpy(rng.permutation(np.arange(ROWS) % CLASSES)).to(F64)
    return training_set(x, y[:, None], [list(range(ROWS)), list(range(ROWS))])


def method(**hyper):
    return Method(Hyperparameters(**({"sources": SOURCES, "num_samples": 5} | hyper)), "multiclass", CLASSES)


def run(m, steps=10):
    """The state after some transitions, all kept after burn-in."""
    rows = data()
    state, batch, rng = m.start(rows, KEYS), rows.full(), np.random.default_rng(1)
    for step in range(steps):
        noise = torch.from_numpy(rng.standard_normal((len(KEYS), noise_size(m, state, ROWS))))
        objective = m.step(state, batch, split(m, state, batch, noise), step, steps)
        assert objective.isfinite().all()
        if m.keep(step + 1, steps):
            for name, value in state.params.items():
                state.samples.setdefault(name, []).append(value.clone())
    return state


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
    scaled = [part / part.square().sum(2).mean(1).sqrt()[:, None, None] for part in batch.x.split(SOURCES, -1)]
    covariance = sum(part @ part.mT + multinomial.JITTER * torch.eye(ROWS, dtype=F64) for part in scaled)
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
        scaled["grams"] * raw["grams"].diagonal(dim1=2, dim2=3).mean(2)[..., None, None] / (1 + multinomial.JITTER),
    )
    torch.testing.assert_close(
        scaled["grams"].diagonal(dim1=2, dim2=3).mean(2), torch.full((2, 2), 1 + 1e-6, dtype=F64)
    )


def test_predictions_by_dense_algebra():
    m = method(samples_test=20_000)
    state = m.start(data(), KEYS)
    batch, x = data().full(), torch.from_numpy(np.random.default_rng(2).standard_normal((2, 3, sum(SOURCES))))
    probabilities = m.predict(replica(state, 0), x[:1], KEYS[0]).probabilities()
    mean, deviation = torch.zeros(CLASSES, 3, dtype=F64), torch.zeros(CLASSES, 3, dtype=F64)
    for c, weights in enumerate(state.params["theta"][0].exp()):
        scale = torch.cat(
            [
                part[0].square().sum() / ROWS / w * torch.ones(part.shape[2])
                for part, w in zip(batch.x.split(SOURCES, -1), weights, strict=True)
            ]
        )
        kernel = lambda a, b, scale=scale: (a / scale) @ b.mT  # noqa: E731
        train = kernel(batch.x[0], batch.x[0]) + multinomial.JITTER * weights.sum() * torch.eye(ROWS, dtype=F64)
        cross = kernel(x[0], batch.x[0])
        mean[c] = cross @ torch.linalg.solve(train, state.params["f"][0, c])
        variance = kernel(x[0], x[0]) - cross @ torch.linalg.solve(train, cross.T)
        deviation[c] = (variance.diagonal() + multinomial.JITTER * weights.sum()).sqrt()
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
