"""The table of test points, in original units whatever units the predictive came in."""

import numpy as np
import pytest
from scipy import stats

from gpbench.errors import UserError
from gpbench.evaluation import pointwise as module
from gpbench.evaluation.pointwise import QUANTILE_COLUMNS, components, pointwise
from gpbench.predictive.distributions import Categorical, GaussianMixture

SHIFT, SCALE = 20.0, 4.0


@pytest.fixture
def scaled():
    rng = np.random.default_rng(7)
    return GaussianMixture(rng.standard_normal((6, 30, 1)), np.exp(rng.standard_normal((6, 30, 1))))


@pytest.fixture
def y():
    return SHIFT + SCALE * np.random.default_rng(8).standard_normal(30)


def test_regression_columns(scaled, y):
    points = pointwise(scaled, y, task="regression", scaled_by=(SHIFT, SCALE), rows=np.arange(100, 130))
    heads = ["row", "output", "y", "mean", "sd", "log_density", "log_density_scaled"]
    heads += ["log_density_draws", "pit", "crps"]
    assert list(points.columns) == heads + [f"q{percent:02d}" for percent in range(1, 100)]
    assert points["row"].tolist() == list(range(100, 130))
    assert set(points["output"]) == {0}
    np.testing.assert_allclose(points["mean"], SHIFT + SCALE * scaled.mean()[:, 0])
    np.testing.assert_allclose(points["sd"] ** 2, SCALE**2 * scaled.variance()[:, 0])


def test_both_log_densities_are_of_the_stated_units(scaled, y):
    points = pointwise(scaled, y[:, None], task="regression", scaled_by=([SHIFT], [SCALE]), rows=np.arange(30))
    standardised = (y[:, None] - SHIFT) / SCALE
    np.testing.assert_allclose(points["log_density_scaled"], scaled.log_prob(standardised)[:, 0])
    np.testing.assert_allclose(points["log_density"], scaled.log_prob(standardised)[:, 0] - np.log(SCALE))
    np.testing.assert_allclose(points["pit"], scaled.cdf(standardised)[:, 0])
    np.testing.assert_allclose(points["crps"], SCALE * scaled.crps(standardised)[:, 0])


def test_predictive_in_original_units_needs_no_scaling(scaled, y):
    there = pointwise(scaled.affine(scale=SCALE, shift=SHIFT), y, task="regression", rows=np.arange(30))
    here = pointwise(scaled, y, task="regression", scaled_by=(SHIFT, SCALE), rows=np.arange(30))
    np.testing.assert_allclose(there.drop(columns="log_density_scaled"), here.drop(columns="log_density_scaled"))
    np.testing.assert_array_equal(there["log_density_scaled"], there["log_density"])


def test_quantiles_agree_with_pit(scaled, y):
    """A target lies below its level-quantile exactly where its PIT is below the level."""
    points = pointwise(scaled, y, task="regression", scaled_by=(SHIFT, SCALE), rows=np.arange(30))
    quantiles, levels = points[QUANTILE_COLUMNS].to_numpy(), np.arange(1, 100) / 100
    np.testing.assert_array_equal(y[:, None] <= quantiles, points["pit"].to_numpy()[:, None] <= levels)


def test_classification_columns():
    predictive = Categorical([[[0.7, 0.2, 0.1], [0.1, 0.4, 0.5]]])
    points = pointwise(predictive, [[0.0], [1.0]], task="multiclass", rows=[4, 9])
    assert list(points.columns) == ["row", "y", "p0", "p1", "p2", "log_density", "modal"]
    assert points["y"].tolist() == [0, 1]
    assert points["modal"].tolist() == [0, 2]
    np.testing.assert_allclose(points["log_density"], np.log([0.7, 0.4]))


def test_several_targets_have_a_row_each_as_if_alone():
    """Scores of a target are those of its marginal, in its own units."""
    rng = np.random.default_rng(9)
    mean, variance = rng.standard_normal((4, 5, 3)), np.exp(rng.standard_normal((4, 5, 3)))
    shift, scale = np.array([1.0, -200.0, 0.0]), np.array([2.0, 30.0, 0.1])
    y = shift + scale * rng.standard_normal((5, 3))
    rows = np.array([7, 3, 9, 0, 4])
    points = pointwise(GaussianMixture(mean, variance), y, task="regression", scaled_by=(shift, scale), rows=rows)
    assert points["row"].tolist() == np.repeat(rows, 3).tolist()
    assert points["output"].tolist() == [0, 1, 2] * 5
    assert points["y"].tolist() == y.ravel().tolist()
    for p in range(3):
        one = GaussianMixture(mean[..., [p]], variance[..., [p]])
        alone = pointwise(one, y[:, p], task="regression", scaled_by=(shift[p], scale[p]), rows=rows)
        together = points[points["output"] == p].reset_index(drop=True)
        np.testing.assert_allclose(together.drop(columns="output"), alone.drop(columns="output"), rtol=1e-12)


def test_classes_of_several_targets_are_refused_in_one_line():
    with pytest.raises(UserError, match="classification scores one target, got 2; choose one by `outputs`"):
        pointwise(Categorical(np.full((1, 3, 2), 0.5)), np.zeros((3, 2)), task="binary", rows=np.arange(3))


def test_divergence_is_not_scored():
    predictive = GaussianMixture([[[np.nan]]], [[[1.0]]])
    with pytest.raises(ValueError, match="diverged"):
        pointwise(predictive, [0.0], task="regression", rows=[0])
    with pytest.raises(ValueError, match="differ in length"):
        pointwise(predictive, [0.0], task="regression", rows=[0, 1])


def test_components_are_kept_in_float32_while_small(scaled, monkeypatch):
    kept = components(scaled)
    assert {name: array.dtype for name, array in kept.items()} == {"mean": np.float32, "variance": np.float32}
    y = np.zeros((30, 1))
    np.testing.assert_allclose(GaussianMixture(**kept).log_prob(y), scaled.log_prob(y), rtol=1e-4)
    probs = components(Categorical(np.full((2, 3, 4), 0.25)))
    assert Categorical(**probs).component_probs.shape == (2, 3, 4)
    monkeypatch.setattr(module, "COMPONENTS_LIMIT_BYTES", 2 * 6 * 30 * 4 - 1)
    assert components(scaled) == {}


def test_large_predictive_is_scored_exactly():
    """Many components of the same Gaussian are that Gaussian, however the work is cut into blocks."""
    y = np.linspace(-3, 3, 300)
    predictive = GaussianMixture(np.zeros((64, 300, 1)), np.ones((64, 300, 1)))
    points = pointwise(predictive, y, task="regression", rows=np.arange(300))
    np.testing.assert_allclose(points["pit"], stats.norm.cdf(y), rtol=1e-12)
    np.testing.assert_allclose(points["q90"], stats.norm.ppf(0.9), rtol=1e-9)
