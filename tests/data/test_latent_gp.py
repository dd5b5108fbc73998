"""Draws of GP models follow the laws that are stated, come with what they were drawn from, and repeat bit by bit."""

import dataclasses
import functools
import re

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, ndtr, ndtri

from gpbench.config.compose import compose, options
from gpbench.data import summary, table
from gpbench.data.prepare import prepare
from gpbench.data.simulated import generators, latent_gp, reproducible
from gpbench.errors import UserError
from gpbench.places import Places
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
LIKELIHOODS = ("lrg", "lcx", "vlt", "ord")
# every worker collects this file, and would take a second to read all entries
BY_TEXT = [
    name for name, path in options(CONF, "dataset").items() if re.search("^(truth|defaults):", path.read_text(), re.M)
]
SIMULATED = [name for name in BY_TEXT if compose(CONF, "dataset", name).truth]
QUICK = [name for name in SIMULATED if "_100_" in name or "_50_" in name]


@pytest.fixture(autouse=True, scope="module")
def each_set_is_drawn_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generators, "draw", functools.cache(generators.draw))
        yield


def kernel(x: np.ndarray, lengthscales: np.ndarray, variance: float) -> np.ndarray:
    """The covariance once more, by SciPy."""
    from scipy.spatial.distance import cdist

    scaled = x / lengthscales
    return variance * (np.exp(-0.5 * cdist(scaled, scaled, "sqeuclidean")) + 1e-6 * np.eye(len(x)))


def blocks(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    x, targets, _ = generators.draw(name)
    return list(zip(np.split(x, 10), np.split(targets, 10), strict=True))


def test_exponentials_are_exact_to_the_last_digits():
    x = np.concatenate([np.linspace(-700, 700, 20_001), [0.0, -1e-300, -2000.0]])
    np.testing.assert_array_less(np.abs(reproducible.exp(x) - np.exp(x)), 3e-16 * (1 + np.abs(x)) * np.exp(x) + 1e-300)
    assert reproducible.exp(np.array(0.0)) == 1.0


def test_gaussian_vectors_are_those_of_lapack():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(30, 30))
    covariance, normal = root @ root.T + np.eye(30), rng.normal(size=30)
    given = covariance.copy()
    np.testing.assert_allclose(
        reproducible.gaussian(covariance, normal), np.linalg.cholesky(given) @ normal, rtol=1e-10, atol=1e-10
    )
    assert np.array_equal(covariance, given)


def test_streams_differ_by_key_and_repeat():
    assert reproducible.stream(1, 2).random() == reproducible.stream(1, 2).random()
    assert len({reproducible.stream(*key).random() for key in ((), (1,), (2,), (1, 2), (2, 1))}) == 5


@pytest.mark.parametrize("name", ["lrg_100_2", "lrg_100_10", "probit_50_2", "probit_50_10"])
def test_latent_values_are_those_of_the_covariance_behind_them(name):
    """L^-1 f is standard normal; rows that were selected by class are only nearly so."""
    whitened = []
    for x, targets in blocks(name):
        log_lengthscales, log_variance = targets[0, 2:-1], targets[0, -1]
        assert (targets[:, 2:] == targets[0, 2:]).all()
        factor = np.linalg.cholesky(kernel(x, np.exp(log_lengthscales), np.exp(log_variance)))
        whitened.append(np.linalg.solve(factor, targets[:, 1]))
    whitened = np.concatenate(whitened)
    assert stats.kstest(whitened, stats.norm.cdf).pvalue > 0.001
    assert abs(whitened.std() - 1) < 4 / np.sqrt(2 * len(whitened))


def test_the_same_inputs_and_latent_values_over_likelihoods():
    sets = [generators.draw(f"{likelihood}_100_2") for likelihood in LIKELIHOODS]
    for x, targets, names in sets[1:]:
        assert np.array_equal(x, sets[0][0])
        assert np.array_equal(targets[:, 1:], sets[0][1][:, 1:])
        assert names == ["x1", "x2"]
    assert len({x.tobytes() for x in np.split(sets[0][0], 10)}) == 10
    assert not np.array_equal(sets[0][0][:100], generators.draw("lrg_400_2")[0][:100])


def test_parameters_of_filippone2013():
    _, targets, _ = generators.draw("vlt_100_10")
    log_lengthscales = targets[::100, 2:-1].ravel()
    assert (log_lengthscales.min() >= -3, log_lengthscales.max() <= -1) == (True, True)
    assert stats.kstest(log_lengthscales, stats.uniform(-3, 2).cdf).pvalue > 0.01
    assert set(targets[:, -1]) == {2.0}


def test_parameters_of_filippone2014():
    for d, expected in ((2, 0.35), (10, 0.35 * np.sqrt(5))):
        _, targets, _ = generators.draw(f"probit_50_{d}")
        np.testing.assert_allclose(np.exp(targets[:, 2:-1]), expected, rtol=1e-8)
        np.testing.assert_allclose(np.exp(targets[:, -1]), 2.08, rtol=1e-8)


def test_targets_follow_their_likelihoods():
    """Through the distribution function of each given f, which makes them uniform (of a discrete one at random)."""
    rng = np.random.default_rng(0)
    for likelihood in LIKELIHOODS:
        _, targets, _ = generators.draw(f"{likelihood}_100_10")
        y, f = targets[:, 0], targets[:, 1]
        if likelihood == "vlt":
            below = above = stats.norm(0, np.exp(f)).cdf(y)
        elif likelihood == "lcx":
            below, above = stats.poisson(np.exp(f)).cdf(y - 1), stats.poisson(np.exp(f)).cdf(y)
        elif likelihood == "lrg":
            below, above = np.where(y == 0, 0, expit(-f)), np.where(y == 0, expit(-f), 1)
        else:  # between thresholds e Phi^-1(s / 5), with noise of standard deviation 1/2
            below, above = (ndtr((np.e * ndtri((y + step) / 5) - f) / 0.5) for step in (0, 1))
        uniform = below + rng.uniform(size=len(y)) * (above - below)
        assert stats.kstest(uniform, "uniform").pvalue > 0.01, likelihood
        assert abs(np.corrcoef(uniform, f)[0, 1]) < 4 / np.sqrt(len(f)), likelihood


def test_classes_of_probit_sets_are_balanced_and_follow_f():
    for _, targets in blocks("probit_50_2"):
        assert np.bincount(targets[:, 0].astype(int)).tolist() == [25, 25]
    targets = generators.draw("probit_50_10")[1]
    means = [targets[targets[:, 0] == label, 1].mean() for label in (0, 1)]
    assert means[1] - means[0] > 1


def test_rows_of_a_class_that_is_too_rare_are_drawn_again(monkeypatch):
    lows = iter([-9.0, -9.0, 0.0])  # first all rows of one class, twice, then both

    def draw(rng, n, log_lengthscales, log_variance):
        x, f = rng.uniform(size=(n, len(log_lengthscales))), np.full(n, next(lows))
        return x, f

    monkeypatch.setattr(latent_gp, "latents", draw)
    x, targets = latent_gp._balanced_probit(reproducible.stream(0), 8, 2)
    assert x.shape == (8, 2)
    assert np.bincount(targets[:, 0].astype(int)).tolist() == [4, 4]
    assert next(lows, None) is None


@pytest.mark.parametrize("name", QUICK)
def test_preparing_gives_the_pinned_arrays(name, tmp_path):
    dataset = compose(CONF, "dataset", name)
    where = Places(tmp_path, tmp_path / "store")
    assert prepare(dataset, where) == dataset.md5
    stored = table.load(where.prepared_file(name), dataset.md5)
    assert stored.target_names == ["y", *dataset.truth]
    assert stored.targets.dtype == np.float64
    found = summary.statistics(stored, dataset)
    assert found.targets == 1
    assert len(found.target_mean) == (not dataset.classes)
    every = np.split(stored.targets[:, 0], 10)
    assert all(len(np.unique(y)) == len(dataset.classes) for y in every if dataset.classes)


def test_catalogue_holds_every_size():
    sizes = {name: compose(CONF, "dataset", name) for name in SIMULATED}
    assert len(sizes) == 20
    for name, dataset in sizes.items():
        _, n, d = name.split("_")
        assert (dataset.rows, dataset.columns, dataset.source.item) == (10 * int(n), int(d), name)
        assert dataset.truth == ["f", *(f"log_lengthscale_{r + 1}" for r in range(int(d))), "log_variance"]


def test_truth_is_checked_like_other_columns_but_for_classes():
    made = table.Table(np.zeros((3, 1)), np.array([[0, 0.5], [1, -2], [1, 7.0]]), ["x"], ["y", "f"])
    table.check(made, "mine", "binary", 2, truth=1)
    table.check(made, "mine", "counts", 0, truth=1)
    with pytest.raises(UserError, match="class numbers are"):
        table.check(made, "mine", "binary", 2)
    with pytest.raises(UserError, match="target 'f' is 0.5 in row 0, not a count"):
        table.check(made, "mine", "counts", 0)
    lost = dataclasses.replace(made, targets=np.array([[0, 0.5], [1, np.nan], [1, 7.0]]))
    with pytest.raises(UserError, match="target 'f' is not a finite number in row 1"):
        table.check(lost, "mine", "binary", 2, truth=1)
